"""What can still be read of a damaged segment: every unroll whose checksum is right, wherever it lies.

The writer's header is not needed for it. A file of which every unroll is right, and which is still not the one that the manifest names, is
not damaged but another one; nothing is taken from it.

A stream is the rows of one environment slot without gaps. Where unrolls are gone, what came before the gap and what comes after it are
two streams: lanes would otherwise carry a memory's state over the gap. The newer part keeps the slot's number, since the slot goes on
writing; the older one gets a number that no slot has. Nothing else of an unroll changes, and none is left out that can be read.
"""

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from laser_rl.checkpoint import guarded, segments
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.checkpoint.segments import Numbers, Record, SegmentEntry
from laser_rl.types import UnrollLayout, Unrolls

_CHUNK = 1 << 20
_MOST_FALSE = 10_000  # places in one file that look like a record and are none; chance makes one in gigabytes


class Places(NamedTuple):
    """Where the unrolls of a segment lie whose checksums are right."""

    offset: list[int]
    number: list[int]
    end: int = 0  # of the last of them


class Mended(NamedTuple):
    """What became of a replay with damaged segments."""

    kept: int  # unrolls
    lost: int
    episodes: int  # known to have lost rows

    @property
    def values(self) -> dict[str, float]:
        """For a row of metrics."""
        return {"unrolls_kept": self.kept, "unrolls_lost": self.lost, "episodes_damaged": self.episodes}


class _Block(NamedTuple):
    """Some unrolls of a segment, in order, perhaps with gaps."""

    number: Numbers
    previous: Numbers
    unrolls: Unrolls


# What is known of an unroll: its number and that of the one before, whose it is, the episode at its first row, whether that row is the
# first of the episode, and the episode at its last row.
_FOUND = np.dtype([(name, "i8") for name in ("number", "previous", "member", "slot", "episode", "opens", "follows")])
_Found = NDArray[np.void]


class Salvage:
    """The replay of a checkpoint with damaged segments: first what is left of it, then the unrolls themselves.

    Args:
        folder: of the segments.
        entries: of one store, in order.
        damaged: names of those that do not verify.
        layout: of the unrolls.
        first_id: number of the oldest unroll that the store held.
        next_id: the number after the newest.
    """

    def __init__(
        self,
        folder: Path,
        entries: list[SegmentEntry],
        damaged: set[str],
        layout: UnrollLayout,
        first_id: int,
        next_id: int,
    ) -> None:
        self._folder, self._layout, self._bounds = folder, layout, (first_id, next_id)
        self._places = [(entry, self._found_in(entry, damaged=entry.name in damaged)) for entry in entries]
        found = [np.zeros(0, _FOUND), *(_surveyed(layout, block) for block in self._blocks())]
        self._slot, episodes = _cut_at_gaps(np.concatenate(found), first_id, next_id)
        kept = len(self._slot)
        self.mended = Mended(kept, next_id - first_id - kept, episodes)

    def unrolls(self) -> Iterator[Unrolls]:
        """All that is left, oldest first, every stream without gaps."""
        at = 0
        for block in self._blocks():
            count = len(block.number)
            yield block.unrolls._replace(slot=self._slot[at : at + count])
            at += count

    def _found_in(self, entry: SegmentEntry, *, damaged: bool) -> Places:
        places = places_in(self._folder, entry)
        if damaged and len(places.number) == entry.count and self._is_other(entry, places):
            return Places([], [])
        return places

    def _is_other(self, entry: SegmentEntry, places: Places) -> bool:
        """Whether nothing is wrong with a file that does not verify: then it is not the one that was written."""
        path = self._folder / entry.name
        with guarded.reading(path), guarded.open_plain(path) as file:
            size = file.seek(0, 2)
            return places.end == size == entry.bytes and segments.begins_as_written(file, entry, self._layout)

    def _blocks(self) -> Iterator[_Block]:
        for entry, places in self._places:
            yield from _read(self._folder / entry.name, places, self._layout, self._bounds)


def places_in(folder: Path, entry: SegmentEntry) -> Places:
    """Look through a segment for whole unrolls; a file that is not there has none. `Unreadable` if that cannot be known."""
    offsets, numbers, end = [], [], 0
    try:
        with guarded.reading(folder / entry.name), guarded.open_plain(folder / entry.name) as file:
            for offset, record in _records(file, entry):
                offsets.append(offset)
                numbers.append(record.number)
                end = offset + record.size
    except Damaged:
        pass
    return Places(offsets, numbers, end)


