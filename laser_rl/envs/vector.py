"""A user's own `gymnasium.vector.VectorEnv`, brought to the project's clock: the last observation is a row, the reset the next step."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from laser_rl.envs.border import LARGEST, Bounds, tell_once
from laser_rl.envs.construct import Turn
from laser_rl.envs.records import Environments, EnvironmentSpec, Rows, seed_of
from laser_rl.envs.slot import EXITS, exit_of
from laser_rl.envs.spaces import action_border, action_layout, described, observation_border
from laser_rl.errors import EnvironmentRefused

Array = NDArray[np.generic]
Vector = gymnasium.vector.VectorEnv[Any, Any, Any]


class VectorAdapter(Environments):
    """A vector environment in any of Gymnasium's three autoreset modes. It has no state: it may hold anything.

    Where it resets within the step that ends an episode (SAME_STEP) or waits to be told (DISABLED), the first rows of the next episodes are
    handed out by the following `step`, alone: the vector is stepped when all slots have acted again.
    """

    def __init__(self, env: Vector, *, seed: int, name: str | None = None, owned: bool = True) -> None:
        self._env, self._seed, self._owned, self._turn = env, seed, owned, Turn(env)
        self._mode = _mode(env)
        name = name or (env.spec.id if env.spec is not None else type(env).__name__)
        self._border = observation_border(env.single_observation_space, name)
        self._act = action_border(env.single_action_space, name)
        known = described(env.single_observation_space, env.single_action_space)
        self.spec = EnvironmentSpec(name, self._border.spec, self._act.spec, spaces=known)
        self._bounds = Bounds(env.single_observation_space, self._border, functools.partial(tell_once, name))
        self.slots = int(env.num_envs)
        shape, dtype = action_layout(self.spec.action)
        self._action = np.zeros((self.slots, *shape), dtype)
        self._acted, self._ended = np.zeros(self.slots, np.bool_), np.zeros(self.slots, np.bool_)
        self._episode = np.zeros(self.slots, np.int64)
        self._lives = np.zeros(self.slots, np.int64)
        self._waiting: Array = np.zeros((self.slots, *self._border.spec.shape), self._border.spec.dtype)
        self._steps = 0
        self._one_generator = False  # for all slots; known once a list of seeds was refused

    def reset(self) -> Rows:
        """Start every slot."""
        self._turn.take()
        observation, info = self._guarded(lambda: self._reset(self._seeds().tolist()))
        self._lives = self._lives_in(info, self._lives)
        return self._first_rows(np.arange(self.slots), self._convert(observation))

    def _again(self) -> Rows:
        """Another player has used the vector, for an evaluation: every open episode is void."""
        self._episode += 1
        self._acted[:] = self._ended[:] = False
        rows = self.reset()
        return rows._replace(restarted=np.ones(self.slots, np.bool_))

    def step(self, slots: NDArray[np.int64], action: Array) -> Rows:
        """The rows of all slots; where the vector resets by itself, first those of the new episodes alone."""
        self._action[slots] = action
        self._acted[slots] = True
        if self._turn.lost:
            return self._again()
        if self._mode is not AutoresetMode.NEXT_STEP:
            starting = np.flatnonzero(self._acted & self._ended)
            if starting.size:
                return self._start(starting)
        if not self._acted.all():
            raise ValueError(
                f"{self.spec.name}: a vector environment steps all its slots at once; expected actions for "
                f"{np.flatnonzero(~self._acted).tolist()} too"
            )
        return self._step_all()

    def close(self) -> None:
        """Close the vector, unless the user made it."""
        if self._owned and not self._env.closed:
            self._env.close()

    def _start(self, slots: NDArray[np.int64]) -> Rows:
        self._episode[slots] += 1
        if self._mode is AutoresetMode.DISABLED:
            mask = np.zeros(self.slots, np.bool_)
            mask[slots] = True
            seeds = [int(seed) if chosen else None for seed, chosen in zip(self._seeds(), mask, strict=True)]
            observation, info = self._guarded(lambda: self._reset(seeds, options={"reset_mask": mask}))
            self._waiting[slots] = self._convert(observation)[slots]
            self._lives[slots] = self._lives_in(info, self._lives)[slots]
        self._acted[slots] = self._ended[slots] = False
        return self._first_rows(slots, self._waiting[slots])

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EXITS as error:
            raise exit_of(error, self.spec.name) from None

    def _reset(self, seeds: list[int | None], options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Gymnasium's own vectors of environments take a list; its annotation, and vectors with one generator, say a number only."""
        if self._one_generator:
            # Once: seeding it for every episode that begins would play the same ones again in the slots that go on.
            return self._env.reset(seed=seeds[0] if options is None else None, options=options)
        try:
            return self._env.reset(seed=seeds, options=options)  # type: ignore[arg-type]
        except gymnasium.error.Error:
            self._one_generator = True
            return self._reset(seeds, options)

    def _step_all(self) -> Rows:
        observation, reward, terminated, truncated, info = self._guarded(lambda: self._env.step(self._actions()))
        self._steps += 1
        self._acted[:] = False
        first = self._ended.copy() if self._mode is AutoresetMode.NEXT_STEP else np.zeros(self.slots, np.bool_)
        self._episode[first] += 1
        stored, last_lives = self._convert(observation), self._lives
        self._lives = self._lives_in(info, last_lives)
        self._ended = np.asarray(terminated | truncated, np.bool_) & ~first
        if self._mode is AutoresetMode.SAME_STEP and self._ended.any():
            self._waiting[self._ended] = stored[self._ended]
            stored = self._with_final(stored, info)
        rewards = np.where(first, 0.0, np.asarray(reward, np.float64))
        self._check_finite(stored, rewards)
        return Rows(
            np.arange(self.slots),
            stored,
            first,
            rewards.astype(np.float32),
            terminated & ~first,
            truncated & ~terminated & ~first,
            (self._lives < last_lives) & ~first,
            np.zeros(self.slots, np.bool_),
            self._episode.copy(),
            self._seeds(),
        )

    def _with_final(self, stored: Array, info: Mapping[str, Any]) -> Array:
        final = info.get("final_obs")
        if final is None:
            self._refuse(
                "info['final_obs'] in autoreset mode SAME_STEP where an episode ends", f"the keys {sorted(info)}"
            )
        stored = stored.copy()
        for slot in np.flatnonzero(self._ended).tolist():
            stored[slot] = self._border.convert(final[slot])
        return stored

    def _first_rows(self, slots: NDArray[np.int64], observation: Array) -> Rows:
        flags = np.zeros(slots.size, np.bool_)
        self._check_finite(observation, flags)
        return Rows(
            slots,
            observation,
            np.ones(slots.size, np.bool_),
            np.zeros(slots.size, np.float32),
            flags,
            flags.copy(),
            flags.copy(),
            flags.copy(),
            self._episode[slots],
            self._seeds()[slots],
        )

    def _convert(self, observation: Any) -> Array:
        items = list(gymnasium.vector.utils.iterate(self._env.observation_space, observation))
        stored = np.stack([self._border.convert(item) for item in items])
        if stored.shape[1:] != self._border.spec.shape:
            self._refuse(f"observations of shape {self._border.spec.shape}", str(stored.shape[1:]))
        stored = stored.astype(self._border.spec.dtype, copy=False)
        if self._bounds.watching:
            self._bounds.look_at_all(stored, items, f"{self.spec.name} (step {self._steps})")
        return stored

    def _actions(self) -> Any:
        each = [self._act.convert(action) for action in self._action]
        space = self._env.action_space
        return np.stack(each).astype(space.dtype, copy=False).reshape(space.shape or (self.slots,))

    def _seeds(self) -> NDArray[np.int64]:
        return seed_of(self._seed, np.arange(self.slots), self._episode)

    def _lives_in(self, info: Mapping[str, Any], before: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(info["lives"], np.int64) if "lives" in info else before

    def _check_finite(self, stored: Array, reward: Array) -> None:
        if stored.dtype == np.float32 and not np.isfinite(stored).all():
            self._refuse("finite observations", f"NaN or Inf in slot {_first_bad(stored)}")
        if not (np.abs(reward.astype(np.float64)) <= LARGEST).all():
            self._refuse("finite rewards", f"NaN or Inf in slot {_first_bad(reward)}")

    def _refuse(self, expected: str, got: str) -> NoReturn:
        raise EnvironmentRefused(
            f"{self.spec.name} (step {self._steps}): expected {expected}, got {got}; correct the vector environment"
        )


def _first_bad(values: Array) -> int:
    return int(np.flatnonzero(~np.isfinite(values.astype(np.float64)).reshape(len(values), -1).all(1))[0])


def _mode(env: Vector) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        raise EnvironmentRefused(
            f"{type(env).__name__}: expected metadata['autoreset_mode'] to be one of "
            f"{', '.join(str(known) for known in AutoresetMode)}, got {mode!r}; "
            "say there when your vector environment resets, e.g. gymnasium.vector.AutoresetMode.NEXT_STEP"
        ) from None
