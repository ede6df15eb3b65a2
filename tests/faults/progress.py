"""How far a run is, by its rows and by its newest checkpoint."""

from pathlib import Path
from typing import NamedTuple

from laser_rl import checkpoint
from laser_rl.metrics.log import read


class Point(NamedTuple):
    """The slowest member's step, and the updates of all members together."""

    step: int = 0
    updates: int = 0


def saved(path: Path) -> Point:
    """By the newest checkpoint that verifies."""
    loaded = checkpoint.latest(path) if path.exists() else None
    if loaded is None:
        return Point()
    members = loaded.state.get("members", [loaded.state])
    return Point(loaded.step, sum(member["learner"]["version"] for member in members))


def written(path: Path) -> Point:
    """By the rows that hold."""
    newest: dict[object, tuple[int, int]] = {}
    for row in read(path, ("train", "episode")) if path.exists() else ():
        before = newest.get(row.get("member"), (0, 0))
        newest[row.get("member")] = max(before[0], int(row["step"])), max(before[1], int(row["update"]))
    if not newest:
        return Point()
    return Point(min(step for step, _ in newest.values()), sum(update for _, update in newest.values()))
