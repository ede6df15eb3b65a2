"""Streams in the replay on disk: which unroll follows which, and what still does where some of them are gone.

A stream is the rows of one environment slot without gaps. Where unrolls are gone, what came before the gap and what comes after it are
two streams: lanes would otherwise carry a memory's state over the gap. The newer part keeps the slot's number, since the slot goes on
writing; the older one gets a number that no slot has. Nothing else of an unroll changes, and none is left out that can be read.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laser_rl.types import UnrollLayout, Unrolls

NONE = -1  # instead of the number of the unroll before: it is the stream's first
Numbers = NDArray[np.int64]


class Streams:
    """Which unroll of each stream is the newest, so that the next one can be written with the number of the one before it.

    >>> from laser_rl.types import empty_unrolls
    >>> unrolls = empty_unrolls(UnrollLayout(2, 0, (4,), "float32", (), "int64", 2), 3)
    >>> unrolls.slot[:] = 0, 1, 0
    >>> streams = Streams()
    >>> streams.follow(8, unrolls), streams.follow(11, unrolls)
    (array([-1, -1,  8]), array([10,  9, 11]))
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], int] = {}

    def follow(self, first_id: int, unrolls: Unrolls, oldest: int = 0) -> Numbers:
        """The number of the unroll before each of these, which are numbered from `first_id` on; NONE if it is older than `oldest`."""
        previous = np.full(len(unrolls.member), NONE, np.int64)
        streams = zip(unrolls.member.tolist(), unrolls.slot.tolist(), strict=True)
        for row, stream in enumerate(streams):
            before = self._newest.get(stream, NONE)
            previous[row] = before if before >= oldest else NONE
            self._newest[stream] = first_id + row
        return previous

    def copy(self) -> "Streams":
        """As they are now."""
        other = Streams()
        other._newest = dict(self._newest)
        return other


@dataclass(frozen=True)
class Survey:
    """What there is of a replay, oldest first; all arrays [n]."""

    number: Numbers
    previous: Numbers
    member: Numbers
    slot: Numbers
    episode: Numbers  # at an unroll's first row
    opens: NDArray[np.bool_]  # that row is the first of its episode
    follows: Numbers  # the episode at its last row

    @classmethod
    def of(cls, layout: UnrollLayout, number: Numbers, previous: Numbers, unrolls: Unrolls) -> "Survey":
        """Of some unrolls."""
        first = unrolls.is_first[:, layout.context :].astype(bool)
        member, slot, episode = (array.astype(np.int64) for array in (unrolls.member, unrolls.slot, unrolls.episode))
        return cls(number, previous, member, slot, episode, first[:, 0], episode + first[:, 1:].sum(1))

    @classmethod
    def joined(cls, parts: "list[Survey]") -> "Survey":
        """One after the other."""
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True)
class Filed:
    """Under which number of a slot each unroll goes on."""

    slot: NDArray[np.int32]
    episodes: int  # known to have lost rows; of those that are gone altogether nothing is known


def file_anew(found: Survey, first_id: int, next_id: int) -> Filed:
    """Cut every stream where it has a gap, `found` being what is left of the unrolls from `first_id` to `next_id` - 1.

    >>> found = Survey(*np.array([[10, 11, 13, 14], [-1, -1, 10, 12]]), *np.array([[0] * 4, [0, 1, 0, 1], [5] * 4]),
    ...                opens=np.zeros(4, bool), follows=np.array([5] * 4))  # 12, of slot 1, is gone
    >>> file_anew(found, 10, 15)
    Filed(slot=array([ 0, -1,  0,  1], dtype=int32), episodes=1)
    """
    slots, damaged = found.slot.copy(), set[tuple[int, int, int]]()
    gone = _newest_gone(found.number, first_id, next_id)
    fresh = {int(member): min(-1, int(found.slot[found.member == member].min()) - 1) for member in set(found.member)}
    for member, slot in sorted(set(zip(found.member.tolist(), found.slot.tolist(), strict=True))):
        rows = np.flatnonzero((found.member == member) & (found.slot == slot))
        begin = 0
        for at in range(len(rows) + 1):
            if not _is_gap(found, rows, at, gone, first_id):
                continue
            if at > 0:
                slots[rows[begin:at]] = fresh[member]
                fresh[member] -= 1
                damaged.add((member, slot, int(found.follows[rows[at - 1]])))
            if at < len(rows) and not found.opens[rows[at]]:
                damaged.add((member, slot, int(found.episode[rows[at]])))
            begin = at
    return Filed(slots.astype(np.int32), len(damaged))


def _newest_gone(number: Numbers, first_id: int, next_id: int) -> int:
    """The newest unroll that is gone, -1 if none is."""
    held = np.zeros(next_id - first_id, bool)
    held[number - first_id] = True
    gone = np.flatnonzero(~held)
    return first_id + int(gone[-1]) if len(gone) else -1


def _is_gap(found: Survey, rows: Numbers, at: int, gone: int, first_id: int) -> bool:
    """Whether something is gone, or may be, between the unrolls `at` - 1 and `at` of a stream."""
    if at == len(rows):  # the one that its slot writes next may follow one that is gone: its stream is not known
        return gone > int(found.number[rows[at - 1]])
    previous = int(found.previous[rows[at]])
    if at == 0:
        return previous >= first_id
    return previous != int(found.number[rows[at - 1]])
