"""Runs are asked to end: SIGTERM, Ctrl-C, Ctrl-C twice, a terminal that is closed. While they train, warm up and evaluate."""

import contextlib
import errno
import os
import pty
import re
import shlex
import signal
import sys
import threading
import time
from io import RawIOBase, TextIOWrapper

import pytest
from rich.console import Console as Terminal

from laser_rl.metrics.console import Console
from laser_rl.metrics.log import read
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare
from laser_rl.training.stop import AGAIN_S, FINISHED, Stop, StoppedAtOnce, nothing_to_save, signals
from tests.faults.families import VARIABLE, Family, living, within
from tests.faults.test_run_faults import LASER, newest, wait_until
from tests.training.small import finish, run_one, small

LIMIT_S = 10.0
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SMALL = "--env laser/Catch --network.hidden 8 --environment.slots 3 --replay.capacity-steps 2000 --run.checkpoint-every-steps 300"
WAYS = {
    "serial": f"train {SMALL} --runtime serial",
    "local": f"train {SMALL} --runtime local",
    "sweep": f"sweep {SMALL} --grid learning_rate=1e-3,2e-3",
    "sweep of 2 processes": f"sweep {SMALL} --grid learning_rate=1e-3,2e-3 --processes 2",
}
ENDLESS = "--run.evaluate-episodes 200000"  # minutes
PHASES = {
    "training": "--steps 10M --run.evaluate-episodes 2",
    "warming up": "--steps 10M --replay.capacity-steps 2M --replay.warmup-steps 2M --run.checkpoint-every-steps 0",
    "evaluating": f"--steps 10M --run.evaluate-every-steps 300 {ENDLESS}",
    "in the last evaluation": f"--steps 600 {ENDLESS}",
}


def begun(path, phase):
    """Whether a run is in the middle of it."""
    if not (path / "metrics.jsonl").exists():
        return False
    steps = max((row["step"] for row in read(path, ("episode",))), default=0)
    if phase == "training":
        return newest(path) >= 300
    if phase == "warming up":
        return steps > 300
    silent = time.time() - (path / "metrics.jsonl").stat().st_mtime
    return steps > (250 if phase == "evaluating" else 550) and silent > 0.7  # nothing is written while it plays


def assert_saved(path, stopped):
    assert newest(path) == stopped
    events = [row.get("event") for row in read(path, ("event",))]
    assert events[-1] == "stopped"
    assert not list((path / "checkpoints").glob(".*"))


def step_of(out):
    return int(re.search(r"stopped \(\w+\) at step ([\d,]+)", out)[1].replace(",", ""))


def resume_command(out):
    return re.search(r"go on with: laser (resume .+)$", out, re.MULTILINE)[1]


@pytest.mark.slow
@pytest.mark.fault(19)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("way", WAYS)
def test_a_signal_ends_a_run_with_a_checkpoint_and_the_command_that_goes_on(way, phase, tmp_path, figure):
    took = []
    for number in (signal.SIGTERM, signal.SIGINT):
        path = tmp_path / number.name
        family = Family(*f"{WAYS[way]} {PHASES[phase]} --plain".split(), "--out", path)
        wait_until(lambda: begun(path, phase), family.process)  # noqa: B023
        status, out, err, seconds = family.end(number)
        assert status == STATUS[number], err
        assert seconds < within(LIMIT_S)
        assert family.pids() == []
        assert f"stopped ({number.name})" in out
        assert_saved(path, step_of(out))
        took.append(seconds)
    figure(f"{way}, {phase}: SIGTERM 143 and Ctrl-C 130, with a checkpoint, after {max(took):.1f} s at most")
    goes_on(out, path)


