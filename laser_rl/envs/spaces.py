"""From Gymnasium's spaces to what an agent is built from, and the conversions at the border.

A picture is stored as uint8 [C, H, W]; everything else as a flat float32 vector, by Gymnasium's own rules of flattening. Bytes inside a
Dict or Tuple are divided by their upper bound, so that a picture there has the size of its neighbours. A picture that carries an
instruction says so by its space (`envs.instructions`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.instructions import PictureWithInstruction
from laser_rl.envs.records import (
    ActionSpec,
    BoxActions,
    DiscreteActions,
    EnvironmentSpec,
    MultiDiscreteActions,
    ObservationSpec,
)
from laser_rl.errors import ConfigError, EnvironmentRefused

Array = NDArray[np.generic]
PICTURE_DIMENSIONS = 3
UNSIZED = (spaces.Text, spaces.Sequence, spaces.Graph, spaces.OneOf)


@dataclass(frozen=True)
class ObservationBorder:
    """How an observation is stored, and the function that brings it into that shape (a view where one is enough)."""

    spec: ObservationSpec
    convert: Callable[[Any], Array]


@dataclass(frozen=True)
class ActionBorder:
    """What an agent chooses from, and the function that makes the environment's action of one row of its actions."""

    spec: ActionSpec
    convert: Callable[[Any], Any]


class Leaf(NamedTuple):
    """A part of an observation that is no Dict or Tuple: its name, the way to it, and its places in the flat vector."""

    key: str
    path: tuple[Any, ...]
    space: spaces.Space[Any]
    places: slice


