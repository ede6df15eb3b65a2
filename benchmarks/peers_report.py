"""Tables and curves of `peers.py`: what each agent came to, and ours less each peer's."""

import csv
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from benchmarks.peers import ARMS, OURS, POINTS, TASKS
from laser_rl.research.verdicts import holm, p_value, t_interval

LEVEL, NEVER = 0.05, float("inf")
MARKED = re.compile(
    r"(<!-- (\w+): made by `python -m benchmarks\.peers publish [^`]+` -->\n).*?(<!-- \2 end -->)", re.DOTALL
)
COLOURS = {
    "default": "#0072b2", "recipe": "#56b4e9", "ppo": "#d55e00", "ppo-zoo": "#e69f00", "sac": "#009e73", "random": "#999999",
}  # fmt: skip
_COLUMNS = 5  # of curves
Row = Mapping[str, Any]
Runs = dict[str, dict[str, dict[int, Row]]]  # by task, arm and seed


class Difference(NamedTuple):
    """Ours less a peer's, paired by seed: the mean, its 95 % t interval, the p-value of the paired t test."""

    task: str
    ours: str
    peer: str
    seeds: int
    mean: float
    half: float
    p: float


def difference(task: str, ours: str, peer: str, one: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """Compare two arms on the seeds that both have."""
    pairs = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    mean, half = t_interval(pairs)
    return Difference(task, ours, peer, len(pairs), mean, half, p_value(pairs))


def sorted_out(rows: Iterable[Row]) -> Runs:
    """The runs in which an episode ended, in the order of tasks and arms that `peers` has."""
    runs: Runs = {}
    for row in sorted(
        rows, key=lambda row: (list(TASKS).index(row["task"]), list(ARMS).index(row["arm"]), row["seed"])
    ):
        if row["last100"] is None:  # no episode ended
            continue
        task, arm = (
            f"{row['task']}, {row['steps']:,} steps",
            f"{row['arm']} {row['settings'].removeprefix('{}')}".strip(),
        )
        runs.setdefault(task, {}).setdefault(arm, {})[row["seed"]] = row
    return runs


def compared(runs: Runs) -> list[tuple[Difference, float, str]]:
    """Every difference with its p-value, adjusted for all of them, and who is better by it."""
    family = [one for task, by_arm in runs.items() for one in differences(task, by_arm)]
    adjusted = holm([one.p for one in family])
    return [
        (one, p, "–" if not p < LEVEL else "ours" if one.mean > 0 else "peer")
        for one, p in zip(family, adjusted, strict=True)
    ]


def report(rows: Iterable[Row]) -> str:
    """Two tables in Markdown."""
    runs = sorted_out(rows)
    lines = [
        "| task | agent | seeds | last 100 episodes, 95 % interval | solved | steps until solved | s |",
        "|---" * 7 + "|",
    ]
    lines += [
        line(task, arm, list(by_seed.values())) for task, by_arm in runs.items() for arm, by_seed in by_arm.items()
    ]
    family = compared(runs)
    lines += ["", f"Differences by seed; p by the paired t test, adjusted by Holm for all {len(family)}.", ""]
    lines += ["| task | ours | peer | seeds | ours − peer, 95 % interval | p | p, Holm | better |", "|---" * 8 + "|"]
    for one, adjusted, better in family:
        cells = [one.task, shown(one.ours), shown(one.peer), str(one.seeds), f"{one.mean:.1f} ± {one.half:.1f}"]
        lines.append(f"| {' | '.join(cells)} | {one.p:.3f} | {adjusted:.3f} | {better} |")
    return "\n".join(lines)


def line(task: str, arm: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """What one agent came to on one task; medians count a run that did not solve it as the slowest."""
    mean, half = t_interval([row["last100"] for row in runs])
    digits = max(1, digits_of(task))
    solved = [row["solved_at"] or NEVER for row in runs]
    middle = statistics.median_low(solved)
    count = "–" if runs[0]["threshold"] is None else f"{sum(at < NEVER for at in solved)} of {len(runs)}"
    when = "–" if middle == NEVER else f"{middle:,}"
    seconds = statistics.median(row["seconds"] for row in runs)
    return f"| {task} | {shown(arm)} | {len(runs)} | {mean:.{digits}f} ± {half:.{digits}f} | {count} | {when} | {seconds:.0f} |"


def digits_of(task: str) -> int:
    """Digits that a task's returns have in a table."""
    return int(TASKS.get(task.partition(",")[0], {}).get("digits", 0))


def differences(task: str, by_arm: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[Difference]:
    """Each of our arms with each peer's, on the seeds that both have."""
    returns = {arm: {seed: row["last100"] for seed, row in runs.items()} for arm, runs in by_arm.items()}
    ours = [arm for arm in returns if arm.split()[0] in OURS]
    pairs = [
        (one, peer)
        for one in ours
        for peer in returns
        if peer not in ours and returns[one].keys() & returns[peer].keys()
    ]
    return [difference(task, one, peer, returns[one], returns[peer]) for one, peer in pairs]


def shown(arm: str) -> str:
    """An arm as a table has it."""
    name, _, changed = arm.partition(" ")
    return f"{ARMS[name][0]} {changed}".strip()


def publish(rows: Iterable[Row], folder: Path) -> None:
    """Curves, tables as CSV, and between two marks of the folder's README a table with a line a task."""
    runs = sorted_out(rows)
    folder.mkdir(parents=True, exist_ok=True)
    draw(runs, folder / "curves.png")
    with (folder / "agents.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["task", "agent", "seeds", "mean", "half_interval", "solved", "median_steps", "longest_dip", "seconds"]
        )
        for task, by_arm in runs.items():
            table.writerows([task, *_summary(task, arm, list(by_seed.values()))] for arm, by_seed in by_arm.items())
    with (folder / "differences.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*Difference._fields, "p_holm", "better"])
        for one, adjusted, better in compared(runs):
            table.writerow([*one[:4], *(f"{number:.4g}" for number in (*one[4:], adjusted)), better])
    page = folder / "README.md"
    page.write_text(MARKED.sub(lambda found: f"{found[1]}\n{compact(runs)}\n\n{found[3]}", page.read_text()))


def _summary(task: str, arm: str, runs: Sequence[Row]) -> list[str | int]:
    cells = [cell.strip() for cell in line(task, arm, runs).split("|")]
    mean, _, half = cells[4].partition(" ± ")
    dips = [row["dip"] for row in runs if row.get("dip") is not None]
    return [*cells[2:4], mean, half, cells[5], cells[6], max(dips, default="–"), cells[7]]


def compact(runs: Runs) -> str:
    """A line a task; a star marks a peer that ours beats by Holm's rule, a cross one that beats ours (the recipe, if there is one)."""
    verdicts = {(one.task, one.ours, one.peer): better for one, _, better in compared(runs)}
    shown_arms = [arm for arm in ARMS if any(arm in by_arm for by_arm in runs.values())]
    lines = [f"| task | {' | '.join(ARMS[arm][0] for arm in shown_arms)} |", "|---" * (len(shown_arms) + 1) + "|"]
    for task, by_arm in runs.items():
        ours = "recipe" if "recipe" in by_arm else "default"
        cells, digits = [], digits_of(task)
        for arm in shown_arms:
            runs_of_arm = [row["last100"] for row in by_arm.get(arm, {}).values()]
            if not runs_of_arm:
                cells.append("")
                continue
            mean, half = t_interval(runs_of_arm)
            mark = {"ours": " \\*", "peer": " ×"}.get(verdicts.get((task, ours, arm), ""), "")
            interval = f" ± {half:.{digits}f}" if len(runs_of_arm) > 1 else ""
            cells.append(f"{mean:.{digits}f}{interval} ({len(runs_of_arm)}){mark}")
        lines.append(f"| {task.removesuffix(' steps')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(runs: Runs, path: Path) -> None:
    """A panel a task: the mean over seeds and its range."""
    across = min(_COLUMNS, len(runs))
    down = -(-len(runs) // across)
    figure = Figure(figsize=(3 * across, 2.9 * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis, (task, by_arm) in zip(axes, runs.items(), strict=False):
        for arm, by_seed in by_arm.items():
            steps = next(iter(by_seed.values()))["steps"]
            points = [
                (steps * (place + 1) / POINTS / 1e3, [value for value in column if value is not None])
                for place, column in enumerate(zip(*(row["curve"] for row in by_seed.values()), strict=True))
            ]
            points = [(at, values) for at, values in points if len(values) == len(by_seed)]
            x, columns = [at for at, _ in points], [values for _, values in points]
            colour = COLOURS[arm.split()[0]]
            axis.plot(x, [statistics.fmean(values) for values in columns], color=colour, label=shown(arm))
            axis.fill_between(x, [*map(min, columns)], [*map(max, columns)], color=colour, alpha=0.15, linewidth=0)
        axis.set_title(task.partition(",")[0], fontsize=10)
        axis.set_xlabel("thousand steps", fontsize=8)
        axis.tick_params(labelsize=8)
    for axis in axes[len(runs) :]:
        axis.set_axis_off()
    handles = {
        label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=100, metadata={"Software": None})
