"""Running numbers: returns of the last episodes, of one task or of several; memory."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laser_rl.envs.scores import references_of, scores_of
from laser_rl.metrics.sink import Row, Value
from laser_rl.metrics.stream import episodes_in, joined

if TYPE_CHECKING:
    from laser_rl.envs.suites import Reference

EPISODES, EPISODES_A_TASK = 100, 50
EACH = 1 << 15  # so many episodes have a row of their own


class EpisodeWindow:
    """The returns of the last episodes: of all together, or of every task of a mixture.

    Args:
        tasks: their names; none if it is no mixture.
        size: how many episodes, of each task.
        references: scores of random play and of the best, by which returns of tasks are normalised; None: those that are known.

    >>> window = EpisodeWindow(size=2)
    >>> for raw_return in (9.0, 1.0, 3.0):
    ...     window.add(raw_return)
    >>> window.numbers()
    {'return_mean': 2.0, 'return_best': 3.0, 'episodes': 3}
    >>> window = EpisodeWindow(("laser/Catch", "laser/TMaze-5", "laser/DeepSea-4"))
    >>> for raw_return, task in ((0.2, 0), (1.0, 0), (1.0, 1)):
    ...     window.add(raw_return, task)
    >>> numbers = window.numbers()
    >>> [round(numbers[name], 3) for name in ("return_mean", "return_of_laser/Catch", "score_of_laser/Catch", "tasks_seen")]
    [0.875, 0.6, 0.75, 2]
    """

    def __init__(
        self, tasks: Sequence[str] = (), size: int | None = None, references: "Sequence[Reference] | None" = None
    ) -> None:
        self._tasks = tuple(tasks)
        self._references = references_of(self._tasks) if references is None else tuple(references)
        self._size = size or (EPISODES_A_TASK if tasks else EPISODES)
        self._returns: list[deque[float]] = [deque(maxlen=self._size) for _ in self._tasks or ("",)]
        self._episodes = 0

    def add(self, raw_return: float, task: int = 0) -> None:
        """Take one finished episode; of a mixture, of which task."""
        self._returns[task if self._tasks else 0].append(float(raw_return))
        self._episodes += 1

    def numbers(self) -> Mapping[str, float]:
        """Mean and best of the window, and the count of all episodes; nothing before the first has ended.

        Of a mixture, `return_mean`, by which agents are compared, is the median of the normalised scores of those tasks that have episodes.
        """
        if not any(self._returns):
            return {}
        means = [sum(own) / len(own) if own else None for own in self._returns]
        if not self._tasks:
            return {"return_mean": means[0] or 0.0, "return_best": max(self._returns[0]), "episodes": self._episodes}
        scores = scores_of(self._tasks, means, self._references)
        counts = {"tasks": len(self._tasks), "episodes": self._episodes}
        return {"return_mean": scores.median, **scores.numbers(), **counts}

    @property
    def episodes(self) -> int:
        """All of them, of all tasks together."""
        return self._episodes

    def forget(self) -> None:
        """Go on with empty windows: what was in them is of another policy. The count of all episodes stays."""
        for own in self._returns:
            own.clear()

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, as JSON."""
        if not self._tasks:
            return {"returns": list(self._returns[0]), "episodes": self._episodes}
        returns = {name: list(own) for name, own in zip(self._tasks, self._returns, strict=True)}
        return {"tasks": returns, "episodes": self._episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the other one was, or begin, where that one was of a learner that never acted and does not know the tasks."""
        if self._tasks:
            known = state.get("tasks") or dict.fromkeys(self._tasks, ())
            returns = [known[name] for name in self._tasks]
        else:
            returns = [state["returns"]]
        self._returns = [deque(own, maxlen=self._size) for own in returns]
        self._episodes = int(state["episodes"])


class EpisodeRows:
    """Which row an episode goes to: one of its own in a short run; in a long one a row is of several, so that logs stay small.

    The first 2^15 episodes have a row each, the next 2^16 a row for two, the next 2^17 a row for four, and so on: 2^15 rows every time that
    the number of episodes doubles. The rule counts episodes and nothing else: the same seed gives the same rows.

    >>> rows = EpisodeRows()
    >>> [rows.add({"return": value}, ended=EACH + 1) for value in (1.0, 2.0)]
    [None, {'return': 1.5, 'episodes': 2, 'return_low': 1.0, 'return_high': 2.0, 'return_last': 2.0}]
    """

    def __init__(self) -> None:
        # By task: how many episodes the row is to be of, and what it is of those so far.
        self._open: dict[str, tuple[int, Row]] = {}

    def add(self, values: Mapping[str, Value], ended: int) -> Row | None:
        """Take the episode that is number `ended` of its agent, from 1 on; the row, if it is complete."""
        task = str(values.get("task", ""))
        size, row = self._open.pop(task, (episodes_a_row(ended), {}))
        row = joined(row, values) if row else dict(values)
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
        """All that `load_state_dict` needs, as JSON."""
        return {task: [size, dict(row)] for task, (size, row) in self._open.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the other one was."""
        self._open = {task: (int(size), dict(row)) for task, (size, row) in state.items()}


def episodes_a_row(ended: int) -> int:
    """For how many episodes there is a row, at episode number `ended`.

    >>> [episodes_a_row(n) for n in (1, EACH, EACH + 1, 3 * EACH, 3 * EACH + 1)]
    [1, 1, 2, 2, 4]
    """
    return 1 << (((ended - 1) // EACH + 1).bit_length() - 1)


window_for = EpisodeWindow  # the name that training uses


def window_from(state: Mapping[str, Any]) -> EpisodeWindow:
    """The window whose `state_dict` this is.

    >>> window = EpisodeWindow(("laser/Catch", "laser/TMaze-5"))
    >>> window.add(1.0, task=1)
    >>> window_from(window.state_dict()).numbers() == window.numbers()
    True
    """
    window = EpisodeWindow(tuple(state.get("tasks", ())))
    window.load_state_dict(state)
    return window


def fitness(numbers: Mapping[str, float]) -> float:
    """What population based training compares: mean returns; of a mixture, as in IMPALA, the mean capped score.

    NaN without episodes, and while a task of a mixture has none: tasks with short episodes would count alone.

    >>> mixed = {"return_mean": 0.5, "score_mean_capped": 0.4, "tasks_seen": 2, "tasks": 2}
    >>> fitness({"return_mean": 7.0}), fitness(mixed), fitness({**mixed, "tasks_seen": 1}), fitness({})
    (7.0, 0.4, nan, nan)
    """
    if numbers.get("tasks_seen") != numbers.get("tasks"):
        return math.nan
    return float(numbers.get("score_mean_capped", numbers.get("return_mean", math.nan)))


def memory_bytes() -> int:
    """Resident memory of this process.

    >>> memory_bytes() > 1_000_000
    True
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
