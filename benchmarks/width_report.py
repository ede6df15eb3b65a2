"""Figure, tables and verdicts of `benchmarks/width.py`, made from its file alone; the claims are fixed there."""

import csv
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.peers_report import difference
from benchmarks.width import CONDITIONS, FIGURE_4, NAMES, SEEDS, WIDTHS, Row, scaled
from laser_rl.research.verdicts import holm, t_interval

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "sharing"
COMPARED = (("trust 0.1", "separate 0.1"), ("naive", "separate 0.1"), ("trust 0.1", "naive"))
MEASURES = ("whole run", "end", "best", "worst", "pointwise best")
TITLES = {
    "none": "no replay", "separate 0.1": "a replay each", "naive": "one replay, every row trusted", "trust 0.1": "one replay, b = 0.1",
    FIGURE_4: "every row trusted, ρ̄ = 4",
}  # fmt: skip
SHORT = {"separate 0.1": "separate", "naive": "naive", "trust 0.1": "trust"}
COLOURS = {"none": "0.6", "separate 0.1": "C0", "naive": "C3", "trust 0.1": "C1", FIGURE_4: "C4"}
COLUMNS = ("task", "width", "condition", "measure", "seeds", "mean", "low", "high")
DIFFERENCES = ("task", "width", "condition", "less", "measure", "seeds", "difference", "low", "high")
MARK = "<!-- width: made by `python -m benchmarks.width report` -->", "<!-- width end -->"
END, LEVEL, POINTS = 3, 0.05, 20
OVER = {"over tasks": NAMES, "without convention": tuple(name for name in NAMES if name != "convention")}
Values = np.ndarray[Any, np.dtype[np.float64]]
Scores = dict[tuple[str, Any, str], dict[int, dict[str, float]]]


def measured(name: str, returns: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """What one sweep achieved; "pointwise best" is the paper's statistic, the best member of each bucket over the whole run."""
    curves = scaled(name, returns)
    end = curves[:, -END:].mean(1)
    numbers = (curves.mean(), end.mean(), end.max(), end.min(), curves.max(0).mean())
    return dict(zip(MEASURES, map(float, numbers), strict=True))


def scores_of(rows: Sequence[Row]) -> Scores:
    """By (task, width, condition) and seed; the means over tasks are of seeds that have all of them."""
    found: Scores = {}
    for row in rows:
        place = row["task"], row["width"], row["condition"]
        found.setdefault(place, {})[row["seed"]] = measured(row["task"], row["returns"])
    for width, condition, (over, names) in product((*WIDTHS, "paper"), (*CONDITIONS, FIGURE_4), OVER.items()):
        by_task = [found.get((name, width, condition), {}) for name in names]
        seeds = [seed for seed in SEEDS if all(seed in one for one in by_task)]
        means = {
            seed: {measure: float(np.mean([one[seed][measure] for one in by_task])) for measure in MEASURES}
            for seed in seeds
        }
        if means:
            found[over, width, condition] = means
    return found


def of(scores: Scores, place: tuple[str, Any, str], measure: str = "whole run") -> dict[int, float]:
    """One measure by seed."""
    return {seed: one[measure] for seed, one in scores.get(place, {}).items()}


def claims(scores: Scores) -> list[tuple[str, float, float, float, str]]:
    """The family of `width.py`: (claim, mean, half of its interval, adjusted p, verdict)."""
    made = []
    spread = np.log10(WIDTHS) - np.log10(WIDTHS).mean()
    for one, other in COMPARED:
        gains = [gain(scores, "over tasks", width, one, other) for width in WIDTHS]
        seeds = [seed for seed in SEEDS if all(seed in by_seed for by_seed in gains)]
        table = np.array([[by_seed[seed] for by_seed in gains] for seed in seeds])  # [seeds, widths]
        for what, values in (
            ("mean", table.mean(1)),
            ("slope", table @ spread / (spread @ spread)),
        ):
            found = difference(
                what, one, other, dict(enumerate(values.tolist())), dict.fromkeys(range(len(seeds)), 0.0)
            )
            made.append((f"{SHORT[one]} less {SHORT[other]}: {what}", found.mean, found.half, found.p))
    adjusted = holm([p for *_, p in made])
    return [
        (*line[:3], p, "undecided" if p >= LEVEL else "more" if line[1] > 0 else "less")
        for line, p in zip(made, adjusted, strict=True)
    ]


def gain(
    scores: Scores, name: str, width: int | str, one: str, other: str, measure: str = "whole run"
) -> dict[int, float]:
    """A difference by seed."""
    first, second = of(scores, (name, width, one), measure), of(scores, (name, width, other), measure)
    return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}


