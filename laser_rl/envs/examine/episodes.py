"""Checks of whole episodes: repeatable, seeded, ending as they should. Functions from what was recorded to findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.examine.play import described, same
from laser_rl.envs.examine.records import Episode, Fault, Finding, Recording, Row, Verdict

FINAL_KEYS = frozenset({"final_obs", "final_observation", "terminal_observation"})
OWN_GENERATOR = "draw from self.np_random only, and begin reset with super().reset(seed=seed)"
FEW_ENDS = 3  # below that, what episodes have in common may be chance
FEW_ROWS = 20
LONG = 50  # steps: games of a fixed number of moves are shorter, time limits longer
CLOSE = 1e-5


@dataclass(frozen=True)
class Difference:
    """Where two recordings of an episode part."""

    step: int
    part: str
    one: Any
    other: Any

    @property
    def tiny(self) -> bool:
        """Whether only the last digits differ."""
        try:
            return bool(np.allclose(self.one, self.other, rtol=CLOSE, atol=CLOSE))
        except (TypeError, ValueError):
            return False


def difference(one: Episode, other: Episode) -> Difference | None:
    """The first row in which two recordings differ; an episode that was broken off agrees as far as it goes.

    >>> first = Episode(0, 1, rows=[Row(np.zeros(1)), Row(np.ones(1), reward=1.0)])
    >>> again = Episode(0, 1, rows=[Row(np.zeros(1)), Row(np.ones(1), reward=2.0)])
    >>> difference(first, again)
    Difference(step=1, part='reward', one=1.0, other=2.0)
    """
    for step, (row, twin) in enumerate(zip(one.rows, other.rows, strict=False)):
        for part in ("observation", "reward", "terminated", "truncated"):
            if not same(getattr(row, part), getattr(twin, part)):
                return Difference(step, part, getattr(row, part), getattr(twin, part))
    return None


def repeatable(played: Sequence[Episode], fresh: Sequence[Episode], again: Sequence[Episode]) -> list[Finding]:
    """Compare episodes with what a fresh copy made of the same seeds and actions, and with what the same copy made of them once more."""
    for one, other in _paired(played, fresh):
        found = difference(one, other)
        if found is not None:
            expected = "the same seed and the same actions to give the same episode in two copies"
            return [_apart("repeatable", expected, one, found, OWN_GENERATOR)]
    for one, other in _paired(fresh, again):
        found = difference(one, other)
        if found is not None:
            expected = "an episode to depend on its seed and its actions, not on the episodes before it"
            fix = f"set everything back in reset; {OWN_GENERATOR}, which starts anew with every seed"
            apart = _apart("seed", expected, one, found, fix)
            # Something small was carried over (MinAtar: the last action, for its sticky ones): only exact resumes suffer.
            return [replace(apart, verdict="warning") if found.step else apart]
    return []


def _paired(some: Sequence[Episode], others: Sequence[Episode]) -> Iterator[tuple[Episode, Episode]]:
    """By slot and number: a slow machine plays fewer of them the second time."""
    known = {(one.slot, one.number): one for one in others}
    return ((one, known[one.slot, one.number]) for one in some if (one.slot, one.number) in known)


def _apart(check: str, expected: str, episode: Episode, found: Difference, fix: str) -> Finding:
    verdict: Verdict = "warning" if found.tiny else "defect"
    if found.tiny:
        fix = "use one thread and no atomics if you need exact resumes; learning does not suffer from last digits"
    got = f"{found.part} {_brief(found.one)}, then {_brief(found.other)}"
    return Finding(check, verdict, expected, got, fix, f"{episode.place(found.step)}, seed {episode.seed}")


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > 4:  # noqa: PLR2004 - more is not read
        return (
            f"array with sum {value.astype(np.float64).sum():.6g}" if value.dtype.kind in "fiub" else described(value)
        )
    return str(value)


def global_generators(episodes: Sequence[Episode], *, repeats: bool) -> list[Finding]:
    """Whether reset or step drew from a generator that everybody shares."""
    for episode in episodes:
        if episode.drew:
            names = " and ".join(sorted(episode.drew))
            return [
                Finding(
                    "generators", "warning" if repeats else "defect",
                    "the generators that the whole program shares to be left alone", f"{names} used in reset or step",
                    f"replace it: {OWN_GENERATOR}", f"slot {episode.slot}, episode {episode.number}",
                )
            ]  # fmt: skip
    return []


def seeds_matter(episodes: Sequence[Episode], *, seeded: bool) -> list[Finding]:
    """Episodes of different seeds under the same actions; `seeded`: the environment handed the seed to Gymnasium's generator."""
    if len(episodes) < FEW_ENDS or any(difference(episodes[0], other) for other in episodes[1:]):
        return []
    if seeded or episodes[0].fault is not None:  # a task without chance
        return []
    got = f"the same {episodes[0].length} steps for {len(episodes)} seeds, and self.np_random was never seeded"
    return [
        Finding(
            "seed", "warning", "different seeds to give different episodes", got,
            f"{OWN_GENERATOR}; if the task has no chance in it, call super().reset(seed=seed) all the same",
        )
    ]  # fmt: skip


