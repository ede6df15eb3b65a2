"""What the curves of `atari.py` need of its run directories, small enough to be sent anywhere: one compressed JSON file."""

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_measure import where
from laser_rl.disk import write_bytes
from laser_rl.metrics.log import FILE, read, read_from
from laser_rl.metrics.rows import Row, episodes_in
from laser_rl.training.files import CONFIG, SWEEP, is_sweep, read_sweep

FORMAT = 1
LIMIT_BYTES = 1 << 20
MOST_BINS = 400
EVALUATIONS = "evaluations.json"  # in a run directory: those that were made after a session that was cut short
# What is kept of rows of metrics; a name that ends in * stands for all that begin so.
KEPT = (
    "return_mean", "episodes", "steps_per_second", "updates_per_second", "learner_*", "acceptance", "trust_bound", "learning_rate",
    "entropy", "value_loss", "gradient_norm", "lag_updates", "replay_steps", "replay_bytes", "skipped_updates", "rollbacks",
)  # fmt: skip
BETWEEN_SESSIONS = {"resumed", "finished", "stopped"}
Numbers = dict[str, Any]


def timed(rows: Sequence[Row]) -> Iterator[tuple[float, Row]]:
    """Rows with the seconds of training before them, over all sessions: neither the time between two sessions nor evaluations count.

    >>> rows = [{"kind": "train", "time": t} for t in (10.0, 12.0)] + [{"kind": "event", "event": "stopped", "time": 20.0}]
    >>> rows += [{"kind": "event", "event": "resumed", "time": 99.0}, {"kind": "train", "time": 100.0}]
    >>> [seconds for seconds, _ in timed(rows)]
    [0.0, 2.0, 2.0, 2.0, 3.0]
    """
    seconds, before = 0.0, None
    for row in rows:
        now = float(row["time"])
        counts = row["kind"] != "evaluation" and row.get("event") not in BETWEEN_SESSIONS
        if before is not None and counts:
            now = max(now, before)  # rows of several processes may stand in another order than they were made
            seconds += now - before
        before = now
        yield seconds, row


def collect(out: Path, *, bins: int = MOST_BINS) -> Numbers:
    """All runs and members below a folder."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folders = sorted({file.parent for name in (CONFIG, SWEEP) for file in out.glob(f"*/{name}")})
    runs = [entry for folder in folders for entry in _entries(folder, bins)]
    return {"format": FORMAT, "hardware": where(device), "runs": runs}


def _entries(folder: Path, bins: int) -> Iterator[Numbers]:
    sweep = read_sweep(folder) if is_sweep(folder) else None
    configs = (read_sweep(folder).base,) if sweep is None else sweep.configs
    seconds_at = {json.dumps(row): seconds for seconds, row in timed(read_from(folder / FILE)[0])}
    rows = [(seconds_at[json.dumps(row)], row) for row in read(folder)]
    played = json.loads((folder / EVALUATIONS).read_text()) if (folder / EVALUATIONS).exists() else []
    for number, config in enumerate(configs):
        member = None if sweep is None else number
        own = [(seconds, row) for seconds, row in rows if row.get("member") == member]
        by_kind = {
            kind: [(s, row) for s, row in own if row["kind"] == kind] for kind in ("train", "episode", "evaluation")
        }
        evaluations = [_evaluation(seconds, row) for seconds, row in by_kind["evaluation"]]
        evaluations += [entry for entry in played if entry["member"] == member]
        yield {
            "run": folder.name,
            "environment": config.environment.id,
            "share": None if sweep is None else sweep.share,
            "member": member,
            "config": config.model_dump(mode="json"),
            "step": max((int(row["step"]) for _, row in own), default=0),
            "seconds": round(max((seconds for seconds, _ in own), default=0.0), 1),
            "sessions": 1 + sum(row.get("event") == "resumed" for _, row in own),
            "episodes": binned(by_kind["episode"], bins),
            "train": thinned(by_kind["train"], bins),
            "evaluations": sorted(evaluations, key=lambda entry: int(entry["step"])),
        }


def _evaluation(seconds: float, row: Row) -> Numbers:
    names = ("mean", "iqm", "ci95_low", "ci95_high", "episodes")
    return {"step": row["step"], "seconds": round(seconds, 1), **{name: _short(row.get(name)) for name in names}}


def binned(episodes: Sequence[tuple[float, Row]], bins: int) -> dict[str, list[Any]]:
    """Mean and largest return of the episodes that ended in each of so many equal spans of steps; empty spans are left out.

    >>> rows = [(float(t), {"step": 10 * t, "return": float(t)}) for t in range(1, 5)]
    >>> binned(rows, 2)
    {'step': [20, 40], 'seconds': [2.0, 4.0], 'return': [1.5, 3.5], 'best': [2.0, 4.0], 'count': [2, 2]}
    """
    found: dict[str, list[Any]] = {name: [] for name in ("step", "seconds", "return", "best", "count")}
    last = max((int(row["step"]) for _, row in episodes), default=0)
    spans: dict[int, list[tuple[float, Row]]] = {}
    for seconds, row in episodes:
        spans.setdefault(min(bins - 1, bins * (int(row["step"]) - 1) // max(1, last)), []).append((seconds, row))
    for _, own in sorted(spans.items()):
        returns = [episodes_in(row) * float(row["return"]) for _, row in own]
        count = sum(episodes_in(row) for _, row in own)
        found["step"].append(int(own[-1][1]["step"]))
        found["seconds"].append(round(own[-1][0], 1))
        found["return"].append(_short(math.fsum(returns) / count))
        found["best"].append(_short(max(float(row.get("return_high", row["return"])) for _, row in own)))
        found["count"].append(count)
    return found


def thinned(rows: Sequence[tuple[float, Row]], most: int) -> dict[str, list[Any]]:
    """At most so many rows, evenly, the last one among them; a column for each name.

    >>> rows = [(float(t), {"step": t, "update": t, "return_mean": t / 3, "other": 1}) for t in range(7)]
    >>> thinned(rows, 3)
    {'step': [0, 3, 6], 'update': [0, 3, 6], 'seconds': [0.0, 3.0, 6.0], 'return_mean': [0.0, 1.0, 2.0]}
    """
    every = max(1, -(-(len(rows) - 1) // max(1, most - 1)))
    chosen = [rows[len(rows) - 1 - place] for place in range(0, len(rows), every)][::-1]
    names = dict.fromkeys(name for _, row in chosen for name in row if _is_kept(name))
    return {
        "step": [row["step"] for _, row in chosen],
        "update": [row["update"] for _, row in chosen],
        "seconds": [round(seconds, 1) for seconds, _ in chosen],
        **{name: [_short(row.get(name)) for _, row in chosen] for name in names},
    }


def _is_kept(name: str) -> bool:
    return any(name.startswith(kept[:-1]) if kept.endswith("*") else name == kept for kept in KEPT)


def _short(value: Any) -> Any:
    """Five digits are more than a picture shows; None for what is not finite, which JSON does not know."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def write(out: Path, path: Path) -> int:
    """Collect into a file, coarser if it would be larger than `LIMIT_BYTES`; returns its size."""
    bins = MOST_BINS
    while True:
        data = gzip.compress(json.dumps(collect(out, bins=bins), allow_nan=False).encode())
        if len(data) <= LIMIT_BYTES or bins <= 10:
            break
        bins //= 2
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)
    return len(data)


def load(path: Path) -> Numbers:
    """What `write` has written."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    if document.get("format") != FORMAT:
        raise ValueError(f"{path} is of format {document.get('format')}, expected {FORMAT}")
    return document
