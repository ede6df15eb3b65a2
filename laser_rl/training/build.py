"""From a configuration to the parts of one member; nothing runs yet."""

import copy
import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from laser_rl.agent.actor import Actor
from laser_rl.agent.learner import Learner
from laser_rl.agent.parallel import ALONE, Team
from laser_rl.config import Config, override
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.errors import ConfigError, UserError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import TorsoSource, build_network, family_of, parameter_count
from laser_rl.networks.recurrent import state_size
from laser_rl.ops.distributions import Family
from laser_rl.replay.lanes import Lanes
from laser_rl.replay.memory_estimate import estimate, require_fits
from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.mixer import Counts, Mixer, Sampler, UniformSampler
from laser_rl.replay.prioritised import Prioritised
from laser_rl.replay.store import Replay
from laser_rl.types import Batch, UnrollLayout

if TYPE_CHECKING:
    from laser_rl.training.ranks import Ranks

EnvironmentSource = (
    str | Callable[[], gymnasium.Env[Any, Any]] | gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]
)
log = logging.getLogger("laser_rl.training")
SMALL_NETWORK = 300_000  # parameters; below, a second thread costs more than it brings


class RankLost(UserError):
    """A process that had a part of every batch is gone, or does not answer."""

    exit_status = 4


@dataclass
class Member:
    """All parts of one agent. Where nothing acts, as in a supervisor, there is no `actor`."""

    config: Config
    source: EnvironmentSource
    layout: UnrollLayout
    spec: EnvironmentSpec
    learner: Learner
    replay: Replay | None  # None where nothing is replayed; on a cluster, a `ShardedReplay` in its place
    mixer: Mixer
    number: int = 0  # in a sweep
    ranks: "Ranks | None" = None  # what learns with its learner, on other devices
    torso: TorsoSource | None = None  # a user's module, if it is not the configuration's torso
    actor: Actor = field(init=False)  # of this member alone, or of several side by side
    acting: AgentNetwork = field(init=False)  # the one that acts: the learner's own, or a copy that follows it

    def __post_init__(self) -> None:
        self.acting = self.learner.network

    def close(self) -> None:
        self.actor.environments.close()
        if self.ranks is not None:
            self.ranks.close()


def stores_of(members: Iterable[Member]) -> list[Replay]:
    """The replays that lie in memory of this machine, each once."""
    return list({id(one.replay): one.replay for one in members if isinstance(one.replay, Replay)}.values())


