"""Tables of `peers.py`: what each agent came to, and ours less each peer's."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtr, stdtrit

from benchmarks.peers import ARMS, OURS

LEVEL, NEVER = 0.05, float("inf")


class Difference(NamedTuple):
    """Ours less a peer's, paired by seed: the mean, its 95 % t interval, the p-value of the paired t test."""

    task: str
    ours: str
    peer: str
    seeds: int
    mean: float
    half: float
    p: float


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """A mean and half the width of its 95 % interval by Student's t; NaN for one value.

    >>> t_interval([1.0, 2.0, 3.0])
    (2.0, 2.484...)
    """
    if len(values) == 1:
        return values[0], float("nan")
    return statistics.fmean(values), float(stdtrit(len(values) - 1, 0.975)) * _error(values)


def _error(values: Sequence[float]) -> float:
    return float(statistics.stdev(values) / len(values) ** 0.5)


def difference(task: str, ours: str, peer: str, one: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """Compare two arms on the seeds that both have."""
    pairs = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    mean, half = t_interval(pairs)
    p = float("nan")
    if len(pairs) > 1:
        error = _error(pairs)
        p = 2 * float(stdtr(len(pairs) - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Difference(task, ours, peer, len(pairs), mean, half, p)


def holm(values: Sequence[float]) -> list[float]:
    """P-values adjusted for all of them together, by Holm's step-down rule.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [1.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted


def report(rows: Iterable[Mapping[str, Any]]) -> str:
    """Two tables in Markdown."""
    runs: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}  # by task, arm and seed
    for row in rows:
        if row["last100"] is None:  # no episode ended
            continue
        task, arm = (
            f"{row['task']}, {row['steps']:,} steps",
            f"{row['arm']} {row['settings'].removeprefix('{}')}".strip(),
        )
        runs.setdefault(task, {}).setdefault(arm, {})[row["seed"]] = row
    lines = [
        "| task | agent | seeds | last 100 episodes, 95 % interval | solved | steps until solved | s |",
        "|---" * 7 + "|",
    ]
    lines += [
        line(task, arm, list(by_seed.values())) for task, by_arm in runs.items() for arm, by_seed in by_arm.items()
    ]
    family = [one for task, by_arm in runs.items() for one in differences(task, by_arm)]
    lines += ["", f"Differences by seed; p by the paired t test, adjusted by Holm for all {len(family)}.", ""]
    lines += ["| task | ours | peer | seeds | ours − peer, 95 % interval | p | p, Holm | better |", "|---" * 8 + "|"]
    for one, adjusted in zip(family, holm([one.p for one in family]), strict=True):
        better = "–" if not adjusted < LEVEL else "ours" if one.mean > 0 else "peer"
        cells = [one.task, shown(one.ours), shown(one.peer), str(one.seeds), f"{one.mean:.1f} ± {one.half:.1f}"]
        lines.append(f"| {' | '.join(cells)} | {one.p:.3f} | {adjusted:.3f} | {better} |")
    return "\n".join(lines)


def line(task: str, arm: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """What one agent came to on one task; medians count a run that did not solve it as the slowest."""
    mean, half = t_interval([row["last100"] for row in runs])
    solved = [row["solved_at"] or NEVER for row in runs]
    middle = statistics.median_low(solved)
    count = "–" if runs[0]["threshold"] is None else f"{sum(at < NEVER for at in solved)} of {len(runs)}"
    when = "–" if middle == NEVER else f"{middle:,}"
    seconds = statistics.median(row["seconds"] for row in runs)
    return f"| {task} | {shown(arm)} | {len(runs)} | {mean:.1f} ± {half:.1f} | {count} | {when} | {seconds:.0f} |"


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
