"""What the parts of a recurrent, multi-task agent do: memory, PopArt, PixelControl, where a replayed state comes from, priorities.

    python benchmarks/recurrent.py tmaze --seeds 5 6 7 8 9 --jobs 2
    python benchmarks/recurrent.py suite --seeds 1 2 3 --jobs 12 --device cuda --minutes 9
    python benchmarks/recurrent.py priorities --seeds 1 2 --jobs 12 --device cuda --minutes 9
    python benchmarks/recurrent.py doom-basic --seeds 1 2 3 4 5 --jobs 1
    python benchmarks/recurrent.py doom --seeds 1 2 --jobs 4 --device cuda      # the paper's table 1, on suite:doom
    python benchmarks/recurrent.py doom-parts --seeds 1 --jobs 2 --device cuda
    python -m benchmarks.recurrent_report

Each run writes a row for every `every` steps into docs/results/recurrent/EXPERIMENT.csv: the score, and the mean return of each task over
its last 50 episodes; of a variant with several members a row for each of them. Runs that are there already are not made again. A run that
reaches `--minutes` stops there and says so.
"""

import argparse
import csv
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from laser_rl import LASER, Sweep
from laser_rl.envs.scores import SUITES
from laser_rl.metrics.log import read as read_log
from laser_rl.training.member_training import Progress

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "recurrent"
Settings = Mapping[str, Any]

# Where the state of a replayed unroll comes from.
STATES: dict[str, Settings] = {
    "refresh": {"replay.state": "refresh"},
    "stored": {"replay.state": "stored"},
    "burn-in": {"replay.state": "zero", "replay.burn_in_steps": "half"},
    "zero": {"replay.state": "zero"},
}
NONE: Settings = {
    "replay.fraction": 0.0,
    "loss.trust": "off",
    "loss.trust_bound": None,
}  # and only the online part of the batch
WITHOUT_STATES: Settings = {"replay.state": "stored"}
PRIORITISED: Settings = {"replay.sampling": "prioritised"}


@dataclass(frozen=True)
class Experiment:
    """What is played, by which variants, for how long."""

    environment: str
    recipe: str
    steps: int
    every: int
    settings: Settings
    variants: Mapping[str, Settings]


# Mazes up to four times as long as an unroll; shorter ones, because gradients reach no further back than an unroll does. Only the right
# turn is announced: to a memory that starts from nothing in the middle of an episode every episode looks like a left one.
MAZES = "laser/TMaze-2,laser/TMaze-5,laser/TMaze-15,laser/TMaze-40"
SMALL_MEMORY: Settings = {
    "environment.options": {"one_cue": True},
    "environment.slots": 16,
    "network.memory": "lstm",
    "network.memory_size": 64,
    "network.memory_span": 100,
    "network.hidden": (32,),
    "replay.fraction": 0.875,
    "replay.capacity_steps": 100_000,
    "loss.batch_unrolls": 64,
    "loss.unroll_steps": 10,
    "loss.trust_bound": 0.1,
    "loss.entropy_cost": 0.003,
    "loss.reward_scale": 1.0,
    "optimiser.learning_rate": 1e-3,
    "optimiser.schedule": "constant",
    "optimiser.clip_gradient_norm": 0.5,
}
DOOM_STEPS = 400_000  # of each agent or member
# Suites of ViZDoom on a card; two slots a task. A quarter of the paper's batches, 4 online and 28 replayed unrolls, or 8 without replay:
# as many new steps an update with replay, and four times as many updates for the few steps that the card's time allows.
LARGE: Settings = {
    "loss.batch_unrolls": 32,
    "replay.fraction": 0.875,
    "environment.slots": 2 * len(SUITES["doom"]),
    "network.torso": "impala",
    "network.memory_size": 256,
    "network.precision": "bf16",
    "replay.capacity_steps": 2_000_000,
    "replay.budget_gb": 12.0,
    "run.runtime": "local",
    "run.steps": DOOM_STEPS,
}
# For two cores: pictures of a quarter of the pixels, a third of the decisions, an update for every two new unrolls of ten steps.
TINY: Settings = {
    "environment.options": {"width": 48, "height": 36, "action_repeat": 12},
    "environment.slots": 16,
    "environment.workers": 1,
    "loss.batch_unrolls": 16,
    "loss.pixel_control_cost": 0.0,
    "loss.unroll_steps": 10,
    "network.hidden": (64,),
    "network.memory_size": 64,
    "replay.fraction": 0.875,
}
RATES: Settings = {"members": [{"learning_rate": rate} for rate in (2.5e-4, 5e-4, 1e-3)], "processes": 3}
IMPALA: Settings = {"loss.batch_unrolls": 8}
EXPERIMENTS = {
    "doom-basic": Experiment("doom/basic", "laser-multitask", 40_000, 1_000, TINY, {"laser-multitask": {}}),
    "doom": Experiment(
        "suite:doom",
        "laser-multitask",
        DOOM_STEPS,
        20_000,
        LARGE,
        {
            "PopArt-IMPALA": {"recipe": "popart-impala", **IMPALA},
            "PopArt-IMPALA + PixelControl": {"recipe": "popart-impala-pixelcontrol", **IMPALA},
            "LASER": {},
            "LASER shared": {"sweep": {**RATES, "share_replay": True}},
            "LASER shared + PBT": {"sweep": {**RATES, "share_replay": True, "pbt": True}},
        },
    ),
    "doom-parts": Experiment(
        "suite:doom",
        "laser-multitask",
        DOOM_STEPS,
        20_000,
        LARGE,
        {
            "no memory": {"network.memory": "none"},
            "no PopArt": {"loss.popart": False},
            "no PixelControl": {"loss.pixel_control_cost": 0.0},
            "stored": STATES["stored"],
            "zero": STATES["zero"],
        },
    ),
    "tmaze": Experiment(
        MAZES,
        "cartpole",
        150_000,
        4_000,
        SMALL_MEMORY,
        {**STATES, "no replay": {**NONE, "loss.batch_unrolls": 8}},
    ),
    "suite": Experiment(
        "suite:grid",
        "laser-multitask",
        1_700_000,
        50_000,
        {},
        {
            "all three": {},
            "no memory": {"network.memory": "none"},
            "no PopArt": {"loss.popart": False},
            "no PixelControl": {"loss.pixel_control_cost": 0.0},
        },
    ),
    "priorities": Experiment(
        "suite:grid",
        "laser-multitask",
        1_700_000,
        50_000,
        {"replay.fraction": 0.5},  # the appendix: half of each batch
        {
            "no replay": {**NONE, "loss.batch_unrolls": 32},
            "uniform, refreshed": {},
            "uniform, stored": WITHOUT_STATES,
            "prioritised β=1, stored": {**WITHOUT_STATES, **PRIORITISED},
            "prioritised β=0.5, stored": {**WITHOUT_STATES, **PRIORITISED, "replay.importance_exponent": 0.5},
        },
    ),
}


