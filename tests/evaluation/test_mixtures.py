"""What an evaluation of a mixture says, against its definitions."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.envs.scores import reference_of
from laser_rl.evaluation.statistics import evaluation_of, summarise, summarise_mixture
from laser_rl.types import Episode
from tests.references.scores import naive_mean_capped, naive_median, naive_scores, normalised

NAMES = ("laser/Catch", "laser/TMaze-5", "laser/DeepSea-6")
PAIRS = [(reference_of(name).random, reference_of(name).best) for name in NAMES]
SPEC = EnvironmentSpec("three", ObservationSpec((4,)), DiscreteActions(3), NAMES)


def played(table, slots=3):
    """`table` [tasks, episodes]; slot s plays task s mod 3."""
    table = np.asarray(table)
    places = [(task, number) for number in range(table.shape[1]) for task in range(3)]
    own = [Episode(task + 3 * (number % (slots // 3)), 1, float(table[task, number])) for task, number in places]
    return sorted(own, key=lambda episode: episode.slot)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.floats(-2, 2), min_size=n, max_size=n), min_size=3, max_size=3)
    )
)
def test_against_the_definitions(table):
    result = summarise_mixture(played(table, slots=6), SPEC)
    means, scores = naive_scores(table, PAIRS)
    assert [task.name for task in result.tasks] == list(NAMES)
    assert {task.episodes for task in result.tasks} == {len(table[0])}
    assert [task.mean for task in result.tasks] == pytest.approx(means)
    assert [task.score for task in result.tasks] == pytest.approx(scores)
    assert result.score == pytest.approx(naive_median(scores))
    assert result.task_scores.numbers()["score_mean_capped"] == pytest.approx(naive_mean_capped(scores))
    every = [normalised(value, *pair) for own, pair in zip(table, PAIRS, strict=True) for value in own]
    assert sorted(result.returns) == pytest.approx(sorted(every))
    assert result.mean == pytest.approx(np.mean(every))
    assert result.ci95[0] - 1e-9 <= result.mean <= result.ci95[1] + 1e-9
    assert evaluation_of(json.loads(json.dumps(asdict(result)))) == result


def test_the_interval_is_that_of_the_median_of_means_and_draws_within_tasks():
    """Tasks that differ much and hardly vary: the median of their means is known well, that of single episodes is not."""
    random = np.random.default_rng(1)
    table = np.array([[-0.6], [0.5], [0.9]]) + random.normal(0, 0.05, (3, 40))
    result = summarise_mixture(played(table), SPEC)
    low, high = result.score_ci95
    middle = [normalised(value, *PAIRS[1]) for value in table[1]]
    half = 1.96 * np.std(middle, ddof=1) / np.sqrt(40)
    assert result.score == pytest.approx(np.mean(middle))
    assert low == pytest.approx(result.score - half, abs=0.25 * half)
    assert high == pytest.approx(result.score + half, abs=0.25 * half)
    assert result.ci95[1] - result.ci95[0] < 0.1 * (max(result.returns) - min(result.returns))


def test_agents_are_compared_by_the_mean_of_one_task_and_by_the_median_of_several():
    one = summarise([1.0, 2.0, 6.0])
    assert (one.score, one.score_ci95, one.task_scores.names) == (3.0, one.ci95, ())
    several = summarise_mixture(played([[1.0], [0.3], [0.0]]), SPEC)
    assert several.score == pytest.approx(0.3)
    assert repr(several) == "EvalResult(score=0.3, ci95=(0.3, 0.3), tasks=3)"


def test_results_that_were_written_before_there_were_mixtures_are_read():
    fields = asdict(summarise([7.0, 9.0]))
    assert evaluation_of({name: fields[name] for name in fields if not name.startswith("tasks")}).score == 8


@pytest.mark.parametrize("slots", [[], [0, 1], [0, 1, 2, 3]])
def test_tasks_that_were_not_played_as_often_are_refused(slots):
    with pytest.raises(ValueError, match=r"as many episodes of every task.*of laser/TMaze-5"):
        summarise_mixture([Episode(slot, 1, 0.0) for slot in slots], SPEC)
