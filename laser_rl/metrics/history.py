"""What readers need of a log, kept while rows come in: tables of numbers, the newest rows, events, counts of faults.

`laser status`, `report`, `compare` and `dashboard` read a log through this: it grows with the number of members, not of rows.
"""

import math
import re
from collections import deque
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from laser_rl.metrics.sink import Kind, Row
from laser_rl.metrics.stream import Stream
from laser_rl.metrics.table import Line, Table

COUNTERS = (
    "skipped_updates", "rollbacks", "environment_restarts", "environment_timeouts", "environment_errors", "environment_dropped_episodes",
    "environment_lost_episodes",
)  # fmt: skip
# What charts show, by kind of row. Everything else in a row is dropped: 40 numbers of a million rows are what would fill the memory.
_SHOWN: dict[Kind, re.Pattern[str]] = {
    "train": re.compile(
        r"return_mean|acceptance(_from_\d{1,3})?|(steps|updates|learned_steps)_per_second|learner_(busy|wait)|replay_fill"
        r"|replay_age_updates|memory_bytes|entropy|learning_rate|entropy_cost|queue_(inbox|batches)|kl|(rho|c)_clipped"
        r"|lag_updates|(policy|value)_loss|gradient_norm|score_of_.{1,200}"
    ),
    "episode": re.compile(r"return"),
    "evaluation": re.compile(r"mean|ci95_low|ci95_high"),
    "sweep": re.compile(r"share_of_\d{1,3}|age_\d{1,3}|replay_fill"),
}
_NEWEST, _EPISODES, _EVALUATIONS, _EVENTS, _EXPLOITS = 10, 100, 50, 200, 5000
_MOST_MEMBERS = 256
_MOST_TABLES = 1024
_MOST_NAMES = 400  # of numbers in a table
_PIECE = 10_000  # rows that are sorted into tables at once


