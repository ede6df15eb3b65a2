"""Tables and pictures of `benchmarks/sharing.py`, made from its files alone.

    python -m benchmarks.sharing_report        # pictures, tables.csv and differences.csv in docs/results/sharing, and the tables of pages

The unit is the sweep: numbers of its members are averaged first, and intervals are Student's t over seeds (95 %, of the mean): with five
seeds a percentile bootstrap is too narrow. Differences are paired by seed, and Holm's rule decides over each family of them. "whole run"
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

from benchmarks.peers_report import Difference, difference
from benchmarks.sharing import BOUNDS, RESULTS, TASKS, VARIANTS
from laser_rl.research.verdicts import holm, t_interval

Values = NDArray[np.float64]
MAIN = ("none", "separate", "naive", "trust 0.03", "trust 0.1")
COLOURS = {"none": "0.6", "separate": "C0", "naive": "C3", "trust 0.01": "C8", "trust 0.03": "C2", "trust 0.1": "C1"}
END = 3  # buckets
LEAST_SEEDS = 3
COMPARED = (("trust 0.1", "separate"), ("trust 0.03", "separate"), ("naive", "separate"), ("trust 0.1", "naive"))
LATER = (("importance 0.1", "trust 0.1"),)  # a question of its own: a family of its own
TABLE_COLUMNS = ("task", "members", "variant", "seeds", "measure", "mean", "low", "high")
DIFFERENCE_COLUMNS = ("task", "variant", "less", "seeds", "difference", "low", "high", "p_holm", "verdict")
LEVEL = 0.05
NAMES = {"breakout": "MinAtar Breakout", "asterix": "MinAtar Asterix", "cartpole": "CartPole"}
MARK = "<!-- sharing: made by `python -m benchmarks.sharing_report` -->", "<!-- sharing end -->"
# Pages with a table of the whole run: the heading of each variant, and the tasks.
PAGES = {
    RESULTS / "README.md": (
        {
            "separate": "a replay each", "naive": "one replay, every row trusted",
            "trust 0.03": "one replay, b = 0.03", "trust 0.1": "b = 0.1",
        },
        ("deepsea-12", "deepsea-14", "keydoor-8", "sparsegrid-8", "cartpole", "asterix", "breakout", "convention"),
    ),
    RESULTS.parents[2] / "README.md": (
        {
            "separate": "a replay each",
            "naive": "one replay, every row trusted",
            "trust 0.1": "one replay, trust region (b = 0.1)",
        },
        ("deepsea-12", "keydoor-8", "cartpole", "breakout", "convention"),
    ),
}  # fmt: skip


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
    """Mean over seeds, and its t interval."""
    mean, half = t_interval(values)
    return mean, mean - half, mean + half


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


def differences(every: dict[str, dict[str, dict[int, Values]]]) -> list[list[str]]:
    """Over the whole run, seed by seed, and over the tasks: each task's difference as a share of what the other variant has there.

    A family is one comparison on all tasks; the comparisons over tasks are a family, too, those of `LATER` another one.
    """
    return [line for compared in (COMPARED, LATER) for line in compare(every, compared)]


def compare(every: dict[str, dict[str, dict[int, Values]]], compared: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The lines of some comparisons."""
    scores = {
        name: {
            variant: {seed: numbers(curves, None)["whole run"] for seed, curves in seeds.items()}
            for variant, seeds in data.items()
        }
        for name, data in every.items()
    }
    families: list[list[Difference]] = []
    overall: list[Difference] = []
    for one, other in compared:
        pairs = {name: (by.get(one, {}), by.get(other, {})) for name, by in scores.items()}
        pairs = {name: pair for name, pair in pairs.items() if len(pair[0].keys() & pair[1].keys()) >= LEAST_SEEDS}
        families.append([difference(name, one, other, *pair) for name, pair in pairs.items()])
        shares = {
            place: found.mean / float(np.mean(list(pairs[found.task][1].values())))
            for place, found in enumerate(families[-1])
        }
        overall.append(difference("over tasks", one, other, shares, dict.fromkeys(shares, 0.0)))
    lines = []
    for family in (*families, overall):
        for pair, p in zip(family, holm([pair.p for pair in family]), strict=True):
            verdict = "undecided" if p >= LEVEL else "better" if pair.mean > 0 else "worse"
            cells = [f"{value:.3f}" for value in (pair.mean, pair.mean - pair.half, pair.mean + pair.half)]
            lines.append([pair.task, pair.ours, pair.peer, str(pair.seeds), *cells, f"{p:.2g}", verdict])
    return lines


def page_table(lines: Sequence[Sequence[str]], headings: dict[str, str], tasks: Sequence[str]) -> str:
    """The whole run in Markdown, a line a task."""
    found = {
        (name, variant): _cell([float(one) for one in cells])
        for name, members, variant, _, measure, *cells in lines
        if (members, measure) == ("all", "whole run")
    }
    shown = [f"| task | {' | '.join(headings.values())} |", "|---" * (len(headings) + 1) + "|"]
    for name in tasks:
        cells = " | ".join(found.get((name, variant), "") for variant in headings)
        shown.append(f"| {NAMES.get(name, _title(name))} | {cells} |")
    return "\n".join(shown)


def _cell(values: Sequence[float]) -> str:
    digits = 0 if abs(values[0]) >= 100 else 2
    mean, low, high = (f"{value:.{digits}f}".replace("-", "−") for value in values)
    return f"{mean} [{low}, {high}]"


def _title(name: str) -> str:
    words = {"deepsea": "DeepSea", "keydoor": "KeyDoor", "sparsegrid": "SparseGrid", "convention": "Convention"}
    first, _, size = name.partition("-")
    return f"{words.get(first, first)} {size}".strip()


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
            low, high = np.array([interval(at) for at in over.T.tolist()]).T[1:]
            axes.fill_between(steps, low, high, color=COLOURS[variant], alpha=0.15, linewidth=0)
    for axes, title in ((left, "mean of the members"), (right, "pointwise best member")):
        axes.set(xlabel="steps of a member", title=title)
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("return")
    left.legend(frameon=False, fontsize=8)
    figure.suptitle(name)
    figure.savefig(RESULTS / f"{name}.png")


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
    bounds_picture(every)
    write(RESULTS / "tables.csv", TABLE_COLUMNS, lines)
    write(RESULTS / "differences.csv", DIFFERENCE_COLUMNS, differences(every))
    for page, (headings, tasks) in PAGES.items():
        before, _, rest = page.read_text().partition(MARK[0])
        after = rest.partition(MARK[1])[2]
        page.write_text(f"{before}{MARK[0]}\n\n{page_table(lines, headings, tasks)}\n\n{MARK[1]}{after}")


if __name__ == "__main__":
    main()
