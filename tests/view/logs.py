"""Run directories of any length, written as a sweep would write them."""

import json
import math
from pathlib import Path

START = 1_790_000_000.0


def write_sweep(run_dir: Path, members: int, points: int, *, sources: bool = True, begin: int = 0) -> Path:
    """A sweep with so many rows of training a member; a second call with `begin` goes on."""
    run_dir.mkdir(parents=True, exist_ok=True)
    settings = [{"learning_rate": 1e-4 * 2**member} for member in range(members)]
    base = {"environment": {"id": "laser/Catch"}, "run": {"steps": 40 * max(points, begin + points), "seed": 1}}
    (run_dir / "sweep.json").write_text(json.dumps({"share": "shared", "settings": settings, "base": base}))
    every = max(1, points // 1000)
    with (run_dir / "metrics.jsonl").open("a") as file:
        for n in range(begin, begin + points):
            file.writelines(_train(n, member, members if sources else 0) for member in range(members))
            if n % every == 0:
                file.write(_sweep(n, members))
    return run_dir


def write_run(run_dir: Path, points: int, begin: int = 0) -> Path:
    """A run of one agent."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.json").write_text(
        json.dumps({"environment": {"id": "laser/Catch"}, "run": {"steps": 40 * points}})
    )
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(_train(n, None, 0) for n in range(begin, begin + points))
    return run_dir


def level(n: int, member: int) -> float:
    """The return of a member in its n-th row."""
    return round(10 * (member + 1) * (1 - math.exp(-n / 5000)) + math.sin(n * (member + 1)), 4)


def _train(n: int, member: int | None, members: int) -> str:
    who = "" if member is None else f', "member": {member}'
    trusted = "".join(
        f', "acceptance_from_{source}": {0.5 + 0.4 * math.cos(n / 900 + source):.4f}' for source in range(members)
    )
    return (
        f'{{"kind": "train", "step": {40 * n}, "update": {n}, "time": {START + n}{who}, "return_mean": {level(n, member or 0)}, '
        f'"acceptance": 0.9{trusted}, "acceptance_age_1": 0.8, "steps_per_second": {1000 + n % 77}, "updates_per_second": 60.5, '
        f'"learner_busy": 0.8, "learner_wait": 0.1, "queue_inbox": {n % 5}, "queue_batches": {n % 2}, '
        f'"skipped_updates": 0, "entropy": 0.5, "replay_fill": 0.5, "memory_bytes": 345678901}}\n'
    )


def _sweep(n: int, members: int) -> str:
    shares = "".join(f', "share_of_{member}": {1 / members:.4f}' for member in range(members))
    ages = "".join(f', "age_{part}": {n * part / 100:.1f}' for part in (0, 25, 50, 75, 100))
    return f'{{"kind": "sweep", "step": {40 * n}, "update": {n * members}, "time": {START + n}{shares}{ages}, "replay_fill": 0.5}}\n'
