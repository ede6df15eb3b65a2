"""What the runs of an experiment say: a few numbers for each run, and of each claim whether it holds, decided by intervals over seeds.

The unit is the run, a whole sweep: members are put together first. Claims are judged on scores (0 random play, 1 the best), task by task
and for all tasks together, where a seed's score is the mean over tasks. Each verdict stands for itself at 95 %: of twenty claims about
equal agents one is expected to be called reproduced or not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.research.experiment import STATISTICS, Claim, Experiment, ExperimentTask, Statistic
from laser_rl.research.statistics import Verdict, difference_interval, stratified_iqm

ALL = "all tasks"
_DIGITS = 9
END_SHARE = 0.2  # of the buckets of a run
BEYOND = {"reproduced": "yes", "not reproduced": "no", "undecided": "undecided"}  # nobody claimed it before
Values = Mapping[Statistic, float]
Results = dict[str, dict[str, dict[int, Values]]]  # by task, condition, seed; as returns


class Judged(NamedTuple):
    """A claim on one task, or on all."""

    claim: Claim
    task: str
    verdict: Verdict | None  # None where a run has no number: no episode ended

    @property
    def word(self) -> str:
        """What became of the claim.

        >>> Judged(Claim("a beats b", "a", "b"), "catch", Verdict("reproduced", 1.0, (0.5, 1.5))).word
        'yes'
        """
        if self.verdict is None:
            return "no episodes"
        return self.verdict.word if self.claim.source else BEYOND[self.verdict.word]


def results_of(lines: Iterable[Mapping[str, str]]) -> Results:
    """Statistics of every run in `curves.csv`."""
    runs: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for line in lines:
        point = float(line["mean"] or "nan"), float(line["best"] or "nan")
        runs.setdefault((line["task"], line["condition"], int(line["seed"])), []).append(point)
    results: Results = {}
    for (task, condition, seed), points in runs.items():
        mean, best = np.array(points).T
        results.setdefault(task, {}).setdefault(condition, {})[seed] = statistics_of(mean, best)
    return results


def statistics_of(mean: NDArray[np.float64], best: NDArray[np.float64]) -> Values:
    """Of one run's curves, those of the mean and of the best member by bucket.

    >>> curve = np.array([np.nan, 0.0, 1.0, 2.0, 3.0])
    >>> statistics_of(curve, 2 * curve)
    {'whole run': 1.5, 'end': 3.0, 'best': 6.0}
    """
    last = max(1, round(END_SHARE * len(mean)))
    return {"whole run": _known_mean(mean), "end": _known_mean(mean[-last:]), "best": _known_mean(best[-last:])}


def _known_mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def judge(experiment: Experiment, tasks: Sequence[ExperimentTask], results: Results) -> list[Judged]:
    """Every claim, on all tasks together and on each."""
    judged = []
    for claim in experiment.claims:
        by_task = {task.name: scores_of(task, results[task.name], claim.statistic) for task in tasks}
        judged.append(_judged(claim, ALL, together(by_task)))
        judged += [_judged(claim, name, scores) for name, scores in by_task.items()]
    return judged


def scores_of(
    task: ExperimentTask, results: Mapping[str, Mapping[int, Values]], statistic: Statistic
) -> dict[str, dict[int, float]]:
    """Normalised, by condition and seed."""
    return {
        # Rounded, so that two runs with the same returns have no difference, not one of the last bit.
        condition: {seed: round(task.normalised(values[statistic]), _DIGITS) for seed, values in seeds.items()}
        for condition, seeds in results.items()
    }


def together(by_task: Mapping[str, Mapping[str, Mapping[int, float]]]) -> dict[str, dict[int, float]]:
    """For each condition and seed the mean over tasks.

    >>> together({"x": {"a": {0: 1.0}}, "y": {"a": {0: 3.0}}})
    {'a': {0: 2.0}}
    """
    first = next(iter(by_task.values()))
    return {
        condition: {seed: float(np.mean([scores[condition][seed] for scores in by_task.values()])) for seed in seeds}
        for condition, seeds in first.items()
    }


def _judged(claim: Claim, task: str, scores: Mapping[str, Mapping[int, float]]) -> Judged:
    involved = [*scores[claim.better].values(), *scores[claim.worse].values()]
    return Judged(claim, task, claim.verdict(scores) if np.isfinite(involved).all() else None)


class Spread(NamedTuple):
    """A mean over seeds and its interval; without ends where there is one seed."""

    mean: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """The same interval as that of claims.

    >>> spread_of([2.0, 2.0, 2.0])
    Spread(mean=2.0, low=2.0, high=2.0)
    """
    if not np.isfinite(values).all():
        return Spread(float("nan"), float("nan"), float("nan"))
    mean, (low, high) = difference_interval(values, [0.0] * len(values))
    return Spread(mean, low, high)


class Overall(NamedTuple):
    """A condition over all tasks, in scores."""

    median_best: float  # median over tasks, of means over seeds of the best member
    capped_best: float  # mean over tasks, each counted 1 at most
    iqm: dict[Statistic, Spread]


def overall(tasks: Sequence[ExperimentTask], results: Results) -> dict[str, Overall]:
    """By condition; only of those whose runs all have numbers."""
    found = {}
    for condition in results[tasks[0].name]:
        tables = {
            statistic: np.array(
                [list(scores_of(task, results[task.name], statistic)[condition].values()) for task in tasks]
            ).T
            for statistic in STATISTICS
        }
        if not all(np.isfinite(scores).all() for scores in tables.values()):
            continue
        best = tables["best"].mean(axis=0)
        iqm = {}
        for statistic, scores in tables.items():
            aggregate = stratified_iqm(scores)
            iqm[statistic] = Spread(aggregate.iqm, *aggregate.ci95)
        found[condition] = Overall(float(np.median(best)), float(np.minimum(best, 1).mean()), iqm)
    return found
