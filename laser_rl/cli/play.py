"""`laser evaluate`, `laser enjoy`: what a run has learned."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from laser_rl.envs.scores import reference_of
from laser_rl.evaluation.statistics import EvalResult
from laser_rl.metrics import display
from laser_rl.metrics.videos import BY_ENJOY, FOLDER


@dataclass(frozen=True)
class _Play:
    """Who plays, and how."""

    run_dir: tyro.conf.Positional[Path]
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: a member's number, or the best by its last evaluation, which is also meant if nothing is said."""
    deterministic: bool = False
    """The most probable action instead of a sampled one."""
    seed: int = 0


@dataclass(frozen=True)
class Evaluate(_Play):
    """Play whole episodes with the newest checkpoint of a run, or of a sweep's member."""

    episodes: int = 100
    """Of all tasks together, where the run learned several: rounded up so that each is played as often."""
    json: bool = False
    """Print everything, each return included, as JSON."""

    def __call__(self) -> int:
        from laser_rl.training.evaluate import chosen_member, evaluate, load_trained  # noqa: PLC0415 - torch, which --help needs not

        member = chosen_member(self.run_dir, self.member)
        trained = load_trained(self.run_dir, member)
        result = evaluate(trained, episodes=self.episodes, deterministic=self.deterministic, seed=self.seed)
        if self.json:
            whose = {} if member is None else {"member": member}
            print(json.dumps({**whose, "step": trained.steps, "score": result.score, **asdict(result)}))
            return 0
        how = "most probable actions" if self.deterministic else "sampled actions"
        print(
            f"{_prefix(member)}{trained.environment.id} after {trained.steps:,} steps, {result.episodes} episodes, {how}"
        )
        low, high = result.ci95
        mean = f"mean {result.mean:.2f} (95 % interval {low:.2f} to {high:.2f})"
        alone = f"{mean}, IQM {result.iqm:.2f}, median {result.median:.2f}"
        print("\n".join(_task_lines(result)) if result.tasks else alone)
        return 0


def _task_lines(result: EvalResult) -> list[str]:
    """A table with a line a task, and what they come to together."""
    numbers, (low, high) = result.task_scores.numbers(), result.score_ci95
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
        f"median of the normalised {result.score:.3f} (95 % interval {low:.3f} to {high:.3f})",
        f"mean capped at 1 {numbers['score_mean_capped']:.3f}",
        f"above random in {numbers['tasks_above_random']} of {len(result.tasks)} tasks",
    ]
    return [*table, ", ".join(together)]


@dataclass(frozen=True)
class Enjoy(_Play):
    """Make a video of one episode."""

    task: str | None = None
    """Which one, where the run learned several; the first if left out."""
    video: Path | None = None
    """Where it goes, .mp4 or .gif; RUN_DIR/videos/step-N-seed-S.mp4 if left out (of a sweep member-M-step-…, of a task TASK-step-…)."""
    max_steps: int = 10_000

    def __call__(self) -> int:
        from laser_rl.training.evaluate import chosen_member, load_trained  # noqa: PLC0415
        from laser_rl.training.filming import chosen_task, film  # noqa: PLC0415

        member = chosen_member(self.run_dir, self.member)
        trained = load_trained(self.run_dir, member)
        task, _ = chosen_task(trained.environment.id, self.task)
        path, about = self.video, None
        if path is None:  # among the films of the run, which are known by what is written beside them
            whose = "" if member is None else f"member-{member:02d}-"
            which = "" if task == trained.environment.id else "".join(c if c.isalnum() else "-" for c in task) + "-"
            path = self.run_dir / FOLDER / f"{whose}{which}step-{trained.steps:012d}-seed-{self.seed}.mp4"
            about = {"by": BY_ENJOY, "member": member}
        went = film(
            trained, path, task=task, seed=self.seed, deterministic=self.deterministic, max_steps=self.max_steps,
            about=about
        )  # fmt: skip
        print(f"{_prefix(member)}return {went['return']:.1f}; video: {path}")
        return 0


def _prefix(member: int | None) -> str:
    return "" if member is None else f"member {member}: "
