"""What sharing a replay does: sweeps that share, do not share, or share without a trust region, on tasks of several kinds.

    python benchmarks/sharing.py convention deepsea-12 --seeds 0 1 2 3 4 --jobs 2
    python benchmarks/sharing_report.py

One row for each member and bucket of steps: the mean return of the episodes that ended in it. Rows go to docs/results/sharing/TASK.csv;
runs that are there already are not made again.
"""

import argparse
import csv
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from laser_rl import recipes
from laser_rl.config import override
from laser_rl.metrics.rows import episodes_in
from laser_rl.training.build_group import build_group
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.settings import SweepConfig
from laser_rl.training.trainer import Trainer

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "sharing"
COLUMNS = ("variant", "seed", "member", "group", "step", "return", "acceptance_own", "acceptance_others", "seconds")

# The prototype's agent: 2 online and 14 replayed unrolls of 20 steps, 6,000 steps of replay a member, Adam, mean loss.
AGENT = {
    "batch_unrolls": 16,
    "fraction": 0.875,
    "capacity_steps": 54_000,  # of one store for nine; a ninth each where members have their own
    "unroll_steps": 20,
    "slots": 4,
    "reward_scale": 1.0,
    "entropy_cost": 0.01,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "trust": "implied",
    "trust_bound": 0.03,
    "run.threads": 1,
}
RELATIVE = {"learning_rate": (0.5, 1.0, 2.0), "entropy_cost": (0.5, 1.0, 2.0)}  # the paper's grid around the base


@dataclass(frozen=True)
class Task:
    """What is played, by whom, for how long."""

    environment: str
    steps: int  # of each member
    bucket: int
    settings: dict[str, Any] = field(default_factory=dict)
    members: tuple[dict[str, Any], ...] = ()  # empty: the relative grid
    groups: tuple[str, ...] = ()  # a name for each member
    solved: float | None = None  # a return that counts as solved
    recipe: str = "cartpole"


def discounts() -> tuple[dict[str, Any], ...]:
    """Six members that prefer what comes at once, three that wait."""
    return tuple({"discount": discount} for discount in (0.8,) * 6 + (0.99,) * 3)


CONVENTION = {"options": {"bonus": [0.3, 0, 0], "late_bonus": [0, 1.5, 0]}}
MINATAR = {"slots": 16, "capacity_steps": 450_000}
TASKS = {
    "convention": Task(
        "laser/Convention", 30_000, 2_000, CONVENTION, discounts(), ("majority",) * 6 + ("minority",) * 3
    ),
    "deepsea-10": Task("laser/DeepSea-10", 40_000, 2_000, {"entropy_cost": 0.02}, solved=0.9),
    "deepsea-12": Task("laser/DeepSea-12", 60_000, 3_000, {"entropy_cost": 0.02}, solved=0.9),
    "deepsea-14": Task("laser/DeepSea-14", 80_000, 4_000, {"entropy_cost": 0.02}, solved=0.9),
    "deepsea-16": Task("laser/DeepSea-16", 100_000, 5_000, {"entropy_cost": 0.02}, solved=0.9),
    "keydoor-6": Task("laser/KeyDoor-6", 40_000, 2_000, {}, solved=0.9),
    "keydoor-8": Task("laser/KeyDoor-8", 60_000, 3_000, {}, solved=0.9),
    "sparsegrid-8": Task("laser/SparseGrid-8", 50_000, 2_500, {}, solved=0.9),
    "catch": Task("laser/Catch", 20_000, 1_000, {}, solved=0.9),
    "cartpole": Task("CartPole-v1", 20_000, 1_000, {"reward_scale": 0.1, "entropy_cost": 0.001}, solved=475),
    "breakout": Task("MinAtar/Breakout-v1", 100_000, 5_000, MINATAR, recipe="minatar"),
    "asterix": Task("MinAtar/Asterix-v1", 100_000, 5_000, MINATAR, recipe="minatar"),
}
BOUNDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"share": "none"},
    "separate": {"share": "separate"},
    "separate 0.1": {"share": "separate", "trust_bound": 0.1},
    "pure 0.1": {"share": "separate", "trust_bound": 0.1, "fraction": 1.0, "new_unrolls_per_update": 2},
    "separate off": {"share": "separate", "trust": "off"},
    "naive": {"trust": "off"},
    "naive rho 2": {"trust": "off", "clip_rho": 2.0},
    "naive rho 4": {"trust": "off", "clip_rho": 4.0},
    **{f"trust {bound:g}": {"trust_bound": bound} for bound in BOUNDS},
    **{f"behaviour {bound:g}": {"trust": "behaviour", "trust_bound": bound} for bound in (0.01, 0.03, 0.1, 0.3)},
    **{f"target {share:g}": {"target_acceptance": share} for share in (0.5, 0.7, 0.9)},
    "importance 0.1": {"trust_bound": 0.1, "returns": "importance"},
    "trust 0.03 pbt": {"trust_bound": 0.03, "pbt": True},
    "trust 0.1 pbt": {"trust_bound": 0.1, "pbt": True},
}


