"""One store of unrolls for all members: insert, draw unrolls or whole episodes, mix with new ones, ahead of the learner."""

from laser_rl.replay.episodes import EpisodeIndex
from laser_rl.replay.frames import upload
from laser_rl.replay.lanes import Lanes
from laser_rl.replay.memory_estimate import MemoryEstimate, available_bytes, estimate, require_fits
from laser_rl.replay.mixer import Counts, Mixer
from laser_rl.replay.prefetcher import Exhausted, Prefetcher, Starved
from laser_rl.replay.prioritised import Prioritised, PrioritisedLanes
from laser_rl.replay.records import allocate
from laser_rl.replay.sampler import Sampler, UniformSampler
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Evicted, Replay

__all__ = [
    "Counts",
    "EpisodeIndex",
    "Evicted",
    "Exhausted",
    "Handle",
    "Lanes",
    "MemoryEstimate",
    "Mixer",
    "Prefetcher",
    "Prioritised",
    "PrioritisedLanes",
    "Replay",
    "Sampler",
    "Starved",
    "UniformSampler",
    "allocate",
    "available_bytes",
    "estimate",
    "require_fits",
    "upload",
]