class Watch:
    """Makes a row of every so many steps; ends a run whose time is up."""

    def __init__(self, every: int, minutes: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self._every, self._begin, self._seconds = every, time.monotonic(), 60 * minutes
        self._next: dict[int | None, int] = {}

    def __call__(self, progress: Progress) -> bool | None:
        """A callback of `learn`."""
        now = time.monotonic() - self._begin
        if progress.kind == "train":
            self.note(progress.step, progress.update, progress.values, now, progress.member)
        return False if now > self._seconds else None

    def note(
        self, step: int, update: int, values: Mapping[str, Any], seconds: float, member: int | None = None
    ) -> None:
        """Keep a row of metrics, if so many steps have been made since the last one that was kept."""
        if step < self._next.get(member, self._every):
            return
        self._next[member] = (step // self._every + 1) * self._every
        kept = {name: value for name, value in values.items() if name.startswith("return_of_")}
        numbers = {"score": values.get("return_mean"), "acceptance": values.get("acceptance")}
        for name in ("score_mean_capped", "tasks_above_random", "entropy", "value_loss"):
            numbers[name] = values.get(name)
        place = {} if member is None else {"member": member}
        self.rows.append({**place, "step": step, "update": update, "seconds": round(seconds, 1), **numbers, **kept})


def one_run(
    name: str, variant: str, seed: int, device: str, end: float, agents: Path | None
) -> tuple[str, int, list[dict[str, Any]]]:
    """One agent, or the members of a sweep, from the beginning; no longer than to the time `end`."""
    torch.set_num_threads(1)
    minutes = max(0.0, end - time.time()) / 60
    experiment = EXPERIMENTS[name]
    settings = {**experiment.settings, **experiment.variants[variant]}
    if settings.get("replay.burn_in_steps") == "half":
        settings["replay.burn_in_steps"] = settings["loss.unroll_steps"] // 2
    settings |= {"run.seed": seed, "run.device": device, "run.threads": 1}
    recipe, sweep = settings.pop("recipe", experiment.recipe), settings.pop("sweep", None)
    if recipe != "laser-multitask":  # those have no replay
        settings = {key: value for key, value in settings.items() if not key.startswith("replay.")}
    watch = Watch(experiment.every, minutes)
    if sweep is not None:
        began = time.time()
        members = Sweep(experiment.environment, recipe=recipe, **sweep, **settings, budget_minutes=min(minutes, 1e6))
        result = members.run(experiment.steps)  # its folder lives as long as it does
        for row in read_log(result.run_dir, ("train",)):
            watch.note(row["step"], row["update"], row, row["time"] - began, row["member"])
        return variant, seed, watch.rows
    with LASER(experiment.environment, recipe=recipe, **settings) as agent:
        agent.learn(experiment.steps, callback=watch)
        if agents is not None:
            agent.save(agents / f"{name}-{variant}-{seed}.safetensors")
    return variant, seed, watch.rows


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--agents", type=Path)
    asked = parser.parse_args()
    end = time.time() + 60 * asked.minutes
    path = asked.out / f"{asked.experiment}.csv"
    there = read(path)
    done = {(row["variant"], int(row["seed"])) for row in there}
    variants = asked.variants or list(EXPERIMENTS[asked.experiment].variants)
    jobs = [(variant, seed) for seed in asked.seeds for variant in variants if (variant, seed) not in done]
    context = get_context("spawn")
    with ProcessPoolExecutor(min(asked.jobs, max(1, len(jobs))), mp_context=context) as pool:
        waiting = [pool.submit(one_run, asked.experiment, *job, asked.device, end, asked.agents) for job in jobs]
        for ended in as_completed(waiting):
            variant, seed, rows = ended.result()
            there += [{"variant": variant, "seed": seed, **row} for row in rows]
            write(path, there)
            last = rows[-1] if rows else {"step": 0, "score": None, "seconds": 0}
            print(
                f"{variant}, seed {seed}: score {last['score']} at step {last['step']:,}, {last['seconds']} s",
                flush=True,
            )


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """All rows, with every column that any of them has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({name: _short(value) for name, value in row.items()} for row in rows)


def _short(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
