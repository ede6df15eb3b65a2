"""Runs beside the paper: which number stands where, and the median before the best member."""

import math

import pytest

from laser_rl.envs.scores import ATARI_57
from laser_rl.research.paper import COLUMNS, GameRun, atari_median, line_of, medians, played

SETTINGS = ({"learning_rate": 1e-3}, {"learning_rate": 2e-3})


def raw(game, share):
    """The return that is so far between random play and a person."""
    reference = ATARI_57[game]
    return reference.random + share * (reference.best - reference.random)


def agent(game, *shares):
    """Episodes that ended every thousand frames."""
    rows = [
        {"kind": "episode", "step": 250 * number, "return": raw(game, share)} for number, share in enumerate(shares, 1)
    ]
    return played(rows, None, 1000 * len(shares))


def run(game, *shares, name="run"):
    return GameRun(name, game, (agent(game, *shares),))


def sweep(game, *members, settings=SETTINGS):
    return GameRun("sweep", game, tuple(agent(game, *shares) for shares in members), settings)


def test_a_run_is_scored_by_its_last_hundred_episodes():
    line = line_of(run("pong", *([0.0] * 50), *([0.5] * 100)))
    assert (line["frames"], line["episodes"], line["kind"], line["members"]) == (150_000, 100, "run", 1)
    assert line["human_normalised"] == pytest.approx(0.5)
    assert line["score"] == pytest.approx(raw("pong", 0.5))
    assert math.isnan(line["evaluation"])
    assert line["paper"]["rainbow_no_sweep_200M"]["human_normalised"] == pytest.approx((20.9 + 20.7) / (14.6 + 20.7))


def test_a_long_run_is_scored_by_what_it_reported_over_its_last_hundred_episodes():
    rows = [{"kind": "episode", "step": 250, "return": 1.0, "episodes": 150}]
    rows += [{"kind": "train", "step": step, "return_mean": mean} for step, mean in ((200, 3.0), (300, 5.0))]
    assert played(rows, None, 1200)[1:3] == (100, 5.0)
    single = [{**rows[0], "episodes": 1}, *rows[1:]]
    assert played(single, None, 1200)[1:3] == (1, 1.0)


def test_runs_of_the_same_game_are_averaged_before_the_median():
    runs = [run("boxing", 0.0), run("boxing", 1.0), run("pong", 0.6), run("krull", 9.0)]
    [found] = medians(runs)
    assert (found["kind"], found["games"]) == ("run", ["boxing", "krull", "pong"])
    assert found["score"] == pytest.approx(0.6)


def test_medians_are_over_the_games_that_have_a_score_and_the_papers_too():
    found = medians([run("pong", 0.5), run("venture", 0.25), GameRun("new", "krull", (agent("krull"),))])
    assert [one["games"] for one in found] == [["pong", "venture"]]
    assert found[0]["score"] == pytest.approx(0.375)
    for column in COLUMNS:
        assert found[0]["paper"][column.name] == atari_median(column, ("pong", "venture")) != atari_median(column)


def test_runs_and_sweeps_have_medians_of_their_own():
    found = medians([run("pong", 0.5), sweep("boxing", (0.2,), (0.9,))])
    assert [(one["kind"], one["games"]) for one in found] == [("run", ["pong"]), ("sweep", ["boxing"])]
    assert [one["score"] for one in found] == pytest.approx([0.5, 0.9])
    assert medians([]) == []
