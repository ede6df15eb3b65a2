"""What a run keeps on disk to go on after a crash: checkpoints, the replay's segments, and the lock on its directory.

Nothing that is read here is executed: safetensors, JSON and zstd blocks only, each checked against the manifest.

Modules are imported when a name of theirs is first used: who only asks for the owner of a directory does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laser_rl.checkpoint.atomic import write_bytes, write_json
    from laser_rl.checkpoint.folders import clear, newest_state, newest_step, remove_leftovers, remove_unnamed
    from laser_rl.checkpoint.lock import Owner, RunLock, owner
    from laser_rl.checkpoint.salvage import Mended, Salvage
    from laser_rl.checkpoint.segments import SegmentEntry, read_segment, write_segment
    from laser_rl.checkpoint.snapshot import Loaded, Snapshot, latest, load_snapshot, write
    from laser_rl.checkpoint.streams import Streams

__all__ = [
    "CHECKPOINTS",
    "REPLAY",
    "Loaded",
    "Mended",
    "Owner",
    "RunLock",
    "Salvage",
    "SegmentEntry",
    "Snapshot",
    "Streams",
    "clear",
    "latest",
    "load_snapshot",
    "newest_state",
    "newest_step",
    "owner",
    "read_segment",
    "remove_leftovers",
    "remove_unnamed",
    "write",
    "write_bytes",
    "write_json",
    "write_segment",
]
CHECKPOINTS, REPLAY = "checkpoints", "replay"  # folders of a run directory
_HOMES = {
    "atomic": ("write_bytes", "write_json"),
    "lock": ("Owner", "RunLock", "owner"),
    "salvage": ("Mended", "Salvage"),
    "segments": ("SegmentEntry", "read_segment", "write_segment"),
    "folders": ("clear", "newest_state", "newest_step", "remove_leftovers", "remove_unnamed"),
    "snapshot": ("Loaded", "Snapshot", "latest", "load_snapshot", "write"),
    "streams": ("Streams",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
