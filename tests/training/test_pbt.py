"""Who copies whom: only the better, never the broken, once an interval; and a resumed sweep decides as an uninterrupted one."""

import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from laser_rl.training.pbt import PbtConfig, PbtState, Standing, normalised, paper

RATE = ("learning_rate",)
ANY_SCORE = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf]), st.floats(-100, 100), st.integers(-3, 3))
SCORES = st.lists(ANY_SCORE, min_size=2, max_size=7)


def rule(**changed):
    return PbtConfig(**{"burn_in_steps": 100, "every_episodes": 10, "margin": 1.0, **changed})


def standing_of(scores, *, steps=100, episodes=10):
    return [Standing(k, steps, episodes, score) for k, score in enumerate(scores)]


def hyper_of(members):
    """Every value tells whose it is."""
    return [{"learning_rate": 1e-3 * 2**k, "entropy_cost": 1e-2 * 3**k} for k in range(members)]


def decided(scores, config=None, *, seed=0, **progress):
    return PbtState(config or rule(), len(scores), seed).decide(standing_of(scores, **progress), hyper_of(len(scores)))


@given(scores=SCORES, seed=st.integers(0, 2**32), margin=st.sampled_from([0.0, 0.5, 10.0]))
def test_only_finite_settled_others_that_are_better_by_more_than_the_margin_are_copied(scores, seed, margin):
    copies = decided(scores, rule(margin=margin), seed=seed)
    done = set()
    for copied in copies:
        assert copied.donor != copied.member
        assert copied.donor not in done, "its parameters are about to change"
        assert math.isfinite(scores[copied.donor])
        assert copied.donor_score == scores[copied.donor]
        if math.isfinite(scores[copied.member]):
            assert scores[copied.donor] > scores[copied.member] + margin
            assert copied.score == scores[copied.member]
        else:
            assert math.isnan(copied.score)
        done.add(copied.member)
    assert len(done) == len(copies)
    assert [copied.member for copied in copies] == sorted(done)


@pytest.mark.fault(20)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_member_always_copies_and_is_never_copied(broken):
    for seed in range(50):
        copies = decided([broken, 5.0, broken, 5.5], rule(margin=1.0), seed=seed)
        assert [copied.member for copied in copies] == [0, 2]
        assert {copied.donor for copied in copies} <= {1, 3}


def test_nobody_copies_where_all_are_broken_or_alone():
    assert decided([math.nan, math.nan, math.inf]) == []
    assert decided([3.0]) == decided([math.nan]) == []


@given(own=st.integers(-1000, 1000), eighths=st.integers(1, 800))
def test_the_margin_itself_is_not_enough(own, eighths):
    margin = eighths / 8  # exact in binary
    assert decided([own, own + margin], rule(margin=margin)) == []
    assert [c.member for c in decided([own, own + margin + 1 / 16], rule(margin=margin))] == [0]
    assert [c.member for c in decided([own + margin + 1 / 16, own], rule(margin=margin))] == [1]


def test_every_other_settled_member_is_looked_at_equally_often():
    config, counts, seeds = rule(), [0] * 6, 4000
    standing = [*standing_of([0, 5, 6, 7, 8]), Standing(5, 99, 10, 1000.0)]  # the last one is in its burn-in
    for seed in range(seeds):
        first = PbtState(config, 6, seed).decide(standing, hyper_of(6))[0]
        counts[first.donor] += first.member == 0
    assert counts[0] == counts[5] == 0
    assert sum(counts) == seeds
    assert stats.chisquare(counts[1:5]).pvalue > 1e-3


def test_nobody_decides_during_the_burn_in():
    state = PbtState(rule(), 2, seed=0)
    assert state.decide(standing_of([0, 9], steps=99), hyper_of(2)) == []
    assert state.decided_at == [0, 0], "the interval is still there when the burn-in ends"
    assert len(state.decide(standing_of([0, 9], steps=100), hyper_of(2))) == 1


def test_a_decision_uses_the_interval_whatever_comes_of_it():
    for scores in ([0, 9], [9, 9], [math.nan, math.nan]):
        state = PbtState(rule(), 2, seed=0)
        state.decide(standing_of(scores, episodes=9), hyper_of(2))
        assert state.decided_at == [0, 0]
        state.decide(standing_of(scores, episodes=37), hyper_of(2))
        assert state.decided_at == [37, 37]
        assert state.decide(standing_of([0, 9], episodes=46), hyper_of(2)) == []
        assert len(state.decide(standing_of([0, 9], episodes=47), hyper_of(2))) == 1


