"""The border: what an environment returns is compared with Gymnasium's contract and with its own spaces before anything is stored.

The first rows of each slot are looked at in full, the later ones cheaply: type, shape, finite. Finite values outside their Box are no
reason to end a run: they are stored, and a warning is logged once (`Bounds`).
"""

import functools
import logging
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.masks import ADVICE, CHOICES, KEY, BadMask
from laser_rl.envs.records import Array, ObservationSpec
from laser_rl.envs.spaces import leaves_of, named, spec_of
from laser_rl.errors import EnvironmentRefused

LOGGER = logging.getLogger("laser_rl.envs")
FEW = 24  # most environments are that small, and then Python is quicker than calls into NumPy
MOST_WARNINGS = 100  # about one environment
LARGEST = float(np.finfo(np.float32).max)  # rewards are stored as float32

Env = gymnasium.Env[Any, Any]
Warn = Callable[[str, str], None]  # is handed a key and a sentence
WARNED: dict[str, set[str]] = {}


def warn_once(name: str, key: str, sentence: str) -> None:
    """Log a warning about an environment, unless this process has logged one with that key before."""
    keys = WARNED.setdefault(name, set())
    if key not in keys and len(keys) < MOST_WARNINGS:
        keys.add(key)
        LOGGER.warning("%s", sentence)


class Bounds:
    """Compares observations with the bounds that their space declares, until one leaves them: then it warns, once."""

    def __init__(self, space: spaces.Space[Any], spec: ObservationSpec, warn: Warn) -> None:
        self._warn = warn
        boxes = [(path, leaf) for path, leaf in _looked_at(space, spec, "") if isinstance(leaf, spaces.Box)]
        self._boxes = [(path, box) for path, box in boxes if _narrow(box)]
        self.watching = bool(self._boxes)
        self._ends: tuple[list[float], ...] | None = None  # where numbers are stored as they come
        if isinstance(space, spaces.Box) and space.shape == spec.shape:
            ends = (end.astype(np.float32).clip(-LARGEST, LARGEST) for end in (space.low, space.high))
            self._ends = tuple(end.reshape(-1).tolist() for end in ends)

    def around(self, stored: list[float]) -> bool:
        """Whether a few stored numbers are finite and within, as far as they tell: False sends to `look`."""
        if self._ends is None:
            return False
        low, high = self._ends
        return all(map(operator.le, low, stored)) and all(map(operator.le, stored, high))

    def look(self, observations: Sequence[Any], where: Callable[[], str]) -> None:
        """At the observations of one or several slots, as the environment gave them."""
        for observation in observations:
            for path, box in self._boxes:
                value = np.asarray(functools.reduce(operator.getitem, path, observation)).reshape(box.shape)
                for at in np.argwhere((value < box.low) | (value > box.high)):
                    place, key, self.watching = tuple(at.tolist()), named("observation", path), False
                    return self._warn(
                        key,
                        f"{where()}: {key}{list(place) if place else ''} is {value[place]}, outside of "
                        f"[{box.low[place]}, {box.high[place]}] as observation_space declares it, and is used as it is; "
                        "widen observation_space or clip the value (this is said once)",
                    )
        return None


def _looked_at(
    space: spaces.Space[Any], spec: ObservationSpec, name: str
) -> list[tuple[tuple[Any, ...], spaces.Space[Any]]]:
    """The parts of a space, without the mask of actions, which has a check of its own."""
    return [(path, leaf) for path, leaf in leaves_of(space, name) if not spec.mask or path[0] != KEY]


def _narrow(box: spaces.Box) -> bool:
    """Whether a value of its type can be outside of it."""
    dtype: np.dtype[Any] = box.dtype
    if dtype == np.bool_:
        return False
    least, most = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(((box.low > least) | (box.high < most)).any())


FULL_ROWS = 100
PLAIN_REWARDS = frozenset({float, int, np.float64, np.float32})
PLAIN_FLAGS = frozenset({bool, np.bool_})
STEP_PARTS, RESET_PARTS = 5, 2
CORRECT = "correct observation_space or the value"


class BadValue(Exception):
    """Something that is not finite: the name of the part, and its value."""


