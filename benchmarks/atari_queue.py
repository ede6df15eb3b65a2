"""Work through the runs of `atari_plan.py` on one card, several at once, and keep a row of results of each the moment it is done.

    python -m benchmarks.atari_queue status
    nvidia-cuda-mps-control -d
    python -m benchmarks.atari_queue work --minutes 27 --workers 6 --rows new.jsonl
    python -m benchmarks.atari_queue work --minutes 27 --workers 2 --stages 3 --rows new.jsonl  # sweeps of three processes
    python -m benchmarks.atari_queue keep new.jsonl
    python -m benchmarks.atari_queue paper Breakout runs/breakout --began 1795022729.9  # what `laser train --recipe atari` left

`work` starts the next missing run whenever a worker is free and the run can still end within the time; runs that are not done at the end
are dropped, so that a row always is of a whole run. `keep` adds rows to `benchmarks/results/atari-queue.jsonl`, which `status` and
`atari_queue_report.py` read. `paper` keeps what a run of the paper's own recipe made, however far it came; its time began when the command
was given.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.atari_plan import FRAMES_A_STEP, Part, config_of, parts
from laser_rl.config import Config, override
from laser_rl.disk import write_bytes
from laser_rl.envs.worker import die_with
from laser_rl.metrics.log import MetricsLog, read

KEPT = Path(__file__).parent / "results" / "atari-queue.jsonl"
PAPER = Path(__file__).parent / "results" / "atari-paper-size.jsonl"
BUCKET_FRAMES = 250_000
COLUMNS = (
    "entropy", "acceptance", "acceptance_online", "lag_updates", "replay_age_updates", "gradient_norm", "value_loss", "learner_busy",
    "steps_per_second", "skipped_updates", "rollbacks", "trust_bound",
)  # fmt: skip
FIRST_RATE = 45_000.0  # frames/s of all workers together, until it has been measured; of sweeps it was 33,500
LOOK_S, SAY_S, MARGIN_S, STOP_S = 1.0, 30.0, 45.0, 20.0
Row = dict[str, Any]


def load(path: Path | None = None) -> list[Row]:
    """Rows of results, the kept ones or of another file; none where there is no file."""
    path = path or KEPT
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(done: Iterable[Row]) -> list[Part]:
    """What is still to be run, in the plan's order."""
    names = {row["name"] for row in done}
    return [part for part in parts() if part.name not in names]


