"""What a run keeps on disk to go on after a crash: checkpoints, the replay's segments, and the lock on its directory.

Nothing that is read here is executed: safetensors, JSON and zstd blocks only, each checked against the manifest. A module is imported when
one of its names is first used, and torch when tensors are written or read: who asks for the owner of a directory waits for none of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.checkpoint.guarded import CHECKPOINTS, REPLAY, newest_step
    from laser_rl.checkpoint.lock import Owner, RunLock, owner
    from laser_rl.checkpoint.salvage import Mended
    from laser_rl.checkpoint.segments import SegmentEntry, Streams, read_segment, write_segment
    from laser_rl.checkpoint.snapshot import (
        Loaded,
        Snapshot,
        clear,
        latest,
        load_snapshot,
        newest_state,
        remove_leftovers,
        remove_unnamed,
        write,
    )

__all__ = [
    "CHECKPOINTS", "REPLAY", "Loaded", "Mended", "Owner", "RunLock", "SegmentEntry", "Snapshot", "Streams", "clear", "latest",
    "load_snapshot", "newest_state", "newest_step", "owner", "read_segment", "remove_leftovers", "remove_unnamed", "write", "write_segment",
]  # fmt: skip
_HOMES = ("guarded", "lock", "salvage", "segments", "snapshot")  # what imports least comes first


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        if hasattr(found := importlib.import_module(f"laser_rl.checkpoint.{home}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
