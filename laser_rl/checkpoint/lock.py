"""One run at a time in a run directory.

The kernel's lock on `run.lock` decides, and nothing else: a process number says nothing in another container, or on another host. The
kernel lets go of it when its holder ends, however that happens. The name of the holder inside the file is for the message only.
"""

import contextlib
import fcntl
import json
import os
import time
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from laser_rl import disk
from laser_rl.errors import ConfigError

NAME = "run.lock"
_PATIENCE_S, _PAUSE_S = 0.3, 0.01  # `owner` holds the lock for an instant


class Owner(NamedTuple):
    """The process that holds a run directory, by the number that it has on its own host or in its own container."""

    pid: int
    host: str


class RunLock(AbstractContextManager["RunLock"]):
    """Owns a run directory until `release` or the end of the process."""

    def __init__(self, run_dir: Path) -> None:
        self._handle: int | None = _acquire(run_dir / NAME)
        _held.add(self)

    def release(self) -> None:
        # Forgotten first: a child that is forked meanwhile must not close a number that is used again.
        handle, self._handle = self._handle, None
        if handle is not None:
            os.ftruncate(handle, 0)
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def leave(self) -> None:
        """In the child of a fork: the lock is the parent's, and must not outlive it here."""
        if self._handle is not None:
            os.close(self._handle)  # not unlocked: that would unlock the parent's
            self._handle = None

    def __exit__(self, *error: object) -> None:
        self.release()


_held: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


def _leave_all() -> None:
    for lock in list(_held):
        lock.leave()


os.register_at_fork(after_in_child=_leave_all)


def owner(run_dir: Path) -> Owner | None:
    """The process that owns a run directory, for those who only read it; None if the kernel says that no process does."""
    try:
        with disk.open_regular(run_dir / NAME) as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            return _owner_in(file.read(4096))
    except OSError:
        return None


def _acquire(path: Path) -> int:
    begun = time.monotonic()
    while (handle := _try(path)) is None:
        if time.monotonic() - begun > _PATIENCE_S:
            holder = owner(path.parent)
            named = f"process {holder.pid} on {holder.host}" if holder and holder.pid else None
            who = named or "a process that is just starting"
            raise ConfigError(
                f"{path.parent} is in use by {who}, expected a directory without a run; "
                "stop that run first, or choose another directory"
            )
        time.sleep(_PAUSE_S)
    return handle


def _try(path: Path) -> int | None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ConfigError(f"{path} is a symbolic link or no regular file, expected a file of its own; remove it")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(Owner(os.getpid(), os.uname().nodename)._asdict()).encode(), 0)
        os.fsync(handle)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            return None
        error.filename = error.filename or str(path)  # what works on a handle does not know it
        raise
    return handle


def _owner_in(data: bytes) -> Owner:
    """What the holder wrote; number 0 if it has not written yet."""
    try:
        fields = json.loads(data)
        return Owner(int(fields["pid"]), str(fields["host"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Owner(0, "this host")
