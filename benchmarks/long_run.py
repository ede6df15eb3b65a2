"""Does a step cost the same after a long time? And how long does a checkpoint with a large replay hold the learner up?

    python -m benchmarks.long_run steps --csv FILE         # one run with a full replay, a long log, 50 checkpoints
    python -m benchmarks.long_run checkpoint --csv FILE    # replays of Atari's shape: all of it new, and a part of it
    python -m benchmarks.long_run pause --csv FILE         # the longest time between two updates around a checkpoint
    python -m benchmarks.long_run pause --held 14000000 --new 1000000 --rounds 1 --csv FILE   # at the paper's size

`steps` is 10 million steps on a small scale: a replay that is full after a ninth of the run, rows every five updates, 60 checkpoints of
which 50 are kept. Catch has episodes of one length, so that every step is the same work. Seconds are CPU time of the
process, which other programs of the machine disturb least; what checkpoints take is counted apart.

`pause` learns Breakout beside a full replay, of which `--held` steps are on disk and `--new` ones are not: a checkpoint that the learner
writes itself, then one that a thread writes, in turns. Told are the seconds between the ends of two updates, by the clock (`clock_`) and
less what the learner's thread waits for a core, since other programs may have it; `held_s` is the longest time that the learner only sees
to a checkpoint.
"""

import argparse
import contextlib
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cpu import keep
from benchmarks.replay import STACKED, STEPS, frames, part, unrolls_of
from laser_rl import recipes
from laser_rl.api import LASER
from laser_rl.config import override
from laser_rl.replay.store import Replay
from laser_rl.training import directory as directories
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import act_and_learn, prepare
from laser_rl.training.member_training import Pause, Progress
from laser_rl.training.saving import Segments
from laser_rl.training.trainer import Trainer

WINDOWS, KEPT, CHECKPOINTS = 24, 50, 60
WARM, BEFORE, AFTER = 10, 40, 10  # updates
WRITERS = "the learner", "a thread"


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
                segments.begin(store)
                segments.write(store)
                seconds = time.perf_counter() - begin
                rows.append({"held_steps": store.steps, "new_steps": count * STEPS, "seconds": round(seconds, 3)})
                print(rows[-1], flush=True)
    return rows


def running_s() -> float:
    """The time, less what this thread has waited for a core that another thread or program had (Linux)."""
    waited = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text(encoding="ascii").split()[1]
    return time.perf_counter() - int(waited) / 1e9


class Watch:
    """In place of a trainer's `between`: when updates end, and a checkpoint that is due after `BEFORE` of them."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._plain, self._before = trainer, trainer.between, trainer.saved
        self.times, self.on_core, self.held_s = list[float](), list[float](), list[float]()
        self.begun_s, self.took_s, self._until = 0.0, 0.0, 0

    def __call__(self, paused: Pause = contextlib.nullcontext) -> None:
        """Between two updates, and while there is none."""
        now, trainer = time.perf_counter(), self._trainer
        if trainer.updates > len(self.times):
            self.times.append(now)
            self.on_core.append(running_s())
        if trainer.updates == BEFORE and not self.begun_s:
            self.begun_s, trainer._next_save = now, 1  # noqa: SLF001 - due at once
        self._plain(paused)
        self.held_s.append(time.perf_counter() - now)
        if not self._until and trainer.saved != self._before:
            self.took_s, self._until = time.perf_counter() - self.begun_s, trainer.updates + AFTER
        if self._until and trainer.updates >= self._until:
            trainer.stop.request("enough")


def pauses(runtime: str, writer: str, held: int, new: int, device: str) -> dict[str, Any]:
    """Seconds between updates, without a checkpoint and from the begin of one until after its end, if that `writer` writes it."""
    directories.ASIDE_BYTES = 0 if writer == "a thread" else 1 << 62
    settings = {"environment.atari.full_action_space": True, "environment.slots": 4, "environment.atari.threads": 1}
    settings |= {"run.runtime": runtime, "run.device": device, "run.threads": 1, "run.checkpoint_every_steps": 0}
    settings |= {"loss.unroll_steps": STEPS, "replay.capacity_steps": held + new}
    if device == "cpu":  # updates of a second would hide a pause
        settings |= {"network.width": 1, "network.precision": "fp32", "loss.batch_unrolls": 8}
    pool, random = unrolls_of(STACKED, frames("breakout", 200, STACKED.context + STEPS + 1)), np.random.default_rng(1)
    config = override(recipes.atari(), settings)
    with tempfile.TemporaryDirectory() as folder, closing(RunDirectory(Path(folder, "run"), config)) as directory:
        trainer = prepare(config, directory)

        def fill(steps: int) -> None:
            for _ in range(steps // STEPS // 100):
                trainer.stores[0].insert(part(pool, int(random.integers(100)), 100))

        with closing(trainer.group):
            fill(held)
            trainer.save()
            fill(new)
            watch = trainer.between = Watch(trainer)  # type: ignore[method-assign]
            act_and_learn(trainer)
    row: dict[str, Any] = {"runtime": runtime, "device": device, "writer": writer, "held_steps": held, "new_steps": new}
    for what, times in (("", watch.on_core), ("clock_", watch.times)):
        usual, around = np.diff(times[WARM:BEFORE]), np.diff(times[BEFORE - 1 :])
        found = {"update_s": np.median(usual), "longest_before_s": usual.max(), "longest_s": around.max()}
        row |= {what + name: round(float(seconds), 3) for name, seconds in found.items()}
    return row | {"held_s": round(max(watch.held_s), 3), "checkpoint_s": round(watch.took_s, 2)}


def main() -> None:
    """One of the three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "checkpoint", "pause"))
    parser.add_argument("--steps", type=int, default=900_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--held", type=int, default=200_000)
    parser.add_argument("--new", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "steps":
        rows = long_run(arguments.steps)
    elif arguments.what == "checkpoint":
        rows = checkpoints([1_000, 4_000], 500)
    else:
        rows = []
        for runtime, writer in arguments.rounds * [*itertools.product(("serial", "local"), WRITERS)]:
            rows.append(pauses(runtime, writer, arguments.held, arguments.new, arguments.device))
            print(rows[-1], flush=True)
    for row in rows:
        print(row)
    if arguments.csv:
        keep(rows, arguments.csv)


if __name__ == "__main__":
    main()
