"""Playing without learning, and how a run ended."""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from laser_rl import checkpoint
from laser_rl.agent.parameters import load_network
from laser_rl.agent.policy import Memento, Policy, act_once
from laser_rl.checkpoint import Loaded
from laser_rl.checkpoint.guarded import fitting
from laser_rl.checkpoint.snapshot import ReplayCheck, grouped, member_name
from laser_rl.config import Config, EnvironmentConfig
from laser_rl.disk import write_bytes
from laser_rl.envs.dmlab import evaluation_options
from laser_rl.envs.make import make_environments
from laser_rl.envs.records import EnvironmentSpec, Rows, read_spec, write_spec
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError, DamagedRun, shortened
from laser_rl.evaluation.statistics import EvalResult, rollout, summarise, summarise_mixture
from laser_rl.metrics.standing import Exploit, best, standing
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import family_of
from laser_rl.ops.distributions import Family
from laser_rl.training import build
from laser_rl.training.files import command_for, is_sweep, read_sweep
from laser_rl.types import Array, UnrollLayout

SLOTS = 16
AGENT_FORMAT = "1"  # of the file of one agent


@dataclass(frozen=True)
class Trained:
    """A trained network with the environment and the settings that it was trained for."""

    network: AgentNetwork
    config: Config
    spec: EnvironmentSpec
    source: build.EnvironmentSource
    steps: int

    @property
    def family(self) -> Family:
        return family_of(self.spec.action)

    @property
    def layout(self) -> UnrollLayout:
        return build.layout_of(self.spec, self.family, self.config)

    @property
    def environment(self) -> EnvironmentConfig:
        return self.config.environment

    def save(self, path: str | Path, parts: Mapping[str, Tensor] | None = None) -> Path:
        """Network, spaces and configuration, and other `parts`, in one safetensors file, for `LASER.load`."""
        path = self.require_place(path)
        values, spec = self.config.model_dump_json(), write_spec(self.spec).decode()
        about = {"format": AGENT_FORMAT, "config": values, "steps": str(self.steps), "spec": spec}
        dense = {name: tensor.detach().cpu().contiguous() for name, tensor in self.network.state_dict().items()}
        try:
            write_bytes(path, safetensors.torch.save({**dense, **(parts or {})}, metadata=about))
        except OSError as error:
            raise ConfigError(f"save: {path} cannot be written ({error.strerror}); choose another file") from error
        return path

    @staticmethod
    def require_place(path: str | Path) -> Path:
        """ConfigError if the folder of a file to be written is not there."""
        if not isinstance(path, str | Path):
            raise ConfigError(f"save: expected the path of a file, got {shortened(path)}")
        path = Path(path)
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"save: expected a file in a folder that is there, got {path}; make {path.parent} first")
        return path


class Unfinished(Exception):
    """An evaluation was asked to end; a part of its episodes would favour the short ones, so there is no result."""


class Player:
    """A policy with what it remembers of the slots it plays in: frame stacks, memory, the last action."""

    def __init__(self, policy: Policy, layout: UnrollLayout, slots: int) -> None:
        self._policy, self._layout, self._past = policy, layout, Memento.blank(layout, slots)

    def __call__(self, rows: Rows) -> Array:
        before = Memento(*(part[rows.slots] for part in self._past))
        action, after = act_once(self._policy, self._layout, rows.observation, rows.reward, rows.is_first, before)
        for whole, part in zip(self._past, after, strict=True):
            whole[rows.slots] = part
        return action


def trained_of(member: build.Member, steps: int) -> Trained:
    return Trained(member.learner.network, member.config, member.spec, member.source, steps)


def load_trained(run_dir: Path, member: str | int | None = None) -> Trained:
    """What the newest checkpoint of a run or of a sweep holds for a `chosen_member`; no replay is loaded."""
    number, loaded = chosen_member(run_dir, member), newest(run_dir)
    config, spec = read_sweep(run_dir).configs[number or 0], spec_in(loaded, number)
    here = build.device_of("auto")  # played here, wherever it was trained
    network = build.seeded_network(config, spec, None).to(here)
    with fitting(loaded.path):
        load_network(network, grouped(loaded.tensors[member_name(number or 0)])["network"])
    require_finite(loaded.path, network)
    torch.set_num_threads(build.threads_of(config, network))
    return Trained(network, config, spec, config.environment.id, loaded.step)


def newest(run_dir: Path, replay: ReplayCheck = "unread") -> Loaded:
    loaded = checkpoint.latest(run_dir, replay=replay)
    if loaded is None:
        raise ConfigError(f"{run_dir} has no checkpoint yet; '{command_for('resume', run_dir)}' goes on until it does")
    return loaded


