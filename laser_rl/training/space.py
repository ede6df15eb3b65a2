"""What the members of a sweep differ in: settings by name, as `config.override` takes them, one dictionary a member."""

import copy
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from laser_rl.config import Config, Frozen, ReplayConfig, RunConfig, full_name, override
from laser_rl.errors import ConfigError

Settings = dict[str, Any]


class _Between(Frozen):
    low: float
    high: float

    def __init__(self, *bounds: float, **named: Any) -> None:
        super().__init__(**_by_name(("low", "high"), bounds, named))

    @model_validator(mode="after")
    def _ordered(self) -> "_Between":
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) is not below high ({self.high}); swap them, or leave the setting out")
        return self


class UniformDistribution(_Between):
    """Evenly between two numbers."""

    kind: Literal["uniform"] = "uniform"

    def at(self, share: float) -> float:
        """The value below which `share` of all draws lie."""
        # Rounding can end a hair outside the bounds, here and below.
        return min(max(self.low + share * (self.high - self.low), self.low), self.high)


class LogUniform(_Between):
    """Evenly between two numbers on a logarithmic scale: as many draws from 1e-4 to 1e-3 as from 1e-3 to 1e-2.

    >>> round(LogUniform(1e-4, 1e-2).at(0.5), 9)
    0.001
    """

    kind: Literal["log_uniform"] = "log_uniform"
    low: Annotated[float, Field(gt=0)]

    def at(self, share: float) -> float:
        """The value below which `share` of all draws lie."""
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + share * (high - low)), self.low), self.high)


class Choice(Frozen):
    """One of several values, each equally likely."""

    kind: Literal["choice"] = "choice"
    values: Annotated[tuple[Any, ...], Field(min_length=1)]

    def __init__(self, *values: Sequence[Any], **named: Any) -> None:
        super().__init__(**_by_name(("values",), values, named))

    def at(self, share: float) -> Any:
        """The value in whose part of [0, 1) `share` lies."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


Distribution: TypeAlias = Annotated[UniformDistribution | LogUniform | Choice, Field(discriminator="kind")]


def _by_name(names: Sequence[str], values: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    if len(values) > len(names):
        raise TypeError(f"expected {' and '.join(names)}, got {len(values)} values: {', '.join(map(repr, values))}")
    return {**dict(zip(names, values, strict=False)), **named}


def grid(values: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Every combination; the first name changes slowest.

    >>> grid({"learning_rate": [3e-4, 6e-4], "trust": ["implied", "off"]})[:2]
    [{'learning_rate': 0.0003, 'trust': 'implied'}, {'learning_rate': 0.0003, 'trust': 'off'}]
    """
    combinations = itertools.product(*values.values())
    return [copy.deepcopy(dict(zip(values, combination, strict=True))) for combination in combinations]


def random(space: Mapping[str, Distribution], *, members: int, seed: int = 0) -> list[Settings]:
    """Independent draws. Each depends on the seed, the member and the name alone: more members or more names change no other."""
    return [
        {name: copy.deepcopy(kind.at(_share(f"{seed}/random/{k}/{name}"))) for name, kind in space.items()}
        for k in range(members)
    ]


def _share(key: str) -> float:
    return float(np.random.Generator(np.random.PCG64(_number(key))).random())


_ONE_LAYOUT = "all members share one replay, and its unrolls have one shape"
_ONE_STATE = "all members share one replay, and its unrolls hold the state of one kind of memory"
_ONE_SPEED = "all members run at identical speed"
_SHARED = {
    "recipe": "it only names where the base began; choose the base by it",
    "environment.id": "all members share one replay, and its unrolls are of one task",
    "environment.slots": _ONE_SPEED,
    "environment.frame_stack": _ONE_LAYOUT,
    "environment.atari.full_action_space": _ONE_LAYOUT,
    "loss.unroll_steps": _ONE_LAYOUT,
    "network.memory": _ONE_STATE,
    "network.memory_size": _ONE_STATE,
    **{f"replay.{name}": "all members share one replay" for name in ReplayConfig.model_fields},
    **{f"run.{name}": f"{_ONE_SPEED}, in one run" for name in RunConfig.model_fields},
    "run.seed": "each member's seed is derived from the base's",
}


def member_configs(base: Config, settings: Sequence[Mapping[str, Any]]) -> tuple[Config, ...]:
    """The base with each member's settings and a seed of its own.

    Members may differ in loss, optimiser, network (but for its memory) and the environment's options. ConfigError where a difference
    would make their unrolls unfit for one replay, or their speeds unequal.

    >>> member_configs(Config(), [{"capacity_steps": 10}])
    Traceback (most recent call last):
    laser_rl.errors.ConfigError: member 0: replay.capacity_steps cannot differ between members: all members share one replay; set
    it in the base configuration
    """
    return tuple(_member_config(base, k, own) for k, own in enumerate(settings))


def _member_config(base: Config, k: int, own: Mapping[str, Any]) -> Config:
    config = override(base, own)
    named: dict[str, str] = {}
    for name in own:
        full = full_name(name)
        if reason := _SHARED.get(full):
            raise ConfigError(
                f"member {k}: {full} cannot differ between members: {reason}; set it in the base configuration"
            )
        if full in named:
            raise ConfigError(f"member {k}: {named[full]} and {name} are the same setting; give one of them")
        named[full] = name
    return override(config, {"run.seed": member_seed(base.run.seed, k)})


def member_seed(seed: int, member: int) -> int:
    """The seed of one member: sweeps with neighbouring seeds share none."""
    return _number(f"{seed}/member/{member}") >> 1


def _number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")
