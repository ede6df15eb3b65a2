"""`metrics.jsonl`, the one source of truth: append-only, one JSON object a line, one system call a line.

A run that is resumed says so in a row of its own, and rows that a later resume made void (what happened after the checkpoint that
it went back to) are dropped by the reader, never by the writer. In a sweep each member says so for itself, and the sweep for the rows
that are of no member.

However long a log is, a reader has one piece of it in memory. `rows_of` reads a log twice: the first pass looks for the marks of a resume,
the second knows at each row whether a later mark makes it void. `Tail` reads on while a log grows.
"""

import contextlib
import json
import math
import numbers
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl.disk import open_regular
from laser_rl.errors import ConfigError, is_full
from laser_rl.metrics.rows import Kind, Row, Value, rows_in

FILE = "metrics.jsonl"
MOST_KEPT = 20_000  # rows that wait for space: some megabytes
TRY_S = 1.0
PIECE_BYTES = 2 << 20
LONGEST_LINE_BYTES = 16 << 20  # no row of ours is that long
_LAST_BYTES = 8192
_MARK, _EVENT = b'"resumed"', b'{"kind": "event"'


class MetricsLog:
    """The sink that appends to `metrics.jsonl` of a run directory."""

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._newest = (0, 0)
        self._waiting: deque[bytes] = deque()  # lines without space on the disk
        self._next_try, self._lost = 0.0, 0  # when to look for space again, 0 while there is some; rows that are lost

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Append one row; the wall-clock time is added. On a full disk it is kept in memory, and written when there is space again."""
        if self._handle is None:
            raise ValueError(f"{self.path} is closed")
        self._newest = (int(step), int(update))
        self._waiting.append(self._line(kind, values))
        if len(self._waiting) > MOST_KEPT:
            # Events stay: readers would miss the mark of a resume.
            place = next((n for n, line in enumerate(self._waiting) if not line.startswith(_EVENT)), None)
            if place is not None:
                del self._waiting[place]
                self._lost += 1
        if time.monotonic() >= self._next_try:
            self._write_waiting()

    def resumed(self, step: int, update: int, member: int | None = None) -> None:
        """Say that the run goes on from a checkpoint: earlier rows (of this member) of later steps or updates are void."""
        self.write("event", step, update, {"event": "resumed"} | ({} if member is None else {"member": member}))

    def flush(self) -> None:
        """Force all rows to disk for which there is space."""
        if self._handle is not None:
            self._write_waiting()
            try:
                os.fsync(self._handle)
            except OSError as error:
                if not is_full(error):
                    raise

    def close(self) -> None:
        """Force all rows to disk and close the file; may be called twice."""
        self.flush()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            if self._waiting:
                count = len(self._waiting) + self._lost
                _logger().error("%d rows of metrics are lost: no space for them in %s", count, self.path)

    def _line(self, kind: Kind, values: Mapping[str, Value]) -> bytes:
        step, update = self._newest
        row: Row = {"kind": kind, "step": step, "update": update, "time": round(time.time(), 3)}
        row |= {name: _plain(value) for name, value in values.items()}
        return json.dumps(row, allow_nan=False).encode() + b"\n"

    def _write_waiting(self) -> None:
        """Write the lines that wait, in order, as far as there is space; say when the disk is full, and when it no longer is."""
        while self._waiting:
            if not self._append(self._waiting[0]):
                if not self._next_try:
                    _logger().warning(
                        "no space for rows of metrics in %s: the run goes on, and the newest %d are kept in memory until there is; "
                        "free some space", self.path, MOST_KEPT,
                    )  # fmt: skip
                self._next_try = time.monotonic() + TRY_S
                return
            self._waiting.popleft()
            if self._next_try and not self._waiting:
                _logger().warning("%s is written again; %d rows are lost", self.path, self._lost)
                if self._lost:
                    self._waiting.append(self._line("event", {"event": "rows_lost", "rows": self._lost}))
                self._next_try, self._lost = 0.0, 0

    def _append(self, line: bytes) -> bool:
        """One row, one system call; False if there was no space for all of it."""
        handle = self._handle
        if handle is None:
            return False
        size = os.fstat(handle).st_size
        # A killed writer, a full disk or another process may have left half a line: end it, so that it spoils no other.
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        whole = b"\n" * torn + line
        try:
            return os.write(handle, whole) == len(whole)
        except OSError as error:
            if not is_full(error):
                error.filename = str(self.path)  # what works on a handle does not know it
                raise
            return False


def _logger() -> Any:
    import logging  # noqa: PLC0415 - readers do without it

    return logging.getLogger("laser_rl.metrics")


class Limit(NamedTuple):
    """What a checkpoint holds: later rows, and evaluations after its last one, are void when a run goes back to it."""

    step: float
    update: float
    evaluated: float

    @classmethod
    def of(cls, mark: Row) -> "Limit":
        step = float(mark["step"])
        return cls(step, float(mark["update"]), min(step, float(mark.get("evaluated", step))))

    def voids(self, row: Row) -> bool:
        """Whether a row of the same member came later."""
        last = self.evaluated if row["kind"] == "evaluation" else self.step
        return float(row["step"]) > last or float(row["update"]) > self.update


def rows_of(path: str | Path) -> Iterator[Row]:
    """The rows of a log that hold, in order: those that no later mark of a resume of the same member makes void.

    Rows may be appended meanwhile; those after the first pass are left out.
    """
    path, end = Path(path), 0
    with contextlib.suppress(FileNotFoundError):
        end = path.lstat().st_size
    marks = [row for piece in _whole_pieces(path, end) if _MARK in piece for row in rows_in(piece) if _is_mark(row)]
    # By member; the last one is the lowest of all marks that are still to come.
    limits: dict[object, list[Limit]] = {}
    for mark in reversed(marks):
        own, limit = limits.setdefault(mark.get("member"), []), Limit.of(mark)
        own.append(Limit(*map(min, limit, own[-1])) if own else limit)
    for piece in _whole_pieces(path, end):
        for row in rows_in(piece):
            own = limits.get(row.get("member"), [])
            if own and _is_mark(row):
                own.pop()
            elif own and own[-1].voids(row):
                continue
            yield row


def _whole_pieces(path: Path, end: int) -> Iterator[bytes]:
    return (piece for piece in _pieces_from(path, 0, end) if piece.endswith(b"\n"))


class Tail:
    """The rows of a log, each once; `restarted` says that another file is there now, or a shorter one, and all begins anew."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: tuple[int, int] | None = None
        self.offset = 0
        self.size = 0  # of the file when it was last looked at: `offset / size` is how much of it is known

    def restarted(self) -> bool:
        """Look at the file; true, once, if what was read before is not what is there now (`--fresh`)."""
        file, self.size = None, 0
        with contextlib.suppress(OSError):
            found = self._path.lstat()
            file, self.size = (found.st_dev, found.st_ino), found.st_size
        if file is not None and self._file in {None, file} and self.size >= self.offset:
            self._file = file
            return False
        known = self.offset > 0
        self._file, self.offset = file, 0
        return known

    def read(self) -> list[Row]:
        """The rows of the next piece, void ones included; half a line is left for later, and so is a file that cannot be read."""
        rows: list[Row] = []
        with contextlib.suppress(ConfigError):
            rows, self.offset = read_from(self._path, self.offset, pieces_at_most=1)
        return rows


