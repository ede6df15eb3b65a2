"""Learning on Atari: what is run, what is kept of it, and what the report makes of that."""

import argparse
import doctest
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
import pytest

from benchmarks import atari, atari_collect, atari_report
from laser_rl import recipes
from laser_rl.config import override
from laser_rl.envs.atari import atari_game
from laser_rl.envs.scores import ATARI_57
from laser_rl.metrics.log import MetricsLog
from laser_rl.training.files import CONFIG, SWEEP, described
from laser_rl.training.settings import FORMAT, SweepConfig

ROOT = Path(__file__).parents[1]


def asked(tmp_path, **more):
    given = {"games": ["Pong"], "sweep": None, "members": 3, "share": ["shared"], "out": tmp_path, "minutes": 8.0}
    given |= {"total_minutes": None, "resume": False, "width": 1, "slots": 8, "episodes": 30, "settings": {}}
    return argparse.Namespace(**{**given, **more})


@pytest.mark.parametrize(
    "name", ["atari", "atari_collect", "atari_plan", "atari_queue", "atari_queue_report", "atari_report"]
)
def test_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_every_game_of_the_table_is_found_by_its_environment():
    gymnasium.register_envs(ale_py)
    known = {atari_game(name) for name in gymnasium.registry if name.startswith("ALE/")}
    table = ATARI_57
    assert len(table) == 57
    assert table.keys() <= known
    assert all(score.best != score.random for score in table.values())


def test_a_first_call_without_a_total_is_the_whole_run(tmp_path):
    (job,) = atari.jobs_of(asked(tmp_path))
    command, limit = atari.command_of(job, asked(tmp_path), processes=1)
    assert limit is None
    assert command[0] == "train"
    config = json.loads(Path(command[2]).read_text())
    assert config["environment"]["id"] == "ALE/Pong-v5"
    assert config["run"]["budget_minutes"] == 8.0
    assert config["run"]["evaluate_episodes"] == 30


@pytest.mark.parametrize(
    ("spent", "total", "budget", "limit"),
    [(8.0, None, 16.0, None), (8.0, 24.0, 24.0, 480.0), (16.0, 24.0, 24.0, None), (20.0, 24.0, 24.0, None)],
)
def test_a_later_call_adds_its_minutes_or_goes_by_the_total(tmp_path, monkeypatch, spent, total, budget, limit):
    monkeypatch.setattr(atari, "spent_minutes", lambda run_dir: spent)
    given = asked(tmp_path, total_minutes=total, resume=True)
    (job,) = atari.jobs_of(given)
    command, seconds = atari.command_of(job, given, processes=1)
    assert command[:2] == ["resume", str(tmp_path / "Pong")]
    assert float(command[command.index("--budget-minutes") + 1]) == budget
    assert seconds == limit


def test_a_run_that_is_there_is_not_touched_unasked(tmp_path):
    (tmp_path / "Pong").mkdir()
    (job,) = atari.jobs_of(asked(tmp_path))
    with pytest.raises(SystemExit, match="--resume"):
        atari.command_of(job, asked(tmp_path), processes=1)


def test_replays_of_their_own_are_together_as_large_as_the_shared_one(tmp_path):
    given = asked(tmp_path, games=[], sweep="Breakout", share=["shared", "separate"], settings={"capacity_steps": 3000})
    files = {}
    for job in atari.jobs_of(given):
        command, _ = atari.command_of(job, given, processes=6)
        files[job.share] = json.loads(Path(command[1]).read_text())
    capacity = {share: file["base"]["replay"]["capacity_steps"] for share, file in files.items()}
    assert capacity == {"shared": 3000, "separate": 1000}
    assert {share: file["share"] for share, file in files.items()} == {"shared": "shared", "separate": "separate"}
    assert files["shared"]["members"] == files["separate"]["members"]
    assert len(files["shared"]["members"]) == 3


