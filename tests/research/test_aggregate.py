"""Aggregates against SciPy, and their intervals against a full enumeration of what the bootstrap may draw."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from laser_rl.research.aggregate import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_iqm,
)

TABLES = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.integers(-5, 5).map(float))


def every_draw(*tables):
    """All equally probable outcomes of drawing runs anew within each task of each table, as lists of tables."""
    columns = [column for table in tables for column in np.asarray(table).T]
    widths = [np.shape(table)[1] for table in tables]
    for drawn in itertools.product(*(itertools.product(column, repeat=len(column)) for column in columns)):
        rest, found = list(drawn), []
        for width in widths:
            found.append(np.array(rest[:width]).T)
            rest = rest[width:]
        yield found


def brackets(outcomes, level=0.95, slack=0.006):
    """Where the two quantiles may lie if the share below each is off by `slack`: four standard errors of 20,000 draws."""
    tail = (1 - level) / 2
    return [
        tuple(np.quantile(outcomes, [max(0, at - slack), min(1, at + slack)], method="nearest"))
        for at in (tail, 1 - tail)
    ]


def assert_interval(interval, outcomes):
    for end, (low, high) in zip(interval, brackets(outcomes), strict=True):
        assert low - 1e-9 <= end <= high + 1e-9


def test_iqm_intervals_against_all_draws():
    table = np.array([[0.1, 2.0], [0.5, 2.2], [1.4, 5.0]])
    outcomes = [scipy.stats.trim_mean(drawn.ravel(), 0.25) for [drawn] in every_draw(table)]
    assert len(outcomes) == 27**2
    found = stratified_iqm(table, resamples=20_000)
    assert found.iqm == pytest.approx(scipy.stats.trim_mean(table.ravel(), 0.25))
    assert_interval(found.ci95, outcomes)


def test_improvement_intervals_against_all_draws():
    better, worse = np.array([[3.0, 1.0], [1.0, 2.0], [4.0, 2.5]]), np.array([[2.0, 1.5], [0.5, 2.0]])

    def superiority(first, second):
        pairs = [float(np.sign(x - y) + 1) / 2 for task in range(2) for x in first[:, task] for y in second[:, task]]
        return sum(pairs) / len(pairs)

    outcomes = [superiority(*drawn) for drawn in every_draw(better, worse)]
    found = probability_of_improvement(better, worse, resamples=20_000)
    assert found.probability == pytest.approx(superiority(better, worse))
    assert_interval(found.interval, outcomes)


def test_profile_bands_against_all_draws():
    table, thresholds = np.array([[0.1, 2.0], [0.5, 2.2], [1.4, 0.3]]), [0.0, 0.4, 0.5, 1.0, 9.0]
    found = performance_profile(table, thresholds, resamples=20_000)
    draws = [drawn for [drawn] in every_draw(table)]
    for place, threshold in enumerate(thresholds):
        assert found.share[place] == np.mean([value > threshold for value in table.ravel()])
        assert_interval((found.low[place], found.high[place]), [np.mean(drawn > threshold) for drawn in draws])


def test_iqm_intervals_against_scipys_bootstrap():
    table = np.random.default_rng(1).gamma(2.0, size=(10, 6)) + np.arange(6)

    def pooled(*tasks, axis=-1):
        return scipy.stats.trim_mean(np.concatenate(tasks, axis=axis), 0.25, axis=axis)

    theirs = scipy.stats.bootstrap(
        tuple(table.T), pooled, n_resamples=10_000, method="percentile", vectorized=True, batch=500,
        random_state=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    low, high = stratified_iqm(table, resamples=10_000).ci95
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.05 * width)
    assert high == pytest.approx(theirs.high, abs=0.05 * width)


@given(TABLES, TABLES)
def test_probability_of_improvement_is_mann_whitneys_u(better, worse):
    statistics = [
        scipy.stats.mannwhitneyu(x, y, method="asymptotic").statistic for x, y in zip(better.T, worse.T, strict=True)
    ]
    expected = np.mean(statistics) / (len(better) * len(worse))
    found = probability_of_improvement(better, worse, resamples=10)
    assert found.probability == pytest.approx(expected)
    assert probability_of_improvement(worse, better, resamples=10).probability == pytest.approx(1 - expected)


def test_coverage_of_the_iqm():
    """Of normal scores the interquartile mean estimates the mean; ten runs of five tasks, so fifty scores with five strata."""
    random, centres, covered = np.random.default_rng(3), np.zeros(5), 0
    for seed in range(400):
        low, high = stratified_iqm(random.normal(centres, 1.0, (10, 5)), resamples=400, seed=seed).ci95
        covered += low <= 0 <= high
    assert 0.89 <= covered / 400 <= 0.98  # the percentile bootstrap falls somewhat short of 0.95


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e3, 1e3)))
def test_interquartile_mean_is_scipys(values):
    assert interquartile_mean(values) == pytest.approx(scipy.stats.trim_mean(values, 0.25), abs=1e-9)


def test_a_profile_falls_from_one_to_zero():
    table = np.random.default_rng(4).normal(size=(5, 7))
    found = performance_profile(table, np.linspace(-9, 9, 50))
    assert (found.share[0], found.share[-1]) == (1.0, 0.0)
    assert (np.diff(found.share) <= 0).all()
    assert ((found.low <= found.share) & (found.share <= found.high)).all()


def test_bad_tables_are_refused():
    with pytest.raises(ValueError, match="expected the same tasks"):
        probability_of_improvement([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError, match="1 of 2 scores are not finite"):
        performance_profile([[1.0, np.nan]], [0.0])
