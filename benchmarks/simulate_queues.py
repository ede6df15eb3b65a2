"""Many queues at once: first come, first served, one server each, exact.

A thousand nodes answer millions of calls in a second. Event by event (simpy makes 127,000 jobs a second through one queue on one core)
a simulated second of them would take minutes. So jobs are served in windows: those that arrive in a window are sorted by queue
and time, and Lindley's recursion, finishᵢ = max(arrivalᵢ, finishᵢ₋₁) + serviceᵢ, is computed for all queues in a few array operations.
That is exact as long as nothing that happens in a window can make a job that arrives in the same window: the window is as long as the
shortest time from a cause to its effect (conservative parallel simulation, with that time as its lookahead).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STRIDE = 64  # windows of a drawer of the calendar


class Jobs(NamedTuple):
    """A row each."""

    at: Floats  # when it arrives
    source: Ints  # node whose shard and link it uses
    target: Ints  # node that it goes to; -1: out of the cluster
    unrolls: Ints
    bytes: Floats
    owner: Ints  # who waits for it; -1: nobody

    def of(self, which: NDArray[np.bool_] | Ints) -> "Jobs":
        """Some of them."""
        return Jobs(*(column[which] for column in self))

    def later(self, at: Floats) -> "Jobs":
        """The same at other times."""
        return self._replace(at=at)


NONE = np.zeros(0, np.int64)
EMPTY = Jobs(np.zeros(0), NONE, NONE, NONE, np.zeros(0), NONE)


def joined(parts: list[Jobs]) -> Jobs:
    """One after the other."""
    return parts[0] if len(parts) == 1 else Jobs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def jobs(at: Floats, source: Ints, target: int, unrolls: Ints, size: Floats, owner: int) -> Jobs:
    """For one target and one owner."""
    count = len(at)
    return Jobs(at, source, np.full(count, target), unrolls, size, np.full(count, owner))


class Calendar:
    """Jobs that have not arrived yet. Most are near; the far ones are looked at once in a while.

    >>> calendar = Calendar(window_s=1.0)
    >>> calendar.put(jobs(np.array([70.5, 0.5, 3.0]), np.arange(3), 0, np.ones(3, int), np.zeros(3), owner=7))
    >>> calendar.due(1.0).source, calendar.due(4.0).source, len(calendar.due(70.0).at), calendar.due(71.0).source
    (array([1]), array([2]), 0, array([0]))
    """

    def __init__(self, window_s: float) -> None:
        self._drawer_s = STRIDE * window_s
        self._near: list[Jobs] = []
        self._far: dict[int, list[Jobs]] = {}
        self._open = 0  # drawer that is taken out

    def put(self, new: Jobs) -> None:
        """Some jobs, at any times that are not past."""
        if not len(new.at):
            return
        drawer = (new.at / self._drawer_s).astype(np.int64)
        first, last = int(drawer.min()), int(drawer.max())
        for number in range(first, last + 1):
            part = new if first == last else new.of(drawer == number)
            if not len(part.at):
                continue
            if number <= self._open:
                self._near.append(part)
            else:
                self._far.setdefault(number, []).append(part)

    def due(self, until: float) -> Jobs:
        """Take out those that arrive before."""
        while self._open < int(until / self._drawer_s):
            self._open += 1
            self._near += self._far.pop(self._open, [])
        if not self._near:
            return EMPTY
        near = joined(self._near)
        ready = near.at < until
        left = near.of(~ready)
        self._near = [left] if len(left.at) else []
        return near.of(ready)


class Queues:
    """Servers with a queue each, first come, first served; remembers how long they were busy and how long jobs waited.

    >>> queues = Queues(2)
    >>> queues.serve(np.array([0, 1, 0]), np.array([0.0, 0.0, 1.0]), np.array([3.0, 1.0, 3.0]))
    array([3., 1., 6.])
    >>> queues.served_s, queues.waited_s, queues.longest_s
    (array([6., 1.]), 2.0, 2.0)
    """

    def __init__(self, count: int) -> None:
        self.free = np.zeros(count)
        self.reset()

    def reset(self) -> None:
        """Begin to count anew; queues stay as they are."""
        self.served_s = np.zeros(len(self.free))
        self.served = 0
        self.waited_s = self.longest_s = 0.0

    def serve(self, server: Ints, at: Floats, service: Floats) -> Floats:
        """When these jobs are finished. All earlier arrivals must have been served before."""
        if not len(at):
            return np.zeros(0)
        order = np.lexsort((at, server))
        who, length, arrival = server[order], service[order], at[order]
        done = np.cumsum(length)  # work up to and with each, over all servers: differences are right within one
        first = np.concatenate(([True], who[1:] != who[:-1]))
        begin = np.where(first, np.maximum(arrival, self.free[who]), arrival) - (done - length)
        # A maximum over what came before in the same queue: every queue is lifted above the one before it.
        lift = (np.cumsum(first) - 1) * (begin.max() - begin.min() + 1.0)
        finish = np.maximum.accumulate(begin + lift) - lift + done
        last = np.concatenate((first[1:], [True]))
        self.free[who[last]] = finish[last]
        waited = finish - length - arrival
        self.served_s += np.bincount(who, length, len(self.free))
        self.served, self.waited_s = self.served + len(at), self.waited_s + float(waited.sum())
        self.longest_s = max(self.longest_s, float(waited.max()))
        answer = np.empty(len(at))
        answer[order] = finish
        return answer
