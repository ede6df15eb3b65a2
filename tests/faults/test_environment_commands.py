"""Environments that fail, through the command line and through sweeps over several processes: rows 1, 3 and 5 of the list."""

import contextlib
import math
import os
import random
import signal
import time

import numpy as np
import pytest

from laser_rl.training.directory import RunDirectory
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from tests.agent.unroll_witness import UnrollWitness
from tests.faults.bad_environments import EXPECTED
from tests.faults.environment_runs import alive, children, within, zombies
from tests.faults.test_run_faults import finish, start
from tests.training.small import small

FAILED, MOST_RESTARTS = 4, 5
COMMANDS = {
    "train, thread": "train --recipe cartpole",
    "train, process": "train --recipe cartpole --environment.placement process --environment.workers 2",
    "sweep, process": "sweep --recipe cartpole --grid learning_rate=1e-3,2e-3 --processes 2 --environment.placement process",
}


def run_command(words, environment, path):
    """Status, what was said, and the seconds until it was over."""
    began = time.monotonic()
    status, _, said = finish(start(*words.split(), "--env", environment, "--out", path, "--plain"), timeout_s=60)
    return status, said, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.fault(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_constructor_that_always_raises_ends_a_command_soon(command, tmp_path, monkeypatch, figure):
    tries = tmp_path / "tries"
    monkeypatch.setenv("LASER_TEST_TRIES", str(tries))
    status, said, took_s = run_command(COMMANDS[command], "tests.faults.bad_environments:unlicensed", tmp_path / "run")
    assert status == FAILED
    assert said.startswith(("laser: ", "tests.faults.bad_environments:unlicensed raised"))
    assert "Traceback (most recent call last)" in said
    assert "OSError: no licence for this game" in said
    assert "bad_environments.py" in said
    workers = 2 if command == "train, process" else 1  # a sweep first looks at one
    restarts = math.ceil(len(tries.read_text()) / workers) - 1
    assert 0 < restarts <= MOST_RESTARTS
    assert within(took_s, 10.0)
    assert zombies() == []
    figure(f"{command}: status {status} with the traceback after {took_s:.1f} s, {restarts} restarts a worker")


@pytest.mark.slow
@pytest.mark.fault(5)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_ends_a_command_with_one_sentence(command, tmp_path, figure):
    status, said, took_s = run_command(COMMANDS[command], "tests.faults.bad_environments:crooked", tmp_path / "run")
    assert status != 0
    assert f"step 2): expected {EXPECTED['old gym']}; " in said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "checkpoints").exists() or not [*(tmp_path / "run" / "checkpoints").iterdir()]
    figure(f"{command}: status {status} with expected and got after {took_s:.1f} s")


@pytest.mark.slow
@pytest.mark.fault(1)
def test_workers_of_a_sweep_over_processes_are_killed(tmp_path, figure):
    """Grandchildren of this process: each process of the sweep has workers of its own."""
    settings = {
        "environment.id": "tests.envs.samples:Telltale",
        "environment.options": {"pause_s": 0.001},
        "environment.placement": "process",
        "workers": 2,
        "slots": 4,
        "steps": 4_000,
        "capacity_steps": 30_000,
        "checkpoint_every_steps": 0,
        "evaluate_episodes": 1,
    }
    config = SweepConfig(base=small(**settings), grid={"learning_rate": [1e-3, 2e-3]}, processes=2)
    directory = RunDirectory(tmp_path / "sweep", config)
    supervisor, dice, killed = ProcessSupervisor(config, directory, 2), random.Random(5), []  # noqa: S311
    look = supervisor._look

    def watched():
        workers = [pid for process in supervisor.processes for pid in children(process.pid) if alive(pid)]
        if workers and len(killed) < 20 and supervisor.board.steps.min() > 150 * (1 + len(killed)):
            killed.append(dice.choice(sorted(workers)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)
        return look()

    supervisor._look = watched
    try:
        end = supervisor.run()
    finally:
        directory.close()
    assert len(killed) == 20
    assert all(4_000 <= member.steps < 4_004 for member in end.members)
    assert all(
        process.restarts == 0 for process in supervisor.processes
    )  # no process of the sweep fell with its workers
    store, witness = supervisor.members[0].replay, UnrollWitness()
    witness.hear(store.export(np.arange(store.first_id, store.next_id)), contiguous=False)
    assert witness.unrolls == len(store) == store.next_id == sum(member.updates for member in end.members)
    assert zombies() == []
    assert not [pid for pid in killed if alive(pid)]
    figure(
        f"sweep over 2 processes: {len(killed)} kills, {sum(member.updates for member in end.members):,} updates for "
        f"{store.next_id:,} new unrolls, 0 mixed of {witness.unrolls * 5:,} steps, 0 zombies"
    )
