"""Spaces as JSON, so that a saved agent knows what it sees and does without its environment."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from laser_rl.envs.instructions import PictureWithInstruction
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.errors import ConfigError

Described = dict[str, Any]
_MOST_BOUNDS = (
    1024  # numbers; of larger spaces the smallest and the largest are kept, which is all that a picture's scale needs
)
_MOST_NUMBERS = 1 << 26  # of an observation; a file that asks for more is refused before anything is allocated


class Borders(NamedTuple):
    """From an observation to how it is stored, and from one row of an agent's actions to the environment's action."""

    sees: Callable[[Any], Any]
    acts: Callable[[Any], Any]


def described(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Described:
    """Both spaces of an environment, as JSON.

    >>> described(spaces.Box(0, 1, (4,)), spaces.Discrete(3, start=-1))["action"]
    {'kind': 'Discrete', 'n': 3, 'start': -1}
    """
    return {"observation": _describe(observation), "action": _describe(action)}


def borders_of(spec: EnvironmentSpec) -> Borders:
    """The conversions of a spec; our own tasks and Atari, which have no spaces, are seen and acted in as they are.

    >>> borders_of(EnvironmentSpec("laser/Catch", None, DiscreteActions(3))).acts(np.int64(2))
    2
    """
    kept = spec.spaces or {}
    sees, acts = kept.get("observation"), kept.get("action")
    as_it_is: Callable[[Any], Any] = int if isinstance(spec.action, DiscreteActions) else np.asarray
    return Borders(
        np.asarray if sees is None else observation_border(_space(sees), spec.name).convert,
        as_it_is if acts is None else action_border(_space(acts), spec.name).convert,
    )


def _describe(space: spaces.Space[Any]) -> Described | None:
    """None for what no file can hold; an agent in such a space was refused before."""
    for kind, tell in _TOLD:
        if isinstance(space, kind):
            return {"kind": kind.__name__, **tell(space)}
    return None


def _picture(space: PictureWithInstruction) -> Described:
    channels, height, width = space.shape
    return {"channels": channels, "height": height - 1, "width": width, "words": space.words}


def _flat(space: spaces.Box) -> Described:
    bounds = {"low": _bound(space.low, np.min), "high": _bound(space.high, np.max)}
    return {"shape": list(space.shape), "dtype": str(space.dtype), **bounds}


_TOLD: list[tuple[type[spaces.Space[Any]], Callable[[Any], Described]]] = [
    (PictureWithInstruction, _picture),  # a Box, too
    (spaces.Box, _flat),
    (spaces.Discrete, lambda space: {"n": int(space.n), "start": int(space.start)}),
    (
        spaces.MultiDiscrete,
        lambda space: {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)},
    ),
    (spaces.MultiBinary, lambda space: {"shape": list(space.shape)}),
    (spaces.Dict, lambda space: {"parts": [[name, _describe(part)] for name, part in space.spaces.items()]}),
    (spaces.Tuple, lambda space: {"parts": [_describe(part) for part in space.spaces]}),
]


def _bound(values: Any, widest: Callable[[Any], Any]) -> Any:
    values = np.asarray(values)
    if values.size and (values.size > _MOST_BOUNDS or (values == values.flat[0]).all()):
        return widest(values).item()
    return values.tolist()


def _space(about: Mapping[str, Any]) -> spaces.Space[Any]:
    """The inverse of `_describe`; ConfigError for what it cannot have written."""
    try:
        return _KINDS[about["kind"]](about)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise ConfigError(
            f"the stored spaces cannot be used ({type(error).__name__}: {error}); pass the environment: env="
        ) from None


def _box(about: Mapping[str, Any]) -> spaces.Space[Any]:
    shape, dtype = tuple(int(size) for size in about["shape"]), np.dtype(about["dtype"])
    if dtype.kind not in "biuf" or min(shape, default=1) < 0 or np.prod(shape, dtype=float) > _MOST_NUMBERS:
        raise ValueError(f"an observation of {dtype} with shape {shape}")
    low, high = (np.broadcast_to(np.asarray(about[end]).astype(dtype), shape) for end in ("low", "high"))
    return spaces.Box(low.copy(), high.copy(), shape, dtype.type)


_KINDS: dict[str, Callable[[Mapping[str, Any]], spaces.Space[Any]]] = {
    "PictureWithInstruction": lambda about: PictureWithInstruction(
        **{name: int(about[name]) for name in ("channels", "height", "width", "words")}
    ),
    "Box": _box,
    "Discrete": lambda about: spaces.Discrete(int(about["n"]), start=int(about["start"])),
    "MultiDiscrete": lambda about: spaces.MultiDiscrete(
        about["nvec"], dtype=np.dtype(about["dtype"]).type, start=about["start"]
    ),
    "MultiBinary": lambda about: spaces.MultiBinary([int(size) for size in about["shape"]]),
    "Dict": lambda about: spaces.Dict([(str(name), _space(part)) for name, part in about["parts"]]),
    "Tuple": lambda about: spaces.Tuple([_space(part) for part in about["parts"]]),
}
