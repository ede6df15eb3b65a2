"""`laser_loss` assembles Algorithm 1 from `ops`: relevance, trust, V-trace, losses; for one member, or for several side by side."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from laser_rl.agent.functions import function_named
from laser_rl.agent.parallel import ALONE, Team
from laser_rl.config import LossConfig
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.networks.heads import PopArtHead, of_task
from laser_rl.ops import pixel_control, rewards, trust_region
from laser_rl.ops.actor_critic import ActorCriticLosses, actor_critic_losses, reduce, value_loss
from laser_rl.ops.distributions import Family
from laser_rl.ops.popart import normalise, sigma
from laser_rl.types import Batch

# Settings in which members side by side may differ; the others of `LossConfig` decide which operations are done.
ROWWISE = ("discount", "reward_scale", "baseline_cost", "entropy_cost", "pixel_control_cost")
Relevance = Callable[[Family, Tensor, Tensor], object]
"""From a family and the parameters of policy and behaviour, each [T, B, P], to a number for each row [T, B]: small is trusted. The user
wrote it, so its result is checked."""


class Loss(NamedTuple):
    """The number to minimise (of all members together: they share no parameter), the numbers to report, and the masks behind them."""

    total: Tensor
    numbers: dict[str, Tensor]  # each [members]
    learnable: Tensor  # [T, B]
    relevance: Tensor
    value: Tensor  # [T, B], the critic's, not weighted
    gradients: tuple[Tensor, Tensor] | None = None  # of `total` by policy and value, where it has no graph


class Hyper(NamedTuple):
    """The constants of Algorithm 1 for members side by side."""

    common: LossConfig
    members: int
    discount: Tensor  # [members]
    reward_scale: Tensor
    costs: Tensor  # [4, members]: of policy (1), value, entropy and PixelControl


def hyper_of(
    losses: Sequence[LossConfig], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Hyper:
    """The constants of several members, between which there are no `differences`."""
    values = [[getattr(loss, name) for loss in losses] for name in ROWWISE[:2]]
    values += [[1.0] * len(losses), *([getattr(loss, name) for loss in losses] for name in ROWWISE[2:])]
    numbers = torch.tensor(values, device=device, dtype=dtype)
    return Hyper(losses[0], len(losses), numbers[0], numbers[1], numbers[2:])


def differences(one: LossConfig, other: LossConfig) -> list[str]:
    """The settings that keep two members from being computed side by side."""
    free = {*ROWWISE, "trust_bound", "target_acceptance"}
    return [name for name, value in one.model_dump().items() if name not in free and getattr(other, name) != value]


def laser_loss(
    family: Family,
    output: Output,
    batch: Batch,
    hyper: LossConfig | Hyper,
    bound: Tensor,
    generator: torch.Generator | None = None,
    network: AgentNetwork | None = None,
    team: Team = ALONE,
) -> Loss:
    """Relevance, trust, V-trace, losses.

    `output` has T+1 input rows; the columns of each member lie one after the other. `bound` on the relevance is one number or one a member.
    `generator` is only needed where actions cannot be enumerated, `network` only for PopArt, whose statistics move here, and PixelControl.
    Where a `team` has the batch, `total` is this rank's part of a sum over ranks; numbers are those of the whole batch.
    """
    hyper = hyper if isinstance(hyper, Hyper) else hyper_of([hyper], batch.reward.device, batch.reward.dtype)
    common, policy = hyper.common, output.policy[:-1]
    popart = None if network is None else network.popart
    relevance = behaviour_relevance(family, policy, batch.behaviour, common, generator)
    value = output.value if popart is None else popart.value(output.value, batch.task)
    stored = (batch.behaviour, batch.action, learned_reward(batch, hyper), learned_discount(batch, hyper))
    trusted = trust_region.within(relevance, bound if bound.ndim == 0 else columns(bound, batch))
    masks = (batch.is_transition, batch.online, trusted)
    clips = (common.clip_rho, common.clip_c) if common.returns == "vtrace" else (math.inf, math.inf)  # eq. return_is
    losses = actor_critic_losses(family, policy, value, *stored, *masks, clip_rho=clips[0], clip_c=clips[1])
    if popart is not None:
        losses = _in_units(popart, output, losses, batch.task, common.popart_step, team)
    rows = [losses.policy * batch.weight, losses.value * batch.weight, losses.entropy]
    rows += _pixels(network, output, batch, losses.learnable, common)
    counts = _counts(losses, batch, hyper, team)
    counted = counts[: len(rows)]
    each = reduce(torch.stack(rows), losses.learnable, common.reduction, members=hyper.members, count=counted)
    total = (each * hyper.costs[: len(rows)]).sum()
    with torch.no_grad():
        policy_loss, critic_loss, _, *pixels_loss = team.sum(each.detach())
        numbers = {"policy_loss": policy_loss, "value_loss": critic_loss}
        numbers |= _numbers(losses, batch, relevance, counts, hyper, team)
        if pixels_loss:
            numbers["pixel_control_loss"] = pixels_loss[0]
    return Loss(total, numbers, losses.learnable, relevance, losses.value.detach())


def behaviour_relevance(
    family: Family, policy: Tensor, behaviour: Tensor, hyper: LossConfig, generator: torch.Generator | None
) -> Tensor:
    """β(s, μ) of section 4.3; with trust off it is still computed, because it is worth knowing."""
    if hyper.trust == "behaviour":
        return trust_region.kl_to_behaviour(family, policy, behaviour)
    if ":" in hyper.trust:
        return own_relevance(hyper.trust, family, policy, behaviour)
    return trust_region.kl_to_implied(family, policy, behaviour, clip_rho=hyper.clip_rho, generator=generator)


def draws(family: Family, hyper: LossConfig) -> bool:
    exact = family.joint_size is not None and family.joint_size <= trust_region.ENUMERABLE
    return hyper.trust in {"implied", "off"} and not exact


def require_splittable(family: Family, loss: LossConfig, devices: int) -> None:
    """ConfigError where several devices would not learn what one learns."""
    if devices > 1 and draws(family, loss):
        raise ConfigError(
            f"run.devices is {devices}, but the relevance of these actions is estimated from random ones, which several devices would "
            "draw differently from one; use --loss.trust behaviour, or --run.devices 1"
        )


def own_relevance(name: str, family: Family, policy: Tensor, behaviour: Tensor) -> Tensor:
    """What the user's function `module:function` says of each row; nothing is learned through it, and NaN is not trusted."""
    with torch.no_grad():
        found = function_named(name, "loss.trust")(family, policy, behaviour)
    expected = policy.shape[:-1]
    if not isinstance(found, Tensor) or found.shape != expected:
        got = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"{name}: expected a tensor of shape {tuple(expected)}, one number a row, got {got}; return a relevance for each row"
        )
    return found


