"""LASER: an off-policy actor-critic whose agents share one experience replay, under a trust region.

Importing this package is cheap; torch is imported when `LASER` is first used.

>>> import laser_rl
>>> laser_rl.__version__.count(".")
2
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.api import LASER

__version__ = version("laser-rl")
__all__ = ["LASER", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LASER":
        from laser_rl.api import LASER  # noqa: PLC0415 - see the module's docstring

        return LASER
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