@dataclass
class Ending:
    """The last row of an episode, and what one more step without a reset brought."""

    final: Row
    then: Row | None
    fault: Fault | None = None


@dataclass
class Endings:
    """Some episodes, seen with an eye on their ends."""

    space: spaces.Space[Any]
    firsts: list[Any]
    middles: list[Any]
    ends: list[Ending]
    wrappers: list[str] = field(default_factory=list)


def after_the_end(seen: Endings) -> list[Finding]:
    """Whether the environment resets by itself.

    It is known by its last observations: all of them look like first ones, while those in the middle of an episode do not.
    """
    check, expected = (
        "after the end",
        "the last observation of an episode to be its own, and reset to be called by others",
    )
    for ending in seen.ends:
        keys = FINAL_KEYS & set(ending.final.info if isinstance(ending.final.info, dict) else ())
        if keys:
            got = f"info has {sorted(keys)}: the observation is already the next episode's first"
            return [Finding(check, "defect", expected, got, _NO_RESET)]
    going_on = [one.then for one in seen.ends if one.then is not None and not one.then.ends]
    if len(going_on) < max(FEW_ENDS, len(seen.ends)):
        return []
    start = _Start.of(seen)
    if start is None:
        return []
    if all(start.holds(one.final.observation) for one in seen.ends):
        got = f"all {len(seen.ends)} last observations look like first ones, and the next step goes on from there"
        return [Finding(check, "defect" if start.varies else "warning", expected, got, _NO_RESET)]
    if any("autoreset" in name.lower() for name in seen.wrappers) or all(
        start.holds(row.observation) for row in going_on
    ):
        got = "the step after the last one begins a new episode by itself"
        return [Finding(check, "warning", expected, got, "take the automatic reset out; laser calls reset itself")]
    return []


_NO_RESET = (
    "return the episode's own last observation with terminated or truncated, and do not call reset inside of step"
)


@dataclass(frozen=True)
class _Start:
    """Where episodes begin: a box around the first observations, with a margin."""

    space: spaces.Space[Any]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    varies: bool

    @classmethod
    def of(cls, seen: Endings) -> "_Start | None":
        """None if first observations cannot be told from the others."""
        if len(seen.middles) < FEW_ROWS or len(seen.ends) < FEW_ENDS:
            return None
        try:
            firsts = np.stack([flat_numbers(seen.space, one) for one in seen.firsts])
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):  # not in its space: a finding of its own
            return None
        margin = firsts.max(0) - firsts.min(0)
        start = cls(seen.space, firsts.min(0) - margin, firsts.max(0) + margin, bool(margin.any()))
        away = sum(not start.holds(one) for one in seen.middles)
        return start if 2 * away > len(seen.middles) else None

    def holds(self, observation: Any) -> bool:
        try:
            numbers = flat_numbers(self.space, observation)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            return False
        return numbers.shape == self.low.shape and bool(((numbers >= self.low) & (numbers <= self.high)).all())


def flat_numbers(space: spaces.Space[Any], observation: Any) -> NDArray[np.float64]:
    """An observation as one vector.

    >>> flat_numbers(spaces.Discrete(3), 1).tolist()
    [0.0, 1.0, 0.0]
    """
    return np.asarray(spaces.flatten(space, observation), np.float64).ravel()


