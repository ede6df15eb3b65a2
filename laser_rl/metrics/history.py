"""What charts need of a log, kept while rows come in: tables of numbers and counts of faults, beside the newest rows.

`laser report` and `dashboard` read a log through this. A log may be forged, so the number of names in a table is bounded.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.metrics.log import Limit
from laser_rl.metrics.rows import Kind, Row
from laser_rl.metrics.standing import Newest, own

Array = NDArray[np.float64]
BUCKETS = 2000
# Counters of training rows: what they are called in a tile, and what a notice says of them.
FAULTS = {
    "skipped_updates": ("updates skipped", "updates were skipped, because their gradient was not finite"),
    "rollbacks": ("rolled back", "times the parameters were rolled back to the last ones that learned"),
    "environment_restarts": ("workers replaced", "environment workers were replaced"),
    "environment_timeouts": ("time-outs", "times an environment did not answer in time"),
    "environment_errors": ("errors of environments", "times an environment raised an error"),
    "environment_dropped_episodes": ("episodes dropped", "episodes dropped: a bad value or a broken worker"),
    "environment_lost_episodes": ("episodes lost", "open episodes could not be rebuilt when the run was resumed"),
}
# What charts show, by kind of row. Everything else in a row is dropped: 40 numbers of a million rows are what would fill the memory.
_SHOWN: dict[str, re.Pattern[str]] = {
    "train": re.compile(
        r"return_mean|acceptance(_from_\d{1,3})?|(steps|updates|learned_steps)_per_second|learner_(busy|wait)|replay_fill"
        r"|replay_age_updates|memory_bytes|entropy|learning_rate|entropy_cost|queue_(inbox|batches)|kl|(rho|c)_clipped"
        r"|lag_updates|(policy|value)_loss|gradient_norm|score_of_.{1,200}"
    ),
    "episode": re.compile(r"return"),
    "evaluation": re.compile(r"mean|ci95_low|ci95_high"),
    "sweep": re.compile(r"share_of_\d{1,3}|age_\d{1,3}|replay_fill"),
}
_MOST_NAMES = 400  # of numbers in a table
_LARGEST = 2**53  # of a counter: a forged one may be beyond what can be added up


class CurveLine(NamedTuple):
    """One number over time [n]; `low` and `high` are the extremes of the rows behind each mean."""

    x: Array
    mean: Array
    low: Array
    high: Array


class Table:
    """The rows of one kind of one member: a bucket is some consecutive rows, with mean, lowest and highest of each number."""

    def __init__(self, buckets: int = BUCKETS) -> None:
        self._most = buckets
        self.names: dict[str, int] = {}  # of the numbers that any row had, and the place of each
        self.rows_a_bucket = 1
        self._clock = np.zeros((4, 0))  # step, update and time of the last row of a bucket; how many rows it has
        self._numbers = np.zeros((4, 0, 0))  # mean, how many of its rows have the number, lowest, highest

    def __len__(self) -> int:
        return self._clock.shape[1]

    def append(self, steps: Array, updates: Array, times: Array, values: Mapping[str, Array]) -> None:
        """Take rows [n]; NaN where a row has no such number."""
        new = [name for name in values if name not in self.names]
        self.names |= {name: len(self.names) + n for n, name in enumerate(new)}
        self._numbers = np.concatenate([self._numbers, _blank(len(new), len(self))], axis=1)
        numbers = _blank(len(self.names), len(steps))
        for name, found in values.items():
            numbers[:, self.names[name]] = found, np.isfinite(found), found, found
        self._clock = np.concatenate([self._clock, [steps, updates, times, np.ones(len(steps))]], axis=1)
        self._numbers = np.concatenate([self._numbers, numbers], axis=2)
        self._merge()
        while len(self) > self._most:
            self.rows_a_bucket *= 2
            self._merge()

    def void(self, step: float, update: float) -> None:
        """Forget what is after a step or an update, since the run went back to there; of merged rows, those beside void ones as well."""
        holds = (self._clock[0] <= step) & (self._clock[1] <= update)
        self._clock, self._numbers = self._clock[:, holds], self._numbers[:, :, holds]

    def line(self, name: str, axis: str = "step") -> CurveLine:
        """The buckets that have the number, over steps or over seconds since 1970."""
        x = self._clock[2 if axis == "time" else 0]
        mean, count, low, high = self._numbers[:, self.names[name]] if name in self.names else np.zeros((4, len(self)))
        has = (count > 0) & np.isfinite(x)
        return CurveLine(x[has], mean[has], low[has], high[has])

    def _merge(self) -> None:
        """Neighbouring buckets become one, of `rows_a_bucket` rows each; the last may have fewer."""
        group = (np.cumsum(self._clock[3]) - 1) // self.rows_a_bucket
        starts = np.flatnonzero(np.diff(group, prepend=-1.0))
        if len(starts) == len(self):
            return
        ends = np.append(starts[1:], len(self)) - 1
        mean, count, low, high = self._numbers
        total = np.add.reduceat(np.where(count > 0, mean, 0.0) * count, starts, axis=1)
        counts = np.add.reduceat(count, starts, axis=1)
        means = np.divide(total, counts, out=np.full_like(total, np.nan), where=counts > 0)
        lows, highs = np.fmin.reduceat(low, starts, axis=1), np.fmax.reduceat(high, starts, axis=1)
        self._clock = np.concatenate([self._clock[:3, ends], np.add.reduceat(self._clock[3:], starts, axis=1)])
        self._numbers = np.stack([means, counts, lows, highs])


def _blank(names: int, rows: int) -> Array:
    blank = np.full((4, names, rows), np.nan)
    blank[1] = 0
    return blank


class History(Newest):
    """All that is remembered of a log: tables of numbers, and counts of faults."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[tuple[str, int], Table] = {}
        self._counted: dict[tuple[int, str], tuple[int, float]] = {}

    def line(self, kind: Kind, member: int, name: str, axis: str = "step") -> CurveLine:
        """A number of a member over steps or time; of a single run the member is 0, of the sweep itself -1."""
        return self._tables.get((kind, self._key(member)), Table()).line(name, axis)

    def names(self, kind: Kind, member: int) -> Iterable[str]:
        return self._tables.get((kind, self._key(member)), Table()).names

    def count(self, member: int, name: str) -> int:
        """A counter over all sessions: it starts again from nothing in each."""
        past, last = self._counted.get((self._key(member), name), (0, 0.0))
        return past + int(last)

    def _void(self, mark: Row) -> None:
        super()._void(mark)
        limit = Limit.of(mark)
        for (kind, member), table in self._tables.items():
            if member == own(mark):
                table.void(limit.evaluated if kind == "evaluation" else limit.step, limit.update)

    def _keep(self, kind: str, member: int, rows: list[Row]) -> None:
        super()._keep(kind, member, rows)
        seen = dict.fromkeys(chain.from_iterable(rows[:: max(1, len(rows) // 50)]))
        seen |= dict.fromkeys(rows[-1])
        table = self._tables.setdefault((kind, member), Table())
        shown = [name for name in seen if _SHOWN[kind].fullmatch(name)]
        too_many = [name for name in shown if name not in table.names][_MOST_NAMES - len(table.names) :]
        values = {name: _column(rows, name) for name in shown if name not in too_many}
        table.append(_column(rows, "step"), _column(rows, "update"), _column(rows, "time"), values)
        if kind == "train":
            for name in FAULTS:
                if name in seen:
                    self._count(member, name, _column(rows, name))

    def _count(self, member: int, name: str, values: Array) -> None:
        past, last = self._counted.get((member, name), (0, 0.0))
        every = np.concatenate([[last], np.clip(values[np.isfinite(values)], 0, _LARGEST)])
        ended = every[:-1][np.diff(every) < 0].sum()  # of sessions before the last: the counter falls where one begins
        self._counted[member, name] = (past + int(ended), float(every[-1]))


def _column(rows: list[Row], name: str) -> Array:
    """A number of all rows [n]; NaN where there is none, or one that is not finite."""
    found = [row.get(name, math.nan) for row in rows]
    try:
        values = np.array(found, np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.array([one if isinstance(one, float) else math.nan for one in found], np.float64)
    values[~np.isfinite(values)] = math.nan
    return values


def aligned(lines: Sequence[CurveLine], points: int) -> tuple[Array, list[CurveLine]]:
    """Lines on one axis of at most `points` places, NaN where a line has nothing; a place is the last one of its bin."""
    at = np.unique(np.concatenate([line.x for line in lines])) if lines else np.empty(0)
    if len(at) > points:
        at = np.linspace(at[0], at[-1], points + 1)[1:]
    return at, [_binned(line, at) for line in lines]


def _binned(line: CurveLine, at: Array) -> CurveLine:
    place, bins = np.searchsorted(at, line.x), len(at)
    count = np.bincount(place, minlength=bins)
    mean = np.divide(np.bincount(place, line.mean, minlength=bins), count, out=np.full(bins, np.nan), where=count > 0)
    low, high = np.full(bins, np.nan), np.full(bins, np.nan)
    np.fmin.at(low, place, line.low)
    np.fmax.at(high, place, line.high)
    return CurveLine(np.empty(0), mean, low, high)
