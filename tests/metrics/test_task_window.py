"""The window of a mixture: the last episodes of each task, one score for all."""

import json
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.envs import scores as envs_scores
from laser_rl.envs.scores import Reference
from laser_rl.metrics import rows
from laser_rl.metrics.rows import EpisodeWindow, fitness
from tests.references.scores import naive_mean_capped, naive_median, naive_scores

NAMES = ("a", "b", "c")
PAIRS = ((0.0, 1.0), (-5.0, 10.0), (3.0, 4.0))
REFERENCES = [Reference(*pair) for pair in PAIRS]
EPISODES = st.lists(st.tuples(st.integers(0, 2), st.floats(-20, 20)), max_size=30)


def window_of_three():
    with mock.patch.object(envs_scores, "references_of", return_value=REFERENCES):
        return EpisodeWindow(NAMES)


@given(episodes=EPISODES, size=st.integers(1, 5), cut=st.integers(0, 30))
def test_holds_the_last_ones_of_each_task_and_survives_a_round_trip(episodes, size, cut):
    with mock.patch.object(rows, "EPISODES_A_TASK", size):
        window, other = window_of_three(), window_of_three()
    for task, value in episodes[:cut]:
        window.add(value, task)
    other.load_state_dict(json.loads(json.dumps(window.state_dict())))
    for task, value in episodes[cut:]:
        window.add(value, task)
        other.add(value, task)
    assert window.numbers() == other.numbers()
    assert window.state_dict() == other.state_dict()
    kept = [[value for task, value in episodes if task == number][-size:] for number in range(3)]
    assert window.episodes == len(episodes)
    if not episodes:
        assert window.numbers() == {}
        return
    means, scores = naive_scores(kept, PAIRS)
    numbers, known = window.numbers(), [score for score in scores if score is not None]
    assert numbers["return_mean"] == pytest.approx(naive_median(known))
    assert numbers["score_mean_capped"] == pytest.approx(naive_mean_capped(known))
    assert (numbers["tasks_seen"], numbers["episodes"]) == (len(known), len(episodes))
    for name, mean, score in zip(NAMES, means, scores, strict=True):
        assert numbers.get(f"return_of_{name}") == (None if mean is None else pytest.approx(mean))
        assert numbers.get(f"score_of_{name}") == (None if score is None else pytest.approx(score))


@given(returns=st.lists(st.floats(-1e6, 1e6), max_size=30), size=st.integers(1, 8), cut=st.integers(0, 30))
def test_window_holds_the_last_ones_and_survives_a_round_trip(returns, size, cut):
    with mock.patch.object(rows, "EPISODES", size):
        window, other = EpisodeWindow(), EpisodeWindow()
    for number in returns[:cut]:
        window.add(number)
    other.load_state_dict(window.state_dict())
    for number in returns[cut:]:
        window.add(number)
        other.add(number)
    assert window.numbers() == other.numbers()
    last, counted = returns[-size:], {"return_best": max(returns[-size:], default=0), "episodes": len(returns)}
    mean = {"return_mean": pytest.approx(sum(last) / len(last))} if last else {}
    assert window.numbers() == (mean | counted if last else {})


def test_fifty_episodes_of_each_task():
    window = EpisodeWindow(("laser/TMaze-3", "laser/TMaze-5"))
    for number in range(60):
        window.add(0.0 if number < 10 else 1.0, task=0)
    assert window.numbers()["return_of_laser/TMaze-3"] == 1
    for _ in range(50):
        window.add(0.0, task=1)
    assert window.numbers()["return_mean"] == 0.5


def test_begins_with_the_state_of_somebody_who_never_acted():
    window = window_of_three()
    window.load_state_dict(EpisodeWindow().state_dict())
    assert (window.numbers(), window.episodes) == ({}, 0)
    with pytest.raises(KeyError, match="b"):
        window.load_state_dict({"tasks": {"a": [1.0]}, "episodes": 1})


def test_what_is_forgotten_is_of_another_policy_but_was_played():
    window = window_of_three()
    window.add(1.0, 2)
    window.forget()
    assert (window.numbers(), window.episodes) == ({}, 1)


def test_a_single_task_is_compared_by_its_mean_and_a_mixture_by_its_mean_capped_score():
    single, several = EpisodeWindow(), window_of_three()
    single.add(7.0, task=0)
    for task, value in enumerate((99.0, -5.0, 3.75)):  # scores 99, 0, 0.75
        several.add(value, task)
    assert fitness(single.numbers()) == 7
    assert several.numbers()["return_mean"] == 0.75
    assert fitness(several.numbers()) == pytest.approx(1.75 / 3)
