"""What `laser check-env` records while it plays, and its judgements about recordings and measurements."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.tools.findings import CHECKS, Finding, Verdict

Array = NDArray[Any]
FEW_ENDS = 3  # below that, what episodes have in common may be chance
LONG = 50  # steps: games of a fixed number of moves are shorter, time limits longer
CLOSE = 1e-5
FEW_NUMBERS = 4  # of an array that is shown in full
CHUNKS = 6  # parts of a run, after each of which memory is measured
LEAST_GROWTH, LARGE_GROWTH = 8 << 20, 32 << 20  # bytes; an allocator's own moods are smaller
LEAST_BYTES_A_STEP = 512
SLOW = 100.0  # steps a second
OWN_GENERATOR = "draw from self.np_random only, and begin reset with super().reset(seed=seed)"
TRUNCATE = (
    "return terminated=False, truncated=True there, or leave the limit to gymnasium.wrappers.TimeLimit: "
    "after `terminated` an agent believes that nothing could have followed"
)
LAST_DIGITS = "use one thread and no atomics if you need exact resumes; learning does not suffer from last digits"


class CheckedRow(NamedTuple):
    """What an agent sees of one reset or step; row 0 of an episode is that of reset."""

    observation: Array
    reward: float
    terminated: bool
    truncated: bool


@dataclass
class CheckedEpisode:
    """One episode of a slot, from its reset on."""

    slot: int
    number: int
    seed: int
    rows: list[CheckedRow] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Steps."""
        return len(self.rows) - 1

    @property
    def ended(self) -> bool:
        """Whether it came to its end."""
        return self.rows[-1].terminated or self.rows[-1].truncated

    def place(self, step: int) -> str:
        """A step of the episode, as messages name it."""
        return f"slot {self.slot}, episode {self.number}, step {step}"


def episode_facts(episodes: Sequence[CheckedEpisode]) -> dict[str, Any]:
    """Lengths and returns of the episodes that came to their end."""
    ended = [episode for episode in episodes if episode.ended]
    return {
        "lengths": [one.length for one in ended],
        "returns": [sum(row.reward for row in one.rows) for one in ended],
        "played_steps": sum(one.length for one in episodes),
    }


def repeatable(played: Iterable[CheckedEpisode], fresh: Iterable[CheckedEpisode]) -> list[Finding]:
    """The first difference between episodes and what a fresh copy made of the same seeds and actions."""
    known = {(one.slot, one.number): one.rows for one in fresh}  # a slow machine plays fewer of them the second time
    for one in played:
        for step, (row, twin) in enumerate(zip(one.rows, known.get((one.slot, one.number), []), strict=False)):
            for part in CheckedRow._fields:
                value, other = getattr(row, part), getattr(twin, part)
                if not np.array_equal(value, other):
                    tiny = np.allclose(value, other, rtol=CLOSE, atol=CLOSE)
                    verdict: Verdict = "warning" if tiny else "defect"
                    expected = "the same seed and actions to give the same episode in two copies"
                    got, fix = f"{part} {_brief(value)}, then {_brief(other)}", LAST_DIGITS if tiny else OWN_GENERATOR
                    return [Finding("repeatable", verdict, expected, got, fix, f"{one.place(step)}, seed {one.seed}")]
    return []


def _brief(value: Any) -> str:
    few = np.size(value) <= FEW_NUMBERS
    return str(value) if few else f"array with sum {np.sum(value, dtype=np.float64):.6g}"


def time_limits(episodes: Sequence[CheckedEpisode]) -> list[Finding]:
    """Whether a limit of time is reported as an end of the task.

    Told by episodes that all terminate at one and the same step, although nothing in the observation counts the steps.
    """
    ended = [episode for episode in episodes if episode.ended]
    longest = max((episode.length for episode in ended), default=0)
    at_limit = [episode for episode in ended if episode.length == longest]
    terminated = all(episode.rows[-1].terminated for episode in at_limit)
    if longest < LONG or len(at_limit) < FEW_ENDS or not terminated or _shows_clock(at_limit):
        return []
    got = f"{len(at_limit)} of {len(ended)} episodes terminated at step {longest:,} exactly"
    fix = f"if that is a limit of time: {TRUNCATE}"
    return [Finding("time limit", "warning", CHECKS["time limit"], got, fix, at_limit[0].place(longest))]


def _shows_clock(episodes: Sequence[CheckedEpisode]) -> bool:
    """Whether a part of the observation counts the steps: then an end at a fixed step is part of the task."""
    tracks = [np.stack([row.observation.ravel() for row in one.rows]) for one in episodes[:FEW_ENDS]]
    changes = np.diff(tracks[0].astype(np.float64), axis=0)
    alike = np.all([(track == tracks[0]).all(0) for track in tracks], axis=0)
    return bool((alike & ((changes > 0).all(0) | (changes < 0).all(0))).any())


def no_end(steps: int, *, enough: bool) -> Finding:
    """Episodes that do not end; `enough` says that many steps were played, not just all there was time for."""
    got = f"no end in {steps:,} steps of random play, and no TimeLimit"
    fix = (
        "register it with max_episode_steps=…, or wrap it with gymnasium.wrappers.TimeLimit: evaluations play whole episodes "
        "and would wait for ever"
    )
    return Finding("length", "defect" if enough else "warning", CHECKS["length"], got, fix)


def too_slow(per_second: float, got: str) -> list[Finding]:
    """A warning below 100 steps a second."""
    fix = "find the slow line with `python -m cProfile`, and train with --environment.placement process --environment.workers N"
    return [Finding("speed", "warning", CHECKS["speed"], got, fix)] if 0 < per_second < SLOW else []


def memory_grows(memory: Sequence[int], chunk_steps: int) -> list[Finding]:
    """A leak grows in every part of the run, the first one left out: that fills caches."""
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
