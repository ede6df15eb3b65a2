"""Does pure replay fail, or does it fail for want of entropy? The paper's cost is on online rows alone, and pure replay has none.

    python -m benchmarks.entropy run --seeds 500      # what the file does not have yet
    python -m benchmarks.entropy report               # docs/results/entropy.csv and the claims of README.md beside it

**Fixed before the first run.** Three members with the base settings of `sharing.py` that differ in their random numbers, a replay of 6,000
steps each, trust bound 0.1, on three of its tasks. Updates are as many everywhere, one for two new unrolls of 20 steps, of 16 unrolls:
2 online and 14 replayed, or 16 replayed. Both with the entropy cost on learnable online rows, as in the paper, and on all learnable rows;
a mean over rows, so that its weight is the same. Seeds 500 to 504.

**Measure.** The mean over members and the whole run, random play 0 and the optimum 1. **Claims**, by Holm's rule at 5 %, averaged over
tasks first and paired by seed: pure replay less 7/8; pure replay, entropy on all rows, less pure replay; the same less 7/8.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.peers_report import difference
from benchmarks.sharing import TASKS, train
from benchmarks.sharing_report import write
from benchmarks.width import CARTPOLE, Row, load
from laser_rl.agent import learner
from laser_rl.agent.loss import Loss, laser_loss
from laser_rl.envs.puzzles import task_of
from laser_rl.research.verdicts import holm, t_interval
from laser_rl.training import vectorized

KEPT = Path(__file__).parent / "results" / "entropy.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "README.md"
NAMES = ("catch", "cartpole", "deepsea-10")
SEEDS = (500, 501, 502, 503, 504)
CONDITIONS = {  # the variant of `sharing.py`, and whether all rows have an entropy cost
    "7/8": ("separate 0.1", False),
    "7/8, entropy on all rows": ("separate 0.1", True),
    "pure replay": ("pure 0.1", False),
    "pure replay, entropy on all rows": ("pure 0.1", True),
}
CLAIMS = (
    ("pure replay", "7/8"),
    ("pure replay, entropy on all rows", "pure replay"),
    ("pure replay, entropy on all rows", "7/8"),
)
MARK = "<!-- entropy: made by `python -m benchmarks.entropy report` -->", "<!-- entropy end -->"
LEVEL = 0.05


def everywhere(family: Any, output: Any, batch: Any, *rest: Any, **options: Any) -> Loss:
    """The loss with every row an online one: of what is learned, the rows that have an entropy cost alone depend on it."""
    return laser_loss(family, output, batch._replace(online=torch.ones_like(batch.online)), *rest, **options)


@contextmanager
def entropy_on_all_rows(wanted: bool) -> Iterator[None]:
    """The package has no setting for it: this experiment is the only use."""
    if not wanted:
        yield
        return
    with mock.patch.object(vectorized, "laser_loss", everywhere), mock.patch.object(learner, "laser_loss", everywhere):
        yield


def run_one(name: str, condition: str, seed: int) -> Row:
    """Train; the line of the file has the mean return of each member in each bucket."""
    variant, everywhere_too = CONDITIONS[condition]
    with entropy_on_all_rows(everywhere_too):
        rows = train(replace(TASKS[name], members=({},) * 3), variant, seed)
    returns: list[list[float | None]] = [[], [], []]
    for row in rows:
        returns[row["member"]].append(None if row["return"] == "" else row["return"])
    return {"task": name, "condition": condition, "seed": seed, "returns": returns, "seconds": rows[-1]["seconds"]}


def score(row: Row) -> float:
    """The mean over members and the whole run; a bucket without an episode has the value before it, the first that of random play."""
    low, high = CARTPOLE if row["task"] == "cartpole" else bounds(row["task"])
    values = []
    for member in row["returns"]:
        before = low
        for value in member:
            before = before if value is None else value
            values.append((before - low) / (high - low))
    return float(np.mean(values))


def bounds(name: str) -> tuple[float, float]:
    """Returns of random play and of the optimum."""
    task = task_of(TASKS[name].environment, {})
    return task.random_return, task.optimal_return


def scores_of(rows: list[Row]) -> dict[tuple[str, str], dict[int, float]]:
    """By (task, condition) and seed; "over tasks" is the mean of the tasks."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        found.setdefault((row["task"], row["condition"]), {})[row["seed"]] = score(row)
    for condition in CONDITIONS:
        by_task = [found.get((name, condition), {}) for name in NAMES]
        seeds = [seed for seed in SEEDS if all(seed in one for one in by_task)]
        found["over tasks", condition] = {seed: float(np.mean([one[seed] for one in by_task])) for seed in seeds}
    return found


def table(found: dict[tuple[str, str], dict[int, float]]) -> list[list[str]]:
    """Means with t intervals."""
    lines = []
    for name in (*NAMES, "over tasks"):
        for condition in CONDITIONS:
            mean, half = t_interval([*found[name, condition].values()])
            cells = (f"{value:.4f}" for value in (mean, mean - half, mean + half))
            lines.append([name, condition, str(len(found[name, condition])), *cells])
    return lines


def markdown(found: dict[tuple[str, str], dict[int, float]]) -> str:
    """The claims."""
    pairs = [difference("", one, other, found["over tasks", one], found["over tasks", other]) for one, other in CLAIMS]
    lines = ["| claim | estimate | p (Holm) | verdict |", "|---|---|---|---|"]
    for pair, p in zip(pairs, holm([pair.p for pair in pairs]), strict=True):
        verdict = "undecided" if p >= LEVEL else "more" if pair.mean > 0 else "less"
        told = f"{pair.mean:+.2f} [{pair.mean - pair.half:+.2f}, {pair.mean + pair.half:+.2f}]".replace("-", "−")
        lines.append(f"| {pair.ours} less {pair.peer} | {told} | {p:.2g} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    """The commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    running.add_argument("--out", type=Path, default=KEPT)
    commands.add_parser("report")
    asked = parser.parse_args()
    if asked.command == "run":
        there = {(row["task"], row["condition"], row["seed"]) for row in load(asked.out)}
        for job in [(name, one, seed) for seed in asked.seeds for name in NAMES for one in CONDITIONS]:
            if job not in there:
                row = run_one(*job)
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(*job, f"{score(row):.3f}, {row['seconds']} s", flush=True)
    else:
        found = scores_of(load(KEPT))
        write(PAGE.with_name("entropy.csv"), ("task", "condition", "seeds", "mean", "low", "high"), table(found))
        before, _, rest = PAGE.read_text().partition(MARK[0])
        PAGE.write_text(f"{before}{MARK[0]}\n\n{markdown(found)}\n\n{MARK[1]}{rest.partition(MARK[1])[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
