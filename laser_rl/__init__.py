"""LASER: an off-policy actor-critic whose agents share one experience replay, under a trust region.

Importing this package is cheap; torch is imported when one of its names is first used.

>>> import laser_rl
>>> laser_rl.__version__.count(".")
2
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.api import LASER, EvaluateEvery, SaveEvery, StopAtReturn, StopWithoutImprovement, Sweep

    __version__: str
__all__ = [
    "LASER", "EvaluateEvery", "SaveEvery", "StopAtReturn", "StopWithoutImprovement", "Sweep", "__version__", "load_from_hub",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in __all__:
        home = "laser_rl.tools.hub" if name == "load_from_hub" else "laser_rl.api"
        return getattr(importlib.import_module(home), name)  # see the module's docstring
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - half of the time of `laser --help`

    try:
        return version("laser-rl")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "0.0.0+source"
