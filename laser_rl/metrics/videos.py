"""The video files (films) in `videos/` of a run directory: their names, the JSON file beside each, and which of them are removed.

A film `step-….mp4` shows one episode. The JSON file of the same name has its facts, such as step and return, and is written first.
"""

import contextlib
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from laser_rl.disk import is_temporary, read_json

FOLDER = "videos"
BY_TRAINING, BY_ENJOY = "training", "enjoy"  # who made a film; only the first kind is ever removed
_MEDIA = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png"}
_MOST_TEXT = 200
_LARGEST = 2**53


class Film(NamedTuple):
    """One file, and what the JSON beside it says; None where it says nothing."""

    path: Path
    media: str
    time: float  # of the last change
    size: int
    step: int | None = None
    member: int | None = None
    task: str | None = None
    total: float | None = None  # the return
    length: int | None = None
    by: str | None = None


def facts_path(video: Path) -> Path:
    return video.with_suffix(".json")


def films(run_dir: str | Path, *, elsewhere: bool = False) -> list[Film]:
    """All films of a run, the newest first: plain files only, no links, so that nothing outside of its directory is ever shown.

    `elsewhere`: look into `videos` also if it is itself a link. For a process that makes films, never for one that shows them.
    """
    found, folder = [], Path(run_dir) / FOLDER
    if folder.is_symlink() and not elsewhere:
        return []
    try:
        every = [path for path in folder.iterdir() if path.suffix in _MEDIA and not path.name.startswith(".")]
    except OSError:
        return []
    for path in every:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append(_film(path, status.st_mtime, status.st_size))
    return sorted(found, key=lambda one: (-one.time, one.path.name))


def best(found: Sequence[Film]) -> Film | None:
    """The one with the highest return."""
    known = [one for one in found if one.total is not None]
    return max(known, key=lambda one: one.total or 0.0, default=None)


def prune(run_dir: str | Path, keep: int) -> None:
    """Remove all films of training but the last `keep` and the best of each task; `keep` 0 removes them all."""
    made = sorted(by_training(run_dir), key=lambda one: -(one.step or 0))
    leaders = [best([one for one in made if one.task == task]) for task in {one.task for one in made}] if keep else []
    for one in made[keep:]:
        if one not in leaders:
            one.path.unlink(missing_ok=True)  # before its facts: only they say that training made it
            facts_path(one.path).unlink(missing_ok=True)


def remove_unfinished(run_dir: str | Path) -> None:
    """Remove what writers that are dead left half written; a living one's files stay."""
    folder = Path(run_dir) / FOLDER
    for path in folder.iterdir() if folder.is_dir() else ():
        writer = path.name.rpartition("-")[0].rpartition(".")[2]
        if is_temporary(path.name) and not Path("/proc", writer).exists():
            path.unlink(missing_ok=True)


def by_training(run_dir: str | Path) -> list[Film]:
    return [one for one in films(run_dir, elsewhere=True) if one.by == BY_TRAINING]


def _film(path: Path, time: float, size: int) -> Film:
    facts = read_json(facts_path(path))
    numbers = {name: value for name, value in facts.items() if type(value) in {int, float} and abs(value) < _LARGEST}
    counts = {name: value for name, value in numbers.items() if isinstance(value, int) and value >= 0}
    task, by = facts.get("task"), facts.get("by")
    return Film(
        path,
        _MEDIA[path.suffix],
        time,
        size,
        **{name: counts.get(name) for name in ("step", "member", "length")},
        total=numbers.get("return"),
        task=task[:_MOST_TEXT] if isinstance(task, str) else None,
        by=by if by in (BY_TRAINING, BY_ENJOY) else None,
    )
