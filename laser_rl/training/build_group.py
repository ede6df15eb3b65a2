"""From the settings of a run to its members' parts; nothing runs yet."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.loss import ROWWISE
from laser_rl.agent.parallel import ALONE
from laser_rl.agent.policy import Policy
from laser_rl.config import Config, full_name
from laser_rl.envs.make import make_environments
from laser_rl.envs.records import Environments, EnvironmentSpec
from laser_rl.errors import ConfigError
from laser_rl.networks.build import TorsoSource, family_of
from laser_rl.replay.store import Replay
from laser_rl.training import build
from laser_rl.training.evaluate import spec_of
from laser_rl.training.member_group import MemberGroup
from laser_rl.training.saving import earlier_members
from laser_rl.training.settings import SweepConfig
from laser_rl.types import UnrollLayout

if TYPE_CHECKING:
    from laser_rl.training.member_process import GpuSemaphore

# What PBT or a search may move while members are computed side by side.
STACKABLE = {*(f"loss.{name}" for name in ROWWISE), "loss.trust_bound", "optimiser.learning_rate"}


def build_group(
    sweep: SweepConfig,
    source: build.EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    *,
    numbers: Sequence[int] | None = None,
    stores: Sequence[Replay] | None = None,
    permits: "GpuSemaphore | None" = None,
    begun: int = 0,
) -> MemberGroup:
    """All members of a run, or those with these `numbers`, with their environments; their replays are in `stores`, if these exist already.

    Members have `begun` steps behind them if the process that made these is gone. The seeds then are others: the same would play the first
    episodes again, and put them into the replay twice.
    """
    after = f"/{begun}" if begun else ""
    with contextlib.ExitStack() as failed:
        opened = None
        if sweep.single:
            # Opened first and once: a user may have handed in an environment that exists already.
            config = sweep.base
            seed, lockstep = build.derive(config.run.seed, f"environments{after}"), config.run.runtime == "serial"
            what = config.environment.id if source is None else source
            opened = make_environments(what, config.environment, seed=seed, lockstep=lockstep)
            failed.callback(opened.close)
        spec = None if opened is None else opened.spec
        members = build_members(sweep, source, torso, numbers=numbers, stores=stores, spec=spec, failed=failed)
        stacked = _to_stack(sweep, members)
        group = _vectorized(sweep, members, after) if stacked else _sequential(sweep, members, permits, after, opened)
        failed.pop_all()
    return group


def build_members(
    sweep: SweepConfig,
    source: build.EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    *,
    numbers: Sequence[int] | None = None,
    stores: Sequence[Replay] | None = None,
    shared: bool = False,
    spec: EnvironmentSpec | None = None,
    failed: contextlib.ExitStack | None = None,
) -> list[build.Member]:
    """Members without actors. Processes of a run share its replay (`shared`).

    Other devices learn too, if settings say so, where `failed` closes them should anything fail later.
    """
    every = sweep.configs
    source = every[0].environment.id if source is None else source
    if not sweep.single and build.slots_of(source) is not None:
        raise ConfigError("members cannot share an environment that exists already; hand in its id or constructor")
    if not sweep.single and isinstance(torso, torch.nn.Module):
        raise ConfigError("members cannot share one module; hand in its class, or a function that makes one")
    configs = {number: every[number] for number in (range(len(every)) if numbers is None else numbers)}
    spec, layout = one_layout({0: every[0], **configs}, source, spec)
    replays: Sequence[Replay | None] = stores or []
    if stores is None and sweep.share == "separate":
        replays = [build.build_replay(config, layout, shared=shared) for config in configs.values()]
    elif stores is None:
        replays = [build.build_replay(next(iter(configs.values())), layout, shared=shared)] * len(configs)
    sources, team = len(every) + earlier_members(every[0]), None
    if failed is not None and sweep.single and every[0].run.devices > 1:
        from laser_rl.training.ranks import Ranks  # noqa: PLC0415 - an agent on one device never needs it

        team = Ranks(every[0], spec, layout, build.device_of(every[0].run.device), torso=torso, sources=sources)
        failed.callback(team.close)
    members, side = [], ALONE if team is None else team.team
    for (number, config), replay in zip(configs.items(), replays, strict=True):
        learner = build.build_learner(config, spec, torso, sources=sources, team=side)
        mixer = build.build_mixer(config, layout, replay)
        members.append(build.Member(config, source, layout, spec, learner, replay, mixer, number, team, torso))
    if sweep.moved:
        _require_copies(members)
    torch.set_num_threads(build.threads_of(every[0], members[0].learner.network))
    return members


def one_layout(
    configs: Mapping[int, Config], source: build.EnvironmentSource, spec: EnvironmentSpec | None = None
) -> tuple[EnvironmentSpec, UnrollLayout]:
    """What these members, by their numbers, see and do, and the shape of their unrolls; ConfigError if that is not the same for all."""
    (number, config), *others = configs.items()
    spec = spec_of(source, config) if spec is None else spec
    layout = build.layout_of(spec, family_of(spec.action), config)
    for other, its in others:
        own = spec if its.environment == config.environment else spec_of(source, its)
        same = (own.observation, own.action, own.tasks) == (spec.observation, spec.action, spec.tasks)
        if not same or build.layout_of(own, family_of(own.action), its) != layout:
            raise ConfigError(
                f"member {other} has {own.observation} and {own.action}, member {number} {spec.observation} and {spec.action}; all members "
                "share one replay, and its unrolls have one shape: set environment.options in the base configuration"
            )
    return spec, layout


def _require_copies(members: Sequence[build.Member]) -> None:
    """Refused at the start: the first copy would fail, perhaps hours later."""
    both = [{**one.learner.network.state_dict(), **one.learner.optimiser.state} for one in members]
    shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in both]
    for member, own in zip(members, shapes, strict=True):
        if own != shapes[0]:
            raise ConfigError(
                f"members {members[0].number} and {member.number} have networks or optimisers of different shapes, so neither can copy "
                "the other, as population based training and a search do; set what they differ in in the base configuration"
            )


def _to_stack(sweep: SweepConfig, members: Sequence[build.Member]) -> bool:
    if sweep.stack == "off" or (len(members) == 1 and sweep.stack != "on"):
        return False
    from laser_rl.training.vectorized import can_stack  # noqa: PLC0415 - a single agent never needs it

    batch, environment = members[0].config.loss.batch_unrolls, members[0].config.environment
    alike = all((one.config.loss.batch_unrolls, one.config.environment) == (batch, environment) for one in members)
    moved = {full_name(name) for name in sweep.moved}
    possible = alike and moved <= STACKABLE and can_stack([member.learner for member in members])
    if sweep.stack == "on" and not possible:
        raise ConfigError(
            "these members cannot be computed side by side: that needs two or more feed-forward MLPs of one size, the same environment "
            "and batch, discrete actions, and differences in rates, costs, discount, reward scale and trust bound only; use stack auto"
        )
    return possible


def _vectorized(sweep: SweepConfig, members: Sequence[build.Member], after: str) -> MemberGroup:
    from laser_rl.training.vectorized import StackedPolicy, VectorizedGroup, VectorizedLearners  # noqa: PLC0415

    first = members[0]
    # "crew" is part of the seed: another word would change every run.
    slots, seed = first.config.environment.slots, build.derive(sweep.base.run.seed, f"crew/{first.number}")
    stack = VectorizedLearners([member.learner for member in members])
    policy = StackedPolicy(stack, slots, seed=build.derive(seed, f"actions{after}"))
    seed, config = build.derive(seed, f"environments{after}"), first.config.environment
    environments = make_environments(first.source, config, seed=seed, lockstep=True, slots=slots * len(members))
    actor = Actor(environments, policy, first.layout, member=np.repeat([one.number for one in members], slots))
    for member in members:
        member.actor = actor
    return VectorizedGroup(members, stack)


def _sequential(
    sweep: SweepConfig,
    members: Sequence[build.Member],
    permits: "GpuSemaphore | None",
    after: str,
    opened: Environments | None,
) -> MemberGroup:
    # The only member of a process acts in a thread of its own if the runtime is "local", with a network of its own. Of members that take
    # turns, acting must not wait for updates under way on a GPU, so it has a network of its own there too. Where there are `permits`, other
    # processes use the card while this one's emulators work: one forward pass over all slots is faster than two over half of them.
    gpu = members[0].learner.device.type == "cuda"
    threaded = members[0].config.run.runtime == "local" and len(members) == 1 and permits is None
    lockstep = not threaded and (not gpu or permits is not None)
    with contextlib.ExitStack() as failed:
        for member in members:
            config, environments = member.config, opened
            if environments is None:
                seed = build.derive(config.run.seed, f"environments{after}")
                environments = make_environments(member.source, config.environment, seed=seed, lockstep=lockstep)
                failed.callback(environments.close)
            if threaded or (gpu and not sweep.single):
                member.acting = build.acting_copy(member)
            policy = Policy(member.acting, member.learner.family, seed=build.derive(config.run.seed, f"actions{after}"))
            member.actor = Actor(environments, policy, member.layout, member=member.number)
        failed.pop_all()
    return MemberGroup(members, permits, threaded=threaded)
