"""`laser_loss` of one choice among actions on a CPU: NumPy's operators take a third of torch's time, and need no graph behind them.

The same numbers up to rounding, and the gradient of their sum by the network's outputs in closed form. With w = ρ·advantage on learnable
rows, and H the entropy:

    ∂/∂logit_j of −w·log π(a)     =  w·(π_j − 1[j = a])
    ∂/∂logit_j of −H              =  π_j·(log π_j + H)
    ∂/∂V       of ½·(target − V)²  =  V − target
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.agent.loss import Hyper, Loss
from laser_rl.config import LossConfig
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.ops.distributions import Categorical, Family
from laser_rl.types import Batch

Floats = NDArray[np.float32]
NAMES = ("policy_loss", "value_loss", "acceptance", "acceptance_online", "kl", "rho_clipped", "c_clipped", "entropy")
ZERO = np.float32(0.0)


def fits(family: Family, loss: LossConfig, network: AgentNetwork, values: Tensor) -> bool:
    """Whether `numpy_loss` can stand for `laser_loss`: not on a GPU, or with PopArt, PixelControl, a relevance of the user's."""
    plain = network.popart is None and network.pixel_control is None and isinstance(family, Categorical)
    ours = ":" not in loss.trust and loss.reward_transform != "dmlab"
    return plain and ours and values.device.type == "cpu" and values.dtype == torch.float32


def numpy_loss(output: Output, batch: Batch, hyper: Hyper, bound: Tensor) -> Loss:
    """Algorithm 1 as in `laser_loss`, whose comments hold here, too; the result has `gradients` in place of a graph."""
    with np.errstate(all="ignore"):  # rows that are not learnable may hold anything, and the mean of no step is NaN
        return _loss(output.policy.detach().numpy(), output.value.detach().numpy(), batch, hyper, bound.numpy())


def _loss(policy: Floats, value: Floats, batch: Batch, hyper: Hyper, bound: NDArray[Any]) -> Loss:
    common, width, costs = hyper.common, batch.online.shape[0] // hyper.members, hyper.costs.numpy()
    is_transition, online, weight = batch.is_transition.numpy(), batch.online.numpy(), batch.weight.numpy()
    log_pi, log_mu = _log_probs(policy[:-1]), _log_probs(batch.behaviour.numpy())
    pi, relevance, action = np.exp(log_pi), _relevance(log_pi, log_mu, common), batch.action.numpy()
    learnable = (relevance < _columns(bound, width)) & is_transition
    chosen = action.astype(np.int64).ravel() * action.size + np.arange(action.size)
    log_prob, log_behaviour = (rows.take(chosen).reshape(action.shape) for rows in (log_pi, log_mu))
    log_ratio = log_prob - log_behaviour
    distance, weighted_advantage = _vtrace(value, log_ratio, learnable, batch, hyper)

    fresh, replayed = learnable & online, is_transition & ~online
    clipped = [learnable & (log_ratio > math.log(clip)) for clip in (common.clip_rho, common.clip_c)]
    masks = np.array([learnable, fresh, learnable & replayed, replayed, is_transition & online, *clipped])
    learned, new, trusted, offered, offered_online, *over = counts = _sums(masks, width)
    per = np.maximum(counts[:2], 1.0) if common.reduction == "mean" else np.ones_like(counts[:2])
    entropy, critic, strength = -np.add.reduce(pi * log_pi), 0.5 * distance * distance, weighted_advantage * weight
    each = [-strength * log_prob, critic * weight, np.where(fresh, entropy, ZERO), np.where(replayed, relevance, ZERO)]
    policy_loss, value_loss, entropies, divergence = _sums(np.array(each), width)
    policy_loss, value_loss, entropy_loss = policy_loss / per[0], value_loss / per[0], -entropies / per[1]
    total = (costs[0] * policy_loss + costs[1] * value_loss + costs[2] * entropy_loss).sum()

    by_policy, by_value = np.zeros_like(policy, order="C"), np.zeros_like(value)
    strength *= _columns(costs[0] / per[0], width)
    surplus = np.where(fresh, _columns(costs[2] / per[1], width), ZERO)
    by_logit = (strength + surplus * (log_pi + entropy)) * pi
    by_logit.reshape(-1)[chosen] -= strength.ravel()
    by_policy[:-1] = by_logit.transpose(1, 2, 0)
    by_value[:-1] = distance * (weight * _columns(-costs[1] / per[0], width))

    shares = [trusted / offered, new / offered_online, divergence / offered]
    shares += [count / np.maximum(learned, 1.0) for count in over]
    found = torch.from_numpy(np.array([policy_loss, value_loss, *shares, entropies / new])).unbind()
    arrays = np.array(total), learnable, relevance, critic, by_policy, by_value
    whole, mask, divergences, critics, *gradients = (torch.from_numpy(array) for array in arrays)
    numbers = dict(zip(NAMES, found, strict=True))
    return Loss(whole, numbers, mask, divergences, critics, gradients=(gradients[0], gradients[1]))


