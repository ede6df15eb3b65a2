"""Conversion of Gymnasium's spaces and of their values: specs, observations and actions.

A picture is stored as [C, H, W], uint8 or float32; everything else as a flat float32 vector, by Gymnasium's own rules of flattening. Bytes
inside a Dict or Tuple are divided by their upper bound, so that they are of the same magnitude as the other parts. A Dict or Tuple with a
picture in it is stored as one vector of bytes, those of its pictures and then those of all else as a float32 vector (`Joined`).
"""

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs import masks
from laser_rl.envs.instructions import WORDS, PictureWithInstruction
from laser_rl.envs.records import (
    ActionSpec,
    Array,
    BoxActions,
    DiscreteActions,
    EnvironmentSpec,
    MultiDiscreteActions,
    ObservationSpec,
    Part,
)
from laser_rl.errors import ConfigError, EnvironmentRefused

Space = spaces.Space[Any]
Convert = Callable[..., Any]
# From an observation to its stored form, and from an agent's action to the environment's.
Borders = tuple[Convert, Convert]
PICTURE_DIMENSIONS = 3
SMALLEST_SIDE = 3  # of a picture inside a Dict; what is smaller is flattened
SIZED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def leaves_of(space: Space, name: str, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Space]]:
    """All parts that are no Dict or Tuple with the keys to them, in Gymnasium's order; refuses those without a fixed size."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for label, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from leaves_of(part, name, (*path, label))
    elif isinstance(space, SIZED):
        yield path, space
    else:
        raise EnvironmentRefused(
            f"{name}: expected observations of a fixed size, got {type(space).__name__} at {named('observation_space', path)}; "
            "drop it or encode it as a Box in a wrapper (gymnasium.ObservationWrapper)"
        )


def named(whole: str, path: tuple[Any, ...]) -> str:
    """For messages: `observation['eye'][0]`."""
    return whole + "".join(f"[{label!r}]" for label in path)


def observation_border(space: Space, name: str, action: ActionSpec | None = None) -> tuple[ObservationSpec, Convert]:
    """How observations of `space` are stored; `action` says how many numbers a mask in it has to have."""
    if isinstance(space, PictureWithInstruction):
        # Its channels are first, whatever its width.
        return ObservationSpec(space.shape, "uint8", _scale(space), WORDS), _as_it_is
    # What each number is multiplied by when a space is flattened: bytes are brought to at most 1, all else stays.
    parts = [np.full(spaces.flatdim(leaf), leaf_scale(leaf), np.float32) for _, leaf in leaves_of(space, name)]
    scales = np.concatenate([np.empty(0, np.float32), *parts])
    _refuse_empty(scales.size, space, name, "observation_space")
    if isinstance(space, spaces.Box):
        return _box_observation(space)
    if masks.in_space(space) or any(_is_picture(leaf) for _, leaf in leaves_of(space, name)):
        joined = Joined(space, name, action)
        return joined.spec, joined
    if (scales == 1).all():
        return ObservationSpec(scales.shape), lambda value: spaces.flatten(space, value)
    return ObservationSpec(scales.shape), lambda value: cast("NDArray[Any]", spaces.flatten(space, value)) * scales


def leaf_scale(space: Space) -> float:
    return _scale(space) if isinstance(space, spaces.Box) and space.dtype == np.uint8 else 1.0


def _scale(space: spaces.Box) -> float:
    high = 1.0 if space.dtype == np.dtype(bool) else float(space.high.max(initial=0))
    return 1.0 / high if high > 0 else 1.0


def _box_observation(space: spaces.Box) -> tuple[ObservationSpec, Convert]:
    shape, floats = tuple(space.shape), np.issubdtype(space.dtype, np.floating)
    dtype, scale = ("float32", 1.0) if floats else ("uint8", _scale(space))
    if len(shape) == PICTURE_DIMENSIONS - 1 and space.dtype == np.uint8:
        return ObservationSpec((1, *shape), dtype, scale), lambda value: value[np.newaxis]
    if len(shape) != PICTURE_DIMENSIONS or not (floats or space.dtype in {np.dtype(np.uint8), np.dtype(bool)}):
        spec = ObservationSpec((math.prod(shape),), "float32", leaf_scale(space))
        return spec, _as_it_is if len(shape) == 1 else np.ravel
    # The smaller of the outer dimensions is the colours; in doubt the last, as in Gymnasium's own.
    if shape[0] < shape[-1]:
        return ObservationSpec(shape, dtype, scale), _as_it_is
    channels_first = (shape[2], shape[0], shape[1])
    return ObservationSpec(channels_first, dtype, scale), lambda value: value.transpose(2, 0, 1)


def _is_picture(leaf: Space) -> bool:
    if not isinstance(leaf, spaces.Box):
        return False
    seen = _box_observation(leaf)[0]
    return seen.is_image and min(seen.shape[1:]) >= SMALLEST_SIDE


class Joined:
    """Conversion of a Dict or Tuple with pictures, or with a mask of actions, into one array; bytes if there is a picture."""

    def __init__(self, space: Space, name: str, action: ActionSpec | None) -> None:
        masked, leaves = masks.in_space(space), list(leaves_of(space, name))
        if masked:
            size = sum(math.prod(leaf.shape or ()) for path, leaf in leaves if path[0] == masks.KEY)
            leaves = [(path, leaf) for path, leaf in leaves if path[0] != masks.KEY]
            self._choices = (size,) if action is None else masks.choices_of(action)
            _refuse_mask(size, sum(self._choices), bool(leaves), name)
        pictures = [(path, *_box_observation(cast("spaces.Box", leaf))) for path, leaf in leaves if _is_picture(leaf)]
        rest = [(path, leaf) for path, leaf in leaves if not _is_picture(leaf)]
        # What each leaf becomes: flat arrays, one behind the other.
        self._leaves = [(path, functools.partial(_pixels, seen, sees)) for path, seen, sees in pictures]
        self._leaves += [(path, functools.partial(_numbers, leaf, leaf_scale(leaf))) for path, leaf in rest]
        self._masked, mask = masked, sum(self._choices) if masked else 0
        numbers, parts = sum(spaces.flatdim(leaf) for _, leaf in rest), list[Part]()
        for path, seen, _ in pictures:
            parts.append(Part(_unused("/".join(map(str, path)), parts), seen.shape, seen.dtype, seen.scale))
        if pictures and numbers:
            parts.append(Part(_unused("rest", parts), (numbers,)))
        size, dtype = (sum(part.nbytes for part in parts), "uint8") if pictures else (numbers, "float32")
        self.spec = ObservationSpec((size + mask,), dtype, parts=tuple(parts), mask=mask)

    def __call__(self, value: Any, *, last: bool = False) -> Array:
        """One array of an observation; `last` if it is its episode's last, see `masks.read_mask`."""
        found = [convert(functools.reduce(operator.getitem, path, value)) for path, convert in self._leaves]
        if self._masked:
            mask = masks.read_mask(value.get(masks.KEY), self._choices, last=last)
            found.append(mask if self.spec.parts else mask.astype(np.float32))
        return np.concatenate([one.view(np.uint8) for one in found] if self.spec.parts else found)


