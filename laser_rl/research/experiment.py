"""What an experiment is: conditions that differ in one thing, tasks they are run on, and claims about which of them is better."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from laser_rl.config import override
from laser_rl.errors import ConfigError
from laser_rl.research.claims import Claim
from laser_rl.sweep.pbt import PbtConfig
from laser_rl.sweep.settings import SweepConfig

Statistic = Literal["whole run", "end", "best"]
STATISTICS: dict[Statistic, str] = {
    "whole run": "mean over members and over all of training: what sample efficiency looks like",
    "end": "mean over members and over the last fifth of training",
    "best": "pointwise best member, mean over the last fifth of training; a maximum, as the paper draws it",
}


@dataclass(frozen=True)
class Task:
    """What is played, by which sweep and for how long."""

    name: str
    sweep: SweepConfig
    """What the paper proposes: one replay for all members, with a trust region."""
    few: SweepConfig
    """The same with fewer members, for questions about the replay of one agent."""
    bucket_steps: int
    """Returns of episodes are averaged over so many steps."""
    each_steps: int
    """Capacity of a replay that belongs to one member."""
    online_unrolls: int
    """Batch of an agent without replay."""
    pbt: PbtConfig
    random: float
    """Mean return of random actions: a score of 0."""
    best: float
    """What counts as 1: the best possible return, or a person's."""
    seconds: float = 0.0
    """Of one run of `sweep` on one core; 0 where nobody has measured it."""
    few_seconds: float = 0.0

    def normalised(self, value: float) -> float:
        """A return as a score.

        >>> from laser_rl.research import suite_of
        >>> suite_of("small").task("catch").normalised(0.2)
        0.5
        """
        return (value - self.random) / (self.best - self.random)


@dataclass(frozen=True)
class Condition:
    """One way to learn a task. Seed and device are set for each run of it."""

    name: str
    sweep: SweepConfig
    seconds: float = 0.0


@dataclass(frozen=True)
class RunClaim(Claim):
    """A claim about a number that every run comes to; margins are in scores, 0 for random play and 1 for the best."""

    statistic: Statistic = "whole run"


@dataclass(frozen=True)
class Experiment:
    """One figure or table.

    >>> from laser_rl.research import EXPERIMENTS, suite_of
    >>> [condition.name for condition in EXPERIMENTS["sharing"].conditions(suite_of("small").task("catch"))]
    ['no replay', 'separate', 'shared']
    """

    name: str
    figure: str
    question: str
    conditions: Callable[[Task], Sequence[Condition]]
    claims: Sequence[RunClaim]
    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of tasks by suite; of a suite that is not named here, all."""
    notes: str = ""


@dataclass(frozen=True)
class Suite:
    """Tasks on which every experiment can be run.

    >>> from laser_rl.research import suite_of
    >>> len(suite_of("atari").tasks), suite_of("atari").kept
    (57, True)
    """

    name: str
    tasks: Sequence[Task]
    kept: bool = False
    """Runs are long: they have run directories, and go on from their checkpoints."""

    def task(self, name: str) -> Task:
        """By name; ConfigError if there is none."""
        found = next((task for task in self.tasks if task.name == name), None)
        if found is None:
            known = ", ".join(task.name for task in self.tasks)
            raise ConfigError(f"suite {self.name} has no task {name!r}; it has {known}")
        return found

    def of(self, experiment: Experiment, names: Sequence[str] = ()) -> list[Task]:
        """The tasks of an experiment here: those asked for, else its own."""
        chosen = names or experiment.tasks.get(self.name) or [task.name for task in self.tasks]
        return [self.task(name) for name in chosen]


@dataclass(frozen=True)
class Run:
    """One sweep that has to be run: a condition on a task with a seed."""

    task: Task
    condition: str
    seed: int
    sweep: SweepConfig

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.task.name}, {self.condition}, seed {self.seed}"


def planned(experiment: Experiment, tasks: Sequence[Task], seeds: Sequence[int], device: str = "cpu") -> list[Run]:
    """All runs, in the order of the tables: tasks, conditions, seeds.

    >>> from laser_rl.research import EXPERIMENTS, suite_of
    >>> runs = planned(EXPERIMENTS["pbt"], [suite_of("small").task("catch")], [0, 1])
    >>> runs[-1].label
    'catch, shared, PBT, seed 1'
    """
    return [
        Run(task, condition.name, seed, _seeded(condition.sweep, seed, device))
        for task in tasks
        for condition in experiment.conditions(task)
        for seed in seeds
    ]


def _seeded(sweep: SweepConfig, seed: int, device: str) -> SweepConfig:
    return sweep.model_copy(update={"base": override(sweep.base, {"run.seed": seed, "run.device": device})})


def core_minutes(plans: Iterable[tuple[Experiment, Sequence[Task]]], seeds: int) -> float:
    """How long the runs of some experiments take on one core, each run once; from what one run of each task took.

    >>> from laser_rl.research import EXPERIMENTS, suite_of
    >>> task = suite_of("small").task("catch")
    >>> one, other = (EXPERIMENTS[name] for name in ("sharing", "naive"))
    >>> core_minutes([(one, [task]), (other, [task])], 6) < core_minutes([(one, [task])], 6) + core_minutes([(other, [task])], 6)
    True
    """
    different = {
        condition.sweep.model_dump_json(): condition.seconds
        for experiment, tasks in plans
        for task in tasks
        for condition in experiment.conditions(task)
    }
    return sum(different.values()) * seeds / 60
