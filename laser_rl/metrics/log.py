"""`metrics.jsonl`, the one source of truth: append-only, one JSON object a line, one system call a line.

A run that is resumed says so in a row of its own, and rows that a later resume made void (what happened after the checkpoint that
it went back to) are dropped by the reader, never by the writer. In a sweep each member says so for itself, and the sweep for the rows
that are of no member.
"""

import hashlib
import json
import logging
import math
import numbers
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from laser_rl.errors import ConfigError, is_full
from laser_rl.metrics.page import open_regular
from laser_rl.metrics.sink import Kind, Row, Value
from laser_rl.metrics.stream import FIXED, Resumes, Stream, is_mark, rows_in

log = logging.getLogger("laser_rl.metrics")
FILE = "metrics.jsonl"
MOST_KEPT = 20_000  # rows that wait for space: some megabytes
TRY_S = 1.0
WALL_CLOCK = frozenset({"time", "memory_bytes"})  # differ from run to run of the same seed
WALL_CLOCK_ENDINGS = ("_per_second", "_seconds")


class MetricsLog:
    """The sink that appends to `metrics.jsonl` of a run directory.

    >>> import tempfile
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"entropy": 0.6, "kl": float("inf")})
    >>> [(row["step"], row["entropy"], row["kl"]) for row in read(run_dir)]
    [(640, 0.6, inf)]
    """

    def __init__(self, run_dir: str | Path, *, most_kept: int = MOST_KEPT) -> None:
        self.path = Path(run_dir) / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._late = LateLines(most_kept)
        self._newest = (0, 0)

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Append one row; the wall-clock time is added. On a full disk it is kept in memory, and written when there is space again."""
        if self._handle is None:
            raise ValueError(f"{self.path} is closed")
        clash = values.keys() & set(FIXED)
        if clash:
            raise ValueError(f"values hold {sorted(clash)}, which every row has already; use other names")
        self._newest = (int(step), int(update))
        line = self._line(kind, values)
        if not self._late.waiting and self._append(line):
            return
        self._late.add(line, keep=kind == "event")  # readers would miss the mark of a resume
        if self._late.due():
            self._catch_up()

    def _line(self, kind: Kind, values: Mapping[str, Value]) -> bytes:
        step, update = self._newest
        row: Row = {"kind": kind, "step": step, "update": update, "time": round(time.time(), 3)}
        row |= {name: _plain(value) for name, value in values.items()}
        return json.dumps(row, allow_nan=False).encode() + b"\n"

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

    def _catch_up(self) -> None:
        """Write what could not be written before, in order, as far as there is space."""
        if not self._late.waiting:
            return
        if self._late.write(self._append):
            waited_s, late, lost = self._late.over()
            log.warning("%s is written again after %.0f s: %d rows late, %d lost", self.path, waited_s, late, lost)
            if lost and not self._append(line := self._line("event", {"event": "rows_lost", "rows": lost})):
                self._late.add(line, keep=True)
        elif self._late.say():
            log.warning(
                "no space for rows of metrics in %s: the run goes on, and the newest %d are kept in memory until there is; "
                "free some space", self.path, self._late.most,
            )  # fmt: skip

    def resumed(self, step: int, update: int, member: int | None = None) -> None:
        """Say that the run goes on from a checkpoint: earlier rows (of this member) of later steps or updates are void."""
        self.write("event", step, update, {"event": "resumed"} | ({} if member is None else {"member": member}))

    def flush(self) -> None:
        """Force all rows to disk for which there is space."""
        if self._handle is not None:
            self._catch_up()
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
            if self._late.waiting:
                log.error("%d rows of metrics are lost: no space for them in %s", self._late.count, self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LateLines:
    """A bounded number of lines that wait for space; the oldest that may be dropped goes first, and is counted.

    Args:
        most: how many are kept.
        clock: in seconds.

    >>> late, written = LateLines(most=2), []
    >>> for line in (b"resumed", b"1", b"2", b"3"):
    ...     late.add(line, keep=line == b"resumed")
    >>> late.write(lambda line: written.append(line) is None), written, late.over()[1:]
    (True, [b'resumed', b'3'], (2, 2))
    """

    def __init__(self, most: int = MOST_KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self._clock = most, clock
        self._lines: deque[tuple[bytes, bool]] = deque()
        self._since = self._next = 0.0
        self._written = self._lost = 0
        self._said = False

    @property
    def waiting(self) -> bool:
        """Whether lines wait."""
        return bool(self._lines)

    @property
    def count(self) -> int:
        """How many wait or have been dropped."""
        return len(self._lines) + self._lost

    def add(self, line: bytes, *, keep: bool) -> None:
        """One more; one that is to be kept is never dropped."""
        if not self._lines:
            self._since = self._clock()
        self._lines.append((line, keep))
        if len(self._lines) > self.most:
            for place, (_, kept) in enumerate(self._lines):
                if not kept:
                    del self._lines[place]
                    self._lost += 1
                    break

    def due(self) -> bool:
        """Whether it is time to try again."""
        return self._clock() >= self._next

    def write(self, append: Callable[[bytes], bool]) -> bool:
        """Hand them on in order until one cannot be taken; whether all were."""
        while self._lines:
            if not append(self._lines[0][0]):
                self._next = self._clock() + TRY_S
                return False
            self._lines.popleft()
            self._written += 1
        return True

    def say(self) -> bool:
        """True the first time since all was well."""
        first, self._said = not self._said, True
        return first

    def over(self) -> tuple[float, int, int]:
        """All is well again: for how many seconds it was not, how many lines came late, how many were dropped."""
        found = (self._clock() - self._since, self._written, self._lost)
        self._written = self._lost = 0
        self._next, self._said = 0.0, False
        return found


def read(run_dir: str | Path, kinds: Collection[Kind] | None = None) -> list[Row]:
    """All rows that still hold, in order; of `kinds` only, if given. Also while the run is writing."""
    return [row for row in Stream(Path(run_dir) / FILE) if kinds is None or row["kind"] in kinds]


def read_from(path: str | Path, offset: int = 0) -> tuple[list[Row], int]:
    """The rows from byte `offset` on, void ones included, and the offset to go on from. Half a line is left for the next call.

    >>> import tempfile
    >>> log = MetricsLog(tempfile.mkdtemp())
    >>> log.write("train", 1, 1, {})
    >>> rows, offset = read_from(log.path)
    >>> log.write("train", 2, 2, {})
    >>> [row["step"] for row in read_from(log.path, offset)[0]]
    [2]
    >>> log.close()
    """
    try:
        with open_regular(Path(path)) as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    whole = data.rfind(b"\n") + 1
    return rows_in(data[:whole]), offset + whole


def valid(rows: Iterable[Row]) -> list[Row]:
    """Rows without those that a later resume of the same member made void; the marks of a resume themselves stay.

    >>> rows = [{"kind": "train", "step": 10 * n, "update": n} for n in (1, 2, 3)]
    >>> mark = {"kind": "event", "event": "resumed", "step": 20, "update": 2}
    >>> [(row["kind"], row["update"]) for row in valid([*rows, mark])]
    [('train', 1), ('train', 2), ('event', 2)]
    >>> len(valid([*rows, mark | {"member": 0}]))  # a mark of another member: nothing is void
    4
    """
    rows = list(rows)
    resumes = Resumes(row for row in rows if is_mark(row))
    return [row for row in rows if resumes.holds(row)]


def rows_hash(run_dir: str | Path) -> str:
    """SHA-256 of all rows that hold, without events and without what depends on the wall clock: equal for equal runs."""
    digest = hashlib.sha256()
    for row in Stream(Path(run_dir) / FILE):
        if row["kind"] == "event":
            continue
        timeless = {name: _plain(value) for name, value in row.items() if not is_wall_clock(name)}
        digest.update(json.dumps(timeless, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def is_wall_clock(name: str) -> bool:
    """Whether a number depends on the machine and the moment.

    >>> [is_wall_clock(name) for name in ("time", "steps_per_second", "memory_bytes", "replay_bytes")]
    [True, True, True, False]
    """
    return name in WALL_CLOCK or name.endswith(WALL_CLOCK_ENDINGS)


def _plain(value: Value) -> Value:
    """A value that JSON knows; numbers of NumPy and torch included."""
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)
