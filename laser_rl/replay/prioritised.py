"""Prioritised draws, the baseline of the paper's appendix: what had a large critic loss is replayed more often."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl.ops import priority as ops
from laser_rl.replay.lanes import ATTEMPTS, NONE, Drawn, EpisodeIndex, Lanes, Moved, held_ids, outrun
from laser_rl.replay.mixer import MemoryState, Priorities, Sampler, State, columns_of
from laser_rl.replay.records import Ids
from laser_rl.replay.store import Evicted, Replay
from laser_rl.types import Batch

LEAST = 1.0  # what is new gets the largest priority ever seen, at least this
KNOWN = ("last", "end", "priority")  # of an episode, in a state
IN_FLIGHT = 64  # batches filled whose losses have not come yet; the learner has two or three


class Prioritised(Sampler):
    """Unrolls with P ∝ p^α, mixed with a uniform share; a column's weight is (N·P)^-β.

    Args:
        store: to draw from; others may insert at any time.
        exponent: α; 0 draws uniformly.
        importance_exponent: β; 1 corrects fully for the draw.
        uniform_share: ε, so that no priority goes stale for ever.
        state: what the memory begins a drawn unroll with.
    """

    def __init__(
        self,
        store: Replay,
        *,
        exponent: float,
        importance_exponent: float,
        uniform_share: float,
        state: MemoryState = "stored",
    ) -> None:
        self._store, self._zero = store, state == "zero"
        self._law = _Law(exponent, importance_exponent, uniform_share)
        # An unroll's place is that of its id in the ring; `owner` says whose priority lies there.
        self._owner = np.full(store.capacity, NONE, np.int64)
        self._priority = np.zeros(store.capacity)
        self._largest = LEAST

    def ready(self) -> bool:
        """Whether the store holds anything."""
        return len(self._store) > 0

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        """Draw by the priorities as they are now, and gather."""
        ids, weight = np.full(count, NONE, np.int64), np.ones(count)
        for _ in range(ATTEMPTS):
            held = np.arange(*held_ids(self._store))
            if not len(held):
                raise ValueError("fill() before ready(): the replay is empty; insert some unrolls first")
            anew = np.flatnonzero(ids < held[0])
            if len(anew):
                place, weight[anew] = self._law.draw(self._priorities(held), len(anew), random)
                ids[anew] = held[place]
            try:
                self._store.gather(ids, batch, first_column)
            except Evicted:  # by another process, since we looked
                continue
            fields: dict[str, Any] = columns_of(self._store.layout, batch, first_column, count)
            fields["weight"][:] = weight
            if self._zero:
                fields["state"][...] = 0
            return
        raise outrun(self._store)

    def _priorities(self, held: Ids) -> Priorities:
        """Priorities of all unrolls held; new unrolls begin with the largest."""
        place = held % self._store.capacity
        new = self._owner[place] != held
        self._owner[place[new]], self._priority[place[new]] = held[new], self._largest
        return self._priority[place]

    def prioritise(self, ids: Ids, priority: Priorities) -> None:
        """New priorities; nothing for an unroll that has been replaced by another one in its place of the ring."""
        place = ids % self._store.capacity
        same = self._owner[place] == ids
        self._priority[place[same]] = priority[same]
        self._largest = max(self._largest, float(priority.max(initial=0.0)))

    def state_dict(self) -> State:
        """The priorities known, by id."""
        known = self._owner != NONE
        return {"id": self._owner[known], "priority": self._priority[known], "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; an unroll whose priority was not kept begins with the largest."""
        self._owner[:], self._largest = NONE, float(state["largest"])
        place = np.asarray(state["id"]) % self._store.capacity
        self._owner[place], self._priority[place] = state["id"], state["priority"]


