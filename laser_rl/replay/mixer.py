"""Batches with an exact online share (the paper's α): new unrolls first, each once, the rest drawn by a sampler from the whole replay.

`lanes` has the sampler of recurrent agents, `prioritised` the baseline of the paper's appendix.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import Unpacking
from laser_rl.replay.memory_layout import Ids, Packed, fields_of, pack, parts_of, unpack
from laser_rl.replay.store import Replay
from laser_rl.types import Array, Batch, UnrollLayout, Unrolls, empty_unrolls

SAMPLER = "sampler."  # before the names of its state
State = dict[str, Any]  # NumPy arrays, and numbers and strings as JSON has them
Priorities = NDArray[np.float64]


class Sampler:
    """Fills the replayed columns of a member's batches; used by one thread. The base class draws nothing: for batches without any."""

    def ready(self) -> bool:
        """Whether `fill` can draw from a store that holds something."""
        return True

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        """Fill `count` columns of a batch of `allocate`, the same ones in every batch."""

    def prioritise(self, ids: Ids, priority: Priorities) -> None:
        """What the learner found in unrolls of an earlier batch, in the order of its columns. They may have left meanwhile."""

    def restart(self) -> None:
        """Begin new lanes: the memory's states are gone."""

    def state_dict(self) -> State:
        """All that the next batches depend on but the store and the random numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state. Arrays without rows stand for what was not kept: that begins anew."""


class UniformSampler(Sampler):
    """Draws unrolls of all members uniformly, with replacement."""

    def __init__(self, store: Replay) -> None:
        self._store = store

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        self._store.sample_into(count, random, batch, first_column)


def columns_of(layout: UnrollLayout, batch: Batch, first: int, count: int) -> dict[str, Array]:
    """The fields of some columns of a batch of `allocate`, unroll-major, to be written to."""
    return fields_of(parts_of(layout, batch).records[first : first + count].numpy(), layout)


@dataclass(frozen=True)
class Counts:
    """Unrolls of a batch by where they come from."""

    online: int
    replayed: int

    @classmethod
    def of(cls, batch_size: int, replay_fraction: float) -> "Counts":
        """The nearest whole numbers, and at least one of each where there is some of it; ConfigError for one unroll that would be both."""
        replayed = int(np.floor(replay_fraction * batch_size + 0.5))
        if 0 < replay_fraction < 1:
            if batch_size == 1:
                raise ConfigError(f"a replay fraction of {replay_fraction} needs 2 unrolls a batch, got 1; use 0 or 1")
            replayed = min(max(replayed, 1), batch_size - 1)
        return cls(batch_size - replayed, replayed)


def _joined(blocks: Sequence[Packed]) -> Packed:
    return Packed(*map(np.concatenate, zip(*blocks, strict=True)))


