"""The replay of a cluster on disk, in the files that one machine writes: any run directory can go on here and there.

The supervisor asks the shards for what is new and writes it; no file system is shared. Unrolls get numbers of their own on disk, in the
order in which they are written, and as many of the newest are kept as the shards hold. So where shards were lost, older unrolls of the
others that are still held may not be in a checkpoint, and some that were lost may.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from laser_rl.checkpoint import Streams, write_segment
from laser_rl.cluster.calls import AnswerLost, awaited
from laser_rl.cluster.shard import ShardClient
from laser_rl.cluster.shard_directory import ANSWER_S
from laser_rl.replay.encoded_unrolls import seal, unseal
from laser_rl.replay.records import Codec, pack, unpack
from laser_rl.replay.store import Replay
from laser_rl.training.saving import Segments
from laser_rl.types import UnrollLayout, Unrolls

log = logging.getLogger("laser_rl.training")
AT_ONCE = 1024  # unrolls in a segment; they are held uncompressed while it is written
INSERT_S = 600.0
WHO = "the checkpoint"


class ReplayFiles(Segments):
    """The files of one replay store that lies in shards; `shards` returns those that there are now."""

    def __init__(
        self, run_dir: Path, layout: UnrollLayout, store: int, shards: Callable[[], Sequence[ShardClient]]
    ) -> None:
        super().__init__(run_dir, layout, store)
        self._shards = shards
        self._first = self._next = 0  # numbers on disk, without those of other stores
        self._until: dict[int, int] = {}  # by shard: before which id its unrolls have been written
        self._reached = (0, 0, dict(self._until))  # before the last attempt

    def write(self, replay: Replay | None = None) -> dict[str, int]:
        """Write what is new in all shards; returns what `fill` needs to know. A shard that is lost meanwhile is left out."""
        self._before = (list(self.entries), self._streams.copy())
        self._reached = (self._first, self._next, dict(self._until))
        held = sum(self._write_shard(shard) for shard in self._shards())
        self._first = max(self._first, self._next - held)
        self.entries = [entry for entry in self.entries if entry.last_id - self._base >= self._first]
        return {"first_id": self._first, "next_id": self._next}

    def _write_shard(self, shard: ShardClient) -> int:
        """Write what is new in a shard; returns how many unrolls it holds."""
        try:
            first, end = awaited(shard.report(), WHO, str(shard), ANSWER_S).span
            start = max(first, self._until.get(shard.number, 0))
            for begin in range(start, end, AT_ONCE):
                ids = np.arange(begin, min(begin + AT_ONCE, end))
                gathered = awaited(shard.gather(ids), WHO, str(shard), ANSWER_S)
                self._append(unpack(self._layout, unseal(self._layout, gathered.encoded)))
                self._until[shard.number] = int(ids[-1]) + 1
        except (AnswerLost, TimeoutError) as error:
            log.warning("%s is not in this checkpoint, or not all of it: %s", shard, error)
            return 0
        return end - first

    def _append(self, unrolls: Unrolls) -> None:
        count, number = len(unrolls.member), self._base + self._next
        if count:
            previous = self._streams.follow(number, unrolls, oldest=self._base + self._first)
            self.entries.append(write_segment(self._folder, self._layout, number, unrolls, previous))
            self._next += count

    def revert(self) -> None:
        """The checkpoint was not written, and what `write` has added is removed; without a file of before, all is written anew."""
        self.entries, self._streams = self._before
        if all((self._folder / entry.name).exists() for entry in self.entries):
            self._first, self._next, self._until = self._reached
        else:  # under numbers that were never given
            self.entries, self._streams, self._first, self._until = [], Streams(), self._next, {}

    def reached(self, filled: "ShardFiller") -> None:
        """After `fill`: what the shards hold now is on disk, under these numbers."""
        self._first, self._next = filled.first_id, filled.next_id
        if not self.entries:  # a damaged replay was mended: its unrolls are to be written anew
            self._first = filled.next_id
            return
        for shard in self._shards():
            self._until[shard.number] = awaited(shard.report(), WHO, str(shard), ANSWER_S).span[1]


class ShardFiller:
    """What `Segments.fill` and `warm_start` need of an empty `Replay`; what is inserted goes to all shards, which are empty, evenly."""

    def __init__(self, layout: UnrollLayout, codec: Codec, shards: Sequence[ShardClient]) -> None:
        self.layout, self._codec, self._shards = layout, codec, shards
        self.first_id = self.next_id = 0
        self._sent = [0] * len(shards)
        self._turn = 0

    def __len__(self) -> int:
        return self.next_id - self.first_id

    def begin_at(self, first_id: int) -> None:
        """Begin to count there."""
        self.first_id = self.next_id = first_id

    def insert(self, unrolls: Unrolls) -> None:
        """Insert some into each shard; the shards take turns to get one more."""
        for part, rows in enumerate(np.array_split(np.arange(len(unrolls.member)), len(self._shards))):
            if len(rows):
                at = (part + self._turn) % len(self._shards)
                encoded = seal(pack(self.layout, Unrolls(*(field[rows] for field in unrolls))), self._codec)
                answer = self._shards[at].insert("checkpoint", self._sent[at], encoded, self._sent[at])
                self._sent[at] = awaited(answer, WHO, f"{self._shards[at]} to take {len(rows)} unrolls", INSERT_S)
        self._turn += 1
        self.next_id += len(unrolls.member)
