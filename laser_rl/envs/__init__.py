"""Environments: Gymnasium's, Atari's and our own, each behind `Environments`; rows come in, actions go out. Never imports torch.

>>> from laser_rl.envs import make_environments
>>> make_environments("laser/Catch", slots=4, seed=1).reset().is_first.tolist()
[True, True, True, True]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.envs.atari import ATARI_57, AtariEnvironments, AtariSettings
    from laser_rl.envs.make import make_environments, make_renderable
    from laser_rl.envs.native import TaskEnv, TaskEnvironments
    from laser_rl.envs.pool import PoolEnvironments
    from laser_rl.envs.process import Limits
    from laser_rl.envs.records import (
        ActionSpec,
        BoxActions,
        DiscreteActions,
        Environments,
        EnvironmentSpec,
        MultiDiscreteActions,
        ObservationSpec,
        Rows,
        seed_of,
    )
    from laser_rl.envs.serial import SerialEnvironments
    from laser_rl.envs.spaces import action_layout
    from laser_rl.envs.tasks import Catch, DeepSea, Task, TMaze
    from laser_rl.envs.vector import VectorAdapter

_HOMES = {
    "atari": ("ATARI_57", "AtariEnvironments", "AtariSettings"),
    "make": ("make_environments", "make_renderable"),
    "native": ("TaskEnv", "TaskEnvironments"),
    "pool": ("PoolEnvironments",),
    "process": ("Limits",),
    "records": (
        "ActionSpec",
        "BoxActions",
        "DiscreteActions",
        "EnvironmentSpec",
        "Environments",
        "MultiDiscreteActions",
        "ObservationSpec",
        "Rows",
        "seed_of",
    ),
    "serial": ("SerialEnvironments",),
    "spaces": ("action_layout",),
    "tasks": ("Catch", "DeepSea", "TMaze", "Task"),
    "vector": ("VectorAdapter",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ATARI_57",
    "ActionSpec",
    "AtariEnvironments",
    "AtariSettings",
    "BoxActions",
    "Catch",
    "DeepSea",
    "DiscreteActions",
    "EnvironmentSpec",
    "Environments",
    "Limits",
    "MultiDiscreteActions",
    "ObservationSpec",
    "PoolEnvironments",
    "Rows",
    "SerialEnvironments",
    "TMaze",
    "Task",
    "TaskEnv",
    "TaskEnvironments",
    "VectorAdapter",
    "action_layout",
    "make_environments",
    "make_renderable",
    "seed_of",
]


def __getattr__(name: str) -> Any:
    """Imported on first use: a worker process needs a part of this only."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
