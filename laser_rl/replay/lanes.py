"""Replay for recurrent agents: every replayed column (a *lane*) goes through a whole episode in order; `EpisodeIndex` finds them.

Lane j fills the j-th replayed column of every batch. It goes through an episode unroll by unroll, and the learner carries the memory's
state from one batch to the next: a state that its own newest parameters computed from the first row on, never one that was stored.

Unrolls of all streams lie interleaved in the store. An `EpisodeIndex` says which whole episodes it holds and how the unrolls of a stream
follow each other; it is made by reading the small fields of each new unroll once. Other processes may write into the store at any time, so
every reader keeps an index of its own; one made from scratch over the same unrolls is equal.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError
from laser_rl.replay.memory_layout import Ids
from laser_rl.replay.mixer import Sampler, State, columns_of
from laser_rl.replay.store import ATTEMPTS, NONE, Evicted, Replay, outrun
from laser_rl.types import Batch

log = logging.getLogger("laser_rl.replay")
# The unroll to come, or -1 to draw anew; the last one of the lane's episode.
LANE = np.dtype([("next", "i8"), ("last", "i8")])
# Begins at input row `row` of the unroll `first`, ends with outcome `end` of the unroll `last`.
EPISODE = np.dtype([("first", "i8"), ("row", "i8"), ("last", "i8"), ("end", "i8")])
FIELDS = ("member", "slot", "episode", "is_first", "terminated", "truncated")
BLOCK = 1024  # unrolls read at once: a millisecond under the lock


class _Stream(NamedTuple):
    id: int
    episode: int  # number of the episode at the row that the next unroll begins with
    is_first: bool  # whether that row is the first of it
    begun: tuple[int, int] | None  # unroll and row at which the open episode began, if its beginning was seen


class EpisodeIndex:
    """An index over the whole episodes of a store, in the order in which they were completed."""

    def __init__(self, store: Replay) -> None:
        self._store = store
        self.first, self.end = 0, 0  # ids that the index knows: from `first` to `end` - 1
        self.evicted = False  # something that the index knew has left
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._next = np.full(store.capacity, NONE, np.int64)  # of the unroll in each place of the ring
        self.table = np.zeros(0, EPISODE)  # the episodes whose unrolls are all held, by completion

    def __len__(self) -> int:
        return len(self.table)

    def refresh(self) -> None:
        for _ in range(ATTEMPTS):
            first, end = self._store.span()
            if (first, end) == (self.first, self.end):
                return
            self.evicted |= self.end > self.first and first > self.first
            try:
                for at in range(max(first, self.end), end, BLOCK):
                    self._read(np.arange(at, min(at + BLOCK, end)), first)
            except Evicted:
                continue
            self.first, self.end = first, end
            if (self.table["first"] < first).any():
                self.table = self.table[self.table["first"] >= first]
            return
        raise outrun(self._store)

    def successors(self, ids: Ids) -> Ids:
        """The id of the next unroll in the stream of each; -1 if it is not there, or the unroll itself is not."""
        held = (ids >= self.first) & (ids < self.end)
        return np.where(held, self._next[ids % self._store.capacity], NONE)

    def _read(self, ids: Ids, first: int) -> None:
        """Go on in all streams with a block of new unrolls; of those known before, the ones from `first` on are held."""
        fields: dict[str, Any] = self._store.fields(ids, FIELDS)
        is_first = fields["is_first"][:, self._store.layout.context :]
        marks = _marks(is_first[:, :-1], fields["terminated"] | fields["truncated"])
        after = fields["episode"] + is_first[:, 1:].sum(1)  # the episode at row T
        columns = (fields["member"], fields["slot"], fields["episode"], is_first[:, 0], after, is_first[:, -1])
        self._next[ids % self._store.capacity] = NONE
        found: list[tuple[int, int, int, int]] = []
        for i, member, slot, episode, opens, follows, shared, inside in zip(
            ids.tolist(), *(column.tolist() for column in columns), marks, strict=True
        ):
            stream, begun = self._streams.get((member, slot)), None
            # An older unroll whose place has been taken must not be linked; and a stream may have been broken off.
            if stream and stream.id >= first and (stream.episode, stream.is_first) == (episode, opens):
                self._next[stream.id % self._store.capacity] = i
                begun = stream.begun
            for at, end in inside:
                if end and begun is not None:
                    found.append((*begun, i, at))
                begun = None if end else (i, at)
            self._streams[member, slot] = _Stream(i, follows, shared, begun)
        if found:
            self.table = np.concatenate([self.table, np.array(found, EPISODE)])
        self.end = int(ids[-1]) + 1


def _marks(begins: NDArray[np.bool_], ends: NDArray[np.bool_]) -> list[list[tuple[int, bool]]]:
    """For each unroll the rows at which an episode begins (False) or ends (True). One of a single step does both at a row."""
    marks: list[list[tuple[int, bool]]] = [[] for _ in begins]
    unroll, row, end = np.nonzero(np.stack([begins, ends], axis=2))
    for i, *mark in zip(unroll.tolist(), row.tolist(), (end == 1).tolist(), strict=True):
        marks[i].append((mark[0], mark[1]))
    return marks


class Lanes(Sampler):
    """Each of `count` lanes draws an episode uniformly and goes through it, one unroll a batch; a finished or overwritten one draws anew.

    Rows before the episode's first one are not learnable. Those of other episodes behind its end are: the memory is reset between.
    """

    def __init__(self, store: Replay, count: int) -> None:
        self._store = store
        self.episodes = EpisodeIndex(store)
        self._lanes = np.zeros(count, LANE)
        self._seen = self._waiting = False  # a whole episode; for one, since the last look
        self.restart()

    def ready(self) -> bool:
        """Whether a whole episode is there. If none has been until the store was full there will be none: ConfigError."""
        self.episodes.refresh()
        found, held = len(self.episodes) > 0, self.episodes.end - self.episodes.first
        if not found and (self.episodes.evicted or held >= self._store.capacity):
            capacity = self._store.capacity * self._store.layout.steps
            why = (
                f"it is full with {held:,} unrolls of all environments together, for a capacity of {capacity:,} steps; "
                "raise --replay.capacity-steps or use --replay.state stored"
            )
            if not self._seen:
                raise ConfigError(f"expected a whole episode in the replay, but none fits: {why}")
            if not self._waiting:
                log.warning("no whole episode is in the replay now, and learning waits until one has ended: %s", why)
        self._seen, self._waiting = self._seen or found, not found
        return found

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        lanes, ids = self._lanes.copy(), self._lanes["next"].copy()
        row, begun = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
        for _ in range(ATTEMPTS):
            self.episodes.refresh()
            # Finished, or overwritten before we came to it; or never there, in a store that is not the one of a loaded state.
            anew = np.flatnonzero((ids < self.episodes.first) | (ids >= self.episodes.end))
            if len(anew):
                if not self.ready():  # the last one has left since the mixer asked
                    raise outrun(self._store)
                table = self.episodes.table
                drawn = table[random.integers(0, len(table), len(anew))]  # however long an episode is
                ids[anew], row[anew], begun[anew] = drawn["first"], drawn["row"], True
                lanes["last"][anew] = drawn["last"]
            lanes["next"] = np.where(ids == lanes["last"], NONE, self.episodes.successors(ids))
            try:
                self._store.gather(ids, batch, first_column)
            except Evicted:  # by another process, since the refresh
                continue
            fields: dict[str, Any] = columns_of(self._store.layout, batch, first_column, count)
            fields["carried"][:] = ~begun
            fields["is_transition"][...] &= np.arange(self._store.layout.steps) >= row[:, None]
            fields["state"][begun] = 0
            self._lanes = lanes
            return
        raise outrun(self._store)

    def restart(self) -> None:
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
