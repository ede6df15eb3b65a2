"""A user's own `gymnasium.vector.VectorEnv`, brought to the project's clock: the last observation is a row, the reset the next step."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from laser_rl.envs import masks
from laser_rl.envs.border import Bounds, warn_once
from laser_rl.envs.construct import Turn
from laser_rl.envs.records import Array, Environments, Flags, Ints, Rows, VectorEpisodes, action_layout
from laser_rl.envs.slot import EXITS, exit_of
from laser_rl.envs.spaces import spec_of
from laser_rl.errors import EnvironmentRefused

Vector = gymnasium.vector.VectorEnv[Any, Any, Any]


class VectorAdapter(Environments):
    """A vector environment in any of Gymnasium's three autoreset modes. It has no state, and its user closes it.

    Where it resets within the step that ends an episode (SAME_STEP) or waits to be told (DISABLED), the first rows of the next episodes are
    handed out by the following `step`, alone: the vector is stepped when all slots have acted again. All slots act at once.
    """

    def __init__(self, env: Vector, *, seed: int, name: str | None = None) -> None:
        self._env, self._turn, self._mode = env, Turn(env), _mode(env)
        self._name = name = name or (env.spec.id if env.spec is not None else type(env).__name__)
        self.slots = int(env.num_envs)
        self._every, self._episodes = np.arange(self.slots), VectorEpisodes(self.slots, seed)
        self._one_generator = False  # for all slots; known once a list of seeds was refused
        space, actions = env.single_observation_space, env.single_action_space
        self._begun = self._first() if masks.may_be_in_info(space, actions) else None  # what agents see depends on it
        self._mask_in_info = masks.in_info(self._begun)
        space = masks.with_mask(space, actions) if self._mask_in_info else space
        self.spec, (self._see, self._act) = spec_of(space, actions, name)
        seen = self.spec.observation
        self._bounds = Bounds(space, seen, functools.partial(warn_once, name))
        shape, dtype = action_layout(self.spec.action)
        self._action, self._acted = np.zeros((self.slots, *shape), dtype), np.zeros(self.slots, np.bool_)
        self._waiting: Array = np.zeros((self.slots, *seen.shape), seen.dtype)  # first observations, in SAME_STEP
        self._steps = 0

    def reset(self) -> Rows:
        begun, self._begun = self._begun, None
        observation, info = self._first() if begun is None or self._turn.lost else begun
        stored = self._convert(observation, info)
        return self._checked(self._episodes.begin(self._every.copy(), stored, info.get("lives")))

    def _first(self) -> Any:
        self._turn.take()
        seeds = self._episodes.seeds(self._every).tolist()
        return self._guarded(lambda: self._reset(seeds))

    def step(self, slots: Ints, action: Array) -> Rows:
        """The rows of all slots; where the vector resets by itself, first those of the new episodes alone."""
        self._action[slots] = action
        self._acted[slots] = True
        if self._turn.lost:  # another player has used the vector, for an evaluation: every open episode is void
            self._episodes.number += 1
            self._acted[:] = False
            return self.reset()._replace(restarted=np.ones(self.slots, np.bool_))
        if self._mode is not AutoresetMode.NEXT_STEP and (self._acted & self._episodes.ended).any():
            return self._start(np.flatnonzero(self._acted & self._episodes.ended))
        each, space = [self._act(action) for action in self._action], self._env.action_space
        actions = np.stack(each).astype(space.dtype, copy=False).reshape(space.shape or (self.slots,))
        observation, reward, terminated, truncated, info = self._guarded(lambda: self._env.step(actions))
        self._steps += 1
        self._acted[:] = False
        ended = terminated | truncated
        last = ended & ~self._episodes.ended & (self._mode is not AutoresetMode.SAME_STEP)
        stored = self._convert(observation, info, last)
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            final, self._waiting, stored = info.get("final_obs"), stored, stored.copy()
            if final is None:
                expected = "info['final_obs'] in autoreset mode SAME_STEP where an episode ends"
                self._refuse(expected, f"the keys {sorted(info)}")
            for slot in np.flatnonzero(ended).tolist():
                whole = {masks.OBSERVATION: final[slot]} if self._mask_in_info else final[slot]
                stored[slot] = self._seen(whole, last=True)
        ends = terminated, truncated
        return self._checked(self._episodes.advance(self._every.copy(), stored, reward, *ends, info.get("lives")))

    def _start(self, slots: Ints) -> Rows:
        self._episodes.number[slots] += 1
        lives = None
        if self._mode is AutoresetMode.DISABLED:
            mask = np.isin(self._every, slots)
            every = self._episodes.seeds(self._every).tolist()
            seeds = [seed if chosen else None for seed, chosen in zip(every, mask, strict=True)]
            observation, info = self._guarded(lambda: self._reset(seeds, options={"reset_mask": mask}))
            self._waiting = self._convert(observation, info, ~mask)
            lives = np.asarray(info["lives"])[slots] if "lives" in info else None
        self._acted[slots] = False
        return self._checked(self._episodes.begin(slots, self._waiting[slots], lives))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EXITS as error:
            raise exit_of(error, self._name) from None

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

    def _convert(self, observation: Any, info: dict[str, Any], last: Flags | None = None) -> Array:
        """Stored observations; the masks of slots that are `last` in their episode, or not asked, are not looked at."""
        items = list(gymnasium.vector.utils.iterate(self._env.observation_space, observation))
        seen, given = self.spec.observation, info.get(masks.KEY, [None] * self.slots)
        ends = np.zeros(self.slots, np.bool_) if last is None else last
        if masks.KEY in info and not seen.mask and masks.choices_of(self.spec.action):
            self._refuse(f"info['{masks.KEY}'] from the first reset on, or never", "one later")
        if self._mask_in_info:
            items = [{masks.OBSERVATION: item, masks.KEY: mask} for item, mask in zip(items, given, strict=True)]
        stored = np.stack([self._seen(item, last=bool(end)) for item, end in zip(items, ends, strict=True)])
        if stored.shape[1:] != seen.shape:
            self._refuse(f"observations of shape {seen.shape}", str(stored.shape[1:]))
        stored = stored.astype(seen.dtype, copy=False)
        if self._bounds.watching:
            self._bounds.look(items, self._where)
        return stored

    def _seen(self, item: Any, *, last: bool) -> Any:
        if not self.spec.observation.mask:
            return self._see(item)
        try:
            return self._see(item, last=last)
        except masks.BadMask as bad:
            return self._refuse(*bad.args)

    def _checked(self, rows: Rows) -> Rows:
        observed = [(values, "observations") for values in self.spec.observation.numbers(rows.observation).values()]
        for values, what in (*observed, (rows.reward, "rewards")):
            if values.dtype == np.float32 and not np.isfinite(values).all():
                bad = ~np.isfinite(values).reshape(len(values), -1).all(1)
                self._refuse(f"finite {what}", f"NaN or Inf in slot {rows.slots[bad][0]}")
        return rows

    def _refuse(self, expected: str, got: str) -> NoReturn:
        raise EnvironmentRefused(f"{self._where()}: expected {expected}, got {got}; correct the vector environment")

    def _where(self) -> str:
        return f"{self.spec.name} (step {self._steps})"


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
