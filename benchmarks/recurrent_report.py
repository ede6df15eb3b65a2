"""Pictures and tables of `recurrent.py`, from its CSV files.

python -m benchmarks.recurrent_report        # pictures and tables.csv in docs/results/recurrent, and the tables of its page
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from numpy.typing import NDArray

from benchmarks.recurrent import EXPERIMENTS, RESULTS, read
from laser_rl.envs.scores import reference_of

mpl.use("Agg")
from matplotlib import pyplot as plt

COLOURS = ("#1f77b4", "#d95f02", "#2a9d5c", "#9467bd", "#8c564b", "#555555")
RETURN_OF = "return_of_"
LONGEST, SOLVED = f"{RETURN_OF}laser/TMaze-40", 0.95
MARK = "<!-- {}: made by `python -m benchmarks.recurrent_report` -->", "<!-- {} end -->"
COLUMNS = ("experiment", "steps", "variant", "seeds", "measure or task", "mean", "low", "high")
Rows = Sequence[Mapping[str, Any]]
Curves = NDArray[np.float64]


def numbers(rows: Rows, name: str) -> Curves:
    """A column; NaN where there is nothing."""
    return np.array([float(row[name]) if row.get(name) else np.nan for row in rows])


def curves(rows: Rows, variant: str, name: str, grid: Curves) -> Curves:
    """[seeds, grid]: a column over steps, as far as each run went."""
    seeds = sorted({row["seed"] for row in rows if row["variant"] == variant})
    found = []
    for seed in seeds:
        own = [row for row in rows if row["variant"] == variant and row["seed"] == seed]
        steps, values = numbers(own, "step"), numbers(own, name)
        known = np.isfinite(values)
        there = (
            np.interp(grid, steps[known], values[known], left=np.nan, right=np.nan) if known.any() else grid * np.nan
        )
        found.append(there)
    return np.stack(found) if found else np.full((1, len(grid)), np.nan)


def best_members(rows: Rows, every: int) -> Rows:
    """Of a sweep, in each span of steps the member with the best score, as the paper's protocol has it; other rows as they are.

    >>> rows = [{"variant": "shared", "seed": 1, "member": n, "step": 9, "score": n} for n in (1, 3, 2)]
    >>> [row["member"] for row in best_members(rows, 10)]
    [3]
    """
    best: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        own = row["step"] if row.get("member") in {None, ""} else int(row["step"]) // every
        place = (row["variant"], row["seed"], own)
        if place not in best or float(row["score"] or -np.inf) > float(best[place]["score"] or -np.inf):
            best[place] = row
    return list(best.values())


def draw(axes: Any, rows: Rows, variants: Sequence[str], name: str, title: str, grid: Curves) -> None:
    """Mean over seeds, lowest to highest shaded, each seed thin."""
    for colour, variant in zip(COLOURS, variants, strict=False):
        values = curves(rows, variant, name, grid)
        axes.fill_between(grid, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(grid, values.mean(0), color=colour, linewidth=1.8, label=variant)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    axes.grid(visible=True, alpha=0.25)


def common(rows: Rows) -> Curves:
    """Steps up to where all runs have got."""
    ends = {(row["variant"], row["seed"]): 0.0 for row in rows}
    for row in rows:
        key = row["variant"], row["seed"]
        ends[key] = max(ends[key], float(row["step"]))
    return np.linspace(0, min(ends.values()), 200)


def variants_of(rows: Rows, name: str) -> list[str]:
    """Those of the experiment, and then those that it had when the rows were made."""
    there = {row["variant"]: None for row in rows}
    return [
        *(one for one in EXPERIMENTS[name].variants if one in there),
        *(there.keys() - EXPERIMENTS[name].variants.keys()),
    ]


def scores(rows: Rows, name: str) -> Iterator[list[str]]:
    """Of each variant: score on the way and at the end, mean and range over seeds."""
    grid = common(rows)
    for variant in variants_of(rows, name):
        score = curves(rows, variant, "score", grid)
        capped, above = (curves(rows, variant, column, grid) for column in ("score_mean_capped", "tasks_above_random"))
        found = {
            "score at half": score[:, len(grid) // 2],
            "score at the end": score[:, -1],
            "capped mean at the end": capped[:, -1],
            "tasks above random": above[:, -1],
            "area under the curve": np.nanmean(score, axis=1),
        }
        for measure, values in found.items():
            if np.isnan(values).all():  # a single task has no mean over tasks
                continue
            cells = [f"{value:.4g}" for value in (values.mean(), values.min(), values.max())]
            yield [name, f"{grid[-1]:.0f}", variant, str(len(score)), measure, *cells]


def by_task(rows: Rows, name: str) -> Iterator[list[str]]:
    """Normalised score of each task at the end, over seeds."""
    grid = common(rows)
    tasks = list(dict.fromkeys(column for row in rows for column in row if column.startswith(RETURN_OF)))
    for task in tasks:
        reference = reference_of(task.removeprefix(RETURN_OF))
        for variant in variants_of(rows, name):
            ends = [reference.normalised(end) if reference else end for end in curves(rows, variant, task, grid)[:, -1]]
            cells = [f"{value:.4g}" for value in (np.mean(ends), np.min(ends), np.max(ends))]
            yield [name, f"{grid[-1]:.0f}", variant, str(len(ends)), task.removeprefix(RETURN_OF), *cells]


def picture(rows: Rows, name: str, path: Path) -> None:
    """The median score; for the mazes one panel a length."""
    grid, variants = common(rows), variants_of(rows, name)
    panels = {"score": "median normalised score" if any(row["score_mean_capped"] for row in rows) else "return"}
    if name == "tmaze":
        mazes = [column for column in rows[0] if column.startswith(RETURN_OF)]
        panels = {maze: f"return, corridor of {maze.rpartition('-')[2]}" for maze in mazes}
    elif name == "doom":  # sweeps got less far; their curves end there
        grid, panels = np.linspace(0, doom_ends(rows)[1][-1], 200), {"score_mean_capped": "mean of capped scores"}
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels) + 2.2, 3.6), squeeze=False, sharey=True)
    for axis, (column, title) in zip(axes[0], panels.items(), strict=True):
        draw(axis, rows, variants, column, title, grid)
    axes[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def doom_ends(rows: Rows) -> tuple[dict[str, float], list[float]]:
    """How far all runs of each agent got; the steps that all agents reached, and those of the agents that went on."""
    ends = {
        variant: float(common([row for row in rows if row["variant"] == variant])[-1])
        for variant in variants_of(rows, "doom")
    }
    least = min(ends.values())
    return ends, [least, min(end for end in ends.values() if end > 2 * least)]


def doom_table(rows: Rows) -> str:
    """The paper's table 1 in Markdown."""
    variants, (ends, steps) = variants_of(rows, "doom"), doom_ends(rows)
    heads = [
        "agent",
        "runs",
        *(f"{measure}, {end / 1000:.0f}k steps" for end in steps for measure in ("median", "mean")),
    ]
    shown = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for variant in variants:
        cells = [variant, str(len({row["seed"] for row in rows if row["variant"] == variant}))]
        for end in steps:
            for column in ("score", "score_mean_capped"):
                found = curves(rows, variant, column, np.array([end]))[:, 0] if ends[variant] >= end else []
                cells.append(", ".join(f"{value:.2f}" for value in found))
        shown.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(shown)


