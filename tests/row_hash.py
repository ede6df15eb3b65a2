"""What two runs that should be equal are compared by."""

import hashlib
import json
import math
from pathlib import Path

from laser_rl.metrics.log import FILE, rows_of

WALL_CLOCK, WALL_CLOCK_ENDINGS = {"time", "memory_bytes"}, ("_per_second", "_seconds")


def rows_hash(run_dir):
    """SHA-256 of all rows that hold, without events and without what depends on the wall clock: equal for equal runs."""
    digest = hashlib.sha256()
    for row in rows_of(Path(run_dir) / FILE):
        if row["kind"] != "event":
            timeless = {name: _plain(value) for name, value in row.items() if not _is_wall_clock(name)}
            digest.update(json.dumps(timeless, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _is_wall_clock(name):
    return name in WALL_CLOCK or name.endswith(WALL_CLOCK_ENDINGS)


def _plain(value):
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
