"""The last evaluation fails: what was trained is saved, the status says what is missing, and a resume makes it up."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from laser_rl import checkpoint, cli
from laser_rl.errors import UserError
from laser_rl.metrics.log import read
from laser_rl.training import member_training as training
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import train
from laser_rl.training.saving import NoSpace
from laser_rl.training.settings import SweepConfig
from tests.row_hash import rows_hash
from tests.training.small import finish, small
from tests.training.test_sweeps import in_directory, small_sweep

STEPS = 100
KINDS = {
    "run": lambda path: finish(small(steps=STEPS), path),
    "sweep": lambda path: in_directory(small_sweep(steps=STEPS), path),
}


class Broken(Exception):
    """What an environment may raise."""


def status_of(run_dir, capsys):
    capsys.readouterr()
    assert cli.main(["status", str(run_dir), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert cli.main(["status", str(run_dir)]) == 0
    assert ("only the last evaluation is missing: laser resume" in capsys.readouterr().out) == found[
        "evaluation_missing"
    ]
    return found


def hashes(run_dir):
    """Of all tensors of the newest checkpoint, and of the rows."""
    manifest = json.loads((checkpoint.latest(run_dir).path / "manifest.json").read_text())
    return {name: entry["sha256"] for name, entry in manifest["files"].items()}, rows_hash(run_dir)


@pytest.mark.fault(35)
@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_fails_costs_the_evaluation_only(tmp_path, monkeypatch, capsys, kind, figure):
    KINDS[kind](tmp_path / "whole")
    played, real = [], training.evaluate

    def fails(trained, **more):
        played.append(trained.steps)
        if len(played) == (2 if kind == "sweep" else 1):  # of a sweep, the first member's works
            raise Broken
        return real(trained, **more)

    monkeypatch.setattr(training, "evaluate", fails)
    with pytest.raises(Broken):
        KINDS[kind](tmp_path / "broken")
    monkeypatch.undo()
    found = status_of(tmp_path / "broken", capsys)
    assert found["evaluation_missing"]
    assert found["checkpoint"]["step"] >= STEPS
    assert cli.main(["resume", str(tmp_path / "broken"), "--plain"]) == 0
    assert not status_of(tmp_path / "broken", capsys)["evaluation_missing"]
    assert hashes(tmp_path / "broken") == hashes(tmp_path / "whole")  # also no row twice
    figure(
        f"{kind}: saved at step {found['checkpoint']['step']}, resumed and evaluated: the same SHA-256 as without the failure"
    )


@pytest.mark.fault(35)
def test_no_space_for_the_second_checkpoint(tmp_path, monkeypatch, capsys):
    """The evaluation was played, its row is there; a resume plays it again and the row counts once."""
    finish(small(steps=STEPS), tmp_path / "whole")
    saved = []
    real = RunDirectory.save

    def save(self, one):
        if one.trainings[0].evaluations:
            raise NoSpace(self.path, one.steps, OSError(28, "No space left on device"))
        saved.append(one.steps)
        return real(self, one)

    monkeypatch.setattr(RunDirectory, "save", save)
    with pytest.raises(NoSpace):
        finish(small(steps=STEPS), tmp_path / "full")
    monkeypatch.undo()
    assert saved[-1] >= STEPS
    assert status_of(tmp_path / "full", capsys)["evaluation_missing"]
    finish(small(steps=STEPS), tmp_path / "full")
    assert len(read(tmp_path / "full", ["evaluation"])) == 1
    assert hashes(tmp_path / "full") == hashes(tmp_path / "whole")


SLOW = """
import sys, time
from pathlib import Path
from laser_rl import cli
from laser_rl.training import member_training as training
real = training.evaluate
def slow(trained, *, goes_on, **more):
    print("evaluating", flush=True)
    while goes_on():
        time.sleep(0.01)
    return real(trained, goes_on=goes_on, **more)
training.evaluate = slow
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.fault(35)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_in_the_evaluation(tmp_path, capsys, number, status):
    run_dir = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        SLOW,
        "train",
        "--env",
        "CartPole-v1",
        "--steps",
        "100",
        "--plain",
        "--out",
        str(run_dir),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as run:
        while "evaluating" not in run.stdout.readline():
            assert run.poll() is None
        time.sleep(0.1)
        run.send_signal(number)
        run.stdout.read()
        assert run.wait(20) == status
    assert checkpoint.latest(run_dir).step >= 100
    assert status_of(run_dir, capsys)["evaluation_missing"]
    assert cli.main(["resume", str(run_dir), "--plain"]) == 0
    assert len(read(run_dir, ["evaluation"])) == 1
    assert not status_of(run_dir, capsys)["evaluation_missing"]


def test_going_on_for_longer_forgets_what_was_missing(tmp_path, monkeypatch, capsys):
    def fails(*_, **__):
        raise Broken

    monkeypatch.setattr(training, "evaluate", fails)
    config = small(steps=STEPS, checkpoint_every_steps=50)
    with pytest.raises(Broken):
        finish(config, tmp_path)
    longer = small(steps=3 * STEPS, checkpoint_every_steps=50)
    directory = RunDirectory(tmp_path, longer)
    result = train(longer, directory, sinks=[directory.log], callbacks=[lambda progress: progress.step < 2 * STEPS])
    directory.close()
    assert result.interrupted is not None
    assert STEPS < checkpoint.latest(tmp_path).step < 3 * STEPS
    assert not status_of(tmp_path, capsys)["evaluation_missing"]


@pytest.mark.fault(35)
@pytest.mark.slow
def test_in_a_sweep_over_processes(tmp_path, capsys):
    """A process whose evaluation fails is started again, and given up in the end; the supervisor has saved by then."""
    name = "tests.faults.bad_environments:trains_but_is_not_evaluated"
    base = small(name, steps=STEPS, slots=2, evaluate_episodes=1)
    config = SweepConfig(base=base, grid={"learning_rate": [1e-3, 2e-3]}, processes=2)
    with pytest.raises(UserError, match="without a step in between"):
        in_directory(config, tmp_path)
    assert checkpoint.latest(tmp_path).step >= STEPS
    assert status_of(tmp_path, capsys)["evaluation_missing"]
