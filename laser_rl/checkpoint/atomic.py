"""Files that are there whole or not at all: written beside their place, forced to disk, then renamed into it."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from laser_rl.errors import is_full, require_replaceable

TEMPORARY = ".tmp"  # ends the name of everything unfinished; `leftovers` removes it at the next start
_CHUNK = 1 << 20
_UNFINISHED = re.compile(rf"\..+\.\d+-[0-9a-f]{{8}}{re.escape(TEMPORARY)}")
_MOST_NAME_BYTES = 200  # of the 255 that a name may have


def write_bytes(path: str | Path, data: bytes | Iterable[bytes]) -> None:
    """Write `data` so that a crash at any moment leaves the old file or the new one.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_bytes(folder / "a", b"old")
    >>> write_bytes(folder / "a", b"new")
    >>> (folder / "a").read_bytes(), [file.name for file in folder.iterdir()]
    (b'new', ['a'])
    """
    path = Path(path)
    with whole(path, sync=False) as temporary:
        write_through(temporary, data)


@contextlib.contextmanager
def whole(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """For a library that writes files by itself: it writes to the name that is handed out, which is renamed if nothing goes wrong.

    `sync`: force it to disk; False if that has been done.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "policy.onnx"
    >>> with whole(path) as temporary:
    ...     _ = temporary.write_bytes(b"model")
    ...     path.exists()
    False
    >>> path.read_bytes()
    b'model'
    """
    require_replaceable(path)
    temporary = temporary_beside(path)
    try:
        yield temporary
        if sync:
            sync_file(temporary)
        temporary.replace(path)
    except OSError as error:
        if error.filename is None or error.filename in {str(temporary), temporary}:
            error.filename, error.filename2 = str(path), None  # the temporary name tells nobody anything
        raise
    finally:
        with contextlib.suppress(OSError):  # the folder is not there, or may not be written: then there is no such file
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: str | Path, value: Any) -> None:
    r"""Write `value` as indented JSON, whole or not at all.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "config.json"
    >>> write_json(path, {"seed": 1})
    >>> path.read_text()
    '{\n  "seed": 1\n}\n'
    """
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


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


class Full(OSError):
    """There is no space for something of which the size is known.

    >>> print(Full(OSError(28, "No space left on device", "a"), needed=1_500_000))
    [Errno 28] No space left on device: 'a'
    """

    def __init__(self, error: OSError, needed: int) -> None:
        super().__init__(error.errno, error.strerror, error.filename)
        self.needed = needed  # bytes, about


@contextlib.contextmanager
def needing(size: int) -> Iterator[None]:
    """Around writing about `size` bytes: if there is no space for them, the error says how many they are.

    >>> with needing(1_500_000):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    laser_rl.checkpoint.atomic.Full: [Errno 28] No space left on device
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise Full(error, size) from error


def sync_file(path: Path) -> None:
    """Force a file that somebody else has written to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` to disk: without it, a rename may be forgotten when the power fails."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create `folder` and force its name to disk; its parents too."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def temporary_beside(path: Path) -> Path:
    """The name under which `path` is being written: hidden, of this process, and no earlier one's."""
    name = path.name.encode(errors="surrogateescape")[:_MOST_NAME_BYTES].decode(errors="ignore")
    return path.with_name(f".{name}.{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}")


def is_temporary(name: str) -> bool:
    """Whether `temporary_beside` makes such names: other programs have files that end in .tmp, too.

    >>> is_temporary(temporary_beside(Path("config.json")).name), is_temporary(".notes.tmp")
    (True, False)
    """
    return _UNFINISHED.fullmatch(name) is not None