def _pixels(seen: ObservationSpec, sees: Convert, value: Any) -> Array:
    picture = sees(value)
    if picture.shape != seen.shape:
        raise ValueError(f"expected a picture of {seen.shape}, got {picture.shape}")
    return np.ascontiguousarray(picture.astype(seen.dtype, casting="same_kind")).reshape(-1)


def _numbers(leaf: Space, scale: float, value: Any) -> Array:
    flat = cast("NDArray[Any]", spaces.flatten(leaf, value))
    return (flat if scale == 1 else flat * scale).astype(np.float32)


def _unused(key: str, parts: list[Part]) -> str:
    """A key that no part has yet: labels with strokes in them look like paths."""
    while key in {part.key for part in parts}:
        key += "_"
    return key


def _refuse_mask(size: int, wanted: int, others: bool, name: str) -> None:
    if not wanted:
        raise EnvironmentRefused(
            f"{name}: expected an action_mask only with Discrete, MultiDiscrete or MultiBinary actions, got one with a Box; "
            "give the key another name, or drop it in a wrapper"
        )
    if size != wanted:
        raise EnvironmentRefused(
            f"{name}: expected observation_space['action_mask'] to hold {wanted} numbers, one for each action of each choice, "
            f"got {size}; use spaces.MultiBinary({wanted})"
        )
    if not others:
        raise EnvironmentRefused(
            f"{name}: expected something to see beside the action_mask, got a Dict without another key; add one"
        )


