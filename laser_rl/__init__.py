"""LASER: an off-policy actor-critic whose agents share one experience replay, under a trust region.

Importing this package is cheap; torch is imported when `LASER` or `Sweep` is first used.

>>> import laser_rl
>>> laser_rl.__version__.count(".")
2
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.api import LASER, Sweep

try:
    __version__ = version("laser-rl")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0.0.0+source"
__all__ = ["LASER", "Sweep", "__version__"]


def __getattr__(name: str) -> Any:
    if name in {"LASER", "Sweep"}:
        return getattr(importlib.import_module("laser_rl.api"), name)  # see the module's docstring
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
