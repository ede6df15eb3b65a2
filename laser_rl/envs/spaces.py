"""From Gymnasium's spaces to what an agent is built from, and the conversions at the border.

A picture is stored as uint8 [C, H, W]; everything else as a flat float32 vector, by Gymnasium's own rules of flattening. A picture that
carries an instruction says so by its space (`envs.instructions`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.instructions import PictureWithInstruction
from laser_rl.envs.records import ActionSpec, BoxActions, DiscreteActions, MultiDiscreteActions, ObservationSpec
from laser_rl.errors import EnvironmentRefused

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
    if isinstance(space, spaces.Box) and _is_picture(space):
        return _picture(space)
    _refuse_unsized(space, name, "observation_space")
    flat = cast("spaces.Box", spaces.flatten_space(space))
    spec = ObservationSpec(tuple(flat.shape), "float32", _scale(flat) if flat.dtype == np.uint8 else 1.0)
    if not isinstance(space, spaces.Box):
        return ObservationBorder(spec, lambda value: cast("Array", spaces.flatten(space, value)))
    return ObservationBorder(spec, _as_it_is if len(space.shape) == 1 else np.ravel)


def action_border(space: spaces.Space[Any], name: str) -> ActionBorder:
    """How actions of `space` are chosen, stored and handed over.

    >>> action_border(spaces.Discrete(3, start=-1), "Maze").convert(np.int64(0))
    -1
    >>> action_border(spaces.MultiBinary(2), "Maze").spec
    MultiDiscreteActions(counts=(2, 2))
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)  # Python's own int: every space takes it, and Gymnasium checks it fastest
        convert = int if start == 0 else lambda value: int(value) + start
        return ActionBorder(DiscreteActions(int(space.n)), convert)
    if isinstance(space, spaces.MultiDiscrete):
        first = space.start
        counts = tuple(int(n) for n in space.nvec.ravel())
        return _choices(counts, lambda value: (value.reshape(first.shape) + first).astype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        shape = space.shape
        return _choices((2,) * int(np.prod(shape)), lambda value: value.reshape(shape).astype(space.dtype))
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


def _choices(counts: tuple[int, ...], convert: Callable[[Any], Any]) -> ActionBorder:
    return ActionBorder(MultiDiscreteActions(counts), convert)


def _box_actions(space: spaces.Box, name: str) -> ActionBorder:
    if not np.issubdtype(space.dtype, np.floating):
        raise EnvironmentRefused(
            f"{name}: expected a Box action_space of floats, got dtype {space.dtype}; use MultiDiscrete for whole numbers"
        )
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
