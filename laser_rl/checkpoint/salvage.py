"""What can still be read of a damaged segment: every unroll whose checksum is right, wherever it lies.

The writer's header is not needed for it. A file of which every unroll is right, and which is still not the one that the manifest names, is
not damaged but another one; nothing is taken from it.
"""

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard

from laser_rl.checkpoint import guarded, segments
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.checkpoint.segments import Record, SegmentEntry
from laser_rl.checkpoint.streams import Filed, Numbers, Survey, file_anew
from laser_rl.types import UnrollLayout, Unrolls

_CHUNK = 1 << 20
_MOST_FALSE = 10_000  # places in one file that look like a record and are none; chance makes one in gigabytes


class Places(NamedTuple):
    """Where the unrolls of a segment lie whose checksums are right."""

    offset: list[int]
    number: list[int]
    end: int = 0  # of the last of them


class Salvaged(NamedTuple):
    """Some unrolls of a segment, in order, perhaps with gaps."""

    number: Numbers
    previous: Numbers
    unrolls: Unrolls


class Mended(NamedTuple):
    """What became of a replay with damaged segments."""

    kept: int  # unrolls
    lost: int
    episodes: int  # known to have lost rows

    @property
    def values(self) -> dict[str, float]:
        """For a row of metrics."""
        return {"unrolls_kept": self.kept, "unrolls_lost": self.lost, "episodes_damaged": self.episodes}


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
        parts = [Survey.of(layout, *block) for block in self._blocks()]
        self._filed = (
            file_anew(Survey.joined(parts), first_id, next_id) if parts else Filed(np.zeros(0, np.int32), episodes=0)
        )
        kept = len(self._filed.slot)
        self.mended = Mended(kept, next_id - first_id - kept, self._filed.episodes)

    def _found_in(self, entry: SegmentEntry, *, damaged: bool) -> Places:
        places = places_in(self._folder, entry)
        if damaged and len(places.number) == entry.count and self._is_other(entry, places):
            return Places([], [])
        return places

    def _is_other(self, entry: SegmentEntry, places: Places) -> bool:
        """Whether nothing is wrong with a file that does not verify: then it is not the one that was written."""
        with guarded.reading(self._folder / entry.name), guarded.open_plain(self._folder / entry.name) as file:
            size = _size(file)
            return places.end == size == entry.bytes and segments.begins_as_written(file, entry, self._layout)

    def unrolls(self) -> Iterator[Unrolls]:
        """All that is left, oldest first, every stream without gaps."""
        at = 0
        for block in self._blocks():
            count = len(block.number)
            yield block.unrolls._replace(slot=self._filed.slot[at : at + count])
            at += count

    def _blocks(self) -> Iterator[Salvaged]:
        for entry, places in self._places:
            yield from _read(self._folder / entry.name, places, self._layout, self._bounds)


def places_in(folder: Path, entry: SegmentEntry) -> Places:
    """Look through a segment for whole unrolls; a file that is not there has none. `Unreadable` if that cannot be known.

    >>> import tempfile
    >>> from laser_rl.types import empty_unrolls
    >>> layout, folder = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2), Path(tempfile.mkdtemp())
    >>> entry = segments.write_segment(folder, layout, 8, empty_unrolls(layout, 3))
    >>> data = bytearray((folder / entry.name).read_bytes())
    >>> data[-100] ^= 1
    >>> _ = (folder / entry.name).write_bytes(data)
    >>> places_in(folder, entry).number
    [8, 10]
    """
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
    limit, at, newest, false = min(_size(file), entry.bytes), 0, entry.first_id - 1, 0
    while false <= _MOST_FALSE and (found := _find(file, at, limit)) is not None:
        record = _record_at(file, found, limit - found)
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


def _record_at(file: BufferedReader, offset: int, limit: int) -> Record | None:
    file.seek(offset)
    return segments.read_record(file, limit)


def _size(file: BufferedReader) -> int:
    return file.seek(0, 2)


def _read(path: Path, places: Places, layout: UnrollLayout, bounds: tuple[int, int]) -> Iterator[Salvaged]:
    """The unrolls at these places whose numbers are within bounds, in blocks; what has become unreadable meanwhile is an error."""
    decompressor, size, block = zstandard.ZstdDecompressor(), segments.row_bytes(layout), segments.block_unrolls(layout)
    wanted = [place for place in zip(places.offset, places.number, strict=True) if bounds[0] <= place[1] < bounds[1]]
    if not wanted:
        return
    with guarded.reading(path), guarded.open_plain(path) as file:
        limit = _size(file)
        for begin in range(0, len(wanted), block):
            numbers, previous, rows = [], [], []
            for offset, number in wanted[begin : begin + block]:
                record = _record_at(file, offset, limit)
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
                yield Salvaged(np.array(numbers, np.int64), np.array(previous, np.int64), unrolls)
