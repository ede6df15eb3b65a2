"""Tables and pictures of `benchmarks/sharing.py`, made from its files alone.

    python benchmarks/sharing_report.py        # pictures, tables.csv and differences.csv in docs/results/sharing

The unit is the sweep: numbers of its members are averaged first, and intervals are bootstraps over seeds (95 %, of the mean). "whole run"
is the mean return over all of training, which is what sample efficiency looks like; "end" the last three buckets; "solved" the share of
members whose end is at the task's mark, "steps" the mean over members of the steps to the first bucket at the mark (a member that never
gets there counts the whole run); "best" the best member at the end (a maximum over nine: optimistic, as in the paper).
"""

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sharing import BOUNDS, RESULTS, TASKS, VARIANTS

Values = NDArray[np.float64]
MAIN = ("none", "separate", "naive", "trust 0.03", "trust 0.1")
COLOURS = {"none": "0.6", "separate": "C0", "naive": "C3", "trust 0.01": "C8", "trust 0.03": "C2", "trust 0.1": "C1"}
RESAMPLES = 2_000
END = 3  # buckets
LEAST_SEEDS = 3
COMPARED = (("trust 0.1", "separate"), ("trust 0.03", "separate"), ("naive", "separate"), ("trust 0.1", "naive"))
TABLE_COLUMNS = ("task", "members", "variant", "seeds", "measure", "mean", "low", "high")
DIFFERENCE_COLUMNS = ("task", "variant", "less", "seeds", "difference", "low", "high", "verdict")


def read(name: str) -> dict[str, dict[int, Values]]:
    """Returns [members, buckets] by variant and seed; a bucket without an episode has the value of the one before."""
    table: dict[str, dict[int, dict[int, list[tuple[int, float]]]]] = {}
    with (RESULTS / f"{name}.csv").open() as file:
        for row in csv.DictReader(file):
            value = float(row["return"]) if row["return"] else np.nan
            members = table.setdefault(row["variant"], {}).setdefault(int(row["seed"]), {})
            members.setdefault(int(row["member"]), []).append((int(row["step"]), value))
    return {
        variant: {
            seed: np.array([_filled([value for _, value in sorted(points)]) for _, points in sorted(members.items())])
            for seed, members in sorted(seeds.items())
        }
        for variant, seeds in table.items()
    }


