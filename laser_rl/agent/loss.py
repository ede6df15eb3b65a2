"""Algorithm 1, from the network's output on a batch to one number to minimise."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from laser_rl.config import LossConfig
from laser_rl.networks.agent_network import Output
from laser_rl.ops import rewards, trust_region
from laser_rl.ops.actor_critic import ActorCriticLosses, actor_critic_losses, reduce
from laser_rl.ops.distributions import Family
from laser_rl.types import Batch


class Loss(NamedTuple):
    """The number to minimise, and the numbers to report."""

    total: Tensor
    numbers: dict[str, Tensor]


def laser_loss(
    family: Family,
    output: Output,
    batch: Batch,
    hyper: LossConfig,
    bound: Tensor,
    generator: torch.Generator | None = None,
) -> Loss:
    """Relevance, trust, V-trace, losses.

    Args:
        family: what the policy's parameters mean.
        output: policy and value at all T+1 input rows.
        batch: what was stored.
        hyper: the constants.
        bound: the threshold on the relevance; infinite trusts everything.
        generator: only needed where the actions cannot be enumerated.
    """
    policy = output.policy[:-1]
    relevance = behaviour_relevance(family, policy, batch.behaviour, hyper, generator)
    losses = actor_critic_losses(
        family,
        policy,
        output.value,
        batch.behaviour,
        batch.action,
        learned_reward(batch.reward, hyper),
        learned_discount(batch, hyper),
        batch.real,
        batch.online,
        relevance < bound,
        clip_rho=hyper.clip_rho,
        clip_c=hyper.clip_c,
    )
    policy_loss = reduce(losses.policy, losses.policy_learnable, hyper.reduction)
    value_loss = reduce(losses.value, losses.learnable, hyper.reduction)
    entropy_loss = reduce(losses.entropy, losses.policy_learnable & batch.online, hyper.reduction)
    total = policy_loss + hyper.baseline_cost * value_loss + hyper.entropy_cost * entropy_loss
    with torch.no_grad():
        numbers = _numbers(losses, batch, relevance, hyper)
    return Loss(total, {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), **numbers})


def behaviour_relevance(
    family: Family, policy: Tensor, behaviour: Tensor, hyper: LossConfig, generator: torch.Generator | None
) -> Tensor:
    """β(s, μ) of section 4.3; with trust off it is still computed, because it is worth knowing."""
    if hyper.trust == "behaviour":
        return trust_region.kl_to_behaviour(family, policy, behaviour)
    return trust_region.kl_to_implied(family, policy, behaviour, clip_rho=hyper.clip_rho, generator=generator)


def learned_reward(raw: Tensor, hyper: LossConfig) -> Tensor:
    """What is learned from; the raw reward is what is stored and reported."""
    reward = raw * hyper.reward_scale if hyper.reward_scale != 1.0 else raw
    if hyper.reward_transform == "clip":
        return rewards.clip(reward)
    return rewards.dmlab_squash(reward) if hyper.reward_transform == "dmlab" else reward


def learned_discount(batch: Batch, hyper: LossConfig) -> Tensor:
    """γ where something can follow, 0 where the environment terminated; a truncation keeps γ."""
    ended = batch.terminated | batch.lost_life if hyper.life_loss_ends_discount else batch.terminated
    return torch.where(ended, 0.0, hyper.discount)


def _numbers(losses: ActorCriticLosses, batch: Batch, relevance: Tensor, hyper: LossConfig) -> dict[str, Tensor]:
    replayed = batch.real & ~batch.online
    learned = losses.learnable.sum().clamp(min=1)
    fresh = losses.policy_learnable & batch.online
    return {
        "acceptance": _share(losses.learnable, replayed),
        "acceptance_online": _share(losses.learnable, batch.real & batch.online),
        "kl": torch.where(replayed, relevance, 0.0).sum() / replayed.sum(),
        "rho_clipped": (losses.learnable & (losses.log_ratio > math.log(hyper.clip_rho))).sum() / learned,
        "c_clipped": (losses.learnable & (losses.log_ratio > math.log(hyper.clip_c))).sum() / learned,
        "entropy": -losses.entropy.sum() / fresh.sum(),
    }


def _share(chosen: Tensor, counted: Tensor) -> Tensor:
    return (chosen & counted).sum() / counted.sum()
