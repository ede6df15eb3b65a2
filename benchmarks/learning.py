"""Learning curves: each task, several seeds, one row for each evaluation; CSV and picture go to docs/results.

    python benchmarks/learning.py catch deepsea --seeds 0 1 2 3 4

A run ends when the task's target is reached in two evaluations in a row, or after its steps. Seconds are those of acting and learning,
on one core; evaluations are not counted.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from laser_rl import LASER, recipes
from laser_rl.config import override
from laser_rl.evaluation.statistics import summarise

RESULTS = Path(__file__).parents[1] / "docs" / "results"
COLUMNS = ("task", "variant", "seed", "step", "update", "seconds", "mean", "ci95_low", "ci95_high")


@dataclass(frozen=True)
class Task:
    """What is played, how long, and when it counts as solved."""

    environment: str
    recipe: str
    steps: int
    every: int  # steps between evaluations
    target: float
    episodes: int = 20
    settings: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    patience: int = 2  # evaluations in a row


WITHOUT = {"replay.fraction": 0.0, "loss.trust": "off"}
REPLAY = {
    "87.5 % replay": {},
    "no replay, same batch": WITHOUT,
    "no replay, same number of updates": {**WITHOUT, "loss.batch_unrolls": 1},
}
# The recipe `cartpole` as it was tuned for this measure, the first evaluations that reach a target. A run ends there: a constant rate.
CONSTANT = {
    "replay.fraction": 0.875, "loss.batch_unrolls": 8, "loss.entropy_cost": 0.0, "optimiser.learning_rate": 2e-3,
    "optimiser.schedule": "constant",
}  # fmt: skip
SPARSE = {**CONSTANT, "loss.reward_scale": 1.0, "loss.entropy_cost": 0.01}
TASKS = {
    "catch": Task("laser/Catch", "cartpole", 60_000, 2_000, 1.0, 100, SPARSE),
    "deepsea": Task("laser/DeepSea-10", "cartpole", 200_000, 2_000, 0.99, 100, {**SPARSE, "environment.slots": 16}),
    "breakout": Task("MinAtar/Breakout-v1", "minatar", 3_000_000, 100_000, 15.0, 50),
    "pendulum": Task("Pendulum-v1", "pendulum", 150_000, 5_000, -200.0, 50),
    "replay-cartpole": Task("CartPole-v1", "cartpole", 150_000, 2_000, 475.0, 20, CONSTANT, REPLAY),
    "replay-catch": Task("laser/Catch", "cartpole", 150_000, 2_000, 0.9, 100, SPARSE, REPLAY),
}


def curve(task: Task, variant: str, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of one run."""
    settings = {**task.settings, **task.variants[variant], "run.seed": seed, "run.runtime": "serial"}
    config = override(recipes.by_name(task.recipe, task.environment), settings)
    agent = LASER(task.environment, config=config)
    torch.set_num_threads(1)
    seconds, hits = 0.0, 0
    while agent.steps < task.steps and hits < task.patience:
        begin = time.perf_counter()
        agent.learn(task.every, total=task.steps)
        seconds += time.perf_counter() - begin
        result = agent.evaluate(task.episodes)
        hits = hits + 1 if result.mean >= task.target - 1e-6 else 0
        low, high = result.ci95
        yield {
            "variant": variant, "seed": seed, "step": agent.steps, "update": agent.member.learner.version,
            "seconds": round(seconds, 2), "mean": result.mean, "ci95_low": low, "ci95_high": high,
        }  # fmt: skip
    agent.close()


def reached(rows: list[dict[str, Any]], task: Task) -> dict[str, Any] | None:
    """The row at which a run had reached the target as often in a row as it takes."""
    hits = 0
    for row in rows:
        hits = hits + 1 if row["mean"] >= task.target - 1e-6 else 0
        if hits == task.patience:
            return row
    return None


def summary(name: str, task: Task, runs: dict[tuple[str, int], list[dict[str, Any]]]) -> list[str]:
    """What the runs say, a line for each variant."""
    lines = []
    for variant in task.variants:
        mine = [rows for (one, _), rows in runs.items() if one == variant]
        ends = [reached(rows, task) for rows in mine]
        solved = [end for end in ends if end is not None]
        text = f"{name}{f', {variant}' if variant else ''}: {len(solved)} of {len(mine)} seeds reached {task.target}"
        if solved:
            steps, seconds = [end["step"] for end in solved], [end["seconds"] for end in solved]
            low, high = summarise(steps).ci95
            text += f", after {np.median(steps):,.0f} steps (median; {min(steps):,} to {max(steps):,}; mean {np.mean(steps):,.0f}"
            text += f", 95 % interval {low:,.0f} to {high:,.0f})"
            text += f" and {np.median(seconds):.0f} s ({min(seconds):.0f} to {max(seconds):.0f})"
        lines.append(text)
    return lines


def picture(name: str, task: Task, runs: dict[tuple[str, int], list[dict[str, Any]]]) -> Path:
    """Every run a line, one colour for each variant."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for colour, variant in zip(("C0", "C1", "C2"), task.variants, strict=False):
        label: str | None = variant or "LASER"
        for (one, _), rows in runs.items():
            if one == variant:
                axes.plot(
                    [row["step"] for row in rows], [row["mean"] for row in rows], colour, alpha=0.8, lw=1.2, label=label
                )
                label = None
    axes.axhline(task.target, color="0.6", lw=0.8, ls="--")
    axes.set_xlabel("environment steps")
    axes.set_ylabel(f"mean return of {task.episodes} episodes")
    axes.set_title(f"{task.environment}, {len({seed for _, seed in runs})} seeds")
    axes.legend(frameon=False)
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=110)
    return path


def main() -> None:
    """Run tasks and write what they gave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in arguments.tasks:
        task, runs = TASKS[name], {}
        with (RESULTS / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for seed in arguments.seeds:
                for variant in task.variants:
                    rows = runs[variant, seed] = []
                    for row in curve(task, variant, seed):
                        rows.append(row)
                        writer.writerow({"task": name, **row})
                        file.flush()
                    print(f"{name} {variant} seed {seed}: {rows[-1]}", flush=True)
        print("\n".join(summary(name, task, runs)))
        print(picture(name, task, runs), flush=True)


if __name__ == "__main__":
    main()
