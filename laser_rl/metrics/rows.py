"""What a row of numbers is, where rows go, and how rows of episodes and their means are made.

A log may be damaged or forged, and arithmetic with what is read of it must not fail: `rows_in` lets only rows pass that a writer of ours
can have written.
"""

import contextlib
import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

Kind = Literal["train", "episode", "evaluation", "event", "sweep"]  # sweep: of all members together
Value = float | str  # int, bool and NumPy's numbers included
Row = dict[str, Value]
FIXED = ("kind", "step", "update", "time")  # what every row has
EPISODES, EPISODES_A_TASK = 100, 50
EACH = 1 << 15  # so many episodes have a row of their own
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers
_KINDS = frozenset(get_args(Kind))
_WHOLE = frozenset({int, bool})
_MOST = 1 << 63  # a count beyond it is none, and may be too large for a float
_MOST_MEMBERS = 1000  # tables of members by members are made of what is read
_COUNTS = {"step": _MOST, "update": _MOST, "member": _MOST_MEMBERS, "donor": _MOST_MEMBERS}
# What has to be a number, if it is there.
_NUMBERS = {
    "episode": ("return", "length", "episodes", "return_low", "return_high", "return_last"),
    "event": ("score", "donor_score", "evaluated"),
}


class Sink(Protocol):
    """A destination of rows, used by one thread: it takes all rows and keeps what it can show."""

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Take one row: `step` steps and `update` updates after the start of the run."""

    def flush(self) -> None:
        """Hand everything to the operating system or further; called with each checkpoint."""

    def close(self) -> None:
        """The run ends; may be called twice."""


def rows_in(data: bytes) -> list[Row]:
    """The rows of whole lines; what a killed writer left of one is passed over, and so are values that no row has."""
    return [row for fields in _objects(data.splitlines()) if (row := _row_of(fields)) is not None]


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
            found.append(json.loads(line))
    return [row for row in found if isinstance(row, dict)]


def _row_of(fields: dict[str, Any]) -> Row | None:
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    row: Row = {
        name: _NOT_FINITE[value] if of is str and value in _NOT_FINITE else value
        for name, value in fields.items()
        if (of := value.__class__) is float or of is str or (of in _WHOLE and -_MOST < value < _MOST)
    }
    for name, most in _COUNTS.items():
        value = row.get(name, None if name in FIXED else 0)
        if not isinstance(value, int) or not 0 <= value < most:
            return None
    for name in ("time", *_NUMBERS.get(kind, ())):
        if not isinstance(row.get(name, 0.0), int | float):
            return None
    return row if isinstance(row.get("task", ""), str) else None


def episodes_in(row: Mapping[str, Value]) -> int:
    """How many episodes a row of kind `episode` stands for."""
    count = row.get("episodes", 1)
    return max(1, count) if isinstance(count, int) else 1


class EpisodeRows:
    """Which row an episode goes to: one of its own in a short run; in a long one a row is of several, so that logs stay small.

    The first 2^15 episodes have a row each, the next 2^16 a row for two, the next 2^17 a row for four, and so on: 2^15 rows every time that
    the number of episodes doubles. The rule counts episodes and nothing else: the same seed gives the same rows.
    """

    def __init__(self) -> None:
        # By task: how many episodes the row is to be of, and what it is of those so far.
        self._open: dict[str, tuple[int, Row]] = {}

    def add(self, values: Mapping[str, Value], ended: int) -> Row | None:
        """Take the episode that is number `ended` of its agent, from 1 on; the row, if it is complete."""
        task = str(values.get("task", ""))
        episodes_a_row = 1 << (((ended - 1) // EACH + 1).bit_length() - 1)
        size, row = self._open.pop(task, (episodes_a_row, {}))
        row = _joined(row, values) if row else dict(values)
        if episodes_in(row) >= size:
            return row
        self._open[task] = (size, row)
        return None

    def rest(self) -> list[Row]:
        """The rows that are not complete, at the end of a run; new ones begin with the next episode."""
        rows = [row for _, row in self._open.values()]
        self._open = {}
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {task: [size, dict(row)] for task, (size, row) in self._open.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._open = {task: (int(size), dict(row)) for task, (size, row) in state.items()}


def _joined(old: Row, new: Mapping[str, Value]) -> Row:
    """Two rows of episodes as one: how many they are, mean, lowest, highest and last return, mean length."""
    if "return" not in old or "return" not in new:  # of a forged checkpoint
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


class EpisodeWindow:
    """The returns of the last episodes: of all together, or of each of the `tasks` of a mixture."""

    def __init__(self, tasks: Sequence[str] = ()) -> None:
        from laser_rl.envs.scores import references_of  # noqa: PLC0415 - tables, which readers of rows do without

        self.episodes = 0  # all of them, of all tasks together
        self._tasks = tuple(tasks)
        # Scores of random play and of the best, by which returns of tasks are normalised.
        self._references = references_of(self._tasks) if tasks else ()  # imports Gymnasium
        self._size = EPISODES_A_TASK if tasks else EPISODES
        self._returns: list[deque[float]] = [deque(maxlen=self._size) for _ in self._tasks or ("",)]

    def add(self, raw_return: float, task: int = 0) -> None:
        self._returns[task if self._tasks else 0].append(float(raw_return))
        self.episodes += 1

    def numbers(self) -> Mapping[str, float]:
        """Mean and best of the window, and the count of all episodes; nothing before the first has ended.

        Of a mixture, `return_mean`, by which agents are compared, is the median of the normalised scores of those tasks that have episodes.
        """
        if not any(self._returns):
            return {}
        means = [sum(own) / len(own) if own else None for own in self._returns]
        if not self._tasks:
            return {"return_mean": means[0] or 0.0, "return_best": max(self._returns[0]), "episodes": self.episodes}
        from laser_rl.envs.scores import scores_of  # noqa: PLC0415 - as above

        scores = scores_of(self._tasks, means, self._references)
        counts = {"tasks": len(self._tasks), "episodes": self.episodes}
        return {"return_mean": scores.median, **scores.numbers(), **counts}

    def forget(self) -> None:
        """Go on with empty windows: what was in them is of another policy. The count of all episodes stays."""
        for own in self._returns:
            own.clear()

    def state_dict(self) -> dict[str, Any]:
        if not self._tasks:
            return {"returns": list(self._returns[0]), "episodes": self.episodes}
        returns = {name: list(own) for name, own in zip(self._tasks, self._returns, strict=True)}
        return {"tasks": returns, "episodes": self.episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # The state of a learner that never acted does not know the tasks: then all begins.
        if self._tasks:
            known = state.get("tasks") or dict.fromkeys(self._tasks, ())
            returns = [known[name] for name in self._tasks]
        else:
            returns = [state["returns"]]
        self._returns = [deque(own, maxlen=self._size) for own in returns]
        self.episodes = int(state["episodes"])


def mean(values: Iterable[object]) -> float:
    """The mean of those that are finite numbers; NaN if none is."""
    known = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def fitness(numbers: Mapping[str, float]) -> float:
    """What population based training compares: mean returns; of a mixture, as in IMPALA, the mean capped score.

    NaN without episodes, and while a task of a mixture has none: tasks with short episodes would count alone.
    """
    if numbers.get("tasks_seen") != numbers.get("tasks"):
        return math.nan
    return float(numbers.get("score_mean_capped", numbers.get("return_mean", math.nan)))
