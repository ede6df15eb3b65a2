"""Figure, table and verdicts of `benchmarks/search.py`, made from its file alone; the claims are fixed there."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.peers_report import difference
from benchmarks.search import CONDITIONS, NAMES, POINTS, Row
from laser_rl.research.verdicts import holm, t_interval

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "sharing"
COMPARED = (("search", "apart"), ("inherit", "apart"), ("inherit", "pbt"), ("search", "random"))
MEASURES = {"end": "best agent at the end", "known": "share of steps to 0.9", "whole run": "best so far, whole run"}
MARK = "<!-- search: made by `python -m benchmarks.search report` -->", "<!-- search end -->"
LEVEL = 0.05
Scores = dict[tuple[str, str], dict[int, dict[str, float]]]


def scores_of(rows: Sequence[Row]) -> Scores:
    """By (task, condition) and seed; "over tasks" has the seeds that all tasks have."""
    found: Scores = {}
    for row in rows:
        numbers = {"end": row["end"], "known": row["known"], "whole run": float(np.mean(row["curve"]))}
        found.setdefault((row["task"], row["condition"]), {})[row["seed"]] = numbers
    for condition in CONDITIONS:
        by_task = [found.get((name, condition), {}) for name in NAMES]
        seeds = set.intersection(*(set(one) for one in by_task))
        found["over tasks", condition] = {
            seed: {name: float(np.mean([one[seed][name] for one in by_task])) for name in MEASURES}
            for seed in sorted(seeds)
        }
    return found


def of(scores: Scores, task: str, condition: str, measure: str) -> dict[int, float]:
    """One measure by seed."""
    return {seed: one[measure] for seed, one in scores.get((task, condition), {}).items()}


def claims(scores: Scores) -> list[tuple[str, float, float, float, str]]:
    """The family of `search.py`: (claim, mean, half of its interval, adjusted p, verdict)."""
    found = [
        difference("over tasks", *pair, *(of(scores, "over tasks", one, "end") for one in pair)) for pair in COMPARED
    ]
    adjusted = holm([one.p for one in found])
    return [
        (
            f"{one.ours} less {one.peer}",
            one.mean,
            one.half,
            p,
            "undecided" if p >= LEVEL else "better" if one.mean > 0 else "worse",
        )
        for one, p in zip(found, adjusted, strict=True)
    ]


def cell(values: Sequence[float]) -> str:
    """A mean and its interval."""
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    mean, half = t_interval(values)
    return f"{mean:.2f} ± {half:.2f}"


def markdown(scores: Scores) -> str:
    """What stands between the marks of the page."""
    lines = [f"| task | {' | '.join(CONDITIONS)} |", "|---" * (len(CONDITIONS) + 1) + "|"]
    for measure, title in MEASURES.items():
        lines.append(f"| **{title}** |{' |' * len(CONDITIONS)}")
        for task in (*NAMES, "over tasks"):
            cells = [cell([*of(scores, task, one, measure).values()]) for one in CONDITIONS]
            lines.append(f"| {task} | {' | '.join(cells)} |")
    lines += ["", "| claim | estimate | p (Holm) | verdict |", "|---|---|---|---|"]
    for claim, mean, half, p, verdict in claims(scores):
        told = f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]".replace("-", "−")
        lines.append(f"| {claim} | {told} | {p:.2g} | {verdict} |")
    return "\n".join(lines)


def picture(rows: Sequence[Row], path: Path) -> None:
    """The best agent so far over all steps, a task a panel, means over seeds."""
    figure = Figure(figsize=(11, 3.2), dpi=110, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(NAMES), sharey=True).flat, NAMES, strict=True):
        for number, condition in enumerate(CONDITIONS):
            curves = [row["curve"] for row in rows if (row["task"], row["condition"]) == (name, condition)]
            if curves:
                x = (np.arange(POINTS) + 1) / POINTS
                axes.plot(
                    x, np.mean(curves, 0), color=f"C{number}", label=condition, ls=":" if condition == "apart" else "-"
                )
        axes.set(title=name, xlabel="share of all steps")
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("best agent so far (optimum 1)")
    figure.axes[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path)


def publish(rows: Sequence[Row], into: Path = RESULTS) -> None:
    """Everything, into the folder of the page `search.md`."""
    scores = scores_of(rows)
    with (into / "search.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("task", "condition", "measure", "seeds", "mean", "low", "high"))
        for (task, condition), by_seed in scores.items():
            for measure in MEASURES if len(by_seed) > 1 else ():
                mean, half = t_interval([one[measure] for one in by_seed.values()])
                numbers = (f"{value:.4f}" for value in (mean, mean - half, mean + half))
                writer.writerow((task, condition, measure, len(by_seed), *numbers))
    picture(rows, into / "search.png")
    page = into / "search.md"
    before, _, rest = page.read_text().partition(MARK[0])
    page.write_text(f"{before}{MARK[0]}\n\n{markdown(scores)}\n\n{MARK[1]}{rest.partition(MARK[1])[2]}")
