"""Whole episodes of a replay on disk, read without loading it: first where they lie, then one at a time.

An episode is whole if every row of it, from its first to its last, is in the replay of one checkpoint and can be read. Unrolls of one
stream share a row (the last of one is the first of the next): where the two are not equal to the byte, a stream was broken off
between them, whatever the numbers say, and the episode is left out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from laser_rl.checkpoint import REPLAY, Loaded, SegmentEntry, guarded, segments
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.checkpoint.salvage import places_in
from laser_rl.runtime.warm_start import STORE_IDS
from laser_rl.types import Array, UnrollLayout, Unrolls

NO_SEED = -1
_HEAD_BYTES = 1 << 20  # a segment's header is shorter
SHARED = ("observation", "is_first", "last_action", "last_reward")  # what both unrolls say of the row between them


class Piece(NamedTuple):
    """Outcome rows `begin` to `end` - 1 of an unroll."""

    file: int  # which segment
    offset: int
    number: int  # of the unroll
    begin: int
    end: int


@dataclass(frozen=True)
class Place:
    """Where a whole episode lies, and whose it is."""

    pieces: tuple[Piece, ...]
    member: int
    slot: int
    task: int
    episode: int  # number within its slot
    seed: int  # what it was reset with; NO_SEED where no unroll says it

    @property
    def steps(self) -> int:
        """Transitions."""
        return sum(piece.end - piece.begin for piece in self.pieces)


class Whole(NamedTuple):
    """The rows of an episode of T steps, every array as the replay has it."""

    observation: Array  # [T+1, ...], single frames
    action: Array  # [T, ...], as stored by the policy's family
    reward: Array  # [T], raw
    terminated: Array
    truncated: Array
    lost_life: Array
    behaviour: Array  # [T, P]
    version: Array  # [T], of the parameters at the first row of the unroll


@dataclass
class _Stream:
    """Where a stream stands after its newest unroll."""

    number: int
    shared: bytes  # of its last row
    begun: list[Piece] | None  # of the open episode, if its beginning was seen


class EpisodeReader:
    """The whole episodes of a checkpoint's replay, in the order in which they ended.

    Args:
        run_dir: of the run or sweep.
        loaded: one of its checkpoints.
        layout: of the unrolls.
        member: only those of this one; None: everybody's.
    """

    def __init__(self, run_dir: Path, loaded: Loaded, layout: UnrollLayout, member: int | None = None) -> None:
        self._folder, self._entries, self._layout, self._member = run_dir / REPLAY, loaded.segments, layout, member
        self._decompressor = zstandard.ZstdDecompressor()
        self._damaged = {problem.path.name for problem in loaded.damaged}
        self._bounds = _bounds_of(loaded)

    def index(self) -> Iterator[tuple[int, list[Place]]]:
        """Read everything once; yields, segment by segment, how many unrolls it had and the episodes that ended there."""
        streams: dict[tuple[int, int, int], _Stream] = {}
        for file in range(len(self._entries)):
            found: list[Place] = []
            count = 0
            for offset, number, previous, unroll in self._unrolls(file):
                key = (number // STORE_IDS, int(unroll.member[0]), int(unroll.slot[0]))
                streams[key] = self._go_on(streams.get(key), file, offset, number, previous, unroll, found)
                count += 1
            yield count, [place for place in found if self._member in {None, place.member}]

    def read(self, place: Place) -> Whole:
        """All rows of an episode."""
        parts = [(piece, self._at(piece)) for piece in place.pieces]
        context = self._layout.context
        frames = [u.observation[0, context + p.begin : context + p.end] for p, u in parts]
        piece, last = parts[-1]
        final = last.observation[0, context + piece.end : context + piece.end + 1]
        names = ("action", "reward", "terminated", "truncated", "lost_life", "behaviour")
        rows = {name: np.concatenate([getattr(u, name)[0, p.begin : p.end] for p, u in parts]) for name in names}
        version = np.concatenate([np.full(p.end - p.begin, u.version[0]) for p, u in parts])
        return Whole(np.concatenate([*frames, final]), **rows, version=version)

    def _unrolls(self, file: int) -> Iterator[tuple[int, int, int, Unrolls]]:
        """Offset, number, number of the one before, and the unroll itself, of all in a segment that the replay held."""
        entry = self._entries[file]
        first, end = self._bounds[entry.first_id // STORE_IDS]
        path = self._folder / entry.name
        if not path.exists():  # what is damaged is passed over, what is gone is not a replay's fault
            raise Damaged(path, "is gone; if the run goes on, it has made room: stop it first, or try again")
        with guarded.reading(path), guarded.open_plain(path) as opened:
            for offset, record in self._records(opened, entry):
                if first <= record.number < end and (unroll := self._decoded(path, record)) is not None:
                    yield offset, record.number, record.previous, unroll

    def _records(self, opened: BufferedReader, entry: SegmentEntry) -> Iterator[tuple[int, segments.Record]]:
        """One after the other; of a damaged file those whose checksums are right, wherever they lie."""
        if entry.name not in self._damaged:
            opened.seek(max(0, opened.read(_HEAD_BYTES).find(segments.RECORD_MAGIC)))
            for _ in range(entry.count):
                offset = opened.tell()
                if (record := segments.read_record(opened, entry.bytes)) is None:
                    raise Damaged(self._folder / entry.name, "changes while it is read; try again")
                yield offset, record
            return
        for offset in places_in(self._folder, entry).offset:
            opened.seek(offset)
            if (record := segments.read_record(opened, entry.bytes)) is not None:
                yield offset, record

    def _decoded(self, path: Path, record: segments.Record) -> Unrolls | None:
        size = segments.row_bytes(self._layout)
        try:
            row = segments.decompressed(path, self._decompressor, record.compressed, size)
        except Damaged:  # forged, or of another layout
            return None
        return segments.split(self._layout, row[np.newaxis])

    def _at(self, piece: Piece) -> Unrolls:
        entry = self._entries[piece.file]
        path = self._folder / entry.name
        with guarded.reading(path), guarded.open_plain(path) as opened:
            opened.seek(piece.offset)
            record = segments.read_record(opened, entry.bytes)
            unroll = None if record is None or record.number != piece.number else self._decoded(path, record)
        if unroll is None:
            raise Damaged(path, f"changes while it is read: unroll {piece.number} was there a moment ago")
        return unroll

    def _go_on(
        self,
        stream: _Stream | None,
        file: int,
        offset: int,
        number: int,
        previous: int,
        unroll: Unrolls,
        found: list[Place],
    ) -> _Stream:
        steps, context = self._layout.steps, self._layout.context
        is_first: NDArray[np.bool_] = unroll.is_first[0, context:].astype(bool)
        ended = (unroll.terminated[0] | unroll.truncated[0]).astype(bool)
        episode, seed = int(unroll.episode[0]), int(unroll.seed[0])
        open_pieces: list[Piece] | None = None
        if stream is not None and self._follows(stream, number, previous, unroll):
            open_pieces = stream.begun
        begin = 0
        for row in range(steps):
            if is_first[row]:
                open_pieces, begin = [], row
                episode, seed = (episode, seed) if row == 0 else (episode + 1, NO_SEED)
            if ended[row]:
                if open_pieces is not None:
                    pieces = (*open_pieces, Piece(file, offset, number, begin, row + 1))
                    who = (int(unroll.member[0]), int(unroll.slot[0]), int(unroll.task[0]))
                    found.append(Place(pieces, *who, episode, seed))
                open_pieces = None
        if open_pieces is not None:
            open_pieces = [*open_pieces, Piece(file, offset, number, begin, steps)]
        return _Stream(number, _digest(self._layout, unroll, last=True), open_pieces)

    def _follows(self, stream: _Stream, number: int, previous: int, unroll: Unrolls) -> bool:
        if previous != stream.number:
            return False
        return stream.shared == _digest(self._layout, unroll, last=False)


def _digest(layout: UnrollLayout, unroll: Unrolls, *, last: bool) -> bytes:
    """Of the first or the last input row of an unroll."""
    digest = hashlib.blake2b(digest_size=16)
    for name in SHARED:
        rows = getattr(unroll, name)[0]
        at = len(rows) - 1 if last else len(rows) - 1 - layout.steps
        digest.update(np.ascontiguousarray(rows[at]).tobytes())
    return digest.digest()


def _bounds_of(loaded: Loaded) -> list[tuple[int, int]]:
    """The numbers on disk that each store held, first and after the last; files begin with what had left already."""
    stores: Sequence[dict[str, int] | None] = loaded.state.get("replays") or [loaded.state.get("replay")]
    held = [store or {"first_id": 0, "next_id": 0} for store in stores]
    return [(n * STORE_IDS + ids["first_id"], n * STORE_IDS + ids["next_id"]) for n, ids in enumerate(held)]


def unrolls_in(entries: Sequence[SegmentEntry]) -> int:
    """How many there are at most, for those who wait.

    >>> unrolls_in([SegmentEntry("a", 0, 4, 0, ""), SegmentEntry("b", 4, 2, 0, "")])
    6
    """
    return sum(entry.count for entry in entries)
