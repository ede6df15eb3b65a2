"""Is one condition better than another? Decided by a bootstrap interval over seeds, never by eye.

If the whole interval of the difference of mean scores lies above the margin, the claim is reproduced; if none of it does, it is not
reproduced; otherwise the seeds do not decide it. They decide nothing either where all came to the same: a task that both conditions
solve, or neither, is silent about which is better.

Experiments have three to ten seeds, and a plain percentile bootstrap of so few is too narrow: of two identical agents with three seeds
it would call one the better in about every fourth experiment. Two things are missing from it, and both are known: the spread of n drawn
values falls short by sqrt((n - 1) / n), and the spread itself is only an estimate, which is what Student's t is for. So deviations are
drawn with the unbiased spread, and the interval is stretched by t / z (Hesterberg 2015, "What teachers should know about the
bootstrap"). With many seeds both factors are 1.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]

from laser_rl.evaluation.statistics import Floats, bootstrap_interval, interquartile_mean

Word = Literal["reproduced", "not reproduced", "undecided"]


class Aggregate(NamedTuple):
    """An interquartile mean over runs and tasks with its interval."""

    iqm: float
    ci95: tuple[float, float]


class Verdict(NamedTuple):
    """What became of a claim: the difference of the means, better less worse, and its interval."""

    word: Word
    difference: float
    interval: tuple[float, float]


def stratified_iqm(scores: ArrayLike, *, resamples: int = 2000, seed: int = 0) -> Aggregate:
    """The interquartile mean of normalised scores [runs, tasks], after Agarwal et al. (2021).

    Runs are resampled within each task, tasks are given. Of a handful of runs the percentile interval is too narrow: decide by `verdict`.

    >>> aggregate = stratified_iqm([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0], [3.0, 13.0]])
    >>> aggregate.iqm, aggregate.ci95[0] <= 6.5 <= aggregate.ci95[1]
    (6.5, True)
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:  # noqa: PLR2004
        raise ValueError(f"scores have shape {table.shape}, expected [runs, tasks]")
    if missing := np.count_nonzero(~np.isfinite(table)):
        raise ValueError(f"{missing} of {table.size} scores are not finite; leave those runs out")
    return Aggregate(
        float(_pooled_iqm(table)), bootstrap_interval([table], _pooled_iqm, resamples=resamples, seed=seed)
    )


def _pooled_iqm(tables: Floats) -> Floats:
    return interquartile_mean(tables.reshape(*tables.shape[:-2], -1))


def verdict(
    better: Sequence[float],
    worse: Sequence[float],
    *,
    paired: bool = True,
    level: float = 0.95,
    margin: float = 0.0,
    resamples: int = 10_000,
    seed: int = 0,
) -> Verdict:
    """Judge the claim that `better`, one score for each seed, has a mean that is more than `margin` above that of `worse`.

    Paired scores stand at the same place for the same seed. One score alone has no spread: undecided, with an interval without ends.

    >>> verdict([5.0, 6.0, 5.5, 6.2, 5.1], [1.0, 2.5, 1.7, 2.0, 1.2]).word
    'reproduced'
    >>> verdict([1.0, 2.5, 1.7, 2.0, 1.2], [5.0, 6.0, 5.5, 6.2, 5.1]).word
    'not reproduced'
    >>> verdict([1.0, 5.0, 3.0], [2.0, 3.0, 4.0]).word
    'undecided'
    >>> verdict([1.0], [0.0])
    Verdict(word='undecided', difference=1.0, interval=(-inf, inf))
    """
    difference, (low, high) = difference_interval(
        better, worse, paired=paired, level=level, resamples=resamples, seed=seed
    )
    word: Word = "undecided"
    if low > margin:
        word = "reproduced"
    elif high <= margin and not low == high == margin:
        word = "not reproduced"
    return Verdict(word, difference, (low, high))


def difference_interval(
    better: Sequence[float],
    worse: Sequence[float],
    *,
    paired: bool = True,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, tuple[float, float]]:
    """The difference of the means and its bootstrap interval, widened for few seeds (see above).

    >>> difference, (low, high) = difference_interval([3.0, 4.0, 5.0], [1.0, 2.5, 2.5])
    >>> difference, low < difference < high
    (2.0, True)
    """
    above, below = _scores(better, "better"), _scores(worse, "worse")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level}, expected a share between 0 and 1")
    if paired and above.size != below.size:
        raise ValueError(f"{above.size} scores against {below.size} are not pairs; pass paired=False")
    groups = [above - below] if paired else [above, -below]
    difference = float(sum(group.mean() for group in groups))
    if any(group.size == 1 for group in groups):
        return difference, (-np.inf, np.inf)
    deviations = [(group - group.mean()) * np.sqrt(group.size / (group.size - 1)) for group in groups]
    low, high = bootstrap_interval(
        deviations,
        lambda *drawn: np.sum([group.mean(-1) for group in drawn], axis=0),
        level=level,
        resamples=resamples,
        batch=resamples,
        seed=seed,
    )
    stretch = _stretch(groups, level)
    return difference, (difference + low * stretch, difference + high * stretch)


def _scores(values: Sequence[float], name: str) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size == 0 or not np.isfinite(found).all():
        raise ValueError(f"{name}: expected at least one finite score, one for each seed, got {values}")
    return found


def _stretch(groups: Sequence[Floats], level: float) -> float:
    """Student's quantile over the normal one; degrees of freedom of several groups after Welch and Satterthwaite."""
    variances = np.array([group.var(ddof=1) / group.size for group in groups])
    if not variances.any():
        return 1.0  # every seed came to the same: there is nothing to stretch
    freedom = variances.sum() ** 2 / sum(
        variance**2 / (group.size - 1) for variance, group in zip(variances, groups, strict=True)
    )
    tail = (1 + level) / 2
    return float(stdtrit(freedom, tail) / ndtri(tail))
