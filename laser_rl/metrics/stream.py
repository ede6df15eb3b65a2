"""What a row of `metrics.jsonl` is, and how logs are read: however long one is, a reader has one piece of it in memory.

A file may be damaged or forged, and arithmetic with its rows must not fail. `Stream` reads a log twice: the first pass looks for the marks
of a resume, the second knows at each row whether a later mark makes it void. `Tail` reads on while a log grows.
"""

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, get_args

from laser_rl.errors import ConfigError
from laser_rl.metrics.page import open_regular
from laser_rl.metrics.sink import Kind, Row, Value

PIECE_BYTES = 2 << 20
LONGEST_LINE_BYTES = 16 << 20  # no row of ours is that long
_MARK = b'"resumed"'
FIXED = ("kind", "step", "update", "time")  # what every row has
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers
MOST_MEMBERS = 1000  # tables of members by members are made of what is read
_KINDS = frozenset(get_args(Kind))
_WHOLE = frozenset({int, bool})
_MOST = 1 << 63  # a count beyond it is none, and may be too large for a float
_COUNTS = {"step": _MOST, "update": _MOST, "member": MOST_MEMBERS, "donor": MOST_MEMBERS}
_OF_EPISODES = ("return", "length", "episodes", "return_low", "return_high", "return_last")
_NUMBERS = {"episode": _OF_EPISODES, "event": ("score", "donor_score")}  # what has to be one, if it is there


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


def row_of(fields: object) -> Row | None:
    """The row that a line of JSON stands for, without values that no row has; None if a writer of ours cannot have written it.

    >>> row_of({"kind": "train", "step": 1, "update": 1, "kl": "inf", "tags": ["a"]})
    {'kind': 'train', 'step': 1, 'update': 1, 'kl': inf}
    >>> row_of({"kind": "train", "step": -1, "update": 1}) is row_of([1]) is None
    True
    """
    if not isinstance(fields, dict) or not isinstance(kind := fields.get("kind"), str) or kind not in _KINDS:
        return None
    row: Row = {
        name: NOT_FINITE[value] if of is str and value in NOT_FINITE else value
        for name, value in fields.items()
        if (of := value.__class__) is float or of is str or (of in _WHOLE and -_MOST < value < _MOST)
    }
    return row if _is_row(row, kind) else None


def _is_row(row: Mapping[str, object], kind: str) -> bool:
    for name, most in _COUNTS.items():
        value = row.get(name, None if name in FIXED else 0)
        if not isinstance(value, int) or not 0 <= value < most:
            return False
    numbers = ("time", *_NUMBERS.get(kind, ()))
    return all(isinstance(row.get(name, 0.0), int | float) for name in numbers) and isinstance(row.get("task", ""), str)


def rows_in(data: bytes) -> list[Row]:
    r"""The rows of whole lines; what a killed writer left of one is passed over.

    >>> rows_in(b'{"kind": "train", "step": 1, "update": 1, "kl": "inf"}\n{"kind": "tr\n[]\n')
    [{'kind': 'train', 'step': 1, 'update': 1, 'kl': inf}]
    """
    return [row for fields in _objects(data.splitlines()) if (row := row_of(fields)) is not None]


def joined(old: Mapping[str, Value], new: Mapping[str, Value]) -> Row:
    """Two rows of episodes as one: how many they are, mean, lowest, highest and last return, mean length.

    >>> joined({"return": 1.0, "length": 4, "slot": 3}, {"return": 2.0, "length": 5, "slot": 0})
    {'return': 1.5, 'length': 4.5, 'episodes': 2, 'return_low': 1.0, 'return_high': 2.0, 'return_last': 2.0}
    """
    if "return" not in old or "return" not in new:  # forged: nothing of ours writes such a row
        return dict(new)
    counts = episodes_in(old), episodes_in(new)
    found: Row = {**old, **new}
    found.pop("slot", None)
    for name in ("return", "length"):
        if name in old and name in new:
            found[name] = (counts[0] * float(old[name]) + counts[1] * float(new[name])) / sum(counts)
    found["episodes"] = sum(counts)
    found["return_low"] = min(one.get("return_low", one["return"]) for one in (old, new))
    found["return_high"] = max(one.get("return_high", one["return"]) for one in (old, new))
    found["return_last"] = new.get("return_last", new["return"])
    return found


def episodes_in(row: Mapping[str, Value]) -> int:
    """How many episodes a row of kind `episode` stands for.

    >>> episodes_in({"return": 1.0}), episodes_in({"return": 1.5, "episodes": 2})
    (1, 2)
    """
    count = row.get("episodes", 1)
    return max(1, count) if isinstance(count, int) else 1


def _objects(lines: list[bytes]) -> list[dict[str, Any]]:
    """What is a JSON object; all lines at once, which is twice as fast, unless one of them is broken."""
    if all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        with contextlib.suppress(ValueError, RecursionError):
            rows = json.loads(b"[" + b",".join(lines) + b"]")
            if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
                return list(rows)
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                found.append(row)
    return found
