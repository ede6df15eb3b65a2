"""What a Minari dataset says its observations and actions are, and actions in the form that environments take."""

import contextlib
import logging
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from laser_rl.config import EnvironmentConfig
from laser_rl.envs.construct import constructor
from laser_rl.envs.make import is_atari, is_mixture
from laser_rl.errors import EnvironmentRefused, MissingExtra
from laser_rl.ops.distributions import Categorical, Family, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.trust import Untrusted
from laser_rl.types import Array, UnrollLayout

log = logging.getLogger("laser_rl.exports")
_BYTE = 255
Space = spaces.Box | spaces.Discrete | spaces.MultiDiscrete


class Spaces(NamedTuple):
    """Of the rows as agents see them; `env` is the environment's own description, where it sees them in the same form."""

    observation: spaces.Box
    action: Space
    env: EnvSpec | None


def spaces_of(
    environment: EnvironmentConfig, layout: UnrollLayout, family: Family, starts: tuple[int, ...] = ()
) -> Spaces:
    """The spaces of a dataset; `starts`: where the environment begins to count its choices, empty if at 0.

    >>> layout = UnrollLayout(20, 0, (4,), "float32", (), "int64", 2)
    >>> found = spaces_of(EnvironmentConfig(id="CartPole-v1"), layout, Categorical(2))
    >>> found.action, found.env.id
    (Discrete(2), 'CartPole-v1')
    """
    stored = Spaces(_observations(layout), _actions(family, starts), None)
    if environment.id.startswith("laser/") or is_atari(environment.id) or is_mixture(environment.id):
        return stored
    try:
        env = constructor(environment.id, environment.options)()
    except (EnvironmentRefused, MissingExtra, Untrusted, gymnasium.error.Error) as problem:
        log.warning("the dataset does not say how to make its environment: %s", problem)
        return stored
    with contextlib.closing(env):
        own, spec = env.observation_space, env.spec
        alike = (
            isinstance(own, spaces.Box)
            and (own.shape, own.dtype) == (stored.observation.shape, stored.observation.dtype)
            and env.action_space == stored.action
        )
    return Spaces(own, stored.action, _written(spec)) if alike and isinstance(own, spaces.Box) else stored


def _written(spec: EnvSpec | None) -> EnvSpec | None:
    """A description that can be written as JSON; one that was registered with a class or function instead of a name cannot."""
    try:
        if spec is not None:
            spec.to_json()
    except ValueError as problem:
        log.warning("the dataset does not say how to make its environment: %s", problem)
        return None
    return spec


def environment_actions(family: Family, space: Space, action: Array) -> Array:
    """From stored actions [T, ...] to those that the environment took: counted from its own start, or squashed into their bounds.

    >>> family = DiagonalGaussian((-2.0,), (2.0,))
    >>> environment_actions(family, _actions(family), np.array([[0.0], [1e4]], np.float32)).ravel().tolist()
    [0.0, 2.0]
    >>> environment_actions(Categorical(3), spaces.Discrete(3, start=5), np.array([0, 2])).tolist()
    [5, 7]
    """
    if not isinstance(space, spaces.Box):
        counted: Array = np.asarray(action, np.int64) + space.start
        return counted
    squashed = family.to_environment(torch.from_numpy(np.ascontiguousarray(action))).numpy()
    clipped: Array = np.clip(squashed, space.low, space.high)
    return clipped


def _observations(layout: UnrollLayout) -> spaces.Box:
    if layout.observation_dtype == "uint8":
        return spaces.Box(0, _BYTE, layout.observation_shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, layout.observation_shape, np.float32)


def _actions(family: Family, starts: tuple[int, ...] = ()) -> Space:
    if isinstance(family, Categorical):
        return spaces.Discrete(family.actions, start=starts[0] if starts else 0)
    if isinstance(family, MultiCategorical):
        return spaces.MultiDiscrete(list(family.actions), start=list(starts) or None)
    assert isinstance(family, DiagonalGaussian)  # noqa: S101 - there is no other
    return spaces.Box(np.array(family.low, np.float32), np.array(family.high, np.float32), dtype=np.float32)
