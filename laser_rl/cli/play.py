"""`laser evaluate`, `laser enjoy`: what a run has learned."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro

from laser_rl.agent.policy import Policy
from laser_rl.agent.single import Memento, act_once
from laser_rl.envs.border import Env
from laser_rl.envs.make import make_renderable
from laser_rl.envs.records import DiscreteActions
from laser_rl.envs.scores import tasks_of
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.envs.suites import reference_of
from laser_rl.errors import ConfigError, MissingExtra
from laser_rl.evaluation.statistics import EvalResult
from laser_rl.evaluation.video import record
from laser_rl.metrics import display
from laser_rl.runtime.evaluate import Trained, chosen_member, evaluate, load_trained


@dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the newest checkpoint of a run, or of a sweep's member."""

    run_dir: tyro.conf.Positional[Path]
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: a member's number, or the best by its last evaluation, which is also meant if nothing is said."""
    episodes: int = 100
    """Of all tasks together, where the run learned several: rounded up so that each is played as often."""
    deterministic: bool = False
    """The most probable action instead of a sampled one."""
    seed: int = 0
    json: bool = False
    """Print everything, each return included, as JSON."""


def evaluate_command(arguments: list[str]) -> int:
    """`laser evaluate`."""
    asked = tyro.cli(Evaluate, prog="laser evaluate", args=arguments)
    member = chosen_member(asked.run_dir, asked.member)
    trained = load_trained(asked.run_dir, member)
    result = evaluate(trained, episodes=asked.episodes, deterministic=asked.deterministic, seed=asked.seed)
    if asked.json:
        whose = {} if member is None else {"member": member}
        print(json.dumps({**whose, "step": trained.steps, "score": result.score, **asdict(result)}))
        return 0
    how = "most probable actions" if asked.deterministic else "sampled actions"
    print(f"{_prefix(member)}{trained.environment.id} after {trained.steps:,} steps, {result.episodes} episodes, {how}")
    print("\n".join(_task_lines(result)) if result.tasks else _line(result))
    return 0


def _line(result: EvalResult) -> str:
    low, high = result.ci95
    mean = f"mean {result.mean:.2f} (95 % interval {low:.2f} to {high:.2f})"
    return f"{mean}, IQM {result.iqm:.2f}, median {result.median:.2f}"


def _task_lines(result: EvalResult) -> list[str]:
    """A table with a line a task, and what they come to together."""
    scores, (low, high) = result.task_scores, result.score_ci95
    lines = [["task", "episodes", "mean return", "random", "best", "normalised"]]
    for task in result.tasks:
        reference = reference_of(task.name)
        known = ("–", "–") if reference is None else (display.short(reference.random), display.short(reference.best))
        lines.append([task.name, str(task.episodes), display.short(task.mean), *known, display.short(task.score)])
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    table = [
        "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])
        for name, *cells in lines
    ]
    together = [
        f"median of the normalised {scores.median:.3f} (95 % interval {low:.3f} to {high:.3f})",
        f"mean capped at 1 {scores.mean_capped:.3f}",
        f"above random in {scores.above_random} of {len(scores.names)} tasks",
    ]
    return [*table, ", ".join(together)]


@dataclass(frozen=True)
class Enjoy:
    """Make a video of one episode."""

    run_dir: tyro.conf.Positional[Path]
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: a member's number, or the best by its last evaluation, which is also meant if nothing is said."""
    task: str | None = None
    """Which one, where the run learned several; the first if left out."""
    video: Path | None = None
    """Where it goes, .mp4 or .gif; RUN_DIR/videos/step-N.mp4 if left out (of a sweep member-M-step-N.mp4, of a task TASK-step-N.mp4)."""
    deterministic: bool = False
    """The most probable action instead of a sampled one."""
    seed: int = 0
    max_steps: int = 10_000


def enjoy_command(arguments: list[str]) -> int:
    """`laser enjoy`."""
    asked = tyro.cli(Enjoy, prog="laser enjoy", args=arguments)
    member = chosen_member(asked.run_dir, asked.member)
    trained = load_trained(asked.run_dir, member)
    task, options = chosen_task(trained.environment.id, asked.task)
    path = asked.video or asked.run_dir / "videos" / _video_name(trained, member, task)
    env = make_renderable(task, options={**options, **trained.environment.options})
    watched = Watched(trained, env, deterministic=asked.deterministic, seed=asked.seed)
    try:
        total = record(env, watched, path, asked.max_steps, seed=asked.seed)
    except gymnasium.error.DependencyNotInstalled:
        raise MissingExtra(f"drawing {task}", "video") from None
    finally:
        env.close()
    print(f"{_prefix(member)}return {total:.1f}; video: {path}")
    return 0


def chosen_task(environment: str, task: str | None) -> tuple[str, Mapping[str, Any]]:
    """The id of the task that is meant, and its own options.

    >>> chosen_task("laser/TMaze-3,laser/TMaze-5", "laser/TMaze-5"), chosen_task("laser/Catch", None)
    (('laser/TMaze-5', {}), ('laser/Catch', {}))
    """
    tasks = tasks_of(environment)
    chosen = next(iter(tasks)) if task is None else task
    if chosen not in tasks:
        raise ConfigError(
            f"expected a task of {environment}, one of {', '.join(tasks)}, got {task!r}; name one of these"
        )
    return chosen, tasks[chosen]


def _video_name(trained: Trained, member: int | None, task: str) -> str:
    whose = "" if member is None else f"member-{member:02d}-"
    which = "" if task == trained.environment.id else "".join(c if c.isalnum() else "-" for c in task) + "-"
    return f"{whose}{which}step-{trained.steps:012d}.mp4"


def _prefix(member: int | None) -> str:
    return "" if member is None else f"member {member}: "


class Watched:
    """Acts in one environment, observation by observation."""

    def __init__(self, trained: Trained, env: Env, *, deterministic: bool, seed: int) -> None:
        self._policy = Policy(trained.network, trained.family, seed=seed, deterministic=deterministic)
        self._sees = observation_border(env.observation_space, trained.environment.id).convert
        border = action_border(env.action_space, trained.environment.id)
        self._acts = border.convert
        self._count = border.spec.count if isinstance(border.spec, DiscreteActions) else None
        self._layout = trained.layout
        self._before: Memento | None = None

    def __call__(self, observation: Any, reward: float) -> Any:
        """The action, as the environment takes it."""
        seen = np.asarray(self._sees(observation))
        action, self._before = act_once(self._policy, self._layout, seen, self._before, reward)
        # A mixture has the actions of all its tasks; one that this task does not know acts as 0.
        unknown = self._count is not None and int(action) >= self._count
        return self._acts(np.zeros_like(action) if unknown else action)