def tables(scores: Scores) -> tuple[list[list[str]], list[list[str]]]:
    """Every measure with its interval, and every difference paired by seed."""
    means, pairs = [], []
    for (name, width, condition), by_seed in scores.items():
        for measure in MEASURES:
            mean, half = t_interval([one[measure] for one in by_seed.values()])
            cells = [f"{value:.4f}" for value in (mean, mean - half, mean + half)]
            means.append([name, str(width), condition, measure, str(len(by_seed)), *cells])
    for name in (*NAMES, *OVER):
        for width in (*WIDTHS, "paper"):
            for one, other in COMPARED:
                for measure in MEASURES:
                    found = gain(scores, name, width, one, other, measure)
                    if len(found) > 1:
                        mean, half = t_interval([*found.values()])
                        cells = [f"{value:.4f}" for value in (mean, mean - half, mean + half)]
                        pairs.append([name, str(width), one, other, measure, str(len(found)), *cells])
    return means, pairs


def markdown(scores: Scores) -> str:
    """What stands between the marks of the page: gains by task and width, and the claims."""
    lines = [f"| task | {' | '.join('paper' if width == 'paper' else f'{width} ×' for width in (*WIDTHS, 'paper'))} |"]
    lines.append("|---" * (len(WIDTHS) + 2) + "|")
    for name in (*NAMES, *OVER):
        cells = []
        for width in (*WIDTHS, "paper"):
            found = [*gain(scores, name, width, *COMPARED[0]).values()]
            mean, half = t_interval(found) if len(found) > 1 else (float("nan"), float("nan"))
            cells.append(f"{mean:+.2f} ± {half:.2f}".replace("-", "−") if found else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| claim | estimate | p (Holm) | verdict |", "|---|---|---|---|"]
    for claim, mean, half, p, verdict in claims(scores):
        told = f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]".replace("-", "−")
        lines.append(f"| {claim} | {told} | {p:.2g} | {verdict} |")
    return "\n".join(lines)


def picture(scores: Scores, path: Path) -> None:
    """The law: what one replay brings over a replay each, paired by seed, against the width; over tasks and on each."""
    figure = Figure(figsize=(10.5, 5.2), dpi=110, layout="constrained")
    for axes, name in zip(figure.subplots(2, 4, sharex=True, sharey=True).flat, (*OVER, *NAMES), strict=True):
        for place, condition in enumerate(("naive", "trust 0.1")):
            points = [t_interval([*gain(scores, name, width, condition, "separate 0.1").values()]) for width in WIDTHS]
            middle, half = np.array(points).T
            apart = np.array(WIDTHS) * 1.12 ** (2 * place - 1)  # so that no interval hides the other
            axes.errorbar(
                apart, middle, half, color=COLOURS[condition], label=TITLES[condition], marker="o", capsize=2, ms=3
            )
        axes.axhline(0, color="0.4", lw=0.8)
        axes.set(xscale="log", title=name)
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.supxlabel("width of the sweep: largest over smallest learning rate, likewise entropy cost")
    figure.supylabel("gain over a replay each (1: optimum less random)")
    figure.savefig(path)


def paper_picture(rows: Sequence[Row], path: Path) -> None:
    """The paper's sampling: curves over tasks, by its own statistic and by ours."""
    figure = Figure(figsize=(8.4, 3.4), dpi=110, layout="constrained")
    share = (np.arange(POINTS) + 1) / POINTS
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, title, over in ((left, "pointwise best member", np.max), (right, "mean of the members", np.mean)):
        for condition in (*CONDITIONS, FIGURE_4):
            seeds: dict[int, list[Values]] = {}
            for row in rows:
                if (row["width"], row["condition"]) == ("paper", condition):
                    curve = over(scaled(row["task"], row["returns"]), axis=0)
                    own = (np.arange(len(curve)) + 1) / len(curve)  # Convention has fewer buckets
                    seeds.setdefault(row["seed"], []).append(np.interp(share, own, curve))
            by_seed = np.array([np.mean(tasks, 0) for tasks in seeds.values() if len(tasks) == len(NAMES)])
            if len(by_seed) < len(SEEDS):
                continue
            middle, half = np.array([t_interval(at) for at in by_seed.T.tolist()]).T
            axes.plot(share, middle, color=COLOURS[condition], label=TITLES[condition])
            axes.fill_between(share, middle - half, middle + half, color=COLOURS[condition], alpha=0.15, linewidth=0)
        axes.set(title=title, xlabel="share of the run")
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("over tasks (0 random, 1 optimum)")
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def write(path: Path, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """As CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *lines])


def publish(rows: Sequence[Mapping[str, Any]], into: Path = RESULTS) -> None:
    """Everything, into the folder of the page `width.md`."""
    rows = [dict(row) for row in rows]
    scores = scores_of(rows)
    means, pairs = tables(scores)
    write(into / "width.csv", COLUMNS, means)
    write(into / "width-differences.csv", DIFFERENCES, pairs)
    picture(scores, into / "width.png")
    paper_picture(rows, into / "width-paper.png")
    page = into / "width.md"
    before, _, rest = page.read_text().partition(MARK[0])
    page.write_text(f"{before}{MARK[0]}\n\n{markdown(scores)}\n\n{MARK[1]}{rest.partition(MARK[1])[2]}")
