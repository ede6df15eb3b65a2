"""The whole run is killed, and goes on. SIGKILL to the process group, not an exception."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from laser_rl import checkpoint
from laser_rl.metrics.log import read
from tests.training.small import fingerprint

LASER = (sys.executable, "-c", "import sys; from laser_rl.cli import main; sys.exit(main())")
SETTINGS = (
    "--steps 3000 --environment.slots 3 --replay.capacity-steps 2000 --run.checkpoint-every-steps 500 "
    "--run.evaluate-episodes 2 --plain"
)


def start(*arguments):
    words = [*LASER, *(str(word) for word in arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process, timeout_s=120):
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def kill_group(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


def wait_until(condition, process, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.02)


def newest(path):
    loaded = checkpoint.latest(path)
    return -1 if loaded is None else loaded.step


def the_same(path, other):
    """Asserts equal SHA-256 of all files of the newest checkpoint, of the replay and of all rows; how much that was."""
    assert fingerprint(path) == fingerprint(other)
    manifest = json.loads((checkpoint.latest(path).path / "manifest.json").read_text())
    segments, rows = len(manifest["segments"]), len(read(path, ("train", "episode", "evaluation", "sweep")))
    return f"the same SHA-256 of {len(manifest['files'])} files, {segments} segments of replay and {rows} rows"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    status, _, err = finish(start("train", "--out", path, *SETTINGS.split()))
    assert status == 0, err
    return path


@pytest.mark.fault(6, 9)
def test_killed_and_resumed_is_the_uninterrupted_run_bit_for_bit(uninterrupted, tmp_path, figure):
    path = tmp_path / "run"
    process = start("train", "--out", path, *SETTINGS.split())
    wait_until(lambda: newest(path) >= 1000, process)
    kill_group(process)
    at = newest(path)
    assert at < 3000
    status, out, err = finish(start("resume", path, "--plain"))
    assert status == 0, err
    assert f"resumed at step {at:,}" in out
    figure(f"MLP, 1 member, killed after step {at:,} of 3,000: {the_same(path, uninterrupted)}")


@pytest.mark.slow
@pytest.mark.fault(6)
def test_killed_at_twenty_random_moments(uninterrupted, tmp_path):
    path, dice, before = tmp_path / "run", random.Random(4), -1  # noqa: S311
    command = ("train", "--out", path, *SETTINGS.split())
    for _ in range(20):
        process = start(*command)
        time.sleep(dice.uniform(1.0, 5.0))
        if process.poll() is None:
            kill_group(process)
        else:
            finish(process)
        reached = newest(path) if path.exists() else -1
        assert reached >= before  # never back behind a complete checkpoint
        before = reached
    status, _, err = finish(start(*command))
    assert status == 0, err
    assert newest(path) >= 3000
    assert fingerprint(path) == fingerprint(uninterrupted)


@pytest.mark.fault(19)
@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_polite_signal_saves_and_says_how_to_go_on(tmp_path, number, status, figure):
    path = tmp_path / "run"
    words = SETTINGS.replace("--steps 3000", "--steps 10M").split()
    process = start("train", "--out", path, *words)
    wait_until(lambda: newest(path) >= 500, process)
    begin = time.monotonic()
    process.send_signal(number)
    code, out, err = finish(process, timeout_s=60)
    assert code == status, err
    seconds = time.monotonic() - begin
    assert seconds < 10.0 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    figure(f"{number.name}: {code} after {seconds:.1f} s")
    assert f"go on with: laser resume {path}" in out
    stopped = int(re.search(r"at step ([\d,]+);", out)[1].replace(",", ""))
    assert newest(path) == stopped
    code, out, err = finish(start("resume", path, "--steps", stopped + 300, "--plain"))
    assert code == 0, err
    assert newest(path) >= stopped + 300


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(uninterrupted, tmp_path):
    path = tmp_path / "run"
    subprocess.run(["cp", "-r", uninterrupted, path], check=True)
    victim = checkpoint.latest(path).path / "member-00.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1])
    code, out, err = finish(start("resume", path, "--plain"))
    assert code == 0, err
    assert "member-00.safetensors" in err
    assert fingerprint(path) == fingerprint(uninterrupted)
    for manifest in (path / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    code, out, err = finish(start("resume", path))
    assert (code, out) == (3, "")
    assert "use --fresh to start again" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_an_environment_that_never_starts_ends_the_run_soon(tmp_path):
    (tmp_path / "broken_module.py").write_text("def make():\n    raise OSError('no licence for this game')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    begin = time.monotonic()
    result = subprocess.run(
        [*LASER, "train", "--env", "broken_module:make", "--out", tmp_path / "run", "--environment.placement", "process"],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert result.returncode not in {0, 1}
    assert "no licence for this game" in result.stderr
    assert result.stderr.startswith("laser: ")
    assert time.monotonic() - begin < 30  # 10 s, and the time to import torch on a busy machine


def test_state_holds_no_time_of_day(uninterrupted):
    state = json.loads((checkpoint.latest(uninterrupted).path / "state.json").read_text())
    del state["settings"]  # of time-outs, among others
    assert "time" not in json.dumps(state)
