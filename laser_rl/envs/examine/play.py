"""Plays an environment and writes down what it returns, however odd that is."""

import copy
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.border import OLD_STEP_PARTS, RESET_PARTS, STEP_PARTS, Env
from laser_rl.envs.examine.records import Episode, Fault, Row
from laser_rl.envs.records import ActionSpec, DiscreteActions, MultiDiscreteActions
from laser_rl.envs.spaces import action_border
from laser_rl.errors import EnvironmentRefused

Watch = Callable[[str, int, int], None]  # is told phase, episode and step before each call of the environment's code
MOST_FRAMES = 4  # of a traceback: the last ones are the user's own
WATCHED_ROWS = 200  # of an episode; looking at the global generators costs as much as a small environment's step
BEYOND = 1e3  # random numbers for a dimension with wider bounds than that are drawn as if it had none
OURS = str(Path(__file__).parent)
FOREIGN = (str(Path(gymnasium.__file__).parent), str(Path(__file__).parents[1]), "<frozen importlib")


def nobody(phase: str, episode: int, step: int) -> None:
    """Nobody is told."""


class Actions:
    """Random actions, and the way to the environment's own; the first ones of an episode are the extremes.

    >>> actions = Actions(spaces.Discrete(3, start=1), seed=1)
    >>> first = list(zip(range(3), actions.of(episode=0)))
    >>> [int(action) for _, action in first], [actions.convert(action) for _, action in first]
    ([0, 1, 2], [1, 2, 3])
    """

    def __init__(self, space: spaces.Space[Any], *, seed: int) -> None:
        self._space, self._seed = space, seed
        self._spec: ActionSpec | None = None
        self.convert: Callable[[Any], Any] = _unchanged
        try:
            border = action_border(space, "")
        except EnvironmentRefused:  # a finding of its own; it can be played all the same
            return
        self._spec, self.convert = border.spec, border.convert

    def of(self, episode: int) -> Iterator[Any]:
        """The actions of an episode, the same ones each time."""
        if self._spec is None:
            space = copy.deepcopy(self._space)
            space.seed(self._seed + episode)
            while True:
                yield space.sample()
        generator = np.random.default_rng([self._seed, episode])
        yield from _extremes(self._spec, first=episode == 0)
        while True:
            yield random_actions(self._spec, generator, 1)[0]


def random_actions(spec: ActionSpec, generator: np.random.Generator, count: int) -> NDArray[Any]:
    """Actions for `count` slots, uniform within the bounds and normal where there are none.

    >>> random_actions(DiscreteActions(2), np.random.default_rng(1), 3).shape
    (3,)
    """
    if isinstance(spec, DiscreteActions):
        return generator.integers(spec.count, size=count)
    if isinstance(spec, MultiDiscreteActions):
        return generator.integers(np.array(spec.counts), size=(count, len(spec.counts)))
    low, high = np.array(spec.low), np.array(spec.high)
    free = ~((np.abs(low) <= BEYOND) & (np.abs(high) <= BEYOND))
    bounded = generator.uniform(np.where(free, 0.0, low), np.where(free, 0.0, high), (count, len(low)))
    normal = np.clip(generator.standard_normal((count, len(low))), low, high)
    return np.where(free, normal, bounded).astype(np.float32)


def _extremes(spec: ActionSpec, *, first: bool) -> Iterator[Any]:
    if not first:
        return
    if isinstance(spec, DiscreteActions):
        yield from np.arange(min(spec.count, 100))
    elif isinstance(spec, MultiDiscreteActions):
        yield from (np.zeros(len(spec.counts), np.int64), np.array(spec.counts) - 1)
    elif np.abs([*spec.low, *spec.high]).max(initial=0) <= BEYOND:
        yield from (np.array(spec.low, np.float32), np.array(spec.high, np.float32))


def _unchanged(action: Any) -> Any:
    return action


