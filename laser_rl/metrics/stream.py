"""`metrics.jsonl` as a stream: however long the log is, a reader has one piece of it in memory.

The log is read twice. The first pass looks for the marks of a resume, the second knows at each row whether a later mark makes it void.
"""

import math
import os
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from laser_rl.errors import ConfigError
from laser_rl.metrics.page import open_regular
from laser_rl.metrics.rows import rows_in
from laser_rl.metrics.sink import Row

PIECE_BYTES = 2 << 20
LONGEST_LINE_BYTES = 16 << 20  # no row of ours is that long
_MARK = b'"resumed"'


class _Limit(NamedTuple):
    """What a checkpoint holds: later rows, and evaluations after its last one, are void when a run goes back to it."""

    step: int
    update: int
    evaluated: float

    def voids(self, row: Row) -> bool:
        step = int(row["step"])
        late = row["kind"] == "evaluation" and step > self.evaluated  # the checkpoint was written before it
        return late or step > self.step or int(row["update"]) > self.update


class Resumes:
    """Tells which rows hold: those that no later mark of the same member makes void. Ask for every row once, in the order of the log.

    Args:
        marks: all rows that say "resumed", in order.

    >>> rows = [{"kind": "train", "step": 10 * n, "update": n} for n in (1, 2, 3)]
    >>> mark = {"kind": "event", "event": "resumed", "step": 20, "update": 2}
    >>> resumes = Resumes([mark])
    >>> [resumes.holds(row) for row in [*rows, mark]], resumes.void
    ([True, True, False, True], 1)
    """

    def __init__(self, marks: Iterable[Row]) -> None:
        limits: dict[object, list[_Limit]] = {}
        for mark in marks:
            limit = _Limit(int(mark["step"]), int(mark["update"]), float(mark.get("evaluated", math.inf)))
            limits.setdefault(mark.get("member"), []).append(limit)
        self._limits = {member: _lowest_later(own) for member, own in limits.items()}
        self._passed = dict.fromkeys(limits, 0)
        self.void = 0
        """How many rows did not hold."""

    def holds(self, row: Row) -> bool:
        """Whether the row counts; marks themselves do."""
        member = row.get("member")
        if member not in self._limits:
            return True
        if is_mark(row):
            self._passed[member] += 1
            return True
        passed, limits = self._passed[member], self._limits[member]
        void = passed < len(limits) and limits[passed].voids(row)
        self.void += void
        return not void


class Stream:
    """The rows of a log that hold, in order; also while a run writes it: what is appended after the first pass is left out.

    >>> list(Stream("nowhere/metrics.jsonl"))
    []
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._end, self.resumes = 0, Resumes(())
        if self._path.exists() or self._path.is_symlink():
            self._end = self._path.lstat().st_size
            self.resumes = Resumes(self._marks())

    def __iter__(self) -> Iterator[Row]:
        holds = self.resumes.holds
        for piece in self._pieces():
            for row in rows_in(piece):
                if holds(row):
                    yield row

    def _marks(self) -> Iterator[Row]:
        for piece in self._pieces():
            if _MARK in piece:
                lines = b"\n".join(line for line in piece.splitlines() if _MARK in line)
                yield from (row for row in rows_in(lines) if is_mark(row))

    def _pieces(self) -> Iterator[bytes]:
        if not self._end:
            return
        try:
            with open_regular(self._path) as file:
                yield from (piece for piece in pieces(file, self._end) if piece.endswith(b"\n"))
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from None


class Tail:
    """The rows of a log, each once; `restarted` says that another file is there now, or a shorter one, and all begins anew.

    >>> import tempfile
    >>> from laser_rl.metrics import MetricsLog
    >>> log = MetricsLog(tempfile.mkdtemp())
    >>> tail = Tail(log.path)
    >>> log.write("train", 1, 1, {})
    >>> [row["step"] for row in tail.read()], tail.read()
    ([1], [])
    >>> log.close()
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: tuple[int, int] | None = None
        self.offset = 0
        self.size = 0
        """Of the file when it was last looked at: `offset / size` is how much of it is known."""

    def restarted(self) -> bool:
        """Look at the file; true, once, if what was read before is not what is there now (`--fresh`)."""
        try:
            found = self._path.lstat()
        except OSError:
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):  # a pipe would be waited for for ever
            self.size = 0
            return self._begin_again(None)
        self.size = found.st_size
        same = self._file in {None, (found.st_dev, found.st_ino)} and found.st_size >= self.offset
        if same:
            self._file = (found.st_dev, found.st_ino)
            return False
        return self._begin_again((found.st_dev, found.st_ino))

    def read(self, most_bytes: int = PIECE_BYTES) -> list[Row]:
        """The rows of the next piece, void ones included; half a line is left for later."""
        try:
            with open_regular(self._path) as file:
                file.seek(self.offset)
                data = file.read(most_bytes)
                while data and b"\n" not in data and len(data) < LONGEST_LINE_BYTES:
                    more = file.read(most_bytes)
                    if not more:
                        break
                    data += more
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) >= LONGEST_LINE_BYTES:
            whole = len(data)  # no row of ours is that long: skip it, or we would read it for ever
        self.offset += whole
        return rows_in(data[:whole])

    def _begin_again(self, file: tuple[int, int] | None) -> bool:
        known = self.offset > 0
        self._file, self.offset = file, 0
        return known


def last_row(path: Path, most_bytes: int = 8192) -> Row | None:
    """The last whole row of a log, without reading the rest of it."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            data = file.read(most_bytes)
    except OSError:
        return None
    rows = rows_in(data[: data.rfind(b"\n") + 1])
    return rows[-1] if rows else None


def pieces(file: BufferedReader, end: int | None = None) -> Iterator[bytes]:
    r"""The bytes of a log up to `end`, some whole lines at a time.

    A piece without a newline at its end is no row: half a line at the end of the log, or a part of a line that is longer than any row.

    >>> import io
    >>> list(pieces(io.BytesIO(b"first\nsecond\nthi")))
    [b'first\nsecond\n', b'thi']
    """
    left, rest = end, b""
    while data := file.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left)):
        left = None if left is None else left - len(data)
        whole = data.rfind(b"\n") + 1
        if whole:
            yield rest + data[:whole]
            rest = data[whole:]
        else:
            rest += data
        if len(rest) >= LONGEST_LINE_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def is_mark(row: Row) -> bool:
    """Whether the row says that a run, or a member, goes on from a checkpoint."""
    return row["kind"] == "event" and row.get("event") == "resumed"


def _lowest_later(marks: list[_Limit]) -> list[_Limit]:
    """For each mark the lowest limits of it and those after it."""
    found, lowest = [], marks[-1]
    for mark in reversed(marks):
        step, update = min(lowest.step, mark.step), min(lowest.update, mark.update)
        lowest = _Limit(step, update, min(lowest.evaluated, mark.evaluated))
        found.append(lowest)
    return found[::-1]
