"""A run directory that is being written to: held by a lock, and clear of what a dead writer left."""

from collections.abc import Callable
from pathlib import Path

from laser_rl import checkpoint
from laser_rl.checkpoint import RunLock
from laser_rl.errors import ConfigError
from laser_rl.metrics import machine, videos
from laser_rl.metrics.log import FILE


def hold(path: Path, settings: str, made_by: str, *, given: bool, settle: Callable[[], None]) -> RunLock:
    """Lock a directory, which is created if it is not there, and bring it into order; a second run in the same place is refused.

    Args:
        path: of the run.
        settings: the file that makes it one.
        made_by: the command that writes such a file, for the message if there is none and none is `given`.
        given: whether `settle` will write the settings.
        settle: called under the lock; if it fails, the lock is let go.
    """
    if not given and not (path / settings).exists():
        raise ConfigError(f"{path} is no run directory: it has no {settings}; '{made_by} --out {path}' makes one")
    path.mkdir(parents=True, exist_ok=True)
    lock = RunLock(path)
    try:
        checkpoint.remove_leftovers(path)
        settle()
    except BaseException:
        lock.release()
        raise
    return lock


def throw_away(path: Path) -> None:
    """All that an earlier run left and a new one would go on from."""
    checkpoint.clear(path)
    videos.clear(path)
    for old in [path / FILE, path / machine.FILE, *path.glob("events.*"), *path.glob("members/*/events.*")]:
        old.unlink(missing_ok=True)


def has_checkpoints(path: Path) -> bool:
    """Whether there is something to go on from, damaged or not."""
    return any(path.glob(f"{checkpoint.CHECKPOINTS}/step-*"))
