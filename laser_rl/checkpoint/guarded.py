"""Reading what somebody else may have written: no links, no pipes, no giants, and no name that leaves its folder."""

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from laser_rl.errors import DamagedRun, UserError

JSON_LIMIT_BYTES = 64 << 20  # Python's parser needs many times the text
_MOST_SAID = 300  # letters of a foreign error: it may repeat a value of any length
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Damaged(DamagedRun):
    """A file is not what it should be; `latest` turns it into a warning as long as there is an earlier checkpoint.

    >>> print(Damaged(Path("state.json"), "is missing"))
    state.json is missing
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path, self.why = path, why


class Newer(Damaged):
    """A file of a format that this release does not know.

    >>> print(Newer(Path("manifest.json"), 2, known=1))
    manifest.json has format 2, this release reads formats up to 1; please upgrade laser-rl
    """

    exit_status = UserError.exit_status

    def __init__(self, path: Path, found: object, known: int) -> None:
        super().__init__(path, f"has format {found}, this release reads formats up to {known}; please upgrade laser-rl")


def plain_name(name: str) -> bool:
    """Whether `name` is that of a file directly in its folder.

    >>> [plain_name(name) for name in ("state.json", "../state.json", "/etc/passwd", "a/b", ".hidden", "")]
    [True, False, False, False, False, False]
    """
    return _NAME.fullmatch(name) is not None


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading; a link could lead out of the run, and a pipe would be waited for for ever."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Damaged(path, "is missing") from None
    except OSError as error:
        what = "is a symbolic link, expected a file of its own" if path.is_symlink() else f"cannot be read: {error}"
        raise Damaged(path, what) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Damaged(path, "is not a regular file")
    return os.fdopen(handle, "rb")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A sector that cannot be read is damage like any other.

    >>> with reading(Path("state.json")):
    ...     raise OSError(5, "Input/output error")
    Traceback (most recent call last):
    laser_rl.checkpoint.guarded.Damaged: state.json cannot be read: [Errno 5] Input/output error
    """
    try:
        yield
    except OSError as error:
        raise Damaged(path, f"cannot be read: {error}") from error


def read_bytes(path: Path, *, limit: int) -> bytes:
    """All of a regular file of at most `limit` bytes; a larger one is refused unread."""
    with reading(path), open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise Damaged(path, f"has {size:,} bytes, expected at most {limit:,}")
        return file.read(size)  # not `limit`, which a forged manifest may set: that much would be allocated


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, which was read from `path`.

    >>> parse_json(Path("state.json"), b'{"update": 3}')
    {'update': 3}
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(path, f"holds a {type(value).__name__}, expected an object")
    return value


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Refuse a checkpoint whose bytes verify and whose contents do not fit: forged, or written by other code than it says.

    >>> with fitting(Path("step-000000000640")):
    ...     {}["learner"]
    Traceback (most recent call last):
    laser_rl.checkpoint.guarded.Damaged: step-000000000640 verifies, but does not hold what is needed here (KeyError: 'learner'); ...
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"[:_MOST_SAID]
        advice = "restore it from a copy, or use --fresh to start again"
        raise Damaged(path, f"verifies, but does not hold what is needed here ({what}); {advice}") from error
