"""Tables of docs/results/README.md, made from the kept curves of `learning.py`.

python -m benchmarks.learning_report
"""

import csv
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.learning import RESULTS, TASKS, reached

SMALL = {
    "catch": ("Catch 10×5", "1, the optimum"),
    "deepsea": ("DeepSea 10", "0.99, the optimum"),
    "pendulum": ("Pendulum-v1", "−200"),
    "breakout": ("MinAtar Breakout", "15"),
}
REPLAY = {"replay-cartpole": "CartPole-v1 to 475", "replay-catch": "Catch to 0.9"}
MARK = "<!-- {}: made by `python -m benchmarks.learning_report` -->", "<!-- {} end -->"
Runs = dict[str, list[list[dict[str, Any]]]]


def read(name: str) -> Runs:
    """The rows of each seed, by variant."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = {"step": int(row["step"]), "seconds": float(row["seconds"]), "mean": float(row["mean"])}
            runs.setdefault((row["variant"], row["seed"]), []).append(numbers)
    return {variant: [rows for (one, _), rows in runs.items() if one == variant] for variant in TASKS[name].variants}


def ends_of(name: str, variant: str = "") -> tuple[list[dict[str, Any]], int]:
    """Where runs reached the target, and how many runs there are."""
    runs = read(name)[variant]
    ends = [reached(rows, TASKS[name]) for rows in runs]
    return [end for end in ends if end is not None], len(runs)


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{shown(statistics.median(values))} ({shown(min(values))} to {shown(max(values))})"


def shown(value: float) -> str:
    """Thousands with commas, millions as such."""
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value:,.0f}"


def small() -> str:
    """A line a task."""
    lines = ["| task | target | seeds | steps: median (range) | seconds: median (range) | files |", "|---" * 6 + "|"]
    for name, (title, target) in SMALL.items():
        ends, count = ends_of(name)
        steps, seconds = spread([end["step"] for end in ends]), spread([end["seconds"] for end in ends])
        files = f"[csv]({name}.csv) [png]({name}.png)"
        lines.append(f"| {title} | {target} | {len(ends)} of {count} | {steps} | {seconds} | {files} |")
    return "\n".join(lines)


def replay() -> str:
    """Steps with and without replay."""
    lines = [f"| steps: median (range) | {' | '.join(REPLAY.values())} |", "|---" * (len(REPLAY) + 1) + "|"]
    for variant in TASKS["replay-cartpole"].variants:
        cells = [spread([end["step"] for end in ends_of(name, variant)[0]]) for name in REPLAY]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Write what stands between the marks."""
    page = RESULTS / "README.md"
    text = page.read_text()
    for name, table in (("small tasks", small()), ("replay", replay())):
        begin, end = (mark.format(name) for mark in MARK)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    page.write_text(text)


if __name__ == "__main__":
    main()
