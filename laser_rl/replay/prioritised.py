"""Prioritised draws, the baseline of the paper's appendix: what had a large critic loss is replayed more often."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from laser_rl.ops import priority as ops
from laser_rl.replay.memory_layout import Ids
from laser_rl.replay.mixer import Priorities, Sampler, State, columns_of
from laser_rl.replay.store import ATTEMPTS, NONE, Evicted, Replay, outrun
from laser_rl.types import Batch

LEAST = 1.0  # what is new gets the largest priority ever seen, at least this


class SumTree:
    """A number for each place and the sums over them, in a binary tree: a change or a draw looks at one node for each of its levels.

    Every sum is that of the two below it, so a tree depends on its numbers alone, not on how they came.
    """

    def __init__(self, places: int) -> None:
        self._leaves = 1 << max(0, places - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)  # the root is 1, the nodes below node n are 2·n and 2·n + 1

    @property
    def total(self) -> float:
        return float(self._sums[1])

    def at(self, place: Ids) -> Priorities:
        return self._sums[place + self._leaves]

    def put(self, place: Ids, numbers: ArrayLike) -> None:
        node = place + self._leaves
        self._sums[node] = numbers
        while len(node) and node[0] > 1:
            node = np.unique(node >> 1)
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    def find(self, reach: Priorities) -> Ids:
        """The first place up to which the numbers add up to more than `reach`, which is below the total; never one whose number is 0."""
        node = np.ones(len(reach), np.int64)
        while len(node) and node[0] < self._leaves:
            left, right = self._sums[2 * node], self._sums[2 * node + 1]
            turns = (reach >= left) & (right > 0)
            # Rounding alone can make it reach further than the sum that is left.
            reach = np.minimum(reach - turns * left, np.nextafter(np.where(turns, right, left), 0.0))
            node = 2 * node + turns
        return node - self._leaves


class Prioritised(Sampler):
    """Unrolls with P ∝ p^α, mixed with a uniform share, so that no priority goes stale for ever; a column's weight is (N·P)^-β.

    α is `exponent` (0 draws uniformly), β `importance_exponent` (1 corrects fully). Others may insert into the store at any time.
    """

    def __init__(self, store: Replay, *, exponent: float, importance_exponent: float, uniform_share: float) -> None:
        self._store = store
        self._exponent, self._importance_exponent, self._uniform_share = exponent, importance_exponent, uniform_share
        # An unroll's place is that of its id in the ring; `owner` says whose priority lies there.
        self._owner = np.full(store.capacity, NONE, np.int64)
        self._priority = np.zeros(store.capacity)
        self._powered = SumTree(store.capacity)  # p^α of what is held
        self._first = self._end = 0  # the ids that were held at the last look
        self._largest = LEAST

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        ids, weight = np.full(count, NONE, np.int64), np.ones(count)
        for _ in range(ATTEMPTS):
            self._look()
            anew = np.flatnonzero(ids < self._first)
            if len(anew):
                ids[anew], weight[anew] = self._draw(len(anew), random)
            try:
                self._store.gather(ids, batch, first_column)
            except Evicted:  # by another process, since we looked
                continue
            fields: dict[str, Any] = columns_of(self._store.layout, batch, first_column, count)
            fields["weight"][:] = weight
            return
        raise outrun(self._store)

    def _draw(self, count: int, random: np.random.Generator) -> tuple[Ids, Priorities]:
        """Ids drawn with replacement, and the weight of each. What has no chance is never drawn."""
        stored, total, number = self._end - self._first, self._powered.total, random.random(count)
        # A number below the uniform share is one place of all, what is above it one of Σp^α.
        share = self._uniform_share if total > 0 else 1.0
        ids, chosen = np.empty(count, np.int64), number >= share
        ids[~chosen] = self._first + np.minimum((number[~chosen] / share * stored).astype(np.int64), stored - 1)
        ids[chosen] = self._owner[self._powered.find((number[chosen] - share) / (1 - share) * total)]
        powered = torch.from_numpy(self._powered.at(ids % self._store.capacity))
        chance = ops.probabilities(powered, total=total, stored=stored, uniform_share=self._uniform_share)
        return ids, ops.weights(chance, stored=stored, exponent=self._importance_exponent).numpy()

    def _look(self) -> None:
        """Forget what has left the store since the last look, and give what is new the largest priority."""
        first, end = self._store.span()
        left = np.arange(max(self._first, first - self._store.capacity), first) % self._store.capacity
        left = left[self._owner[left] < first]
        self._owner[left] = NONE
        self._powered.put(left, 0.0)
        new = np.arange(max(first, self._end), end)
        new = new[self._owner[new % self._store.capacity] != new]
        self._put(new, np.full(len(new), self._largest))
        self._first, self._end = first, end

    def _put(self, ids: Ids, priority: Priorities) -> None:
        place = ids % self._store.capacity
        self._owner[place], self._priority[place] = ids, priority
        self._powered.put(place, priority**self._exponent)

    def prioritise(self, ids: Ids, priority: Priorities) -> None:
        """New priorities; nothing for an unroll that has been replaced by another one in its place of the ring."""
        same = self._owner[ids % self._store.capacity] == ids
        self._put(ids[same], priority[same])
        self._largest = max(self._largest, float(priority.max(initial=0.0)))

    def state_dict(self) -> State:
        known = self._owner != NONE
        return {"id": self._owner[known], "priority": self._priority[known], "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; an unroll whose priority was not kept begins with the largest."""
        ids = np.asarray(state["id"])
        self._owner[:], self._largest = NONE, float(state["largest"])
        self._powered = SumTree(self._store.capacity)
        self._put(ids, np.asarray(state["priority"]))
        self._first, self._end = int(ids.min(initial=np.iinfo(np.int64).max)), 0
