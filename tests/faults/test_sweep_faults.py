"""Processes of a sweep are killed, copies are interrupted, whole sweeps are killed. SIGKILL, not exceptions."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch

from laser_rl import checkpoint
from laser_rl.metrics.log import read
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import train
from laser_rl.training.member_process import SharedStateStore
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.process_handle import ProcessDied
from laser_rl.training.saving import parsed, published
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from laser_rl.training.trainer import TURNS_AHEAD
from tests.faults.families import within
from tests.faults.test_run_faults import finish, kill_group, newest, start, the_same, wait_until
from tests.training.small import small
from tests.training.test_sweeps import prepared, small_sweep

PBT = PbtConfig(burn_in_steps=200, every_episodes=10, margin=0.01)
SWEEP = (
    "sweep --recipe cartpole --env laser/Catch --grid learning_rate=5e-4,1e-3,4e-3 --pbt --steps 1500 --environment.slots 3 "
    "--replay.capacity-steps 2000 --run.checkpoint-every-steps 300 --run.evaluate-episodes 2 --plain"
)


def in_processes(path, *, steps=3_000, pbt=PBT, rates=(5e-4, 1e-3, 2e-3, 4e-3), settings=None, **more):
    values = {"checkpoint_every_steps": 1_000, "capacity_steps": 6_000, "log_every_updates": 20, **(settings or {})}
    base = small("laser/Catch", steps=steps, **values)
    config = SweepConfig(base=base, grid={"learning_rate": list(rates)}, pbt=pbt, processes=2)
    directory = RunDirectory(path, config)
    return config, directory, ProcessSupervisor(config, directory, 2, **more)


@pytest.mark.slow
def test_a_killed_process_comes_back_and_members_stay_together(tmp_path):
    killed, spreads = [], []
    config, directory, supervisor = in_processes(tmp_path)
    look = supervisor._look

    def watched():
        spreads.append(int(np.ptp(supervisor.board.steps.copy())))
        if not killed and supervisor.board.steps.min() > 600:
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
    assert (
        max(spreads) <= (TURNS_AHEAD + 1) * 3 + 3
    )  # turns of three slots, and the one that is under way while we look
    assert all(member.steps >= 3_000 for member in end.members)
    assert all(member.evaluation is not None for member in end.members)
    store = supervisor.members[0].replay
    kept = store.export(np.arange(store.first_id, store.next_id))
    assert set(kept.member.tolist()) == {0, 1, 2, 3}
    rows = [row for row in read(tmp_path, ("event",)) if row.get("event") == "resumed"]
    assert {row["member"] for row in rows if row["step"] > 0} >= {2, 3}
    for pid in killed:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    # What one way of running leaves, the other goes on with.
    again = RunDirectory(tmp_path, None)
    try:
        longer = config.model_copy(
            update={
                "processes": 1,
                "base": config.base.model_copy(update={"run": config.base.run.model_copy(update={"steps": 3_300})}),
            }
        )
        rest = train(longer, again, sinks=[again.log])
    finally:
        again.close()
    assert all(3_300 <= member.steps < 3_310 for member in rest.members)
    assert rest.exploits[: len(end.exploits)] == end.exploits


@pytest.mark.fault(19)
def test_a_stop_ends_all_processes_with_a_checkpoint(tmp_path, caplog):
    asked = []

    def until(progress):
        if progress.step >= 500:
            asked.append(time.monotonic())
        return progress.step < 500

    _, directory, supervisor = in_processes(tmp_path, steps=1_000_000, callbacks=[until])
    try:
        end = supervisor.run()
    finally:
        directory.close()
    # Also those who wait for members elsewhere hear it: else they are killed in the end.
    assert time.monotonic() - asked[0] < within(10.0)
    assert "is killed" not in caplog.text
    assert end.interrupted == "a callback"
    assert checkpoint.latest(tmp_path).step >= 500
    assert all(process.ended() is not None for process in supervisor.processes)


def test_a_process_that_cannot_start_ends_the_sweep_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr("laser_rl.training.supervisor.LOOK_S", 0.02)
    _, directory, supervisor = in_processes(tmp_path, pbt=None)
    for process in supervisor.processes:
        process.kill()
        process._start["sweep"]["share"] = "nonsense"
    try:
        with pytest.raises(ProcessDied, match="ended with status 2"):
            supervisor.run()
    finally:
        directory.close()


@pytest.mark.fault(20)
def test_a_state_on_the_board_is_whole_whenever_its_writer_is_killed(figure):
    """A child publishes states of one repeated byte without a pause, and is killed again and again."""
    board, reads = SharedStateStore(members=1, size=200_000), 0
    for kill in range(20):
        pid = os.fork()
        if pid == 0:
            letter = kill
            while True:
                letter = (letter + 1) % 251
                board.put(0, bytes([letter]) * (100_000 + letter * 300))
        deadline, seen = time.monotonic() + 0.05, 0
        while time.monotonic() < deadline:
            data = board.get(0)
            if data:
                assert len(set(data)) == 1
                assert len(data) == 100_000 + data[0] * 300
                seen += 1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert seen
        assert len(set(board.get(0))) == 1
        reads += seen + 1
    figure(f"20 donors killed while they publish: 0 torn states in {reads:,} readings")


def test_a_published_state_comes_back_as_it_was():
    training = prepared(small_sweep(pbt=PBT))
    for _ in range(60):
        training.turn()
    one = training.trainings[1]
    state = parsed(published(one))
    fresh = prepared(small_sweep(pbt=PBT)).trainings[1]
    fresh.member.learner.load_state_dict(state.tensors, state.numbers["learner"])
    fresh.load_state_dict(state.numbers["training"])
    training.group.close()
    assert torch.equal(fresh.member.learner.flat.value, one.member.learner.flat.value)
    assert fresh.window.numbers() == one.window.numbers()
    assert fresh.steps == one.steps


@pytest.mark.slow
@pytest.mark.fault(20)
def test_resume_between_decision_and_copy_copies_once(tmp_path, figure):
    """Orders are repeated until the member's own state says that it has obeyed, and obeyed once."""
    _, directory, supervisor = in_processes(tmp_path, steps=20_000)  # long enough for a decision on any machine
    sent, tell = [], supervisor._tell

    def twice(exploit):
        sent.append(exploit)
        tell(exploit)
        tell(exploit)  # a delivery that is repeated

    supervisor._tell = twice
    try:
        end = supervisor.run()
    finally:
        directory.close()
    copies = [row for row in read(tmp_path, ("event",)) if row.get("event") == "exploit"]
    assert len(sent) >= len(copies) > 0
    made = [(row["member"], row["donor"], row["after_learning_rate"]) for row in copies]
    decided = [(e.member, e.donor, e.after["learning_rate"]) for e in end.exploits]
    assert sorted(made) == sorted(decided)  # each once, and none that was only decided
    figure(f"{2 * len(sent)} orders for {len(decided)} copies: {len(made)} made")