def action_border(space: Space, name: str) -> tuple[ActionSpec, Convert]:
    """How actions of `space` are chosen, stored and handed over."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)  # Python's own int: every space takes it, and Gymnasium checks it fastest
        convert: Convert = int if start == 0 else lambda value: int(value) + start
        return DiscreteActions(int(space.n), start), convert
    if isinstance(space, spaces.MultiDiscrete):
        first = space.start
        _refuse_empty(first.size, space, name, "action_space")
        starts = tuple(first.ravel().tolist()) if first.any() else ()
        several = MultiDiscreteActions(tuple(space.nvec.ravel().tolist()), starts)
        return several, lambda value: (value.reshape(first.shape) + first).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        shape = space.shape
        several = MultiDiscreteActions((2,) * math.prod(shape))
        return several, lambda value: value.reshape(shape).astype(space.dtype)
    if isinstance(space, spaces.Box):
        return _box_actions(space, name)
    raise EnvironmentRefused(
        f"{name}: expected an action_space of Discrete, MultiDiscrete, MultiBinary or Box, got {space}; "
        "flatten it in a wrapper (gymnasium.ActionWrapper)"
    )


def _box_actions(space: spaces.Box, name: str) -> tuple[ActionSpec, Convert]:
    if not np.issubdtype(space.dtype, np.floating):
        raise EnvironmentRefused(
            f"{name}: expected a Box action_space of floats, got dtype {space.dtype}; use MultiDiscrete for whole numbers"
        )
    _refuse_empty(space.low.size, space, name, "action_space")
    low, high = space.low.ravel(), space.high.ravel()
    odd = np.isfinite(low) != np.isfinite(high)
    if odd.any():
        at = int(np.argmax(odd))
        raise EnvironmentRefused(
            f"{name}: expected two finite bounds or none in each dimension of the action_space, "
            f"got low={low[at]}, high={high[at]} in dimension {at}; rescale it with gymnasium.wrappers.RescaleAction or set both bounds"
        )

    def convert(value: NDArray[np.float32]) -> Array:
        # Rounding to float32 must not carry a legal action over a float64 bound.
        return np.clip(value.reshape(space.shape).astype(space.dtype), space.low, space.high)

    return BoxActions(tuple(low.astype(float).tolist()), tuple(high.astype(float).tolist())), convert


def _as_it_is(value: Any) -> Any:
    return value


def _refuse_empty(count: int, space: Space, name: str, key: str) -> None:
    if not count:
        raise EnvironmentRefused(
            f"{name}: expected an {key} of at least one number, got {space}; give the Box or MultiDiscrete a shape without 0"
        )


def spec_of(observation: Space, action: Space, name: str) -> tuple[EnvironmentSpec, Borders]:
    """An environment's spec, which has both spaces as JSON, and its conversions."""
    chosen, acts = action_border(action, name)
    seen, sees = observation_border(observation, name, chosen)
    kept = {"observation": _describe(observation), "action": _describe(action)}
    return EnvironmentSpec(name, seen, chosen, spaces=kept), (sees, acts)


def borders_of(spec: EnvironmentSpec) -> Borders:
    """The conversions of a spec. Specs of our own tasks and of Atari hold no spaces: their values stay as they are."""
    kept = spec.spaces or {}
    sees, acts = kept.get("observation"), kept.get("action")
    as_it_is: Convert = int if isinstance(spec.action, DiscreteActions) else np.asarray
    return (
        np.asarray if sees is None else observation_border(_space(sees), spec.name, spec.action)[1],
        as_it_is if acts is None else action_border(_space(acts), spec.name)[1],
    )


