"""Thousands of updates with a full replay: what the processes hold stays what it was."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from laser_rl.training.directory import RunDirectory
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from tests.faults.growth import SAMPLES, settings
from tests.faults.measure import Held, held, slope

ROOT = Path(__file__).parents[2]
UPDATES, LIMIT_S = 30_000, 1500.0
MOST_A_THOUSAND = 50_000  # bytes: over a paper's run of a million updates that would be 50 MB


def samples_of(runtime, updates, path, limit_s):
    answer = subprocess.run(
        [sys.executable, "-m", "tests.faults.growth", runtime, str(updates), str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=limit_s,
    )
    return json.loads(answer.stdout)


def assert_flat(samples, updates, most_a_thousand):
    """After a fifth of the run, when all is there that a run needs. What was measured, in words."""
    kept = [sample for sample in samples if sample[0] >= updates / 5]
    assert samples[-1][0] >= updates
    assert len(kept) >= 10
    done, *columns = (np.array(column) for column in zip(*kept, strict=True))
    numbers = Held(*columns)
    memory, shared = slope(done, numbers.memory), slope(done, numbers.shared)
    assert memory < most_a_thousand
    assert shared < most_a_thousand
    for name, counts in (("files", numbers.files), ("threads", numbers.threads)):
        assert slope(done, counts) == 0, f"{name}: {counts}"
        # Not the first and last number: a sample may fall into a checkpoint, which has a file open.
        assert np.median(counts[-5:]) <= np.median(counts[:5]), f"{name}: {counts}"
    return (
        f"{memory / 1e3:+.1f} kB of memory and {shared / 1e3:+.1f} kB shared in 1,000 updates; "
        f"files {int(np.median(numbers.files))}, threads {int(np.median(numbers.threads))}, no more at the end"
    )


@pytest.mark.fault(17)
@pytest.mark.slow
def test_fifteen_hundred_updates_take_no_more(tmp_path):
    assert_flat(samples_of("local", 1500, tmp_path / "run", 120.0), 1500, most_a_thousand=2_000_000)


@pytest.mark.slow
@pytest.mark.fault(17)
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_thirty_thousand_updates_take_no_more(runtime, tmp_path, figure):
    samples = samples_of(runtime, UPDATES, tmp_path / "run", LIMIT_S)
    figure(f"{runtime}, {samples[-1][0]:,} updates: {assert_flat(samples, UPDATES, MOST_A_THOUSAND)}")


@pytest.mark.slow
@pytest.mark.fault(17)
def test_a_sweep_of_two_processes_takes_no_more(tmp_path, figure):
    """30,000 updates in all, of two members in two processes, and the parent between them."""
    taken, updates = {}, {}

    def callback(progress):
        if sum(updates.values()) >= UPDATES:
            return False  # they have ended, or are about to
        updates[int(progress.values.get("member", -1))] = progress.update
        done = sum(updates.values())
        if done >= UPDATES or not taken or done >= taken["parent"][-1][0] + UPDATES / SAMPLES:
            for name, pid in [
                ("parent", None),
                *((process.numbers[0], process.pid) for process in supervisor.processes),
            ]:
                taken.setdefault(name, []).append((done, *held(pid)))
        return done < UPDATES

    config = SweepConfig(
        base=settings("serial", UPDATES // 2), grid={"learning_rate": [5e-4, 1e-3]}, stack="off", processes=2
    )
    directory = RunDirectory(tmp_path / "sweep", config)
    supervisor = ProcessSupervisor(config, directory, 2, callbacks=[callback])
    try:
        supervisor.run()
    finally:
        directory.close()
    assert all(process.restarts == 0 for process in supervisor.processes)
    for name, samples in taken.items():
        words = assert_flat(samples, UPDATES, MOST_A_THOUSAND)
        who = "parent" if name == "parent" else f"process of member {name}"
        figure(f"sweep of 2 processes, {who}: {words}")