class Mixer:
    """Makes the batches of one member; not shared between threads, but for `prioritise` and `restart` (the store may be).

    Every update consumes `new_unrolls_per_update` new unrolls; the newest of them are the online columns, and each is online
    once at most. All of them enter the store when they are offered. `store` is None where nothing is replayed; `sampler` draws
    what is, uniformly if none is given. With `zero_state` a memory begins what was drawn with nothing, not with the actor's state.
    """

    def __init__(
        self,
        layout: UnrollLayout,
        store: Replay | None,
        counts: Counts,
        random: np.random.Generator,
        *,
        new_unrolls_per_update: int | None = None,
        min_unrolls: int = 1,
        sampler: Sampler | None = None,
        zero_state: bool = False,
    ) -> None:
        least = max(1, counts.online)
        self.new_unrolls_per_update = least if new_unrolls_per_update is None else new_unrolls_per_update
        if self.new_unrolls_per_update < least:
            raise ConfigError(
                f"expected at least {least} new unrolls per update for {counts.online} online ones, got "
                f"{new_unrolls_per_update}; raise it, or raise --replay.fraction"
            )
        if store is not None and counts.replayed and min_unrolls > store.capacity:
            raise ConfigError(
                f"learning waits for {min_unrolls} unrolls, the replay holds {store.capacity}; lower --replay.warmup-steps"
            )
        self.layout, self.store, self.counts = layout, store if counts.replayed else None, counts
        self._random, self._zero_state = random, zero_state
        self._min_unrolls = max(1, min_unrolls)
        self._pending: deque[Packed] = deque()  # of one unroll each
        self._unpacking = Unpacking(layout)
        self._sampler = Sampler() if self.store is None else sampler or UniformSampler(self.store)
        self.filled = 0  # batches so far
        self._news: deque[Callable[[], None]] = deque()  # calls of the sampler, from any thread: before the next batch

    @property
    def pending(self) -> int:
        return len(self._pending)

    def offer(self, unrolls: Unrolls) -> None:
        packed = pack(self.layout, unrolls)
        if self.store is not None:
            self.store.insert_packed(packed)
        self.queue(packed)

    def queue(self, packed: Packed) -> None:
        """Queue new unrolls of this member as online ones; the caller has put them into the store already."""
        for i in range(len(packed.records)):
            self._pending.append(Packed(packed.records[i : i + 1], packed.frames[i : i + 1]))

    def ready(self) -> bool:
        if len(self._pending) < self.new_unrolls_per_update:
            return False
        return (self.store is None or len(self.store) >= self._min_unrolls) and self._sampler.ready()

    def fill(self, batch: Batch, first_column: int = 0) -> None:
        """Once `ready`, fill the columns from `first_column` on: online ones first, oldest first, then replayed ones in the order drawn."""
        counts = self.counts
        consumed = [self._pending.popleft() for _ in range(self.new_unrolls_per_update)]
        if counts.online:
            online = _joined(consumed[-counts.online :])
            self._unpacking.put(online, np.full(counts.online, -1), parts_of(self.layout, batch), first_column)
        self._settle()
        replayed = first_column + counts.online
        self._sampler.fill(counts.replayed, self._random, batch, replayed)
        if self._zero_state:
            columns_of(self.layout, batch, replayed, counts.replayed)["state"][...] = 0
        self.filled += 1

    def prioritise(self, ids: ArrayLike, priority: ArrayLike) -> None:
        """What the learner found in the columns of a batch: `batch.id` (-1: online, not kept) and a priority each. From any thread."""
        number, found = np.asarray(ids).astype(np.int64), np.asarray(priority).astype(np.float64)
        if number.shape != found.shape or not (np.isfinite(found) & (found >= 0)).all():
            raise ValueError(
                f"expected a finite priority of at least 0 for each of {number.size} unrolls, got {found}; "
                "report nothing for an update that failed"
            )
        self._news.append(partial(self._sampler.prioritise, number[number >= 0], found[number >= 0]))

    def restart(self) -> None:
        """The learner's memory has lost its states: lanes draw anew for the next batch. From any thread."""
        self._news.append(self._sampler.restart)

    def _settle(self) -> None:
        while self._news:
            self._news.popleft()()

    def state_dict(self) -> State:
        self._settle()
        blocks = [pack(self.layout, empty_unrolls(self.layout, 0)), *self._pending]
        return {
            "random": self._random.bit_generator.state,
            "filled": self.filled,
            **{SAMPLER + name: value for name, value in self._sampler.state_dict().items()},
            **{f"pending.{name}": array for name, array in unpack(self.layout, _joined(blocks))._asdict().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the same batches, bit for bit, over a store with the same unrolls."""
        self._random.bit_generator.state = state["random"]
        self.filled = int(state["filled"])
        self._news.clear()
        drawn = {name.removeprefix(SAMPLER): value for name, value in state.items() if name.startswith(SAMPLER)}
        self._sampler.load_state_dict(drawn)
        self._pending.clear()
        self.queue(pack(self.layout, Unrolls(*(state[f"pending.{name}"] for name in Unrolls._fields))))
