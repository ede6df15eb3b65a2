"""Suites of tasks that one agent learns at the same time, and how good it is at tasks whose returns have nothing in common.

With the mean returns of random play and of the best known player, a task's normalised score is (mean - random) / (best - random). The
agent's score is the median over tasks: mean over episodes first, median over tasks after, as the paper does.

`best` of a MiniGrid task is the mean return of a player who sees the whole grid and takes a shortest way. An agent sees seven by seven
cells of it and has to look around, so it comes near that score and does not reach it. `benchmarks/references.py` measured these scores;
docs/results/references.csv has them with their errors. `best` of a level of DMLab is the mean return of people.
"""

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from laser_rl.errors import EnvironmentRefused

log = logging.getLogger("laser_rl.envs")
PREFIX = "suite:"
RETURN_OF, SCORE_OF = "return_of_", "score_of_"  # with a task's name, in rows of metrics


@dataclass(frozen=True)
class Reference:
    """Mean returns of uniformly random actions and of the best player that is known.

    >>> Reference(random=0.1, best=0.9).normalised(0.5)
    0.5
    """

    random: float
    best: float

    def normalised(self, score: float) -> float:
        """0 for random play, 1 for the best."""
        return (score - self.random) / (self.best - self.random)


@dataclass(frozen=True)
class Level:
    """One level of DMLab-30 by the name of its training version."""

    name: str
    random: float
    human: float

    @property
    def test_name(self) -> str:
        """The version that scores are reported for; mostly the same."""
        stem = self.name.removesuffix("_train")
        return self.name if stem == self.name else f"{stem}_test"


# fmt: off
LEVELS = (
    Level("rooms_collect_good_objects_train", 0.073, 10.0),
    Level("rooms_exploit_deferred_effects_train", 8.501, 85.65),
    Level("rooms_select_nonmatching_object", 0.312, 65.9),
    Level("rooms_watermaze", 4.065, 54.0),
    Level("rooms_keys_doors_puzzle", 4.135, 53.8),
    Level("language_select_described_object", -0.07, 389.5),
    Level("language_select_located_object", 1.929, 280.7),
    Level("language_execute_random_task", -5.913, 254.05),
    Level("language_answer_quantitative_question", -0.33, 184.5),
    Level("lasertag_one_opponent_small", -0.224, 12.65),
    Level("lasertag_three_opponents_small", -0.214, 18.55),
    Level("lasertag_one_opponent_large", -0.083, 18.6),
    Level("lasertag_three_opponents_large", -0.102, 31.5),
    Level("natlab_fixed_large_map", 2.173, 36.9),
    Level("natlab_varying_map_regrowth", 2.989, 24.45),
    Level("natlab_varying_map_randomized", 7.346, 42.35),
    Level("skymaze_irreversible_path_hard", 0.1, 100.0),
    Level("skymaze_irreversible_path_varied", 14.4, 100.0),
    Level("psychlab_arbitrary_visuomotor_mapping", 0.163, 58.75),
    Level("psychlab_continuous_recognition", 0.224, 58.3),
    Level("psychlab_sequential_comparison", 0.129, 39.5),
    Level("psychlab_visual_search", 0.085, 78.5),
    Level("explore_object_locations_small", 3.575, 74.45),
    Level("explore_object_locations_large", 4.673, 65.65),
    Level("explore_obstructed_goals_small", 6.76, 206.0),
    Level("explore_obstructed_goals_large", 2.61, 119.5),
    Level("explore_goal_locations_small", 7.66, 267.5),
    Level("explore_goal_locations_large", 3.14, 194.5),
    Level("explore_object_rewards_few", 2.073, 77.7),
    Level("explore_object_rewards_many", 2.438, 106.7),
)
# fmt: on
_LEVELS_BY_NAME = {name: level for level in LEVELS for name in (level.name, level.test_name)}


