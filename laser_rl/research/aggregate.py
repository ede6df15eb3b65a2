"""What a handful of runs says of an agent over many tasks, after Agarwal et al. (2021), "Deep RL at the edge of the statistical precipice".

Scores are tables [runs, tasks], normalised, so that tasks can be put together. The bootstrap is stratified: runs are drawn anew within
each task, tasks are given. Intervals are percentiles, pointwise; of three runs they are too narrow (`claims` has the remedy for means).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
LEVEL = 0.95
_CUT = 0.25  # the interquartile mean leaves out a quarter at each end
Floats = NDArray[np.float64]


class Aggregate(NamedTuple):
    """An interquartile mean over runs and tasks with its interval."""

    iqm: float
    ci95: tuple[float, float]


class Improvement(NamedTuple):
    """How probably a run of one agent is better than a run of another, in a task drawn at random."""

    probability: float
    interval: tuple[float, float]


class Profile(NamedTuple):
    """Share of runs above each threshold, every task counted the same, with a pointwise band."""

    thresholds: Floats
    share: Floats
    low: Floats
    high: Floats


def interquartile_mean(values: Floats) -> Floats:
    """The mean without the lowest and the highest quarter (rounded down) of the last axis.

    >>> float(interquartile_mean(np.array([0.0, 1.0, 2.0, 90.0])))
    1.5
    """
    cut = int(_CUT * values.shape[-1])
    return np.asarray(np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1))


def stratified_iqm(scores: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> Aggregate:
    """The interquartile mean of scores [runs, tasks] over all of them.

    >>> aggregate = stratified_iqm([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0], [3.0, 13.0]])
    >>> aggregate.iqm, aggregate.ci95[0] <= 6.5 <= aggregate.ci95[1]
    (6.5, True)
    """
    table = _table(scores)
    low, high = stratified_interval([table], _pooled_iqm, resamples=resamples, seed=seed)
    return Aggregate(float(_pooled_iqm(table)), (float(low), float(high)))


def performance_profile(
    scores: ArrayLike, thresholds: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Profile:
    """At each threshold the share of scores [runs, tasks] above it. Where two agents' curves cross, none is better throughout.

    >>> performance_profile([[0.2, 0.9], [0.4, 1.1]], [0.0, 0.3, 1.0]).share.tolist()
    [1.0, 0.75, 0.25]
    """
    table, at = _table(scores), np.asarray(thresholds, dtype=np.float64)

    def shares(drawn: Floats) -> Floats:
        # A threshold a time: all at once would take thresholds times the memory of the drawn tables.
        return np.stack([(drawn > threshold).mean(axis=(-2, -1)) for threshold in at], axis=-1)

    low, high = stratified_interval([table], shares, level=level, resamples=resamples, seed=seed)
    return Profile(at, shares(table), low, high)


def probability_of_improvement(
    better: ArrayLike, worse: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Improvement:
    """P(X > Y) for runs X of `better` and Y of `worse`, ties counted half, as the mean over tasks of scores [runs, tasks].

    It says nothing of how much better. The two need not have the same number of runs; they have the same tasks.

    >>> probability_of_improvement([[2.0, 1.0], [4.0, 1.0]], [[1.0, 1.0], [3.0, 1.0]]).probability  # 3 of 4 pairs, and all tied
    0.625
    """
    first, second = _table(better), _table(worse)
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"scores of {first.shape[1]} tasks against scores of {second.shape[1]}, expected the same tasks"
        )
    low, high = stratified_interval([first, second], _superiority, level=level, resamples=resamples, seed=seed)
    return Improvement(float(_superiority(first, second)), (float(low), float(high)))


def stratified_interval(
    tables: list[Floats],
    statistic: Callable[..., Floats],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Percentiles of a statistic of tables [runs, tasks] whose runs are drawn anew within each task; each table for itself.

    `statistic` gets drawn tables [resamples, runs, tasks] and returns [resamples, ...].

    >>> low, high = stratified_interval([np.array([[1.0], [3.0]])], lambda drawn: drawn.mean(axis=(-2, -1)))
    >>> float(low), float(high)
    (1.0, 3.0)
    """
    generator = np.random.default_rng(seed)
    drawn = []
    for table in tables:
        runs, tasks = table.shape
        drawn.append(table[generator.integers(0, runs, (resamples, runs, tasks)), np.arange(tasks)])
    low, high = np.quantile(statistic(*drawn), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(low), np.asarray(high)


def _pooled_iqm(drawn: Floats) -> Floats:
    return interquartile_mean(drawn.reshape(*drawn.shape[:-2], -1))


def _superiority(first: Floats, second: Floats) -> Floats:
    """Mann and Whitney's U over the number of pairs, averaged over tasks."""
    above = np.zeros(first.shape[:-2])
    for run in range(first.shape[-2]):  # a run a time, for the memory's sake
        mine = first[..., run : run + 1, :]
        above += ((mine > second) + 0.5 * (mine == second)).mean(axis=(-2, -1))
    return np.asarray(above / first.shape[-2])


def _table(scores: ArrayLike) -> Floats:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:  # noqa: PLR2004
        raise ValueError(f"scores have shape {table.shape}, expected [runs, tasks]")
    if not np.isfinite(table).all():
        raise ValueError(
            f"{np.count_nonzero(~np.isfinite(table))} of {table.size} scores are not finite; leave those runs out"
        )
    return table
