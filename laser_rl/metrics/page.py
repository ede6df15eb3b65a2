"""The small files of a run directory besides its rows: settings as JSON, by their full names, and how such files are written."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from laser_rl.errors import require_replaceable

REPORT = "report.html"
_JSON_LIMIT_BYTES = 4 << 20
_MOST_NAME_BYTES = 200  # of the 255 that a name may have


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading that is one; OSError for a link, which could lead out of the run, and a pipe, which might never end.

    >>> open_regular(Path("/dev/zero"))
    Traceback (most recent call last):
    OSError: [Errno 22] not a regular file: '/dev/zero'
    """
    return open_below(path.parent, path.name)


def open_below(root: Path, *names: str) -> BufferedReader:
    """Open a regular file below a folder, where no part of the way from there is a link; OSError if one is.

    Each part is opened from the one before it, so nobody can put a link in its place between a check and the opening.

    >>> open_below(Path("/"), "..", "etc", "hosts")
    Traceback (most recent call last):
    OSError: [Errno 22] not a name: '..'
    """
    here = folder_below(root, *names[:-1])
    try:
        handle = os.open(_name(names[-1]), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        error.filename = str(root.joinpath(*names))
        raise
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(root.joinpath(*names)))
    return os.fdopen(handle, "rb")


def folder_below(root: Path, *names: str) -> int:
    """The descriptor of a folder below another one, where no part of the way is a link; the caller closes it."""
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            inner = os.open(_name(name), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here


def _name(name: str) -> str:
    """One part of a path."""
    if name in {"", ".", ".."} or "/" in name:
        raise OSError(errno.EINVAL, "not a name", name)
    return name


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file, empty if there is none: a report is worth having without its configuration."""
    try:
        with open_regular(path) as file:
            data = file.read(_JSON_LIMIT_BYTES + 1)
        value = json.loads(data) if len(data) <= _JSON_LIMIT_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_text(path: Path, text: str) -> Path:
    """Write a file so that a reader, say a browser that reloads, never sees half of it. If that fails, nothing is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    require_replaceable(path)
    begin = path.name.encode(errors="surrogateescape")[:_MOST_NAME_BYTES].decode(errors="ignore")
    # Named as `checkpoint.atomic` does: what a killed process leaves in a run directory is removed at the next start.
    temporary = path.with_name(f".{begin}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        return temporary.replace(path)
    except OSError as error:
        error.filename = str(
            path
        )  # what works on a handle does not know it, and the temporary name tells nobody anything
        raise
    finally:
        with contextlib.suppress(OSError):  # the folder may not be written: then there is no such file
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> Path:
    """The same, for JSON."""
    return write_text(path, json.dumps(value, indent=1))


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by full name.

    >>> flat({"seed": 7, "loss": {"discount": 0.99}})
    {'seed': 7, 'loss.discount': 0.99}
    """
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict) and item:
            found |= flat(item, f"{prefix}{name}.")
        else:
            found[prefix + name] = item
    return found
