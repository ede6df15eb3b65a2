"""Masks of actions: which ones are legal at a row, as the environment says it in `info["action_mask"]` or under that key of a Dict.

A mask is a part of its observation, so it is there wherever the observation is: in the replay, in worker processes, on every input row.
Its numbers, those of all choices side by side, are the last ones of the stored observation. An environment that gives it in `info` is
wrapped: then it is a key of a Dict, too.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.records import ActionSpec, Array, BoxActions, DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.errors import ConfigError

KEY, OBSERVATION = "action_mask", "observation"
CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
ADVICE = "give the mask at every reset and step, with one number for each action of each choice"


class BadMask(ValueError):
    """A mask that cannot be used: what was expected, and what came."""

    def __str__(self) -> str:
        return "expected {}, got {}".format(*self.args)


def choices_of(action: ActionSpec) -> tuple[int, ...]:
    """How many actions each choice has; none where actions are real numbers."""
    if isinstance(action, BoxActions):
        return ()
    return (action.count,) if isinstance(action, DiscreteActions) else action.counts


def in_space(space: gymnasium.Space[Any]) -> bool:
    return isinstance(space, spaces.Dict) and KEY in space.spaces


def may_be_in_info(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> bool:
    """Whether only a reset can tell that there is a mask."""
    return isinstance(action, CHOICES) and not in_space(observation)


def in_info(result: Any) -> bool:
    """Whether what a reset returned holds a mask."""
    return isinstance(result, tuple) and len(result) > 1 and isinstance(result[-1], Mapping) and KEY in result[-1]


def read_mask(value: Any, choices: tuple[int, ...], *, last: bool = False) -> NDArray[np.uint8]:
    """A mask as 0 and 1; a tuple has one array for each choice, as `MultiDiscrete.sample` takes it. BadMask says what is wrong with it.

    On the `last` row of an episode no action is chosen, and many environments give no mask there, or an empty one: all are legal.
    """
    if last:
        return np.ones(sum(choices), np.uint8)
    parts = value if isinstance(value, tuple | list) else (value,)
    flat = np.concatenate([np.ravel(np.asarray(part)) for part in parts]) if parts else np.empty(0)
    if flat.size == sum(choices) and flat.dtype.kind in "biuf" and ((flat == 0) | (flat == 1)).all():
        mask = flat.astype(np.uint8)
        if np.logical_or.reduceat(mask, np.cumsum((0, *choices[:-1]))).all():
            return mask
    each = "" if len(choices) == 1 else f" in each of {len(choices)} choices"
    raise BadMask(
        f"an action_mask of {sum(choices)} numbers, each 0 or 1, with a legal action{each}", repr(value)[:200]
    )


def beside(spec: EnvironmentSpec, observation: Any, action_mask: Any) -> Any:
    """An observation with the mask that stood in `info` beside it; `action_mask` None: it has one itself, or needs none."""
    has_own = isinstance(observation, Mapping) and KEY in observation
    if action_mask is None and spec.observation.mask and not has_own:
        raise ConfigError(
            f"predict: expected the mask of legal actions of {spec.name}, got none; pass action_mask=info['{KEY}']"
        )
    if action_mask is None:
        return observation
    if not spec.observation.mask:
        raise ConfigError(
            f"predict: expected no action_mask, {spec.name} gave none in training, got {action_mask!r}; leave it out"
        )
    return {**observation, KEY: action_mask} if has_own else {OBSERVATION: observation, KEY: action_mask}


def legal(spec: ObservationSpec, stored: Array) -> NDArray[np.bool_]:
    """The masks of stored observations [..., n]; no column where there are none."""
    return np.asarray(stored[..., stored.shape[-1] - spec.mask :] != 0)


def with_mask(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> spaces.Dict:
    """The space of observations with a mask beside them."""
    if isinstance(action, spaces.MultiBinary):
        size = 2 * int(np.prod(action.shape))
    else:
        size = int(action.n if isinstance(action, spaces.Discrete) else action.nvec.sum())  # type: ignore[attr-defined]
    return spaces.Dict({OBSERVATION: observation, KEY: spaces.MultiBinary(size)})


class MaskInObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that gives the mask in `info`, with the mask in its observation."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = with_mask(env.observation_space, env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return merged(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return merged(self.env.step(action))


def merged(result: Any) -> Any:
    """What a reset or step returned, the mask in its observation; a result of another form stays, for the border to refuse."""
    if not isinstance(result, tuple) or len(result) < 2 or not isinstance(result[-1], Mapping):  # noqa: PLR2004
        return result
    return {OBSERVATION: result[0], KEY: result[-1].get(KEY)}, *result[1:]