def _vtrace(
    value: Floats, log_ratio: Floats, learnable: NDArray[np.bool_], batch: Batch, hyper: Hyper
) -> tuple[Floats, Floats]:
    """On learnable rows target − V and ρ·advantage, else 0."""
    common, width = hyper.common, learnable.shape[1] // hyper.members
    reward = batch.reward.numpy() * _columns(hyper.reward_scale.numpy(), width)
    reward = reward.clip(-1.0, 1.0) if common.reward_transform == "clip" else reward
    ended = batch.terminated.numpy()
    ended = ended | batch.lost_life.numpy() if common.life_loss_ends_discount else ended
    discount = np.where(ended, ZERO, _columns(hyper.discount.numpy(), width))
    clips = (common.clip_rho, common.clip_c) if common.returns == "vtrace" else (math.inf, math.inf)
    rho, c = (np.exp(np.minimum(log_ratio, math.log(clip))) for clip in clips)
    td_error = reward + discount * value[1:] - value[:-1]
    gain = _gain(np.where(learnable, rho * td_error, ZERO), np.where(learnable, discount * c, ZERO))
    next_target = value[1:].copy()
    next_target[:-1] += gain[1:]
    advantage = reward + discount * next_target - value[:-1]
    return np.where(learnable, gain, ZERO), np.where(learnable, rho * advantage, ZERO)


def _columns(numbers: NDArray[Any], width: int) -> NDArray[Any]:
    """`loss.columns`."""
    return numbers if numbers.size == 1 else np.repeat(numbers, width)


def _sums(rows: NDArray[Any], width: int) -> Floats:
    """[n, T, B] → [n, members]."""
    found: Floats = rows.reshape(*rows.shape[:2], -1, width).sum((1, 3), dtype=np.float32)
    return found


def _log_probs(logits: Floats) -> Floats:
    """[T, B, A] → [A, T, B]: a sum over a short last dimension takes ten times as long as one over the first."""
    first = np.ascontiguousarray(logits.transpose(2, 0, 1))
    below = first - np.maximum.reduce(first)
    found: Floats = below - np.log(np.add.reduce(np.exp(below)))
    return found


def _relevance(log_pi: Floats, log_mu: Floats, loss: LossConfig) -> Floats:
    if loss.trust == "behaviour":
        found: Floats = np.add.reduce(np.exp(log_pi) * (log_pi - log_mu))
    else:
        smaller = np.minimum(log_pi, log_mu + np.float32(math.log(loss.clip_rho)))
        top = np.maximum.reduce(smaller)
        mass = np.log(np.add.reduce(np.exp(smaller - top))) + top
        found = mass + np.add.reduce(np.exp(log_pi) * (log_pi - smaller))
    return np.maximum(found, ZERO)


def _gain(addend: Floats, factor: Floats) -> Floats:
    """`recurrence.backward_recurrence` in place."""
    reach = 1
    while reach < len(addend):
        addend[:-reach] += factor[:-reach] * addend[reach:]
        if 2 * reach < len(addend):
            factor[:-reach] *= factor[reach:].copy()
        reach *= 2
    return addend
