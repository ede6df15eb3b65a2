"""Verdicts: how often equal agents are told apart, how often different ones are; intervals and p-values against SciPy's and all draws."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.research.experiment import Claim
from laser_rl.research.verdicts import holm, judge_claim, p_value, results_of, stratified_iqm, t_interval, verdict

REPEATS = 1000
SLACK = 4 * math.sqrt(0.95 * 0.05 / REPEATS)  # four standard errors of a share of 0.95
DRAWS = {
    "normal": lambda random, n: random.normal(size=n),
    "skewed": lambda random, n: random.exponential(size=n),
    "solved or not": lambda random, n: (random.random(n) < 0.9).astype(float),
}


def words(draw, seeds, *, shift=0.0, repeats=REPEATS):
    random = np.random.default_rng(1)
    found = [verdict(shift + draw(random, seeds), draw(random, seeds)).word for _ in range(repeats)]
    return {word: found.count(word) / repeats for word in ("reproduced", "not reproduced", "undecided")}


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_two_identical_agents_are_undecided_at_the_right_rate(seeds):
    found = words(DRAWS["normal"], seeds)
    assert found["undecided"] == pytest.approx(0.95, abs=SLACK)
    one_sided = 4 * math.sqrt(0.025 * 0.975 / REPEATS)
    assert found["reproduced"] == pytest.approx(0.025, abs=one_sided)
    assert found["not reproduced"] == pytest.approx(0.025, abs=one_sided)


@pytest.mark.parametrize("kind", ["skewed", "solved or not"])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_identical_agents_are_not_told_apart_too_often_whatever_their_scores_look_like(kind, seeds):
    """Scores with ties are undecided more often: where all seeds came to the same there is nothing to decide by."""
    assert words(DRAWS[kind], seeds)["undecided"] >= 0.95 - SLACK


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_intervals_cover_a_known_difference(seeds):
    random, covered = np.random.default_rng(3), 0
    for _ in range(REPEATS):
        common = random.normal(0, 5, seeds)  # what a seed does to both
        better, worse = 2.0 + common + random.normal(size=seeds), common + random.normal(size=seeds)
        low, high = verdict(better, worse).interval
        covered += low <= 2.0 <= high
    assert covered / REPEATS == pytest.approx(0.95, abs=SLACK)


def test_clear_effects_are_seen():
    assert words(DRAWS["normal"], 5, shift=4.0, repeats=200)["reproduced"] > 0.9
    assert words(DRAWS["normal"], 5, shift=-4.0, repeats=200)["not reproduced"] > 0.9
    assert words(DRAWS["normal"], 5, shift=0.5, repeats=200)["undecided"] > 0.7  # too few seeds for so little


@pytest.mark.parametrize("margin", [0.0, -0.5, 0.3])
@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
def test_intervals_and_p_values_are_scipys(seeds, margin):
    random = np.random.default_rng(seeds)
    better, worse = random.gamma(2.0, size=seeds), random.gamma(1.5, size=seeds)
    theirs = scipy.stats.ttest_rel(better - margin, worse)
    found = verdict(better, worse, margin=margin)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.interval == pytest.approx(tuple(end + margin for end in theirs.confidence_interval(0.95)))
    mean, half = t_interval(better, level=0.9)
    assert (mean - half, mean + half) == pytest.approx(
        tuple(scipy.stats.ttest_1samp(better, 0).confidence_interval(0.9))
    )


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_rule_by_its_definition(values):
    """A hypothesis is rejected at a level if it and all with smaller p-values pass level / (number of those not smaller)."""
    adjusted = holm(values)
    order = sorted(range(len(values)), key=values.__getitem__)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for rank, place in enumerate(order):
            if values[place] * (len(values) - rank) > level:
                break
            rejected.add(place)
        assert {place for place, p in enumerate(adjusted) if p <= level} == rejected


def test_false_verdicts_of_a_family_of_equal_agents_stay_below_one_in_twenty():
    random = np.random.default_rng(8)
    wrong = sum(
        min(holm([p_value(row) for row in random.normal(size=(10, 5))])) <= 0.05 for _ in range(REPEATS)
    )  # fmt: skip
    assert wrong / REPEATS <= 0.05 + SLACK


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8), st.floats(0.1, 10), st.floats(-50, 50))
def test_units_do_not_matter_and_the_opposite_claim_is_the_mirror_image(scores, scale, shift):
    better, worse = np.array(scores), np.array(scores)[::-1] / 2
    found = verdict(better, worse)
    scaled = verdict(shift + scale * better, shift + scale * worse)
    assert scaled.interval == pytest.approx(tuple(scale * end for end in found.interval), rel=1e-6, abs=1e-6)
    mirrored = verdict(worse, better)
    assert mirrored.difference == pytest.approx(-found.difference)
    assert mirrored.interval == pytest.approx(tuple(-end for end in found.interval[::-1]), rel=1e-6, abs=1e-6)
    assert mirrored.p == pytest.approx(found.p)


def test_a_margin_makes_a_claim_of_not_worse():
    better, worse = [1.0, 1.1, 0.9, 1.0, 1.05], [1.05, 1.0, 1.0, 0.95, 1.1]
    assert verdict(better, worse).word == "undecided"
    assert verdict(better, worse, margin=-0.5).word == "reproduced"
    assert verdict(better, worse, margin=0.5).word == "not reproduced"


def test_seeds_that_all_came_to_the_same():
    found = verdict([1.0] * 5, [1.0] * 5)
    assert (found.word, *found) == ("undecided", 0.0, (0.0, 0.0), 1.0, 0.0)
    found = verdict([1.0] * 5, [0.0] * 5)
    assert (found.word, *found) == ("reproduced", 1.0, (1.0, 1.0), 0.0, 0.0)
    assert verdict([1.0] * 5, [0.0] * 5, margin=1.0).word == "undecided"
    assert verdict([1.0] * 5, [0.0] * 5, margin=2.0).word == "not reproduced"


def test_one_seed_decides_nothing():
    found = verdict([9.0], [1.0])
    assert (found.word, *found) == ("undecided", 8.0, (-math.inf, math.inf), 1.0, 0.0)


def test_what_a_seed_does_to_both_conditions_is_taken_out_by_pairing():
    """Seeds differ a hundred times more than conditions. In another order the pairs are the same, by their seeds."""
    base = {1: 10.0, 2: 200.0, 3: 3000.0, 4: 40.0, 5: 500.0}
    better = {seed: value + 1 + 0.1 * seed for seed, value in reversed(base.items())}
    claim = Claim("better than the base", "new", "base")
    assert judge_claim(claim, {"new": better, "base": base}).word == "reproduced"
    assert judge_claim(claim, {"new": better, "base": base}) == judge_claim(
        claim, {"base": base, "new": dict(sorted(better.items()))}
    )


@pytest.mark.parametrize(
    ("better", "worse"), [([], []), ([], [1.0]), ([1.0], [math.nan]), ([1.0, 2.0], [1.0]), ([1.0], [1.0, 2.0])]
)
def test_bad_scores_are_refused(better, worse):
    with pytest.raises(ValueError, match="expected one finite score for each seed on either side"):
        verdict(better, worse)


def test_a_run_is_known_by_its_mean_its_end_and_its_best_member():
    who = {"task": "Catch", "condition": "shared", "seed": "0"}
    lines = [
        {**who, "mean": mean, "best": best}
        for mean, best in zip(["", "0", "1", "2", "3"], ["", "0", "2", "4", "6"], strict=True)
    ]
    assert results_of(lines) == {"Catch": {"shared": {0: {"whole run": 1.5, "end": 3.0, "best": 6.0}}}}


def every_draw(table):
    """All equally probable outcomes of drawing runs anew within each task."""
    columns = [itertools.product(column, repeat=len(column)) for column in np.asarray(table).T]
    return [np.array(drawn).T for drawn in itertools.product(*columns)]


def test_iqm_intervals_against_all_draws():
    """The share of outcomes below each end may be off by 0.006: four standard errors of 20,000 draws."""
    table = np.array([[0.1, 2.0], [0.5, 2.2], [1.4, 5.0]])
    outcomes = [scipy.stats.trim_mean(drawn.ravel(), 0.25) for drawn in every_draw(table)]
    assert len(outcomes) == 27**2
    found = stratified_iqm(table, resamples=20_000)
    assert found.iqm == pytest.approx(scipy.stats.trim_mean(table.ravel(), 0.25))
    for end, at in zip(found.ci95, (0.025, 0.975), strict=True):
        low, high = np.quantile(outcomes, [at - 0.006, at + 0.006], method="nearest")
        assert low - 1e-9 <= end <= high + 1e-9


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


def test_coverage_of_the_iqm():
    """Of normal scores the interquartile mean estimates the mean; ten runs of five tasks, so fifty scores with five strata."""
    random, centres, covered = np.random.default_rng(3), np.zeros(5), 0
    for seed in range(400):
        low, high = stratified_iqm(random.normal(centres, 1.0, (10, 5)), resamples=400, seed=seed).ci95
        covered += low <= 0 <= high
    assert 0.89 <= covered / 400 <= 0.98  # the percentile bootstrap falls somewhat short of 0.95


def test_strata_are_kept_apart():
    """Tasks differ a hundredfold and runs hardly: drawing runs within tasks gives a narrow interval, drawing scores a wide one."""
    scores = np.array([[1.0, 100.0, 200.0, 300.0]]) + np.random.default_rng(4).normal(0, 0.1, (5, 4))
    result = stratified_iqm(scores)
    assert result.iqm == pytest.approx(scipy.stats.trim_mean(scores.ravel(), 0.25))
    low, high = result.ci95
    assert low <= result.iqm <= high
    assert 0 < high - low < 1.0