class Border:
    """Where one environment's returns pass: checked, converted, stored."""

    def __init__(self, env: Env, name: str, slot: int, warn: Warn) -> None:
        self._name, self._slot = name, slot
        self._space, self._action_space = env.observation_space, env.action_space
        self.spec, (self._convert, self.to_action) = spec_of(self._space, self._action_space, name)
        seen = self.spec.observation
        self._is_box = isinstance(self._space, spaces.Box)
        self._masked, self._chooses = seen.mask > 0, isinstance(self._action_space, CHOICES)
        self._leaves = _looked_at(self._space, seen, name)
        self._shape, self._dtype = self._space.shape, self._space.dtype
        fits = {np.dtype(np.float32), np.dtype(np.uint8), np.dtype(bool)}
        self._may_overflow = not (self._is_box and self._dtype in fits)
        self._bounds = Bounds(self._space, seen, warn)
        self._full_left, self._episode, self._step = FULL_ROWS, -1, 0
        self.bind(np.zeros(seen.shape, seen.dtype))

    def bind(self, out: Array) -> None:
        seen, self._out, self._flat = self.spec.observation, out, out.reshape(-1)
        self._floats = [part for part in seen.numbers(self._flat).values() if part.dtype == np.float32]
        self._few = self._flat.size <= FEW and not seen.parts

    def starting(self, episode: int) -> None:
        self._episode, self._step = episode, 0

    def after_reset(self, result: Any) -> Mapping[str, Any]:
        if not isinstance(result, tuple) or len(result) != RESET_PARTS:
            advice = "return a tuple of two, as Gymnasium does since 0.26"
            self._refuse("(observation, info) from reset", _describe(result), advice)
        observation, info = result
        self._check_info(info)
        self._store(observation)
        return info  # type: ignore[no-any-return]

    def after_step(self, result: Any, env: Env) -> tuple[float, bool, bool, Mapping[str, Any]]:
        self._step += 1
        if not isinstance(result, tuple) or len(result) != STEP_PARTS:
            advice = (
                "return (observation, reward, terminated, truncated, info); a step of the old Gym, with four values, can be wrapped "
                "with shimmy.GymV21CompatibilityV0"
            )
            self._refuse("5 values from step", _describe(result), advice)
        observation, reward, terminated, truncated, info = result
        if type(reward) not in PLAIN_REWARDS and not isinstance(reward, Real):
            self._refuse("reward to be a real number", _describe(reward), "return float(reward)")
        if type(terminated) not in PLAIN_FLAGS or type(truncated) not in PLAIN_FLAGS:
            key, got = ("terminated", terminated) if type(terminated) not in PLAIN_FLAGS else ("truncated", truncated)
            self._refuse(f"{key} to be a bool", _describe(got), f"return bool({key})")
        self._check_info(info)
        if self._full_left > 0 and env.action_space != self._action_space:
            advice = "keep one space and ignore illegal actions"
            self._refuse(f"the action_space to stay {self._action_space}", str(env.action_space), advice)
        self._store(observation, last=bool(terminated or truncated))
        if not -LARGEST <= reward <= LARGEST:  # false for NaN too
            raise BadValue("reward", reward)
        return float(reward), bool(terminated), bool(truncated), info

    def _store(self, observation: Any, *, last: bool = False) -> None:
        if self._full_left > 0:
            self._full_left -= 1
            self._check_fully(observation)
        elif self._is_box and (
            type(observation) is not np.ndarray or observation.dtype != self._dtype or observation.shape != self._shape
        ):
            self._check_fully(observation)
        if self._may_overflow:
            self._convert_carefully(observation, last=last)
        else:
            self._out[...] = self._convert(observation)
        flat, watching = self._flat, self._bounds.watching
        if self._few:  # in Python: a call of NumPy takes longer
            values = flat.tolist()
            if watching and self._bounds.around(values):
                return
            if self._floats and not all(map(math.isfinite, values)):
                raise BadValue("observation", _first_bad(flat))
        else:
            for part in self._floats:
                if not np.isfinite(part).all():
                    raise BadValue("observation", _first_bad(part))
        if watching:
            self._bounds.look([observation], self.where)

    def _convert_carefully(self, observation: Any, *, last: bool) -> None:
        try:
            with np.errstate(over="ignore"):  # float64 beyond float32 becomes Inf, which is seen afterwards
                self._out[...] = self._convert(observation, last=last) if self._masked else self._convert(observation)
        except BadMask as bad:
            expected, got = bad.args
            self._refuse(expected, got, ADVICE)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            self._check_fully(observation)
            raise

    def _check_fully(self, observation: Any) -> None:
        for path, space in self._leaves:
            key = named("observation", path)
            try:
                value = functools.reduce(operator.getitem, path, observation)
            except (KeyError, IndexError, TypeError):
                self._refuse(f"{key} in the observation", _describe(observation), "return every part of the space")
            if isinstance(space, spaces.Box):
                self._check_box(space, value, key)
            elif not space.contains(value):
                self._refuse(f"{key} in {space}", f"{_describe(value)} = {value!r}", CORRECT)

    def _check_box(self, space: spaces.Box, value: Any, key: str) -> None:
        if not isinstance(value, np.ndarray):
            advice = f"return np.asarray(..., dtype=np.{space.dtype})"
            self._refuse(f"{key} to be a NumPy array", _describe(value), advice)
        if value.dtype != space.dtype:
            advice = f"return it with .astype(np.{space.dtype}) or correct the space"
            self._refuse(f"{key} of dtype {space.dtype}", str(value.dtype), advice)
        if value.shape != space.shape:
            self._refuse(f"{key} of shape {space.shape}", str(value.shape), CORRECT)
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            raise BadValue(key, _first_bad(value))

    def lives(self, info: Mapping[str, Any], before: int) -> int:
        """How many are left, where the environment says so: the only part of its info that is read."""
        lives = info.get("lives", before)
        try:
            return operator.index(lives)  # of NumPy's whole numbers, too
        except TypeError:
            self._refuse("info['lives'] to be a whole number", _describe(lives), "return int(lives), or rename the key")

    def _check_info(self, info: Any) -> None:
        if type(info) is not dict and not isinstance(info, Mapping):
            self._refuse("info to be a dict", _describe(info), "return {} if there is nothing to say")
        if info and self._chooses and not self._masked and KEY in info:
            self._refuse(f"info['{KEY}'] from the first reset on, or never", "one later", ADVICE)

    def _refuse(self, expected: str, got: str, advice: str) -> NoReturn:
        raise EnvironmentRefused(f"{self.where()}: expected {expected}, got {got}; {advice}")

    def where(self) -> str:
        return f"{self._name} (slot {self._slot}, episode {self._episode}, step {self._step})"


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {sorted(map(str, value))}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else type(value).__name__


def _first_bad(values: NDArray[Any]) -> float:
    return float(values[~np.isfinite(values)].reshape(-1)[0])
