"""What the runs of an experiment say: a few numbers for each run, and for each claim whether it holds.

The unit is the run, a whole sweep: members are put together first. Claims are judged on scores (0 random play, 1 the best), task by task
and for all tasks together, where a seed's score is the mean over tasks.

Differences are paired by seed. Intervals are Student's t over seeds: of three to ten seeds a percentile bootstrap is too narrow. A claim
is reproduced if its difference lies above the margin with a p-value of at most 5 %, and not reproduced if it lies below with such a
value; otherwise the seeds do not decide it. P-values are adjusted by Holm's rule over a family: the claims of an experiment over all its
tasks, and of one claim its tasks. Where all seeds came to the same, as on a task that both conditions solve, nothing is decided either.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from laser_rl.evaluation.statistics import Floats, bootstrap_interval, interquartile_mean
from laser_rl.metrics.rows import mean as mean_of
from laser_rl.research.experiment import Claim, Experiment, ExperimentTask, Statistic

ALL = "all tasks"
_DIGITS = 9
END_SHARE = 0.2  # of the buckets of a run
LEVEL = 0.05
Word = Literal["reproduced", "not reproduced", "undecided"]
# Of a question that the paper did not ask.
OURS = {"reproduced": "yes", "not reproduced": "no", "undecided": "undecided"}
Scores = Mapping[str, Mapping[int, float]]  # by condition and seed
Values = Mapping[Statistic, float]
Results = dict[str, dict[str, dict[int, Values]]]  # by task, condition, seed; as returns


class Verdict(NamedTuple):
    """What became of a claim: the difference of the means, better less worse, its interval, and the p-value of the margin."""

    difference: float
    interval: tuple[float, float]
    p: float
    margin: float

    @property
    def word(self) -> Word:
        if self.p > LEVEL:
            return "undecided"
        return "reproduced" if self.difference > self.margin else "not reproduced"


def verdict(better: Sequence[float], worse: Sequence[float], *, margin: float = 0.0, level: float = 0.95) -> Verdict:
    """Judge the claim that `better`, one score for each seed, has a mean that is more than `margin` above that of `worse`.

    Scores are paired, as many of each: they stand at the same place for the same seed. One score alone has no spread: undecided, with an
    interval without ends.
    """
    if not len(better) == len(worse) > 0 or not np.isfinite([better, worse]).all():
        raise ValueError(f"expected one finite score for each seed on either side, got {better} and {worse}")
    pairs = np.subtract(better, worse, dtype=np.float64)
    difference, half = t_interval(pairs, level)
    return Verdict(difference, (difference - half, difference + half), p_value(pairs, margin), margin)


def t_interval(values: Sequence[float] | Floats, level: float = 0.95) -> tuple[float, float]:
    """A mean and half the width of its interval by Student's t; without end for one value.

    >>> t_interval([1.0, 2.0, 3.0])
    (2.0, 2.484...)
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # noqa: PLC0415 - of the extra `experiments`

    mean, count = float(np.mean(values)), len(values)
    if count == 1:
        return mean, math.inf
    return mean, float(stdtrit(count - 1, (1 + level) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(count)


def p_value(differences: Sequence[float] | Floats, margin: float = 0.0) -> float:
    """Of the paired t test: how likely a mean at least so far from `margin` is if there is no difference; 1 for one seed."""
    from scipy.special import stdtr  # noqa: PLC0415

    mean, count = float(np.mean(differences)) - margin, len(differences)
    if count == 1 or mean == 0:
        return 1.0
    error = float(np.std(differences, ddof=1)) / math.sqrt(count)
    return 2 * float(stdtr(count - 1, -abs(mean) / error)) if error else 0.0


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


class Aggregate(NamedTuple):
    """An interquartile mean over runs and tasks with its interval."""

    iqm: float
    ci95: tuple[float, float]


def stratified_iqm(scores: ArrayLike, *, resamples: int = 2000, seed: int = 0) -> Aggregate:
    """The interquartile mean of normalised scores [runs, tasks], after Agarwal et al. (2021).

    Runs are resampled within each task, tasks are given. Of a handful of runs the percentile interval is too narrow: decide by `verdict`.
    """
    table = np.asarray(scores, dtype=np.float64)
    interval = bootstrap_interval([table], _pooled_iqm, resamples=resamples, seed=seed)
    return Aggregate(float(_pooled_iqm(table)), interval)


def _pooled_iqm(tables: Floats) -> Floats:
    return interquartile_mean(tables.reshape(*tables.shape[:-2], -1))


class Judged(NamedTuple):
    """A claim on one task, or on all."""

    claim: Claim
    task: str
    verdict: Verdict | None  # None where a run has no number: no episode ended

    @property
    def word(self) -> str:
        if self.verdict is None:
            return "no episodes"
        return self.verdict.word if self.claim.source else OURS[self.verdict.word]


def results_of(lines: Iterable[Mapping[str, str]]) -> Results:
    runs: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for line in lines:
        point = float(line["mean"] or "nan"), float(line["best"] or "nan")
        runs.setdefault((line["task"], line["condition"], int(line["seed"])), []).append(point)
    results: Results = {}
    for (task, condition, seed), points in runs.items():
        mean, best = np.array(points).T
        last = max(1, round(END_SHARE * len(mean)))
        values: Values = {"whole run": mean_of(mean), "end": mean_of(mean[-last:]), "best": mean_of(best[-last:])}
        results.setdefault(task, {}).setdefault(condition, {})[seed] = values
    return results


def judge(experiment: Experiment, tasks: Sequence[ExperimentTask], results: Results) -> list[Judged]:
    """Judge every claim over all tasks and on each task, with p-values adjusted by Holm's rule."""
    overall, by_task = list[Judged](), list[list[Judged]]()
    for claim in experiment.claims:
        scores = {task.name: _scores(task, results, claim.statistic) for task in tasks}
        first = next(iter(scores.values()))
        together = {
            condition: {seed: float(np.mean([one[condition][seed] for one in scores.values()])) for seed in seeds}
            for condition, seeds in first.items()
        }
        overall.append(Judged(claim, ALL, judge_claim(claim, together)))
        by_task.append(_adjusted([Judged(claim, name, judge_claim(claim, one)) for name, one in scores.items()]))
    return [judged for one, rest in zip(_adjusted(overall), by_task, strict=True) for judged in (one, *rest)]


def _adjusted(family: Sequence[Judged]) -> list[Judged]:
    values = iter(holm([one.verdict.p for one in family if one.verdict is not None]))
    return [
        one if one.verdict is None else one._replace(verdict=one.verdict._replace(p=next(values))) for one in family
    ]


def judge_claim(claim: Claim, scores: Scores) -> Verdict | None:
    """Judge by scores[condition][seed], paired by seed; None where a score is not a number."""
    better, worse = scores[claim.better], scores[claim.worse]
    if not np.isfinite([*better.values(), *worse.values()]).all():
        return None
    # Sorted, so that the drawing, and with it the last digits, does not depend on which seed came in first.
    seeds = sorted(better)
    return verdict([better[seed] for seed in seeds], [worse[seed] for seed in seeds], margin=claim.margin)


def _scores(task: ExperimentTask, results: Results, statistic: Statistic) -> Scores:
    return {
        # Rounded, so that two runs with the same returns have no difference, not one of the last bit.
        condition: {seed: round(task.returns.normalised(values[statistic]), _DIGITS) for seed, values in seeds.items()}
        for condition, seeds in results[task.name].items()
    }
