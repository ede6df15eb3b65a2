"""`benchmarks.atari_paper`: which number stands where, on run directories whose rows are written by hand, and the paper's own medians."""

import contextlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.atari_paper import (
    COLUMNS,
    GameRun,
    atari_median,
    atari_scores,
    last_episodes,
    line_of,
    main,
    medians,
    played,
)
from laser_rl import recipes
from laser_rl.config import override
from laser_rl.disk import write_json
from laser_rl.envs.scores import ATARI_57
from laser_rl.metrics.log import MetricsLog
from laser_rl.research.protocol import Episodes
from laser_rl.training.files import CONFIG, SWEEP, described
from laser_rl.training.settings import FORMAT, SweepConfig
from tests.references.scores import naive_median

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


def episodes_at(pairs):
    columns = np.array(pairs, dtype=float).reshape(-1, 2)
    return Episodes(columns[:, 0], columns[:, 1], np.ones(len(columns)))


def make_run(path, environment, returns, *, evaluation=None, **settings):
    """Episodes that ended every hundred steps."""
    path.mkdir()
    write_json(path / CONFIG, override(recipes.atari(environment), settings).model_dump(mode="json"))
    with contextlib.closing(MetricsLog(path)) as log:
        for number, value in enumerate(returns, start=1):
            log.write("episode", 100 * number, number, {"return": value, "length": 100, "slot": 0})
        if evaluation is not None:
            log.write("evaluation", 100 * len(returns), len(returns), {"mean": evaluation, "episodes": 16})
    return path


def make_sweep(path, environment, members, rates=(1e-3, 2e-3)):
    path.mkdir()
    sweep = SweepConfig(base=recipes.atari(environment), grid={"learning_rate": rates})
    write_json(path / SWEEP, {"format": FORMAT, **described(sweep)})
    with contextlib.closing(MetricsLog(path)) as log:
        for member, value in enumerate(members):
            log.write("episode", 100, 1, {"return": value, "length": 100, "slot": 0, "member": member})
    return path


