"""What a cluster of one node costs: whole sweeps, emulators, replay and learners and all, over processes of this machine and on Ray.

The same sweep takes turns in both, so compare within one round; the table has medians and the median of the rounds' ratios. Steps and
updates are those of all members between their first and last rows: starting is not in it. No evaluations and no checkpoints.
Run: python -m benchmarks.cluster_sweep [--rounds 3] [--smoke] [--csv FILE]
"""

import argparse
import csv
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laser_rl import Sweep
from laser_rl.metrics.log import read

QUIET = {"evaluate_every_steps": 0, "evaluate_episodes": 1, "checkpoint_every_steps": 0, "log_every_updates": 20}
TASKS: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "CartPole, 3 members": ("CartPole-v1", 20_000, {"grid": {"learning_rate": [1e-3, 2e-3, 3e-3]}, "slots": 16}),
    "MinAtar Breakout, 3 members": ("MinAtar/Breakout-v1", 10_000, {"grid": {"learning_rate": [1e-3, 2e-3, 3e-3]}}),
    "MinAtar Breakout, 1 member": ("MinAtar/Breakout-v1", 15_000, {"grid": {"learning_rate": [1e-3]}}),
}


def rates(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Steps and updates a second of all members together."""
    found = [0.0, 0.0]
    for member in {row["member"] for row in rows if row["kind"] == "train"}:
        own = [row for row in rows if row["kind"] == "train" and row["member"] == member]
        seconds = own[-1]["time"] - own[0]["time"]
        for place, name in enumerate(("step", "update")):
            found[place] += (own[-1][name] - own[0][name]) / seconds
    return found[0], found[1]


def measured(env: str, steps: int, settings: Mapping[str, Any], **where: Any) -> tuple[float, float]:
    """One sweep, from its rows."""
    with tempfile.TemporaryDirectory() as folder:
        Sweep(env, run_dir=Path(folder) / "run", seed=1, **QUIET, **settings, **where).run(steps)
        return rates(read(Path(folder) / "run"))


def main() -> None:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="one short round of the first task")
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    tasks = dict(list(TASKS.items())[:1]) if asked.smoke else TASKS
    print(
        "| sweep | local: steps/s | updates/s | cluster: steps/s | updates/s | cluster / local |\n|---|---|---|---|---|---|"
    )
    lines = []
    for name, (env, whole, settings) in tasks.items():
        members, steps = len(settings["grid"]["learning_rate"]), 2_000 if asked.smoke else whole
        local = {"processes": 0} if members > 1 else {"processes": 1, "runtime": "local"}
        rounds = [
            (measured(env, steps, settings, **local), measured(env, steps, settings, cluster="local"))
            for _ in range(1 if asked.smoke else asked.rounds)
        ]
        here, there = ([statistics.median(one[side][what] for one in rounds) for what in (0, 1)] for side in (0, 1))
        ratio = statistics.median(there_now[0] / here_now[0] for here_now, there_now in rounds)
        print(
            f"| {name} | {here[0]:,.0f} | {here[1]:,.0f} | {there[0]:,.0f} | {there[1]:,.0f} | {ratio:.2f} |",
            flush=True,
        )
        for at, (here_now, there_now) in enumerate(rounds):
            lines.append([name, at, *(round(value, 2) for value in (*here_now, *there_now))])
    if asked.csv:
        with asked.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["sweep", "round", "local_steps_s", "local_updates_s", "cluster_steps_s", "cluster_updates_s"]
            )
            writer.writerows(lines)


if __name__ == "__main__":
    main()
