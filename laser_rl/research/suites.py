"""Tasks of the experiments. `small` (data/small.yaml) is for hours on two cores; `atari` and `dmlab` have the paper's own recipes."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from laser_rl import recipes
from laser_rl.config import override
from laser_rl.envs.atari import ATARI_57
from laser_rl.envs.puzzles import task_of
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError
from laser_rl.research.experiment import ExperimentSuite, ExperimentTask, data_file
from laser_rl.research.paper import atari_references
from laser_rl.research.protocol import ATARI_BUCKET_FRAMES, DMLAB_BUCKET_FRAMES
from laser_rl.training.pbt import PbtConfig, paper
from laser_rl.training.settings import SweepConfig

BUCKETS = 20
FRAMES_A_STEP = 4
SMOKE_TURNS, SMOKE_BUCKETS, SMOKE_MEMBERS, SMOKE_UNROLL = 200, 4, 2, 5  # 200: the longest maze is truncated after 123
FACTORS = (0.5, 1.0, 2.0)  # the paper's, around the middle


def suite_of(name: str) -> ExperimentSuite:
    """A suite by name."""
    if name not in SUITES:
        raise ConfigError(f"there is no suite {name!r} of experiments; there are {', '.join(SUITES)}")
    return SUITES[name]()


@functools.cache
def small() -> ExperimentSuite:
    """One agent for all of its tasks."""
    data = yaml.safe_load(data_file("small.yaml"))
    return ExperimentSuite("small", [_small(data["agent"], **task) for task in data["tasks"]])


def _small(
    agent: Mapping[str, Any],
    *,
    name: str,
    environment: str,
    steps: int,
    seconds: Sequence[float],
    settings: Mapping[str, Any] = {},
    scores: Sequence[float] | None = None,
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
    if scores is None:
        native = task_of(environment, {})
        scores = native.random_return, native.optimal_return
    return ExperimentTask(
        name=name,
        sweep=SweepConfig(base=together, members=chosen, stack="auto"),
        few=SweepConfig(base=override(base, {"replay.capacity_steps": each_steps}), members=rates),
        bucket_steps=steps // BUCKETS,
        each_steps=each_steps,
        online_unrolls=base.loss.batch_unrolls // 8,
        pbt=PbtConfig(burn_in_steps=steps // 10, every_episodes=150, margin=0.05),
        random=scores[0],
        best=scores[1],
        seconds=seconds[0],
        few_seconds=seconds[1],
    )


@functools.cache
def atari() -> ExperimentSuite:
    """57 games, each with nine members and the paper's network: for a cluster of machines."""
    return ExperimentSuite("atari", tuple(_game(game) for game in ATARI_57), kept=True)


def _game(game: str) -> ExperimentTask:
    sweep = recipes.atari_shared(f"ALE/{''.join(part.capitalize() for part in game.split('_'))}-v5")
    person = atari_references()[game]
    pbt = paper(score_low=person.random, score_high=person.best)
    online = recipes.impala().loss.batch_unrolls
    return _as_published(game, sweep, ATARI_BUCKET_FRAMES, online, pbt, (person.random, person.best))


@functools.cache
def dmlab() -> ExperimentSuite:
    """DMLab-30 as one mixture; its returns are median normalised scores."""
    sweep, online = recipes.dmlab_pbt(), recipes.popart_impala().loss.batch_unrolls
    plain = sweep.model_copy(update={"pbt": None})
    task = _as_published("dmlab-30", plain, DMLAB_BUCKET_FRAMES, online, sweep.pbt or paper(), (0.0, 1.0))
    return ExperimentSuite("dmlab", (task,), kept=True)


def _as_published(
    name: str, sweep: SweepConfig, bucket_frames: int, online_unrolls: int, pbt: PbtConfig, scores: tuple[float, float]
) -> ExperimentTask:
    return ExperimentTask(
        name=name,
        sweep=sweep,
        few=sweep,
        bucket_steps=bucket_frames // FRAMES_A_STEP,
        each_steps=sweep.base.replay.capacity_steps,  # the paper's separate replays are as large as its shared one
        online_unrolls=online_unrolls,
        pbt=pbt,
        random=scores[0],
        best=scores[1],
    )


SUITES = {"small": small, "atari": atari, "dmlab": dmlab}


def shrunk(task: ExperimentTask) -> ExperimentTask:
    """The same task so short that nothing is learned: to see that everything works."""
    tasks = len(tasks_of(task.sweep.base.environment.id))
    slots = max(2, tasks)
    settings = {
        "environment.slots": slots,
        "loss.unroll_steps": SMOKE_UNROLL,
        "run.steps": SMOKE_TURNS * slots,
        "run.log_every_updates": 10,
        "network.hidden": (8,),
        "network.channels": 2,
        "network.memory_size": 8,
    }
    every = SMOKE_TURNS * slots // SMOKE_BUCKETS
    return replace(
        task,
        sweep=_short(task.sweep, {**settings, "replay.capacity_steps": 3 * every}),
        few=_short(task.few, {**settings, "replay.capacity_steps": every}),
        bucket_steps=every,
        each_steps=every,
        pbt=PbtConfig(burn_in_steps=every, every_episodes=2, margin=0.0),
    )


def _short(sweep: SweepConfig, settings: Mapping[str, Any]) -> SweepConfig:
    kept = sweep.members[-SMOKE_MEMBERS:]  # of a grid or of draws, all
    return sweep.model_copy(update={"base": override(sweep.base, settings), "members": kept})