@pytest.mark.slow
@pytest.mark.fault(19)
def test_a_member_that_hangs_is_killed_in_time_for_a_checkpoint(tmp_path, figure):
    """Ten seconds are promised, so a process that does not answer has less: the others are saved after it was killed."""
    path = tmp_path / "run"
    family = Family(*f"{WAYS['sweep of 2 processes']} {PHASES['training']} --plain".split(), "--out", path)
    wait_until(lambda: begun(path, "training"), family.process)
    hanging, gone = family.share_processes()[0], []
    os.kill(hanging, signal.SIGSTOP)
    time.sleep(0.5)  # the other one waits for it by now
    asked = time.monotonic()

    def watch():
        while hanging in family.pids() and time.monotonic() < asked + 60:
            time.sleep(0.02)
        gone.append(time.monotonic() - asked)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    status, out, err, seconds = family.end(signal.SIGTERM)
    watching.join(60)
    assert status == 143, err
    assert family.pids() == []
    assert_saved(path, step_of(out))
    assert gone[0] < 9.0  # however busy the machine is: it only waits
    assert seconds < within(10.0)
    figure(f"a member of 2 processes hangs: killed after {gone[0]:.1f} s, 143 with a checkpoint after {seconds:.1f} s")


@pytest.mark.slow
@pytest.mark.fault(19)
def test_a_signal_to_the_process_of_a_member_alone_ends_nothing(tmp_path):
    """A terminal sends Ctrl-C to every process of the run: only the supervisor may answer, or each member would end for itself."""
    path = tmp_path / "run"
    family = Family(*f"{WAYS['sweep of 2 processes']} {PHASES['training']} --plain".split(), "--out", path)
    wait_until(lambda: begun(path, "training"), family.process)
    members = family.share_processes()
    for pid in members:
        for number in STATUS:
            os.kill(pid, number)
    saved = newest(path)
    wait_until(lambda: newest(path) > saved, family.process)
    assert family.share_processes() == members
    status, out, err, _ = family.end(signal.SIGTERM)
    assert status == 143, err
    assert_saved(path, step_of(out))


def goes_on(out, path):
    """The command that was printed, as it was printed."""
    family = Family(*shlex.split(resume_command(out)), "--plain")
    wait_until(lambda: resumed(path), family.process)
    status, out, err, _ = family.end(signal.SIGTERM)
    assert status == 143, err
    assert family.pids() == []


def resumed(path):
    rows = read(path)
    at = next((place for place, row in enumerate(rows) if row.get("event") == "resumed"), len(rows))
    return at < len(rows)


def in_a_terminal(words):
    """Start a command as the leader of a session on a terminal of its own; its process, and the terminal to close."""
    word = f"terminal-{os.getpid()}-{time.monotonic_ns()}"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({VARIABLE: word, "TERM": "xterm"})
        os.execv(LASER[0], [*LASER, *words])  # noqa: S606

    def drain():  # nobody reads a terminal that is full, and then its writer waits
        with contextlib.suppress(OSError):
            while os.read(terminal, 1 << 16):
                pass

    threading.Thread(target=drain, daemon=True).start()
    return pid, terminal, word


