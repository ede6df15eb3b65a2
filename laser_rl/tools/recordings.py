"""What `laser check-env` records while it plays, and its judgements about recordings and measurements."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.border import OLD_STEP_PARTS, RESET_PARTS, STEP_PARTS
from laser_rl.tools.findings import CHECKS, Finding, Verdict

Array = NDArray[np.float64]
FEW_ENDS = 3  # below that, what episodes have in common may be chance
FEW_ROWS = 20
LONG = 50  # steps: games of a fixed number of moves are shorter, time limits longer
CLOSE = 1e-5
FEW_NUMBERS = 4  # of an array that is shown in full
CHUNKS = 6  # parts of a run, after each of which memory is measured
LEAST_GROWTH, LARGE_GROWTH = 8 << 20, 32 << 20  # bytes; an allocator's own moods are smaller
LEAST_BYTES_A_STEP = 512
SLOW = 100.0  # steps a second
LIMIT_NAMES = ("max_steps", "_max_steps", "max_episode_steps", "_max_episode_steps", "max_timesteps", "time_limit")
OWN_GENERATOR = "draw from self.np_random only, and begin reset with super().reset(seed=seed)"
NO_RESET = (
    "return the episode's own last observation with terminated or truncated, and do not call reset inside of step"
)
TRUNCATE = (
    "return terminated=False, truncated=True there, or leave the limit to gymnasium.wrappers.TimeLimit: "
    "after `terminated` an agent believes that nothing could have followed"
)
LEFT_OPEN = {
    "files": "close what was opened (files, sockets, pipes) in close()",
    "threads": "tell threads to end and join them in close()",
    "processes": "end and wait for processes in close()",
}


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


def row_of(result: Any, *, first: bool) -> CheckedRow:
    """What was returned, read as kindly as possible; what cannot be read ends the episode."""
    size = len(result) if isinstance(result, tuple) else 0
    if first and size == RESET_PARTS:
        return CheckedRow(result[0], info=result[1])
    if first:
        return CheckedRow(result[0] if size else result)
    if size == STEP_PARTS:
        return CheckedRow(*result)
    if size == OLD_STEP_PARTS:
        return CheckedRow(result[0], result[1], result[2], info=result[3])
    return CheckedRow(None, terminated=True)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, part by part; NaN equals NaN."""
    try:
        np.testing.assert_equal(one, other)
    except (AssertionError, TypeError, ValueError):
        return False
    return True


def episode_facts(episodes: Sequence[CheckedEpisode]) -> dict[str, Any]:
    """Lengths and returns of the episodes that came to their end."""
    whole = [episode for episode in episodes if episode.ended and not episode.broken]
    steps = sum(max(0, episode.length) for episode in episodes)
    return {"lengths": [one.length for one in whole], "returns": [_return(one) for one in whole], "played_steps": steps}


def _return(episode: CheckedEpisode) -> float:
    try:
        return float(sum(float(row.reward) for row in episode.rows))
    except (TypeError, ValueError):  # a reward that is no number: a finding of its own
        return float("nan")


def repeatable(
    played: Iterable[CheckedEpisode], fresh: Sequence[CheckedEpisode], again: Iterable[CheckedEpisode] = ()
) -> list[Finding]:
    """Compare episodes with what a fresh copy made of the same seeds and actions, and with what that copy made of them once more."""
    expected = "the same seed and actions to give the same episode in two copies"
    if found := _first_difference("repeatable", expected, played, fresh):
        return [found[1]]
    expected = "an episode to depend on its seed and its actions, not on those before it"
    if found := _first_difference("seed", expected, fresh, again):
        step, apart = found
        if apart.verdict == "defect":
            fix = f"set everything back in reset; {OWN_GENERATOR}, which starts anew with every seed"
            # Something small was carried over (MinAtar: the last action, for its sticky ones): only exact resumes suffer.
            apart = replace(apart, fix=fix, verdict="warning" if step else "defect")
        return [apart]
    return []


def _first_difference(
    check: str, expected: str, some: Iterable[CheckedEpisode], others: Iterable[CheckedEpisode]
) -> tuple[int, Finding] | None:
    """The step at which two recordings of an episode part; one that was broken off agrees as far as it goes."""
    known = {(one.slot, one.number): one for one in others}  # a slow machine plays fewer of them the second time
    for one in some:
        rows = known[one.slot, one.number].rows if (one.slot, one.number) in known else []
        for step, (row, twin) in enumerate(zip(one.rows, rows, strict=False)):
            for part in ("observation", "reward", "terminated", "truncated"):
                values = getattr(row, part), getattr(twin, part)
                if not same(*values):
                    where = f"{one.place(step)}, seed {one.seed}"
                    got = f"{part} {_brief(values[0])}, then {_brief(values[1])}"
                    verdict, fix = _how_far(*values)
                    return step, Finding(check, verdict, expected, got, fix, where)
    return None


