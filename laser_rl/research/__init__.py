"""The paper's experiments: one for each figure and table, and three that go beyond it."""

from laser_rl.research.beyond import ADAPTIVE_ALPHA, RELEVANCE
from laser_rl.research.experiment import Condition, Experiment, Run, RunClaim, Suite, Task, planned
from laser_rl.research.experiments import CAPACITY, COMPARISON, NAIVE, PBT, PRIORITIES, RATIO, RHO, SHARING
from laser_rl.research.suites import SUITES, shrunk, suite_of

__all__ = [
    "EXPERIMENTS",
    "SUITES",
    "Condition",
    "Experiment",
    "Run",
    "RunClaim",
    "Suite",
    "Task",
    "planned",
    "shrunk",
    "suite_of",
]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        SHARING,
        RATIO,
        CAPACITY,
        NAIVE,
        PBT,
        RHO,
        PRIORITIES,
        COMPARISON,
        ADAPTIVE_ALPHA,
        RELEVANCE,
    )
}