def level_of(name: str) -> Level | None:
    """The level of that name, of either version; None for any other."""
    return _LEVELS_BY_NAME.get(name)


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite, playable alone by its id and options."""

    id: str
    random: float
    best: float
    options: Mapping[str, Any] = field(default_factory=dict)


GRID = (
    SuiteTask("MiniGrid-MemoryS7-v0", 0.1693, 0.9836),
    SuiteTask("MiniGrid-MemoryS11-v0", 0.2023, 0.9904),
    SuiteTask("MiniGrid-RedBlueDoors-6x6-v0", 0.0524, 0.9841),
    SuiteTask("MiniGrid-DoorKey-5x5-v0", 0.0262, 0.9652),
    SuiteTask("MiniGrid-DoorKey-6x6-v0", 0.0182, 0.9694),
    SuiteTask("MiniGrid-Unlock-v0", 0.0245, 0.9706),
    SuiteTask("MiniGrid-MultiRoom-N2-S4-v0", 0.0078, 0.8415),
    SuiteTask("MiniGrid-SimpleCrossingS9N1-v0", 0.0175, 0.9605),
    SuiteTask("MiniGrid-LavaGapS6-v0", 0.0182, 0.9481),
    SuiteTask("MiniGrid-FourRooms-v0", 0.02, 0.8546),
    SuiteTask("MiniGrid-KeyCorridorS3R1-v0", 0.017, 0.9511),
    SuiteTask("laser/TMaze-20", 0.0, 1.0, {"tiles": True}),
)
SUITES: Mapping[str, tuple[SuiteTask, ...]] = {  # tasks of a suite are seen alike
    "grid": GRID,
    "dmlab-30": tuple(SuiteTask(f"dmlab/{level.name}", level.random, level.human) for level in LEVELS),
}


def suite_of(name: str) -> tuple[SuiteTask, ...]:
    """The tasks of the suite called `name`, with or without the prefix that its environments go by."""
    suite = SUITES.get(name.removeprefix(PREFIX))
    if suite is None:
        raise EnvironmentRefused(
            f"expected a suite of tasks, one of {', '.join(SUITES)}, got {name.removeprefix(PREFIX)!r}; "
            "or name tasks, with commas between them"
        )
    return suite


def reference_of(task_name: str) -> Reference | None:
    """Known scores of a task, by the name that its environments have; None where there are none.

    >>> reference_of("laser/Catch"), reference_of("dmlab/rooms_watermaze").best, reference_of("CartPole-v1")
    (Reference(random=-0.6, best=1.0), 54.0, None)
    """
    if task_name.startswith("laser/"):
        from laser_rl.envs.puzzles import task_of  # noqa: PLC0415 - needs Gymnasium; readers of metrics do not

        try:
            task = task_of(task_name, {})
        except EnvironmentRefused:
            return None
        return Reference(task.random_return, task.optimal_return)
    if task_name.startswith("dmlab/"):
        level = level_of(task_name.removeprefix("dmlab/"))
        return Reference(level.random, level.human) if level else None
    return next((Reference(task.random, task.best) for task in GRID if task.id == task_name), None)


@dataclass(frozen=True)
class TaskScores:
    """Mean returns and normalised scores by task; None where no episode has ended yet.

    >>> scores = TaskScores(("a", "b", "c"), (5.0, 1.0, None), (2.0, -0.5, None))
    >>> scores.median, scores.mean_capped, scores.above_random, scores.tasks_seen
    (0.75, 0.25, 1, 2)
    """

    names: tuple[str, ...]
    returns: tuple[float | None, ...]
    scores: tuple[float | None, ...]

    @property
    def median(self) -> float:
        """The agent's score: over tasks that have episodes; NaN if none has."""
        return median(self._known) if self._known else math.nan

    @property
    def mean_capped(self) -> float:
        """Mean of min(1, score), likewise: what is better than the best in one task makes up for nothing in another."""
        return sum(min(1.0, score) for score in self._known) / len(self._known) if self._known else math.nan

    @property
    def above_random(self) -> int:
        """Tasks in which the mean return is better than random play's."""
        return sum(score > 0 for score in self._known)

    @property
    def tasks_seen(self) -> int:
        """Tasks that have episodes."""
        return len(self._known)

    def numbers(self) -> dict[str, float]:
        """For a row of metrics: all but the median, which goes by another name in each kind of row."""
        found: dict[str, float] = {
            "score_mean_capped": self.mean_capped,
            "tasks_above_random": self.above_random,
            "tasks_seen": self.tasks_seen,
        }
        for name, mean, score in zip(self.names, self.returns, self.scores, strict=True):
            if mean is not None and score is not None:
                found |= {RETURN_OF + name: mean, SCORE_OF + name: score}
        return found

    @property
    def _known(self) -> list[float]:
        return [score for score in self.scores if score is not None]


def scores_of(
    names: Sequence[str], means: Sequence[float | None], references: Sequence[Reference] | None = None
) -> TaskScores:
    """The scores of tasks with these mean returns, by the references that are known of them unless others are given."""
    references = references_of(tuple(names)) if references is None else references
    scores = tuple(
        None if mean is None else reference.normalised(mean) for mean, reference in zip(means, references, strict=True)
    )
    return TaskScores(tuple(names), tuple(means), scores)


@functools.lru_cache
def references_of(names: tuple[str, ...]) -> tuple[Reference, ...]:
    """What scores go by. A task of which nothing is known counts with its raw return; that is logged once."""
    known = [reference_of(name) for name in names]
    unknown = [name for name, reference in zip(names, known, strict=True) if reference is None]
    if unknown:
        log.warning(
            "no scores of random and of the best play are known for %s; raw returns count as scores", ", ".join(unknown)
        )
    return tuple(reference or Reference(0.0, 1.0) for reference in known)


def refuse_twice(names: Sequence[str]) -> None:
    """Tasks of a mixture go by their names, so a name may be there once."""
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise EnvironmentRefused(f"expected every task once, got {twice[0]} twice; leave one of them out")


def tasks_of(name: str) -> dict[str, Mapping[str, Any]]:
    """The tasks that an environment's name stands for, in order, with their own options; one that is no mixture stands for itself.

    >>> tasks_of("laser/TMaze-3,laser/TMaze-5"), tasks_of("laser/Catch")
    ({'laser/TMaze-3': {}, 'laser/TMaze-5': {}}, {'laser/Catch': {}})
    >>> tasks_of("suite:grid")["laser/TMaze-20"]
    {'tiles': True}
    """
    if name.startswith(PREFIX) and "," not in name:
        return {task.id: task.options for task in suite_of(name)}
    names = [part.strip() for part in name.split(",")]
    if len(names) > 1 and ("" in names or any(part.startswith(PREFIX) for part in names)):
        raise EnvironmentRefused(
            f"expected ids of tasks with commas between them, got {name!r}; leave out what is empty, and name a suite alone"
        )
    refuse_twice(names)
    return {part: {} for part in names}
