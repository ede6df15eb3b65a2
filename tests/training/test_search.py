"""Decisions of a search: against a made-up score of which the best setting is known, and as a function of records alone."""

import json
import math

import numpy as np
import pytest

optuna = pytest.importorskip("optuna")

from laser_rl.training.pbt import Standing  # noqa: E402
from laser_rl.training.search import SearchConfig, SearchState  # noqa: E402
from laser_rl.training.settings import Choice, LogUniform, UniformDistribution  # noqa: E402

SPACE = {"learning_rate": LogUniform(low=1e-5, high=1e-1), "entropy_cost": UniformDistribution(low=0.0, high=0.1)}
MEMBERS, STEPS = 4, 4_000


def goal(settings, steps):
    """Learns towards a height that falls with the distance from a rate of 1e-3, and never stops."""
    height = 100 - 20 * abs(math.log10(settings["learning_rate"]) + 3) - 100 * settings["entropy_cost"]
    return height * (1 - math.exp(-steps / 150))


def first_of(space, members=MEMBERS):
    random = np.random.default_rng(11)
    return [{name: one.at(float(random.random())) for name, one in space.items()} for _ in range(members)]


def made(space=SPACE, **settings):
    return SearchState(SearchConfig(**{"trials": 20, "trial_steps": 400, **settings}), space, first_of(space), 7, STEPS)


def play(state, *, until=STEPS, since=0, step=20, through_files=False, score=goal):
    """Members in lock-step, as the trainer would move them."""
    for steps in range(since + step, until + step, step):
        if through_files:
            fresh = made(**state.config.model_dump())
            fresh.load_state_dict(json.loads(json.dumps(state.state_dict(), allow_nan=False)))
            state = fresh
        current = state.current()
        if not state.is_due([steps] * MEMBERS, [0] * MEMBERS):
            continue
        rows = [Standing(k, steps, steps, score(current[k].settings, steps - current[k].born)) for k in range(MEMBERS)]
        state.decide(rows, [current[k].settings for k in range(MEMBERS)])
    return state


def test_settings_near_the_best_are_found_and_the_best_trial_lives_on():
    state = play(made())
    assert len(state.trials) == 20
    best = max(state.trials, key=lambda trial: trial.score)
    assert state.current()[best.member] is best
    assert best.score > max(trial.score for trial in state.trials[:MEMBERS])
    assert {trial.state for trial in state.trials} >= {"complete", "pruned"}


def test_a_decision_depends_on_records_and_seeds_alone():
    whole, parts = play(made()), play(made(), through_files=True)
    assert whole.state_dict() == parts.state_dict()
    half = play(made(), until=1_000)
    assert play(half, since=1_000).state_dict() == whole.state_dict()


@pytest.mark.parametrize("pruner", ["halving", "hyperband"])
def test_what_a_pruner_notes_is_kept(pruner):
    assert play(made(pruner=pruner)).state_dict() == play(made(pruner=pruner), through_files=True).state_dict()


def test_nothing_is_pruned_by_no_pruner_and_a_trial_has_its_steps():
    state = play(made(pruner="none"))
    assert "pruned" not in {trial.state for trial in state.trials}
    for exploit in state.history:
        before = [one for one in state.trials if one.member == exploit.member and one.born < exploit.step]
        assert exploit.step - before[-1].born >= 400


def test_a_new_trial_begins_with_new_parameters_or_inherits_those_of_the_best():
    assert all(exploit.donor == exploit.member for exploit in play(made()).history)
    inherited = play(made(inherit=True))
    assert all(exploit.donor != exploit.member for exploit in inherited.history)
    first = inherited.history[0]
    assert first.donor_score > first.score


def test_a_trial_without_a_number_fails_at_its_end_and_is_replaced():
    def broken(settings, steps):
        return math.nan if settings["learning_rate"] > 1e-3 else goal(settings, steps)

    state = play(made(pruner="none"), score=broken)
    failed = [trial for trial in state.trials if trial.state == "failed"]
    assert failed
    assert all(trial.settings["learning_rate"] > 1e-3 and not trial.reports for trial in failed)
    json.dumps(state.state_dict(), allow_nan=False)
    for exploit in state.history:
        if exploit.ended == "failed":  # half as long again as a trial that has numbers
            born = max(one.born for one in state.trials if one.member == exploit.member and one.born < exploit.step)
            assert exploit.step - born >= 600


def test_a_trial_that_is_looked_at_too_late_is_complete():
    state = play(made(pruner="none"), step=900)
    assert {trial.state for trial in state.trials} == {"complete", "running"}
    assert all(min(trial.reports) <= 10 for trial in state.trials if trial.reports)


def test_when_all_have_begun_every_member_goes_on():
    state = play(made(trials=6))
    assert len(state.trials) == 6
    assert len(state.history) == 2


def test_choices_and_bounds_hold():
    space = {"entropy_cost": Choice(values=(0.001, 0.01, 0.1)), "learning_rate": LogUniform(low=1e-4, high=2e-4)}
    state = SearchState(SearchConfig(trials=20, trial_steps=400), space, first_of(space), 7, STEPS)
    play(state)
    assert {trial.settings["entropy_cost"] for trial in state.trials} <= {0.001, 0.01, 0.1}
    assert all(1e-4 <= trial.settings["learning_rate"] <= 2e-4 for trial in state.trials)


def test_numbers_of_a_choice_may_be_written_as_text():
    """YAML reads 1e-3 as text, and settings take it for the number."""
    space = {"entropy_cost": Choice(values=("1e-3", 0.01, "0.1"))}
    state = play(made(space), score=lambda settings, steps: float(settings["entropy_cost"]))
    assert len(state.trials) == 20
    assert {float(trial.settings["entropy_cost"]) for trial in state.trials} == {0.001, 0.01, 0.1}


def test_the_steps_of_a_trial_are_twice_its_share():
    assert SearchState(SearchConfig(trials=40), SPACE, first_of(SPACE, 8), 7, 10_000).trial_steps == 4_000
    assert SearchState(SearchConfig(trials=8), SPACE, first_of(SPACE, 8), 7, 10_000).trial_steps == 10_000
