"""What a replay will need, before anything is allocated: estimated, printed, and refused if it does not fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import compress_bound
from laser_rl.replay.memory_layout import Codec, shape_of
from laser_rl.replay.shared import ring_bytes
from laser_rl.types import UnrollLayout

ASSUMED_RATIO = 10  # random play of the 57 Atari games: median 50, worst 5.8; trained play compresses less well
PICTURES_BYTES = 1 << 16  # of an unroll; below that raw memory is cheap and a copy is faster than any codec
INDEX_BYTES = 20  # member, address and length of an unroll
RESERVE = 0.9  # of the free memory: networks, batches and environments need the rest


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a replay when it is full."""

    layout: UnrollLayout
    capacity_steps: int
    codec: Codec
    budget_bytes: int | None  # None: a tenth of the raw size; old unrolls leave early if that is too little
    bytes_raw_fields: int  # everything but observations
    bytes_observations: int
    bytes_uncompressed: int  # what the observations would take as they are

    @property
    def total(self) -> int:
        return self.bytes_raw_fields + self.bytes_observations

    def __str__(self) -> str:
        assumed = "as budgeted" if self.budget_bytes is not None else f"assuming {ASSUMED_RATIO}x"
        how = "raw" if self.codec == "raw" else f"zstd, {assumed}, {self.bytes_uncompressed / 1e9:.1f} GB raw"
        return (
            f"replay of {self.capacity_steps:,} steps: {self.total / 1e9:.2f} GB = {self.bytes_observations / 1e9:.2f} GB "
            f"observations ({how}) + {self.bytes_raw_fields / 1e9:.2f} GB all else"
        )


def unrolls_of(layout: UnrollLayout, capacity_steps: int) -> int:
    return max(1, capacity_steps // layout.steps)


def resolve_codec(layout: UnrollLayout, codec: Literal["auto"] | Codec) -> Codec:
    """Auto compresses pictures, of bytes or of floats, if an unroll has many bytes of them."""
    if codec != "auto":
        return codec
    picture = layout.observation_dtype == "uint8" or len(layout.observation_shape) == 3  # noqa: PLR2004 - [C, H, W]
    return "zstd" if picture and shape_of(layout).frames_bytes >= PICTURES_BYTES else "raw"


def default_budget(layout: UnrollLayout, capacity_steps: int) -> int:
    """A tenth of the raw size, and room for four unrolls that do not compress at all."""
    raw = shape_of(layout).frames_bytes
    return max(unrolls_of(layout, capacity_steps) * raw // ASSUMED_RATIO, 4 * compress_bound(raw))


def estimate(
    layout: UnrollLayout,
    capacity_steps: int,
    codec: Literal["auto"] | Codec = "auto",
    budget_bytes: int | None = None,
) -> MemoryEstimate:
    sizes, unrolls, codec = shape_of(layout), unrolls_of(layout, capacity_steps), resolve_codec(layout, codec)
    records, raw = unrolls * (sizes.record_bytes + INDEX_BYTES), unrolls * sizes.frames_bytes
    if codec == "raw":
        return MemoryEstimate(layout, capacity_steps, codec, None, records, raw, raw)
    budget = default_budget(layout, capacity_steps) if budget_bytes is None else budget_bytes
    ring = ring_bytes(layout, unrolls, budget)
    return MemoryEstimate(layout, capacity_steps, codec, budget_bytes, records, ring, raw)


def available_bytes(root: Path = Path("/")) -> int:
    """Free memory: what the kernel says is available, or what the control group (version 1 or 2) leaves, whichever is less."""
    candidates: list[int] = []
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        lines = [line.split() for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")]
        candidates = [1024 * int(kilobytes) for _, kilobytes, *_ in lines]
    group = root / "sys/fs/cgroup"
    for limit, usage in (
        (group / "memory.max", group / "memory.current"),
        (group / "memory/memory.limit_in_bytes", group / "memory/memory.usage_in_bytes"),
    ):
        if limit.exists() and usage.exists() and (text := limit.read_text().strip()).isdigit():
            candidates.append(max(0, int(text) - int(usage.read_text())))
    return min(candidates) if candidates else int(np.iinfo(np.int64).max)


def require_fits(needed: MemoryEstimate, available: int | None = None) -> None:
    """ConfigError if the replay takes more than nine tenths of what is free; says how much would fit."""
    free = available_bytes() if available is None else available
    if needed.total <= RESERVE * free:
        return
    fits = _largest_that_fits(needed, RESERVE * free)
    advice = f"lower --replay.capacity-steps to {fits:,}"
    if needed.budget_bytes is not None:
        advice += " or --replay.budget-gb"
    raise ConfigError(
        f"a replay of {needed.capacity_steps:,} steps needs {needed.total / 1e9:.1f} GB, {free / 1e9:.1f} GB are free "
        f"(a tenth of it stays free); {advice}"
    )


def _largest_that_fits(needed: MemoryEstimate, free: float) -> int:
    """By bisection, rounded down to two digits; 0 if even one unroll is too much."""
    low, high = 0, needed.capacity_steps
    while high - low > 1:
        middle = (low + high) // 2
        fits = estimate(needed.layout, middle, needed.codec, needed.budget_bytes).total <= free
        low, high = (middle, high) if fits else (low, middle)
    unit = int(10 ** max(0, len(str(low)) - 2))
    return low // unit * unit
