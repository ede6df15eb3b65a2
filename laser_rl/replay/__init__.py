"""One store of unrolls for all members: insert, draw uniformly, mix with new ones, ahead of the learner."""

from laser_rl.replay.ahead import Ahead, Exhausted, Starved
from laser_rl.replay.frames import put, upload
from laser_rl.replay.memory import Estimate, available_bytes, estimate, require_fits
from laser_rl.replay.mixer import Counts, Mixer
from laser_rl.replay.records import allocate
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Evicted, Replay

__all__ = [
    "Ahead",
    "Counts",
    "Estimate",
    "Evicted",
    "Exhausted",
    "Handle",
    "Mixer",
    "Replay",
    "Starved",
    "allocate",
    "available_bytes",
    "estimate",
    "put",
    "require_fits",
    "upload",
]
