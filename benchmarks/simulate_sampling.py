"""Whose unrolls a batch gets: uniform over all shards, with a share from the own node, or from a few shards a batch.

Formulas, and the draws themselves, which the simulation uses. A batch has n replayed unrolls; there are S shards, shard i holds the share
fᵢ of all unrolls.

- **A local share λ**: qᵢ = (1 − λ) fᵢ + λ [i is the own one]. The distance from uniform (total variation) is λ (1 − f_own). Weights f/q
  would undo it, and leave n / Σ fᵢ²/qᵢ of n unrolls: for many shards 1 − λ of them, as if the local ones had not been drawn.
- **p picks a batch**: p shards are drawn in proportion to fill, with replacement, and each gives n/p unrolls. Every unroll is as likely
  as under uniform draws, exactly. Only the variance of what a batch holds of one shard is larger: (1 + (n/p − 1)) = n/p times.
- **In rotation**: the picks of successive batches go through all shards in an order that is drawn anew each time. After S/p batches
  every shard has given as much as any other, so over time the variance is smaller than that of uniform draws.
- Picked uniformly and then drawn in proportion to fill among the picked would be biased: E[fᵢ / Σ_picked f] is not fᵢ.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Law:
    """How a batch's replayed unrolls are spread over shards.

    Attributes:
        shards: how many there are to draw from.
        replayed: unrolls to draw.
        picks: of a shard, in proportion to fill; 0: each unroll from any shard.
        local: share from the own one.
        fill: unrolls that each holds, in any unit; None: all the same.

    >>> random = np.random.default_rng(0)
    >>> Law(shards=1000, replayed=123, picks=4).draw(own=3, random=random)
    (array([269, 511, 636, 850]), array([30, 31, 31, 31]))
    """

    shards: int
    replayed: int
    picks: int = 0
    local: float = 0.0
    fill: tuple[float, ...] | None = None

    def any_shard(self, count: int, random: np.random.Generator) -> Ints:
        """So many draws in proportion to fill, with replacement."""
        if self.fill is None:
            return random.integers(0, self.shards, count)
        edges = np.cumsum(self.fill)
        return np.searchsorted(edges, random.random(count) * edges[-1], side="right").astype(np.int64)

    def draw(self, own: int, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Shards that are asked, and for how many unrolls."""
        if self.shards == 1:
            return np.zeros(1, np.int64), np.array([self.replayed])
        near = int(random.binomial(self.replayed, self.local)) if self.local else 0
        counts = np.zeros(self.shards, np.int64)
        if self.picks:
            chosen = self.any_shard(self.picks, random)
            np.add.at(counts, chosen, dealt(self.replayed - near, self.picks))
        else:
            counts += np.bincount(self.any_shard(self.replayed - near, random), minlength=self.shards)
        counts[own] += near
        asked = np.flatnonzero(counts)
        return asked, counts[asked]

    def shares(self, own: int) -> Floats:
        """The expected share of each shard in a batch: q."""
        fill = np.ones(self.shards) if self.fill is None else np.array(self.fill)
        shares = (1 - self.local) * fill / fill.sum()
        shares[own] += self.local
        return shares


def dealt(count: int, hands: int) -> Ints:
    """So evenly that they differ by one at most.

    >>> dealt(7, 3)
    array([3, 2, 2])
    """
    return np.full(hands, count // hands) + (np.arange(hands) < count % hands)


def distance(law: Law, own: int = 0) -> float:
    """Total variation between a batch's sources and uniform draws: λ (1 − f_own).

    >>> round(distance(Law(64, 123, local=0.5)), 4)
    0.4922
    """
    return 0.5 * float(np.abs(law.shares(own) - Law(law.shards, law.replayed, fill=law.fill).shares(own)).sum())


def worth(law: Law, own: int = 0) -> float:
    """Share of the draws that is left once weights have made them uniform: 1 / Σ f²/q.

    >>> round(worth(Law(64, 123)), 3), round(worth(Law(64, 123, local=0.5)), 3)
    (1.0, 0.508)
    """
    uniform = Law(law.shards, law.replayed, fill=law.fill).shares(own)
    shares = law.shares(own)
    return float(1 / (uniform**2 / shares).sum()) if (shares > 0).all() else 0.0


def effective_members(law: Law, members: int, own: int = 0) -> float:
    """Members whose unrolls a learner sees, as 1 / Σ share²: each shard holds those of its own node, equally.

    >>> round(effective_members(Law(64, 123), 9)), round(effective_members(Law(64, 123, local=0.5), 9), 1)
    (576, 34.4)
    """
    return float(members / (law.shares(own) ** 2).sum())


def excess_variance(law: Law) -> float:
    """Variance of a shard's share in one batch, over that of uniform draws: the unrolls of a pick come together.

    >>> excess_variance(Law(1000, 120)), excess_variance(Law(1000, 120, picks=8))
    (1.0, 15.0)
    """
    if not law.picks:
        return 1.0
    hands = dealt(law.replayed, law.picks).astype(float)
    return float((hands**2).sum() / law.replayed)


def batches(law: Law, count: int, random: np.random.Generator, own: int = 0, *, rotating: bool = False) -> Ints:
    """Unrolls of each shard in `count` batches of one learner [count, shards]."""
    held = np.zeros((count, law.shards), np.int64)
    order: list[int] = []
    for batch in held:
        if rotating:
            while len(order) < law.picks:
                order += random.permutation(law.shards).tolist()
            chosen, order = order[: law.picks], order[law.picks :]
            np.add.at(batch, chosen, dealt(law.replayed, law.picks))
        else:
            asked, counts = law.draw(own, random)
            batch[asked] = counts
    return held


def variance(held: Ints, span: int) -> float:
    """Of a shard's share in the mean of `span` batches in a row; mean over shards."""
    whole = len(held) // span * span
    means = held[:whole].reshape(-1, span, held.shape[1]).mean(axis=1) / held[0].sum()
    return float(means.var(axis=0).mean())