def _how_far(one: Any, other: Any) -> tuple[Verdict, str]:
    try:
        tiny = bool(np.allclose(one, other, rtol=CLOSE, atol=CLOSE))
    except (TypeError, ValueError):
        tiny = False
    fix = "use one thread and no atomics if you need exact resumes; learning does not suffer from last digits"
    return ("warning", fix) if tiny else ("defect", OWN_GENERATOR)


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
    space: spaces.Space[Any], episodes: Sequence[CheckedEpisode], own_limits: Mapping[str, int]
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
    if _shows_clock(space, at_limit) or (longest < LONG and not names):
        return []
    where = at_limit[0].place(longest)
    got = f"{len(at_limit)} of {len(ended)} episodes terminated at step {longest:,} exactly"
    if names:
        return [Finding(check, "defect", expected, f"{got}, which is the environment's {names[0]}", TRUNCATE, where)]
    return [Finding(check, "warning", expected, got, f"if that is a limit of time: {TRUNCATE}", where)]


def _shows_clock(space: spaces.Space[Any], episodes: Sequence[CheckedEpisode]) -> bool:
    """Whether a part of the observation counts the steps: then an end at a fixed step is part of the task."""
    tracks = [np.stack([flat(space, row.observation) for row in one.rows]) for one in episodes[:FEW_ENDS]]
    changes = np.diff(tracks[0], axis=0)
    alike = np.all([(track == tracks[0]).all(0) for track in tracks], axis=0)
    return bool((alike & ((changes > 0).all(0) | (changes < 0).all(0))).any())


def own_limits(parts: Iterable[Any]) -> dict[str, int]:
    """Attributes of an environment, or of what it wraps, that look like a limit of its steps.

    >>> class Maze: max_steps = 200
    >>> own_limits([Maze()])
    {'max_steps': 200}
    """
    found = {}
    for part, name in itertools.product(parts, LIMIT_NAMES):
        value = getattr(part, "__dict__", {}).get(name, getattr(type(part), name, None))
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
    return found


def leaks(counts: Sequence[Mapping[str, int]]) -> list[Finding]:
    """`counts` after each of several copies was built, played and closed; the first one may open what stays for good.

    >>> [found.got for found in leaks([{"files": 9, "threads": 1, "processes": 0 + copy} for copy in range(4)])]
    ['3 processes left by 3 copies']
    """
    found = []
    for kind, fix in LEFT_OPEN.items():
        numbers = [count[kind] for count in counts]
        pairs = list(itertools.pairwise(numbers))
        if len(pairs) > 1 and all(after > before for before, after in pairs):  # once may be a cache
            got = f"{numbers[-1] - numbers[0]} {kind} left by {len(pairs)} copies"
            found.append(Finding("handles", "defect", f"no {kind} left after close", got, fix))
    return found


def no_end(steps: int, *, enough: bool) -> Finding:
    """Episodes that do not end; `enough` says that many steps were played, not just all there was time for."""
    got = f"no end in {steps:,} steps of random play, and no TimeLimit"
    fix = (
        "register it with max_episode_steps=…, or wrap it with gymnasium.wrappers.TimeLimit: evaluations play whole episodes "
        "and would wait for ever"
    )
    return Finding("length", "defect" if enough else "warning", "episodes that end or are cut off", got, fix)


def too_slow(per_second: float, got: str) -> list[Finding]:
    """A warning below 100 steps a second."""
    fix = "find the slow line with `python -m cProfile`, and train with --environment.placement process --environment.workers N"
    return [Finding("speed", "warning", CHECKS["speed"], got, fix)] if 0 < per_second < SLOW else []


def memory_grows(memory: Sequence[int], chunk_steps: int) -> list[Finding]:
    """A leak grows in every part of the run, the first one left out: that fills caches.

    >>> [memory_grows([(100 + growth * part) << 20 for part in range(6)], 500) != [] for growth in (0, 10)]
    [False, True]
    """
    later = list(memory[1:])
    if len(later) < CHUNKS - 2 or any(after <= before for before, after in itertools.pairwise(later)):
        return []
    growth, steps = later[-1] - later[0], chunk_steps * (len(later) - 1)
    if growth < LEAST_GROWTH or growth / steps < LEAST_BYTES_A_STEP:
        return []
    verdict: Verdict = "defect" if growth >= LARGE_GROWTH else "warning"
    got = f"{growth / 1e6:,.0f} MB more after {steps:,} steps: {growth / steps / 1e3:,.1f} GB in a million steps"
    fix = "look for a list or dict that is added to in step or reset and never emptied; laser replaces no worker for its size"
    return [Finding("memory", verdict, CHECKS["memory"], got, fix)]
