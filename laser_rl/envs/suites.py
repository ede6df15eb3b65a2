"""Suites of tasks that one agent learns at the same time, and the scores that its own are compared with.

`best` of a MiniGrid task is the mean return of a player who sees the whole grid and takes a shortest way. An agent sees seven by seven
cells of it and has to look around, so it comes near that score and does not reach it. `benchmarks/references.py` measured these scores;
docs/results/references.csv has them with their errors. `best` of a level of DMLab is the mean return of people.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from laser_rl.envs.dmlab import LEVELS, level_of
from laser_rl.envs.native import task_of
from laser_rl.envs.scores import PREFIX
from laser_rl.errors import EnvironmentRefused


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
class SuiteTask:
    """One task, playable alone by its id and options."""

    id: str
    random: float
    best: float
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> Reference:
        """Its scores."""
        return Reference(self.random, self.best)


@dataclass(frozen=True)
class Suite:
    """Tasks that are seen alike."""

    name: str
    tasks: tuple[SuiteTask, ...]


GRID = Suite(
    "grid",
    (
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
    ),
)
DMLAB_30 = Suite("dmlab-30", tuple(SuiteTask(f"dmlab/{level.name}", level.random, level.human) for level in LEVELS))
SUITES: Mapping[str, Suite] = MappingProxyType({suite.name: suite for suite in (GRID, DMLAB_30)})
_KNOWN = {task.id: task.reference for suite in SUITES.values() for task in suite.tasks}


def suite_of(name: str) -> Suite:
    """The suite called `name`, with or without the prefix that its environments go by.

    >>> len(suite_of("suite:dmlab-30").tasks)
    30
    """
    suite = SUITES.get(name.removeprefix(PREFIX))
    if suite is None:
        raise EnvironmentRefused(
            f"expected a suite of tasks, one of {', '.join(SUITES)}, got {name.removeprefix(PREFIX)!r}; "
            "or name tasks, with commas between them"
        )
    return suite


def reference_of(task_name: str) -> Reference | None:
    """Known scores of a task, by the name that its environments have; None where there are none.

    >>> reference_of("laser/Catch")
    Reference(random=-0.6, best=1.0)
    >>> reference_of("dmlab/rooms_watermaze").best
    54.0
    >>> reference_of("CartPole-v1")
    """
    if task_name in _KNOWN:
        return _KNOWN[task_name]
    if task_name.startswith("laser/"):
        try:
            task = task_of(task_name, {})
        except EnvironmentRefused:
            return None
        return Reference(task.random_return, task.optimal_return)
    level = level_of(task_name.removeprefix("dmlab/"))
    return Reference(level.random, level.human) if level and task_name.startswith("dmlab/") else None
