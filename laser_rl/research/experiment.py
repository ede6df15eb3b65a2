"""What an experiment is: variants that differ in one thing, tasks they are run on, and claims about which of them is better.

`data/experiments.yaml` has all experiments. Tasks come in suites: `small` (`data/small.yaml`) is for hours on two cores; `atari` and
`dmlab` have the paper's own recipes.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal, NamedTuple, get_args

import yaml
from pydantic.dataclasses import dataclass as validated_dataclass

from laser_rl import recipes
from laser_rl.config import full_name, override
from laser_rl.envs.atari import FRAME_SKIP
from laser_rl.envs.scores import ATARI_57, Reference, references_of, tasks_of
from laser_rl.errors import ConfigError
from laser_rl.research.protocol import ATARI_BUCKET_FRAMES, DMLAB_BUCKET_FRAMES
from laser_rl.training.pbt import PbtConfig, paper
from laser_rl.training.settings import Sharing, SweepConfig

Statistic = Literal["whole run", "end", "best"]
"""The number of a run that a claim is judged by: the mean over members and all of training, which is what sample efficiency looks like;
the same over the last fifth; the pointwise best member over the last fifth, a maximum, as the paper draws it."""
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
LARGEST_STEPS = 10_000_000  # the paper's largest replay
BUCKETS = 20
# The longest maze is truncated after 123 turns.
SMOKE_TASKS, SMOKE_TURNS, SMOKE_BUCKETS, SMOKE_MEMBERS, SMOKE_UNROLL = 2, 200, 4, 2, 5
FACTORS = (0.5, 1.0, 2.0)  # the paper's, around the middle


@dataclass(frozen=True)
class ExperimentTask:
    """What is played, by which sweep and for how long."""

    name: str
    sweep: SweepConfig  # what the paper proposes: one replay for all members, with a trust region
    few: SweepConfig  # the same with fewer members, for questions about the replay of one agent
    bucket_steps: int  # returns of episodes are averaged over so many steps
    each_steps: int  # capacity of a replay that belongs to one member
    online_unrolls: int  # batch of an agent without replay
    pbt: PbtConfig
    returns: Reference  # of random actions, a score of 0, and of the best possible play or of a person, a score of 1


@validated_dataclass(frozen=True)
class Variant:
    """One way to learn a task: how it differs from one replay for all members with a trust region."""

    name: str
    replay: Sharing = "shared"  # one for all members, one each, or none and every row trusted: IMPALA
    members: Literal["all", "few", "one"] = "all"  # few: the task's smaller sweep; one: the middle of its settings
    unrolls: Sequence[int] | None = None  # online and replayed unrolls of a batch, in eighths of the task's batch
    capacity: int | None = None  # the replay holds a member's steps divided by this
    pbt: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def sweep(self, task: ExperimentTask) -> SweepConfig:
        base = task.sweep.base
        sweep = {
            "all": task.sweep,
            "few": task.few,
            "one": SweepConfig(base=base, members=({"learning_rate": base.optimiser.learning_rate},)),
        }[self.members]
        made = changed(sweep, {**self._replay_settings(task), **self.settings})
        return made.model_copy(update={"share": self.replay, **({"pbt": task.pbt} if self.pbt else {})})

    def _replay_settings(self, task: ExperimentTask) -> dict[str, Any]:
        base, settings = task.few.base, dict[str, Any]()
        if self.replay == "separate":
            settings["replay.capacity_steps"] = task.each_steps
        if self.capacity is not None:
            newest = base.loss.unroll_steps * base.environment.slots  # room for one unroll of every slot
            settings["replay.capacity_steps"] = max(min(base.run.steps, LARGEST_STEPS) // self.capacity, newest)
        eighth = max(1, base.loss.batch_unrolls // 8)
        online, replayed = (task.online_unrolls, 0) if self.unrolls is None else (eighth * n for n in self.unrolls)
        if self.replay == "none":
            settings |= {"loss.batch_unrolls": online, "replay.fraction": 0.0, "trust": "off", "trust_bound": None}
        elif self.unrolls is not None:
            settings |= {"loss.batch_unrolls": online + replayed, "replay.fraction": replayed / (online + replayed)}
            if not online:  # an update waits for as many new unrolls as in a batch with 7/8 replayed
                settings["loss.new_unrolls_per_update"] = eighth
        return settings


def changed(sweep: SweepConfig, settings: Mapping[str, Any]) -> SweepConfig:
    """A copy with other settings of the base; ConfigError if members differ in one of them."""
    taken = {full_name(name) for member in sweep.settings for name in member} & set(map(full_name, settings))
    if taken:
        raise ConfigError(f"members differ in {', '.join(sorted(taken))}, so the base cannot change that; leave it out")
    return sweep.with_base(settings)


@validated_dataclass(frozen=True)
class Claim:
    """That the mean score of the variant `better` is above that of `worse` by more than `margin`.

    Scores are 0 for random play and 1 for the best. A negative margin claims "not worse by more than that".
    """

    text: str
    better: str
    worse: str
    margin: float = 0.0
    source: str = ""  # where the paper says so; empty for a question of ours
    statistic: Statistic = "whole run"


@validated_dataclass(frozen=True)
class Experiment:
    """One figure or table."""

    name: str
    figure: str
    question: str
    variants: Sequence[Variant]
    claims: Sequence[Claim]
    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by suite; of one that is not named here, all
    notes: str = ""

    def conditions(self, task: ExperimentTask) -> dict[str, SweepConfig]:
        return {variant.name: variant.sweep(task) for variant in self.variants}


@dataclass(frozen=True)
class ExperimentSuite:
    """Tasks on which every experiment can be run."""

    name: str
    tasks: Sequence[ExperimentTask]
    kept: bool = False  # runs are long: they have run directories, and go on from their checkpoints

    def task(self, name: str) -> ExperimentTask:
        known = {task.name: task for task in self.tasks}
        if name not in known:
            raise ConfigError(f"suite {self.name} has no task {name!r}; it has {', '.join(known)}")
        return known[name]

    def of(self, experiment: Experiment, names: Sequence[str] = (), *, smoke: bool = False) -> list[ExperimentTask]:
        """The tasks with these names, or those of the experiment; to `smoke`, two of those, and all of them `shrunk`."""
        own = experiment.tasks.get(self.name) or [task.name for task in self.tasks]
        chosen = names or (own[:SMOKE_TASKS] if smoke else own)
        return [shrunk(self.task(name)) if smoke else self.task(name) for name in chosen]


class PlannedRun(NamedTuple):
    """One sweep that has to be run: a condition on a task with a seed."""

    task: ExperimentTask
    condition: str
    seed: int
    sweep: SweepConfig


def planned(
    experiment: Experiment, tasks: Sequence[ExperimentTask], seeds: Sequence[int], device: str = "cpu"
) -> list[PlannedRun]:
    """All runs, in the order of the tables: tasks, conditions, seeds."""
    return [
        PlannedRun(task, name, seed, changed(sweep, {"run.seed": seed, "run.device": device}))
        for task in tasks
        for name, sweep in experiment.conditions(task).items()
        for seed in seeds
    ]


def data_file(name: str) -> str:
    return resources.files("laser_rl.research").joinpath("data", name).read_text(encoding="utf-8")


EXPERIMENTS = {one["name"]: Experiment(**one) for one in yaml.safe_load(data_file("experiments.yaml"))["experiments"]}


def experiment_of(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def suite_of(name: str) -> ExperimentSuite:
    if name not in SUITES:
        raise ConfigError(f"there is no suite {name!r} of experiments; there are {', '.join(SUITES)}")
    return SUITES[name]()


@functools.cache
def small() -> ExperimentSuite:
    data = yaml.safe_load(data_file("small.yaml"))
    return ExperimentSuite("small", [_small(data["agent"], **task) for task in data["tasks"]])


def _small(
    agent: Mapping[str, Any],
    *,
    name: str,
    environment: str,
    steps: int,
    settings: Mapping[str, Any] = {},
    scores: tuple[float, float] | None = None,
    each_steps: int = 6_000,
    recipe: str = "cartpole",
    members: str | Sequence[dict[str, Any]] = "grid",
) -> ExperimentTask:
    base = override(recipes.by_name(recipe, environment), {**agent, **settings, "run.steps": steps})
    rates = tuple({"learning_rate": base.optimiser.learning_rate * factor} for factor in FACTORS)
    costs = [{"entropy_cost": base.loss.entropy_cost * factor} for factor in FACTORS]
    named = {"rates": rates, "grid": tuple(rate | cost for rate in rates for cost in costs)}
    chosen = named[members] if isinstance(members, str) else tuple(members)
    # One store for all has as much replay as all separate ones together.
    together = override(base, {"replay.capacity_steps": each_steps * len(chosen)})
    return ExperimentTask(
        name=name, sweep=SweepConfig(base=together, members=chosen, stack="auto"),
        few=SweepConfig(base=override(base, {"replay.capacity_steps": each_steps}), members=rates),
        bucket_steps=steps // BUCKETS, each_steps=each_steps, online_unrolls=base.loss.batch_unrolls // 8,
        pbt=PbtConfig(burn_in_steps=steps // 10, every_episodes=150, margin=0.05),
        returns=references_of((environment,))[0] if scores is None else Reference(*scores)
    )  # fmt: skip


@functools.cache
def atari() -> ExperimentSuite:
    """57 games, each with nine members and the paper's network: for a cluster of machines."""
    tasks, online = [], recipes.impala().loss.batch_unrolls
    for game, person in ATARI_57.items():
        sweep = recipes.atari_shared(f"ALE/{''.join(part.capitalize() for part in game.split('_'))}-v5")
        pbt = paper(score_low=person.random, score_high=person.best)
        tasks.append(_as_published(game, sweep, ATARI_BUCKET_FRAMES, online, pbt, person))
    return ExperimentSuite("atari", tasks, kept=True)


