"""How much a shared replay brings, against how far the members of the sweep differ.

    python -m benchmarks.width run --workers 16      # what the file does not have yet
    python -m benchmarks.width report                # width.png, width.csv and the tables of docs/results/sharing/width.md

**Fixed before the first run.** Nine members. Each has a learning rate and an entropy cost of its own, `base · width^u` with u uniform in
[−½, ½], drawn by the seed: the same draws for all widths and conditions. At width 1 members differ in nothing but their random numbers.
The width `paper` is the paper's own sampling: learning rate log-uniform from 5e-6 to 5e-3, entropy cost from 5e-5 to 1e-2. Conditions: no
replay with as many updates, a replay each, one replay with every row trusted, one replay with the trust region of the default bound; one
replay is as large as nine. Agent and tasks are those of `sharing.py`, with its base settings. On Convention members differ in their
discount, too. Seeds 300 to 304.

**Measures.** Returns are scaled so that random play is 0 and the optimum 1. The main measure is the mean over members and the whole run,
the area under the curve; beside it the mean of the members, the best and the worst member at the end (last three of 20 buckets).

**Claims.** Each difference is averaged over the tasks first, so that a seed is one number. The family, decided by Holm's rule at 5 %: for
{trust less separate, naive less separate, trust less naive}, the mean of the differences over the five widths, and their slope against
log10(width).

Added afterwards, for figure 4, and no part of a claim: with the paper's sampling also one replay with every row trusted and ρ̄ = 4.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sharing import AGENT, TASKS, Task, train
from laser_rl.envs.puzzles import task_of

KEPT = Path(__file__).parent / "results" / "width.jsonl"
NAMES = ("catch", "cartpole", "deepsea-12", "keydoor-8", "sparsegrid-8", "convention")
WIDTHS = (1, 2, 10, 100, 1000)
PAPER = {"learning_rate": (5e-6, 5e-3), "entropy_cost": (5e-5, 1e-2)}
CONDITIONS = ("none", "separate 0.1", "naive", "trust 0.1")
FIGURE_4 = "naive rho 4"
SEEDS = (300, 301, 302, 303, 304)
MEMBERS = 9
CARTPOLE = (22.35, 500.0)  # random play (2,000 episodes) and optimum; our own tasks know theirs
CONVENTION = (6 * 1.3 + 3 * 2.5) / 9  # six members do best with mode 0, three with mode 1
Row = dict[str, Any]


def drawn(task: Task, width: int | str, seed: int) -> tuple[dict[str, Any], ...]:
    """The settings of the members.

    >>> [one["learning_rate"] for one in drawn(TASKS["catch"], 1, 300)] == [1e-3] * 9
    True
    >>> wide = [one["learning_rate"] for one in drawn(TASKS["catch"], 1000, 300)]
    >>> 1e-3 / 1000**0.5 <= min(wide) < max(wide) <= 1e-3 * 1000**0.5
    True
    """
    base = {**AGENT, **task.settings}
    places = np.random.default_rng(seed).uniform(-0.5, 0.5, (MEMBERS, len(PAPER)))
    own: list[dict[str, Any]] = [dict(one) for one in task.members or ({},) * MEMBERS]
    for member, row in zip(own, places, strict=True):
        for (name, (low, high)), place in zip(PAPER.items(), row, strict=True):
            middle, factor = ((low * high) ** 0.5, high / low) if width == "paper" else (base[name], float(width))
            member[name] = float(middle * factor**place)
    return tuple(own)


def planned(names: Iterable[str], widths: Iterable[int | str], seeds: Iterable[int]) -> list[tuple[Any, ...]]:
    """Every run as (task, width, condition, seed): all conditions of a seed before the next seed."""
    every = [
        (name, w, one, seed) for seed in seeds for w in widths for name in names for one in (*CONDITIONS, FIGURE_4)
    ]
    return [job for job in every if job[2] != FIGURE_4 or job[1] == "paper"]


def run_one(name: str, width: int | str, condition: str, seed: int) -> Row:
    """Train a sweep; its line of the file has the mean return of each member in each of 20 buckets."""
    task = TASKS[name]
    members = drawn(task, width, seed)
    rows = train(replace(task, members=members), condition, seed)
    returns: list[list[float | None]] = [[] for _ in members]
    for row in rows:
        returns[row["member"]].append(None if row["return"] == "" else row["return"])
    settings = [[float(f"{one[key]:.5g}") for key in PAPER] for one in members]
    return {
        "task": name, "width": width, "condition": condition, "seed": seed, "members": settings, "returns": returns,
        "seconds": rows[-1]["seconds"],
    }  # fmt: skip


def load(path: Path = KEPT) -> list[Row]:
    """The runs that are done."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a run is known by."""
    return row["task"], row["width"], row["condition"], row["seed"]


def scaled(name: str, returns: Sequence[Sequence[float | None]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns [members, buckets] with random play at 0 and the optimum at 1; a bucket without an episode has the value before it."""
    if name == "cartpole":
        low, high = CARTPOLE
    else:
        task = task_of(TASKS[name].environment, TASKS[name].settings.get("options", {}))
        low, high = task.random_return, CONVENTION if name == "convention" else task.optimal_return
    values = np.array([[np.nan if one is None else one for one in row] for row in returns], float)
    values = (values - low) / (high - low)
    values[:, 0] = np.where(np.isnan(values[:, 0]), 0.0, values[:, 0])
    for place in range(1, values.shape[1]):
        values[:, place] = np.where(np.isnan(values[:, place]), values[:, place - 1], values[:, place])
    return values


def run(asked: argparse.Namespace) -> None:
    """Run what the file does not have yet."""
    there = {key(row) for row in load(asked.out)}
    widths = [int(one) if one.isdigit() else one for one in asked.widths]
    jobs = [job for job in planned(asked.tasks, widths, asked.seeds) if job not in there]
    print(f"{len(jobs)} runs to do, {len(there)} done", flush=True)
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool, asked.out.open("a") as file:
        for future in as_completed([pool.submit(run_one, *job) for job in jobs]):
            row = future.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            end = scaled(row["task"], row["returns"])[:, -3:].mean()
            print(*key(row), f"end {end:.3f}, {row['seconds']} s", flush=True)


def main() -> int:
    """The commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--tasks", nargs="+", choices=NAMES, default=list(NAMES))
    running.add_argument("--widths", nargs="+", default=[*map(str, WIDTHS), "paper"])
    running.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--out", type=Path, default=KEPT)
    commands.add_parser("report")
    asked = parser.parse_args()
    if asked.command == "run":
        run(asked)
    else:
        from benchmarks.width_report import publish  # noqa: PLC0415 - a run needs neither matplotlib nor scipy

        publish(load())
    return 0


if __name__ == "__main__":
    sys.exit(main())