@given(finished=st.lists(st.integers(0, 25), min_size=1, max_size=40))
def test_one_decision_an_interval(finished):
    """Member 0 is always worse than member 1, so that its decisions are its copies."""
    state, episodes, last, expected = PbtState(rule(), 2, seed=0), 0, 0, []
    for number, count in enumerate(finished):
        episodes += count
        standing = [Standing(0, 100 + number, episodes, 0.0), Standing(1, 100, 0, 9.0)]
        state.decide(standing, hyper_of(2))
        if episodes - last >= 10:
            last = episodes
            expected.append(100 + number)
    assert [copied.step for copied in state.history] == expected
    assert [copied.number for copied in state.history] == list(range(len(expected)))


@pytest.mark.parametrize(("factor", "probability"), [(1.2, 1 / 3), (2.0, 0.9)])
def test_settings_come_from_the_donor_and_move_by_the_factor_as_often_as_they_should(factor, probability):
    config, draws = rule(factor=factor, probability=probability), 10_000
    state = PbtState(config, 2, seed=5)
    own, donor = hyper_of(2)
    counts = {(name, move): 0 for name in own for move in ("up", "down", "same")}
    together = 0
    for k in range(1, draws + 1):
        (copied,) = state.decide([Standing(0, 100, 10 * k, 0.0), Standing(1, 100, 0, 9.0)], hyper_of(2))
        assert copied.before == own
        moves = {}
        for name in own:
            allowed = {donor[name] * factor: "up", donor[name] / factor: "down", donor[name]: "same"}
            moves[name] = allowed[copied.after[name]]
            counts[name, moves[name]] += 1
        together += all(move == "up" for move in moves.values())
    for (_, move), count in counts.items():
        chance = 1 - probability if move == "same" else probability / 2
        assert stats.binomtest(count, draws, chance).pvalue > 1e-3
    assert stats.binomtest(together, draws, (probability / 2) ** 2).pvalue > 1e-3, "settings move independently"


@given(scores=SCORES, seed=st.integers(0, 2**32))
def test_settings_that_always_move_do_so_where_nothing_is_copied_and_change_no_copy(scores, seed):
    copies = decided(scores, rule(), seed=seed)
    moved = decided(scores, rule(move_always=True, probability=1.0), seed=seed)
    own = [one for one in moved if one.donor == one.member]
    pairs = {(one.member, one.donor) for one in moved} - {(one.member, one.donor) for one in own}
    assert pairs == {(one.member, one.donor) for one in copies}
    for one in own:
        factors = {name: one.after[name] / one.before[name] for name in one.after}
        assert all(min(abs(factor - 1.2), abs(factor - 1 / 1.2)) < 1e-9 for factor in factors.values())
        assert one.before == hyper_of(len(scores))[one.member]
    assert {one.member for one in moved} == set(range(len(scores)))


def test_moves_stay_within_their_limits():
    limits = {"learning_rate": (1.9e-3, 2.1e-3)}  # the donor's is 2e-3
    state = PbtState(rule(limits=limits, probability=1.0), 2, seed=0)
    seen = set()
    for k in range(1, 60):
        (copied,) = state.decide([Standing(0, 100, 10 * k, 0.0), Standing(1, 100, 0, 9.0)], hyper_of(2))
        seen.add((copied.after["learning_rate"], copied.after["entropy_cost"]))
    assert seen == {(rate, cost) for rate in (1.9e-3, 2.1e-3) for cost in (3e-2 * 1.2, 3e-2 / 1.2)}


@given(score=st.floats(-1e6, 1e6), low=st.floats(-1e3, 1e3), width=st.floats(1e-2, 1e3))
def test_scores_are_normalised_and_capped(score, low, width):
    config = rule(score_low=low, score_high=low + width)
    assume(config.score_high > low)
    expected = (score - low) / (config.score_high - low)
    assert normalised(score, config) == pytest.approx(min(expected, 1.0))
    assert normalised(score, rule()) == score


def test_above_the_cap_all_are_equal_and_the_margin_is_in_normalised_units():
    config = rule(margin=0.125, score_low=-16, score_high=16)
    assert decided([16, 1000], config) == []
    assert decided([0, 4], config) == []
    assert len(decided([0, 4.5], config)) == 1


