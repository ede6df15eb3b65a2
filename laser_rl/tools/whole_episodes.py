"""Whole episodes of a replay on disk, read one after the other without loading it.

An episode is whole if every row of it, from its first to its last, is in the replay of one checkpoint and can be read. Unrolls of one
stream share a row (the last of one is the first of the next): where the two are not equal to the byte, a stream was broken off
between them, whatever the numbers say, and the episode is left out.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard
from rich.console import Console
from rich.progress import track

from laser_rl.checkpoint import REPLAY, Loaded, segments
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.training.saving import STORE_IDS
from laser_rl.types import Array, UnrollLayout, Unrolls

NO_SEED = -1
SHARED = ("observation", "is_first", "last_action", "last_reward")  # what both unrolls say of the row between them
OUTCOMES = ("action", "reward", "terminated", "truncated", "lost_life", "behaviour")


class WholeEpisode(NamedTuple):
    """An episode of T steps and whose it is; every array as the replay has it."""

    member: int
    slot: int
    task: int
    episode: int  # number within its slot
    seed: int  # what it was reset with; NO_SEED where no unroll says it
    observation: Array  # [T+1, ...], single frames
    action: Array  # [T, ...], as stored by the policy's family
    reward: Array  # [T], raw
    terminated: Array
    truncated: Array
    lost_life: Array
    behaviour: Array  # [T, P]
    version: Array  # [T], of the parameters at the first row of the unroll


class _Piece(NamedTuple):
    """Outcome rows `begin` to `end` - 1 of an unroll, which stays compressed until its episode is whole."""

    compressed: bytes
    begin: int
    end: int


class _OpenStream(NamedTuple):
    """Where a stream stands after its newest unroll."""

    number: int
    shared: bytes  # of its last row
    pieces: list[_Piece] | None  # of the open episode, if its beginning was seen


class EpisodeReader:
    """The whole episodes of a checkpoint's replay, in the order in which they ended; only those of `member`, if one is given."""

    def __init__(self, run_dir: Path, loaded: Loaded, layout: UnrollLayout, member: int | None = None) -> None:
        self._folder, self._entries, self._layout, self._member = run_dir / REPLAY, loaded.segments, layout, member
        self._decompressor = zstandard.ZstdDecompressor()
        # The numbers on disk that each store held, first and after the last; files begin with what had left already.
        held = enumerate(loaded.state["replays"])
        self._bounds = [(n * STORE_IDS + ids["first_id"], n * STORE_IDS + ids["next_id"]) for n, ids in held]

    def __iter__(self) -> Iterator[WholeEpisode]:
        streams: dict[tuple[int, int, int], _OpenStream] = {}
        terminal = Console(stderr=True)
        for entry in track(self._entries, "reading the replay", console=terminal, transient=True):
            path, (first, end) = self._folder / entry.name, self._bounds[entry.first_id // STORE_IDS]
            if not path.exists():  # what is damaged is passed over, what is gone is not a replay's fault
                raise Damaged(path, "is gone; if the run goes on, it has made room: stop it first, or try again")
            # The unrolls that the replay held and whose checksums are right, wherever they lie.
            for record in (one for one in segments.salvaged(self._folder, entry) if first <= one.number < end):
                with contextlib.suppress(Damaged):  # forged, or of another layout
                    unroll = self._decoded(record.compressed)
                    key = (record.number // STORE_IDS, int(unroll.member[0]), int(unroll.slot[0]))
                    streams[key], ended = self._go_on(streams.get(key), record, unroll)
                    yield from (one for one in ended if self._member in {None, one.member})

    def _decoded(self, compressed: bytes) -> Unrolls:
        size = segments.row_bytes(self._layout)
        row = segments.decompressed_row(self._folder, self._decompressor, compressed, size)
        return segments.split(self._layout, row[np.newaxis])

    def _go_on(
        self, stream: _OpenStream | None, record: segments.Record, unroll: Unrolls
    ) -> tuple[_OpenStream, list[WholeEpisode]]:
        """Where the stream stands after this unroll, and the episodes that ended in it."""
        steps, found = self._layout.steps, list[WholeEpisode]()
        is_first = unroll.is_first[0, self._layout.context :].astype(bool)
        ended = (unroll.terminated[0] | unroll.truncated[0]).astype(bool)
        episode, seed, begin = int(unroll.episode[0]), int(unroll.seed[0]), 0
        pieces: list[_Piece] | None = None
        if stream is not None and record.previous == stream.number:
            pieces = stream.pieces if stream.shared == self._digest(unroll, -1 - steps) else None
        for row in range(steps):
            if is_first[row]:
                pieces, begin = [], row
                episode, seed = (episode, seed) if row == 0 else (episode + 1, NO_SEED)
            if ended[row]:
                if pieces is not None:
                    who = (int(unroll.member[0]), int(unroll.slot[0]), int(unroll.task[0]), episode, seed)
                    found.append(self._whole([*pieces, _Piece(record.compressed, begin, row + 1)], who))
                pieces = None
        if pieces is not None:
            pieces = [*pieces, _Piece(record.compressed, begin, steps)]
        return _OpenStream(record.number, self._digest(unroll, -1), pieces), found

    def _whole(self, pieces: list[_Piece], who: tuple[int, int, int, int, int]) -> WholeEpisode:
        context, parts = self._layout.context, [(piece, self._decoded(piece.compressed)) for piece in pieces]
        frames = [u.observation[0, context + p.begin : context + p.end] for p, u in parts]
        piece, last = parts[-1]
        final = last.observation[0, context + piece.end : context + piece.end + 1]
        rows = [np.concatenate([getattr(u, name)[0, p.begin : p.end] for p, u in parts]) for name in OUTCOMES]
        version = np.concatenate([np.full(p.end - p.begin, u.version[0]) for p, u in parts])
        return WholeEpisode._make([*who, np.concatenate([*frames, final]), *rows, version])

    def _digest(self, unroll: Unrolls, row: int) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for name in SHARED:
            digest.update(np.ascontiguousarray(getattr(unroll, name)[0][row]).tobytes())
        return digest.digest()