def spec_of(source: build.EnvironmentSource, config: Config) -> EnvironmentSpec:
    """What an environment looks like; it is opened once to be looked at, in as few slots as it can be."""
    environments = make_environments(source, config.environment, seed=0, lockstep=True, slots=task_count(source))
    environments.close()
    return environments.spec


def spec_in(loaded: Loaded, number: int | None) -> EnvironmentSpec:
    """What the environment looks like, as a checkpoint says it: it is not opened."""
    with fitting(loaded.path):
        return read_spec(loaded.state["members"][number or 0]["spec"].encode())


def require_finite(path: Path, network: AgentNetwork) -> None:
    """Refuse parameters with which nothing can be played, wherever they came from."""
    for name, tensor in network.state_dict().items():
        if bad := int((~tensor.isfinite()).sum()):
            raise DamagedRun(
                f"{path}: {name} holds {bad} numbers of {tensor.numel()} that are not finite, expected none; "
                "use an earlier copy, or train again"
            )


def chosen_member(run_dir: Path, member: str | int | None = None) -> int | None:
    """The number of the member of a sweep that is meant: "best", by its last evaluation, if nothing is said; None for a single run."""
    if not is_sweep(run_dir):
        if member not in {None, 0, "0"}:
            raise ConfigError(f"{run_dir} is a run of one agent, so there is no member {member}; leave it out")
        return None
    if member in {None, "best"}:
        leader = best(standing(run_dir))
        if leader is None:
            raise ConfigError(f"{run_dir} has neither evaluations nor returns yet, so none is best; name one by number")
        return leader.member
    count = len(read_sweep(run_dir).settings)
    if not str(member).isdecimal() or int(str(member)) >= count:
        raise ConfigError(f"there is no member {member} in {run_dir}; expected best or a number from 0 to {count - 1}")
    return int(str(member))


def evaluate(
    trained: Trained, *, episodes: int, deterministic: bool, seed: int, goes_on: Callable[[], bool] = lambda: True
) -> EvalResult:
    """Play whole episodes; `Unfinished` as soon as it no longer `goes_on`. Every task is played as often: there may be more `episodes`."""
    tasks, source = task_count(trained.source), build.another(trained.source)
    episodes = -(-episodes // tasks) * tasks
    slots = build.slots_of(source) or min(episodes, max(1, SLOTS // tasks) * tasks)
    options = evaluation_options(source, trained.environment.options)
    settings = trained.environment.model_copy(update={"options": options})
    environments = make_environments(source, settings, seed=seed, lockstep=True, slots=slots)
    with contextlib.closing(environments):
        spec, known = environments.spec, trained.spec
        if (spec.observation, spec.action) != (known.observation, known.action):
            raise ConfigError(
                f"the agent was trained on {known.observation} and {known.action}, but {spec.name} has {spec.observation} and "
                f"{spec.action}; pass an environment like the one it was trained in"
            )
        policy = Policy(trained.network, trained.family, seed=seed, deterministic=deterministic)
        player = Player(policy, trained.layout, slots)

        def act(rows: Rows) -> Array:
            if not goes_on():
                raise Unfinished
            return player(rows)

        played = rollout(environments, act, episodes)
    if spec.tasks:
        return summarise_mixture(played, spec)
    return summarise([one.raw_return for one in played], lengths=[one.length for one in played])


def task_count(source: build.EnvironmentSource) -> int:
    """How many tasks an environment is a mixture of: the fewest slots in which it can be played."""
    return len(tasks_of(source)) if isinstance(source, str) else 1


@dataclass(frozen=True)
class MemberResult(Trained):
    """How one member ended: its network, and its `config` with what population based training made of it."""

    number: int
    settings: dict[str, Any]  # what it was started with, as far as members differ
    updates: int
    return_mean: float | None  # of its last 100 episodes; of a mixture, the median of its tasks' normalised scores
    evaluation: EvalResult | None


@dataclass(frozen=True)
class Result:
    """How a run of one agent, or a sweep, ended: `steps` of the slowest member, `updates` of all together."""

    members: tuple[MemberResult, ...]
    exploits: tuple[Exploit, ...]
    interrupted: str | None  # the signal or reason, None if all steps were done
    checkpoint: Path | None

    @property
    def steps(self) -> int:
        return min(member.steps for member in self.members)

    @property
    def updates(self) -> int:
        return sum(member.updates for member in self.members)

    def best(self) -> MemberResult:
        """The member with the best evaluation; of equal ones, and without any, the one with the best returns."""

        def merit(member: MemberResult) -> tuple[float, float]:
            trained = -math.inf if member.return_mean is None else member.return_mean
            return (trained if member.evaluation is None else member.evaluation.score, trained)

        return max(self.members, key=merit)