def test_a_run_that_does_not_stop_is_killed(tmp_path, monkeypatch, capfd):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    monkeypatch.setattr(atari, "LASER", (sys.executable, "-c", deaf))
    monkeypatch.setattr(atari, "STOP_S", 0.5)
    running = atari.Running(atari.Job("Pong", "ALE/Pong-v5"), [], 60.0, tmp_path)
    deadline = time.monotonic() + 20
    while "up" not in (tmp_path / "Pong.console.txt").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.stop()
    while not running.over(patience_s=60.0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert running.process.returncode == -signal.SIGKILL
    assert "killed" in capfd.readouterr().out


def write_run(folder, *, member=None, step=100, returns=(1.0, 3.0), updates=1, times=None, monkeypatch=None):
    """Rows of one session, a second apart: an episode and a train row for each return."""
    clock = iter(times or range(10**6))
    monkeypatch.setattr("laser_rl.metrics.log.time.time", lambda: float(next(clock)))
    own = {} if member is None else {"member": member}
    with MetricsLog(folder) as log:
        for number, value in enumerate(returns, 1):
            log.write("episode", step * number, updates * number, {"return": value, "length": 9, "slot": 0, **own})
            mean = float(np.mean(returns[max(0, number - 100) : number]))
            values = {"return_mean": mean, "episodes": number, "steps_per_second": 5.0, "learner_busy": 0.9, **own}
            log.write("train", step * number, updates * number, values)
    return folder


def single(tmp_path, environment="ALE/Pong-v5"):
    folder = tmp_path / environment.removeprefix("ALE/").partition("-v")[0]
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(recipes.atari(environment).model_dump_json())
    return folder


def test_what_is_collected_is_what_happened(tmp_path, monkeypatch):
    folder = write_run(single(tmp_path), returns=tuple(map(float, range(50))), monkeypatch=monkeypatch)
    (entry,) = atari_collect.collect(tmp_path, bins=10)["runs"]
    episodes = entry["episodes"]
    assert sum(episodes["count"]) == 50
    assert np.average(episodes["return"], weights=episodes["count"]) == pytest.approx(24.5)
    assert episodes["step"][-1] == entry["step"] == 5000
    assert entry["seconds"] == 99.0  # a hundred rows, a second apart
    assert len(entry["train"]["step"]) <= 10
    assert entry["train"]["step"][-1] == 5000
    assert entry["config"]["environment"]["id"] == "ALE/Pong-v5"
    assert folder.name == entry["run"]


def test_rows_that_a_resume_made_void_and_the_night_between_do_not_count(tmp_path, monkeypatch):
    folder = write_run(
        single(tmp_path), returns=(0.0,) * 4, monkeypatch=monkeypatch
    )  # steps 100 to 400, seconds 0 to 7
    clock = iter([90_000.0, 90_001.0, 90_003.0, 90_050.0, 90_051.0])
    monkeypatch.setattr("laser_rl.metrics.log.time.time", lambda: next(clock))
    with MetricsLog(folder) as log:
        log.resumed(200, 2)  # back to the checkpoint at step 200
        log.write("episode", 300, 3, {"return": 8.0, "length": 9, "slot": 0})
        log.write("train", 310, 3, {"return_mean": 8.0, "episodes": 3})
        log.write("evaluation", 310, 3, {"mean": 7.0, "iqm": 7.0, "ci95_low": 6.0, "ci95_high": 8.0, "episodes": 30})
        log.write("event", 310, 3, {"event": "finished"})
    (entry,) = atari_collect.collect(tmp_path)["runs"]
    assert sum(entry["episodes"]["count"]) == 3
    assert entry["episodes"]["return"][-1] == 8.0
    assert entry["step"] == 310
    assert entry["seconds"] == 10.0  # 7 before, and 3 after the night
    assert entry["sessions"] == 2
    assert entry["evaluations"][-1]["mean"] == 7.0


def test_a_file_that_would_be_too_large_becomes_coarser(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    write_run(single(tmp_path), returns=tuple(random.normal(size=1000)), monkeypatch=monkeypatch)
    monkeypatch.undo()
    whole = atari_collect.write(tmp_path, tmp_path / "whole.json.gz")
    monkeypatch.setattr(atari_collect, "LIMIT_BYTES", whole // 2)
    assert atari_collect.write(tmp_path, tmp_path / "small.json.gz") <= whole // 2
    (entry,) = atari_collect.load(tmp_path / "small.json.gz")["runs"]
    assert sum(entry["episodes"]["count"]) == 1000


def sweep_of(tmp_path, share, level, monkeypatch):
    folder = tmp_path / f"Breakout-{share}"
    folder.mkdir()
    rates = ({"learning_rate": 3e-4}, {"learning_rate": 1.2e-3})
    sweep = SweepConfig(base=recipes.atari("ALE/Breakout-v5"), members=rates, share=share)
    (folder / SWEEP).write_text(json.dumps({"format": FORMAT, **described(sweep)}))
    for member in range(2):
        returns = tuple(level + member + 0.1 * number for number in range(150))
        write_run(folder, member=member, returns=returns, monkeypatch=monkeypatch)


def test_the_report_says_when_a_game_was_learned(tmp_path, monkeypatch):
    pong = tuple(np.linspace(-21, 21, 1000))
    write_run(single(tmp_path), step=1000, returns=pong, monkeypatch=monkeypatch)
    (tmp_path / "Pong" / atari_collect.EVALUATIONS).write_text(
        json.dumps(
            [
                {
                    "member": None,
                    "step": 10**6,
                    "mean": 20.5,
                    "iqm": 20.5,
                    "ci95_low": 20.0,
                    "ci95_high": 21.0,
                    "episodes": 30,
                }
            ]
        )
    )
    sweep_of(tmp_path, "shared", 20.0, monkeypatch)
    sweep_of(tmp_path, "separate", 10.0, monkeypatch)
    monkeypatch.undo()
    atari_collect.write(tmp_path, tmp_path / "all.json.gz")
    entries = atari_report.entries_of([tmp_path / "all.json.gz"])
    assert [(entry["run"], entry["member"]) for entry in entries] == [
        ("Breakout-separate", 0),
        ("Breakout-separate", 1),
        ("Breakout-shared", 0),
        ("Breakout-shared", 1),
        ("Pong", None),
    ]
    text = atari_report.report(entries, tmp_path / "docs")
    assert {file.name for file in (tmp_path / "docs").iterdir()} == {
        "games.png",
        "members.csv",
        "sharing-breakout.png",
    }
    # The mean of the last 100 of a line from -21 to 21 in 1,000 episodes is 18 about where the line itself is at 20.1: after 977.
    (line,) = re.findall(r"\| Pong .*", text)
    cells = [cell.strip() for cell in line.strip("| ").split("|")]
    assert cells[1] == "4.00 M"
    assert cells[4].startswith("20.5 (20.0 to 21.0)")
    assert cells[5:7] == ["-20.7", "14.6"]
    assert float(cells[7]) == pytest.approx((20.5 + 20.7) / (14.6 + 20.7), abs=0.01)
    assert float(cells[10].split()[0]) == pytest.approx(4 * 0.978, abs=0.02)
    assert "\nBreakout-shared,1,0.0012," in (tmp_path / "docs" / "members.csv").read_text()


def test_a_threshold_needs_a_hundred_episodes_and_may_never_be_reached():
    train = {"step": [1, 2], "seconds": [6.0, 12.0], "return_mean": [30.0, 10.0], "episodes": [99, 100]}
    assert atari_report.first_reach({"train": train}, 10.0) == atari_report.Reached(8, 0.2)
    assert atari_report.first_reach({"train": train}, 20.0) is None
    assert atari_report.first_reach({"train": {"step": [], "seconds": []}}, 0.0) is None


def test_the_mean_of_members_is_taken_where_all_of_them_are():
    def entry(steps, level):
        episodes = {"step": steps, "seconds": steps, "return": [level] * len(steps), "count": [100] * len(steps)}
        return {"episodes": episodes}

    x, mean = atari_report.mean_curve([entry([10, 1000], 1.0), entry([100, 500], 3.0)], "frames")
    assert x[0] == pytest.approx(4 * 100 / 1e6)
    assert x[-1] == pytest.approx(4 * 500 / 1e6)
    assert mean == pytest.approx(2.0)


@pytest.mark.slow
def test_pong_is_trained_stopped_played_and_goes_on(tmp_path):
    out, collected = tmp_path / "out", tmp_path / "all.json.gz"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    tiny = [
        "batch_unrolls=2",
        "fraction=0.5",
        "unroll_steps=4",
        "capacity_steps=2000",
        "log_every_s=1",
        "most_frames=400",
    ]

    def call(*words):
        command = [sys.executable, str(ROOT / "benchmarks" / "atari.py"), "Pong", "--out", str(out), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr + (out / "Pong.console.txt").read_text()
        return json.loads((out / "summary.json").read_text())["Pong"]

    small = ["--slots", "4", "--episodes", "1", "--settings", *tiny]
    first = call("--minutes", "0.3", "--total-minutes", "0.5", *small)
    assert first["status"] == 128 + signal.SIGTERM
    assert first["members"][0]["evaluation"]["step"] * 4 == first["members"][0]["frames"]
    second = call("--minutes", "0.5", "--total-minutes", "0.5", "--resume", "--collect", str(collected))
    assert second["status"] == 0
    assert second["members"][0]["frames"] > first["members"][0]["frames"]
    (entry,) = atari_collect.load(collected)["runs"]
    assert entry["sessions"] == 2
    assert len(entry["evaluations"]) == 2
    assert (
        override(recipes.atari("ALE/Pong-v5"), {"slots": 4}).environment.slots
        == entry["config"]["environment"]["slots"]
    )
