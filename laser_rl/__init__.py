"""LASER: an off-policy actor-critic whose agents share one experience replay, under a trust region.

Importing this package is cheap; torch is imported when `LASER` or `Sweep` is first used.

>>> import laser_rl
>>> laser_rl.__version__.count(".")
2
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.api import LASER, Sweep

__version__ = version("laser-rl")
__all__ = ["LASER", "Sweep", "__version__"]


def __getattr__(name: str) -> Any:
    if name in {"LASER", "Sweep"}:
        return getattr(importlib.import_module("laser_rl.api"), name)  # see the module's docstring
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
