"""What `laser doctor` asks of a file system: room, and the promises that checkpoints rest on."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from laser_rl.cli.probes import GB, Line

LEAST_DISK_GB, LITTLE_DISK_GB = 0.5, 10.0
SLOW_SYNC_S = 0.5
SKEW_S = 2.0


def disk(folder: Path) -> Iterator[Line]:
    """The file system of the run directories: room, and whether it keeps the promises that checkpoints rest on."""
    place = _existing(folder)
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize / GB
    found = f"{free:,.1f} GB free for {folder}"
    if free < LEAST_DISK_GB:
        yield Line("disk", "bad", found, "free some space, or name another place with --out")
    elif free < LITTLE_DISK_GB:
        yield Line("disk", "warning", found, "enough for small tasks; a replay of pictures takes several GB")
    else:
        yield Line("disk", "good", found)
    yield promises(place)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def promises(place: Path) -> Line:
    """Write, sync, rename over an older file, lock: in a temporary folder that is removed again."""
    try:
        with tempfile.TemporaryDirectory(prefix=".laser-doctor-", dir=place) as name:
            folder = Path(name)
            start = time.perf_counter()
            _renamed(folder)
            sync_s = time.perf_counter() - start
            locked = _locks(folder / "lock")
            skew = time.time() - (folder / "a").stat().st_mtime
    except OSError as error:
        todo = f"make {place} writable, or name another place with --out"
        return Line("files", "bad", f"{type(error).__name__}: {error}", todo)
    found = f"atomic rename and fsync work ({1e3 * sync_s:.0f} ms)"
    if not locked:
        todo = "two runs could write to one directory: put runs on a local disk, or mount with locks"
        return Line("files", "bad", f"{found}, locks do not", todo)
    if abs(skew) > SKEW_S:
        todo = "its clock is another one than this machine's: set both by NTP, or ages of files will be wrong"
        return Line("files", "warning", f"{found}, times of files are {skew:.0f} s off", todo)
    if sync_s > SLOW_SYNC_S:
        return Line("files", "warning", found, "a slow disk: save less often with --run.checkpoint-every-steps")
    return Line("files", "good", f"{found}, locks work, times agree")


def _renamed(folder: Path) -> None:
    for text in ("old", "new"):
        beside = folder / "b"
        with beside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / "a")
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    if (folder / "a").read_text() != "new":
        raise OSError("a renamed file has the content of the old one")


def _locks(path: Path) -> bool:
    """Whether a second opening of a locked file is refused the lock."""
    with path.open("w") as first, path.open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
