"""What a process holds, as the kernel counts it."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Held(NamedTuple):
    """Resident memory of its own and shared memory in bytes; open files; threads."""

    memory: int
    shared: int
    files: int
    threads: int


def held(pid=None):
    """Of a process, this one if none is named."""
    place = Path("/proc", str(pid or os.getpid()))
    lines = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    files = sum(1 for _ in (place / "fd").iterdir())
    return Held(_bytes(lines["RssAnon"]), _bytes(lines["RssShmem"]), files, int(lines["Threads"]))


def _bytes(text):
    return int(text.split()[0]) << 10


def slope(updates, values):
    """Growth in 1,000 updates, by the median of slopes between all pairs: a single step up or down does not move it."""
    updates, values = np.asarray(updates, float), np.asarray(values, float)
    first, second = np.triu_indices(len(updates), 1)
    return 1000 * float(np.median((values[second] - values[first]) / (updates[second] - updates[first])))
