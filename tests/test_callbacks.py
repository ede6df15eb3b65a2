"""The stock callbacks, in a run and in a sweep."""

import re

import numpy as np
import pytest

from laser_rl import LASER, EvaluateEvery, SaveEvery, StopAtReturn, StopWithoutImprovement, Sweep
from laser_rl.errors import ConfigError
from laser_rl.training.member_training import Progress

SMALL = {"hidden": (16,), "unroll_steps": 5, "capacity_steps": 500, "seed": 2, "slots": 2}
OBSERVATION = np.array([0.1, -0.2, 0.3, -0.4], np.float32)


def row(step, kind="train", **values):
    return Progress(step, step // 10, kind, values)


def test_it_stops_at_a_return_of_enough_episodes():
    stop = StopAtReturn(10.0)
    assert stop(row(1, return_mean=50.0, episodes=99))  # too few
    assert stop(row(2, return_mean=9.9, episodes=200))
    assert stop(row(3, "evaluation", mean=50.0, episodes=200))
    assert stop(row(4))  # no episode yet
    assert not stop(row(5, return_mean=10.0, episodes=100))


def test_it_stops_without_improvement():
    stop = StopWithoutImprovement(100, least=1.0)
    scores = {10: 5.0, 60: 5.5, 90: 7.0, 150: 7.9, 189: 6.0}
    assert all(stop(row(step, return_mean=score)) for step, score in scores.items())
    assert stop(row(300, "evaluation", mean=0.0))  # another kind of row
    assert not stop(row(190, return_mean=8.0))
    stop = StopWithoutImprovement("0.1k", evaluations=True)
    assert stop(row(10, "evaluation", mean=3.0))
    assert stop(row(500, return_mean=1.0))
    assert not stop(row(110, "evaluation", mean=3.0))


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_evaluations_come_every_so_often_and_the_best_is_kept(runtime, tmp_path):
    path, seen, episodes = tmp_path / "best.laser", [], set()

    def note(progress):
        if progress.kind == "evaluation":
            seen.append((progress.step, progress.values["mean"]))
            episodes.add(progress.values["episodes"])

    evaluation = EvaluateEvery(300, episodes=3, best=path)
    with LASER("CartPole-v1", runtime=runtime, **SMALL) as agent:
        agent.learn(1_000, log_every=50, callback=[evaluation, note])
    assert evaluation.results == seen
    assert [step // 300 for step, _ in seen] == [1, 2, 3]
    assert episodes == {3}
    best, mean = max(seen, key=lambda one: one[1])
    with LASER.load(path) as kept:
        assert kept.steps == best
        assert evaluation.best == mean


def test_files_are_saved_every_so_often_also_of_members(tmp_path):
    with LASER("CartPole-v1", **SMALL) as agent:
        agent.learn(500, log_every=50, callback=SaveEvery(200, tmp_path / "one"))
    steps = [int(re.fullmatch(r"step-(\d+)\.laser", file.name)[1]) for file in sorted((tmp_path / "one").iterdir())]
    assert [step // 200 for step in steps] == [1, 2]
    assert LASER.load(tmp_path / "one" / f"step-{steps[0]:012d}.laser").predict(OBSERVATION)[0] in {0, 1}
    sweep = Sweep("CartPole-v1", grid={"learning_rate": [1e-3, 2e-3]}, log_every_updates=5, **SMALL)
    every = [SaveEvery(100, tmp_path / "two"), StopAtReturn(0.0, episodes=10)]
    result = sweep.run(5_000, callback=every)
    assert result.steps < 1_000
    assert {file.name[:9] for file in (tmp_path / "two").iterdir()} == {"member-00", "member-01"}


def test_all_callbacks_hear_of_the_row_at_which_one_of_them_stops():
    heard = []
    with LASER("CartPole-v1", **SMALL) as agent:
        agent.learn(5_000, log_every=50, callback=[StopAtReturn(0.0, episodes=1), lambda one: heard.append(one.step)])
        assert heard[-1] == agent.steps < 100


def test_what_learns_in_another_process_cannot_be_asked_for():
    with pytest.raises(ConfigError, match="learns in another process, expected one of this process; use processes=1"):
        EvaluateEvery(1)(row(10))
