"""Statistics against their definitions, and intervals against their coverage."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.evaluation.statistics import bootstrap_interval, summarise

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def naive_iqm(values):
    """Sort, leave out a quarter (rounded down) at each end, average."""
    ordered, cut = sorted(values), len(values) // 4
    kept = ordered[cut : len(values) - cut]
    return sum(kept) / len(kept)


@given(NUMBERS)
def test_against_the_definitions(values):
    result = summarise(values)
    assert result.episodes == len(values)
    assert result.returns == tuple(values)
    assert result.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-9, abs=1e-6)
    assert result.iqm == pytest.approx(naive_iqm(values), rel=1e-9, abs=1e-6)
    assert (result.minimum, result.maximum) == (min(values), max(values))
    ordered = sorted(values)
    middle = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
    assert result.median == pytest.approx(middle)
    low, high = result.ci95
    slack = 1e-9 * max(1.0, abs(result.minimum), abs(result.maximum))
    assert result.minimum - slack <= low <= high <= result.maximum + slack


@pytest.mark.parametrize("values", [[3.0], [5.0] * 10])
def test_where_there_is_nothing_to_draw_from_the_interval_collapses(values):
    result = summarise(values)
    assert result.ci95 == (values[0], values[0])
    assert result.std == 0


def test_the_interval_is_that_of_the_mean_and_not_of_single_episodes():
    values = np.random.default_rng(1).normal(10, 3, 400)
    low, high = summarise(values).ci95
    half = 1.96 * values.std(ddof=1) / np.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    random, covered = np.random.default_rng(2), 0
    for seed in range(200):
        low, high = summarise(random.exponential(1.0, 50), seed=seed).ci95
        covered += low <= 1.0 <= high
    assert 0.85 <= covered / 200 <= 0.99  # the percentile bootstrap of 50 skewed numbers falls somewhat short of 0.95


def test_the_seed_decides():
    values = np.random.default_rng(3).normal(size=30).tolist()
    assert summarise(values) == summarise(values)
    assert summarise(values, seed=1).ci95 != summarise(values, seed=2).ci95


def test_repr_is_short():
    assert repr(summarise([490.0, 500.0, 500.0, 500.0])) == "EvalResult(mean=497.5, iqm=500.0, ci95=(492.5, 500.0))"
    assert repr(summarise([0.99, 0.99])) == "EvalResult(mean=0.99, iqm=0.99, ci95=(0.99, 0.99))"


def test_lengths():
    assert summarise([1.0, 2.0], lengths=[10, 20]).length_mean == 15
    assert math.isnan(summarise([1.0]).length_mean)
    with pytest.raises(ValueError, match="1 lengths for 2 returns"):
        summarise([1.0, 2.0], lengths=[1])


@pytest.mark.parametrize("bad", [[], [[1.0]], 3.0])
def test_bad_shapes_are_refused(bad):
    with pytest.raises(ValueError, match="shape"):
        summarise(bad)


@pytest.mark.parametrize("sizes", [(30,), (4, 9, 2)])
def test_intervals_are_scipys_percentile_bootstrap(sizes):
    """The same draws for the same seed, so the same ends but for rounding; several samples are resampled one by one."""
    samples = [np.random.default_rng(size).gamma(2.0, size=size) for size in sizes]

    def total(*drawn, axis=-1):
        return np.sum([sample.mean(axis) for sample in drawn], axis=0)

    theirs = scipy.stats.bootstrap(
        samples, total, n_resamples=2000,
        method="percentile", vectorized=True, batch=100, random_state=np.random.default_rng(5),
    ).confidence_interval  # fmt: skip
    ours = bootstrap_interval(samples, total, seed=5)
    assert ours == pytest.approx((theirs.low, theirs.high), rel=1e-12)
