"""The losses of LASER, one number a step, unreduced.

Rows that are not learnable (rejected, or no transition at all) contribute exactly nothing: 0 to the loss and 0 to every gradient, whatever
stands in them.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer, Num
from torch import Tensor

from laser_rl.ops import checks
from laser_rl.ops.distributions import Family
from laser_rl.ops.vtrace import Estimate, vtrace

Reduction = Literal["sum", "mean"]


class ActorCriticLosses(NamedTuple):
    """Per-step losses and what they were made of, which is also what a learner reports."""

    policy: Float[Tensor, "T B"]
    value: Float[Tensor, "T B"]
    entropy: Float[Tensor, "T B"]
    learnable: Bool[Tensor, "T B"]
    log_ratio: Float[Tensor, "T B"]
    estimate: Estimate


def policy_gradient_loss(
    log_prob: Float[Tensor, "T B"],
    rho: Float[Tensor, "T B"],
    advantage: Float[Tensor, "T B"],
    learnable: Bool[Tensor, "T B"],
) -> Float[Tensor, "T B"]:
    """−ρ_t·log π(a_t|s_t)·advantage_t (eq. 2, to be minimised); ρ and the advantage are constants.

    >>> policy_gradient_loss(torch.tensor([[-1.0]]), torch.tensor([[0.5]]), torch.tensor([[4.0]]), torch.tensor([[True]]))
    tensor([[2.]])
    """
    if checks.active():
        checks.rows(learnable, log_prob=log_prob, rho=rho, advantage=advantage)
    # The mask goes onto the weight, not onto the product: there the backward pass would meet 0 · NaN.
    weight = torch.where(learnable, rho * advantage, rho.new_zeros(())).detach()
    return -weight * log_prob


def value_loss(
    value: Float[Tensor, "T B"], target: Float[Tensor, "T B"], learnable: Bool[Tensor, "T B"]
) -> Float[Tensor, "T B"]:
    """½·(target_t − V(s_t))²; the target is a constant.

    >>> value_loss(torch.tensor([[1.0]]), torch.tensor([[3.0]]), torch.tensor([[True]]))
    tensor([[2.]])
    """
    if checks.active():
        checks.rows(learnable, value=value, target=target)
    return 0.5 * torch.where(learnable, target.detach() - value, value.new_zeros(())) ** 2


def entropy_loss(
    entropy: Float[Tensor, "T B"], learnable: Bool[Tensor, "T B"], online: Bool[Tensor, "B"]
) -> Float[Tensor, "T B"]:
    """−H(π(·|s_t)), on learnable rows of online unrolls only.

    >>> entropy_loss(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.tensor([True, False]))
    tensor([[-1., 0.]])
    """
    if checks.active():
        checks.rows(learnable, entropy=entropy)
        checks.same_shape(row=learnable[0], online=online)
        checks.boolean(online=online)
    return torch.where(learnable & online, -entropy, entropy.new_zeros(()))


def reduce(
    loss: Float[Tensor, "*losses T B"],
    learnable: Bool[Tensor, "T B"],
    how: Reduction,
    *,
    members: int = 1,
    count: Integer[Tensor, "*losses {members}"] | None = None,
) -> Float[Tensor, "*losses {members}"]:
    """Sum over batch and time (the paper's learning rates assume it), or mean over learnable steps (0 if there is none).

    Several losses are reduced at once. The columns of `members` members lie side by side, as many for each; each has a sum of its own. A
    mean is over `count` steps, where it is given: those of another mask; or, where these columns are a part of a batch, those of the
    whole of it, since means of parts would not add up to the mean of the whole.

    >>> mask = torch.tensor([[True, False], [True, False]])
    >>> reduce(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), mask, "mean")
    tensor([2.])
    >>> reduce(torch.tensor([[1.0, 5.0], [3.0, 0.0]]), mask, "sum", members=2)
    tensor([4., 5.])
    """
    if checks.active():
        for one in loss[None].flatten(0, -3):
            checks.rows(learnable, loss=one)
    total = torch.unflatten(loss, -1, (members, -1)).sum((-3, -1))
    if how == "sum":
        return total
    count = torch.unflatten(learnable, 1, (members, -1)).sum((0, 2)) if count is None else count
    return total / count.clamp(min=1)


def actor_critic_losses(
    family: Family,
    policy: Float[Tensor, "T B P"],
    value: Float[Tensor, "T_plus_1 B"],
    behaviour: Float[Tensor, "T B P"],
    action: Num[Tensor, "T B *shape"],
    reward: Float[Tensor, "T B"],
    discount: Float[Tensor, "T B"],
    is_transition: Bool[Tensor, "T B"],
    online: Bool[Tensor, "B"],
    trusted: Bool[Tensor, "T B"],
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> ActorCriticLosses:
    """Algorithm 1 from the network's outputs to the losses (with eq. 2's advantage, see docs/differences-from-the-paper.md).

    `policy` holds the parameters of π at the first T input rows, `value` V at all T+1: it is shifted here and nowhere else. `behaviour`
    holds the parameters of μ, as stored. `is_transition` is False on the row after the end of an episode, `online` says which unrolls are
    the agent's own newest, and `trusted` is the indicator λ. `vtrace` explains the others.

    >>> from laser_rl.ops.distributions import Categorical
    >>> logits, ones = torch.zeros(2, 1, 2), torch.ones(2, 1)
    >>> mask = ones.bool()
    >>> losses = actor_critic_losses(
    ...     Categorical(2), logits, torch.zeros(3, 1), logits, torch.zeros(2, 1, dtype=torch.long), ones, 0.5 * ones, mask, mask[0], mask)
    >>> losses.value.squeeze(1)
    tensor([1.1250, 0.5000])
    """
    if checks.active():
        checks.boolean(is_transition=is_transition, trusted=trusted)
        checks.same_shape(reward=reward, is_transition=is_transition, trusted=trusted)
        checks.rows(is_transition, reward=reward)
        expected, got = (len(reward) + 1, reward.shape[1]), tuple(value.shape)
        checks.require(got == expected, f"value has shape {got}, expected {expected}: one row more than reward")
    learnable = trusted & is_transition
    this_value, next_value = value[:-1], value[1:]  # the only shift of V in the project
    log_prob, entropy = family.evaluate(policy, action)
    log_ratio = (log_prob - family.log_prob(behaviour, action)).detach()
    estimate = vtrace(log_ratio, learnable, reward, discount, this_value, next_value, clip_rho=clip_rho, clip_c=clip_c)
    return ActorCriticLosses(
        policy=policy_gradient_loss(log_prob, estimate.rho, estimate.advantage, learnable),
        value=value_loss(this_value, estimate.target, learnable), entropy=entropy_loss(entropy, learnable, online),
        learnable=learnable, log_ratio=log_ratio, estimate=estimate
    )  # fmt: skip
