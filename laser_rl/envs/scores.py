"""Reference returns of random and of best play, scores normalised by them, and the tasks of a suite.

With the mean returns of random play and of the best known player, a task's normalised score is (mean - random) / (best - random). The
agent's score is the median over tasks: mean over episodes first, median over tasks after, as the paper does.

`best` of a MiniGrid task is the mean return of a player who sees the whole grid and takes a shortest way. An agent sees seven by seven
cells of it and has to look around, so it comes near that score and does not reach it. `benchmarks/references.py` measured these scores;
docs/results/references.csv has them with their errors. `best` of a level of DMLab is the mean return of people.
"""

import csv
import functools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import median
from typing import Any

from laser_rl.errors import EnvironmentRefused

log = logging.getLogger("laser_rl.envs")
PREFIX = "suite:"
RETURN_OF, SCORE_OF = "return_of_", "score_of_"  # with a task's name, in rows of metrics


@dataclass(frozen=True)
class Reference:
    """Mean returns of uniformly random actions and of the best player that is known; of a task of a suite also its id and options."""

    random: float
    best: float
    id: str = field(default="", compare=False, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def normalised(self, score: float) -> float:
        return (score - self.random) / (self.best - self.random)


def read_table(name: str) -> list[dict[str, str]]:
    text = resources.files("laser_rl.envs").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


SUITES: dict[str, tuple[Reference, ...]] = {}  # tasks of a suite are seen alike
for _row in read_table("suites.csv"):
    _task = Reference(float(_row["random"]), float(_row["best"]), _row["task"], json.loads(_row["options"] or "{}"))
    SUITES[_row["suite"]] = (*SUITES.get(_row["suite"], ()), _task)
_BY_ID = {task.id: task for tasks in SUITES.values() for task in tasks}
# Of random play and of people on the 57 games of the paper's table, by the names of their ROMs.
ATARI_57 = {
    row["game"]: Reference(float(row["random"]), float(row["human"])) for row in read_table("atari57_scores.csv")
}


def suite_of(name: str) -> tuple[Reference, ...]:
    """The tasks of the suite called `name`, with or without the prefix that its environments go by."""
    suite = SUITES.get(name.removeprefix(PREFIX))
    if suite is None:
        raise EnvironmentRefused(
            f"expected a suite of tasks, one of {', '.join(SUITES)}, got {name.removeprefix(PREFIX)!r}; "
            "or name tasks, with commas between them"
        )
    return suite


def reference_of(task_name: str) -> Reference | None:
    """Known scores of a task, by the name that its environments have; None where there are none."""
    if task_name.startswith("laser/"):
        from laser_rl.envs.puzzles import task_of  # noqa: PLC0415 - needs Gymnasium; readers of metrics do not

        try:
            task = task_of(task_name, {})
        except EnvironmentRefused:
            return None
        return Reference(task.random_return, task.optimal_return)
    # Tests of DMLab are scored like the level that was trained on.
    return _BY_ID.get(task_name) or _BY_ID.get(f"{task_name.removesuffix('_test')}_train")


@dataclass(frozen=True)
class TaskScores:
    """Mean returns and normalised scores by task; None where no episode has ended yet."""

    names: tuple[str, ...]
    returns: tuple[float | None, ...]
    scores: tuple[float | None, ...]

    @property
    def median(self) -> float:
        """The agent's score: over tasks that have episodes; NaN if none has."""
        return median(self._known) if self._known else math.nan

    def numbers(self) -> dict[str, float]:
        """For a row of metrics. In the mean each score is capped at 1: one above it makes up for nothing in another task."""
        known = self._known
        found: dict[str, float] = {
            "score_mean_capped": sum(min(1.0, score) for score in known) / len(known) if known else math.nan,
            "tasks_above_random": sum(score > 0 for score in known),
            "tasks_seen": len(known),
        }
        for name, mean, score in zip(self.names, self.returns, self.scores, strict=True):
            if mean is not None and score is not None:
                found |= {RETURN_OF + name: mean, SCORE_OF + name: score}
        return found

    @property
    def _known(self) -> list[float]:
        return [score for score in self.scores if score is not None]


def scores_of(names: Sequence[str], means: Sequence[float | None], references: Sequence[Reference]) -> TaskScores:
    pairs = zip(means, references, strict=True)
    scores = (None if mean is None else reference.normalised(mean) for mean, reference in pairs)
    return TaskScores(tuple(names), tuple(means), tuple(scores))


@functools.lru_cache
def references_of(names: tuple[str, ...]) -> tuple[Reference, ...]:
    """What scores go by. A task of which nothing is known counts with its raw return; that is logged once."""
    known = [reference_of(name) for name in names]
    unknown = [name for name, reference in zip(names, known, strict=True) if reference is None]
    if unknown:
        log.warning("no scores of random and of the best play are known for %s; raw returns count", ", ".join(unknown))
    return tuple(reference or Reference(0.0, 1.0) for reference in known)


def refuse_twice(names: Sequence[str]) -> None:
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise EnvironmentRefused(f"expected every task once, got {twice[0]} twice; leave one of them out")


def tasks_of(name: str) -> dict[str, Mapping[str, Any]]:
    """The tasks that an environment's name stands for, in order, with their own options; one that is no mixture stands for itself."""
    if name.startswith(PREFIX) and "," not in name:
        return {task.id: task.options for task in suite_of(name)}
    names = [part.strip() for part in name.split(",")]
    if len(names) > 1 and ("" in names or any(part.startswith(PREFIX) for part in names)):
        raise EnvironmentRefused(
            f"expected ids of tasks with commas between them, got {name!r}; leave out what is empty, and name a suite alone"
        )
    refuse_twice(names)
    return {part: {} for part in names}
