"""Environments: Gymnasium's, Atari's and our own, each behind `Environments`; rows come in, actions go out. Never imports torch.

>>> from laser_rl.envs import make_environments
>>> make_environments("laser/Catch", slots=4, seed=1).reset().is_first.tolist()
[True, True, True, True]
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.envs.make import make_environments, make_renderable

__all__ = ["make_environments", "make_renderable"]


def __getattr__(name: str) -> Any:
    """Imported on first use: a worker process needs a part of the package only."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from laser_rl.envs import make  # noqa: PLC0415

    return getattr(make, name)