def sweep_of(task: Task, variant: str, seed: int, device: str) -> Any:
    """The sweep of one run."""
    own = dict(VARIANTS[variant])
    share, pbt = own.pop("share", "shared"), own.pop("pbt", False)
    settings = {**AGENT, **task.settings, **own, "run.seed": seed, "run.steps": task.steps, "run.device": device}
    if share == "separate":
        settings["capacity_steps"] //= 9
    if share == "none":
        settings["trust"] = "off"
        del settings["trust_bound"]
    if settings["trust"] == "off":
        settings.pop("trust_bound", None)
    base = override(recipes.by_name(task.recipe, task.environment), settings)
    members = task.members or tuple(
        {"learning_rate": settings["learning_rate"] * rate, "entropy_cost": settings["entropy_cost"] * cost}
        for rate in RELATIVE["learning_rate"]
        for cost in RELATIVE["entropy_cost"]
    )
    decisions = PbtConfig(burn_in_steps=task.steps // 10, every_episodes=150, margin=0.05) if pbt else None
    return SweepConfig(base=base, members=members, share=share, pbt=decisions)


def run(name: str, variant: str, seed: int, device: str = "cpu", part: Path | None = None) -> list[dict[str, Any]]:
    """Rows of one sweep; `part` gets them as they come."""
    return train(TASKS[name], variant, seed, device, part)


def train(task: Task, variant: str, seed: int, device: str = "cpu", part: Path | None = None) -> list[dict[str, Any]]:
    """The same of a task that the table does not have."""
    torch.set_num_threads(1)
    rows = list[dict[str, Any]]()
    sweep = sweep_of(task, variant, seed, device)
    crew = build_group(sweep)
    recorder = Recorder()
    training = Trainer(sweep, crew, sinks=[recorder])
    crew.begin()
    begin = time.perf_counter()
    for end in range(task.bucket, task.steps + 1, task.bucket):
        while training.goes_on() and training.steps < end:
            training.turn()
            training.exploit()
        for number, member in enumerate(training.trainings):
            returns = recorder.returns.pop(number, [])
            numbers = recorder.trained.get(number, {})
            others = [
                v for k, v in numbers.items() if k.startswith("acceptance_from_") and k != f"acceptance_from_{number}"
            ]
            rows.append(
                {
                    "variant": variant,
                    "seed": seed,
                    "member": number,
                    "group": task.groups[number] if task.groups else "",
                    "step": end,
                    "return": round(float(np.mean(returns)), 4) if returns else "",
                    "acceptance_own": round(numbers.get(f"acceptance_from_{number}", float("nan")), 4),
                    "acceptance_others": round(float(np.mean(others)), 4) if others else "",
                    "seconds": round(time.perf_counter() - begin, 1),
                }
            )
            assert member.steps >= end
        if part is not None:
            append(part, rows[-len(training.trainings) :])
    crew.close()
    return rows


class Recorder:
    """Returns of finished episodes, and the newest numbers, by member."""

    def __init__(self) -> None:
        self.returns: dict[int, list[float]] = {}
        self.trained: dict[int, dict[str, float]] = {}

    def write(self, kind: str, step: int, update: int, values: dict[str, Any]) -> None:
        """Take a row."""
        if kind == "episode":
            self.returns.setdefault(values["member"], []).extend([values["return"]] * episodes_in(values))
        elif kind == "train":
            self.trained[values["member"]] = values

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is open."""


def done(path: Path) -> set[tuple[str, int]]:
    """Runs that a file has already."""
    if not path.exists():
        return set()
    with path.open() as file:
        return {(row["variant"], int(row["seed"])) for row in csv.DictReader(file)}


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add the rows of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def jobs(tasks: list[str], variants: list[str], seeds: list[int]) -> Iterator[tuple[str, str, int]]:
    """What is still to be done; all variants of a seed before the next seed."""
    for name in tasks:
        there = done(RESULTS / f"{name}.csv")
        yield from ((name, variant, seed) for seed in seeds for variant in variants if (variant, seed) not in there)


def main() -> None:
    """Run what is missing, then say where it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=sorted(TASKS))
    parser.add_argument(
        "--variants", nargs="+", default=["none", "separate", "naive", "trust 0.03"], choices=sorted(VARIANTS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parts", type=Path, help="keep the rows of unfinished runs in this folder")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def part(name: str, variant: str, seed: int) -> Path | None:
        return None if asked.parts is None else asked.parts / f"{name}-{variant.replace(' ', '_')}-{seed}.csv"

    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(run, *job, asked.device, part(*job)): job
            for job in jobs(asked.tasks, asked.variants, asked.seeds)
        }
        for future in as_completed(waiting):
            name, variant, seed = waiting[future]
            rows = future.result()
            append(RESULTS / f"{name}.csv", rows)
            last = [row["return"] for row in rows[-9:] if row["return"] != ""]
            print(
                f"{name} {variant} seed {seed}: {np.mean(last):.3f} best {max(last):.3f} {rows[-1]['seconds']} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
