"""Replay on disk: append-only files of consecutive unrolls, each unroll a block of its own with a checksum.

A segment is a valid zstd file (`zstd -d` gives the unrolls' bytes one after the other): what we have to say ourselves stands in
skippable frames, first the header (JSON), then before each unroll its number, length and checksum, and the number of the unroll before
it in its stream. So a reader that meets a damaged unroll can look for the next frame's magic number and go on there (`salvaged`), and knows
what no longer follows what.
"""

import contextlib
import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from laser_rl import disk
from laser_rl.checkpoint import guarded
from laser_rl.checkpoint.guarded import Damaged, OtherFormat
from laser_rl.errors import ConfigError
from laser_rl.types import UnrollLayout, Unrolls

FORMAT = 2
_BLOCK_UNROLLS, _BLOCK_BYTES = 1024, 128 << 20  # what is held uncompressed at once
_MOST_FALSE = 10_000  # places in one file that look like a record and are none; chance makes one in gigabytes
_SKIPPABLE = struct.Struct("<II")  # magic number, bytes that follow
# Number of the unroll, compressed bytes, checksum of all fields and of the bytes, number of the unroll before it in its stream.
_RECORD = struct.Struct("<QIIq")
_HEADER_MAGIC, _RECORD_MAGIC = 0x184D2A5A, 0x184D2A5B
SEGMENT = re.compile(r"segment-(\d{12,20})-\d{12,20}\.zst")  # what `_segment_name` makes
_NONE = -1  # instead of the number of the unroll before: it is the stream's first
Numbers = NDArray[np.int64]
Streams = dict[tuple[int, int], int]  # the newest unroll of each stream, by member and slot


@dataclass(frozen=True)
class SegmentEntry:
    """What a checkpoint's manifest says of a segment."""

    name: str
    first_id: int
    count: int
    bytes: int
    sha256: str

    @property
    def last_id(self) -> int:
        return self.first_id + self.count - 1


class Record(NamedTuple):
    """One unroll as it lies in a segment."""

    number: int
    previous: int  # number of the unroll before it in its stream, or -1
    compressed: bytes
    size: int  # with all that stands before the compressed bytes


class Block(NamedTuple):
    """Some unrolls of a segment, in order, perhaps with gaps."""

    number: Numbers
    previous: Numbers
    unrolls: Unrolls


def follow(streams: Streams, first_id: int, unrolls: Unrolls, oldest: int = 0) -> Numbers:
    """The number of the unroll before each of these, which are numbered from `first_id` on; -1 if it is older than `oldest`."""
    previous = np.full(len(unrolls.member), _NONE, np.int64)
    for row, stream in enumerate(zip(unrolls.member.tolist(), unrolls.slot.tolist(), strict=True)):
        before = streams.get(stream, _NONE)
        previous[row] = before if before >= oldest else _NONE
        streams[stream] = first_id + row
    return previous


def write_segment(folder: Path, layout: UnrollLayout, first: int, unrolls: Unrolls, previous: Numbers) -> SegmentEntry:
    """Write consecutive unrolls, numbered from `first`, as one file; it is there whole or not at all. `previous`: see `follow`."""
    count = len(unrolls.member)
    name = _segment_name(first, count)
    digest, size = hashlib.sha256(), 0

    def measured() -> Iterator[bytes]:
        nonlocal size
        for block in _encoded(layout, first, unrolls, previous):
            digest.update(block)
            size += len(block)
            yield block

    disk.make_folder(folder)
    disk.write_bytes(folder / name, measured())
    return SegmentEntry(name, first, count, size, digest.hexdigest())


def read_segment(
    folder: Path, entry: SegmentEntry, layout: UnrollLayout, first_id: int = 0
) -> Iterator[tuple[int, Unrolls]]:
    """Blocks of at most 1024 unrolls with the number of their first, from `first_id` on; raises `DamagedRun` at the first bad unroll."""
    path = folder / entry.name
    with guarded.reading(path), _opened(path, entry) as file:
        found, expected = _read_header(path, file).get("layout"), json.loads(json.dumps(asdict(layout)))
        if found != expected:
            raise ConfigError(
                f"{path} holds unrolls of layout {found}, expected {expected}; "
                "resume with the settings that the run was started with, or use --fresh to start again"
            )
        records = _whole(path, file, entry, first_id)
        for numbers, _, unrolls in blocks(path, records, layout):
            yield int(numbers[0]), unrolls


