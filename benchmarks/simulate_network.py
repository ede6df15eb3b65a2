"""Shards and links of a simulated cluster, and its clock.

What happens once a batch is an event in a heap; calls, of which a batch makes up to a hundred, are served in windows (`simulate_queues`).
"""

import heapq
import itertools
from collections.abc import Callable

import numpy as np

from benchmarks.simulate_model import BITS, GIGA, Cluster, Rates, unroll_bytes
from benchmarks.simulate_queues import Calendar, Floats, Ints, Jobs, Queues, jobs

NOBODY = OUTSIDE = -1
Event = Callable[[float], None]
OWNERS = 1024  # to begin with


class Network:
    """Calls to shards, transfers from node to node, and events in the order of time.

    >>> network, heard = Network(Cluster(nodes=2), Rates()), []
    >>> network.transfer(0.0, source=0, target=1, size=1e6, then=heard.append)
    >>> network.until(0.01)
    >>> 0.00032 < heard[0] < 0.001, network.out_bytes == network.in_bytes == 1e6  # 1 MB at 25 Gbit/s takes 0.32 ms
    (True, True)
    """

    def __init__(self, cluster: Cluster, rates: Rates) -> None:
        self.rates, self._compressed = rates, cluster.compressed
        self._unroll_bytes = unroll_bytes(cluster, rates)
        self.byte_s = BITS / GIGA / cluster.link_gbit
        self.ask_s = rates.call_learner_s / 2  # half to ask, half to take up the answer
        self.window_s = self.ask_s + rates.latency_s  # nothing has an effect elsewhere sooner
        self.shards, self.out, self.into = (Queues(cluster.nodes) for _ in range(3))
        self._at_shards, self._at_out, self._at_in = (Calendar(self.window_s) for _ in range(3))
        self._reports = np.zeros(cluster.nodes, np.int64)  # asked for in the last window, by shard
        self._events: list[tuple[float, int, Event]] = []
        self._serial, self._window = itertools.count(), 0
        self._waiting, self._latest = (
            np.zeros(OWNERS, np.int64),
            np.zeros(OWNERS),
        )  # answers that are due; when the last came
        self._then: dict[int, Event] = {}
        self._unused = list(range(OWNERS))
        self.calls = self.out_bytes = self.in_bytes = 0.0

    def at(self, when: float, what: Event) -> None:
        """An event."""
        heapq.heappush(self._events, (when, next(self._serial), what))

    def until(self, end: float) -> None:
        """All that happens before, to a whole window."""
        while (self._window + 1) * self.window_s <= end:
            begin, until = self._window * self.window_s, (self._window + 1) * self.window_s
            self._serve(begin, until)
            while self._events and self._events[0][0] < until:
                when, _, what = heapq.heappop(self._events)
                what(when)
            self._window += 1

    def reset(self) -> None:
        """Begin to count anew; bytes are counted from the beginning."""
        self.calls = 0.0
        for queues in (self.shards, self.out, self.into):
            queues.reset()

    def gather(self, sent: Floats, shards: Ints, counts: Ints, target: int, then: Event) -> None:
        """A call to each of these shards, for so many unrolls; `then` when all have answered."""
        size = counts * self._unroll_bytes + self.rates.header_bytes
        owner = self._owner(len(shards), then)
        self._at_shards.put(jobs(sent + self.rates.latency_s, shards, target, counts, size, owner))

    def insert(self, now: float, source: int, shard: int, count: int) -> None:
        """A delivery; nobody waits for it."""
        if source != shard:
            self.transfer(now, source, shard, count * self._unroll_bytes)
        arrives = np.array([now + self.window_s])
        self._at_shards.put(jobs(arrives, np.array([shard]), shard, np.array([count]), np.zeros(1), NOBODY))

    def report(self, first: int, end: int) -> None:
        """A question to each of these shards; those of one window arrive together, when the next one begins."""
        self._reports[first:end] += 1

    def transfer(self, now: float, source: int, target: int, size: float, then: Event | None = None) -> None:
        """Bytes from node to node, past the shards."""
        owner = NOBODY if then is None else self._owner(1, then)
        arrives = np.array([now + self.window_s])
        self._at_out.put(jobs(arrives, np.array([source]), target, np.zeros(1, np.int64), np.array([size]), owner))

    def _serve(self, begin: float, until: float) -> None:
        """Everything that arrives before: at shards, then at links out, then at links in."""
        due = self._at_shards.due(until)
        if len(due.at) or self._reports.any():
            self._look_up(begin, due)
        due = self._at_out.due(until)
        if len(due.at):
            self._send(due)
        due = self._at_in.due(until)
        if len(due.at):
            self.in_bytes += float(due.bytes.sum())
            self._answered(due.later(self.into.serve(due.target, due.at, due.bytes * self.byte_s)))

    def _look_up(self, begin: float, due: Jobs) -> None:
        """What is for the shard's own node is there then; what is for others goes on to the link."""
        rates = self.rates
        each = rates.unroll_shard_s if self._compressed else rates.raw_shard_s
        asked = np.flatnonzero(self._reports)
        server = np.concatenate((due.source, asked))
        at = np.concatenate((due.at, np.full(len(asked), begin)))
        service = np.concatenate((rates.call_shard_s + due.unrolls * each, self._reports[asked] * rates.report_shard_s))
        done = due.later(self.shards.serve(server, at, service)[: len(due.at)])
        self.calls += len(due.at) + int(self._reports.sum())
        self._reports[:] = 0
        near = done.source == done.target
        self._at_out.put(done.of(~near))
        self._answered(done.of(near))

    def _send(self, due: Jobs) -> None:
        service = due.bytes * self.byte_s
        sent = self.out.serve(due.source, due.at, service)
        self.out_bytes += float(due.bytes.sum())
        inside = due.target != OUTSIDE
        self._answered(due.later(sent).of(~inside))
        # A link in begins with the first bytes, not after the last ones.
        self._at_in.put(due.later(sent - service + self.rates.latency_s).of(inside))

    def _answered(self, done: Jobs) -> None:
        done = done.of(done.owner != NOBODY)
        np.maximum.at(self._latest, done.owner, done.at)
        owners, counts = np.unique(done.owner, return_counts=True)
        self._waiting[owners] -= counts
        for owner in owners[self._waiting[owners] == 0].tolist():
            self._unused.append(owner)
            self.at(float(self._latest[owner]), self._then.pop(owner))

    def _owner(self, answers: int, then: Event) -> int:
        """A number for whoever waits for so many answers."""
        if not self._unused:
            size = len(self._waiting)
            self._waiting = np.concatenate((self._waiting, np.zeros(size, np.int64)))
            self._latest = np.concatenate((self._latest, np.zeros(size)))
            self._unused = list(range(size, 2 * size))
        owner = self._unused.pop()
        self._waiting[owner], self._latest[owner], self._then[owner] = answers, 0.0, then
        return owner
