"""`laser compare` on run directories whose rows are written by hand, so that every number is known."""

import contextlib
import json
import subprocess
import sys

import pytest

from laser_rl import cli, recipes
from laser_rl.config import override
from laser_rl.disk import write_json
from laser_rl.envs.scores import ATARI_57
from laser_rl.metrics.log import MetricsLog
from laser_rl.research.paper import COLUMNS, atari_median
from laser_rl.training.files import CONFIG, SWEEP, described
from laser_rl.training.settings import FORMAT, SweepConfig


def raw(game, share):
    """The return that is so far between random play and a person."""
    reference = ATARI_57[game]
    return reference.random + share * (reference.best - reference.random)


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
    assert cli.main(["compare", *map(str, arguments)]) == 0
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
    assert cli.main(["compare", str(pong), str(path)]) == 2
    printed = capsys.readouterr()
    assert f"{path}: " in printed.err
    assert message in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "compare what? name one or more run directories"),
        (["nowhere"], "nowhere is no run directory"),
    ],
)
def test_mistakes(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_in_a_pipe_no_cell_is_cut(pong):
    """In a process of its own, whose terminal is said to be far too narrow."""
    code = f"import sys; from laser_rl.cli import main; sys.exit(main(['compare', {str(pong)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env={"COLUMNS": "40"}
    )
    assert "…" not in done.stdout
    assert f"  {pong} " in done.stdout