def _whole(path: Path, file: BufferedReader, entry: SegmentEntry, first_id: int) -> Iterator[Record]:
    at = file.tell()  # all records must follow each other up to the end
    found = _records(file, entry, at)
    for expected in range(entry.first_id, entry.last_id + 1):
        record = next(found, None)
        if record is None or record.number != expected:
            raise Damaged(path, f"unroll {expected} does not match its checksum, or ends too early")
        at += record.size
        if expected >= first_id:
            yield record
    if at != entry.bytes:
        raise Damaged(path, f"goes on after its last unroll, number {entry.last_id}")


def salvaged(folder: Path, entry: SegmentEntry) -> Iterator[Record]:
    """Every unroll of a segment whose checksum is right, wherever it lies. A file that is not there has none, a header is not needed."""
    path = folder / entry.name
    with contextlib.suppress(Damaged), guarded.reading(path), guarded.open_plain(path) as file:
        yield from _records(file, entry, 0)


def _records(file: BufferedReader, entry: SegmentEntry, begin: int) -> Iterator[Record]:
    """The records from byte `begin` on, in order; what lies between them is passed over."""
    limit, newest, false = min(os.fstat(file.fileno()).st_size, entry.bytes), entry.first_id - 1, 0
    at: int | None = begin
    while at is not None and false <= _MOST_FALSE:
        record = _read_record(file, at, limit)
        if record is not None and newest < record.number <= entry.last_id:
            yield record
            newest, at = record.number, at + record.size
        else:
            false, at = false + 1, _find(file, at + 1, limit)


def _find(file: BufferedReader, at: int, limit: int) -> int | None:
    magic = _RECORD_MAGIC.to_bytes(4, "little")
    while at < limit:
        file.seek(at)
        data = file.read(min(1 << 20, limit - at))
        if (place := data.find(magic)) >= 0:
            return at + place
        if len(data) < len(magic):
            return None
        at += len(data) - len(magic) + 1
    return None


def blocks(path: Path, records: Iterable[Record], layout: UnrollLayout, *, skip: bool = False) -> Iterator[Block]:
    """Decompress records, some at a time; `Damaged` for one that is not of this layout, or it is passed over (`skip`)."""
    decompressor, size = zstandard.ZstdDecompressor(), row_bytes(layout)

    def decompressed() -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        for record in records:
            try:
                yield record.number, record.previous, decompressed_row(path, decompressor, record.compressed, size)
            except Damaged:
                if not skip:
                    raise

    rows = decompressed()
    while some := list(islice(rows, _block_unrolls(layout))):
        numbers, previous, data = zip(*some, strict=True)
        yield Block(np.array(numbers, np.int64), np.array(previous, np.int64), split(layout, np.stack(data)))


def verify_segment(folder: Path, entry: SegmentEntry) -> None:
    """Compare size, SHA-256 and format of a segment with what a manifest says; raises `Damaged`."""
    path = folder / entry.name
    with guarded.reading(path), _opened(path, entry) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry.sha256:
            raise Damaged(path, f"has SHA-256 {digest}, expected {entry.sha256}")
        file.seek(0)
        _read_header(path, file)


def _segment_name(first_id: int, count: int) -> str:
    return f"segment-{first_id:012d}-{first_id + count - 1:012d}.zst"


def _encoded(layout: UnrollLayout, first_id: int, unrolls: Unrolls, previous: Numbers) -> Iterator[bytes]:
    count, block = len(unrolls.member), _block_unrolls(layout)
    yield header(layout, first_id, count)
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=True)
    for first in range(0, count, block):
        rows = _joined(layout, Unrolls(*(field[first : first + block] for field in unrolls)))
        for row, data in enumerate(rows, start=first):
            number, before, compressed = first_id + row, int(previous[row]), compressor.compress(data.data)
            fields = _RECORD.pack(number, len(compressed), _checksum(number, compressed, before), before)
            yield _SKIPPABLE.pack(_RECORD_MAGIC, _RECORD.size) + fields + compressed


