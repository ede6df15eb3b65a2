"""What a cluster of one node costs: emulators, replay and learners and all, in this process or over processes, and on Ray.

One member on Ray stands beside one agent in the runtime `local`, a thread each for its actor and its learner, as many as on Ray. Three
members stand beside `laser sweep` without a cluster. Both take turns, and who is first as well, so compare within one round; the table has
medians and the median of the rounds' ratios, of updates. Rates are those of the time in which every member is between 15 and 85 % of its
updates: before that other processes are still being started, and in the end `local` has stopped acting and learns from what is left, faster
than before. How long each takes to start stands beside it. No evaluations and no checkpoints.
Run: python -m benchmarks.cluster_sweep [--rounds 4] [--only Pong] [--smoke] [--csv FILE]
"""

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laser_rl import LASER, Sweep
from laser_rl.metrics.log import read

QUIET = {"evaluate_every_steps": 0, "evaluate_episodes": 1, "checkpoint_every_steps": 0, "log_every_updates": 20}
PONG = {"width": 1, "environment.atari.threads": 1, "slots": 16, "capacity_steps": 50_000, "log_every_updates": 4}
RATES = (1e-3, 2e-3, 3e-3)
MIDDLE = (0.15, 0.85)


class Task(NamedTuple):
    """What is trained, by one member or by three."""

    env: str
    steps: int
    members: int
    settings: Mapping[str, Any]
    local: Mapping[str, Any] = {}  # how three members run here


TASKS: Mapping[str, Task] = {
    "CartPole, 1 member": Task("CartPole-v1", 60_000, 1, {"slots": 16}),
    # As often as RLlib's IMPALA learns (`peers_rllib.py`): what runners can bring.
    "CartPole, an update in 640 steps, 1 member": Task(
        "CartPole-v1",
        150_000,
        1,
        {"slots": 16, "batch_unrolls": 32, "replay.fraction": 0.5, "new_unrolls_per_update": 32},
    ),
    "MinAtar Breakout, 1 member": Task("MinAtar/Breakout-v1", 60_000, 1, {}),
    # IMPALA's network at ×1 in bf16. Batches of 8 unrolls, 7 of them replayed: the learner is the limit.
    "Pong, 87.5 % replay, 1 member": Task("ALE/Pong-v5", 1_600, 1, {**PONG, "batch_unrolls": 8, "replay.fraction": 0.875}),
    # As much acting as learning: together they need both cores, and whatever else needs one takes it from them.
    "Pong, 50 % replay, 1 member": Task(
        "ALE/Pong-v5", 20_000, 1, {**PONG, "batch_unrolls": 4, "replay.fraction": 0.5, "new_unrolls_per_update": 8}
    ),
    "MinAtar Breakout, 3 members": Task("MinAtar/Breakout-v1", 20_000, 3, {}, {"processes": 0}),
    "CartPole, 3 members; here two processes": Task(
        "CartPole-v1", 60_000, 3, {"slots": 16}, {"processes": 2, "stack": "off"}
    ),
    "CartPole, 3 members; here side by side": Task("CartPole-v1", 60_000, 3, {"slots": 16}, {"processes": 0}),
}  # fmt: skip


class Pace(NamedTuple):
    """Of all members together, a second; and how long it took until all of them had learned."""

    steps: float
    updates: float
    start_s: float


def rates(rows: list[dict[str, Any]], begun: float) -> Pace:
    """While every member is between 15 and 85 % of its updates; a run of one agent has no members.

    >>> rows = [{"kind": "train", "time": 50.0 + t, "step": 100 * t, "update": 5 * t} for t in range(1, 21)]
    >>> rates(rows, begun=48.0)
    Pace(steps=100.0, updates=5.0, start_s=3.0)
    """
    members = [
        np.array([[row[name] for name in ("time", "step", "update")] for row in own]).T
        for own in _by_member([row for row in rows if row["kind"] == "train"])
    ]
    first, last = (
        [float(np.interp(share * update[-1], update, time)) for time, _, update in members] for share in MIDDLE
    )
    begin, end = max(first), min(last)
    if begin >= end:
        raise ValueError("members were never at work at the same time; ask for more steps")
    made = [[np.interp(end, time, of) - np.interp(begin, time, of) for of in both] for time, *both in members]
    steps, updates = (float(total) / (end - begin) for total in np.sum(made, 0))
    return Pace(steps, updates, max(float(time[0]) for time, *_ in members) - begun)


def _by_member(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    members = {row.get("member") for row in rows}
    return [[row for row in rows if row.get("member") == member] for member in members]


def measured(run: Callable[[Path], object]) -> Pace:
    """One run, from its rows."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()
        run(Path(folder) / "run")
        return rates(read(Path(folder) / "run"), begun)


def both(task: Task, steps: int, turn: int) -> tuple[Pace, Pace]:
    """Here, and on a cluster of this machine; which comes first takes turns."""
    settings = {"seed": 1, **QUIET, **task.settings}
    grid = {"learning_rate": list(RATES[: task.members])}

    def here(folder: Path) -> object:
        if task.members == 1:
            alone = {"runtime": "local", "run.threads": 1, "learning_rate": RATES[0]}
            return LASER(task.env, run_dir=folder, **settings, **alone).learn(steps)
        return Sweep(task.env, run_dir=folder, grid=grid, **settings, **task.local).run(steps)

    def there(folder: Path) -> object:
        return Sweep(task.env, run_dir=folder, grid=grid, cluster="local", **settings).run(steps)

    if turn % 2:
        far = measured(there)
        return measured(here), far
    return measured(here), measured(there)


def line_of(name: str, rounds: list[tuple[Pace, Pace]]) -> str:
    """Medians, and the median of the ratios with the least and the greatest of them.

    >>> line_of("Catch", [(Pace(100.0, 10.0, 1.0), Pace(90.0, 9.0, 8.0))])
    '| Catch | 100 | 10.0 | 1 | 90 | 9.0 | 8 | 0.90 (0.90 to 0.90) |'
    """
    here, there = (
        [statistics.median(one[side][what] for one in rounds) for what in range(len(Pace._fields))] for side in (0, 1)
    )
    ratios = sorted(there_now.updates / here_now.updates for here_now, there_now in rounds)
    both = " | ".join(f"{steps:,.0f} | {updates:,.1f} | {start_s:.0f}" for steps, updates, start_s in (here, there))
    return f"| {name} | {both} | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"


def main() -> None:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", default="", help="tasks whose name begins so")
    parser.add_argument("--smoke", action="store_true", help="one short round of the first task and of the last")
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    tasks = {name: task for name, task in TASKS.items() if name.startswith(asked.only)}
    if asked.smoke:
        tasks = {name: tasks[name]._replace(steps=20_000) for name in (next(iter(tasks)), next(reversed(tasks)))}
    print(
        "| what | here: steps/s | updates/s | start, s | cluster: steps/s | updates/s | start, s | cluster / here |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    lines = []
    for name, task in tasks.items():
        rounds = [both(task, task.steps, turn) for turn in range(1 if asked.smoke else asked.rounds)]
        print(line_of(name, rounds), flush=True)
        for at, paces in enumerate(rounds):
            lines.append([name, at, *(round(value, 2) for pace in paces for value in pace)])
    if asked.csv:
        with asked.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            fields = [f"{side}_{name}" for side in ("here", "cluster") for name in ("steps_s", "updates_s", "start_s")]
            writer.writerow(["what", "round", *fields])
            writer.writerows(lines)


if __name__ == "__main__":
    main()