def _pixels(
    network: AgentNetwork | None, output: Output, batch: Batch, learnable: Tensor, hyper: LossConfig
) -> list[Tensor]:
    """PixelControl's loss at each step, if there is one; the trust region holds for auxiliary tasks too."""
    if network is None or network.pixel_control is None or output.pixel_q is None:
        return []
    discount = torch.where(batch.terminated, 0.0, hyper.pixel_control_discount)
    cumulant = network.pixel_control.cumulants(batch.observation)
    return [pixel_control.q_loss(output.pixel_q, batch.action, cumulant, discount, learnable) * batch.weight]


def _in_units(
    popart: PopArtHead, output: Output, losses: ActorCriticLosses, task: Tensor, step: float, team: Team
) -> ActorCriticLosses:
    """PopArt's losses. The order matters: statistics move on the targets, the last layer is rescaled, losses are taken in the new units."""
    assert output.features is not None  # noqa: S101 - every network gives them
    target = losses.estimate.target
    popart.move(target, task, losses.learnable, step, team.sum)
    predicted = of_task(popart(output.features[:-1]), task)
    value = value_loss(predicted, normalise(popart.statistics, target, task), losses.learnable)
    unit = sigma(popart.statistics)[task.long()].to(value.dtype)
    return losses._replace(value=value, policy=losses.policy / unit)


def learned_reward(batch: Batch, hyper: Hyper) -> Tensor:
    reward = batch.reward * columns(hyper.reward_scale, batch)
    if hyper.common.reward_transform == "clip":
        return rewards.clip(reward)
    return rewards.dmlab_squash(reward) if hyper.common.reward_transform == "dmlab" else reward


def learned_discount(batch: Batch, hyper: Hyper) -> Tensor:
    """γ where something can follow, 0 where the environment terminated; a truncation keeps γ."""
    ended = batch.terminated | batch.lost_life if hyper.common.life_loss_ends_discount else batch.terminated
    return torch.where(ended, 0.0, columns(hyper.discount, batch))


def columns(numbers: Tensor, batch: Batch) -> Tensor:
    """One number for each member [K], as one for each of its columns [B]; of a single member [1], which fits all columns as it is."""
    if numbers.shape[0] == 1:
        return numbers
    width = batch.online.shape[0] // len(numbers)
    return numbers[:, None].expand(-1, width).reshape(-1)


def _counts(losses: ActorCriticLosses, batch: Batch, hyper: Hyper, team: Team) -> Tensor:
    """How many steps each member has, of all ranks: first those that each loss is a mean over, then what `_numbers` reports."""
    clip_rho, clip_c = math.log(hyper.common.clip_rho), math.log(hyper.common.clip_c)
    online, learnable, is_transition = batch.online, losses.learnable, batch.is_transition
    fresh, offered_online = learnable & online, is_transition & online
    rho = learnable & (losses.log_ratio > clip_rho)
    c = rho if clip_c == clip_rho else learnable & (losses.log_ratio > clip_c)
    behind_means = [learnable, learnable, fresh, learnable]
    reported = [learnable & ~online, is_transition & ~online, fresh, offered_online, rho, c]
    # One sum over [rows, T, K, B] instead of twelve: small batches are limited by the number of operations.
    masks = torch.stack(behind_means + reported)
    return team.sum(torch.unflatten(masks, 2, (hyper.members, -1)).sum((1, 3)))


def _numbers(
    losses: ActorCriticLosses, batch: Batch, relevance: Tensor, counts: Tensor, hyper: Hyper, team: Team
) -> dict[str, Tensor]:
    replayed = batch.is_transition & ~batch.online
    kept = torch.stack([torch.where(replayed, relevance, 0.0), -losses.entropy.detach()])
    divergence, entropy = team.sum(torch.unflatten(kept, 2, (hyper.members, -1)).sum((1, 3)))
    learned, _, fresh, _, trusted, offered, trusted_online, offered_online, rho, c = counts.float()
    return {
        "acceptance": trusted / offered,
        "acceptance_online": trusted_online / offered_online,
        "kl": divergence / offered,
        "rho_clipped": rho / learned.clamp(min=1),
        "c_clipped": c / learned.clamp(min=1),
        "entropy": entropy / fresh,
    }
