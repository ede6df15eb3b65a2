"""Finite observations outside their Box: they are used as they are, and the user is told once.

Gymnasium's own LunarLander leaves its Box when it is flown well. A bound that is too narrow harms nothing that learns from the value.
"""

import functools
import logging
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.spaces import Leaf, ObservationBorder, leaf_scale, leaves_of

LOGGER = logging.getLogger("laser_rl.envs")
FEW = 24  # most environments are that small, and then Python is quicker than calls into NumPy

Array = NDArray[Any]
Tell = Callable[[str, str], None]  # is handed a key and a sentence
_told: set[tuple[str, str]] = set()


def tell_once(name: str, key: str, sentence: str) -> None:
    """Log a warning about a part of an environment's observations, unless this process has done so before."""
    if (name, key) not in _told:
        _told.add((name, key))
        LOGGER.warning("%s", sentence)


class Bounds:
    """Compares stored observations with the bounds that their space declares, until every part has been told of.

    >>> from laser_rl.envs.spaces import observation_border
    >>> space = spaces.Box(-1, 1, (2,))
    >>> bounds = Bounds(space, observation_border(space, "Maze"), lambda key, sentence: print(sentence))
    >>> seen = np.array([0.5, 1.5], np.float32)
    >>> bounds.look(seen, seen, "Maze")
    Maze: observation[1] is 1.5, outside of [-1.0, 1.0] as observation_space declares it, and is used as it is; widen ...
    >>> bounds.watching
    False
    """

    def __init__(self, space: spaces.Space[Any], border: ObservationBorder, tell: Tell) -> None:
        self._tell = tell
        self._leaves = [leaf for leaf in leaves_of(space) if _can_leave(leaf.space)]
        spec = border.spec
        if isinstance(space, spaces.Box):  # pictures are turned, as their values are
            ends = [border.convert(bound).astype(spec.dtype).reshape(-1) for bound in (space.low, space.high)]
        else:
            ends = [np.full(spec.shape, bound, np.float32) for bound in (-np.inf, np.inf)]
            for leaf in self._leaves:
                scale = np.float32(
                    leaf_scale(leaf.space)
                )  # the arithmetic of the values, so that a bound is never outside
                for end, bound in zip(ends, (leaf.space.low, leaf.space.high), strict=True):  # type: ignore[attr-defined]
                    end[leaf.places] = bound.reshape(-1).astype(np.float32) * scale
        self._low, self._high = ends
        self._renew()

    def _renew(self) -> None:
        self.watching = bool(self._leaves)
        self._lows, self._highs = ((end.tolist() if end.size <= FEW else []) for end in (self._low, self._high))

    def look(self, flat: Array, observation: Any, where: str | Callable[[], str]) -> None:
        """At one observation: `flat` as it is stored, `observation` as the environment gave it."""
        if flat.size <= FEW:
            values = flat.tolist()
            if all(map(operator.le, self._lows, values)) and all(map(operator.le, values, self._highs)):
                return
        elif not ((flat < self._low) | (flat > self._high)).any():
            return
        for leaf in list(self._leaves):
            self._compare(leaf, functools.reduce(operator.getitem, leaf.path, observation), where)
        self._renew()

    def look_at_all(self, stored: Array, observations: list[Any], where: str) -> None:
        """At those of several slots."""
        flat = stored.reshape(len(stored), -1)
        outside = ((flat < self._low) | (flat > self._high)).any(1)
        for slot in np.flatnonzero(outside).tolist():
            self.look(flat[slot], observations[slot], where)

    def _compare(self, leaf: Leaf, value: Any, where: str | Callable[[], str]) -> None:
        low, high = leaf.space.low, leaf.space.high  # type: ignore[attr-defined]
        outside = (value < low) | (value > high)
        if not outside.any():
            return
        at = tuple(int(index[0]) for index in np.nonzero(outside))
        place = where if isinstance(where, str) else where()
        self._tell(
            leaf.key,
            f"{place}: {leaf.key}{list(at) if at else ''} is {value[at]}, outside of [{low[at]}, {high[at]}] as observation_space "
            "declares it, and is used as it is; widen observation_space or clip the value (this is said once)",
        )
        self._leaves.remove(leaf)
        if self._low.dtype.kind == "f":  # a picture of bytes is its own only leaf, and is no longer looked at
            self._low[leaf.places], self._high[leaf.places] = -np.inf, np.inf


def _can_leave(space: spaces.Space[Any]) -> bool:
    """Whether its type holds values that its bounds do not."""
    if not isinstance(space, spaces.Box) or space.dtype == np.dtype(bool):
        return False
    floats = np.issubdtype(space.dtype, np.floating)
    lowest, highest = (-np.inf, np.inf) if floats else (np.iinfo(space.dtype).min, np.iinfo(space.dtype).max)
    return bool((space.low > lowest).any() or (space.high < highest).any())
