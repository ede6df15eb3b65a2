"""What `laser check-env` writes down while it plays, what it reports, and the checks of whole episodes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Verdict = Literal["good", "warning", "defect", "not done"]

# What a good environment does, by the name of the check.
CHECKS = {
    "construction": "it can be built twice, and both copies have the same spaces",
    "spaces": "an observation_space and an action_space that an agent can be built for",
    "interface": "(observation, info) from reset, five values from step",
    "observation": "observations of the dtype, shape and bounds that observation_space declares",
    "finite": "finite numbers in observations",
    "reward": "one finite real number as reward",
    "flags": "terminated and truncated are bools",
    "info": "info is a dict",
    "own arrays": "an observation stays as it is after it was returned",
    "action space": "an action_space that stays the same",
    "errors": "no exception in the constructor, reset, step or close",
    "answers": "an answer in time",
    "repeatable": "the same seed and the same actions give the same episode",
    "seed": "an episode depends on its seed, not on the episodes before it",
    "generators": "random numbers come from self.np_random alone",
    "gymnasium": "nothing that Gymnasium's own checker objects to",
    "after the end": "an episode's last observation is its own, and nothing resets by itself",
    "length": "episodes end, or are cut off",
    "time limit": "an episode that is cut off is truncated, not terminated",
    "memory": "memory does not grow from step to step",
    "handles": "files, threads and processes go away with close",
    "workers": "it runs in two worker processes at once",
    "speed": "at least 100 steps a second in one process",
}
ALWAYS = frozenset({"errors", "answers"})  # belong to every stage


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `where` and `trace` (the user's own lines) are of the first time."""

    check: str
    verdict: Verdict
    expected: str
    got: str = ""
    fix: str = ""
    where: str = ""
    trace: str = ""
    times: int = 1


@dataclass
class CheckStopped(Exception):
    """The stage under way cannot go on."""

    finding: Finding


@dataclass
class CheckedRow:
    """What one call of reset or step returned; row 0 of an episode is that of reset."""

    observation: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    info: Any = field(default_factory=dict)
    action: Any = None  # of the step that led here, as the environment takes it

    @property
    def ends(self) -> bool:
        """Whether nothing follows, by the truth values of whatever the flags are."""
        try:
            return bool(self.terminated) or bool(self.truncated)
        except ValueError:  # an array
            return False


@dataclass
class CheckedEpisode:
    """One episode, from its reset on."""

    number: int
    seed: int
    rows: list[CheckedRow] = field(default_factory=list)
    slot: int = 0
    broken: bool = False  # by an exception

    @property
    def length(self) -> int:
        """Steps."""
        return len(self.rows) - 1

    @property
    def ended(self) -> bool:
        """Whether it came to its end."""
        return len(self.rows) > 1 and self.rows[-1].ends

    def place(self, step: int) -> str:
        """Where, for people."""
        return f"slot {self.slot}, episode {self.number}, step {step}"


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in every bit that counts; NaN equals NaN."""
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


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The first of each kind, with how often it was seen.

    >>> twice = [Finding("reward", "defect", "a number", "nan", "mend it", f"step {step}") for step in (1, 2)]
    >>> [(one.where, one.times) for one in merged(twice)]
    [('step 1', 2)]
    """
    first: dict[tuple[str, str, str], Finding] = {}
    for one in findings:
        key = (one.check, one.verdict, one.fix)
        known = first.get(key)
        first[key] = one if known is None else replace(known, times=known.times + one.times)
    return list(first.values())


def completed(found: Iterable[Finding], stages: Mapping[str, Iterable[str]], done: Iterable[str]) -> list[Finding]:
    """In the order of the checks: what was found, what is good, and what could not be looked at.

    Args:
        found: all findings.
        stages: the checks of every stage; empty if not even the stages are known.
        done: the stages that came to their end.
    """
    merged_findings, made = merged(found), {check for stage in done for check in stages[stage]} | ALWAYS
    applies = {check for checks in stages.values() for check in checks} | made
    complete: list[Finding] = []
    for check, expected in CHECKS.items():
        own = [one for one in merged_findings if one.check == check]
        if own:
            complete += own
        elif check in made:
            complete.append(Finding(check, "good", expected))
        elif check in applies or not stages:
            complete.append(Finding(check, "not done", expected))
    return complete


