"""What a sampler is, and the plain one: unrolls drawn uniformly."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from laser_rl.ports import ReplayStore
from laser_rl.replay.records import Packed, fields_of, parts_of
from laser_rl.replay.shared import Ids
from laser_rl.types import Array, Batch, UnrollLayout

State = dict[str, Any]  # NumPy arrays, and numbers and strings as JSON has them
Priorities = NDArray[np.float64]
MemoryState = Literal["stored", "zero"]  # what the memory begins a drawn unroll with: the actor's state, or nothing


class UnrollStore(ReplayStore, Protocol):
    """What a mixer needs of a store, and a sampler that draws unrolls uniformly; `Replay` is one, and one over several machines."""

    @property
    def layout(self) -> UnrollLayout:
        """Of the unrolls."""

    @property
    def capacity(self) -> int:
        """In unrolls."""

    def __len__(self) -> int: ...

    def insert_packed(self, packed: Packed) -> Ids:
        """`insert` for unrolls that `pack` has checked already."""


class Sampler(Protocol):
    """Fills the replayed columns of a member's batches; used by one thread."""

    def ready(self) -> bool:
        """Whether something can be drawn."""

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        """Fill `count` columns of a batch of `allocate`, the same ones in every batch."""

    def prioritise(self, ids: Ids, priority: Priorities) -> None:
        """What the learner found in unrolls of an earlier batch, in the order of its columns. They may have left meanwhile."""

    def restart(self) -> None:
        """Go on with nothing that was begun: the memory's states are gone."""

    def state_dict(self) -> State:
        """All that the next batches depend on but the store and the random numbers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there. Arrays without rows stand for what was not kept: that begins anew."""


class UniformSampler:
    """Unrolls, whoever made them, each as likely as any other, with replacement.

    >>> from laser_rl.replay import Replay, allocate
    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> store, batch = Replay(layout, capacity_steps=10), allocate(layout, columns=3)
    >>> ids = store.insert(empty_unrolls(layout, 4))
    >>> UniformSampler(store).fill(3, np.random.default_rng(0), batch, first_column=0)
    >>> batch.id
    tensor([3, 2, 2])
    """

    def __init__(self, store: UnrollStore, state: MemoryState = "stored") -> None:
        self._store, self._zero = store, state == "zero"

    def ready(self) -> bool:
        """Whether the store holds anything."""
        return len(self._store) > 0

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        """Draw and gather."""
        self._store.sample_into(count, random, batch, first_column)
        if self._zero:
            columns_of(self._store.layout, batch, first_column, count)["state"][...] = 0

    def prioritise(self, ids: Ids, priority: Priorities) -> None:
        """All are equal."""

    def restart(self) -> None:
        """Nothing goes on from one batch to the next."""

    def state_dict(self) -> State:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


def columns_of(layout: UnrollLayout, batch: Batch, first: int, count: int) -> dict[str, Array]:
    """The fields of some columns of a batch of `allocate`, unroll-major, to be written to.

    >>> from laser_rl.replay import allocate
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> batch = allocate(layout, columns=3)
    >>> columns_of(layout, batch, first=1, count=2)["is_transition"][0, 1:] = True
    >>> batch.is_transition
    tensor([[False, False, False],
            [False,  True, False]])
    """
    return fields_of(parts_of(layout, batch).records[first : first + count].numpy(), layout)