def read(run_dir: str | Path, kinds: Collection[Kind] | None = None) -> list[Row]:
    """All rows that still hold, in order; of `kinds` only, if given. Also while the run is writing."""
    return [row for row in rows_of(Path(run_dir) / FILE) if kinds is None or row["kind"] in kinds]


def read_from(path: str | Path, offset: int = 0, *, pieces_at_most: int | None = None) -> tuple[list[Row], int]:
    """The rows from byte `offset` on, void ones included, and the offset to go on from. Half a line is left for the next call."""
    rows: list[Row] = []
    for piece in islice(_pieces_from(Path(path), offset), pieces_at_most):
        # A line that is longer than any row is passed over, or it would be read again for ever.
        if piece.endswith(b"\n") or len(piece) >= LONGEST_LINE_BYTES:
            rows += rows_in(piece)
            offset += len(piece)
    return rows, offset


def last_row(path: Path) -> Row | None:
    """The last whole row of a log, without reading the rest of it."""
    rows: list[Row] = []
    with contextlib.suppress(OSError, ConfigError):
        rows, _ = read_from(path, max(0, path.lstat().st_size - _LAST_BYTES))
    return rows[-1] if rows else None


def _pieces_from(path: Path, offset: int, end: int = sys.maxsize) -> Iterator[bytes]:
    try:
        with open_regular(path) as file:
            file.seek(offset)
            yield from pieces(file, end)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def pieces(file: BufferedReader, left: int = sys.maxsize) -> Iterator[bytes]:
    """The next `left` bytes of a log, some whole lines at a time; a piece without a newline at its end is no row, but a part of a line."""
    rest = b""
    while data := file.read(min(PIECE_BYTES, left)):
        left, whole = left - len(data), data.rfind(b"\n") + 1
        if whole or len(rest) >= LONGEST_LINE_BYTES:
            yield rest + data[:whole]
            rest = data[whole:]
        else:
            rest += data
    if rest:
        yield rest


def _is_mark(row: Row) -> bool:
    return row["kind"] == "event" and row.get("event") == "resumed"


def _plain(value: Value) -> Value:
    """A value that JSON knows; numbers of NumPy and torch included."""
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)
