"""From the settings of a run to its members' parts; nothing runs yet."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.learner import Learner
from laser_rl.agent.loss import ROWWISE
from laser_rl.agent.parallel import ALONE
from laser_rl.agent.policy import Policy
from laser_rl.config import Config, full_name
from laser_rl.envs.records import Environments, EnvironmentSpec
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import TorsoSource, family_of
from laser_rl.replay.mixer import Counts, Mixer
from laser_rl.training.build import (
    EnvironmentSource,
    Member,
    Store,
    acting_copy,
    build_learner,
    build_mixer,
    build_replay,
    derive,
    device_of,
    layout_of,
    open_environments,
    slots_of,
    threads_of,
)
from laser_rl.training.evaluate import spec_of
from laser_rl.training.gpu_semaphore import GpuSemaphore
from laser_rl.training.member_group import MemberGroup, SequentialGroup, VectorizedGroup
from laser_rl.training.rank_start import start_ranks
from laser_rl.training.ranks import Ranks
from laser_rl.training.settings import SweepConfig
from laser_rl.training.vectorized import StackedPolicy, VectorizedLearners, can_stack
from laser_rl.training.warm_start import earlier_members
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")
# What PBT may move while members are computed side by side.
STACKABLE = {*(f"loss.{name}" for name in ROWWISE), "loss.trust_bound", "optimiser.learning_rate"}


@dataclass(frozen=True)
class GroupParts:
    """What stands before there is an actor."""

    sweep: SweepConfig
    source: EnvironmentSource
    spec: EnvironmentSpec
    layout: UnrollLayout
    numbers: Sequence[int]  # of these members in the sweep
    configs: Sequence[Config]
    learners: Sequence[Learner]
    stores: Sequence[Store | None]
    mixers: Sequence[Mixer] = field(default_factory=list)
    torso: TorsoSource | None = None
    ranks: Ranks | None = None  # what learns with the only learner, on other devices

    def member(self, place: int, actor: Actor, acting: AgentNetwork | None = None) -> Member:
        """One member with its actor, and the network that acts if it is not the learner's own."""
        config, learner = self.configs[place], self.learners[place]
        return Member(
            config,
            self.source,
            learner.family,
            self.layout,
            self.spec,
            actor,
            learner.network if acting is None else acting,
            learner,
            self.stores[place],
            self.mixers[place],
            self.mixers[place].counts,
            self.numbers[place],
            self.ranks,
        )


def build_member(config: Config, source: EnvironmentSource | None = None, torso: TorsoSource | None = None) -> Member:
    """The parts of one agent; see `build_group`."""
    return build_group(SweepConfig(base=config), source, torso).members[0]


def build_group(
    sweep: SweepConfig,
    source: EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    *,
    numbers: Sequence[int] | None = None,
    stores: Sequence[Store] | None = None,
    permits: GpuSemaphore | None = None,
    begun: int = 0,
) -> MemberGroup:
    """All members of a run, or some.

    Args:
        sweep: all values.
        source: what to play, if it is not the configuration's id.
        torso: a user's module, if it is not the configuration's torso.
        numbers: which members; None: all.
        stores: the replay of each of them, if it exists already.
        permits: for their updates, where other processes use the same card.
        begun: steps that these members have behind them, if the process that made them is gone with its open episodes and its random
            numbers. The seeds then are others: the same would play the first episodes again, and put them into the replay twice.
    """
    after = f"/{begun}" if begun else ""
    opened = _opened(sweep, source, after) if sweep.single else None
    parts = None
    try:
        spec = None if opened is None else opened.spec
        parts = build_parts(sweep, source, torso, numbers=numbers, stores=stores, spec=spec, ranks=True)
        return _stacked(parts, after) if _to_stack(parts) else _looped(parts, permits, after, opened)
    except BaseException:
        if opened is not None:
            opened.close()
        if parts is not None and parts.ranks is not None:
            parts.ranks.close()
        raise


