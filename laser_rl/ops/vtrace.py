"""Returns from off-policy experience: V-trace under the trust indicator λ, and without clipping plain importance sampling.

All arguments are time-major [T, B]. `learnable` is λ·is_transition: inside the trust region and a transition. A row that is not
learnable adds nothing to any target and lets no trace through, so rows after it still train and rows before it bootstrap from its value:

    acc_t = learnable_t · (ρ_t·δ_t + γ_t·c_t·acc_{t+1}),   target_t = V_t + acc_t

The row after the end of an episode is not a transition; its `value` is that of the episode's own final observation.
So a truncation needs no special case: γ_t is not 0 there, `next_value` is the right one, and the trace ends because acc_{t+1} is 0.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laser_rl.ops import checks
from laser_rl.ops.recurrence import backward_recurrence


class Estimate(NamedTuple):
    """What a return says at each step; constants, no gradient flows through them.

    `advantage` is r_t + γ_t·target_{t+1} − V_t, the bracket of the policy gradient (eq. 2) less its baseline; `rho` is the weight in
    front of it. Neither is masked: the policy may use another mask than the value. Their rows that are not learnable may hold anything.
    """

    target: Float[Tensor, "T B"]
    advantage: Float[Tensor, "T B"]
    rho: Float[Tensor, "T B"]


def vtrace(
    log_ratio: Float[Tensor, "T B"],
    learnable: Bool[Tensor, "T B"],
    reward: Float[Tensor, "T B"],
    discount: Float[Tensor, "T B"],
    value: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> Estimate:
    """The trusted V-trace return (eq. return_vtrace).

    `log_ratio` is log π(a_t|s_t) − log μ(a_t|s_t): no ratio overflows before it is clipped. The discount is 0 where the environment
    terminated. Of the T+1 values of an unroll, `value` has the first T, `next_value` the last T. `clip_rho` (ρ̄) sets the fixed point
    (Prop. 1); `clip_c` (c̄ ≤ ρ̄) sets only the speed. With both infinite it is the importance-sampled return (eq. return_is), unbiased and
    of unbounded variance: its product includes the ratio of the current step, acc_t = learnable_t·ratio_t·(δ_t + γ_t·acc_{t+1}).

    On the agent's own data the target is the plain n-step return:

    >>> one = torch.ones(3, 1)
    >>> estimate = vtrace(0 * one, one.bool(), one, 0.5 * one, 0 * one, 0 * one)
    >>> estimate.target.squeeze(1)
    tensor([1.7500, 1.5000, 1.0000])
    """
    if checks.active():
        values = {"value": value, "next_value": next_value}
        checks.rows(learnable, log_ratio=log_ratio, reward=reward, discount=discount, **values)
        checks.finite(**values)  # rows before one that is not learnable bootstrap from its value
    with torch.no_grad():
        rho = clipped_ratio(log_ratio, clip_rho)
        trace = discount * (rho if clip_c == clip_rho else clipped_ratio(log_ratio, clip_c))
        td_error = reward + discount * next_value - value
        # `where`, not a product with the mask: what stands in a row that is not learnable may be NaN, and NaN · 0 is NaN.
        zero = td_error.new_zeros(())
        gain = backward_recurrence(torch.where(learnable, rho * td_error, zero), torch.where(learnable, trace, zero))
        next_target = next_value + torch.cat([gain[1:], torch.zeros_like(gain[:1])])
        return Estimate(value + gain, reward + discount * next_target - value, rho)


def clipped_ratio(log_ratio: Float[Tensor, "*rows"], clip: float) -> Float[Tensor, "*rows"]:
    """min(clip, π/μ), clipped before the exponential.

    >>> clipped_ratio(torch.tensor([-1e4, 0.0, 1e4]), 2.0)
    tensor([0., 1., 2.])
    """
    return log_ratio.clamp(max=math.log(clip)).exp()