Array = NDArray[np.float64]
OWN_GENERATOR = "draw from self.np_random only, and begin reset with super().reset(seed=seed)"
FINAL_KEYS = frozenset({"final_obs", "final_observation", "terminal_observation"})
FEW_ENDS = 3  # below that, what episodes have in common may be chance
FEW_ROWS = 20
LONG = 50  # steps: games of a fixed number of moves are shorter, time limits longer
CLOSE = 1e-5
FEW_NUMBERS = 4  # of an array that is shown in full
LIMIT_NAMES = ("max_steps", "_max_steps", "max_episode_steps", "_max_episode_steps", "max_timesteps", "time_limit")
NO_RESET = (
    "return the episode's own last observation with terminated or truncated, and do not call reset inside of step"
)
TRUNCATE = (
    "return terminated=False, truncated=True there, or leave the limit to gymnasium.wrappers.TimeLimit: "
    "after `terminated` an agent believes that nothing could have followed"
)


class Difference(NamedTuple):
    """The first value in which two recordings of an episode differ."""

    step: int
    part: str
    one: Any
    other: Any


def difference(one: CheckedEpisode, other: CheckedEpisode) -> Difference | None:
    """Where two recordings part; an episode that was broken off agrees as far as it goes."""
    for step, (row, twin) in enumerate(zip(one.rows, other.rows, strict=False)):
        for part in ("observation", "reward", "terminated", "truncated"):
            if not same(getattr(row, part), getattr(twin, part)):
                return Difference(step, part, getattr(row, part), getattr(twin, part))
    return None


def repeatable(
    played: Iterable[CheckedEpisode], fresh: Sequence[CheckedEpisode], again: Iterable[CheckedEpisode]
) -> list[Finding]:
    """Compare episodes with what a fresh copy made of the same seeds and actions, and with what that copy made of them once more."""
    for one, found in _apart(played, fresh):
        return [_finding("repeatable", "the same seed and actions to give the same episode in two copies", one, found)]
    for one, found in _apart(fresh, again):
        apart = _finding("seed", "an episode to depend on its seed and its actions, not on those before it", one, found)
        if apart.verdict == "defect":
            apart = replace(
                apart, fix=f"set everything back in reset; {OWN_GENERATOR}, which starts anew with every seed"
            )
        # Something small was carried over (MinAtar: the last action, for its sticky ones): only exact resumes suffer.
        return [replace(apart, verdict="warning") if found.step else apart]
    return []


def _apart(
    some: Iterable[CheckedEpisode], others: Iterable[CheckedEpisode]
) -> Iterator[tuple[CheckedEpisode, Difference]]:
    """By slot and number: a slow machine plays fewer of them the second time."""
    known = {(one.slot, one.number): one for one in others}
    for one in some:
        found = difference(one, known[one.slot, one.number]) if (one.slot, one.number) in known else None
        if found is not None:
            yield one, found


def _finding(check: str, expected: str, episode: CheckedEpisode, found: Difference) -> Finding:
    try:
        tiny = bool(np.allclose(found.one, found.other, rtol=CLOSE, atol=CLOSE))
    except (TypeError, ValueError):
        tiny = False
    verdict: Verdict = "warning" if tiny else "defect"
    fix = "use one thread and no atomics if you need exact resumes; learning does not suffer from last digits"
    got = f"{found.part} {_brief(found.one)}, then {_brief(found.other)}"
    where = f"{episode.place(found.step)}, seed {episode.seed}"
    return Finding(check, verdict, expected, got, fix if tiny else OWN_GENERATOR, where)


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > FEW_NUMBERS and value.dtype.kind in "fiub":
        return f"array with sum {value.astype(np.float64).sum():.6g}"
    return str(value)[:80]


def flat(space: spaces.Space[Any], observation: Any) -> Array:
    """An observation as one vector; empty if it is not in its space, which is a finding of its own."""
    try:
        return np.asarray(spaces.flatten(space, observation), np.float64).ravel()
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return np.zeros(0)