def _opened(sweep: SweepConfig, source: EnvironmentSource | None, after: str) -> Environments:
    """Those of one agent. They are opened first and once: a user may have handed in an environment that exists already."""
    [config] = sweep.configs
    seed, lockstep = derive(config.run.seed, f"environments{after}"), config.run.runtime == "serial"
    source = config.environment.id if source is None else source
    return open_environments(source, config.environment, seed=seed, lockstep=lockstep)


def build_parts(
    sweep: SweepConfig,
    source: EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    *,
    numbers: Sequence[int] | None = None,
    stores: Sequence[Store] | None = None,
    shared: bool = False,
    spec: EnvironmentSpec | None = None,
    ranks: bool = False,
) -> GroupParts:
    """Everything but environments and actors.

    Args:
        sweep: all values.
        source: what to play, if it is not the configuration's id.
        torso: a user's module, if it is not the configuration's torso.
        numbers: which members; None: all.
        stores: the replay of each of them, if it exists already.
        shared: put the replay where other processes can attach to it.
        spec: of the environments, where the only member's are open already.
        ranks: start what learns with the only learner on other devices, if the settings ask for it.
    """
    every = sweep.configs
    source = every[0].environment.id if source is None else source
    if not sweep.single and slots_of(source) is not None:
        raise ConfigError("members cannot share an environment that exists already; hand in its id or constructor")
    if not sweep.single and isinstance(torso, torch.nn.Module):
        raise ConfigError("members cannot share one module; hand in its class, or a function that makes one")
    numbers = range(len(every)) if numbers is None else numbers
    configs = [every[number] for number in numbers]
    spec, layout = one_layout({0: every[0], **dict(zip(numbers, configs, strict=True))}, source, spec)
    counts = [Counts.of(config.loss.batch_unrolls, config.replay.fraction) for config in configs]
    own: list[Store | None]
    own = list(stores) if stores is not None else _stores(sweep, configs, layout, counts, shared=shared)
    sources = len(every) + earlier_members(every[0])
    others, team = None, ALONE
    if ranks and sweep.single:
        device = device_of(every[0].run.device)
        others = start_ranks(every[0], spec, layout, device, torso=torso, sources=sources)
        team = ALONE if others is None else others.team
    try:
        learners = [build_learner(config, spec, torso, sources=sources, team=team) for config in configs]
    except BaseException:
        if others is not None:
            others.close()
        raise
    if sweep.pbt is not None:
        _require_copies(numbers, learners)
    torch.set_num_threads(threads_of(every[0], learners[0].network))
    mixers = [build_mixer(*parts) for parts in zip(configs, [layout] * len(configs), own, counts, strict=True)]
    return GroupParts(sweep, source, spec, layout, numbers, configs, learners, own, mixers, torso, others)


def one_layout(
    configs: Mapping[int, Config], source: EnvironmentSource, spec: EnvironmentSpec | None = None
) -> tuple[EnvironmentSpec, UnrollLayout]:
    """What these members, by their numbers, see and do, and the shape of their unrolls; ConfigError if that is not the same for all."""
    (number, config), *others = configs.items()
    spec = spec_of(source, config) if spec is None else spec
    layout = layout_of(spec, family_of(spec.action), config)
    for other, its in others:
        own = spec if its.environment == config.environment else spec_of(source, its)
        same = (own.observation, own.action, own.tasks) == (spec.observation, spec.action, spec.tasks)
        if not same or layout_of(own, family_of(own.action), its) != layout:
            raise ConfigError(
                f"member {other} has {own.observation} and {own.action}, member {number} {spec.observation} and {spec.action}; all members "
                "share one replay, and its unrolls have one shape: set environment.options in the base configuration"
            )
    return spec, layout


