"""The border: what an environment returns is compared with Gymnasium's contract and with its own spaces before anything is stored.

The first rows of each slot are looked at in full, the later ones cheaply: type, shape, finite. Finite values outside their Box are no
reason to end a run: they are stored, and told of once (`envs.bounds`).
"""

import functools
import math
import operator
from collections.abc import Mapping
from numbers import Real
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.bounds import FEW, Bounds, Tell, tell_once
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.envs.stored_spaces import described
from laser_rl.errors import EnvironmentRefused

FULL_ROWS = 100
LARGEST = float(np.finfo(np.float32).max)  # rewards are stored as float32
PLAIN_REWARDS = frozenset({float, int, np.float64, np.float32})
PLAIN_FLAGS = frozenset({bool, np.bool_})
STEP_PARTS, OLD_STEP_PARTS, RESET_PARTS = 5, 4, 2

Env = gymnasium.Env[Any, Any]
StepResult = tuple[float, bool, bool, Mapping[str, Any]]


class BadValue(Exception):
    """Something that is not finite, in the part called `key`."""

    def __init__(self, key: str, value: object) -> None:
        super().__init__(key, value)
        self.key, self.value = key, value


class Border:
    """Where one environment's returns pass: checked, converted, stored.

    >>> env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    >>> border = Border(env, "CartPole-v1", slot=0)
    >>> out = np.zeros(4, np.float32)
    >>> border.bind(out)
    >>> border.after_reset(env.reset(seed=1)), bool(out.any())
    ({}, True)
    """

    def __init__(self, env: Env, name: str, slot: int, warn: Tell | None = None, *, full_rows: int = FULL_ROWS) -> None:
        self._name, self._slot = name, slot
        self._space, self._action_space = env.observation_space, env.action_space
        self.observation, self.action = observation_border(self._space, name), action_border(self._action_space, name)
        known = described(self._space, self._action_space)
        self.spec = EnvironmentSpec(name, self.observation.spec, self.action.spec, spaces=known)
        self._is_box = isinstance(self._space, spaces.Box)
        self._shape, self._dtype = self._space.shape, self._space.dtype
        self._may_overflow = not (
            self._dtype in {np.dtype(np.float32), np.dtype(np.uint8), np.dtype(bool)} and self._is_box
        )
        self._floats = self.observation.spec.dtype == "float32"
        self._convert = self.observation.convert
        self._bounds = Bounds(self._space, self.observation, warn or functools.partial(tell_once, name))
        self._full_left, self._episode, self._step = full_rows, -1, 0
        self.bind(np.zeros(self.observation.spec.shape, self.observation.spec.dtype))

    def bind(self, out: NDArray[np.generic]) -> None:
        """From now on observations are stored in `out`."""
        self._out, self._flat = out, out.reshape(-1)

    def starting(self, episode: int) -> None:
        """For the messages: which episode the next returns belong to."""
        self._episode, self._step = episode, 0

    def after_reset(self, result: Any) -> Mapping[str, Any]:
        """Check and store what `reset` returned; gives back its info."""
        if not isinstance(result, tuple) or len(result) != RESET_PARTS:
            self._refuse(
                "(observation, info) from reset",
                _describe(result),
                "return a tuple of two, as Gymnasium does since 0.26",
            )
        observation, info = result
        self._check_info(info)
        self._store(observation)
        return info  # type: ignore[no-any-return]

    def after_step(self, result: Any, env: Env) -> StepResult:
        """Check and store what `step` returned; gives back all but the observation."""
        self._step += 1
        if not isinstance(result, tuple) or len(result) != STEP_PARTS:
            self._refuse_parts(result)
        observation, reward, terminated, truncated, info = result
        if type(reward) not in PLAIN_REWARDS:
            self._check_reward(reward)
        if type(terminated) not in PLAIN_FLAGS or type(truncated) not in PLAIN_FLAGS:
            key, got = ("terminated", terminated) if type(terminated) not in PLAIN_FLAGS else ("truncated", truncated)
            self._refuse(f"{key} to be a bool", _describe(got), f"return bool({key})")
        self._check_info(info)
        if self._full_left > 0 and env.action_space != self._action_space:
            self._refuse(
                f"the action_space to stay {self._action_space}",
                str(env.action_space),
                "keep one space and ignore illegal actions",
            )
        self._store(observation)
        if not -LARGEST <= reward <= LARGEST:  # false for NaN too
            raise BadValue("reward", reward)
        return float(reward), bool(terminated), bool(truncated), info

    def _store(self, observation: Any) -> None:
        if self._full_left > 0:
            self._full_left -= 1
            self._check_fully(self._space, observation, "observation")
        elif self._is_box and (
            type(observation) is not np.ndarray or observation.dtype != self._dtype or observation.shape != self._shape
        ):
            self._check_fully(self._space, observation, "observation")
        if self._may_overflow:
            self._store_carefully(observation)
        else:
            self._out[...] = self._convert(observation)
        if self._floats and not _all_finite(self._flat):
            raise BadValue("observation", _first_bad(self._flat))
        if self._bounds.watching:
            self._bounds.look(self._flat, observation, self.where)

    def _store_carefully(self, observation: Any) -> None:
        try:
            with np.errstate(over="ignore"):  # float64 beyond float32 becomes Inf, which is seen afterwards
                self._out[...] = self._convert(observation)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            self._check_fully(self._space, observation, "observation")
            raise

    def _check_fully(self, space: spaces.Space[Any], value: Any, key: str) -> None:
        if isinstance(space, spaces.Dict):
            if not isinstance(value, Mapping) or set(value) != set(space.spaces):
                got = f"keys {sorted(map(str, value))}" if isinstance(value, Mapping) else _describe(value)
                self._refuse(
                    f"{key} with the keys {sorted(map(str, space.spaces))}", got, "return every key of the space"
                )
            for label, part in space.spaces.items():
                self._check_fully(part, value[label], f"{key}[{label!r}]")
        elif isinstance(space, spaces.Tuple):
            if not isinstance(value, tuple) or len(value) != len(space.spaces):
                self._refuse(
                    f"{key} to be a tuple of {len(space.spaces)}", _describe(value), "return every part of the space"
                )
            for index, part in enumerate(space.spaces):
                self._check_fully(part, value[index], f"{key}[{index}]")
        elif isinstance(space, spaces.Box):
            self._check_box(space, value, key)
        elif not space.contains(value):
            self._refuse(
                f"{key} in {space}", f"{_describe(value)} = {value!r}", "correct observation_space or the value"
            )

    def _check_box(self, space: spaces.Box, value: Any, key: str) -> None:
        if not isinstance(value, np.ndarray):
            self._refuse(
                f"{key} to be a NumPy array", _describe(value), f"return np.asarray(..., dtype=np.{space.dtype})"
            )
        if value.dtype != space.dtype:
            self._refuse(
                f"{key} of dtype {space.dtype}",
                str(value.dtype),
                f"return it with .astype(np.{space.dtype}) or correct the space",
            )
        if value.shape != space.shape:
            self._refuse(f"{key} of shape {space.shape}", str(value.shape), "correct observation_space or the value")
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            raise BadValue(key, _first_bad(value))

    def _check_reward(self, reward: Any) -> None:
        if not isinstance(reward, Real):
            self._refuse("reward to be a real number", _describe(reward), "return float(reward)")

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

    def _refuse_parts(self, result: Any) -> NoReturn:
        advice = "return (observation, reward, terminated, truncated, info)"
        if isinstance(result, tuple) and len(result) == OLD_STEP_PARTS:
            advice = (
                "this is the step of the old Gym: split done into terminated and truncated, or wrap the environment "
                "with shimmy.GymV21CompatibilityV0"
            )
        self._refuse("5 values from step", _describe(result), advice)

    def _refuse(self, expected: str, got: str, advice: str) -> NoReturn:
        raise EnvironmentRefused(f"{self.where()}: expected {expected}, got {got}; {advice}")

    def where(self) -> str:
        """The environment and the place in its stream, for messages."""
        return f"{self._name} (slot {self._slot}, episode {self._episode}, step {self._step})"


def _all_finite(flat: NDArray[Any]) -> bool:
    if flat.size <= FEW:
        return all(map(math.isfinite, flat.tolist()))
    return bool(np.isfinite(flat).all())


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else type(value).__name__


def _first_bad(values: NDArray[Any]) -> float:
    return float(values[~np.isfinite(values)].reshape(-1)[0])