class Reaped:
    """A process of `in_a_terminal`, as `wait_until` wants to see it."""

    def __init__(self, pid):
        self.pid, self.status = pid, None

    def poll(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def communicate(self):
        return self.status

    def wait(self, limit_s):
        deadline = time.monotonic() + limit_s
        while self.poll() is None:
            assert time.monotonic() < deadline, "it did not end"
            time.sleep(0.02)
        return self.status


@pytest.mark.slow
@pytest.mark.fault(19)
@pytest.mark.parametrize("phase", ["training", "evaluating"])
@pytest.mark.parametrize("way", WAYS)
def test_a_closed_terminal_ends_a_run_with_a_checkpoint(way, phase, tmp_path, figure):
    path = tmp_path / "run"
    pid, terminal, word = in_a_terminal([*f"{WAYS[way]} {PHASES[phase]}".split(), "--out", str(path)])
    process = Reaped(pid)
    try:
        wait_until(lambda: begun(path, phase), process)
        begin = time.monotonic()
        os.close(terminal)
        os.kill(pid, signal.SIGHUP)  # the shell tells of it as well
        assert process.wait(60) == STATUS[signal.SIGHUP]
        seconds = time.monotonic() - begin
    finally:
        if process.poll() is None:
            os.kill(pid, signal.SIGKILL)
            process.wait(10)
    assert seconds < within(LIMIT_S)
    assert living(word) == []
    assert_saved(path, newest(path))
    figure(f"{way}, {phase}: closed terminal 129, with a checkpoint, after {seconds:.1f} s")


@pytest.mark.slow
@pytest.mark.fault(19)
def test_what_nohup_started_does_not_hear_that_the_terminal_is_closed(tmp_path):
    path = tmp_path / "run"
    family = Family(
        *f"{WAYS['serial']} {PHASES['training']} --plain".split(), "--out", path, launcher=("nohup", *LASER)
    )
    wait_until(lambda: begun(path, "training"), family.process)
    family.process.send_signal(signal.SIGHUP)
    further = newest(path) + 600
    wait_until(lambda: newest(path) >= further, family.process)
    assert family.end(signal.SIGTERM)[0] == 143


# From the moment on at which a file named `slow` exists, the disk takes half a second for everything, and leaves one named `saving`.
SLOW_DISK = """
import os, sys, time
from pathlib import Path
folder, real = Path(sys.argv.pop(1)), os.fsync
def fsync(handle):
    if (folder / "slow").exists():
        (folder / "saving").touch()
        time.sleep(0.5)
    real(handle)
os.fsync = fsync
from laser_rl.cli import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.fault(19)
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_twice_ends_at_once_and_does_the_checkpoint_under_way_no_harm(way, tmp_path, figure):
    path, words = tmp_path / "run", f"{WAYS[way]} {PHASES['training']} --plain".split()
    family = Family(*words, "--out", path, launcher=(sys.executable, "-c", SLOW_DISK, tmp_path))
    wait_until(lambda: begun(path, "training"), family.process)
    (tmp_path / "slow").touch()
    family.process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "saving").exists, family.process)
    before = newest(path)
    time.sleep(0.3)
    status, out, err, seconds = family.end(signal.SIGINT)
    assert status == 130, err
    assert seconds < within(2.0)
    assert "Traceback" not in err
    assert "stopped (SIGINT) at once; go on with: laser resume" in out
    assert newest(path) >= before > 0
    assert family.seconds_until_gone() < 1.0
    goes_on(out, path)
    assert not list((path / "checkpoints").glob(".*"))  # what was half written
    figure(f"{way}: Ctrl-C again in the middle of the checkpoint: 130 after {seconds:.2f} s, the one before is whole")


HANGING = """
import time
from tests.envs.samples import Telltale
class Hanging(Telltale):
    def step(self, action):
        if self._t == 3 and self._seed % 7 == 0:
            open({marker!r}, "w").close()
            time.sleep(1000)
        return super().step(action)
"""


@pytest.mark.slow
@pytest.mark.fault(19)
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_ctrl_c_twice_ends_a_run_whose_environment_hangs(runtime, tmp_path, figure):
    marker, path = tmp_path / "hangs", tmp_path / "run"
    (tmp_path / "hanging.py").write_text(HANGING.format(marker=str(marker)))
    words = f"train --env hanging:Hanging --steps 10M --environment.slots 2 --runtime {runtime} --plain".split()
    family = Family(*words, "--out", path, environment={"PYTHONPATH": str(tmp_path)})
    wait_until(marker.exists, family.process)
    family.process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert family.process.poll() is None  # it waits for its environment
    status, out, err, seconds = family.end(signal.SIGINT)
    assert status == 130, err
    assert "stopped (SIGINT) at once; nothing was saved yet, so start again" in out
    assert seconds < within(3.0)
    figure(f"{runtime}, an environment hangs: Ctrl-C twice 130 after {seconds:.2f} s")


@pytest.mark.slow
@pytest.mark.fault(19)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_step_ends_at_once(number, tmp_path, figure):
    """The constructor of the environment never returns: there is nothing to save."""
    marker = tmp_path / "constructs"
    (tmp_path / "slowly.py").write_text(
        f"import time\ndef make():\n    open({str(marker)!r}, 'w').close()\n    time.sleep(1000)\n"
    )
    words = f"train --env slowly:make --recipe cartpole --plain --out {tmp_path / 'run'}".split()
    family = Family(*words, environment={"PYTHONPATH": str(tmp_path)})
    wait_until(marker.exists, family.process)
    status, out, err, seconds = family.end(number)
    assert status == STATUS[number], (out, err)
    assert seconds < within(3.0)
    assert "nothing was saved yet" in out
    figure(f"{number.name} while an environment is constructed: {status} after {seconds:.2f} s")


@pytest.mark.fault(19)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_of_its_kind_raises(number, figure):
    before = {one: signal.getsignal(one) for one in STATUS}
    stop = Stop()
    with signals(stop):
        signal.raise_signal(number)
        signal.raise_signal(number)  # passed on by whoever started us
        assert (stop.reason, stop.urgent) == (number.name, True)
        time.sleep(1.2 * AGAIN_S)
        begin = time.perf_counter()
        with pytest.raises(StoppedAtOnce) as caught:
            signal.raise_signal(number)
        assert caught.value.exit_status == STATUS[number]
    assert {one: signal.getsignal(one) for one in STATUS} == before
    figure(f"{number.name} again: {STATUS[number]} at once ({1e3 * (time.perf_counter() - begin):.1f} ms)")


@pytest.mark.fault(19)
def test_a_closed_terminal_asks_however_often_it_is_told():
    stop, before = Stop(), signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    try:
        with signals(stop):
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
                time.sleep(1.2 * AGAIN_S)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stop.reason == "SIGHUP"


@pytest.mark.fault(19)
def test_what_was_ignored_stays_ignored():
    stop, before = Stop(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals(stop), nothing_to_save():
            signal.raise_signal(signal.SIGHUP)
        assert stop.reason is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.fault(19)
def test_a_terminal_that_is_gone_ends_no_run():
    """Also where nobody is told of it: a shell may let go of what it started."""
    terminal = TextIOWrapper(Gone(), write_through=True)
    console = Console("a run", 1000, terminal=Terminal(file=terminal))
    console.write("train", 1, 1, {"kl": 0.5})
    console.write("event", 1, 1, {"event": "stopped"})
    console.close()


class Gone(RawIOBase):
    """As the kernel answers after a hangup."""

    def writable(self):
        return True

    def write(self, data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_finished_run_is_interrupted_by_signals_only():
    stop = Stop()
    stop.request(FINISHED)
    stop.request("a callback")
    assert (stop.reason, stop.interrupted) == (FINISHED, None)
    with signals(stop):
        signal.raise_signal(signal.SIGTERM)
    assert stop.interrupted == "SIGTERM"


@pytest.mark.fault(19)
def test_an_evaluation_that_was_broken_off_is_played_when_the_run_goes_on(tmp_path):
    config = small("laser/Catch", steps=600, evaluate_every_steps=200)
    directory = RunDirectory(tmp_path, config)
    try:
        trainer = prepare(config, directory, sinks=[directory.log])
        trainer.stop.listen = lambda: trainer.stop.interrupt("SIGTERM")  # asked for by evaluations only
        result, _ = run_one(trainer)
    finally:
        directory.close()
    assert (result.interrupted, result.evaluation) == ("SIGTERM", None)
    assert newest(tmp_path) == result.steps < 210
    assert read(tmp_path, ("evaluation",)) == []
    finish(config, tmp_path)
    steps = [row["step"] for row in read(tmp_path, ("evaluation",))]
    assert len(steps) == 3
    assert steps[0] - result.steps <= 3
    assert steps[1] >= 400


def test_before_there_is_anything_to_save_a_signal_raises():
    with nothing_to_save(), pytest.raises(StoppedAtOnce, match="SIGTERM"):
        signal.raise_signal(signal.SIGTERM)


def test_other_threads_run_without_signals():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def run():
        with signals(Stop()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert seen == [before]
