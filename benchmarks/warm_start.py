"""Does an old sweep's replay help a new agent?

    make demo
    python -m benchmarks.warm_start run runs/demo
    python -m benchmarks.warm_start report

A single agent with the demo's settings (DeepSea 10, learning rate 0.001, seeds of its own) for 8,000 steps: with an empty replay, and
with that of the finished sweep under several bounds. Kept is the evaluation at the end, by seed; 0.99 is the optimum. The report is the
table of docs/results/sharing/README.md.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import torch

from laser_rl import recipes
from laser_rl.config import override
from laser_rl.research.verdicts import t_interval
from laser_rl.training.launch import train

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "sharing"
MARK = "<!-- warm start: made by `python -m benchmarks.warm_start report` -->", "<!-- warm start end -->"
SEEDS = range(10, 20)
VARIANTS: dict[str, dict[str, Any]] = {
    "empty replay": {},
    "b = 0.1": {"trust_bound": 0.1},
    "b = 1": {"trust_bound": 1.0},
    "every row trusted": {"trust": "off", "trust_bound": None},
}


def run(run_dir: str) -> None:
    """All variants, ten seeds each."""
    torch.set_num_threads(1)
    base = recipes.demo().configs[1]
    with (RESULTS / "warm-start.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("variant", "seed", "evaluation"))
        for name, settings in VARIANTS.items():
            source = None if name == "empty replay" else run_dir
            for seed in SEEDS:
                own = {"run.seed": seed, "run.steps": 8_000, "replay.start_from": source, **settings}
                evaluation = train(override(base, own)).best().evaluation
                assert evaluation is not None
                writer.writerow((name, seed, f"{evaluation.mean:.4f}"))
                file.flush()
            print(name, flush=True)


def table() -> str:
    """Means with intervals, and how many seeds solved the task."""
    with (RESULTS / "warm-start.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = ["| replay to begin with | evaluation | seeds above 0.9 |", "|---|---|---|"]
    for name in VARIANTS:
        values = [float(row["evaluation"]) for row in rows if row["variant"] == name]
        mean, half = t_interval(values)
        solved = sum(value > 0.9 for value in values)
        lines.append(f"| {name} | {mean:.2f} ± {half:.2f} | {solved} of {len(values)} |")
    return "\n".join(lines)


def main() -> None:
    """The commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("run_dir")
    commands.add_parser("report")
    asked = parser.parse_args()
    if asked.command == "run":
        run(asked.run_dir)
        return
    page = RESULTS / "README.md"
    before, _, rest = page.read_text().partition(MARK[0])
    page.write_text(f"{before}{MARK[0]}\n\n{table()}\n\n{MARK[1]}{rest.partition(MARK[1])[2]}")


if __name__ == "__main__":
    main()