def play_episode(
    env: Env,
    actions: Iterator[Any],
    convert: Callable[[Any], Any],
    *,
    number: int,
    seed: int,
    most_steps: int,
    watch: Watch = nobody,
    deadline: float = float("inf"),
) -> Episode:
    """One episode from its reset on: to its end, an exception, `most_steps` or the deadline (on the monotonic clock)."""
    episode, before, space = Episode(number, seed), _generators(), env.action_space
    returned: Any = None
    sent: Any = None
    try:
        watch("reset", number, 0)
        result: Any = env.reset(seed=seed)
        returned = _note(episode, _of_reset(result))
        for step, action in zip(range(1, most_steps + 1), actions, strict=False):
            watch("step", number, step)
            sent = convert(action)
            result = env.step(sent)
            _look_back(episode.rows[-1], returned)
            row = _of_step(result)
            row.action = action
            if step <= WATCHED_ROWS and env.action_space != space:
                row.action_space = str(env.action_space)
            returned = _note(episode, row)
            if step == WATCHED_ROWS:
                episode.drew = _drawn(before)
            if row.ends or time.monotonic() > deadline:
                break
    except Exception as error:  # whatever a user's environment raises
        episode.fault = fault_of(error, f"step({sent!r:.40})" if episode.rows else "reset")
    watch("idle", number, len(episode.rows))  # what follows is not the environment's time
    if episode.length <= WATCHED_ROWS:
        episode.drew = _drawn(before)
    return episode


def _note(episode: Episode, row: Row) -> Any:
    """Keep the row with a copy of its observation; gives back the observation itself."""
    returned = row.observation
    row.observation = copy.deepcopy(returned)
    episode.rows.append(row)
    return returned


def _look_back(row: Row, returned: Any) -> None:
    row.altered = not same(row.observation, returned)


def _of_reset(result: Any) -> Row:
    if isinstance(result, tuple) and len(result) == RESET_PARTS:
        return Row(result[0], info=result[1])
    observation = result[0] if isinstance(result, tuple) and result else result
    return Row(observation, odd=described(result))


def _of_step(result: Any) -> Row:
    if isinstance(result, tuple) and len(result) == STEP_PARTS:
        return Row(*result)
    if isinstance(result, tuple) and len(result) == OLD_STEP_PARTS:
        observation, reward, done, info = result
        return Row(observation, reward, done, False, info, odd=described(result))
    # Nothing can be read from it, and nothing more is asked.
    return Row(None, terminated=True, odd=described(result))


def described(value: Any) -> str:
    """What something is, in a few words.

    >>> described(np.zeros(3)), described((1, 2)), described(None)
    ('an array of dtype float64 and shape (3,)', 'a tuple of 2', 'None')
    """
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"


def same(one: Any, other: Any) -> bool:
    """Whether two observations are equal in every bit that counts; NaN equals NaN.

    >>> same({"a": np.zeros(2)}, {"a": np.zeros(2)}), same((1.0,), (2.0,))
    (True, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    try:
        first, second = np.asarray(one), np.asarray(other)
        nan = first.dtype.kind in "fc" and second.dtype.kind in "fc"
        return bool(np.array_equal(first, second, equal_nan=nan))
    except (TypeError, ValueError):  # something that is neither a number nor an array
        return type(one) is type(other)


def fault_of(error: BaseException, phase: str) -> Fault:
    """An exception with the last frames of the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(OURS)]
    own = [frame for frame in theirs if not frame.filename.startswith(FOREIGN)] or theirs
    lines = [*traceback.format_list(own[-MOST_FRAMES:]), *traceback.format_exception_only(error)]
    return Fault(phase, f"{type(error).__name__}: {error}"[:300], "".join(lines).rstrip())


def _generators() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - it is the user's use of it that is looked for
    inner = state["state"]
    return {
        "numpy.random": (inner["key"].tobytes(), inner["pos"], state["has_gauss"]),
        "random": random.getstate(),
    }


def _drawn(before: dict[str, Any]) -> frozenset[str]:
    now = _generators()
    return frozenset(name for name, state in before.items() if now[name] != state)


def replayed(episode: Episode) -> Sequence[Any]:
    """The actions of an episode."""
    return [row.action for row in episode.rows[1:]]


def chain(env: Any) -> Iterator[Any]:
    """The environment and all that it wraps, outermost first.

    >>> [type(one).__name__ for one in chain(gymnasium.make("CartPole-v1"))][-1]
    'CartPoleEnv'
    """
    seen = 0
    while env is not None and seen < 100:  # noqa: PLR2004 - a wrapper of itself
        yield env
        env, seen = getattr(env, "env", None), seen + 1
