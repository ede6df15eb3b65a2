"""What the runs of an experiment say: a few numbers for each run, and for each claim whether it holds.

The unit is the run, a whole sweep: members are put together first. Claims are judged on scores (0 random play, 1 the best), task by task
and for all tasks together, where a seed's score is the mean over tasks. Each verdict stands for itself at 95 %: of twenty claims about
equal agents one is expected to be called reproduced or not.

A bootstrap interval over seeds decides. If the whole interval of the difference of mean scores lies above the margin, the claim is
reproduced; if none of it does, it is not reproduced; otherwise the seeds do not decide it. They decide nothing either where all came to
the same: a task that both conditions solve, or neither, is silent about which is better.

Experiments have three to ten seeds, and a plain percentile bootstrap of so few is too narrow: of two identical agents with three seeds
it would call one the better in about every fourth experiment. Two things are missing from it, and both are known: the spread of n drawn
values falls short by sqrt((n - 1) / n), and the spread itself is only an estimate, which is what Student's t is for. So deviations are
drawn with the unbiased spread, and the interval is stretched by t / z (Hesterberg 2015, "What teachers should know about the
bootstrap"). With many seeds both factors are 1.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from laser_rl.evaluation.statistics import Floats, bootstrap_interval, interquartile_mean
from laser_rl.research.experiment import STATISTICS, Claim, Experiment, ExperimentTask, Statistic
from laser_rl.research.protocol import known

ALL = "all tasks"
_DIGITS = 9
END_SHARE = 0.2  # of the buckets of a run
Word = Literal["reproduced", "not reproduced", "undecided"]
# Of a question that the paper did not ask.
OURS = {"reproduced": "yes", "not reproduced": "no", "undecided": "undecided"}
Scores = Mapping[str, Mapping[int, float]]  # by condition and seed
Values = Mapping[Statistic, float]
Results = dict[str, dict[str, dict[int, Values]]]  # by task, condition, seed; as returns
Spread = tuple[float, float, float]  # a mean and its interval; NaN where there is none


class Verdict(NamedTuple):
    """What became of a claim: the difference of the means, better less worse, and its interval."""

    word: Word
    difference: float
    interval: tuple[float, float]


def verdict(better: Sequence[float], worse: Sequence[float], *, margin: float = 0.0, **options: Any) -> Verdict:
    """Judge the claim that `better`, one score for each seed, has a mean that is more than `margin` above that of `worse`.

    `options` are those of `difference_interval`. One score alone has no spread: undecided, with an interval without ends.
    """
    difference, low, high = difference_interval(better, worse, **options)
    word: Word = "undecided"
    if low > margin:
        word = "reproduced"
    elif high <= margin and not low == high == margin:
        word = "not reproduced"
    return Verdict(word, difference, (low, high))


def difference_interval(
    better: Sequence[float], worse: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Spread:
    """The difference of the means and its bootstrap interval, widened for few seeds (see above).

    Scores are paired, as many of each: they stand at the same place for the same seed.
    """
    if not len(better) == len(worse) > 0 or not np.isfinite([better, worse]).all():
        raise ValueError(f"expected one finite score for each seed on either side, got {better} and {worse}")
    pairs = np.subtract(better, worse, dtype=np.float64)
    difference, count = float(pairs.mean()), pairs.size
    if count == 1:
        return difference, -math.inf, math.inf
    if not pairs.var():  # every seed came to the same: there is nothing to stretch
        return difference, difference, difference
    deviations = (pairs - difference) * np.sqrt(count / (count - 1))
    low, high = bootstrap_interval(
        [deviations], lambda drawn: drawn.mean(-1), level=level, resamples=resamples, batch=resamples, seed=seed
    )
    from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]  # noqa: PLC0415 - of the extra `experiments`

    tail = (1 + level) / 2
    stretch = float(stdtrit(count - 1, tail) / ndtri(tail))
    return difference, difference + low * stretch, difference + high * stretch


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
        results.setdefault(task, {}).setdefault(condition, {})[seed] = statistics_of(mean, best)
    return results


def statistics_of(mean: Floats, best: Floats) -> Values:
    """Of one run's curves, those of the mean and of the best member by bucket."""
    last = max(1, round(END_SHARE * len(mean)))
    return {"whole run": _known_mean(mean), "end": _known_mean(mean[-last:]), "best": _known_mean(best[-last:])}


def _known_mean(values: Floats) -> float:
    return float(known(values).mean()) if known(values).size else math.nan


def judge(experiment: Experiment, tasks: Sequence[ExperimentTask], results: Results) -> list[Judged]:
    judged = []
    for claim in experiment.claims:
        by_task = {task.name: _scores(task, results, claim.statistic) for task in tasks}
        first = next(iter(by_task.values()))
        together = {
            condition: {seed: float(np.mean([one[condition][seed] for one in by_task.values()])) for seed in seeds}
            for condition, seeds in first.items()
        }
        judged += [Judged(claim, name, judge_claim(claim, one)) for name, one in {ALL: together, **by_task}.items()]
    return judged


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


def spread_of(values: Sequence[float]) -> Spread:
    if not np.isfinite(values).all():
        return math.nan, math.nan, math.nan
    return difference_interval(values, [0.0] * len(values))


def overall(tasks: Sequence[ExperimentTask], results: Results) -> dict[str, dict[str, Spread]]:
    """Each condition over all tasks, in scores, by name of the measure; only of conditions whose runs all have numbers.

    Interquartile means are over tasks and seeds. Of the best member also the median and the mean over tasks, each counted 1 at most.
    """
    found = {}
    for condition in results[tasks[0].name]:
        tables = {
            statistic: np.array([list(_scores(task, results, statistic)[condition].values()) for task in tasks]).T
            for statistic in STATISTICS
        }
        if not all(np.isfinite(scores).all() for scores in tables.values()):
            continue
        measures: dict[str, Spread] = {}
        for statistic, scores in tables.items():
            iqm, interval = stratified_iqm(scores)
            measures[f"{statistic}, IQM"] = iqm, *interval
        best = tables["best"].mean(axis=0)
        measures["best, median"] = float(np.median(best)), math.nan, math.nan
        measures["best, capped mean"] = float(np.minimum(best, 1).mean()), math.nan, math.nan
        found[condition] = measures
    return found