def header(layout: UnrollLayout, first_id: int, count: int) -> bytes:
    fields = {"format": FORMAT, "first_id": first_id, "count": count, "layout": asdict(layout)}
    text = json.dumps(fields, sort_keys=True).encode()
    return _SKIPPABLE.pack(_HEADER_MAGIC, len(text)) + text


def _row(layout: UnrollLayout) -> np.dtype[np.void]:
    return np.dtype([(name, dtype, shape) for name, (shape, dtype) in layout.fields().items()])


def _joined(layout: UnrollLayout, unrolls: Unrolls) -> NDArray[np.uint8]:
    """All fields of each unroll side by side, as bytes [n, bytes of an unroll]."""
    rows = np.empty((len(unrolls.member), 1), _row(layout))
    for name in layout.fields():
        rows[name][:, 0] = getattr(unrolls, name)
    return rows.view(np.uint8)


def split(layout: UnrollLayout, rows: NDArray[np.uint8]) -> Unrolls:
    """The inverse of `_joined`; arrays of their own."""
    fields = np.ascontiguousarray(rows).view(_row(layout))[:, 0]
    return Unrolls(**{name: fields[name].copy() for name in layout.fields()})


def _opened(path: Path, entry: SegmentEntry) -> BufferedReader:
    if not guarded.plain_name(entry.name) or entry.name != _segment_name(entry.first_id, entry.count):
        raise Damaged(path, f"is not the name of unrolls {entry.first_id} to {entry.last_id}")
    file = guarded.open_plain(path)
    size = os.fstat(file.fileno()).st_size
    if size != entry.bytes:
        file.close()
        raise Damaged(path, f"has {size:,} bytes, expected {entry.bytes:,}")
    return file


def _read_header(path: Path, file: BufferedReader) -> dict[str, object]:
    magic, size = _SKIPPABLE.unpack(_exactly(path, file, _SKIPPABLE.size))
    if magic != _HEADER_MAGIC or size > 1 << 20:
        raise Damaged(path, "does not begin with the header of a replay segment")
    header = guarded.parse_json(path, _exactly(path, file, size))
    found = header.get("format")
    if found != FORMAT:
        raise OtherFormat(path, found, FORMAT)
    return header


def _read_record(file: BufferedReader, at: int, limit: int) -> Record | None:
    """The record at byte `at` of a file of `limit` bytes; None if there is none that matches its checksum."""
    file.seek(at)
    prefix = file.read(_SKIPPABLE.size + _RECORD.size)
    if len(prefix) != _SKIPPABLE.size + _RECORD.size or _SKIPPABLE.unpack_from(prefix) != (_RECORD_MAGIC, _RECORD.size):
        return None
    number, length, checksum, previous = _RECORD.unpack_from(prefix, _SKIPPABLE.size)
    if length > limit - at:  # a damaged length must not become a giant allocation
        return None
    compressed = file.read(length)
    if len(compressed) != length or checksum != _checksum(number, compressed, previous):
        return None
    return Record(number, previous, compressed, len(prefix) + length)


def decompressed_row(path: Path, decompressor: zstandard.ZstdDecompressor, data: bytes, size: int) -> NDArray[np.uint8]:
    """The `size` bytes of one unroll; `Damaged` if it is anything else."""
    try:
        # Asked first: the size that a frame claims is allocated, whatever limit is passed.
        if zstandard.frame_content_size(data) != size:
            raise Damaged(path, f"an unroll has {zstandard.frame_content_size(data):,} bytes, expected {size:,}")
        return np.frombuffer(decompressor.decompress(data), np.uint8)
    except zstandard.ZstdError as error:
        raise Damaged(path, f"cannot be decompressed: {error}") from None


def _exactly(path: Path, file: BufferedReader, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise Damaged(path, "ends too early")
    return data


def _checksum(number: int, compressed: bytes, previous: int) -> int:
    return zlib.crc32(compressed, zlib.crc32(struct.pack("<QIq", number, len(compressed), previous)))


def row_bytes(layout: UnrollLayout) -> int:
    return _row(layout).itemsize


def _block_unrolls(layout: UnrollLayout) -> int:
    return max(1, min(_BLOCK_UNROLLS, _BLOCK_BYTES // row_bytes(layout)))
