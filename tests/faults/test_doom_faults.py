"""Rows 1 to 3 with ViZDoom's own processes: an engine that is killed, that hangs, that cannot go on."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from laser_rl import cli
from laser_rl.envs import doom
from laser_rl.envs.make import make_environments
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.errors import EnvironmentFailed
from laser_rl.metrics.log import read
from tests.envs.samples import processes
from tests.faults.bad_environments import with_an_engine_that_ends
from tests.faults.environment_runs import alive, children, within

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vizdoom") is None, reason="needs the extra doom"),
]


def engines(pool):
    """The engine of each worker that has one just now."""
    return [child for worker in processes(pool) for child in children(worker)]


def names():
    """What stays of engines that were killed while they started goes with the next one's start, a minute later."""
    return set(doom.NAMES.parent.glob("ViZDoom*"))


def until(holds, limit_s=20.0):
    """How long it took until something held."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)
    return time.monotonic() - began


class Driven:
    """Two slots in two workers, stepped with random actions; each row follows the one before it."""

    def __init__(self, **limits):
        self.pool = make_environments(
            "doom/defend_the_center", slots=2, seed=5, placement="process", workers=2, **limits
        )
        self.rng, self.rows, self.episode = np.random.default_rng(5), self.pool.reset(), np.zeros(2, int)
        self.restarted = np.zeros(2, int)

    def step(self, times):
        for _ in range(times):
            rows = self.rows = self.pool.step(self.rows.slots, self.rng.integers(9, size=self.rows.slots.size))
            begun = rows.episode - self.episode[rows.slots]
            assert (rows.is_first == (begun > 0)).all()  # an episode changes at a first row and nowhere else
            assert (begun >= 0).all()
            self.episode[rows.slots] = rows.episode
            self.restarted[rows.slots] += rows.restarted


@pytest.mark.fault(1)
def test_an_engine_that_is_killed_is_started_again_and_the_run_goes_on(figure):
    driven, before, longest = Driven(), names(), 0.0
    for number in range(20):
        driven.step(5)
        victim = engines(driven.pool)[number % 2]
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        while driven.pool.counters()["errors"] == number or len(engines(driven.pool)) < 2:
            driven.step(1)  # not until a row says so: between two episodes nothing was lost
            assert time.monotonic() - began < 20
        longest = max(longest, time.monotonic() - began)
    assert driven.pool.counters()["errors"] == 20
    assert len(engines(driven.pool)) == 2
    assert 0 < driven.restarted.sum() <= 20
    driven.pool.close()
    assert names() <= before
    assert within(longest, 2.0)
    figure(f"ViZDoom: 20 engines killed, each back within {longest:.2f} s, 0 left behind")


@pytest.mark.fault(2)
def test_an_engine_that_hangs_is_replaced_after_the_time_limit(figure):
    driven = Driven(step_timeout_s=1.0)
    driven.step(20)
    stopped = engines(driven.pool)[0]
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    while not driven.restarted.sum():
        driven.step(1)
        assert time.monotonic() - began < 20
    took = time.monotonic() - began
    assert driven.pool.counters()["timeouts"] == 1
    until(lambda: not alive(stopped))
    driven.step(50)
    driven.pool.close()
    assert within(took - 1.0, 2.0)
    figure(f"ViZDoom: engine stopped, another in its place {took - 1.0:.2f} s after its time-out")


@pytest.mark.fault(3)
def test_an_engine_that_never_starts_ends_the_run_after_five_attempts(figure):
    began = time.monotonic()
    with pytest.raises(EnvironmentFailed, match=r"(5 times|5th failure) in a row"):
        PoolEnvironments(with_an_engine_that_ends, slots=1, seed=1, workers=1)
    took = time.monotonic() - began
    assert within(took, 10.0)
    figure(f"ViZDoom: an engine that never starts ends the run after {took:.1f} s")


def trained(path, *more):
    settings = {
        "environment.slots": 2, "environment.workers": 2, "network.memory_size": 8, "network.channels": 2, "network.hidden": 16,
        "loss.batch_unrolls": 4, "replay.capacity_steps": 4000, "run.checkpoint_every_steps": 200, "run.evaluate_episodes": 1,
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = [
        "train",
        "--env",
        "doom/basic",
        "--recipe",
        "laser-multitask",
        "--out",
        str(path),
        "--plain",
        *flags,
        *more,
    ]
    return subprocess.Popen([sys.executable, "-m", "laser_rl", *words], start_new_session=True)


@pytest.mark.fault(1)
@pytest.mark.fault(6)
@pytest.mark.fault(18)
def test_a_run_that_is_killed_leaves_no_engine_and_is_resumed(tmp_path, figure):
    before, path = names(), tmp_path / "run"
    run = trained(path, "--steps", "900")
    until(lambda: list(path.glob("checkpoints/step-*/manifest*")), 120.0)
    workers = children(run.pid)
    mine = {run.pid} | workers | {engine for worker in workers for engine in children(worker)}
    assert len(mine) >= 5
    os.kill(run.pid, signal.SIGKILL)  # alone: nothing is left to tell the engines
    run.wait()
    gone = until(lambda: not any(alive(pid) for pid in mine))
    assert names() <= before
    assert cli.main(["resume", str(path)]) == 0
    assert read(path, ("train",))[-1]["step"] >= 900
    assert within(gone, 3.0)
    figure(f"ViZDoom: the run killed, {len(mine)} processes gone after {gone:.2f} s, resumed to its end")
