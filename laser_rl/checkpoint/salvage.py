"""The replay of a checkpoint with damaged segments: every unroll whose checksum is right, wherever it lies.

A file of which every unroll is right, and which is still not the one that the manifest names, is not damaged but another one; nothing is
taken from it.

A stream is the rows of one environment slot without gaps. Where unrolls are gone, what came before the gap and what comes after it are
two streams: lanes would otherwise carry a memory's state over the gap. The newer part keeps the slot's number, since the slot goes on
writing; the older one gets a number that no slot has. Nothing else of an unroll changes, and none is left out that can be read.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.checkpoint import guarded, segments
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.checkpoint.segments import Block, SegmentEntry
from laser_rl.types import UnrollLayout, Unrolls


class Mended(NamedTuple):
    """What became of a replay with damaged segments."""

    kept: int  # unrolls
    lost: int
    episodes: int  # known to have lost rows

    @property
    def values(self) -> dict[str, float]:
        return {"unrolls_kept": self.kept, "unrolls_lost": self.lost, "episodes_damaged": self.episodes}


# What is known of an unroll: its number and that of the one before, whose it is, the episode at its first row, whether that row is the
# first of the episode, and the episode at its last row.
_FOUND = np.dtype([(name, "i8") for name in ("number", "previous", "member", "slot", "episode", "opens", "follows")])
_Found = NDArray[np.void]


def salvage(
    folder: Path, entries: list[SegmentEntry], damaged: set[str], layout: UnrollLayout, first_id: int, next_id: int
) -> tuple[Mended, Iterator[Unrolls]]:
    """What is left of the unrolls `first_id` to `next_id` - 1 of one store, in segments of which those `damaged` do not verify.

    The unrolls come oldest first, every stream without gaps.
    """
    ours = [one for one in entries if one.name not in damaged or not _is_another(folder, one, layout)]
    read = functools.partial(_blocks, folder, ours, layout, first_id, next_id)
    found = [np.zeros(0, _FOUND), *(_surveyed(layout, block) for block in read())]
    slots, episodes = _cut_at_gaps(np.concatenate(found), first_id, next_id)
    return Mended(len(slots), next_id - first_id - len(slots), episodes), _under(slots, read(), folder)


def _under(slots: NDArray[np.int32], blocks: Iterator[Block], folder: Path) -> Iterator[Unrolls]:
    at = 0
    for block in blocks:
        end = at + len(block.number)
        if end > len(slots):
            raise Damaged(folder, "changes while it is read")
        yield block.unrolls._replace(slot=slots[at:end])
        at = end


def _is_another(folder: Path, entry: SegmentEntry, layout: UnrollLayout) -> bool:
    """Whether nothing is wrong with a file that does not verify: then it is not the one that was written."""
    sizes = [record.size for record in segments.salvaged(folder, entry)]
    if len(sizes) != entry.count:
        return False
    expected, path = segments.header(layout, entry.first_id, entry.count), folder / entry.name
    with guarded.reading(path), guarded.open_plain(path) as file:
        begins_as_written = file.read(len(expected)) == expected
        return begins_as_written and len(expected) + sum(sizes) == entry.bytes == file.seek(0, 2)


def _blocks(folder: Path, entries: list[SegmentEntry], layout: UnrollLayout, first: int, end: int) -> Iterator[Block]:
    for entry in entries:
        held = (one for one in segments.salvaged(folder, entry) if first <= one.number < end)
        yield from segments.blocks(folder / entry.name, held, layout, skip=True)


def _surveyed(layout: UnrollLayout, block: Block) -> _Found:
    unrolls, found = block.unrolls, np.zeros(len(block.number), _FOUND)
    first = unrolls.is_first[:, layout.context :].astype(bool)
    found["number"], found["previous"], found["opens"] = block.number, block.previous, first[:, 0]
    found["member"], found["slot"], found["episode"] = unrolls.member, unrolls.slot, unrolls.episode
    found["follows"] = found["episode"] + first[:, 1:].sum(1)
    return found


def _cut_at_gaps(found: _Found, first_id: int, next_id: int) -> tuple[NDArray[np.int32], int]:
    """The slot under which each unroll goes on, and how many episodes are known to have lost rows: of whole ones nothing is known."""
    slots, damaged = found["slot"].copy(), set[tuple[int, int, int]]()
    gone = np.setdiff1d(np.arange(first_id, next_id), found["number"])
    newest_gone = int(gone[-1]) if len(gone) else -1
    fresh = {member: min(-1, slots[found["member"] == member].min() - 1) for member in set(found["member"].tolist())}
    for member, slot in sorted(set(found[["member", "slot"]].tolist())):
        rows = np.flatnonzero((found["member"] == member) & (found["slot"] == slot))
        own, begin = found[rows], 0
        # Where something is gone, or may be: before each unroll, and after the last one, whose slot may go on from one that is gone.
        gaps = np.append(own["previous"] != np.roll(own["number"], 1), newest_gone > own["number"][-1])
        gaps[0] = own["previous"][0] >= first_id
        for at in np.flatnonzero(gaps).tolist():
            if at > 0:
                slots[rows[begin:at]] = fresh[member]
                fresh[member] -= 1
                damaged.add((member, slot, int(own["follows"][at - 1])))
            if at < len(own) and not own["opens"][at]:
                damaged.add((member, slot, int(own["episode"][at])))
            begin = at
    return slots.astype(np.int32), len(damaged)