class History:
    """All that is remembered of a log; it grows with the number of members, not with the number of rows.

    >>> history = History()
    >>> history.add({"kind": "train", "step": n, "update": n, "time": 0.0, "return_mean": n / 2} for n in range(3))
    >>> history.line("train", 0, "return_mean").mean.tolist(), history.rows
    ([0.0, 0.5, 1.0], 3)
    """

    def __init__(self) -> None:
        self.rows = 0
        self.last: Row | None = None
        self.began: float | None = None
        self.has_members = False
        self.marks: list[tuple[float, float]] = []
        """Where the run was resumed: step and time."""
        self.events: deque[Row] = deque(maxlen=_EVENTS)
        self._exploits: deque[Row] = deque(maxlen=_EXPLOITS)
        self._tables: dict[tuple[str, int], Table] = {}
        self._newest: dict[tuple[str, int], deque[Row]] = {}
        self._counted: dict[tuple[int, str], tuple[int, float]] = {}
        self._wanted: dict[tuple[str, str], bool] = {}
        self.void = 0
        """How many rows resumptions made void; only of a log that was read as a whole."""
        self.not_finite: dict[str, int] = {}
        """How many rows of training have which number that is not finite."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Take the rows of a log that hold."""
        stream, history = Stream(path), cls()
        history.add(stream)
        history.void = stream.resumes.void
        return history

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows as they were written; a mark of a resume makes earlier ones of its member void."""
        groups: dict[tuple[str, int], list[Row]] = {}
        for number, row in enumerate(rows, start=1):
            member = row.get("member")
            if isinstance(member, int) and not 0 <= member < _MOST_MEMBERS:
                continue
            self.rows += 1
            self.last = row
            self.has_members = self.has_members or isinstance(member, int)
            if self.began is None and "time" in row:
                self.began = float(row["time"])
            if row["kind"] == "event":
                self._flush(groups)
                self._event(row)
            else:
                groups.setdefault((str(row["kind"]), _own(row)), []).append(row)
            if number % _PIECE == 0:
                self._flush(groups)
        self._flush(groups)

    def line(self, kind: Kind, member: int, name: str, axis: str = "step") -> Line:
        """A number of a member over steps or time; of a single run the member is 0, of the sweep itself -1."""
        table = self._tables.get((kind, self._key(member)))
        return Table(0).line(name) if table is None else table.line(name, axis)

    def names(self, kind: Kind, member: int) -> tuple[str, ...]:
        """Which numbers there are."""
        table = self._tables.get((kind, self._key(member)))
        return () if table is None else table.names

    def count(self, member: int, name: str) -> int:
        """A counter over all sessions: it starts again from nothing in each."""
        past, last = self._counted.get((self._key(member), name), (0, 0.0))
        return past + int(last)

    def newest(self, kind: Kind, member: int | None = None) -> list[Row]:
        """The newest rows of a kind, in order: of each member, or of one."""
        wanted = None if member is None else self._key(member)
        every = sorted(self._newest.items())
        return [row for (its, own), rows in every if its == kind and wanted in {None, own} for row in rows]

    def kept(self) -> list[Row]:
        """The newest rows of each kind and member, all exploits that are kept, and the last row."""
        kinds: tuple[Kind, ...] = ("episode", "train", "sweep", "evaluation")
        rows = [*chain.from_iterable(self.newest(kind) for kind in kinds), *self._exploits]
        last = self.last
        return rows + (
            [last] if last is not None and last["kind"] == "event" and last.get("event") != "exploit" else []
        )

    def _key(self, member: int) -> int:
        return member if self.has_members else -1

    def _event(self, row: Row) -> None:
        self.events.append(row)
        if row.get("event") == "exploit" and _is_exploit(row):
            self._exploits.append(row)
        if row.get("event") == "resumed":
            self._void(row)

    def _void(self, mark: Row) -> None:
        own, step, update = _own(mark), float(mark["step"]), float(mark["update"])
        self.marks.append((step, float(mark.get("time", math.nan))))
        del self.marks[:-_EVENTS]
        evaluated = mark.get("evaluated", step)  # the checkpoint was written before later evaluations
        played = min(step, evaluated) if isinstance(evaluated, int | float) else step
        for (kind, member), table in self._tables.items():
            if member == own:
                table.void(played if kind == "evaluation" else step, update)
        every = [rows for (_, member), rows in self._newest.items() if member == own]
        for rows in [*every, self._exploits]:
            held = [row for row in rows if _own(row) != own or _holds(row, step, update, played)]
            rows.clear()
            rows.extend(held)

    def _flush(self, groups: dict[tuple[str, int], list[Row]]) -> None:
        for (kind, member), rows in groups.items():
            if kind in _SHOWN and (len(self._tables) < _MOST_TABLES or (kind, member) in self._tables):
                self._keep(kind, member, rows)
        groups.clear()

    def _keep(self, kind: str, member: int, rows: list[Row]) -> None:
        most = {"episode": _EPISODES, "evaluation": _EVALUATIONS}.get(kind, _NEWEST)
        self._newest.setdefault((kind, member), deque(maxlen=most)).extend(rows[-most:])
        seen = dict.fromkeys(chain.from_iterable(rows[:: max(1, len(rows) // 50)]))
        seen |= dict.fromkeys(rows[-1])
        table = self._tables.setdefault((kind, member), Table())
        shown = [name for name in seen if self._is_shown(kind, name)]
        room = _MOST_NAMES - len(table.names)
        new = [name for name in shown if name not in table.names][room:]
        values = {name: column(rows, name) for name in shown if name not in new}
        steps, updates, times = (column(rows, name) for name in ("step", "update", "time"))
        table.append(steps, updates, times, values)
        if kind == "train":
            for name in COUNTERS:
                if name in seen:
                    self._count(member, name, column(rows, name))
            self._examine(rows)

    def _examine(self, rows: list[Row]) -> None:
        for row in rows:
            if not math.isfinite(sum([value for value in row.values() if value.__class__ is float])):
                bad = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
                for name in bad[:_MOST_NAMES]:
                    self.not_finite[name] = self.not_finite.get(name, 0) + 1

    def _is_shown(self, kind: str, name: str) -> bool:
        found = self._wanted.get((kind, name))
        if found is None:
            found = _SHOWN[kind].fullmatch(name) is not None  # type: ignore[index]
            if len(self._wanted) < _MOST_TABLES:
                self._wanted[kind, name] = found
        return found

    def _count(self, member: int, name: str, values: Any) -> None:
        past, last = self._counted.get((member, name), (0, 0.0))
        every = np.concatenate([[last], values[np.isfinite(values)]])
        self._counted[member, name] = (past + total(every) - int(every[-1]), float(every[-1]))


def total(values: Any) -> int:
    """A counter over all sessions: it starts again from nothing in each, and what it had before counts too.

    >>> total(np.array([0.0, 2.0, 2.0, 0.0, 1.0])), total(np.empty(0))
    (3, 0)
    """
    if not len(values):
        return 0
    return int(values[-1] + values[:-1][np.diff(values) < 0].sum())


def column(rows: list[Row], name: str) -> Any:
    """A number of all rows [n]; NaN where there is none, or one that is not finite.

    >>> column([{"kl": 1.0}, {}, {"kl": float("inf")}, {"kl": "?"}], "kl")
    array([ 1., nan, nan, nan])
    """
    try:
        found = [row[name] for row in rows]
    except KeyError:  # seldom: rows of a kind are much alike
        found = [row.get(name, math.nan) for row in rows]
    try:
        values = np.array(found, np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.array([one if isinstance(one, float) else math.nan for one in found], np.float64)
    values[~np.isfinite(values)] = math.nan
    return values


def _holds(row: Row, step: float, update: float, played: float) -> bool:
    last = played if row["kind"] == "evaluation" else step
    return float(row["step"]) <= last and float(row["update"]) <= update


def _is_exploit(row: Row) -> bool:
    scores = (row.get("score", 0.0), row.get("donor_score", 0.0))
    members = (row.get("member"), row.get("donor"))
    return all(map(_is_member, members)) and all(isinstance(score, int | float) for score in scores)


def _is_member(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _MOST_MEMBERS


def _own(row: Row) -> int:
    member: Any = row.get("member")
    return member if isinstance(member, int) else -1
