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
)
from laser_rl.recipes.sweeps import atari_shared, demo, dmlab_pbt, small_pbt
from laser_rl.training.settings import SweepConfig

__all__ = [
    "RECIPES", "SWEEPS", "atari", "atari_shared", "box2d", "by_name", "cartpole", "continuous", "demo", "dmlab_pbt", "for_environment",
    "impala", "laser_multitask", "minatar", "mujoco", "pendulum", "pictures", "popart_impala", "popart_impala_pixelcontrol", "small_pbt",
    "sweep_by_name",
]  # fmt: skip

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