@given(scores=st.lists(ANY_SCORE, min_size=3, max_size=3), other=st.lists(ANY_SCORE, min_size=3, max_size=3))
def test_random_numbers_do_not_depend_on_scores(scores, other):
    one, two = PbtState(rule(), 3, seed=4), PbtState(rule(), 3, seed=4)
    one.decide(standing_of(scores), hyper_of(3))
    two.decide(standing_of(other), hyper_of(3))
    assert one.random.bit_generator.state == two.random.bit_generator.state
    assert one.random.bit_generator.state != PbtState(rule(), 3, seed=4).random.bit_generator.state


def simulate(table, state, hyper, *, first=0, store_at=()):
    """Calls with 0 to 20 new episodes each; settings change as decided. The state travels through JSON where asked."""
    for number, row in enumerate(table, first):
        if number in store_at:
            text = json.dumps(state.state_dict(), allow_nan=False)
            state = PbtState(rule(), len(hyper), seed=999)
            state.load_state_dict(json.loads(text))
        standing = [Standing(k, 80 + 20 * number, (7 + k) * number, score) for k, score in enumerate(row)]
        for copied in state.decide(standing, hyper):
            hyper[copied.member] = copied.after
    return state


@given(
    table=st.lists(st.lists(ANY_SCORE, min_size=4, max_size=4), min_size=2, max_size=20),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_a_resumed_sweep_decides_as_an_uninterrupted_one(table, data, seed):
    store_at = data.draw(st.sets(st.integers(0, len(table)), max_size=3))
    whole, parts = hyper_of(4), hyper_of(4)
    uninterrupted = simulate(table, PbtState(rule(), 4, seed), whole)
    resumed = simulate(table, PbtState(rule(), 4, seed), parts, store_at=store_at)
    assert resumed.history == uninterrupted.history
    assert parts == whole
    assert resumed.state_dict() == uninterrupted.state_dict()


def test_the_same_seed_decides_the_same_and_another_does_not():
    scores = [0, 2, 4, 6, 8, 10, 12]
    assert decided(scores, seed=1) == decided(scores, seed=1)
    assert len({tuple((c.member, c.donor) for c in decided(scores, seed=s)) for s in range(20)}) > 10


def test_a_state_is_a_copy():
    state = PbtState(rule(), 2, seed=0)
    state.decide(standing_of([math.nan, 9]), hyper_of(2))
    kept = state.state_dict()
    text = json.dumps(kept, allow_nan=False)
    state.decide(standing_of([0, 9], episodes=99), hyper_of(2))
    state.history[0].after["learning_rate"] = 7.0
    assert json.dumps(kept, allow_nan=False) == text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"margin": -0.1}, "greater than or equal to 0"),
        ({"margin": math.nan}, "finite"),
        ({"every_episodes": 0}, "greater than or equal to 1"),
        ({"factor": 1.0}, "greater than 1"),
        ({"probability": 1.1}, "less than or equal to 1"),
        ({"score_low": 0.0}, "belong together"),
        ({"score_low": 1.0, "score_high": 1.0}, "not below"),
        ({"tuned": ()}, "at least 1"),
        ({"tuned": ("learning_rate", "optimiser.learning_rate")}, "twice"),
        ({"tuned": ("learning_rat",)}, "did you mean 'optimiser.learning_rate'"),
        ({"tuned": ("discount",)}, "needs limits inside it"),
        ({"tuned": ("discount",), "limits": {"discount": (0.5, 1.5)}}, "needs limits inside it"),
        ({"tuned": ("batch_unrolls",), "limits": {"batch_unrolls": (2, 16)}}, "is a real number"),
        ({"tuned": ("batch_unrolls",), "limits": {"batch_unrolls": (16, 64)}}, "expected a setting of real numbers"),
        ({"tuned": ("trust",)}, "is a real number"),
        ({"limits": {"discount": (0.5, 1.0)}}, "which are not tuned"),
        ({"limits": {"learning_rate": (1e-2, 1e-3)}}, "expected 0 < low < high"),
        ({"limits": {"learning_rate": (0.0, 1e-3)}}, "expected 0 < low < high"),
    ],
)
def test_rules_that_cannot_work_are_refused(changed, message):
    with pytest.raises(ValidationError, match=message):
        rule(**changed)


def test_the_papers_numbers():
    config = paper(score_low=0.0, score_high=100.0)
    assert (config.burn_in_steps, config.every_episodes, config.margin) == (20_000_000 // 4, 5_000, 0.05)
    assert (config.factor, config.probability, config.tuned) == (1.2, 1 / 3, ("learning_rate", "entropy_cost"))
    assert normalised(150.0, config) == 1.0
    assert rule(tuned=("discount",), limits={"discount": (0.9, 1.0)}).limits == {"discount": (0.9, 1.0)}