def leaves_of(
    space: spaces.Space[Any], key: str = "observation", path: tuple[Any, ...] = (), start: int = 0
) -> Iterator[Leaf]:
    """All leaves in the order in which Gymnasium flattens them; a space that is neither Dict nor Tuple is its own only leaf.

    >>> space = spaces.Dict(eye=spaces.Box(0, 255, (2, 2), np.uint8), arm=spaces.Box(-1, 1, (3,)))
    >>> [(leaf.key, leaf.places.start, leaf.places.stop) for leaf in leaves_of(space)]
    [("observation['eye']", 0, 4), ("observation['arm']", 4, 7)]
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield Leaf(key, path, space, slice(start, start + spaces.flatdim(space)))
        return
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for label, part in parts:
        yield from leaves_of(part, f"{key}[{label!r}]", (*path, label), start)
        start += spaces.flatdim(part)


def observation_border(space: spaces.Space[Any], name: str) -> ObservationBorder:
    """How observations of `space` are stored.

    >>> observation_border(spaces.Box(0, 255, (84, 84, 3), np.uint8), "Maze").spec
    ObservationSpec(shape=(3, 84, 84), dtype='uint8', scale=0.00392156862745098, words=0)
    >>> observation_border(spaces.Discrete(3), "Maze").convert(np.int64(1))
    array([0, 1, 0])
    """
    if isinstance(space, PictureWithInstruction):
        # Its channels are first, whatever its width.
        return ObservationBorder(ObservationSpec(space.shape, "uint8", _scale(space), space.words), _as_it_is)
    _refuse_unsized(space, name, "observation_space")
    _refuse_empty(spaces.flatdim(space), space, name, "observation_space")
    if isinstance(space, spaces.Box) and _is_picture(space):
        return _picture(space)
    flat = cast("spaces.Box", spaces.flatten_space(space))
    if isinstance(space, spaces.Box):
        spec = ObservationSpec(tuple(flat.shape), "float32", _scale(space) if space.dtype == np.uint8 else 1.0)
        return ObservationBorder(spec, _as_it_is if len(space.shape) == 1 else np.ravel)
    return ObservationBorder(ObservationSpec(tuple(flat.shape), "float32"), _flatten(space))


def _flatten(space: spaces.Space[Any]) -> Callable[[Any], Array]:
    scales = np.ones(spaces.flatdim(space), np.float32)
    for leaf in leaves_of(space):
        scales[leaf.places] = leaf_scale(leaf.space)
    if (scales == 1).all():
        return lambda value: cast("Array", spaces.flatten(space, value))
    return lambda value: cast("NDArray[Any]", spaces.flatten(space, value)) * scales


def leaf_scale(space: spaces.Space[Any]) -> float:
    """What a leaf is multiplied by when it is flattened with others."""
    return _scale(space) if isinstance(space, spaces.Box) and space.dtype == np.uint8 else 1.0


def action_border(space: spaces.Space[Any], name: str) -> ActionBorder:
    """How actions of `space` are chosen, stored and handed over.

    >>> action_border(spaces.Discrete(3, start=-1), "Maze").convert(np.int64(0))
    -1
    >>> action_border(spaces.MultiBinary(2), "Maze").spec
    MultiDiscreteActions(counts=(2, 2), starts=())
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)  # Python's own int: every space takes it, and Gymnasium checks it fastest
        convert = int if start == 0 else lambda value: int(value) + start
        return ActionBorder(DiscreteActions(int(space.n), start), convert)
    if isinstance(space, spaces.MultiDiscrete):
        first = space.start
        _refuse_empty(first.size, space, name, "action_space")
        spec = MultiDiscreteActions(
            tuple(space.nvec.ravel().tolist()), tuple(first.ravel().tolist() if first.any() else ())
        )
        return ActionBorder(spec, lambda value: (value.reshape(first.shape) + first).astype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        shape = space.shape
        spec = MultiDiscreteActions((2,) * math.prod(shape))
        return ActionBorder(spec, lambda value: value.reshape(shape).astype(space.dtype))
    if isinstance(space, spaces.Box):
        return _box_actions(space, name)
    raise EnvironmentRefused(
        f"{name}: expected an action_space of Discrete, MultiDiscrete, MultiBinary or Box, got {space}; "
        "flatten it in a wrapper (gymnasium.ActionWrapper)"
    )


def action_layout(spec: ActionSpec) -> tuple[tuple[int, ...], str]:
    """Shape and type of one slot's action, as agents send it.

    >>> action_layout(DiscreteActions(4)), action_layout(BoxActions((-1.0, -1.0), (1.0, 1.0)))
    (((), 'int64'), ((2,), 'float32'))
    """
    if isinstance(spec, DiscreteActions):
        return (), "int64"
    if isinstance(spec, MultiDiscreteActions):
        return (len(spec.counts),), "int64"
    return (len(spec.low),), "float32"


def _box_actions(space: spaces.Box, name: str) -> ActionBorder:
    if not np.issubdtype(space.dtype, np.floating):
        raise EnvironmentRefused(
            f"{name}: expected a Box action_space of floats, got dtype {space.dtype}; use MultiDiscrete for whole numbers"
        )
    _refuse_empty(space.low.size, space, name, "action_space")
    low, high = space.low.ravel(), space.high.ravel()
    bounded = np.isfinite(low)
    if (bounded != np.isfinite(high)).any():
        at = int(np.argmax(bounded != np.isfinite(high)))
        raise EnvironmentRefused(
            f"{name}: expected two finite bounds or none in each dimension of the action_space, "
            f"got low={low[at]}, high={high[at]} in dimension {at}; rescale it with gymnasium.wrappers.RescaleAction or set both bounds"
        )

    def convert(value: NDArray[np.float32]) -> Array:
        # Rounding to float32 must not carry a legal action over a float64 bound.
        return np.clip(value.reshape(space.shape).astype(space.dtype), space.low, space.high)

    spec = BoxActions(tuple(low.astype(float).tolist()), tuple(high.astype(float).tolist()))
    return ActionBorder(spec, convert)


def _is_picture(space: spaces.Box) -> bool:
    if len(space.shape) == PICTURE_DIMENSIONS:
        return space.dtype in {np.dtype(np.uint8), np.dtype(bool)} or np.issubdtype(space.dtype, np.floating)
    return len(space.shape) == PICTURE_DIMENSIONS - 1 and space.dtype == np.uint8


def _picture(space: spaces.Box) -> ObservationBorder:
    floats = np.issubdtype(space.dtype, np.floating)
    dtype, scale = ("float32", 1.0) if floats else ("uint8", _scale(space))
    shape = tuple(space.shape)
    if len(shape) == PICTURE_DIMENSIONS - 1:
        return ObservationBorder(ObservationSpec((1, *shape), dtype, scale), lambda value: value[np.newaxis])
    if (
        shape[0] < shape[-1]
    ):  # the smaller of the outer dimensions is the colours; in doubt the last, as in Gymnasium's own
        return ObservationBorder(ObservationSpec(shape, dtype, scale), _as_it_is)
    channels_first = (shape[2], shape[0], shape[1])
    return ObservationBorder(ObservationSpec(channels_first, dtype, scale), lambda value: value.transpose(2, 0, 1))


def _scale(space: spaces.Box) -> float:
    high = 1.0 if space.dtype == np.dtype(bool) else float(space.high.max(initial=0))
    return 1.0 / high if high > 0 else 1.0


def _as_it_is(value: Any) -> Any:
    return value


def _refuse_unsized(space: spaces.Space[Any], name: str, key: str) -> None:
    if isinstance(space, UNSIZED):
        raise EnvironmentRefused(
            f"{name}: expected observations of a fixed size, got {type(space).__name__} at {key}; "
            "drop it or encode it as a Box in a wrapper (gymnasium.ObservationWrapper)"
        )
    if isinstance(space, spaces.Dict):
        for label, part in space.spaces.items():
            _refuse_unsized(part, name, f"{key}[{label!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            _refuse_unsized(part, name, f"{key}[{index}]")
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise EnvironmentRefused(
            f"{name}: {key} is of an unknown kind, {type(space).__name__}; encode it as a Box in a wrapper"
        )


def _refuse_empty(count: int, space: spaces.Space[Any], name: str, key: str) -> None:
    if not count:
        raise EnvironmentRefused(
            f"{name}: expected an {key} of at least one number, got {space}; give the Box or MultiDiscrete a shape without 0"
        )


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


def _told_picture(space: PictureWithInstruction) -> Described:
    channels, height, width = space.shape
    return {"channels": channels, "height": height - 1, "width": width, "words": space.words}


def _told_box(space: spaces.Box) -> Described:
    bounds = {"low": _bound(space.low, np.min), "high": _bound(space.high, np.max)}
    return {"shape": list(space.shape), "dtype": str(space.dtype), **bounds}


_TOLD: list[tuple[type[spaces.Space[Any]], Callable[[Any], Described]]] = [
    (PictureWithInstruction, _told_picture),  # a Box, too
    (spaces.Box, _told_box),
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
