"""Videos of a run: what is due, what is said of them, and that training does not notice any of it."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laser_rl import Sweep, checkpoint, cli
from laser_rl.checkpoint import Snapshot
from laser_rl.config import RunConfig, override
from laser_rl.errors import ConfigError
from laser_rl.metrics.videos import BY_ENJOY, BY_TRAINING, facts_path, films
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import train
from laser_rl.training.recording import Recording, VideoRecorder, with_videos
from tests.metrics.test_videos import a_film, trained
from tests.training.small import fingerprint, finish, small
from tests.training.test_filming import mp4_frames


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "catch"
    finish(small("laser/Catch", **{"run.steps": 400}), path)
    return path


# ---- what is said of a film ----


def test_a_film_says_who_played_and_how_it_went(run_dir, tmp_path, capsys):
    assert cli.main(["enjoy", str(run_dir), "--seed", "5"]) == 0
    assert "-seed-5.mp4" in capsys.readouterr().out
    [mine] = [one for one in films(run_dir) if one.path.name.endswith("-seed-5.mp4")]
    facts = json.loads(facts_path(mine.path).read_text())
    expected = {
        "by": "enjoy",
        "step": checkpoint.newest_step(run_dir),
        "member": None,
        "task": "laser/Catch",
        "seed": 5,
    }
    assert {name: facts[name] for name in expected} == expected
    assert (facts["ended"], facts["deterministic"], facts["frames"]) == (True, False, facts["length"] + 1)
    assert (mine.by, mine.total, mine.length) == ("enjoy", facts["return"], facts["length"])
    assert mine.total in {-1.0, 1.0}
    assert len(mp4_frames(mine.path)[2]) == facts["frames"]
    assert cli.main(["enjoy", str(run_dir), "--seed", "5", "--video", str(tmp_path / "v.gif")]) == 0
    assert capsys.readouterr().out.startswith(f"return {mine.total:.1f};"), "the same seed plays the same episode"
    assert [path.name for path in tmp_path.iterdir()] == ["v.gif"], "a film that goes elsewhere is not one of the run's"


# ---- what is due ----


class Reached(VideoRecorder):
    """A run that writes checkpoints of nothing, and a recorder that films them by writing their names down."""

    made: list

    def reach(self, step, *, last=False):
        checkpoint.write(self.run_dir, Snapshot(step, {}, {}), keep=1)
        self.look(last=last)

    def film(self):
        step = checkpoint.newest_step(self.run_dir)
        path = self.run_dir / "videos" / f"step-{step:012d}.mp4"
        path.parent.mkdir(exist_ok=True)
        facts_path(path).write_text(json.dumps({"by": BY_TRAINING, "step": step, "return": float(-step)}))
        path.write_bytes(b"film")


def steps(run_dir):
    return sorted(one.step for one in films(run_dir))


def test_one_film_of_the_first_checkpoint_after_each_interval_and_of_the_last(tmp_path):
    first = Reached(tmp_path, every=1000, keep=99)
    first.look()
    for step in (400, 800, 1200, 1600, 2000, 2400, 5000):
        first.reach(step)
    assert steps(tmp_path) == [1200, 2000, 5000]
    again = Reached(tmp_path, every=1000, keep=99)  # after a resume
    for step in (5000, 5900, 6100, 6200):
        again.reach(step)
    assert steps(tmp_path) == [1200, 2000, 5000, 6100]
    again.reach(6200, last=True)
    again.reach(6200, last=True)
    assert steps(tmp_path) == [1200, 2000, 5000, 6100, 6200]


def test_films_of_a_life_that_was_thrown_away_do_not_count(tmp_path):
    for step in (100, 200, 900):
        trained(tmp_path, step, 1.0)
    a_film(tmp_path, "mine.mp4", by=BY_ENJOY, step=350)
    for step, due in ((190, False), (240, False), (360, True), (890, True), (910, False)):
        found = Reached(tmp_path, every=100, keep=99)
        found.reach(step)
        assert (step in steps(tmp_path)) == due, step
        for old in (tmp_path / "checkpoints").iterdir():
            shutil.rmtree(old)
        for film in films(tmp_path):
            if film.step == step:
                film.path.unlink()


def test_the_recorder_films_the_best_member_of_a_sweep(tmp_path):
    sweep = Sweep("laser/Catch", members=[{"learning_rate": 1e-30}, {}], run_dir=tmp_path, seed=1, evaluate_episodes=50)
    result = sweep.run(4_000)
    assert result.best().number == 1
    VideoRecorder(tmp_path, every=1000, keep=9).film()
    assert [one.path.name for one in films(tmp_path)] == [f"step-{checkpoint.newest_step(tmp_path):012d}-member-01.mp4"]


def test_old_films_leave_and_the_best_stays(tmp_path):
    found = Reached(tmp_path, every=100, keep=3)
    for step in range(100, 1100, 100):
        found.reach(step)
    assert steps(tmp_path) == [100, 800, 900, 1000]  # returns fall


def test_what_cannot_be_filmed_is_said_once_and_never_raised(tmp_path, capsys):
    found = Reached(tmp_path, every=100, keep=3)
    for error in (
        ConfigError("no render mode; add one"),
        OSError(28, "No space left on device"),
        RuntimeError("broken"),
    ):

        def fail(error=error):
            raise error

        found.film = fail
        for step in range(3):
            found.reach(100 * (step + 1 + 10 * len(found._said)))
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in said] == [
        "no render mode; add one",
        "OSError: [Errno 28] No space left on device",
        "RuntimeError: broken",
    ]


# ---- beside training ----


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def train_in(path, config):
    """With the recorder beside it, where films are asked for."""
    with contextlib.closing(RunDirectory(path, config)) as directory:
        train(config, directory, sinks=[directory.log])


@pytest.mark.slow
def test_a_run_with_a_recorder_beside_it_is_the_run_without(tmp_path, monkeypatch, caplog):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr("laser_rl.training.recording.LAST_FILM_S", 0.0)
    for name, every in (("plain", 0), ("filmed", 200)):
        train_in(tmp_path / name, small("laser/Catch", **{"run.steps": 600, "run.video_every_steps": every}))
    assert fingerprint(tmp_path / "filmed") == fingerprint(tmp_path / "plain")
    assert len(warnings_of(caplog)) <= 1  # the last video was not made within 0 s
    assert not (tmp_path / "plain" / "videos").exists()


@pytest.mark.slow
def test_films_are_made_while_a_run_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("laser_rl.training.recording.SAY_AFTER_S", 100.0)
    plain = small("CartPole-v1", **{"run.steps": 5_000, "run.checkpoint_every_steps": 500})
    train_in(tmp_path / "plain", plain)
    train_in(tmp_path / "filmed", override(plain, {"run.video_every_steps": 500}))
    assert fingerprint(tmp_path / "filmed") == fingerprint(tmp_path / "plain")
    found = films(tmp_path / "filmed")
    assert found[0].step == checkpoint.newest_step(tmp_path / "filmed")
    for one in found:
        assert len(mp4_frames(one.path)[2]) == json.loads(facts_path(one.path).read_text())["frames"]
    assert not [path for path in (tmp_path / "filmed" / "videos").iterdir() if path.name.startswith(".")]
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(
    ("missing", "said"), [("library", r"laser-rl\[video\]"), ("directory", "run directory"), ("id", "by id")]
)
def test_a_run_that_cannot_be_filmed_says_so_and_goes_on(tmp_path, monkeypatch, caplog, missing, said):
    if missing == "library":
        monkeypatch.setattr("laser_rl.errors.importlib.util.find_spec", lambda name: None)
    run_dir, source = None if missing == "directory" else tmp_path, object if missing == "id" else None
    ended = object()
    with caplog.at_level(logging.WARNING):
        run = RunConfig(video_every_steps=100)
        assert with_videos(lambda: ended, run_dir, run, source=source, network=None) is ended
    [record] = caplog.records
    assert re.search(said, record.getMessage())


def test_fewer_checkpoints_than_videos_are_said(tmp_path, caplog, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    closed = []
    fake = type("R", (), {"close": lambda self: closed.append(1)})
    monkeypatch.setattr("laser_rl.training.recording.Recording", lambda *_: fake())
    run = RunConfig(video_every_steps=100, checkpoint_every_steps=50_000)
    stopped = type("Stopped", (), {"interrupted": "SIGINT"})
    with_videos(stopped, tmp_path, run, source=None, network=None)
    assert closed
    assert "every 50,000 steps" in caplog.records[0].getMessage()


def test_the_flag_is_the_setting(capsys):
    assert cli.main(["config", "show", "--video-every", "1.5M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["video_every_steps"] == 1_500_000


def test_fresh_throws_its_films_away_and_keeps_yours(tmp_path):
    config = small("laser/Catch", **{"run.steps": 50})
    finish(config, tmp_path)
    trained(tmp_path, 50, 1.0)
    mine = a_film(tmp_path, "mine.mp4")
    RunDirectory(tmp_path, config, fresh=True).close()
    assert [one.path for one in films(tmp_path)] == [mine]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def until(true, seconds=60.0):
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.slow
def test_the_recorder_dies_with_a_run_that_is_killed_and_leaves_no_half_film(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from laser_rl.config import RunConfig; "
        "from laser_rl.training.recording import Recording; "
        f"r = Recording(Path({str(tmp_path)!r}), RunConfig(video_every_steps=10)); print(r.pid, flush=True); time.sleep(600)"
    )
    finish(small("CartPole-v1", **{"run.steps": 5000}), tmp_path)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    until(lambda: list((tmp_path / "videos").glob(".*.tmp")) if (tmp_path / "videos").exists() else False)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stdout.close()
    until(lambda: not alive(pid), 10)
    half = list((tmp_path / "videos").glob("step-*.mp4"))
    assert all(len(mp4_frames(path)[2]) for path in half)
    VideoRecorder(tmp_path, 10, 3)
    until(lambda: VideoRecorder(tmp_path, 10, 3) and not list((tmp_path / "videos").glob(".*")), 20)


@pytest.mark.slow
def test_a_recorder_that_dies_is_a_warning_and_one_that_is_closed_leaves_nothing(tmp_path, caplog):
    finish(small("CartPole-v1", **{"run.steps": 5000}), tmp_path)
    recording = Recording(tmp_path, RunConfig(video_every_steps=10))
    os.kill(recording.pid, signal.SIGKILL)
    until(lambda: warnings_of(caplog))
    assert "ended with status -9; the run goes on" in warnings_of(caplog)[0]
    recording.finish()  # nobody is waited for
    recording.close()
    caplog.clear()
    recording = Recording(tmp_path, RunConfig(video_every_steps=10))
    until(lambda: list((tmp_path / "videos").glob(".*.tmp")) if (tmp_path / "videos").exists() else False)
    recording.close()
    assert not alive(recording.pid)
    time.sleep(1)
    assert not list((tmp_path / "videos").iterdir())
    assert warnings_of(caplog) == []
