"""What an environment costs and leaves behind: time, memory, files, threads, processes."""

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laser_rl.tools.findings import CHECKS, Finding, Verdict

CHUNKS = 6
LEAST_GROWTH, LARGE_GROWTH = 8 << 20, 32 << 20  # bytes; an allocator's own moods are smaller
LEAST_BYTES_A_STEP = 512
SLOW = 100.0  # steps a second
LEFT_OPEN = {
    "files": "close what was opened (files, sockets, pipes) in close()",
    "threads": "tell threads to end and join them in close()",
    "processes": "end and wait for processes in close()",
}


@dataclass
class Run:
    """A stretch of play without any recording."""

    steps: int = 0
    ended: int = 0
    resets: int = 0
    step_s: float = 0.0
    reset_s: float = 0.0
    memory: list[int] = field(default_factory=list)  # resident bytes, after each part of the steps

    @property
    def total_s(self) -> float:
        """Resets included."""
        return max(self.step_s + self.reset_s, 1e-9)

    def __str__(self) -> str:
        step_ms, reset_ms = 1e3 * self.step_s / max(1, self.steps), 1e3 * self.reset_s / max(1, self.resets)
        name, share = ("reset", self.reset_s) if self.reset_s > self.step_s else ("step", self.step_s)
        where = f"{100 * share / self.total_s:.0f} % of the time is spent in {name}"
        return (
            f"{self.steps / self.total_s:,.0f} steps/s: step takes {step_ms:.1f} ms, reset {reset_ms:.1f} ms; {where}"
        )


def handles() -> dict[str, int]:
    """How many files are open and how many threads and processes there are, of this process.

    >>> handles()["threads"] >= 1
    True
    """
    own = Path("/proc/self")
    return {
        "files": len(list((own / "fd").iterdir())),
        "threads": len(list((own / "task").iterdir())),
        "processes": len(children()),
    }


def children() -> list[int]:
    """Processes that this one started and has not waited for."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += [int(number) for number in task.read_text().split()]
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


def no_end(steps: int, *, enough: bool) -> list[Finding]:
    """Episodes that do not end; `enough` says that many steps were played, not just all there was time for."""
    got = f"no end in {steps:,} steps of random play, and no TimeLimit"
    fix = (
        "register it with max_episode_steps=…, or wrap it with gymnasium.wrappers.TimeLimit: evaluations play whole episodes "
        "and would wait for ever"
    )
    return [Finding("length", "defect" if enough else "warning", "episodes that end or are cut off", got, fix)]


def too_slow(per_second: float, got: str) -> list[Finding]:
    """A warning below 100 steps a second."""
    fix = "find the slow line with `python -m cProfile`, and train with --environment.placement process --environment.workers N"
    return [Finding("speed", "warning", CHECKS["speed"], got, fix)] if 0 < per_second < SLOW else []


def memory_grows(memory: Sequence[int], chunk_steps: int) -> list[Finding]:
    """A leak grows in every part of the run, the first one left out: that fills caches.

    >>> memory_grows([100 << 20] * 6, 500)
    []
    >>> [found.verdict for found in memory_grows([(100 + 10 * part) << 20 for part in range(6)], 500)]
    ['defect']
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


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