def compared(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def pong(tmp_path):
    returns = [raw("pong", 0.0)] * 10 + [raw("pong", 0.5)] * 100
    return make_run(tmp_path / "pong-1", "ALE/Pong-v5", returns, evaluation=raw("pong", 0.75))


def test_a_game_beside_the_paper(pong, capsys):
    found = json.loads(compared(capsys, pong, "--json"))
    [run] = found["runs"]
    assert (run["run"], run["game"], run["kind"], run["frames"], run["episodes"]) == (
        str(pong),
        "pong",
        "run",
        44_000,
        100,
    )
    assert run["human_normalised"] == pytest.approx(0.5)
    assert run["score"] == pytest.approx(raw("pong", 0.5))
    assert run["evaluation_human_normalised"] == pytest.approx(0.75)
    assert run["paper"]["laser_no_sweep_200M"] == {
        "score": 21.0,
        "human_normalised": pytest.approx((21 + 20.7) / (14.6 + 20.7)),
    }
    assert found["paper"]["laser_shared_sweep_200M"]["sweep"] is False
    assert found["paper"]["laser_shared_sweep_50M"]["median_of_57"] == pytest.approx(3.6496, abs=5e-5)
    assert found["paper"]["laser_shared_sweep_50M"]["median_of_57_published"] == 3.7
    assert found["notes"] == []


def test_the_table_says_over_which_games_its_medians_are(pong, tmp_path, capsys):
    boxing = make_run(tmp_path / "boxing", "boxing", [raw("boxing", 2.5)] * 100)
    out = compared(capsys, pong, boxing)
    headings = [line.split()[-5:] for line in out.splitlines() if "of 9" in line]
    assert headings == [["of", "9", "agent", "agent", "agent"]] * 2  # only the first of the paper's columns is a sweep
    [line] = [line for line in out.splitlines() if "the 2 games of your runs" in line]
    expected = [1.5, *(atari_median(column, ("pong", "boxing")) for column in COLUMNS)]
    assert line.split("your runs")[1].split() == [word for one in expected for word in (f"{100 * one:.1f}", "%")]
    assert "over the games that were run, not over all 57" in out
    [recomputed] = [line for line in out.splitlines() if "from the paper's table" in line]
    assert recomputed.split("–")[1].split()[::2] == ["365.0", "412.4", "454.9", "231.0"]
    [published] = [line for line in out.splitlines() if "as published" in line]
    assert published.split("–")[1].split()[::2] == ["370.0", "448.0", "431.0"]
    lines = out.splitlines()
    below = {
        line.split()[0]: lines[place + 1]
        for place, line in enumerate(lines)
        if line.split()[:1] in (["boxing"], ["pong"])
    }
    assert list(below) == ["boxing", "pong"]
    assert below["pong"].split()[:5] == [str(pong), "50", "%", "75", "%"]


def test_after_so_many_frames(pong, capsys):
    [run] = json.loads(compared(capsys, pong, "--json", "--frames", "0.004M"))["runs"]
    assert (run["frames"], run["episodes"], run["human_normalised"]) == (4000, 10, pytest.approx(0.0))
    assert run["evaluation"] is None


def test_sweeps_have_a_best_member_and_a_median_before_it(tmp_path, capsys):
    shares = {"boxing": (0.9, 0.1), "pong": (0.1, 0.8), "krull": (0.3, 0.2)}
    folders = [make_sweep(tmp_path / game, game, [raw(game, share) for share in own]) for game, own in shares.items()]
    found = json.loads(compared(capsys, *folders, "--json"))
    assert [(run["game"], run["best_member"]) for run in found["runs"]] == [("boxing", 0), ("krull", 0), ("pong", 1)]
    [medians] = found["medians"]
    assert (medians["kind"], medians["score"]) == ("sweep", pytest.approx(0.3))
    out = compared(capsys, *folders)
    assert f"{folders[1]}, member 1 is the best of 2" in out
    assert "the 3 games of your sweeps" in out


def test_sweeps_with_different_members_are_shown_without_a_median(tmp_path, capsys):
    folders = [
        make_sweep(tmp_path / "a", "pong", [1.0, 2.0]),
        make_sweep(tmp_path / "b", "boxing", [1.0, 2.0], rates=(1e-3, 4e-3)),
    ]
    found = json.loads(compared(capsys, *folders, "--json"))
    assert found["medians"][0]["score"] is None
    assert "the sweeps have different members" in found["notes"][-1]


def test_a_run_without_episodes_is_shown_and_not_counted(pong, tmp_path, capsys):
    empty = make_run(tmp_path / "new", "ALE/Breakout-v5", [])
    found = json.loads(compared(capsys, pong, empty, "--json"))
    assert found["medians"][0]["games"] == ["pong"]
    assert f"{empty}: a mean of 0 episodes so far" in found["notes"][0]
    out = compared(capsys, empty)
    assert "of your runs" not in out
    assert "all 57, as published" in out


def test_rows_that_a_resume_made_void_do_not_count(tmp_path, capsys):
    path = make_run(tmp_path / "pong", "pong", [1.0, 2.0, 30.0])
    with contextlib.closing(MetricsLog(path)) as log:
        log.resumed(200, 2)
    [run] = json.loads(compared(capsys, path, "--json"))["runs"]
    assert (run["score"], run["frames"], run["episodes"]) == (1.5, 800, 2)


def test_what_differs_from_the_papers_protocol_is_said(tmp_path, capsys):
    options = {"environment.atari.sticky_actions": 0.25, "environment.atari.most_noops": 30}
    path = make_run(tmp_path / "pong", "pong", [1.0] * 100, **options)
    [note] = json.loads(compared(capsys, path, "--json"))["notes"]
    assert note == f"{path} is not played as in the paper: up to 30 no-ops, sticky actions 0.25"
    assert note in compared(capsys, path)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("laser/Catch", "expected a run on one of the 57 Atari games of the paper's table, got laser/Catch"),
        ("MinAtar/Breakout-v1", "got MinAtar/Breakout-v1; leave it out"),
        ("ALE/Adventure-v5", "got ALE/Adventure-v5; leave it out"),
        ("ALE/Pong-v5,ALE/Boxing-v5", "got the mixture ALE/Pong-v5,ALE/Boxing-v5"),
    ],
)
def test_runs_that_are_not_of_one_game_are_refused(pong, tmp_path, capsys, environment, message):
    path = make_run(tmp_path / "other", environment, [1.0])
    with pytest.raises(SystemExit, match="2"):
        main([str(pong), str(path)])
    printed = capsys.readouterr()
    assert f"{path}: " in printed.err
    assert message in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: run_dirs"),
        (["nowhere"], "nowhere is no run directory"),
    ],
)
def test_mistakes(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_in_a_pipe_no_cell_is_cut(pong):
    """In a process of its own, whose terminal is said to be far too narrow."""
    command = [sys.executable, "-m", "benchmarks.atari_paper", str(pong)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env={"COLUMNS": "40"})
    assert "…" not in done.stdout
    assert f"  {pong} " in done.stdout


@pytest.mark.parametrize(
    ("name", "recomputed", "published"),
    [
        ("laser_shared_sweep_50M", 364.96, 370.0),
        ("laser_shared_sweep_200M", 412.40, 448.0),
        ("laser_no_sweep_200M", 454.91, 431.0),
        ("rainbow_no_sweep_200M", 230.99, None),
    ],
)
def test_recomputed_medians_beside_the_published_ones(name, recomputed, published):
    [column] = [column for column in COLUMNS if column.name == name]
    assert round(100 * atari_median(column), 2) == recomputed
    assert column.published_median == published
    scores = [ATARI_57[game].normalised(score) for game, score in atari_scores()[column.name].items()]
    assert 100 * naive_median(scores) == pytest.approx(recomputed, abs=0.005)


def test_every_table_has_the_57_games():
    assert len(ATARI_57) == 57
    for column in COLUMNS:
        assert set(atari_scores()[column.name]) == set(ATARI_57)


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


def test_the_last_hundred_episodes_before_a_frame():
    episodes = episodes_at([(frame, float(frame)) for frame in range(1, 301)])
    assert last_episodes(episodes) == np.mean(range(201, 301))
    assert last_episodes(episodes_at([(1, 2.0), (2, 4.0)])) == 3.0  # there are no more
    assert math.isnan(last_episodes(episodes_at([])))
    assert last_episodes(Episodes(np.array([10.0, 20.0]), np.array([1.0, 4.0]), np.array([8.0, 16.0])), count=20) == 3.0