def build_learner(
    config: Config, spec: EnvironmentSpec, torso: TorsoSource | None, *, sources: int = 1, team: Team = ALONE
) -> Learner:
    """A learner on its device, with the initial parameters that its seed gives; one rank's, if a `team` learns together."""
    device = device_of(config.run.device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # shapes hardly ever change: cuDNN tries its kernels once
    network = seeded_network(config, spec, torso).to(device)
    return Learner(
        network, family_of(spec.action), config.loss, config.optimiser, seed=derive(config.run.seed, "learner"),
        sources=sources, burn_in_steps=config.replay.burn_in_steps, prioritise=config.replay.sampling == "prioritised",
        graphs=config.run.graphs, team=team
    )  # fmt: skip


def build_mixer(config: Config, layout: UnrollLayout, replay: Replay | None) -> Mixer:
    counts = Counts.of(config.loss.batch_unrolls, config.replay.fraction)
    return Mixer(
        layout, replay, counts, np.random.Generator(np.random.PCG64(derive(config.run.seed, "replay"))),
        sampler=None if replay is None else _sampler(config, replay, counts.replayed),
        new_unrolls_per_update=config.loss.new_unrolls_per_update or None,
        min_unrolls=max(1, -(-config.replay.warmup_steps // layout.steps)), zero_state=config.replay.state == "zero"
    )  # fmt: skip


def _sampler(config: Config, replay: Replay, replayed: int) -> Sampler:
    settings, refresh = config.replay, config.network.memory != "none" and config.replay.state == "refresh"
    if settings.sampling == "uniform":
        return Lanes(replay, replayed) if refresh else UniformSampler(replay)
    return Prioritised(
        replay,
        exponent=settings.priority_exponent,
        importance_exponent=settings.importance_exponent,
        uniform_share=settings.priority_uniform_share,
    )


def learn(member: Member, batch: Batch, *, progress: float) -> None:
    """One update from a batch on the learner's device."""
    learner = member.learner
    with nullcontext() if member.ranks is None else member.ranks.updating(learner, progress):
        learner.update(batch, progress=progress)
    if learner.priorities is not None:
        member.mixer.prioritise(*(part.cpu().numpy() for part in learner.priorities))


def keep_in_step(member: Member) -> None:
    """Where batches were filled that the learner has not seen, lanes stand elsewhere than the states that it carries: they begin anew."""
    if member.mixer.filled != member.learner.version:
        member.mixer.restart()
        member.mixer.filled = member.learner.version


def batch_of(member: Member) -> Batch:
    """A batch to be filled over and over; for a GPU in pinned memory and unstacked, a quarter of the bytes to transfer."""
    gpu = member.learner.device.type == "cuda"
    return allocate(member.layout, member.config.loss.batch_unrolls, pin=gpu, stacked=not gpu)


def slots_of(source: EnvironmentSource) -> int | None:
    """How many slots an environment that exists already has; None if it is only a way to make them."""
    if isinstance(source, gymnasium.vector.VectorEnv):
        return int(source.num_envs)
    return 1 if isinstance(source, gymnasium.Env) else None


def another(source: EnvironmentSource) -> EnvironmentSource:
    """A source of fresh copies of this environment, for evaluation; if none can be made, the environment itself.

    All episodes of one that is played in itself are begun anew, and training goes on with new ones (`envs.construct.BorrowedEnv`).
    """
    if not isinstance(source, gymnasium.Env) or source.spec is None:
        return source
    with_all_wrappers = all(wrapper.kwargs is not None for wrapper in source.spec.additional_wrappers)
    return functools.partial(gymnasium.make, source.spec) if with_all_wrappers else source


def layout_of(spec: EnvironmentSpec, family: Family, config: Config) -> UnrollLayout:
    return UnrollLayout(
        steps=config.loss.unroll_steps, context=config.environment.frame_stack - 1,
        observation_shape=spec.observation.shape, observation_dtype=spec.observation.dtype,
        action_shape=family.action_shape, action_dtype="int64" if family.joint_size is not None else "float32",
        parameter_size=family.parameter_size, state_size=state_size(config.network.memory, config.network.memory_size)
    )  # fmt: skip


def build_replay(config: Config, layout: UnrollLayout, *, shared: bool = False) -> Replay | None:
    if not Counts.of(config.loss.batch_unrolls, config.replay.fraction).replayed:
        return None
    capacity, budget = config.replay.capacity_steps, config.replay.budget_bytes
    need = estimate(layout, capacity, config.replay.codec, budget)
    log.info("%s", need)
    require_fits(need)
    return Replay(layout, capacity, codec=config.replay.codec, budget_bytes=budget, shared=shared)


def seeded_network(config: Config, spec: EnvironmentSpec, torso: TorsoSource | None) -> AgentNetwork:
    """The same initial parameters for the same seed, and no other random numbers disturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.run.seed, "network"))
        return build_network(
            spec, config.network, torso=torso, stack=config.environment.frame_stack, popart=config.loss.popart,
            pixel_control_cell=config.loss.pixel_control_cell if config.loss.pixel_control_cost else 0
        )  # fmt: skip


def fresh_state(member: Member, name: str) -> dict[str, dict[str, Tensor]]:
    """What a member would begin with if its seed were another: parameters, optimiser, bound."""
    config = override(member.config, {"run.seed": derive(member.config.run.seed, name) >> 8})
    return build_learner(config, member.spec, member.torso).state_dict().tensors


def acting_copy(member: Member) -> AgentNetwork:
    """A network of its own for an actor that runs beside the learner; built anew, since a user's torso may refuse to be copied."""
    torso = member.torso
    if isinstance(torso, torch.nn.Module):  # a user's instance, which cannot be built again
        torso = copy.deepcopy(torso)
    twin = seeded_network(member.config, member.spec, torso).to(member.learner.device)
    twin.load_state_dict(member.learner.network.state_dict())
    return twin


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is not known; use cpu, cuda, cuda:0 or auto") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} was asked for, but torch sees no GPU here; use --run.device cpu")
    return device


def threads_of(config: Config, network: AgentNetwork) -> int:
    """Threads of one torch operation: acting beside learning leaves a core to the actors."""
    if config.run.threads:
        return config.run.threads
    if parameter_count(network) < SMALL_NETWORK:
        return 1
    cores = max(1, len(os.sched_getaffinity(0)) // config.run.devices)
    return cores if config.run.runtime == "serial" else max(1, cores - 1)


def derive(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