def copies_made(path):
    """Those whose rows hold, in order of their numbers as far as rows tell."""
    rows = [row for row in read(path, ("event",)) if row.get("event") == "exploit"]
    return sorted((row["member"], row["donor"], row["after_learning_rate"]) for row in rows)


@pytest.mark.slow
@pytest.mark.fault(20)
@pytest.mark.parametrize("victim", ["donor", "member"])
def test_killed_in_the_middle_of_a_copy(victim, tmp_path, figure):
    """Whoever is killed in the moments after the order, the donor or the member that copies: the copy is made once, and whole."""
    _, directory, supervisor = in_processes(tmp_path, steps=20_000)
    dice, killed, tell = random.Random(2), [], supervisor._tell  # noqa: S311

    def deadly(exploit):
        tell(exploit)
        # Once a copy: a new process is told again at once, and six deaths without a step end the sweep, as they should.
        if len(killed) < 6 and exploit.number not in killed:
            time.sleep(dice.uniform(0.0, 0.1))  # it looks for orders every 0.05 s
            whose = getattr(exploit, victim)
            [process] = [one for one in supervisor.processes if whose in one.numbers]
            os.kill(process.pid, signal.SIGKILL)
            killed.append(exploit.number)

    supervisor._tell = deadly
    try:
        end = supervisor.run()
    finally:
        directory.close()
    assert len(killed) == 6
    decided = sorted((e.member, e.donor, e.after["learning_rate"]) for e in end.exploits)
    assert copies_made(tmp_path) == decided
    assert [exploit.number for exploit in end.exploits] == list(range(len(end.exploits)))
    whole = [bool(t.isfinite().all()) for m in end.members for t in m.network.state_dict().values()]
    assert all(whole)
    name = "donor" if victim == "donor" else "recipient"
    figure(
        f"the {name} killed in {len(killed)} copies: {len(decided)} decided, {len(copies_made(tmp_path))} made, each once"
    )


