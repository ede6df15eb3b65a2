"""Reading files that may be damaged or forged: no links, no pipes, no giants, and no name that leaves its folder."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from laser_rl import disk
from laser_rl.errors import DamagedRun, UserError

JSON_LIMIT_BYTES = 64 << 20  # Python's parser needs many times the text
_MOST_SAID = 300  # letters of a foreign error: it may repeat a value of any length
_WRONG = {  # errors of `open` that say what a file is; all others say nothing of it
    errno.ENOENT: "is missing",
    errno.ENOTDIR: "is missing: what should be its folder is none",
    errno.ELOOP: "is a symbolic link, expected a file of its own",
    errno.ENXIO: "is not a regular file",
    errno.EINVAL: "is not a regular file",
}
CHECKPOINTS, REPLAY = "checkpoints", "replay"  # folders of a run directory
REPLACED = ".replaced"
FOLDER = re.compile(rf"step-(\d{{12,18}})({re.escape(REPLACED)})?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Damaged(DamagedRun):
    """A file is not what it should be; `latest` turns it into a warning as long as there is an earlier checkpoint."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path, self.why = path, why


class OtherFormat(Damaged):
    """A file of a format that this release does not know."""

    exit_status = UserError.exit_status

    def __init__(self, path: Path, found: object, known: int) -> None:
        older = isinstance(found, int) and found < known
        what = "use the release that wrote it, or train again" if older else "please upgrade laser-rl"
        super().__init__(path, f"has format {found}, this release reads format {known}; {what}")


class Unreadable(UserError):
    """The system did not hand out a file or a folder: nothing is known of what it holds, so nothing may be deleted for it.

    Not `Damaged`: that is said of bytes that were read and are wrong.
    """

    exit_status = 6

    def __init__(self, path: Path, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        super().__init__(
            f"{path} cannot be read ({name}, {error.strerror or error}), and nothing was removed or changed because of it; "
            "make it readable, then give the same command again. If it is lost for good, move it away: what is missing counts as damaged"
        )
        self.path, self.why = path, f"cannot be read: {name}, {error.strerror or error}"


def plain_name(name: str) -> bool:
    """Whether `name` is that of a file directly in its folder."""
    return _NAME.fullmatch(name) is not None


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading; `Damaged` if it is missing or something else, `Unreadable` if that cannot be known."""
    try:
        return disk.open_regular(path)
    except OSError as error:
        if error.errno in _WRONG:
            raise Damaged(path, _WRONG[error.errno]) from None
        raise Unreadable(path, error) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A sector that cannot be read may be readable tomorrow, or on the disk's mirror: it is no damage."""
    try:
        yield
    except OSError as error:
        raise Unreadable(path, error) from error


def names_in(folder: Path) -> list[str]:
    """What a folder holds, sorted; nothing if there is no folder. `Unreadable` if that cannot be known."""
    try:  # not `glob` or `is_dir`: for them a folder that cannot be read is empty, or none
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError) as error:
        if folder.is_symlink():  # its disk may come back
            raise Unreadable(folder, error) from error
        return []
    except OSError as error:
        raise Unreadable(folder, error) from error


def newest_step(run_dir: Path) -> int | None:
    """The step of the newest checkpoint by its name, None if there is none; it may be damaged."""
    return max(map(step_of, newest_first(run_dir)), default=None)


def newest_first(run_dir: Path) -> list[Path]:
    """The folders of the checkpoints by their names."""
    folder = run_dir / CHECKPOINTS
    paths = [folder / name for name in names_in(folder) if FOLDER.fullmatch(name)]
    return sorted(paths, key=lambda path: (step_of(path), not path.name.endswith(REPLACED)), reverse=True)


def step_of(path: Path) -> int:
    return int(path.name.removesuffix(REPLACED).removeprefix("step-"))


def read_bytes(path: Path, *, limit: int) -> bytes:
    """All of a regular file of at most `limit` bytes; a larger one is refused unread."""
    with reading(path), open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise Damaged(path, f"has {size:,} bytes, expected at most {limit:,}")
        return file.read(size)  # not `limit`, which a forged manifest may set: that much would be allocated


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(path, f"holds a {type(value).__name__}, expected an object")
    return value


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Refuse a checkpoint whose bytes verify and whose contents do not fit: forged, or written by other code than it says."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"[:_MOST_SAID]
        advice = "restore it from a copy, or use --fresh to start again"
        raise Damaged(path, f"verifies, but does not hold what is needed here ({what}); {advice}") from error
