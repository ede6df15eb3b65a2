"""Runs on a mixture of tasks: rows by task, evaluations that play every task as often, exact resume, who is best."""

import json

import pytest

from laser_rl import checkpoint
from laser_rl.evaluation.statistics import summarise_mixture
from laser_rl.metrics.log import read
from laser_rl.metrics.rows import EpisodeWindow
from laser_rl.training import evaluate as playing
from laser_rl.training.build_group import build_group
from laser_rl.training.evaluate import MemberResult, Result, evaluate, load_trained, trained_of
from laser_rl.training.settings import SweepConfig
from laser_rl.training.trainer import Trainer
from laser_rl.types import Episode
from tests.evaluation.test_mixtures import SPEC
from tests.training.small import fingerprint, finish, small

NAMES = ("laser/TMaze-3", "laser/TMaze-5", "laser/TMaze-8")


def mixture(**settings):
    return small(",".join(NAMES), **{"slots": 6, "evaluate_episodes": 4, **settings})


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "mixture"
    finish(mixture(evaluate_every_steps=300), path)
    return path


@pytest.fixture
def episodes_played(monkeypatch):
    """What evaluations hand to their statistics."""
    heard = []

    def listening(episodes, spec, **more):
        heard.extend(episodes)
        return summarise_mixture(episodes, spec, **more)

    monkeypatch.setattr(playing, "summarise_mixture", listening)
    return heard


def test_rows_tell_tasks_apart(run_dir):
    episodes = read(run_dir, ["episode"])
    assert {row["task"] for row in episodes} == set(NAMES)
    assert all(row["task"] == NAMES[row["slot"] % 3] for row in episodes)
    shortest = {name: min(row["length"] for row in episodes if row["task"] == name) for name in NAMES}
    assert [shortest[name] >= int(name[-1]) for name in NAMES] == [True] * 3  # a corridor takes its length
    window = EpisodeWindow(NAMES)
    last = read(run_dir, ["train"])[-1]
    for row in episodes:
        window.add(row["return"], NAMES.index(row["task"]))
    assert {name: last[name] for name in window.numbers()} == window.numbers()
    assert last["tasks_seen"] == 3


def test_evaluation_rows_hold_the_score_and_every_task(run_dir):
    rows = read(run_dir, ["evaluation"])
    assert len(rows) > 1
    for row in rows:
        assert row["episodes"] == 6  # 4 were asked for, and there are 3 tasks
        scores = sorted(row[f"score_of_{name}"] for name in NAMES)
        assert row["mean"] == scores[1]
        assert row["score_mean_capped"] == pytest.approx(sum(min(1.0, score) for score in scores) / 3)
        assert row["tasks_above_random"] == sum(score > 0 for score in scores)
        assert row["ci95_low"] <= row["mean"] <= row["ci95_high"]
        assert all(f"return_of_{name}" in row for name in NAMES)


@pytest.mark.parametrize(("asked", "expected"), [(1, 1), (3, 1), (4, 2), (20, 7), (50, 17)])
def test_every_task_is_played_as_often(run_dir, episodes_played, asked, expected):
    result = evaluate(load_trained(run_dir), episodes=asked, deterministic=False, seed=1)
    assert [task.episodes for task in result.tasks] == [expected] * 3
    assert result.episodes == 3 * expected
    assert [sum(episode.slot % 3 == task for episode in episodes_played) for task in range(3)] == [expected] * 3
    assert max(episode.slot for episode in episodes_played) < min(15, 3 * expected)


def test_a_loaded_agent_plays_as_the_one_that_was_trained(tmp_path):
    result, training = finish(mixture(), tmp_path / "run")
    again = load_trained(tmp_path / "run")
    with_seed = {"episodes": 12, "deterministic": False, "seed": 5}
    assert evaluate(again, **with_seed) == evaluate(trained_of(result.member, training.steps), **with_seed)


def test_half_then_resume_is_the_whole_run_bit_for_bit(tmp_path):
    class Killed(Exception):
        pass

    def kill(progress):
        if progress.step > 430:
            raise Killed

    settings = {"run.steps": 800, "evaluate_every_steps": 250}
    finish(mixture(**settings), tmp_path / "whole")
    with pytest.raises(Killed):
        finish(mixture(**settings), tmp_path / "half", callbacks=[kill])
    [state] = checkpoint.latest(tmp_path / "half").state["members"]
    assert list(state["training"]["window"]["tasks"]) == list(NAMES)
    _, training = finish(mixture(**settings), tmp_path / "half")
    assert fingerprint(tmp_path / "half") == fingerprint(tmp_path / "whole")
    kept = checkpoint.latest(tmp_path / "whole").state["members"][0]["training"]["window"]
    window = EpisodeWindow(NAMES)
    window.load_state_dict(kept)
    assert window.numbers() == training.window.numbers()
    assert training.evaluations[0][1].tasks  # the one from before the end came back with its tasks


def test_population_based_training_goes_by_the_mean_capped_score():
    config = SweepConfig(base=small("laser/Catch"), grid={"learning_rate": [1e-3, 2e-3]})
    crew = build_group(config)
    training = Trainer(config, crew)
    crew.close()
    for member, returns in zip(training.trainings, ((9.0, 0.4, 0.0), (0.5, 0.5, 0.5)), strict=True):
        member.window = EpisodeWindow(NAMES)
        for task, value in enumerate(returns):
            member.window.add(value, task)
    assert [one.standing().score for one in training.trainings] == pytest.approx([1.4 / 3, 0.5])


def test_the_best_member_is_the_one_with_the_best_median():
    def member(number, returns):
        played = summarise_mixture([Episode(slot, 1, value) for slot, value in enumerate(returns)], SPEC)
        return MemberResult(*[None] * 5, number, {}, 0, None, played)

    high_mean, high_median = member(0, (1.0, 0.1, 0.0)), member(1, (-0.6, 0.3, 0.5))
    assert high_mean.evaluation.mean > high_median.evaluation.mean
    assert Result((high_mean, high_median), (), None, None).best().number == 1


def test_a_single_task_has_the_rows_it_had(tmp_path):
    finish(small("laser/Catch"), tmp_path)
    for row in read(tmp_path):
        assert not {"task", "tasks_seen", "score_mean_capped"} & row.keys()
    state = json.loads((checkpoint.latest(tmp_path).path / "state.json").read_text())
    assert set(state["members"][0]["training"]["window"]) == {"returns", "episodes"}
