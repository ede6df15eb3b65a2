"""Tasks of the experiments. `small` is for hours on two cores; `atari` and `dmlab` have the paper's own recipes.

`small` has tasks where an effect can show (Convention was built for conflicts between members, DeepSea for exploration) and tasks where
it need not. One agent for all of them, settings are first choices; nothing was tuned for a condition (docs/results/sharing).
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from laser_rl import recipes
from laser_rl.config import override
from laser_rl.envs.atari import ATARI_57
from laser_rl.envs.puzzles import task_of
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError
from laser_rl.research.experiment import ExperimentSuite, ExperimentTask
from laser_rl.research.paper import atari_references
from laser_rl.research.protocol import ATARI_BUCKET_FRAMES, DMLAB_BUCKET_FRAMES
from laser_rl.training.pbt import PbtConfig, paper
from laser_rl.training.settings import SweepConfig

BUCKETS = 20
FRAMES_A_STEP = 4
SMOKE_TURNS, SMOKE_BUCKETS, SMOKE_MEMBERS, SMOKE_UNROLL = 200, 4, 2, 5  # 200: the longest maze is truncated after 123
ONLINE, REPLAYED = 2, 14
EACH_STEPS = 6_000  # of replay for each member; one store for all has as much in all

# 2 online and 14 replayed unrolls of 20 steps, Adam, mean loss, the package's own bound.
AGENT: Mapping[str, Any] = {
    "loss.batch_unrolls": ONLINE + REPLAYED,
    "replay.fraction": REPLAYED / (ONLINE + REPLAYED),
    "loss.unroll_steps": 20,
    "environment.slots": 4,
    "environment.placement": "thread",
    "loss.reward_scale": 1.0,
    "loss.entropy_cost": 0.01,
    "optimiser.learning_rate": 1e-3,
    "optimiser.schedule": "constant",
    "loss.trust": "implied",
    "loss.trust_bound": 0.1,
    "run.threads": 1,
    "run.runtime": "serial",
    "run.checkpoint_every_steps": 0,
}
CARTPOLE: Mapping[str, Any] = {"loss.reward_scale": 0.1, "loss.entropy_cost": 0.001}
FACTORS = (0.5, 1.0, 2.0)  # the paper's, around the middle
CONVENTION = {"bonus": [0.3, 0, 0], "late_bonus": [0, 1.5, 0]}
# Mazes up to four times as long as an unroll; shorter ones, because gradients reach no further back than an unroll does.
MAZES = "laser/TMaze-2,laser/TMaze-5,laser/TMaze-15,laser/TMaze-40"
MEMORY: Mapping[str, Any] = {
    "environment.slots": 16,
    "network.memory": "lstm",
    "network.memory_size": 64,
    "network.memory_span": 100,
    "network.hidden": (32,),
    "loss.batch_unrolls": 64,
    "loss.unroll_steps": 10,
    "loss.entropy_cost": 0.003,
    "optimiser.clip_gradient_norm": 0.5,
}
# Returns of a mixture are scores already.
MAZE: Mapping[str, Any] = {
    "steps": 60_000,
    "seconds": (84, 84),
    "scores": (0.0, 1.0),
    "each_steps": 60_000,
    "wide": False,
}
PIXELS: Mapping[str, Any] = {
    "steps": 60_000,
    "settings": {"environment.slots": 16, "loss.batch_unrolls": 32},
    "seconds": (46, 46),
    "each_steps": 50_000,
    "recipe": "minatar",
    "wide": False,
}


def suite_of(name: str) -> ExperimentSuite:
    """A suite by name."""
    if name not in SUITES:
        raise ConfigError(f"there is no suite {name!r} of experiments; there are {', '.join(SUITES)}")
    return SUITES[name]()


@functools.cache
def small() -> ExperimentSuite:
    """Seconds are those of one run on one core of two (Zen 4) while the other one was busy too."""
    sea = {"loss.entropy_cost": 0.02}
    return ExperimentSuite(
        "small",
        (
            _conflict(),
            _small("deepsea-10", "laser/DeepSea-10", 40_000, sea, seconds=(22, 14)),
            _small("deepsea-12", "laser/DeepSea-12", 60_000, sea, seconds=(34, 21)),
            _small("deepsea-14", "laser/DeepSea-14", 80_000, sea, seconds=(45, 28)),
            _small("catch", "laser/Catch", 20_000, seconds=(10, 7)),
            _small("keydoor", "laser/KeyDoor-8", 60_000, seconds=(35, 21)),
            _small("cartpole", "CartPole-v1", 20_000, CARTPOLE, seconds=(14, 8), scores=(22.5, 500.0)),
            # MinAtar has no best score; 1 is what we have seen agents of this size reach in a few million steps, or a round number.
            _small("breakout", "MinAtar/Breakout-v1", scores=(0.36, 15.0), **PIXELS),
            _small("asterix", "MinAtar/Asterix-v1", scores=(0.42, 15.0), **PIXELS),
            _small("space-invaders", "MinAtar/SpaceInvaders-v1", scores=(4.0, 50.0), **PIXELS),
            # Only the right turn is announced: to a memory that starts from nothing every episode looks like a left one.
            _small("tmaze", MAZES, settings={**MEMORY, "environment.options": {"one_cue": True}}, **MAZE),
            _small("tmaze-both", MAZES, settings=MEMORY, **MAZE),
        ),
    )


def _small(
    name: str,
    environment: str,
    steps: int,
    settings: Mapping[str, Any] | None = None,
    *,
    seconds: tuple[float, float],
    scores: tuple[float, float] | None = None,
    each_steps: int = EACH_STEPS,
    recipe: str = "cartpole",
    wide: bool = True,
) -> ExperimentTask:
    base = override(recipes.by_name(recipe, environment), {**AGENT, **(settings or {}), "run.steps": steps})
    rate, cost = base.optimiser.learning_rate, base.loss.entropy_cost
    rates = tuple({"learning_rate": rate * factor} for factor in FACTORS)
    # The paper's grid of nine where networks are small enough to be computed side by side.
    members = tuple({**one, "entropy_cost": cost * factor} for one in rates for factor in FACTORS) if wide else rates
    sweep = SweepConfig(
        base=override(base, {"replay.capacity_steps": each_steps * len(members)}), members=members, stack="auto"
    )
    counts = base.loss.batch_unrolls
    if scores is None:
        native = task_of(environment, {})
        scores = native.random_return, native.optimal_return
    return ExperimentTask(
        name=name,
        sweep=sweep,
        few=SweepConfig(base=override(base, {"replay.capacity_steps": each_steps}), members=rates),
        bucket_steps=steps // BUCKETS,
        each_steps=each_steps,
        online_unrolls=counts * ONLINE // (ONLINE + REPLAYED),
        pbt=PbtConfig(burn_in_steps=steps // 10, every_episodes=150, margin=0.05),
        random=scores[0],
        best=scores[1],
        seconds=seconds[0],
        few_seconds=seconds[1],
    )


def _conflict() -> ExperimentTask:
    """Six members prefer what is paid at once, three what is paid at the end; nothing else differs. Their optima are 1.3 and 2.5."""
    settings = {"environment.options": CONVENTION}
    task = _small("convention", "laser/Convention", 30_000, settings, seconds=(18, 11), scores=(2.8 / 3, 1.7))
    members = tuple({"discount": discount} for discount in (0.8,) * 6 + (0.99,) * 3)
    return replace(task, sweep=task.sweep.model_copy(update={"members": members}))


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