class PrioritisedLanes(Sampler):
    """Lanes whose episodes are drawn with P ∝ p^α, mixed with a uniform share.

    An episode's priority is the mean of those of its unrolls when a lane last went through it to its end, the largest so far if
    none did. Its weight is that of all its unrolls.
    """

    def __init__(
        self, store: Replay, count: int, *, exponent: float, importance_exponent: float, uniform_share: float
    ) -> None:
        self._law = _Law(exponent, importance_exponent, uniform_share)
        self._lanes = Lanes(store, count, draw=self._draw)
        self._total, self._unrolls = np.zeros(count), np.zeros(count, np.int64)  # of the unrolls reported in each lane
        self._in_flight: deque[Moved] = deque(maxlen=IN_FLIGHT)
        self._largest = LEAST
        self._loaded: Mapping[str, Any] | None = None  # priorities for an index that has not been made yet

    def ready(self) -> bool:
        """Whether a whole episode is there; ConfigError if there will be none."""
        return self._lanes.ready()

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        """Every lane one unroll further."""
        self._index()
        self._in_flight.append(self._lanes.advance(count, random, batch, first_column))

    def _draw(self, table: NDArray[np.void], count: int, random: np.random.Generator) -> Drawn:
        known = table["priority"]
        return self._law.draw(np.where(np.isnan(known), self._largest, known), count, random)

    def prioritise(self, ids: Ids, priority: Priorities) -> None:
        """Of the oldest batch with just these unrolls whose priorities have not come yet; what matches none is ignored.

        The lanes may be batches ahead of it. The same unroll may be in several lanes, and for each in another episode.
        """
        if not any(np.array_equal(moved.ids, ids) for moved in self._in_flight):
            return
        while len(self._in_flight):
            moved = self._in_flight.popleft()
            found = np.array_equal(moved.ids, ids)
            self._account(moved, priority if found else None)
            if found:
                return

    def _account(self, moved: Moved, priority: Priorities | None) -> None:
        """Add to the lanes' sums; None if the learner has said nothing about that batch. A finished episode gets its mean."""
        self._total[moved.begun], self._unrolls[moved.begun] = 0.0, 0
        if priority is not None:
            self._total += priority
            self._unrolls += 1
        episodes = self._index()
        for lane in np.flatnonzero(moved.done & (self._unrolls > 0)).tolist():
            mean = float(self._total[lane] / self._unrolls[lane])
            self._largest = max(self._largest, mean)
            place = episodes.find(int(moved.lanes["last"][lane]), int(moved.lanes["end"][lane]))
            if place is not None:
                episodes.table["priority"][place] = mean

    def _index(self) -> EpisodeIndex:
        """The newest, with the priorities of a loaded state."""
        episodes = self._lanes.episodes
        if self._loaded is not None:
            episodes.refresh()
            episodes.table["priority"] = np.nan
            for last, end, priority in zip(*(self._loaded[name].tolist() for name in KNOWN), strict=True):
                if (place := episodes.find(last, end)) is not None:
                    episodes.table["priority"][place] = priority
            self._loaded = None
        return episodes

    def restart(self) -> None:
        """Every lane draws anew for the next batch."""
        self._lanes.restart()

    def state_dict(self) -> State:
        """Where each lane stands, and the priorities known. Not the batches in flight: their losses are lost."""
        table = self._index().table
        known = table[~np.isnan(table["priority"])]
        lanes = {f"lane.{name}": array for name, array in self._lanes.state_dict().items()}
        sums = {"total": self._total.copy(), "unrolls": self._unrolls.copy(), "largest": self._largest}
        return {**lanes, **sums, **{name: known[name].copy() for name in KNOWN}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there, once the store is filled."""
        lanes = {name.removeprefix("lane."): array for name, array in state.items() if name.startswith("lane.")}
        self._lanes.load_state_dict(lanes)
        self._in_flight.clear()
        kept = len(state["total"]) > 0
        self._total[:], self._unrolls[:] = (state["total"], state["unrolls"]) if kept else (0.0, 0)
        self._largest, self._loaded = float(state["largest"]), {name: np.array(state[name]) for name in KNOWN}


class _Law(NamedTuple):
    """How priorities become draws and weights."""

    exponent: float
    importance_exponent: float
    uniform_share: float

    def draw(self, priority: Priorities, count: int, random: np.random.Generator) -> Drawn:
        """With replacement. What has no chance is never drawn."""
        chance = ops.probabilities(
            torch.from_numpy(priority), exponent=self.exponent, uniform_share=self.uniform_share
        ).numpy()
        upto = chance.cumsum()
        # From the right: a random number below 1, times the sum, is below the sum, and what has no chance is passed over.
        place = np.searchsorted(upto, random.random(count) * upto[-1], side="right")
        weight = ops.weights(torch.from_numpy(chance[place]), stored=len(chance), exponent=self.importance_exponent)
        return Drawn(place, weight.numpy())