def unbatching(spec: EnvironmentSpec) -> Callable[[Any], list[Any] | None]:
    """A function from a batch, arrays [n, ...] as vector environments return them, to its n observations; None for anything else.

    The space's shape decides: one dimension more, in all parts of a Dict or Tuple, is a batch.
    """
    kept = (spec.spaces or {}).get("observation")
    space = spaces.Box(-np.inf, np.inf, spec.observation.shape) if kept is None else _space(kept)
    shapes = [(path, leaf.shape or ()) for path, leaf in leaves_of(space, spec.name)]

    def split(observation: Any) -> list[Any] | None:
        sizes = set[int | None]()
        try:
            for path, shape in shapes:
                found = np.shape(functools.reduce(operator.getitem, path, observation))
                sizes.add(found[0] if len(found) == len(shape) + 1 and found[1:] == shape else None)
        except (LookupError, TypeError, ValueError):  # refused with what a single one should be
            return None
        size, *others = sizes
        return None if others or size is None else [_item(space, observation, number) for number in range(size)]

    return split


def _item(space: Space, value: Any, number: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {label: _item(part, value[label], number) for label, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_item(part, value[label], number) for label, part in enumerate(space.spaces))
    return np.asarray(value)[number]


_MOST_BOUNDS = 1024  # of larger spaces the smallest and the largest are kept, which is all that a picture's scale needs
_MOST_NUMBERS = 1 << 26  # of an observation; a file that asks for more is refused before anything is allocated
# What a kind of space is made of: its constructor's arguments are its attributes.
_ARGUMENTS: dict[type[Space], tuple[str, ...]] = {
    PictureWithInstruction: ("channels", "height", "width"),  # before Box, its base class
    spaces.Box: ("low", "high", "shape", "dtype"),
    spaces.Discrete: ("n", "start"),
    spaces.MultiDiscrete: ("nvec", "dtype", "start"),
    spaces.MultiBinary: ("n",),
    spaces.Dict: ("spaces",),
    spaces.Tuple: ("spaces",),
}
_KINDS = {kind.__name__: kind for kind in _ARGUMENTS}


def _describe(space: Space) -> Mapping[str, Any]:
    kind = next(kind for kind in _ARGUMENTS if isinstance(space, kind))
    return {"kind": kind.__name__, **{name: _plain(name, getattr(space, name)) for name in _ARGUMENTS[kind]}}


def _plain(name: str, value: Any) -> Any:
    if name == "spaces":
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [[label, _describe(part)] for label, part in parts]
    if name == "dtype":
        return str(value)
    values = np.asarray(value)
    if name not in {"low", "high"} or (values.size <= _MOST_BOUNDS and np.unique(values).size != 1):
        return values.tolist()
    return (values.min() if name == "low" else values.max()).item()


def _space(about: Mapping[str, Any]) -> Space:
    """The inverse of `_describe`; ConfigError for what it cannot have written."""
    try:
        kind = _KINDS[about["kind"]]
        found = {name: about[name] for name in _ARGUMENTS[kind]}
        if kind is spaces.Dict:
            return spaces.Dict([(str(label), _space(part)) for label, part in found["spaces"]])
        if kind is spaces.Tuple:
            return spaces.Tuple([_space(part) for _, part in found["spaces"]])
        if kind is spaces.Box:
            return _box(**found)
        if "dtype" in found:
            found["dtype"] = np.dtype(found["dtype"]).type
        return kind(**found)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise ConfigError(
            f"the stored spaces cannot be used ({type(error).__name__}: {error}); pass the environment: env="
        ) from None


def _box(low: Any, high: Any, shape: Any, dtype: str) -> spaces.Box:
    shape, kind = tuple(int(size) for size in shape), np.dtype(dtype)
    if kind.kind not in "biuf" or min(shape, default=1) < 0 or np.prod(shape, dtype=float) > _MOST_NUMBERS:
        raise ValueError(f"an observation of {kind} with shape {shape}")
    low, high = (np.broadcast_to(np.asarray(end).astype(kind), shape).copy() for end in (low, high))
    return spaces.Box(low, high, shape, kind.type)
