"""Prioritised draws, the baseline of the paper's appendix: what had a large critic loss is replayed more often."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from laser_rl.ops import priority as ops
from laser_rl.replay.lanes import ATTEMPTS, NONE, outrun
from laser_rl.replay.memory_layout import Ids
from laser_rl.replay.mixer import Priorities, Sampler, State, columns_of
from laser_rl.replay.store import Evicted, Replay
from laser_rl.types import Batch

LEAST = 1.0  # what is new gets the largest priority ever seen, at least this


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
        self._largest = LEAST

    def ready(self) -> bool:
        return len(self._store) > 0

    def fill(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> None:
        ids, weight = np.full(count, NONE, np.int64), np.ones(count)
        for _ in range(ATTEMPTS):
            held = np.arange(*self._store.span())
            anew = np.flatnonzero(ids < held[0])
            if len(anew):
                place, weight[anew] = self._draw(self._priorities(held), len(anew), random)
                ids[anew] = held[place]
            try:
                self._store.gather(ids, batch, first_column)
            except Evicted:  # by another process, since we looked
                continue
            fields: dict[str, Any] = columns_of(self._store.layout, batch, first_column, count)
            fields["weight"][:] = weight
            return
        raise outrun(self._store)

    def _draw(self, priority: Priorities, count: int, random: np.random.Generator) -> tuple[Ids, Priorities]:
        """Places drawn with replacement, and the weight of each. What has no chance is never drawn."""
        chance = ops.probabilities(
            torch.from_numpy(priority), exponent=self._exponent, uniform_share=self._uniform_share
        ).numpy()
        upto = chance.cumsum()
        # From the right: a random number below 1, times the sum, is below the sum, and what has no chance is passed over.
        place = np.searchsorted(upto, random.random(count) * upto[-1], side="right")
        weight = ops.weights(torch.from_numpy(chance[place]), stored=len(chance), exponent=self._importance_exponent)
        return place, weight.numpy()

    def _priorities(self, held: Ids) -> Priorities:
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
        known = self._owner != NONE
        return {"id": self._owner[known], "priority": self._priority[known], "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; an unroll whose priority was not kept begins with the largest."""
        self._owner[:], self._largest = NONE, float(state["largest"])
        place = np.asarray(state["id"]) % self._store.capacity
        self._owner[place], self._priority[place] = state["id"], state["priority"]