@functools.cache
def dmlab() -> ExperimentSuite:
    """DMLab-30 as one mixture; its returns are median normalised scores."""
    sweep, online = recipes.dmlab_pbt(), recipes.popart_impala().loss.batch_unrolls
    plain = sweep.model_copy(update={"pbt": None})
    task = _as_published("dmlab-30", plain, DMLAB_BUCKET_FRAMES, online, sweep.pbt or paper(), Reference(0.0, 1.0))
    return ExperimentSuite("dmlab", (task,), kept=True)


def _as_published(
    name: str, sweep: SweepConfig, bucket_frames: int, online_unrolls: int, pbt: PbtConfig, returns: Reference
) -> ExperimentTask:
    return ExperimentTask(
        name=name,
        sweep=sweep,
        few=sweep,
        bucket_steps=bucket_frames // FRAME_SKIP,
        each_steps=sweep.base.replay.capacity_steps,  # the paper's separate replays are as large as its shared one
        online_unrolls=online_unrolls,
        pbt=pbt,
        returns=returns,
    )


SUITES = {"small": small, "atari": atari, "dmlab": dmlab}


def shrunk(task: ExperimentTask) -> ExperimentTask:
    """The same task so short that nothing is learned: to see that everything works."""
    slots = max(2, len(tasks_of(task.sweep.base.environment.id)))
    settings = {
        "environment.slots": slots, "loss.unroll_steps": SMOKE_UNROLL, "run.steps": SMOKE_TURNS * slots,
        "run.log_every_updates": 10, "network.hidden": (8,), "network.channels": 2, "network.memory_size": 8
    }  # fmt: skip
    every = SMOKE_TURNS * slots // SMOKE_BUCKETS

    def short(sweep: SweepConfig, capacity: int) -> SweepConfig:
        base = override(sweep.base, {**settings, "replay.capacity_steps": capacity})
        return sweep.model_copy(update={"base": base, "members": sweep.members[-SMOKE_MEMBERS:]})  # of draws, all

    return replace(
        task,
        sweep=short(task.sweep, 3 * every),
        few=short(task.few, every),
        bucket_steps=every,
        each_steps=every,
        pbt=PbtConfig(burn_in_steps=every, every_episodes=2, margin=0.0),
    )
