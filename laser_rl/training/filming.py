"""Films of what a checkpoint has learned, with what it thinks drawn beside the picture. `laser enjoy` makes them, and the recorder."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from laser_rl import checkpoint
from laser_rl.agent.commentary import Commentator
from laser_rl.agent.policy import Memento, Policy, Seen, act_once
from laser_rl.checkpoint import Loaded
from laser_rl.checkpoint.snapshot import grouped, member_name
from laser_rl.config import Config, EnvironmentConfig
from laser_rl.disk import write_json
from laser_rl.envs.border import Env
from laser_rl.envs.make import make_renderable
from laser_rl.envs.records import DiscreteActions
from laser_rl.envs.scores import tasks_of
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.errors import ConfigError, DamagedRun, MissingExtra, UserError
from laser_rl.evaluation.video import Filmed, Frame, Limits, Shot, SidePanel, film
from laser_rl.metrics.videos import facts_path
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.training.build import atari_settings
from laser_rl.training.evaluate import Trained, chosen_member, newest, trained_from
from laser_rl.training.files import read_sweep

FORMAT = 1
NO_LIMITS = Limits()
_AT_ONCE = 64  # rows that the networks look at together


@dataclass(frozen=True)
class Shown:
    """The agent that is filmed, and what is needed to comment on it."""

    trained: Trained
    bound: float
    sources: tuple[AgentNetwork, ...]
    number: int | None  # in a sweep


@dataclass(frozen=True)
class Filming:
    """How an episode is played and shown."""

    task: str | None = None
    seed: int = 0
    deterministic: bool = False
    max_steps: int = 10_000
    panel: bool = True
    limits: Limits = NO_LIMITS
    by: str | None = None  # what made it; None: nothing is written beside the film


def load_shown(run_dir: Path, member: str | int | None, device: torch.device, *, sources: bool = True) -> Shown:
    """The newest checkpoint's agent and, to compare it with, those whose experience it replays.

    In a sweep that shares its replay these are the other members, in the same checkpoint. A single agent replays its own past: there it
    is the parameters of the earlier checkpoints that are still on disk.
    """
    sweep, number, loaded = read_sweep(run_dir), chosen_member(run_dir, member), newest(run_dir)
    config = sweep.configs[number or 0]
    trained = trained_from(loaded, config, number, device)
    bound = float(grouped(loaded.tensors[member_name(number or 0)])["learner"]["bound"])
    others: list[tuple[Loaded, Config, int | None]] = []
    if sources and config.replay.fraction and sweep.share == "shared" and len(sweep.configs) > 1:
        others = [(loaded, other, place) for place, other in enumerate(sweep.configs) if place != number]
    elif sources and config.replay.fraction:
        others = [(earlier, config, number) for earlier in _earlier(run_dir, loaded.step)]
    found = []
    for other in others:
        with contextlib.suppress(DamagedRun):  # it has diverged: no member would learn from it
            found.append(trained_from(*other, device).network)
    return Shown(trained, math.inf if config.loss.trust == "off" else bound, tuple(found), number)


def _earlier(run_dir: Path, step: int) -> Iterator[Loaded]:
    """Checkpoints before a step; the run may remove any of them while they are read."""
    for path in sorted((run_dir / checkpoint.CHECKPOINTS).glob("step-*")):
        name = path.name.removeprefix("step-")
        if name.isdecimal() and int(name) < step:
            with contextlib.suppress(DamagedRun):
                yield checkpoint.load_snapshot(path, replay="unread")


def film_shown(shown: Shown, path: Path, how: Filming) -> Filmed:
    """Play one episode in an environment of its own and write the film, with a JSON file beside it if that is asked for."""
    trained = shown.trained
    task, options = chosen_task(trained.environment.id, how.task)
    env = _opened(trained.environment, task, options)
    frames, stride = how.limits.frames, how.limits.stride(float(env.metadata.get("render_fps") or 30))
    rows = None if frames is None else frames * stride
    watched = FilmedPolicy(
        trained, env, deterministic=how.deterministic, seed=how.seed, keep_rows=rows if how.panel else 0
    )
    panel = SidePanel(_title(shown, task))
    drawing = Drawing(shown, watched, panel, number=[*tasks_of(trained.environment.id)].index(task), seed=how.seed)

    def tell(filmed: Filmed) -> None:
        if how.by is not None:
            write_json(facts_path(path), _facts(shown, how, task, filmed, panel))

    try:
        through = drawing.through if how.panel else None
        return film(env, watched, path, how.max_steps, seed=how.seed, limits=how.limits, through=through, before=tell)
    except gymnasium.error.DependencyNotInstalled:
        raise MissingExtra(f"drawing {task}", "video") from None
    finally:
        env.close()


def _opened(environment: EnvironmentConfig, task: str, options: Mapping[str, Any]) -> Env:
    return make_renderable(task, options={**options, **environment.options}, atari=atari_settings(environment))


def can_be_filmed(environment: EnvironmentConfig) -> bool:
    """Whether an environment (of a mixture the first task) says that it draws pictures.

    It is built, but nothing is drawn: a picture may need a library or a graphics card whose failure ends the process.
    """
    task, options = chosen_task(environment.id, None)
    try:
        env = _opened(environment, task, options)
    except UserError:
        return False
    with contextlib.closing(env):
        draws = getattr(type(env.unwrapped), "render", gymnasium.Env.render) is not gymnasium.Env.render
        return draws and getattr(env, "render_mode", None) == "rgb_array"


def _facts(shown: Shown, how: Filming, task: str, filmed: Filmed, panel: SidePanel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "by": how.by,
        "time": time.time(),
        "step": shown.trained.steps,
        "member": shown.number,
        "task": task,
        "return": filmed.total,
        "length": filmed.length,
        "ended": filmed.ended,
        "seed": how.seed,
        "deterministic": how.deterministic,
        "frames": filmed.frames,
        "frames_per_second": filmed.frames_per_second,
        "value": panel.mean("value"),
        "entropy": panel.mean("entropy"),
        "trusted": panel.mean("trusted"),
        "sources": len(shown.sources),
    }


def chosen_task(environment: str, task: str | None) -> tuple[str, Mapping[str, Any]]:
    """The id of the task that is meant (None: the first), and its own options."""
    tasks = tasks_of(environment)
    chosen = next(iter(tasks)) if task is None else task
    if chosen not in tasks:
        raise ConfigError(
            f"expected a task of {environment}, one of {', '.join(tasks)}, got {task!r}; name one of these"
        )
    return chosen, tasks[chosen]


def _title(shown: Shown, task: str) -> str:
    whose = "" if shown.number is None else f"member {shown.number} · "
    several = "" if task == shown.trained.environment.id else f" · {task}"
    return f"{whose}step {shown.trained.steps:,}{several}"


class FilmedPolicy:
    """Acts in one environment, observation by observation; the rows that it saw wait in `rows` until they are taken."""

    def __init__(
        self, trained: Trained, env: Env, *, deterministic: bool, seed: int, keep_rows: int | None = 0
    ) -> None:
        self._policy = Policy(trained.network, trained.family, seed=seed, deterministic=deterministic)
        self._sees = observation_border(env.observation_space, trained.environment.id).convert
        border = action_border(env.action_space, trained.environment.id)
        self._acts = border.convert
        self._count = border.spec.count if isinstance(border.spec, DiscreteActions) else None
        self._layout = trained.layout
        self._before: Memento | None = None
        self.rows: deque[Seen] = deque()
        self._room = keep_rows

    def __call__(self, observation: Any, reward: float) -> Any:
        """The action, as the environment takes it."""
        sees = np.asarray(self._sees(observation))
        action, self._before, seen = act_once(self._policy, self._layout, sees, self._before, reward)
        if self._room is None or self._room > 0:
            self.rows.append(seen)
            self._room = None if self._room is None else self._room - 1
        # A mixture has the actions of all its tasks; one that this task does not know acts as 0.
        unknown = self._count is not None and int(action) >= self._count
        return self._acts(np.zeros_like(action) if unknown else action)


class Drawing:
    """Puts the panel beside each picture. Pictures wait until the networks have looked at some rows at once, which is much quicker."""

    def __init__(self, shown: Shown, watched: FilmedPolicy, panel: SidePanel, *, number: int, seed: int) -> None:
        self._watched, self._panel, self._told = watched, panel, 0
        agent, loss = shown.trained, shown.trained.config.loss
        self._comment = Commentator(
            agent.network, agent.family, loss, bound=shown.bound, sources=shown.sources, task=number, seed=seed
        )

    def through(self, shots: Iterator[Shot]) -> Iterator[Frame]:
        """As many pictures as shots. The last one shows where the episode ended: nothing was decided there."""
        waiting: deque[Shot] = deque()
        for shot in shots:
            waiting.append(shot)
            if len(self._watched.rows) >= _AT_ONCE:
                yield from self._drawn(waiting)
        yield from self._drawn(waiting, last=True)

    def _drawn(self, waiting: deque[Shot], *, last: bool = False) -> Iterator[Frame]:
        rows = [self._watched.rows.popleft() for _ in range(len(self._watched.rows))]
        for remark in self._comment(rows):
            self._panel.add(**remark._asdict())
            self._told += 1
            yield from self._beside(waiting, until=self._told)
        if last:
            yield from self._beside(waiting, until=math.inf)

    def _beside(self, waiting: deque[Shot], *, until: float) -> Iterator[Frame]:
        while waiting and waiting[0].step < until:
            shot = waiting.popleft()
            yield self._panel.beside(shot.picture, total=shot.total)