def page_table(lines: Sequence[Sequence[str]], rows: Rows, name: str) -> str:
    """In Markdown: scores, and what the experiment is about."""
    if name == "doom":
        return doom_table(rows)
    found = {(variant, measure): [float(one) for one in cells] for _, _, variant, _, measure, *cells in lines}
    first, *more = {
        "suite": ("variant", "tasks above random"),
        "tmaze": ("state of replayed unrolls", "corridor of 40 solved", "steps to 0.95 there (range)"),
        "priorities": ("variant", "area under the curve"),
    }[name]
    heads = [first, "score at half", "score at the end (range)", *more]
    shown = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for variant in variants_of(rows, name):
        (half, *_), (mean, low, high) = found[variant, "score at half"], found[variant, "score at the end"]
        cells = [f"{half:.2f}", f"{mean:.2f} ({low:.2f} to {high:.2f})"]
        if name == "suite":
            cells.append(f"{found[variant, 'tasks above random'][0]:.1f} of 12")
        elif name == "tmaze":
            cells += solved(rows, variant)
        else:
            cells.append(f"{found[variant, 'area under the curve'][0]:.2f}")
        shown.append(f"| {' | '.join([variant, *cells])} |".replace("|  |", "| |"))
    return "\n".join(shown)


def solved(rows: Rows, variant: str) -> tuple[str, str]:
    """How many seeds solved the longest maze, and the median and range of the steps to it where all did."""
    seeds: dict[str, list[float]] = {}
    for row in rows:
        if row["variant"] == variant:
            there = seeds.setdefault(row["seed"], [])
            if row.get(LONGEST) and float(row[LONGEST]) >= SOLVED:
                there.append(float(row["step"]))
    first = [min(steps) for steps in seeds.values() if steps]
    steps = [f"{round(value, -3):,.0f}" for value in (np.median(first), min(first), max(first))] if first else []
    when = f"{steps[0]} ({steps[1]} to {steps[2]})" if len(first) == len(seeds) else ""
    return f"{len(first)} of {len(seeds)}", when


def main() -> None:
    """All experiments whose rows are there."""
    lines: list[list[str]] = []
    page = RESULTS / "README.md"
    text = page.read_text()
    for name in EXPERIMENTS:
        rows = best_members(read(RESULTS / f"{name}.csv"), EXPERIMENTS[name].every)
        if not rows:
            continue
        picture(rows, name, RESULTS / f"{name}.png")
        own = list(scores(rows, name))
        lines += [*own, *by_task(rows, name)]
        begin, end = (mark.format(name) for mark in MARK)
        before, found, rest = text.partition(begin)
        if not found:  # its results stand on another page
            continue
        text = f"{before}{begin}\n\n{page_table(own, rows, name)}\n\n{end}{rest.partition(end)[2]}"
    page.write_text(text)
    with (RESULTS / "tables.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])


if __name__ == "__main__":
    main()
