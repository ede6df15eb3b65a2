"""Lanes: whole episodes replayed in order, for agents with a memory.

Column j of every batch is lane j. It goes through an episode unroll by unroll, and the learner carries the memory's state from one
batch to the next: a state that its own newest parameters computed from the episode's first row on, never one that was stored.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError
from laser_rl.replay.episodes import ATTEMPTS, NONE, EpisodeIndex, outrun
from laser_rl.replay.mixer import Priorities, State, columns_of
from laser_rl.replay.records import Ids
from laser_rl.replay.store import Evicted, Replay
from laser_rl.types import Batch

log = logging.getLogger("laser_rl.replay")
# The unroll to come, or -1 to draw anew; where the lane's episode ends; what its draw weighs.
LANE = np.dtype([("next", "i8"), ("last", "i8"), ("end", "i8"), ("weight", "f8")])


class Drawn(NamedTuple):
    """Episodes drawn."""

    place: Ids  # in the table
    weight: Priorities


class Moved(NamedTuple):
    """What the lanes did for one batch; all arrays [count]."""

    ids: Ids
    lanes: NDArray[np.void]  # the episode that each is in
    begun: NDArray[np.bool_]  # at the beginning of it
    done: NDArray[np.bool_]  # that was its last unroll


Draw = Callable[[NDArray[np.void], int, np.random.Generator], Drawn]


def uniformly(table: NDArray[np.void], count: int, random: np.random.Generator) -> Drawn:
    """Each episode of the table as likely as any other, however long it is."""
    return Drawn(random.integers(0, len(table), count), np.ones(count))


class Lanes:
    """Each of `count` lanes draws an episode and goes through it, one unroll a batch; a finished or overwritten one draws anew.

    Rows before the episode's first one are not learnable. Those of other episodes behind its end are: the memory is reset between.
    """

    def __init__(self, store: Replay, count: int, *, draw: Draw = uniformly) -> None:
        self._store, self._draw = store, draw
        self.episodes = EpisodeIndex(store)
        self._lanes = np.zeros(count, LANE)
        self._seen = self._waiting = False  # a whole episode; for one, since the last look
        self.restart()

    def ready(self) -> bool:
        """Whether a whole episode is there. If none has been until the store was full there will be none: ConfigError."""
        self.episodes.refresh()
        found = len(self.episodes) > 0
        if not found and self.episodes.full:
            held, capacity = len(self._store), self._store.capacity * self._store.layout.steps
            why = (
                f"it is full with {held:,} unrolls of all environments together, for a capacity of {capacity:,} steps; "
                "raise --replay.capacity-steps or use --replay.state stored"
            )
            if not self._seen:
                raise ConfigError(f"expected a whole episode in the replay, but none fits: {why}")
            if not self._waiting:
                log.warning(
                    "no whole episode is in the replay at the moment, and learning waits until one has ended: %s", why
                )
        self._seen, self._waiting = self._seen or found, not found
        return found

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        """Every lane one unroll further."""
        self.advance(count, random, batch, first_column)

    def advance(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> Moved:
        """The same, and says what each lane did."""
        if count != len(self._lanes):
            raise ValueError(f"expected to fill all {len(self._lanes)} lanes, got {count} columns; make so many lanes")
        lanes, ids = self._lanes.copy(), self._lanes["next"].copy()
        row, begun = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
        for _ in range(ATTEMPTS):
            self.episodes.refresh()
            # Finished, or overwritten before we came to it; or never there, in a store that is not the one of a loaded state.
            anew = np.flatnonzero((ids < self.episodes.first) | (ids >= self.episodes.end))
            if len(anew):
                table = self._drawable()
                place, weight = self._draw(table, len(anew), random)
                ids[anew], row[anew], begun[anew] = table["first"][place], table["row"][place], True
                for name in ("last", "end"):
                    lanes[name][anew] = table[name][place]
                lanes["weight"][anew] = weight
            done = ids == lanes["last"]
            lanes["next"] = np.where(done, NONE, self.episodes.successors(ids))
            try:
                self._store.gather(ids, batch, first_column)
            except Evicted:  # by another process, since the refresh
                continue
            self._mark(batch, first_column, lanes, row, begun)
            self._lanes = lanes
            return Moved(ids, lanes.copy(), begun, done)
        raise outrun(self._store)

    def _drawable(self) -> NDArray[np.void]:
        if not self.ready():
            if self._seen:  # the last one has left since the mixer asked
                raise outrun(self._store)
            raise ValueError("fill() before ready(): no whole episode is in the replay; insert more unrolls first")
        return self.episodes.table

    def _mark(self, batch: Batch, first: int, lanes: NDArray[np.void], row: Ids, begun: NDArray[np.bool_]) -> None:
        fields: dict[str, Any] = columns_of(self._store.layout, batch, first, len(lanes))
        fields["carried"][:], fields["weight"][:] = ~begun, lanes["weight"]
        fields["is_transition"][...] &= np.arange(self._store.layout.steps) >= row[:, None]
        fields["state"][begun] = 0

    def prioritise(self, ids: Ids, priority: Priorities) -> None:
        """All are equal."""

    def restart(self) -> None:
        """Every lane draws anew for the next batch."""
        self._lanes["next"], self._lanes["last"] = NONE, NONE

    def state_dict(self) -> State:
        """Where each lane stands. The index is not kept: one made from scratch is equal."""
        return {name: self._lanes[name].copy() for name in LANE.names or ()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; every lane draws anew if nothing was kept."""
        self.restart()
        if not len(state["next"]):
            return
        if len(state["next"]) != len(self._lanes):
            raise ValueError(f"expected the state of {len(self._lanes)} lanes, got one of {len(state['next'])}")
        for name in LANE.names or ():
            self._lanes[name] = state[name]
