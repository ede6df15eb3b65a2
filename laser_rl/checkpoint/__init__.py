"""What a run keeps on disk to go on after a crash: checkpoints, the replay's segments, and the lock on its directory.

Nothing that is read here is executed: safetensors, JSON and zstd blocks only, each checked against the manifest. torch is imported when
tensors are written or read: a reader that asks for the owner of a directory does not wait for it.
"""

from laser_rl.checkpoint.lock import Owner, RunLock, owner
from laser_rl.checkpoint.manifest import CHECKPOINTS, REPLAY
from laser_rl.checkpoint.salvage import Mended
from laser_rl.checkpoint.segments import SegmentEntry, Streams, read_segment, write_segment
from laser_rl.checkpoint.snapshot import (
    Loaded,
    Snapshot,
    clear,
    latest,
    load_snapshot,
    newest_state,
    newest_step,
    remove_leftovers,
    remove_unnamed,
    write,
)

__all__ = [
    "CHECKPOINTS", "REPLAY", "Loaded", "Mended", "Owner", "RunLock", "SegmentEntry", "Snapshot", "Streams", "clear", "latest",
    "load_snapshot", "newest_state", "newest_step", "owner", "read_segment", "remove_leftovers", "remove_unnamed", "write", "write_segment",
]  # fmt: skip
