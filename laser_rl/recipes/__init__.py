"""Recipes: functions that return a complete configuration, of one agent or of a sweep, every number with its source.

Sources: [L] the LASER paper (Schmitt et al. 2019), [I] the IMPALA paper (Espeholt et al. 2018), whose values LASER inherits,
[D] our decision where both are silent (docs/differences-from-the-paper.md), [T] tuned by us on the task named (docs/results/README.md).
"""

from collections.abc import Callable

from laser_rl.config import Config, override
from laser_rl.envs.make import is_atari, is_box2d
from laser_rl.envs.records import BoxActions, EnvironmentSpec
from laser_rl.errors import ConfigError, suggestion
from laser_rl.recipes.agents import (
    atari,
    box2d,
    cartpole,
    continuous,
    impala,
    is_dmlab,
    laser_multitask,
    minatar,
    mujoco,
    pendulum,
    pictures,
    popart_impala,
    popart_impala_pixelcontrol,
    shared,
)
from laser_rl.training.pbt import PbtConfig, paper
from laser_rl.training.settings import LogUniform, SweepConfig

__all__ = [
    "RECIPES", "SWEEPS", "atari", "atari_shared", "box2d", "by_name", "cartpole", "continuous", "demo", "dmlab_pbt", "for_environment",
    "impala", "laser_multitask", "minatar", "mujoco", "pendulum", "pictures", "popart_impala", "popart_impala_pixelcontrol", "small_pbt",
    "sweep_by_name",
]  # fmt: skip


def demo(environment: str = "laser/DeepSea-10") -> SweepConfig:
    """Three members that share a replay, in seconds: once one has found the treasure of DeepSea, all learn from it."""
    settings = {
        "recipe": "demo",
        "environment.slots": shared(environment, 8),  # [D]
        "replay.fraction": 0.875,  # [L]
        "loss.batch_unrolls": 8,  # [T] DeepSea-10: 1 online + 7 replayed
        "loss.trust_bound": 0.1,  # [T] DeepSea-10, as entropy and reward scale
        "loss.entropy_cost": 0.01,
        "loss.reward_scale": 1.0,
        "optimiser.schedule": "constant",  # [L] constant in sweeps
        # [T] DeepSea-10, on seeds 100 to 119: all three solve it on each. After 20,000 steps the slowest often has not.
        "run.steps": 30_000,
        "run.log_every_updates": 20,
    }
    rates = (5e-4, 1e-3, 2e-3)  # [T] DeepSea-10
    return SweepConfig(base=override(cartpole(environment), settings), grid={"learning_rate": rates})


def atari_shared(environment: str = "ALE/Breakout-v5") -> SweepConfig:
    """The paper's sweep on Atari: nine members, one replay; all else as `atari`."""
    settings = {
        "recipe": "atari-shared",
        "environment.slots": 64,  # [D] of each of nine members
        "replay.fraction": 0.96,  # [L] 5 online and 123 replayed unrolls
        "replay.capacity_steps": 10_000_000,  # the capacity of the paper's other shared replays, [D] for Atari
        "optimiser.schedule": "constant",  # [L] constant in sweeps
    }
    # [L] factors of 1/2, 1 and 2 around IMPALA's values.
    grid = {"learning_rate": (3e-4, 6e-4, 1.2e-3), "entropy_cost": (5e-3, 1e-2, 2e-2)}
    return SweepConfig(base=override(atari(environment), settings), grid=grid)


def dmlab_pbt(environment: str = "suite:dmlab-30") -> SweepConfig:
    """The paper's sweep with population based training on DMLab-30; of any other mixture, if one is named."""
    base = override(laser_multitask(environment), {"recipe": "dmlab-pbt"})
    if is_dmlab(environment):
        rates, costs = LogUniform(low=5e-6, high=5e-3), LogUniform(low=5e-5, high=1e-2)  # [I] appendix D
    else:
        rates, costs = LogUniform(low=3e-4, high=3e-3), LogUniform(low=1e-3, high=3e-2)  # [D] around the recipe's own
    return SweepConfig(
        base=base,
        random={"learning_rate": rates, "entropy_cost": costs},
        draws=10,  # [L]
        pbt=paper() if is_dmlab(environment) else small_pbt(base.run.steps),  # [I] appendix F
    )


def small_pbt(steps: int) -> PbtConfig:
    """Population based training for runs of minutes: what it means where a recipe has none of its own. [D], not tuned.

    Args:
        steps: of each member.
    """
    # The size of a return is not known here, so any difference counts: a margin in a file is better.
    return PbtConfig(burn_in_steps=steps // 10, every_episodes=50, margin=0.0)


_AGENTS = (
    cartpole, minatar, pictures, continuous, pendulum, box2d, mujoco, impala, atari, popart_impala, popart_impala_pixelcontrol,
    laser_multitask,
)  # fmt: skip
RECIPES: dict[str, Callable[..., Config]] = {agent.__name__.replace("_", "-"): agent for agent in _AGENTS}
SWEEPS: dict[str, Callable[..., SweepConfig]] = {"demo": demo, "atari-shared": atari_shared, "dmlab-pbt": dmlab_pbt}


def by_name(name: str, environment: str | None = None) -> Config:
    """A recipe, for another environment than its own if one is given.

    >>> by_name("minatar", "MinAtar/Freeway-v1").environment.id
    'MinAtar/Freeway-v1'
    """
    if name in SWEEPS:
        raise ConfigError(f"recipe {name!r} is for several agents: use it with laser sweep, or choose another")
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; {suggestion(name, [*RECIPES, *SWEEPS])}")
    return RECIPES[name](*([] if environment is None else [environment]))


def sweep_by_name(name: str, environment: str | None = None) -> SweepConfig:
    """A recipe for a sweep, for another environment than its own if one is given."""
    if name not in SWEEPS:
        raise ConfigError(f"there is no recipe for sweeps {name!r}; there are {', '.join(SWEEPS)}")
    return SWEEPS[name](*([] if environment is None else [environment]))


def for_environment(spec: EnvironmentSpec, environment: str) -> Config:
    """The recipe that fits what an environment looks like."""
    shapes = spec.observation.pictures
    if isinstance(spec.action, BoxActions):
        raw = {"network.normalise_observation": False} if shapes else {}  # the normaliser is for vectors
        return override(continuous(environment, len(spec.action.low)), raw)
    if not shapes:
        return box2d(environment) if is_box2d(environment) else cartpole(environment)
    small = max(max(shape[1:]) for shape in shapes) <= 32  # noqa: PLR2004 - as networks.build chooses
    if spec.tasks or is_dmlab(environment):
        chosen = laser_multitask(environment)
    elif is_atari(environment):
        return atari(environment)
    else:
        chosen = minatar(environment) if small else pictures(environment)
    # Neither is for observations of several parts.
    alone = {"environment.frame_stack": 1, "loss.pixel_control_cost": 0.0}
    return override(chosen, alone) if spec.observation.parts else chosen
