"""Runs are done once, in any number of processes, whatever is killed; the table is the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laser_rl.errors import ConfigError
from laser_rl.research import run_experiments
from laser_rl.research.experiment import EXPERIMENTS, planned, shrunk, suite_of

ARGUMENTS = ["experiment", "run", "sharing", "--smoke", "--tasks", "catch"]


def smoke_runs(name="sharing", task="catch", seeds=(0, 1)):
    return planned(EXPERIMENTS[name], [shrunk(suite_of("small").task(task))], seeds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert run_experiments.perform(smoke_runs(), folder / "parts") == 6
    return run_experiments.assemble(smoke_runs(), folder / "parts", folder / "sharing").read_bytes()


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("parts_at_least", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_in_the_middle_it_goes_on_and_gives_the_same_table(tmp_path, whole, parts_at_least):
    command = (
        f"from laser_rl.cli import main; raise SystemExit(main({[*ARGUMENTS, '--jobs', '2', '--out', str(tmp_path)]}))"
    )
    process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.DEVNULL)
    parts, deadline = tmp_path / "parts", time.monotonic() + 120
    try:
        while not (
            len(list(parts.glob("*.json"))) >= parts_at_least and len(children(process.pid)) > 2
        ):  # multiprocessing has one of its own
            assert process.poll() is None, "ended before it could be killed"
            assert time.monotonic() < deadline, f"waited for {parts_at_least} parts in {parts}"
            time.sleep(0.005)
        workers = children(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < deadline, f"workers {workers} outlive their parent"
        time.sleep(0.01)
    done = len(list(parts.glob("*.json")))
    assert done < 6
    assert not (tmp_path / "sharing").exists()
    assert run_experiments.perform(smoke_runs(), parts, jobs=2) == 6 - done
    assert run_experiments.assemble(smoke_runs(), parts, tmp_path / "sharing").read_bytes() == whole
    assert run_experiments.perform(smoke_runs(), parts) == 0


def test_half_a_part_does_not_count(tmp_path, whole):
    parts = tmp_path / "parts"
    parts.mkdir()
    part = run_experiments.part_of(parts, smoke_runs()[0])
    (parts / f".{part.name}.1-2.tmp").write_text('{"seconds": 1')  # what a killed writer leaves
    assert run_experiments.perform(smoke_runs(), parts) == 6
    assert run_experiments.assemble(smoke_runs(), parts, tmp_path).read_bytes() == whole


def test_runs_with_directories_give_the_same_table(tmp_path, whole):
    assert run_experiments.perform(smoke_runs(), tmp_path, kept=True) == 6
    part = run_experiments.part_of(tmp_path, smoke_runs()[0])
    assert (part.with_suffix("") / "sweep.json").exists()
    assert run_experiments.assemble(smoke_runs(), tmp_path, tmp_path).read_bytes() == whole


@pytest.mark.slow
def test_more_seeds_only_add_runs(tmp_path, whole, capsys):
    run_experiments.perform(smoke_runs(seeds=(0,)), tmp_path)
    assert run_experiments.perform(smoke_runs(), tmp_path) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 runs to do, 0 done already"
    assert lines[4] == "3 runs to do, 3 done already"
    assert run_experiments.assemble(smoke_runs(), tmp_path, tmp_path).read_bytes() == whole


def test_a_run_that_fails_is_named_and_the_others_are_kept(tmp_path, monkeypatch):
    real = run_experiments.executed

    def executed(sweep, bucket_steps, directory=None):
        if sweep.share == "separate" and sweep.base.run.seed == 1:
            raise ConfigError("no such thing")
        return real(sweep, bucket_steps, directory)

    monkeypatch.setattr(run_experiments, "executed", executed)
    with pytest.raises(
        run_experiments.RunsFailed, match=r"1 of 6 runs failed(?s:.*)catch, separate, seed 1: no such thing"
    ):
        run_experiments.perform(smoke_runs(), tmp_path)
    monkeypatch.undo()
    assert run_experiments.perform(smoke_runs(), tmp_path) == 1


def work(job):
    """For processes that are started afresh."""
    if job["number"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if job["number"] == 2:
        raise ValueError("two")
    return job["number"]


@pytest.mark.slow
def test_a_worker_that_dies_takes_only_its_own_job_with_it():
    ended = sorted(run_experiments.spread(work, [{"number": n} for n in range(6)], workers=2), key=lambda one: one[0])
    assert [result for _, result, _ in ended] == [0, None, None, 3, 4, 5]
    assert "died with status -9" in ended[1][2]
    assert "ValueError: two" in ended[2][2]


def wait_long(job):
    """Longer than any test."""
    time.sleep(600)


@pytest.mark.slow
def test_busy_workers_die_with_their_parent():
    command = (
        "from laser_rl.research.run_experiments import spread; from tests.research.test_run_experiments import wait_long; "
        "list(spread(wait_long, [{}, {}], workers=2))"
    )
    process = subprocess.Popen([sys.executable, "-c", command])
    deadline = time.monotonic() + 60
    try:
        while len(workers := [pid for pid in children(process.pid) if "spawn_main" in command_of(pid)]) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline, "waited for two workers"
            time.sleep(0.01)
        time.sleep(2)  # they are busy by now
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    try:
        while any(alive(worker) for worker in workers):
            assert time.monotonic() < deadline, f"workers {workers} outlive their parent"
            time.sleep(0.01)
    finally:
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)


@pytest.mark.slow
def test_workers_end_with_whoever_stops_listening():
    before = set(children(os.getpid()))
    ends = run_experiments.spread(work, [{"number": n} for n in (3, 4, 5)], workers=2)
    next(ends)
    workers = set(children(os.getpid())) - before
    ends.close()
    assert not any(alive(worker) for worker in workers if "resource_tracker" not in command_of(worker))


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
