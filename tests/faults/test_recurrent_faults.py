"""Runs and sweeps of agents with a memory are killed, and go on. SIGKILL, not an exception."""

import os
import signal

import pytest

from laser_rl import checkpoint
from laser_rl.metrics.log import read
from laser_rl.training.directory import RunDirectory
from laser_rl.training.supervisor import ProcessSupervisor
from tests.faults.test_run_faults import finish, kill_group, newest, start, the_same, wait_until
from tests.training.test_recurrent_sweeps import PBT, members

TRAIN = (
    "train --recipe cartpole --env laser/TMaze-8 --network.memory lstm --network.memory-size 8 --network.hidden 8 --loss.unroll-steps 5 "
    "--loss.popart --steps 1500 --environment.slots 4 --replay.capacity-steps 2000 "
    "--run.checkpoint-every-steps 300 --run.evaluate-episodes 2 --plain"
)


SWEEP = (
    "sweep --recipe cartpole --env laser/TMaze-4 --network.memory lstm --network.memory-size 8 --network.hidden 8 --loss.unroll-steps 5 "
    "--grid learning_rate=5e-4,1e-3,4e-3 --pbt --steps 1500 --environment.slots 3 --replay.capacity-steps 2000 "
    "--run.checkpoint-every-steps 300 --run.evaluate-episodes 2 --plain"
)


@pytest.mark.slow
@pytest.mark.fault(9)
def test_killed_and_resumed_is_the_uninterrupted_run_bit_for_bit(tmp_path, figure):
    status, _, err = finish(start(*TRAIN.split(), "--out", tmp_path / "whole"))
    assert status == 0, err
    path = tmp_path / "parts"
    process = start(*TRAIN.split(), "--out", path)
    wait_until(lambda: newest(path) >= 600, process)
    kill_group(process)
    at = newest(path)
    assert at < 1_500
    kept = checkpoint.latest(path).tensors
    assert (kept["member-00"]["mixer/sampler.next"] >= 0).any()  # in the middle of episodes
    assert kept["member-00"]["learner/carried"].abs().sum() > 0
    status, out, err = finish(start("resume", path, "--plain"))
    assert status == 0, err
    assert f"resumed at step {at:,}" in out
    figure(f"LSTM, 1 member, killed after step {at:,} of 1,500: {the_same(path, tmp_path / 'whole')}")


@pytest.mark.slow
@pytest.mark.fault(9, 20)
def test_a_killed_sweep_goes_on_bit_for_bit(tmp_path, figure):
    status, _, err = finish(start(*SWEEP.split(), "--out", tmp_path / "whole"))
    assert status == 0, err
    path = tmp_path / "parts"
    process = start(*SWEEP.split(), "--out", path)
    wait_until(lambda: newest(path) >= 600, process)
    kill_group(process)
    at = newest(path)
    assert at < 1_500
    status, _, err = finish(start("resume", path, "--plain"))
    assert status == 0, err
    figure(f"LSTM, 3 members with PBT, killed after step {at:,} of 1,500: {the_same(path, tmp_path / 'whole')}")
    state = checkpoint.latest(path).state["trainer"]["pbt"]
    assert len(state["history"]) > 0
    assert state == checkpoint.latest(tmp_path / "whole").state["trainer"]["pbt"]


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_run_with_threads_goes_on_after_its_end(tmp_path, number):
    path = tmp_path / "run"
    words = [*TRAIN.replace("--steps 1500", "--steps 10M").split(), "--runtime", "local", "--out", path]
    process = start(*words)
    wait_until(lambda: newest(path) >= 600, process)
    process.send_signal(number)
    status, _, err = finish(process, timeout_s=30)
    assert status == {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143}[number], err
    stopped = newest(path)
    status, _, err = finish(start("resume", path, "--steps", stopped + 500, "--plain"))
    assert status == 0, err
    assert newest(path) >= stopped + 500
    rows = [row for row in read(path, ("train",)) if row["step"] > stopped]
    assert all(row["skipped_updates"] == 0 for row in rows)


@pytest.mark.slow
def test_a_killed_process_of_a_sweep_comes_back_with_lanes_drawn_anew(tmp_path):
    config = members(processes=2, pbt=PBT, steps=1_200, capacity_steps=4_000, checkpoint_every_steps=500)
    directory, killed = RunDirectory(tmp_path, config), []
    supervisor = ProcessSupervisor(config, directory, 2)
    look = supervisor._look

    def watched():
        if not killed and supervisor.board.steps.min() > 400:
            killed.append(supervisor.processes[1].pid)
            os.kill(killed[0], signal.SIGKILL)
        return look()

    supervisor._look = watched
    try:
        end = supervisor.run()
    finally:
        directory.close()
    assert killed
    assert supervisor.processes[1].restarts == 1
    assert all(member.steps >= 1_200 for member in end.members)
    last = {row["member"]: row for row in read(tmp_path, ("train",))}
    assert all(row["skipped_updates"] == 0 for row in last.values())