def _filled(values: list[float]) -> list[float]:
    return list(itertools.accumulate(values, lambda before, now: before if np.isnan(now) else now))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over seeds, and a bootstrap interval of it."""
    array, random = np.asarray(values, np.float64), np.random.default_rng(0)
    means = array[random.integers(len(array), size=(RESAMPLES, len(array)))].mean(1)
    return float(array.mean()), *np.percentile(means, [2.5, 97.5]).tolist()


def numbers(curves: Values, solved: float | None, bucket: int = 1) -> dict[str, float]:
    """What one sweep achieved."""
    end = np.nanmean(curves[:, -END:], axis=1)
    made = {"whole run": float(np.nanmean(curves)), "end": float(end.mean()), "best": float(end.max())}
    if solved is not None:
        made["solved"] = float((end >= solved - 1e-9).mean())
        there = curves >= solved - 1e-9
        first = np.where(there.any(1), there.argmax(1) + 1, curves.shape[1])
        made["steps"] = float(first.mean() * bucket / 1000)
    return made


def table(name: str, data: dict[str, dict[int, Values]], group: str, members: slice = slice(None)) -> list[list[str]]:
    """A line for each variant and measure: mean over seeds and its interval; `steps` are thousands."""
    task = TASKS[name]
    lines = []
    for variant in [variant for variant in VARIANTS if variant in data]:
        sweeps = [numbers(curves[members], task.solved, task.bucket) for curves in data[variant].values()]
        for measure in sweeps[0]:
            cells = [f"{value:.4g}" for value in interval([sweep[measure] for sweep in sweeps])]
            lines.append([name, group, variant, str(len(sweeps)), measure, *cells])
    return lines


def differences(name: str, data: dict[str, dict[int, Values]], solved: float | None) -> list[list[str]]:
    """Trust region against separate replay and against naive sharing over the whole run, seed by seed: the same seeds in both."""
    lines = []
    for one, other in COMPARED:
        seeds = sorted(data.get(one, {}).keys() & data.get(other, {}).keys())
        if len(seeds) < LEAST_SEEDS:
            continue
        each = [
            numbers(data[one][seed], solved)["whole run"] - numbers(data[other][seed], solved)["whole run"]
            for seed in seeds
        ]
        mean, low, high = interval(each)
        verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
        lines.append([name, one, other, str(len(seeds)), *(f"{value:.3f}" for value in (mean, low, high)), verdict])
    return lines


def picture(name: str, data: dict[str, dict[int, Values]]) -> None:
    """Curves of the main variants: mean over members, band over seeds; and the best member."""
    task, figure = TASKS[name], Figure(figsize=(8.4, 3.4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    shown = [variant for variant in (*MAIN, "trust 0.01") if variant in data]
    for variant in shown:
        curves = np.array(list(data[variant].values()))  # [seeds, members, buckets]
        steps = task.bucket * np.arange(1, curves.shape[2] + 1)
        for axes, over in ((left, np.nanmean(curves, 1)), (right, np.nanmax(curves, 1))):
            axes.plot(steps, over.mean(0), color=COLOURS[variant], label=variant, linewidth=1.8)
            low, high = np.percentile(_resampled(over), [2.5, 97.5], axis=0)
            axes.fill_between(steps, low, high, color=COLOURS[variant], alpha=0.15, linewidth=0)
    for axes, title in ((left, "mean of the members"), (right, "pointwise best member")):
        axes.set(xlabel="steps of a member", title=title)
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("return")
    left.legend(frameon=False, fontsize=8)
    figure.suptitle(name)
    figure.savefig(RESULTS / f"{name}.png")


def _resampled(over: Values) -> Values:
    random = np.random.default_rng(0)
    return over[random.integers(len(over), size=(RESAMPLES, len(over)))].mean(1)


def bounds_picture(every: dict[str, dict[str, dict[int, Values]]]) -> None:
    """Score against the bound, each task scaled to the best of its bounds."""
    figure = Figure(figsize=(6.4, 3.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name, data in every.items():
        found = [(bound, data[f"trust {bound:g}"]) for bound in BOUNDS if f"trust {bound:g}" in data]
        if len(found) < len(BOUNDS):
            continue
        made = [interval([numbers(curves, None)["whole run"] for curves in seeds.values()]) for _, seeds in found]
        top = max(mean for mean, _, _ in made)
        mean, low, high = (np.array(part) / top for part in zip(*made, strict=True))
        axes.errorbar([b for b, _ in found], mean, [mean - low, high - mean], label=name, marker="o", capsize=3)
    axes.set(xscale="log", xlabel="bound b on KL(pi, implied)", ylabel="whole-run return / best bound")
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS / "bounds.png")


def write(path: Path, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """As CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *lines])


def main() -> None:
    """All tasks that have a file."""
    every: dict[str, dict[str, dict[int, Values]]] = {}
    lines: list[list[str]] = []
    compared: list[list[str]] = []
    for name, task in TASKS.items():
        if not (RESULTS / f"{name}.csv").exists():
            continue
        data: Any = read(name)
        every[name] = data
        picture(name, data)
        lines += table(name, data, "all")
        for group in dict.fromkeys(task.groups):
            first, count = task.groups.index(group), task.groups.count(group)
            lines += table(name, data, group, slice(first, first + count))
        compared += differences(name, data, task.solved)
    bounds_picture(every)
    write(RESULTS / "tables.csv", TABLE_COLUMNS, lines)
    write(RESULTS / "differences.csv", DIFFERENCE_COLUMNS, compared)


if __name__ == "__main__":
    main()