def _require_copies(numbers: Sequence[int], learners: Sequence[Learner]) -> None:
    """Refused at the start: the first copy would fail, perhaps hours later."""

    def contents(learner: Learner) -> dict[str, torch.Size]:
        both = (learner.network.state_dict(), learner.optimiser.state)
        return {name: tensor.shape for tensors in both for name, tensor in tensors.items()}

    first = contents(learners[0])
    for number, learner in zip(numbers, learners, strict=True):
        if contents(learner) != first:
            raise ConfigError(
                f"members {numbers[0]} and {number} have networks or optimisers of different shapes, so under population based training "
                "neither can copy the other; set what they differ in in the base configuration, or leave pbt out"
            )


def _stores(
    sweep: SweepConfig, configs: Sequence[Config], layout: UnrollLayout, counts: Sequence[Counts], *, shared: bool
) -> list[Store | None]:
    if sweep.share == "separate":
        both = zip(configs, counts, strict=True)
        return [build_replay(config, layout, count, shared=shared) for config, count in both]
    return [build_replay(configs[0], layout, counts[0], shared=shared)] * len(configs)


def _to_stack(parts: GroupParts) -> bool:
    sweep = parts.sweep
    same = all(
        config.environment == parts.configs[0].environment
        and config.loss.batch_unrolls == parts.configs[0].loss.batch_unrolls
        for config in parts.configs
    )
    moved = {full_name(name) for name in sweep.pbt.tuned} if sweep.pbt is not None else set()
    possible = same and moved <= STACKABLE and can_stack(parts.learners)
    if sweep.stack == "on" and not possible:
        raise ConfigError(
            "these members cannot be computed side by side: that needs two or more feed-forward MLPs of one size, the same environment "
            "and batch, discrete actions, and differences in rates, costs, discount, reward scale and trust bound only; use stack auto"
        )
    return possible and sweep.stack != "off"


def _stacked(parts: GroupParts, after: str) -> VectorizedGroup:
    """One actor for all: the environments of the members are the slots of one set."""
    base, count = parts.configs[0], len(parts.configs)
    slots, seed = base.environment.slots, derive(parts.sweep.base.run.seed, f"crew/{parts.numbers[0]}")
    stack = VectorizedLearners(parts.learners)
    environments = open_environments(
        parts.source, base.environment, seed=derive(seed, f"environments{after}"), lockstep=True, slots=slots * count
    )
    policy = StackedPolicy(stack, slots, seed=derive(seed, f"actions{after}"))
    actor = Actor(environments, policy, parts.layout, member=np.repeat(np.asarray(parts.numbers), slots))
    return VectorizedGroup([parts.member(place, actor) for place in range(count)], stack)


def _looped(
    parts: GroupParts, permits: GpuSemaphore | None, after: str, opened: Environments | None = None
) -> SequentialGroup:
    """Each with environments of its own, which may be `opened` already.

    The only member of a process acts in a thread of its own if the runtime is "local", with a network of its own. Of members that take
    turns, acting must not wait for updates under way on a GPU, so it has a network of its own there too. Where there are `permits`, other
    processes use the card while this one's emulators work: one large group of slots is decided for faster than two small ones.
    """
    members: list[Member] = []
    gpu, single = parts.learners[0].device.type == "cuda", parts.sweep.single
    threaded = parts.configs[0].run.runtime == "local" and len(parts.configs) == 1 and permits is None
    lockstep = not threaded and (not gpu or permits is not None)
    apart = threaded or (gpu and not single)
    try:
        for place, (number, config) in enumerate(zip(parts.numbers, parts.configs, strict=True)):
            seed, learner = config.run.seed, parts.learners[place]
            environments = opened or open_environments(
                parts.source, config.environment, seed=derive(seed, f"environments{after}"), lockstep=lockstep
            )
            network = acting_copy(learner.network, config, parts.spec, parts.torso) if apart else learner.network
            policy = Policy(network, learner.family, seed=derive(seed, f"actions{after}"))
            members.append(parts.member(place, Actor(environments, policy, parts.layout, member=number), network))
    except BaseException:
        for member in members:
            member.environments.close()
        raise
    return SequentialGroup(members, permits, threaded=threaded)
