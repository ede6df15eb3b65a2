"""Uniform draws over the union of several shards, from what each has said of itself.

A draw is one uniform integer over all unrolls that the shards have reported, counted through: each unroll is as likely as any other,
and a shard is drawn from in proportion to its fill, without drawing a shard first.

Between report and gather unrolls leave. What has left is drawn again **among what was reported and is still there** (`Spans.left`), not
among what is there now. That is rejection sampling: a draw that is kept has the law of a uniform draw given that it is kept, so all
unrolls reported and still held are equally likely. Were the second draw made over the newest report, unrolls that came meanwhile would
get a chance from second draws only, and everything in a shard that evicts would make room for them: unequal. So what is new waits for
the next report, as it would had it come a moment later; nothing is ever excluded for longer than one draw.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laser_rl.replay.shared import Ids

SHARD_BITS = 40  # an unroll's name among all shards: the number of its shard above, its id there below


class DrawnSpans(NamedTuple):
    """Some unrolls of one shard, in the order drawn."""

    shard: int
    ids: Ids  # in that shard


@dataclass(frozen=True)
class Spans:
    """The ids that shards hold, from the first to before the end; in the order of the shards' numbers.

    >>> spans = Spans.of({4: (10, 13), 7: (0, 1)})
    >>> len(spans)
    4
    >>> spans.draw(6, np.random.default_rng(1))
    [DrawnSpans(shard=4, ids=array([11, 12, 10, 10])), DrawnSpans(shard=7, ids=array([0, 0]))]
    """

    shards: tuple[int, ...]
    first: Ids
    end: Ids

    @classmethod
    def of(cls, held: Mapping[int, tuple[int, int]]) -> "Spans":
        """By shard; those that hold nothing are left out."""
        shards = tuple(sorted(shard for shard, (first, end) in held.items() if end > first))
        both = np.array([held[shard] for shard in shards], np.int64).reshape(-1, 2)
        return cls(shards, both[:, 0], both[:, 1])

    def __len__(self) -> int:
        return int((self.end - self.first).sum())

    def draw(self, count: int, random: np.random.Generator) -> list[DrawnSpans]:
        """Uniformly, with replacement. Over one shard the generator is used just as `Replay.sample_into` uses it."""
        if not len(self):
            raise ValueError(f"asked for {count} unrolls of shards that hold none; wait for unrolls first")
        # Counted from the first id of the first shard, and not from 0: over one shard these *are* the ids.
        begin = int(self.first[0])
        place = random.integers(begin, begin + len(self), count)
        before = begin + np.concatenate([[0], (self.end - self.first).cumsum()])
        which = np.searchsorted(before, place, side="right") - 1
        ids = place - before[which] + self.first[which]
        return [DrawnSpans(shard, ids[which == at]) for at, shard in enumerate(self.shards) if (which == at).any()]

    def left(self, now: Mapping[int, tuple[int, int]]) -> "Spans":
        """Of what was reported, what is still there by newer reports; a shard that is not in them is gone.

        >>> Spans.of({4: (10, 13), 7: (0, 1)}).left({4: (12, 15)})
        Spans(shards=(4,), first=array([12]), end=array([13]))
        """
        both = zip(self.shards, self.first.tolist(), self.end.tolist(), strict=True)
        return Spans.of({shard: (max(first, now[shard][0]), end) for shard, first, end in both if shard in now})


def names(shard: int, ids: Ids) -> Ids:
    """Of unrolls among those of all shards; those of shard 0 are its ids.

    >>> names(0, np.array([5])), names(1, np.array([5]))
    (array([5]), array([1099511627781]))
    """
    return (shard << SHARD_BITS) + ids


def newest(reports: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """What follows from several reports of one shard in any order: ids only grow.

    >>> newest([(3, 8), (0, 5)])
    (3, 8)
    """
    firsts, ends = zip(*reports, strict=True)
    return max(firsts), max(ends)