def _records(file: BufferedReader, entry: SegmentEntry) -> Iterator[tuple[int, Record]]:
    limit, at, newest, false = min(file.seek(0, 2), entry.bytes), 0, entry.first_id - 1, 0
    while false <= _MOST_FALSE and (found := _find(file, at, limit)) is not None:
        file.seek(found)
        record = segments.read_record(file, limit - found)
        if record is None or not newest < record.number <= entry.last_id:
            false, at = false + 1, found + 1
            continue
        yield found, record
        newest, at = record.number, found + record.size


def _find(file: BufferedReader, at: int, limit: int) -> int | None:
    """The next place from `at` on that begins like a record."""
    magic = segments.RECORD_MAGIC
    while at < limit:
        file.seek(at)
        data = file.read(min(_CHUNK, limit - at))
        if (place := data.find(magic)) >= 0:
            return at + place
        if len(data) < len(magic):
            return None
        at += len(data) - len(magic) + 1
    return None


def _read(path: Path, places: Places, layout: UnrollLayout, bounds: tuple[int, int]) -> Iterator[_Block]:
    """The unrolls at these places whose numbers are within bounds, in blocks; what has become unreadable meanwhile is an error."""
    decompressor, size, block = zstandard.ZstdDecompressor(), segments.row_bytes(layout), segments.block_unrolls(layout)
    wanted = [place for place in zip(places.offset, places.number, strict=True) if bounds[0] <= place[1] < bounds[1]]
    if not wanted:
        return
    with guarded.reading(path), guarded.open_plain(path) as file:
        limit = file.seek(0, 2)
        for begin in range(0, len(wanted), block):
            numbers, previous, rows = [], [], []
            for offset, number in wanted[begin : begin + block]:
                file.seek(offset)
                record = segments.read_record(file, limit)
                if record is None or record.number != number:
                    raise Damaged(path, f"changes while it is read: unroll {number} was there a moment ago")
                try:
                    rows.append(segments.decompressed(path, decompressor, record.compressed, size))
                except Damaged:  # of another layout, or forged
                    continue
                numbers.append(number)
                previous.append(record.previous)
            if rows:
                unrolls = segments.split(layout, np.stack(rows))
                yield _Block(np.array(numbers, np.int64), np.array(previous, np.int64), unrolls)


def _surveyed(layout: UnrollLayout, block: _Block) -> _Found:
    unrolls, found = block.unrolls, np.zeros(len(block.number), _FOUND)
    first = unrolls.is_first[:, layout.context :].astype(bool)
    found["number"], found["previous"], found["opens"] = block.number, block.previous, first[:, 0]
    found["member"], found["slot"], found["episode"] = unrolls.member, unrolls.slot, unrolls.episode
    found["follows"] = found["episode"] + first[:, 1:].sum(1)
    return found


def _cut_at_gaps(found: _Found, first_id: int, next_id: int) -> tuple[NDArray[np.int32], int]:
    """The slot under which each unroll goes on, and how many episodes are known to have lost rows.

    `found` is what is left of the unrolls from `first_id` to `next_id` - 1. Of episodes that are gone altogether nothing is known.
    """
    slots, damaged = found["slot"].copy(), set[tuple[int, int, int]]()
    gone = np.setdiff1d(np.arange(first_id, next_id), found["number"])
    newest_gone = int(gone[-1]) if len(gone) else -1
    fresh = {member: min(-1, slots[found["member"] == member].min() - 1) for member in set(found["member"].tolist())}
    for member, slot in sorted(set(found[["member", "slot"]].tolist())):
        rows = np.flatnonzero((found["member"] == member) & (found["slot"] == slot))
        own, begin = found[rows], 0
        for at in range(len(own) + 1):
            if not _is_gap(own, at, newest_gone, first_id):
                continue
            if at > 0:
                slots[rows[begin:at]] = fresh[member]
                fresh[member] -= 1
                damaged.add((member, slot, int(own["follows"][at - 1])))
            if at < len(own) and not own["opens"][at]:
                damaged.add((member, slot, int(own["episode"][at])))
            begin = at
    return slots.astype(np.int32), len(damaged)


def _is_gap(own: _Found, at: int, newest_gone: int, first_id: int) -> bool:
    """Whether something is gone, or may be, between the unrolls `at` - 1 and `at` of a stream."""
    if at == len(own):  # the one that its slot writes next may follow one that is gone: its stream is not known
        return newest_gone > int(own["number"][at - 1])
    previous = int(own["previous"][at])
    return previous >= first_id if at == 0 else previous != int(own["number"][at - 1])