def resets_itself(
    firsts: Sequence[Array], middles: Sequence[Array], finals: Sequence[Array], thens: Sequence[Array]
) -> list[Finding]:
    """Whether the environment resets inside of `step`: told by the observations at the ends of episodes.

    First observations lie in a box, those in the middle of an episode mostly outside of it. Last ones that all lie inside are first ones
    of the next episode. `thens` are the observations of one more step after each end, where that went on.
    """
    check, expected = (
        "after the end",
        "the last observation of an episode to be its own, and reset to be called by others",
    )
    sizes = {one.size for one in (*firsts, *middles, *finals, *thens)}
    if len(middles) < FEW_ROWS or len(thens) < max(FEW_ENDS, len(finals)) or len(sizes) != 1 or 0 in sizes:
        return []
    low, high = np.min(firsts, axis=0), np.max(firsts, axis=0)
    margin = high - low

    def like_first(some: Sequence[Array]) -> NDArray[np.bool_]:
        values = np.stack(some)
        return np.asarray(((values >= low - margin) & (values <= high + margin)).all(1))

    if 2 * like_first(middles).sum() >= len(middles):  # first observations cannot be told from the others
        return []
    if like_first(finals).all():
        got = f"all {len(finals)} last observations look like first ones, and the next step goes on from there"
        return [Finding(check, "defect" if margin.any() else "warning", expected, got, NO_RESET)]
    if like_first(thens).all():
        got = "the step after the last one begins a new episode by itself"
        return [Finding(check, "warning", expected, got, "take the automatic reset out; laser calls reset itself")]
    return []


def time_limits(
    space: spaces.Space[Any], episodes: Sequence[CheckedEpisode], own_limits: dict[str, int]
) -> list[Finding]:
    """Whether a limit of time is reported as an end of the task.

    Told by episodes that all terminate at one and the same step, although nothing in the observation counts the steps.
    """
    check, expected = "time limit", "truncated, not terminated, where only the time is up"
    ended = [episode for episode in episodes if episode.ended]
    for episode in ended:
        last = episode.rows[-1]
        if isinstance(last.info, dict) and last.info.get("TimeLimit.truncated") and same(last.terminated, True):
            got = "terminated together with info['TimeLimit.truncated']"
            return [Finding(check, "defect", expected, got, TRUNCATE, episode.place(episode.length))]
    longest = max((episode.length for episode in ended), default=0)
    at_limit = [episode for episode in ended if episode.length == longest]
    if len(at_limit) < FEW_ENDS or not all(same(episode.rows[-1].terminated, True) for episode in at_limit):
        return []
    names = [name for name, value in own_limits.items() if value == longest]
    if shows_clock(space, at_limit) or (longest < LONG and not names):
        return []
    where, got = (
        at_limit[0].place(longest),
        f"{len(at_limit)} of {len(ended)} episodes terminated at step {longest:,} exactly",
    )
    if names:
        return [Finding(check, "defect", expected, f"{got}, which is the environment's {names[0]}", TRUNCATE, where)]
    return [Finding(check, "warning", expected, got, f"if that is a limit of time: {TRUNCATE}", where)]


def shows_clock(space: spaces.Space[Any], episodes: Sequence[CheckedEpisode]) -> bool:
    """Whether a part of the observation counts the steps: then an end at a fixed step is part of the task."""
    tracks = [np.stack([flat(space, row.observation) for row in one.rows]) for one in episodes[:FEW_ENDS]]
    changes = np.diff(tracks[0], axis=0)
    alike = np.all([(track == tracks[0]).all(0) for track in tracks], axis=0)
    return bool((alike & ((changes > 0).all(0) | (changes < 0).all(0))).any())


def own_limits(parts: Iterable[Any]) -> dict[str, int]:
    """Attributes of an environment that look like a limit of its steps.

    >>> class Maze: max_steps = 200
    >>> own_limits([Maze()])
    {'max_steps': 200}
    """
    found = {}
    for part in parts:
        for name in LIMIT_NAMES:
            value = getattr(part, "__dict__", {}).get(name, getattr(type(part), name, None))
            if isinstance(value, int) and not isinstance(value, bool):
                found[name] = value
    return found
