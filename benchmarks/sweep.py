"""What a sweep costs: total updates per second of nine members, and memory with one replay against nine.

    python benchmarks/sweep.py speed
    python benchmarks/sweep.py memory

`speed` does the same work (nine members of a small network, the same steps and updates each) as nine runs one after the other, each a
process of its own with a replay of its own; as one process in turn and side by side; and over two processes. Everything is measured
within one call: compare the ratios. Seconds are those of acting and learning, without imports; `with start` counts from the start of the
first process to the end of the last.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from laser_rl import recipes
from laser_rl.config import override
from laser_rl.metrics.machine import memory_bytes
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from laser_rl.training.trainer import Trainer, run_in_turns

MEMBERS = 9
RATES = [2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 3e-4, 6e-4, 1.2e-3, 2.4e-3]


def base(task: str, steps: int, **more: Any) -> Any:
    """The common settings."""
    settings = {
        "run.steps": steps, "reward_scale": 1.0, "entropy_cost": 0.01, "fraction": 0.875, "batch_unrolls": 8, "run.device": "cpu",
        "run.threads": 1, "checkpoint_every_steps": 0, "evaluate_episodes": 1, "capacity_steps": 90_000,
        "hidden": (int(os.environ["LASER_HIDDEN"]),) * 2, **more,
    }  # fmt: skip
    return override(recipes.cartpole(task), settings)


def one_run(task: str, steps: int, rate: float) -> dict[str, float]:
    """A single agent in this process."""
    trainer = prepare(base(task, steps, learning_rate=rate))
    begin = time.perf_counter()
    run_in_turns(trainer)
    seconds = time.perf_counter() - begin
    trainer.group.close()
    return {"seconds": seconds, "updates": trainer.updates, "steps": trainer.steps}


def one_sweep(task: str, steps: int, stack: str, share: str = "shared") -> dict[str, float]:
    """Nine members in this process."""
    sweep = SweepConfig(base=base(task, steps), grid={"learning_rate": RATES}, stack=stack, share=share)
    crew = build_group(sweep)
    training = Trainer(sweep, crew)
    crew.begin()
    begin = time.perf_counter()
    run_in_turns(training)
    seconds = time.perf_counter() - begin
    crew.close()
    return {"seconds": seconds, "updates": training.updates, "steps": sum(t.steps for t in training.trainings)}


def in_processes(task: str, steps: int, count: int) -> dict[str, float]:
    """Nine members over several processes; seconds from the first step of anybody to the last."""
    sweep = SweepConfig(base=base(task, steps), grid={"learning_rate": RATES}, processes=count)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder), sweep)
        supervisor = ProcessSupervisor(sweep, directory, count)
        look, times = supervisor._look, []  # noqa: SLF001

        def watched() -> bool:
            if supervisor.board.steps.max() > 0 and supervisor.board.steps.min() < steps:
                times.append(time.perf_counter())
            return look()

        supervisor._look = watched  # type: ignore[method-assign]  # noqa: SLF001
        end = supervisor.run()
        directory.close()
    return {
        "seconds": times[-1] - times[0],
        "updates": sum(member.updates for member in end.members),
        "steps": sum(member.steps for member in end.members),
    }


def memory(task: str, share: str) -> dict[str, float]:
    """Resident memory of a sweep, before it is built and when its replay is full."""
    capacity = 600_000
    settings = base(task, 3_000, capacity_steps=capacity)
    before = memory_bytes()
    sweep = SweepConfig(base=settings, grid={"learning_rate": RATES}, share=share)
    crew = build_group(sweep)
    training = Trainer(sweep, crew)
    crew.begin()
    run_in_turns(training)
    after = memory_bytes()
    stores = {id(m.replay): m.replay.nbytes for m in crew.members if m.replay is not None}
    crew.close()
    return {"before": before, "after": after, "stores": len(stores), "store_bytes": sum(stores.values())}


def child(*arguments: str) -> tuple[dict[str, float], float]:
    """One of the above in a process of its own, and the seconds that all of it took."""
    begin = time.perf_counter()
    words = [sys.executable, __file__, "child", *arguments]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - begin


def speed(task: str, steps: int) -> None:
    """All ways of doing the same work."""
    rows: dict[str, tuple[float, float, float]] = {}
    single = [child("run", task, str(steps), str(rate)) for rate in RATES]
    rows["nine runs, one after the other"] = (
        sum(run["updates"] for run, _ in single), sum(run["seconds"] for run, _ in single), sum(wall for _, wall in single)
    )  # fmt: skip
    for name, words in {
        "one process, in turn": ("sweep", task, str(steps), "off"),
        "one process, side by side": ("sweep", task, str(steps), "on"),
        "two processes": ("processes", task, str(steps), "2"),
    }.items():
        run, wall = child(*words)
        rows[name] = (run["updates"], run["seconds"], wall)
    first = rows["nine runs, one after the other"]
    print(f"{task}, {MEMBERS} members, {steps:,} steps each")
    print("| way | updates | updates/s | ratio | with start: seconds | ratio |\n|---|---|---|---|---|---|")
    for name, (updates, seconds, wall) in rows.items():
        ratio = updates / seconds / (first[0] / first[1])
        whole = updates / wall / (first[0] / first[2])
        print(f"| {name} | {updates:,.0f} | {updates / seconds:,.0f} | {ratio:.2f} | {wall:.1f} | {whole:.2f} |")


def main() -> None:
    """The chosen measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "memory", "child"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--task", default="laser/DeepSea-10")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--hidden", type=int, default=64, help="units of each of two layers")
    asked = parser.parse_args()
    os.environ.setdefault("LASER_HIDDEN", str(asked.hidden))  # for the children
    if asked.what == "child":
        kind, task, *rest = asked.rest
        made = {
            "run": lambda: one_run(task, int(rest[0]), float(rest[1])),
            "sweep": lambda: one_sweep(task, int(rest[0]), rest[1]),
            "processes": lambda: in_processes(task, int(rest[0]), int(rest[1])),
            "memory": lambda: memory(task, rest[0]),
        }[kind]()
        print(json.dumps(made))
    elif asked.what == "speed":
        speed(asked.task, asked.steps)
    else:
        for share in ("shared", "separate"):
            made, _ = child("memory", asked.task, share)
            grown = (made["after"] - made["before"]) / 1e6
            print(
                f"{share}: {made['stores']:.0f} stores of {made['store_bytes'] / 1e6:,.0f} MB together, resident +{grown:,.0f} MB"
            )


if __name__ == "__main__":
    main()