def buckets(rows: Iterable[Mapping[str, Any]], frames: int) -> dict[str, list[float]]:
    """Number and sum of the returns of the training episodes that ended in each span of 250,000 frames.

    >>> rows = [{"step": 62_500, "return": 3.0}, {"step": 62_501, "return": 5.0}, {"step": 70_000, "return": 6.0}]
    >>> buckets(rows, 500_000)
    {'episodes': [1, 2], 'return_sum': [3.0, 11.0]}
    """
    count = max(1, math.ceil(frames / BUCKET_FRAMES))
    episodes, total = [0] * count, [0.0] * count
    for row in rows:
        place = min(count - 1, (int(row["step"]) * FRAMES_A_STEP - 1) // BUCKET_FRAMES)
        episodes[place] += 1
        total[place] += float(row["return"])
    return {"episodes": episodes, "return_sum": [round(value, 3) for value in total]}


def columns(rows: Sequence[Mapping[str, Any]], most: int = 24) -> dict[str, list[Any]]:
    """A few columns of the learner's rows, at most so many points, the last among them.

    >>> columns([{"step": n, "update": n, "entropy": n / 3} for n in range(5)], most=2)
    {'step': [0, 4], 'update': [0, 4], 'entropy': [0.0, 1.333]}
    """
    every = max(1, -(-(len(rows) - 1) // max(1, most - 1)))
    chosen = list(rows[::-every])[::-1]
    names = [name for name in COLUMNS if any(name in row for row in chosen)]
    names += sorted({name for row in chosen for name in row if name.startswith("acceptance_age")})
    found = {name: [_digits(row.get(name)) for row in chosen] for name in names}
    return {"step": [row["step"] for row in chosen], "update": [row["update"] for row in chosen], **found}


def _digits(value: Any) -> Any:
    return (
        float(f"{value:.4g}")
        if isinstance(value, float) and math.isfinite(value)
        else None
        if isinstance(value, (float, str))
        else value
    )


def run_part(name: str, folder: Path, threads: int) -> None:
    """Train one part in this process, and write its row of results into its folder."""
    import torch  # noqa: PLC0415 - the queue itself needs none

    die_with(os.getppid())
    part = next(part for part in parts() if part.name == name)
    # Members of a sweep act and learn in turns on one card: about half of them play at a time.
    each = max(1, 2 * threads // len(part.rates)) if part.rates else threads
    config = override(config_of(part), {"environment.atari.threads": each, "run.threads": each})
    began = time.time()
    with contextlib.closing(MetricsLog(folder)) as log:
        (_train_sweep if part.rates else _train)(part, config, folder, log)
        seconds = time.time() - began
    train, episodes = trained_and_played(folder)
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    row = {
        "name": name, "stage": part.stage, "game": part.game, "variant": part.variant, "seed": part.seed, "frames": part.frames,
        "date": time.strftime("%Y-%m-%d"), "seconds": round(seconds, 1), "device": card, "torch": torch.__version__,
        "first_update_seconds": round(float(train[0]["time"]) - began, 1), "updates": train[-1]["update"],
        **buckets(episodes, part.frames), "train": columns(train), "config": config.model_dump(mode="json"),
    }  # fmt: skip
    if part.rates:
        row["members"] = [
            {
                "learning_rate": rate,
                **buckets([one for one in episodes if one["member"] == member], part.frames),
                "train": columns([one for one in train if one["member"] == member]),
            }
            for member, rate in enumerate(part.rates)
        ]
        del row["train"]
    write_bytes(folder / "row.json", json.dumps(row, allow_nan=False).encode())


def trained_and_played(run_dir: Path) -> list[list[Mapping[str, Any]]]:
    """The learner's rows and the episodes of a log."""
    rows = read(run_dir, ("train", "episode"))
    return [[row for row in rows if row["kind"] == kind] for kind in ("train", "episode")]


def paper_row(game: str, run_dir: Path, began: float) -> Row:
    """What a run of the recipe `atari` made until it was stopped; frames a second are those of its rows, and over all since the first."""
    train, episodes = trained_and_played(run_dir)
    frames, seconds = (float(train[-1][name]) - float(train[0][name]) for name in ("step", "time"))
    return {
        "game": game, "date": time.strftime("%Y-%m-%d", time.gmtime(began)), "frames": FRAMES_A_STEP * int(train[-1]["step"]),
        "seconds": round(float(train[-1]["time"]) - began, 1), "first_update_seconds": round(float(train[0]["time"]) - began, 1),
        "frames_per_second": round(FRAMES_A_STEP * float(median(float(row["steps_per_second"]) for row in train))),
        "frames_per_second_with_checkpoints": round(FRAMES_A_STEP * frames / seconds), "updates": train[-1]["update"],
        **buckets(episodes, FRAMES_A_STEP * int(train[-1]["step"])), "train": columns(train),
    }  # fmt: skip


def _train(part: Part, config: Config, folder: Path, log: MetricsLog) -> None:
    from laser_rl import LASER  # noqa: PLC0415 - the queue itself needs no torch

    with LASER(config.environment.id, config=config, sinks=[log]) as agent:
        agent.learn(config.run.steps)
        agent.save(folder / "agent.laser")


def _train_sweep(part: Part, config: Config, folder: Path, log: MetricsLog) -> None:
    """A process a member: as many work at once as with single runs."""
    from laser_rl import Sweep  # noqa: PLC0415

    settings = {"run.checkpoint_every_steps": 0, "run.evaluate_episodes": 1}
    sweep = Sweep(
        config.environment.id,
        config=override(config, settings),
        members=[{"learning_rate": rate} for rate in part.rates],
        share_replay=part.variant != "separate",
        processes=len(part.rates),
        sinks=[log],
    )
    sweep.run().best().save(folder / "agent.laser")


class Running:
    """A part in a process of its own."""

    def __init__(self, part: Part, out: Path, threads: int) -> None:
        self.part, self.folder, self.began = part, out / part.name, time.monotonic()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        words = [
            sys.executable,
            "-m",
            "benchmarks.atari_queue",
            "run",
            part.name,
            "--out",
            str(out),
            "--threads",
            str(threads),
        ]
        with (self.folder / "console.txt").open("wb") as console:
            self.process = subprocess.Popen(words, stdout=console, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603

    @property
    def frames(self) -> int:
        """Frames so far: the step of the last row in the log."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            data = (self.folder / "metrics.jsonl").read_bytes()[-65_536:].splitlines()
            step = min(self.part.frames, FRAMES_A_STEP * int(json.loads(data[-2])["step"]))
            return step * max(1, len(self.part.rates))
        return 0


def work(asked: argparse.Namespace) -> int:
    """Run what is missing until the time is over; returns how many runs failed."""
    end, out = time.monotonic() + 60 * asked.minutes, Path(asked.out or tempfile.mkdtemp(prefix="atari-queue-"))
    waiting = [part for part in missing([*load(), *load(asked.rows)]) if part.stage in asked.stages]
    threads = asked.threads or max(1, (os.cpu_count() or 1) // asked.workers)
    running: list[Running] = []
    failed, done_frames, began, said = 0, 0, time.monotonic(), 0.0
    while (running or waiting) and time.monotonic() < end:
        for one in [one for one in running if one.process.poll() is not None]:
            running.remove(one)
            done_frames += one.part.all_frames
            failed += not _finish(one, asked.rows, asked.agents)
        spent = time.monotonic() - began
        frames = done_frames + sum(one.frames for one in running)
        first = (
            0.75 * FIRST_RATE if any(part.rates for part in [one.part for one in running] + waiting[:1]) else FIRST_RATE
        )
        rate = first if spent < 120 or not frames else frames / spent
        left = sum(one.part.all_frames - one.frames for one in running)
        if waiting and len(running) < asked.workers:
            if (left + waiting[0].all_frames) / rate + MARGIN_S > end - time.monotonic():
                if not running:
                    break
            else:
                running.append(Running(waiting.pop(0), out, threads))
        if time.monotonic() - said > SAY_S:
            said = time.monotonic()
            print(
                f"{spent:.0f} s, {frames / 1e6:.1f} M frames, {rate:,.0f}/s: "
                + " ".join(f"{one.part.name}:{one.frames / 1e6:.2f}" for one in running),
                flush=True,
            )
        time.sleep(LOOK_S)
    for one in running:
        one.process.terminate()
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(STOP_S)
        one.process.kill()
        print(f"{one.part.name} was not done: {one.frames:,} of {one.part.all_frames:,} frames", flush=True)
    return failed


def _finish(one: Running, rows: Path, agents: Path | None) -> bool:
    """Keep the row of a run that has ended."""
    path = one.folder / "row.json"
    if one.process.returncode or not path.exists():
        tail = (one.folder / "console.txt").read_text(errors="replace")[-2000:]
        print(f"{one.part.name} ended with status {one.process.returncode}:\n{tail}", flush=True)
        return False
    with rows.open("ab") as file:
        file.write(path.read_bytes() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    print(f"{one.part.name} done in {time.monotonic() - one.began:.0f} s", flush=True)
    if agents is not None:
        shutil.copyfile(one.folder / "agent.laser", agents / f"{one.part.name}.laser")
    shutil.rmtree(one.folder)
    return True


def keep(files: Sequence[Path]) -> None:
    """Add the rows of these files to the kept ones, each part once."""
    found = {row["name"]: row for row in load()}
    for file in files:
        found |= {row["name"]: row for row in load(file) if row["name"] not in found}
    order = {part.name: place for place, part in enumerate(parts())}
    rows = sorted(found.values(), key=lambda row: order.get(row["name"], len(order)))
    write_bytes(KEPT, b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows))


def status() -> None:
    """How many runs of each variant are done."""
    done = {row["name"] for row in load()}
    asked, have = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for part in parts():
        asked[part.stage, part.variant] += 1
        have[part.stage, part.variant] += part.name in done
    for (stage, variant), count in asked.items():
        print(f"stage {stage}  {variant:14} {have[stage, variant]:3} of {count}")
    print(f"{sum(have.values())} of {sum(asked.values())} runs done")


def main() -> int:
    """The commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status")
    worker = commands.add_parser("work")
    worker.add_argument("--minutes", type=float, required=True)
    worker.add_argument("--workers", type=int, default=6)
    worker.add_argument("--stages", type=int, nargs="+", default=[1, 2], help="only runs of these stages")
    worker.add_argument("--threads", type=int, default=0, help="of each run's emulators; 0: the cores, shared out")
    worker.add_argument("--rows", type=Path, required=True, help="finished runs are added to this file")
    worker.add_argument("--out", type=Path, help="folder of what is under way; a temporary one if left out")
    worker.add_argument("--agents", type=Path, help="keep trained agents in this folder")
    single = commands.add_parser("run")
    single.add_argument("name")
    single.add_argument("--out", type=Path, required=True)
    single.add_argument("--threads", type=int, default=0)
    keeper = commands.add_parser("keep")
    keeper.add_argument("files", type=Path, nargs="+")
    paper = commands.add_parser("paper")
    paper.add_argument("game")
    paper.add_argument("run_dir", type=Path)
    paper.add_argument("--began", type=float, required=True, help="seconds since 1970")
    asked = parser.parse_args()
    if asked.command == "paper":
        with PAPER.open("a") as file:
            file.write(json.dumps(paper_row(asked.game, asked.run_dir, asked.began), allow_nan=False) + "\n")
        return 0
    if asked.command == "work":
        return 1 if work(asked) else 0
    if asked.command == "run":
        run_part(asked.name, asked.out / asked.name, asked.threads)
    elif asked.command == "keep":
        keep(asked.files)
    else:
        status()
    return 0


if __name__ == "__main__":
    sys.exit(main())
