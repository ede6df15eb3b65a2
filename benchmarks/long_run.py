"""Does a step cost the same after a long time? And how long does a checkpoint with a large replay hold the learner up?

    python -m benchmarks.long_run steps --csv FILE         # one run with a full replay, a long log, 50 checkpoints
    python -m benchmarks.long_run checkpoint --csv FILE    # replays of Atari's shape: all of it new, and a part of it

`steps` is 10 million steps on a small scale: a replay that is full after a ninth of the run, rows every five updates, 60 checkpoints of
which 50 are kept. Catch has episodes of one length, so that every step is the same work. Seconds are CPU time of the
process, which other programs of the machine disturb least; what checkpoints take is counted apart.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cpu import keep
from benchmarks.replay import STACKED, STEPS, frames, part, unrolls_of
from laser_rl.api import LASER
from laser_rl.replay.store import Replay
from laser_rl.training.member_training import Progress
from laser_rl.training.saving import Segments
from laser_rl.training.trainer import Trainer

WINDOWS, KEPT, CHECKPOINTS = 24, 50, 60


def long_run(steps: int) -> list[dict[str, Any]]:
    """Microseconds of a step in each part of one run."""
    every, seen, saves = steps // CHECKPOINTS, list[tuple[int, float]](), list[tuple[int, float]]()
    plain: Callable[..., None] = Trainer.save

    def timed(trainer: Trainer, *, last: bool = True) -> None:
        begin = time.process_time()
        plain(trainer, last=last)
        saves.append((trainer.steps, time.process_time() - begin))

    def watch(progress: Progress) -> None:
        seen.append((progress.step, time.process_time() - sum(seconds for _, seconds in saves)))

    Trainer.save = timed  # type: ignore[method-assign]
    settings = {"run.threads": 1, "run.device": "cpu", "loss.batch_unrolls": 8, "replay.fraction": 0.875}
    settings |= {
        "replay.capacity_steps": steps // 9,
        "run.log_every_updates": 5,
        "run.checkpoint_every_steps": every,
        "run.keep_checkpoints": KEPT,
    }
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        agent = LASER("laser/Catch", recipe="cartpole", run_dir=run_dir, **settings, **{"run.steps": steps})
        agent.learn(steps, callback=watch)
        agent.close()
        size, kept = (run_dir / "metrics.jsonl").stat().st_size, len(list((run_dir / "checkpoints").glob("step-*")))
    rows = []
    for window in range(WINDOWS):
        low, high = steps * window / WINDOWS, steps * (window + 1) / WINDOWS
        inside = [one for one in seen if low <= one[0] <= high]
        (begin, since), (end, until) = inside[0], inside[-1]
        held = [1e3 * seconds for step, seconds in saves if low < step <= high]
        rows.append(
            {
                "from_step": round(low),
                "us_a_step": round(1e6 * (until - since) / (end - begin), 2),
                "ms_a_checkpoint": round(statistics.median(held), 2) if held else "",
                "log_bytes": size if window == WINDOWS - 1 else "",
                "checkpoints_kept": kept if window == WINDOWS - 1 else "",
            }
        )
    return rows


def checkpoints(sizes: list[int], new: int) -> list[dict[str, Any]]:
    """Seconds to write all of a replay, and then what came since: `new` unrolls of 84×84 frames."""
    pool = unrolls_of(STACKED, frames("breakout", 200, STACKED.context + STEPS + 1))
    rows = []
    for size in sizes:
        store, random = Replay(STACKED, size * STEPS), np.random.default_rng(1)
        with tempfile.TemporaryDirectory() as folder:
            segments = Segments(Path(folder), STACKED)
            for count in (size, new, new, new):
                for at in range(0, count, 100):
                    store.insert(part(pool, int(random.integers(100)), min(100, count - at)))
                begin = time.perf_counter()
                segments.write(store)
                seconds = time.perf_counter() - begin
                rows.append({"held_steps": store.steps, "new_steps": count * STEPS, "seconds": round(seconds, 3)})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Either of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "checkpoint"))
    parser.add_argument("--steps", type=int, default=900_000)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = long_run(arguments.steps) if arguments.what == "steps" else checkpoints([1_000, 4_000], 500)
    for row in rows:
        print(row)
    if arguments.csv:
        keep(rows, arguments.csv)


if __name__ == "__main__":
    main()
