"""Everything that decides a run, as one frozen value: a sweep, or the run of one agent, which is a sweep of one member.

What the members of a sweep differ in are settings by name, as `config.override` takes them, one dictionary a member.
"""

import copy
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, ValidationError, model_validator

from laser_rl.config import Config, CountOrNone, Frozen, ReplayConfig, RunConfig, full_name, override, problems, unknown
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import THEIRS, ConfigError, called_here, suggestion
from laser_rl.training.pbt import PbtConfig, require_real
from laser_rl.training.search import SearchConfig

FORMAT = 1
MOST_MEMBERS = 1000  # all of them are built before anything is refused for its size
SOURCES = ("grid", "random", "members")
Sharing = Literal["shared", "separate", "none"]


class _Between(Frozen):
    low: float
    high: float

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
    """Evenly between two numbers on a logarithmic scale: as many draws from 1e-4 to 1e-3 as from 1e-3 to 1e-2."""

    kind: Literal["log_uniform"] = "log_uniform"
    low: Annotated[float, Field(gt=0)]

    def at(self, share: float) -> float:
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + share * (high - low)), self.low), self.high)


class Choice(Frozen):
    """One of several values, each equally likely."""

    kind: Literal["choice"] = "choice"
    values: Annotated[tuple[Any, ...], Field(min_length=1)]

    def at(self, share: float) -> Any:
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


Distribution: TypeAlias = Annotated[UniformDistribution | LogUniform | Choice, Field(discriminator="kind")]


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination; the first name changes slowest."""
    combinations = itertools.product(*values.values())
    return [copy.deepcopy(dict(zip(values, combination, strict=True))) for combination in combinations]


def random(space: Mapping[str, Distribution], *, members: int, seed: int = 0) -> list[dict[str, Any]]:
    """Independent draws. Each depends on the seed, the member and the name alone: more members or more names change no other."""

    def drawn(k: int, name: str) -> Any:
        generator = np.random.Generator(np.random.PCG64(_number(f"{seed}/random/{k}/{name}")))
        return copy.deepcopy(space[name].at(float(generator.random())))

    return [{name: drawn(k, name) for name in space} for k in range(members)]


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
    """ConfigError where a difference would make members' unrolls unfit for one replay, or their speeds unequal."""
    configs = []
    for k, own in enumerate(settings):
        # By a hash: sweeps with neighbouring seeds share none.
        configs.append(override(override(base, own), {"run.seed": _number(f"{base.run.seed}/member/{k}") >> 1}))
        named: dict[str, str] = {}
        for name in own:
            full = full_name(name)
            if reason := _SHARED.get(full):
                raise ConfigError(f"member {k}: {full} cannot differ between members: {reason}; set it in the base")
            if full in named:
                raise ConfigError(f"member {k}: {named[full]} and {name} are the same setting; give one of them")
            named[full] = name
    return tuple(configs)


def _number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")


