"""How every file of a run directory is written, so that a crash leaves it whole, and read, although another user may have written it.

A file is written beside its place, forced to disk and renamed into it. A reader opens regular files only: a link could lead out of the run,
and reading a pipe could block for ever.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from laser_rl.errors import ConfigError

_CHUNK = 1 << 20
_UNFINISHED = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")
_MOST_NAME_BYTES = 200  # of the 255 that a name may have
JSON_LIMIT_BYTES = 4 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_bytes(path: str | Path, data: bytes | Iterable[bytes]) -> None:
    """Write `data` so that a crash at any moment leaves the old file or the new one."""
    with whole(Path(path), sync=False) as temporary:
        write_through(temporary, data)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def whole(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Hand out a temporary name for a library that writes files by itself, and rename the file if nothing goes wrong.

    `sync`: force it to disk; False if that has been done. ConfigError if something else is in its place: a folder, or a device such as
    /dev/null, which a rename would replace.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise ConfigError(f"{path} is not a regular file, expected one or none; choose another name")
    temporary = temporary_beside(path)
    try:
        yield temporary
        if sync:
            sync_path(temporary)
        temporary.replace(path)
    except OSError as error:
        if error.filename is None or error.filename in {str(temporary), temporary}:
            error.filename, error.filename2 = str(path), None  # the user does not know the temporary name
        raise
    finally:
        with contextlib.suppress(OSError):  # the folder is not there, or may not be written: then there is no such file
            temporary.unlink(missing_ok=True)
    sync_path(path.parent)


def write_through(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a new file and force it to disk; not atomic by itself."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        for block in [data] if isinstance(data, bytes) else data:
            view = memoryview(block)
            while view:
                view = view[os.write(handle, view[:_CHUNK]) :]  # a full disk writes less than was asked, then raises
        os.fsync(handle)
    except OSError as error:
        error.filename = error.filename or str(path)  # what works on a handle does not know it
        raise
    finally:
        os.close(handle)


def sync_path(path: Path) -> None:
    """Force a file to disk, or the names in a folder: without that, a rename may be forgotten when the power fails."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create `folder` and force its name to disk; its parents too."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


def temporary_beside(path: Path) -> Path:
    """The name under which `path` is being written: hidden, with the number of this process, and no earlier one's."""
    name = path.name.encode(errors="surrogateescape")[:_MOST_NAME_BYTES].decode(errors="ignore")
    return path.with_name(f".{name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def is_temporary(name: str) -> bool:
    """Whether `temporary_beside` makes such names: other programs have files that end in .tmp, too."""
    return _UNFINISHED.fullmatch(name) is not None


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; OSError for a link, and EINVAL for a pipe or a device."""
    return _regular(os.open(path, _READ | os.O_NONBLOCK), path)


def open_in_folder(path: Path) -> BufferedReader:
    """Open a regular file for reading; OSError if it, or the folder that it is in, is a link.

    The file is opened from the folder, so that no link can be put in the folder's place between a check and the opening.
    """
    folder = os.open(path.parent, _READ | os.O_DIRECTORY)
    try:
        return _regular(os.open(path.name, _READ | os.O_NONBLOCK, dir_fd=folder), path)
    finally:
        os.close(folder)


def _regular(handle: int, path: Path) -> BufferedReader:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file, empty if it is missing, damaged or too large: a report is worth having without its configuration."""
    try:
        with open_regular(path) as file:
            data = file.read(JSON_LIMIT_BYTES + 1)
        value = json.loads(data) if len(data) <= JSON_LIMIT_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
