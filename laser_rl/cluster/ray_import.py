"""Ray itself, which need not be installed: imported when it is first used, and asked to send nothing home."""

import functools
import importlib.util
import os
from typing import Any

from laser_rl.errors import MissingExtra


@functools.cache
def ray() -> Any:
    """The module `ray`; `MissingExtra` says what to install."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray as library  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("a cluster", "cluster") from error
    return library


def require_ray() -> None:
    """Refuse before anything is trained, if Ray is not there; it is not loaded for that."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("--cluster", "cluster")


def placed(node: str) -> Any:
    """For the options of an actor: on this node and on no other."""
    ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    return NodeAffinitySchedulingStrategy(node, soft=False)
