"""What an environment costs and leaves behind: time, memory, files, threads, processes."""

import gc
import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from laser_rl.envs.border import Env
from laser_rl.envs.examine.play import Watch, nobody
from laser_rl.envs.examine.records import Finding, Verdict
from laser_rl.envs.records import seed_of

CHUNKS = 6
LEAST_GROWTH = 8 << 20  # bytes; an allocator's own moods are smaller
LARGE_GROWTH = 32 << 20
LEAST_BYTES_A_STEP = 512
SLOW = 100.0  # steps a second
KINDS = {
    "files": "close what was opened (files, sockets, pipes) in close()",
    "threads": "tell threads to end and join them in close()",
    "processes": "end and wait for processes in close()",
}


@dataclass
class Run:
    """A stretch of play without any recording."""

    steps: int = 0
    episodes: int = 0
    step_s: float = 0.0
    reset_s: float = 0.0
    memory: list[int] = field(default_factory=list)  # resident bytes, after each part of the steps
    chunk_steps: int = 0

    @property
    def steps_per_second(self) -> float:
        """Resets included."""
        return self.steps / max(self.step_s + self.reset_s, 1e-9)


def run(env: Env, actions: Iterator[Any], *, seed: int, steps: int, seconds: float, watch: Watch = nobody) -> Run:
    """Play for so many steps or seconds; `actions` are the environment's own. Raises whatever the environment raises."""
    done, open_, number = Run(chunk_steps=max(1, steps // CHUNKS)), False, 0
    deadline, clock = time.monotonic() + seconds, time.perf_counter
    while done.steps < steps and time.monotonic() < deadline:
        if not open_:
            watch("reset", number, 0)
            chosen = int(seed_of(seed, np.array([0]), np.array([number]))[0])
            start = clock()
            env.reset(seed=chosen)
            done.reset_s += clock() - start
            open_, number = True, number + 1
        action = next(actions)
        watch("step", number - 1, done.steps)
        start = clock()
        result: Any = env.step(action)
        done.step_s += clock() - start
        done.steps += 1
        if bool(result[2]) or bool(result[3]):
            open_, done.episodes = False, done.episodes + 1
        if done.steps % done.chunk_steps == 0:
            gc.collect()
            done.memory.append(resident_bytes())
    return done


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
    each = growth / steps
    if growth < LEAST_GROWTH or each < LEAST_BYTES_A_STEP:
        return []
    verdict: Verdict = "defect" if growth >= LARGE_GROWTH else "warning"
    got = f"{growth / 1e6:,.0f} MB more after {steps:,} steps: {each * 1e6 / 1e9:,.1f} GB in a million steps"
    fix = "look for a list or dict that is added to in step or reset and never emptied; laser replaces no worker for its size"
    return [Finding("memory", verdict, "memory that does not grow from step to step", got, fix)]


def handles() -> dict[str, int]:
    """How many files are open and how many threads and processes there are, of this process.

    >>> handles()["threads"] >= 1
    True
    """
    return {"files": len(open_files()), "threads": _threads(), "processes": len(children())}


def open_files() -> list[str]:
    """What the descriptors of this process lead to."""
    found = []
    for name in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(name.readlink()))
        except OSError:  # the one that lists them is gone by now
            continue
    return sorted(found)


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def children() -> list[int]:
    """Processes that this one started and nobody has waited for."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            found += [int(number) for number in task.read_text().split()]
        except OSError:  # a thread that has just ended
            continue
    return found


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leaks(counts: Sequence[Mapping[str, int]], examples: Sequence[str] = ()) -> list[Finding]:
    """`counts` after each of several copies was built, played and closed; the first one may open what stays for good.

    >>> [found.got for found in leaks([{"files": 9, "threads": 1, "processes": 0 + copy} for copy in range(4)])]
    ['3 processes left by 3 copies']
    """
    found = []
    for kind, fix in KINDS.items():
        numbers = [count[kind] for count in counts]
        pairs = list(itertools.pairwise(numbers))
        if len(pairs) < 2 or not all(after > before for before, after in pairs):  # noqa: PLR2004 - once may be a cache
            continue
        seen = f", e.g. {examples[-1]}" if kind == "files" and examples else ""
        got = f"{numbers[-1] - numbers[0]} {kind} left by {len(pairs)} copies{seen}"
        found.append(Finding("handles", "defect", f"no {kind} left after close", got, fix))
    return found


def too_slow(done: Run) -> list[Finding]:
    """Says where the time goes.

    >>> [found.got for found in too_slow(Run(steps=10, episodes=1, step_s=0.1, reset_s=0.9))]
    ['10 steps/s: step takes 10.0 ms, reset 900.0 ms; 90 % of the time is spent in reset']
    """
    if not done.steps or done.steps_per_second >= SLOW:
        return []
    resets = max(1, done.episodes)
    share = done.reset_s / (done.reset_s + done.step_s)
    name, part = ("reset", share) if done.reset_s > done.step_s else ("step", 1 - share)
    where = f"{100 * part:.0f} % of the time is spent in {name}"
    got = (
        f"{done.steps_per_second:,.0f} steps/s: step takes {1e3 * done.step_s / done.steps:.1f} ms, "
        f"reset {1e3 * done.reset_s / resets:.1f} ms; {where}"
    )
    fix = "find the slow line with `python -m cProfile`, and train with --environment.placement process --environment.workers N"
    return [Finding("speed", "warning", f"at least {SLOW:.0f} steps a second in one process", got, fix)]
