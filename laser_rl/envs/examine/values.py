"""Checks of single rows: each a function from a recording to findings."""

import copy
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from laser_rl.envs.border import LARGEST, PLAIN_FLAGS
from laser_rl.envs.examine.play import described
from laser_rl.envs.examine.records import Episode, Finding, Recording, Row, Verdict, merged

INFOS_LOOKED_AT = 50


class Wrong(NamedTuple):
    """What is wrong with one value."""

    check: str
    expected: str
    got: str
    fix: str
    verdict: Verdict = "defect"


def wrong_values(recording: Recording) -> list[Finding]:
    """All that is wrong with what reset and step returned, the first place of each kind.

    >>> space = spaces.Box(0, 1, (2,), np.float32)
    >>> late = Episode(0, 7, rows=[Row(np.zeros(2, np.float32)), Row(np.full(2, np.nan, np.float32), reward=1.0)])
    >>> [(found.check, found.where) for found in wrong_values(Recording(space, spaces.Discrete(2), [late]))]
    [('finite', 'slot 0, episode 0, step 1')]
    """
    found = [
        Finding(wrong.check, wrong.verdict, wrong.expected, wrong.got, wrong.fix, episode.place(step))
        for episode, step, row in recording.rows()
        for wrong in _of_row(recording, step, row)
    ]
    return merged([*found, *_objects(recording), *_faults(recording)])


def _of_row(recording: Recording, step: int, row: Row) -> Iterator[Wrong]:
    if row.odd:
        yield _interface(step, row)
    if not (row.odd and row.observation is None):
        yield from wrong_observation(recording.observation_space, row.observation, "observation")
        yield from _reward_and_flags(row)
    if not isinstance(row.info, Mapping):
        yield Wrong("info", "info to be a dict", described(row.info), "return {} if there is nothing to say")
    if row.altered:
        yield Wrong(
            "own arrays",
            "a returned observation to stay as it is",
            "the next step wrote into the array that had been returned",
            "return a copy: `return self._observation.copy(), ...`",
        )
    if row.action_space:
        yield Wrong(
            "action space",
            f"the action_space to stay {recording.action_space}",
            row.action_space,
            "keep one space for all time, and ignore or punish actions that are illegal now",
        )


def _interface(step: int, row: Row) -> Wrong:
    if step == 0:
        return Wrong(
            "interface",
            "(observation, info) from reset",
            row.odd,
            "return a tuple of two, `return observation, {}`, as Gymnasium does since 0.26",
        )
    fix = "return (observation, reward, terminated, truncated, info)"
    if row.odd == "a tuple of 4":
        fix = (
            "this is the step of the old Gym: split done into terminated (nothing can follow) and truncated (cut off by time), "
            "or wrap the environment with shimmy.GymV21CompatibilityV0"
        )
    return Wrong("interface", "five values from step", row.odd, fix)