def episodes_end(longest: int, ended: int, *, limited: bool, steps: int, enough: bool) -> list[Finding]:
    """Whether episodes end: `enough` says that many steps were played, not just all there was time for.

    >>> [found.verdict for found in episodes_end(30_000, 0, limited=False, steps=30_000, enough=True)]
    ['defect']
    """
    if ended or limited or not steps:
        return []
    got = f"no end in {longest:,} steps of random play, and no TimeLimit"
    fix = (
        "register it with max_episode_steps=…, or wrap it with gymnasium.wrappers.TimeLimit: evaluations play whole episodes "
        "and would wait for ever"
    )
    return [Finding("length", "defect" if enough else "warning", "episodes that end or are cut off", got, fix)]


def time_limits(recording: Recording) -> list[Finding]:
    """Whether a limit of time is reported as an end of the task.

    Told by episodes that all terminate at one and the same step, although nothing in the observation counts the steps.
    """
    check, expected = "time limit", "truncated, not terminated, where only the time is up"
    ended = [episode for episode in recording.episodes if episode.ended]
    for episode in ended:
        last = episode.rows[-1]
        if isinstance(last.info, dict) and last.info.get("TimeLimit.truncated") and same(last.terminated, True):
            got = "terminated together with info['TimeLimit.truncated']"
            return [Finding(check, "defect", expected, got, _TRUNCATE, episode.place(episode.length))]
    longest = max((episode.length for episode in ended), default=0)
    at_limit = [episode for episode in ended if episode.length == longest]
    if len(at_limit) < FEW_ENDS or not all(same(episode.rows[-1].terminated, True) for episode in at_limit):
        return []
    if shows_clock(recording.observation_space, at_limit):
        return []
    names = [name for name, value in recording.own_limits.items() if value == longest]
    where = at_limit[0].place(longest)
    if names:
        got = f"{len(at_limit)} episodes terminated at step {longest:,} exactly, which is the environment's {names[0]}"
        return [Finding(check, "defect", expected, got, _TRUNCATE, where)]
    if longest < LONG:
        return []
    got = f"{len(at_limit)} of {len(ended)} episodes terminated at step {longest:,} exactly"
    return [Finding(check, "warning", expected, got, f"if that is a limit of time: {_TRUNCATE}", where)]


_TRUNCATE = (
    "return terminated=False, truncated=True there, or leave the limit to gymnasium.wrappers.TimeLimit: "
    "after `terminated` an agent believes that nothing could have followed"
)


def shows_clock(space: spaces.Space[Any], episodes: Sequence[Episode]) -> bool:
    """Whether a part of the observation counts the steps: then an end at a fixed step is part of the task.

    >>> rows = [Row(np.array([t, 0.5], np.float32)) for t in range(4)]
    >>> shows_clock(spaces.Box(0, 9, (2,), np.float32), [Episode(0, 1, rows=rows), Episode(1, 2, rows=rows)])
    True
    """
    try:
        tracks = [np.stack([flat_numbers(space, row.observation) for row in one.rows]) for one in episodes[:FEW_ENDS]]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return False
    first = tracks[0]
    alike = np.ones(first.shape[1], np.bool_)
    for track in tracks[1:]:
        alike &= (track == first).all(0)
    changes = np.diff(first, axis=0)
    return bool((alike & ((changes > 0).all(0) | (changes < 0).all(0))).any())


def running_statistics(parts: Iterator[Any]) -> str:
    """The first wrapper that keeps a running mean and variance, as Gymnasium's NormalizeObservation does; empty if none does.

    >>> class Scaled: obs_rms = None
    >>> running_statistics(iter([object(), Scaled()]))
    'Scaled'
    """
    for part in parts:
        names = {*dir(type(part)), *getattr(part, "__dict__", ())}
        if any(name.endswith("_rms") for name in names):
            return type(part).__name__
    return ""


def own_limits(parts: Iterator[Any]) -> dict[str, int]:
    """Attributes of an environment that look like a limit of its steps.

    >>> class Maze: max_steps = 200
    >>> own_limits(iter([Maze()]))
    {'max_steps': 200}
    """
    found: dict[str, int] = {}
    for part in parts:
        for name in (
            "max_steps",
            "_max_steps",
            "max_episode_steps",
            "_max_episode_steps",
            "max_timesteps",
            "time_limit",
        ):
            value = vars(part).get(name, getattr(type(part), name, None)) if hasattr(part, "__dict__") else None
            if isinstance(value, int) and not isinstance(value, bool):
                found[name] = value
    return found
