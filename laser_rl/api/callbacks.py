"""Four callbacks for `LASER.learn` and `Sweep.run`: stop at a return, stop without improvement, evaluate, save.

Each looks at the rows of metrics as they come: `learn(log_every=...)` says how often.

In a sweep they hear of all members: one member's return is enough to stop, and files have the member's number in their names.
"""

import math
from pathlib import Path

from laser_rl.api.arguments import count_of
from laser_rl.errors import ConfigError, shortened
from laser_rl.training.evaluate import Trained
from laser_rl.training.member_training import Progress


class StopAtReturn:
    """End the run when the mean return of the last 100 training episodes reaches `goal`.

    Args:
        goal: the mean return; of a mixture of tasks the median of their normalised scores.
        episodes: so many have to have ended before.

    >>> from laser_rl import LASER
    >>> with LASER("laser/Catch", seed=1) as agent:
    ...     agent.learn(100_000, log_every=100, callback=StopAtReturn(-0.9, episodes=20)).steps < 2_000
    True
    """

    def __init__(self, goal: float, *, episodes: int = 100) -> None:
        self.goal, self.episodes = _number("StopAtReturn", "goal", goal), count_of("StopAtReturn", "episodes", episodes)

    def __call__(self, progress: Progress) -> bool:
        """Whether to go on."""
        enough = progress.kind == "train" and progress.values.get("episodes", 0) >= self.episodes
        return not (enough and progress.values.get("return_mean", -math.inf) >= self.goal)


class StopWithoutImprovement:
    """End the run when the score has not improved for `steps` environment steps; the score is the mean return of training episodes.

    Args:
        steps: how long to wait for a better one.
        least: by how much it has to be better.
        evaluations: compare the means of evaluations instead, which `EvaluateEvery` or `run.evaluate_every_steps` make.
    """

    def __init__(self, steps: float | str, *, least: float = 0.0, evaluations: bool = False) -> None:
        self.steps = count_of("StopWithoutImprovement", "steps", steps, least=1)
        self.least = _number("StopWithoutImprovement", "least", least)
        self._kind, self._name = ("evaluation", "mean") if evaluations else ("train", "return_mean")
        self.best, self.best_step = -math.inf, 0

    def __call__(self, progress: Progress) -> bool:
        """Whether to go on."""
        score = progress.values.get(self._name) if progress.kind == self._kind else None
        if score is None:
            return True
        if score > self.best + self.least or math.isinf(self.best):
            self.best, self.best_step = score, progress.step
        return progress.step - self.best_step < self.steps


class EvaluateEvery:
    """Evaluate the agent every `steps` environment steps; results are rows of metrics and in `results`.

    Args:
        steps: between two evaluations.
        episodes: of one evaluation; None: `run.evaluate_episodes`.
        best: where to save the agent whenever an evaluation is the best so far; None: nowhere.

    >>> from laser_rl import LASER
    >>> evaluation = EvaluateEvery(200, episodes=3)
    >>> with LASER("laser/Catch", seed=1) as agent:
    ...     _ = agent.learn(600, log_every=100, callback=evaluation)
    >>> [round(step, -2) for step, mean in evaluation.results]
    [200, 400, 600]
    """

    def __init__(self, steps: float | str, *, episodes: int | None = None, best: str | Path | None = None) -> None:
        self._due = _Due("EvaluateEvery", steps)
        self._episodes = None if episodes is None else count_of("EvaluateEvery", "episodes", episodes, least=1)
        self._path = None if best is None else Trained.require_place(best)
        self.results: list[tuple[int, float]] = []
        self.best = -math.inf

    def __call__(self, progress: Progress) -> None:
        """Ask for an evaluation, or take the row of one."""
        if progress.kind == "train" and self._due(progress):
            progress.evaluate(self._episodes)
        elif progress.kind == "evaluation":
            self.results.append((progress.step, progress.values["mean"]))
            if progress.values["mean"] > self.best:
                self.best = progress.values["mean"]
                if self._path is not None:
                    progress.agent.save(self._path)


class SaveEvery:
    """Save the agent every `steps` environment steps, as `step-N.laser` in a folder; of a sweep as `member-M-step-N.laser`.

    Args:
        steps: between two files.
        folder: where they go; it is made.
    """

    def __init__(self, steps: float | str, folder: str | Path) -> None:
        self._due, self.folder = _Due("SaveEvery", steps), Path(Trained.require_place(folder))

    def __call__(self, progress: Progress) -> None:
        """Save, if due."""
        if progress.kind == "train" and self._due(progress):
            self.folder.mkdir(exist_ok=True)
            whose = "" if progress.member is None else f"member-{progress.member:02d}-"
            progress.agent.save(self.folder / f"{whose}step-{progress.step:012d}.laser")


class _Due:
    """True once every `steps` of each member, by multiples of `steps`."""

    def __init__(self, whose: str, steps: float | str) -> None:
        self._steps, self._done = count_of(whose, "steps", steps, least=1), dict[int | None, int]()

    def __call__(self, progress: Progress) -> bool:
        number = progress.step // self._steps
        due = number > self._done.get(progress.member, 0)
        self._done[progress.member] = number
        return due


def _number(whose: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{whose}: expected {name} to be a finite number, got {shortened(value)}")
    return float(value)