@pytest.mark.slow
@pytest.mark.fault(21)
def test_a_member_that_diverges_in_a_process_harms_no_other(tmp_path, figure):
    rates = (1e-3, 1e33, 1e-3, 2e-3)
    _, directory, supervisor = in_processes(
        tmp_path, pbt=None, rates=rates, settings={"optimiser.kind": "rmsprop"}, steps=2_000
    )
    try:
        end = supervisor.run()
    finally:
        directory.close()
    last = {row["member"]: row for row in read(tmp_path, ("train",))}
    skipped = [last[number]["skipped_updates"] for number in range(4)]
    assert skipped[1] >= 20
    assert last[1]["rollbacks"] > 0
    assert [skipped[0], *skipped[2:]] == [0, 0, 0]
    assert all(member.steps >= 2_000 for member in end.members)
    store = supervisor.members[0].replay
    kept = store.export(np.arange(store.first_id, store.next_id))
    assert np.isfinite(kept.behaviour).all()
    assert all(process.restarts == 0 for process in supervisor.processes)
    figure(
        f"in 2 processes: {skipped[1]:.0f} updates skipped and {last[1]['rollbacks']:.0f} ways back of the one, "
        f"{skipped[0] + skipped[2] + skipped[3]:.0f} skipped of the three others"
    )


@pytest.mark.slow
@pytest.mark.fault(6, 9, 20)
def test_a_killed_sweep_goes_on_bit_for_bit(tmp_path, figure):
    status, _, err = finish(start(*SWEEP.split(), "--out", tmp_path / "whole"))
    assert status == 0, err
    process = start(*SWEEP.split(), "--out", tmp_path / "parts")
    wait_until(lambda: newest(tmp_path / "parts") >= 600, process)
    kill_group(process)
    at = newest(tmp_path / "parts")
    assert at < 1_500
    status, _, err = finish(start("resume", tmp_path / "parts", "--plain"))
    assert status == 0, err
    equal = the_same(tmp_path / "parts", tmp_path / "whole")
    exploits = [row for row in read(tmp_path / "whole", ("event",)) if row.get("event") == "exploit"]
    assert exploits
    figure(f"MLP, 3 members with PBT, killed after step {at:,} of 1,500: {equal}, {len(exploits)} copies")


@pytest.mark.slow
@pytest.mark.fault(20)
def test_a_copy_between_processes_has_the_donors_parameters(tmp_path):
    """A member whose rate is nothing, and stays nothing, has other parameters than its first ones only if it copied another's."""
    pbt = PbtConfig(burn_in_steps=200, every_episodes=10, margin=0.01, tuned=("entropy_cost",))
    _, directory, supervisor = in_processes(tmp_path, steps=30_000, pbt=pbt, rates=(1e-30, 4e-3))
    first = {name: value.clone() for name, value in supervisor.members[0].learner.network.state_dict().items()}
    try:
        end = supervisor.run()
    finally:
        directory.close()
    assert [exploit for exploit in end.exploits if exploit.member == 0]
    now = checkpoint.latest(tmp_path).tensors["member-00"]
    assert any((now[f"network/{name}"] - value).abs().max() > 1e-3 for name, value in first.items())
