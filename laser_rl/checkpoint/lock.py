"""One run at a time in a run directory.

The kernel's lock on `run.lock` decides; the owner's process inside the file is for the message, and for one case more: a child that
outlives its owner inherits the kernel's lock and would keep the directory for ever. So an owner that is dead, or whose number now
belongs to another process, loses it.
"""

import fcntl
import json
import os
import platform
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from laser_rl.checkpoint import guarded
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.errors import ConfigError

_NAME = "run.lock"
_LIMIT = 4096


@dataclass(frozen=True)
class Owner:
    """The process that holds a run directory."""

    pid: int
    started: str  # boot and clock tick of its start: a process number alone is reused
    host: str

    def alive(self) -> bool:
        """Whether it still runs; a process of another host is believed to."""
        return self.host != platform.node() or _started(self.pid) == self.started


class RunLock:
    """Owns a run directory until `release` or the end of the process.

    >>> import tempfile
    >>> run_dir = tempfile.mkdtemp()
    >>> with RunLock(run_dir):
    ...     owner(run_dir).pid == os.getpid()
    True
    >>> owner(run_dir) is None
    True
    """

    def __init__(self, run_dir: str | Path) -> None:
        self._path = Path(run_dir) / _NAME
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = _acquire(self._path) or _take_over(self._path)

    def release(self) -> None:
        """Give the directory back; may be called twice."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            # A forked child shares the lock: closing our handle alone would leave it locked.
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def owner(run_dir: str | Path) -> Owner | None:
    """The living process that owns a run directory, for those who only read it; None if nobody does."""
    found = _read_owner(Path(run_dir) / _NAME)
    return found if found is not None and found.alive() else None


def _acquire(path: Path) -> int | None:
    """The locked file with our name in it, or None if the lock is held."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if not path.is_symlink():
            raise
        raise ConfigError(f"{path} is a symbolic link, expected a file of its own; remove it") from error
    kept = False
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ConfigError(f"{path} is not a regular file, expected one; remove it")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another inode: the file was taken over between our open and our lock.
        if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(_this_process())).encode(), 0)
            os.fsync(handle)
            kept = True
    except BlockingIOError:
        pass
    finally:
        if not kept:
            os.close(handle)
    return handle if kept else None


def _take_over(path: Path) -> int:
    """The lock of an owner that is dead although a process that it started still holds the file; refuses if it lives."""
    # One at a time, or a second taker would remove the first one's new file.
    turn = os.open(path.with_suffix(".turn"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = _read_owner(path)
        if holder is not None and not holder.alive():
            path.unlink(missing_ok=True)
        handle = _acquire(path)
    except BlockingIOError:
        holder, handle = _read_owner(path), None
    finally:
        os.close(turn)
    if handle is None:
        who = f"process {holder.pid} on {holder.host}" if holder else "a process that is just starting"
        raise ConfigError(
            f"{path.parent} is in use by {who}, expected a directory without a run; "
            "stop that run first, or choose another directory"
        )
    return handle


def _read_owner(path: Path) -> Owner | None:
    try:
        with guarded.open_plain(path) as file:  # a pipe would be waited for for ever
            fields = json.loads(file.read(_LIMIT))
        return Owner(int(fields["pid"]), str(fields["started"]), str(fields["host"]))
    except (Damaged, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _this_process() -> Owner:
    return Owner(os.getpid(), _started(os.getpid()), platform.node())


def _started(pid: int) -> str:
    """When a process started, "" if it does not run (any more)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name in parentheses may hold anything, spaces and parentheses included.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, ticks = fields[0], fields[19]
    return "" if state in {"Z", "X"} else f"{boot}:{ticks}"
