"""Behaviour relevance (section 4.3): how far stored behaviour is from the policy. By `loss.trust`, or by a function of the user's own."""

from collections.abc import Callable

import torch
from torch import Tensor

from laser_rl.agent.functions import function_named
from laser_rl.config import LossConfig
from laser_rl.errors import ConfigError
from laser_rl.ops import trust_region
from laser_rl.ops.distributions import Family

Relevance = Callable[[Family, Tensor, Tensor], object]
"""From a family and the parameters of policy and behaviour, each [T, B, P], to a number for each row [T, B]: small is trusted. The user
wrote it, so its result is checked."""


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
