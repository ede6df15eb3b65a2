"""The rows of a log of any length in a bounded memory: a short log as it is, a long one at a coarser resolution.

`laser status`, `report` and `compare` read a log through this, so that none of them needs more memory for a longer one.
"""

import math
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from laser_rl.metrics.rows import joined
from laser_rl.metrics.sink import Row
from laser_rl.metrics.stream import Resumption, Stream

MOST_VALUES = 400_000  # about 100 bytes each as Python objects; a log with fewer, of some 8 MB, is kept as it is
COUNTERS = (
    "skipped_updates", "rollbacks", "environment_restarts", "environment_timeouts", "environment_errors", "environment_dropped_episodes",
    "environment_lost_episodes",
)  # fmt: skip
_NEWEST, _NEWEST_EPISODES = 10, 100  # of each series: scores and means of now are over these
_Placed = tuple[int, Row]  # with its place in the log


@dataclass(slots=True)
class _Series:
    """The rows of one kind, member and task (of events: of one name)."""

    most_newest: int
    joins: bool  # events cannot be joined: of too many, the oldest are dropped
    newest: deque[_Placed] = field(default_factory=deque)
    older: list[_Placed] = field(default_factory=list)
    each: int = 1  # so many rows of the log are one of `older`
    last: int = 0  # rows in the last one of `older`
    values: int = 0  # in all of `older`


class Condensed:
    """Rows in the order of the log, at most about `most_values` numbers of them.

    The first row, the newest rows of each series and all rows of a short log are as they were written. Where there are too many, so many
    neighbours of a series become one row: with means of what was measured, the newest of counts, times and texts. Rows of episodes are
    joined as in the log itself.

    >>> rows = [{"kind": "train", "step": n, "update": n, "kl": float(n)} for n in range(1000)]
    >>> condensed = Condensed.of(rows, most_values=200)
    >>> kept = condensed.rows()
    >>> len(kept) < 70, [row["step"] for row in kept[-2:]], kept[1]["kl"], kept[1]["step"]
    (True, [998, 999], 16.5, 32)
    """

    def __init__(self, most_values: int = MOST_VALUES) -> None:
        self._most, self._values, self._count = most_values, 0, 0
        self._first: Row | None = None
        self._series: dict[object, _Series] = {}
        self.resumptions: tuple[Resumption, ...] = ()
        self.not_finite: dict[str, int] = {}
        """How many rows of training have which number that is none."""
        self._counted: dict[tuple[object, str], tuple[int, float]] = {}

    @classmethod
    def of(cls, rows: Iterable[Row], most_values: int = MOST_VALUES) -> Self:
        """Take all rows."""
        condensed = cls(most_values)
        for row in rows:
            condensed.add(row)
        return condensed

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Take the rows of a log that hold, and where it was resumed."""
        stream = Stream(path)
        condensed = cls.of(stream)
        condensed.resumptions = stream.resumes.told()
        return condensed

    def add(self, row: Row) -> None:
        """Take the next row."""
        kind = row["kind"]
        if kind == "train":
            self._examine(row)
        self._count += 1
        if self._first is None:
            self._first = row
            return
        key = (kind, row.get("member"), row.get("event" if kind == "event" else "task"))
        series = self._series.get(key)
        if series is None:
            newest = _NEWEST_EPISODES if kind == "episode" else _NEWEST
            series = self._series[key] = _Series(newest, joins=kind != "event")
        series.newest.append((self._count, row))
        if len(series.newest) > series.most_newest:
            self._settle(series, *series.newest.popleft())

    def rows(self) -> list[Row]:
        """All that is left of them."""
        placed = [one for series in self._series.values() for one in (*series.older, *series.newest)]
        placed.sort(key=lambda one: one[0])
        return ([] if self._first is None else [self._first]) + [row for _, row in placed]

    def total(self, member: object, name: str) -> int:
        """A counter of a member over all sessions: it starts again from nothing in each, and what it had before counts too."""
        past, last = self._counted.get((member, name), (0, 0.0))
        return int(past + last)

    def _examine(self, row: Row) -> None:
        """What has to be exact, however coarse the rows are."""
        member = row.get("member")
        for name in COUNTERS:
            value = row.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                past, last = self._counted.get((member, name), (0, 0.0))
                self._counted[member, name] = (past + int(last) if value < last else past, value)
        if not math.isfinite(sum([value for value in row.values() if value.__class__ is float])):
            for name, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    self.not_finite[name] = self.not_finite.get(name, 0) + 1

    def _settle(self, series: _Series, place: int, row: Row) -> None:
        if series.last and series.last < series.each:
            series.older[-1] = (place, _merged(series.older[-1][1], row, series.last, 1))
            series.last += 1
            return
        # The names of each piece of a log are strings of their own.
        series.older.append((place, {sys.intern(name): value for name, value in row.items()}))
        series.last = 1
        series.values += len(row)
        self._values += len(row)
        if self._values > self._most:
            self._coarsen(max(self._series.values(), key=lambda one: one.values))

    def _coarsen(self, series: _Series) -> None:
        """Half the rows of the largest series."""
        older, self._values = series.older, self._values - series.values
        if series.joins:
            each, series.each = series.each, 2 * series.each
            pairs = zip(older[::2], older[1::2], strict=False)
            found = [(b[0], _merged(a[1], b[1], each, each)) for a, b in pairs]
            if len(older) % 2:
                found.append(older[-1])
            else:
                found[-1] = (older[-1][0], _merged(older[-2][1], older[-1][1], each, series.last))
                series.last += each
            series.older = found
        else:
            series.older = older[len(older) // 2 :]
        series.values = sum(len(row) for _, row in series.older)
        self._values += series.values


def _merged(old: Row, new: Row, before: int, more: int) -> Row:
    """One row for `before` rows and `more` later ones."""
    if new["kind"] == "episode":
        return joined(old, new)
    found, share = {**old, **new}, more / (before + more)
    for name, value in new.items():
        earlier = old.get(name)
        if value.__class__ is not float or earlier.__class__ is not float or name == "time":
            continue
        if not math.isfinite(value):
            found[name] = earlier
        elif math.isfinite(earlier):
            found[name] = earlier + share * (value - earlier)
    return found