class SweepConfig(Frozen):
    """A base, what the members differ in, and what they share. Where nothing says what members differ in, there is one: the base itself."""

    base: Config = Config()
    """What all members have in common."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """A list of values for each name; every combination is a member."""
    random: dict[str, Distribution] = Field(default_factory=dict)
    """A distribution for each name; `draws` members are drawn."""
    draws: CountOrNone = 0
    """How many members to draw."""
    members: tuple[dict[str, Any], ...] = ()
    """One dictionary of settings a member."""
    share: Sharing = "shared"
    """One replay for all, one each, or none: then a batch has the online unrolls only, and there are as many updates."""
    pbt: PbtConfig | None = None
    """Population based training on top."""
    search: SearchConfig | None = None
    """Trials from the distributions of `random` follow one another, `draws` at a time; all write to and learn from the replay."""
    stack: Literal["auto", "on", "off"] = "auto"
    """Compute members side by side: faster for small networks."""
    processes: Annotated[int, Field(ge=0)] = 1
    """Over how many processes the members are spread; 0: one a core. More than one is not deterministic."""

    @model_validator(mode="after")
    def _one_source(self) -> "SweepConfig":
        given = [name for name in ("grid", "random", "members") if getattr(self, name)]
        if len(given) > 1:
            got = " and ".join(given)
            raise ValueError(f"expected one of grid, random and members to say what members differ in, got {got}")
        if bool(self.random) != bool(self.draws):
            raise ValueError("random and draws belong together: distributions, and how many members to draw")
        if empty := [name for name, values in self.grid.items() if not values]:
            raise ValueError(f"grid: the list of {empty[0]} is empty: there is no member; give a value or leave it out")
        count = max(math.prod(map(len, self.grid.values())) if self.grid else 0, self.draws, len(self.members))
        if count > MOST_MEMBERS:
            raise ValueError(f"{count:,} members were asked for, expected at most {MOST_MEMBERS:,}; leave values out")
        if self.base.run.devices > 1 and not self.single:
            raise ValueError(
                f"run.devices is {self.base.run.devices}, but members of a sweep have a device each; leave it out, or train one agent"
            )
        if self.pbt is not None and self.pbt.score_low is not None and len(tasks_of(self.base.environment.id)) > 1:
            raise ValueError("scores of a mixture of tasks are normalised; leave pbt.score_low and score_high out")
        if self.search is not None:
            self._require_search(self.search)
        return self

    def _require_search(self, search: SearchConfig) -> None:
        if self.pbt is not None:
            raise ValueError("pbt and search both decide what members go on with; leave one of them out")
        if self.draws < 2 or search.trials < self.draws:  # noqa: PLR2004 - one keeps the best, the others try
            raise ValueError(
                f"a search needs distributions (random), at least two members at a time (draws) and as many trials; got "
                f"{self.draws} members and {search.trials} trials"
            )
        for name, own in self.random.items():
            if full_name(name).partition(".")[0] not in {"loss", "optimiser"}:
                raise ValueError(f"{name} cannot be searched: expected a setting of loss or optimiser")
            require_real(name, own.values if isinstance(own, Choice) else (own.low, own.high))

    @property
    def moved(self) -> tuple[str, ...]:
        """Settings that change while members learn."""
        return tuple(self.random) if self.search is not None else () if self.pbt is None else self.pbt.tuned

    @property
    def single(self) -> bool:
        """Whether this is the run of one agent, which has the base's own seed, and rows of metrics without a member's number."""
        return not (self.grid or self.random or self.members)

    @property
    def settings(self) -> tuple[dict[str, Any], ...]:
        if self.grid:
            return tuple(grid(self.grid))
        if self.random:
            return tuple(random(self.random, members=self.draws, seed=self.base.run.seed))
        return tuple(copy.deepcopy(own) for own in self.members) or ({},)

    @property
    def configs(self) -> tuple[Config, ...]:
        base, fraction = self.base, self.base.replay.fraction
        if self.share == "none" and fraction:
            batch = base.loss.batch_unrolls
            online = max(1, batch - int(batch * fraction + 0.5))
            base = override(base, {"replay.fraction": 0.0, "loss.batch_unrolls": online})
        return (base,) if self.single else member_configs(base, self.settings)

    def with_base(self, settings: Mapping[str, Any]) -> "SweepConfig":
        """A copy with other settings of the base, by name."""
        return self.model_copy(update={"base": override(self.base, settings)})


def with_source(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep's values with others over them; what members differ in is replaced as a whole."""
    replaced = {*SOURCES, "draws"} if any(over.get(name) for name in SOURCES) else set()
    return {name: value for name, value in values.items() if name not in replaced} | dict(over)


def sweep_from(values: Mapping[str, Any]) -> SweepConfig:
    """A sweep from plain values; the error names each field, what came and what was expected."""
    sweep = settings_from(values)
    if sweep.single:
        raise ConfigError("expected one of grid, random and members to say what members differ in, got none")
    return sweep


def settings_from(values: Mapping[str, Any]) -> SweepConfig:
    try:
        sweep = SweepConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(problems(error, _unknown)) from None
    sweep.configs  # noqa: B018 - refused now if a member's settings cannot be
    return sweep


def _unknown(name: str) -> str:
    section, _, own = name.partition(".")
    if section == "base" and own:  # one of a run's settings
        return unknown(own)
    known = (PbtConfig if section == "pbt" and own else SweepConfig).model_fields
    hint = suggestion(
        name.rpartition(".")[2], known, f"there are {', '.join(known)}; settings of all members go under 'base:'"
    )
    return f"there is no setting {name!r} of a sweep; {called_here(name) if name in THEIRS else hint}"


@dataclass(frozen=True)
class ClusterSettings:
    """Where a sweep runs on a cluster; no part of what decides its numbers, and so not of its configuration."""

    address: str = "auto"  # joins this machine's cluster or starts one; "local" starts one; or host:port of its head
    runners: int = 1  # environment runners of each member, which share its slots


def cluster_of(address: str | None, runners: int) -> ClusterSettings | None:
    if address is None and runners != 1:
        raise ConfigError(
            f"{runners} runners a member were asked for, but no cluster; add --cluster auto, or leave out --cluster-runners"
        )
    return None if address is None else ClusterSettings(address, runners)
