"""Scores of a mixture against their definitions."""

import logging
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.envs.scores import SUITES, Reference, reference_of, references_of, scores_of, tasks_of
from tests.references.scores import naive_mean_capped, naive_median, naive_scores

RETURN = st.integers(-50, 50).map(float)
TASK = st.tuples(st.lists(RETURN, max_size=4), RETURN, st.integers(1, 20))


@given(st.lists(TASK, min_size=1, max_size=9))
def test_against_the_definitions(tasks):
    returns, pairs = [own for own, _, _ in tasks], [(random, random + span) for _, random, span in tasks]
    means, expected = naive_scores(returns, pairs)
    found = scores_of([f"task {n}" for n in range(len(tasks))], means, [Reference(*pair) for pair in pairs])
    assert found.returns == tuple(means)
    assert found.scores == pytest.approx(tuple(expected))
    known = [score for score in expected if score is not None]
    numbers = found.numbers()
    assert numbers["tasks_seen"] == len(known)
    above = [mean is not None and mean > random for mean, (random, _) in zip(means, pairs, strict=True)]
    assert numbers["tasks_above_random"] == sum(above)
    if known:
        assert found.median == pytest.approx(naive_median(known))
        assert numbers["score_mean_capped"] == pytest.approx(naive_mean_capped(known))
    else:
        assert math.isnan(found.median)
        assert math.isnan(numbers["score_mean_capped"])


def test_a_row_names_every_task_that_has_episodes_and_no_other():
    names = ("laser/Catch", "x", "y")
    numbers = scores_of(names, [1.0, None, -3.0], references_of(names)).numbers()
    assert {name: numbers[name] for name in numbers if "_of_" in name} == {
        "return_of_laser/Catch": 1.0, "score_of_laser/Catch": 1.0, "return_of_y": -3.0, "score_of_y": -3.0,
    }  # fmt: skip
    assert (numbers["tasks_seen"], numbers["tasks_above_random"], numbers["score_mean_capped"]) == (2, 1, -1.0)


def test_what_is_not_known_counts_raw_and_is_said_once(caplog):
    names = ("laser/Catch", "CartPole-v1", "no/such-thing")
    references_of.cache_clear()
    with caplog.at_level(logging.WARNING, "laser_rl.envs"):
        for _ in range(3):
            assert scores_of(names, [1.0, 195.0, -7.0], references_of(names)).scores == (1.0, 195.0, -7.0)
    assert [record.getMessage().count(name) for record in caplog.records for name in names] == [0, 1, 1]


def test_levels_of_dmlab_are_normalised_by_people():
    task = SUITES["dmlab-30"][3]
    (known,) = references_of((task.id,))
    assert (known.normalised(task.best), known.normalised(task.random)) == (1, 0)


@pytest.mark.parametrize("suite", SUITES)
def test_tasks_of_a_suite_have_scores_to_compare_with(suite):
    tasks = tasks_of(f"suite:{suite}")
    assert list(tasks) == [task.id for task in SUITES[suite]]
    assert all(reference_of(name) for name in tasks)


def test_scores_need_neither_gymnasium_nor_numpy():
    code = "import laser_rl.envs.scores, sys; sys.exit(any(name in sys.modules for name in ('gymnasium', 'numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