def wrong_observation(space: spaces.Space[Any], value: Any, key: str) -> Iterator[Wrong]:
    """How a value departs from its space, part by part.

    >>> [wrong.got for wrong in wrong_observation(spaces.Box(0, 1, (2,), np.float32), np.zeros(3), "observation")]
    ['float64', '(3,)']
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            got = f"keys {sorted(map(str, value))}" if isinstance(value, Mapping) else described(value)
            yield Wrong(
                "observation",
                f"{key} with keys {sorted(space.spaces)}",
                got,
                "return every key of the space, and no other",
            )
            return
        for label, part in space.spaces.items():
            yield from wrong_observation(part, value[label], f"{key}[{label!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            yield Wrong(
                "observation",
                f"{key} to be a tuple of {len(space)}",
                described(value),
                "return every part of the space",
            )
            return
        for index, part in enumerate(space.spaces):
            yield from wrong_observation(part, value[index], f"{key}[{index}]")
    elif isinstance(space, spaces.Box):
        yield from _wrong_box(space, value, key)
    elif not _contains(space, value):
        yield Wrong("observation", f"{key} in {space}", described(value), "correct observation_space or the value")


def _contains(space: spaces.Space[Any], value: Any) -> bool:
    try:
        return space.contains(value)
    except Exception:  # a space of the user's own, asked about anything
        return False


def _wrong_box(space: spaces.Box, value: Any, key: str) -> Iterator[Wrong]:
    if not isinstance(value, np.ndarray):
        fix = f"return np.asarray(..., dtype=np.{space.dtype})"
        yield Wrong("observation", f"{key} to be a NumPy array", described(value), fix)
        return
    if value.dtype != space.dtype:
        fix = f"return it with .astype(np.{space.dtype}), or declare dtype=np.{value.dtype} in observation_space"
        yield Wrong("observation", f"{key} of dtype {space.dtype}", str(value.dtype), fix)
    if value.shape != space.shape:
        fix = "reshape what is returned, or declare that shape in observation_space"
        yield Wrong("observation", f"{key} of shape {space.shape}", str(value.shape), fix)
        return
    if value.dtype.kind not in "fiub":
        return
    bad = ~(np.abs(value.astype(np.float64, copy=False)) <= LARGEST)
    if value.dtype.kind == "f" and bad.any():
        at = _first_place(bad)
        fix = "find the division by zero, the root or logarithm of a negative number, or the sum that overflows"
        yield Wrong("finite", f"finite numbers in {key}", f"{value[at]} at {key}{list(at)}", fix)
    outside = ((value < space.low) | (value > space.high)) & ~bad
    if outside.any():
        at = _first_place(outside)
        expected = f"{key}{list(at)} within [{space.low[at]}, {space.high[at]}]"
        fix = "widen observation_space, or clip what is returned; training goes on with such values as they are"
        yield Wrong("observation", expected, str(value[at]), fix, "warning")


def _first_place(where: Any) -> tuple[int, ...]:
    return tuple(int(index[0]) for index in np.nonzero(where))


def _reward_and_flags(row: Row) -> Iterator[Wrong]:
    if not isinstance(row.reward, Real):
        yield Wrong("reward", "reward to be a real number", described(row.reward), "return float(reward)")
    elif not -LARGEST <= float(row.reward) <= LARGEST:
        fix = "find where it is divided by zero or sums up without bound; return a finite float"
        yield Wrong("reward", "a finite reward", str(row.reward), fix)
    for key, flag in (("terminated", row.terminated), ("truncated", row.truncated)):
        if type(flag) not in PLAIN_FLAGS:
            yield Wrong("flags", f"{key} to be a bool", described(flag), f"return bool({key})")


def _objects(recording: Recording) -> Iterator[Finding]:
    """Nothing of ours reads info but `lives`; other people's vectors send it between processes."""
    for count, (episode, step, row) in enumerate(recording.rows()):
        if count >= INFOS_LOOKED_AT:
            return
        if not isinstance(row.info, Mapping):
            continue
        for key, value in row.info.items():
            try:
                copy.deepcopy(value)  # as strict as sending it, but for functions; nothing here pickles
            except Exception as error:  # copying runs a user's code
                yield Finding(
                    "info", "warning", f"info[{key!r}] to be something that can be sent to another process",
                    f"{type(value).__name__} ({type(error).__name__}: {error})",
                    "put numbers, strings and arrays into info, not living objects", episode.place(step),
                )  # fmt: skip


def _faults(recording: Recording) -> Iterator[Finding]:
    for episode in recording.episodes:
        if episode.fault is not None:
            yield error_finding(episode, recording.action_space)


def error_finding(episode: Episode, action_space: spaces.Space[Any]) -> Finding:
    """The exception that ended an episode."""
    fault = episode.fault
    assert fault is not None  # noqa: S101  (for mypy; callers looked)
    step = len(episode.rows)
    fix = f"correct the line below, or handle this case; every action of {action_space} has to be playable"
    if fault.phase == "reset":
        fix = "correct the line below; reset(*, seed=None, options=None) has to work at any time, after any episode"
    return Finding(
        "errors", "defect", f"no exception in {fault.phase}", fault.error, fix, episode.place(step), fault.trace
    )
