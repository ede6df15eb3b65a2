"""Environments are killed, stopped, hung, and lied to; what comes back is whole, and the others go on. Rows 1 to 5 of the promises."""

import functools
import logging
import os
import signal
import time

import numpy as np
import pytest

from laser_rl.envs import pool as pool_module
from laser_rl.envs import worker as worker_module
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.worker import ProcessLimits
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused
from tests.envs.samples import (
    Scripted,
    Telltale,
    Witness,
    deadly,
    drive,
    endless,
    impossible,
    malformed,
    not_finite,
    processes,
)
from tests.faults.bad_environments import kill_myself
from tests.faults.environment_runs import alive, children, within, zombies

pytestmark = pytest.mark.usefixtures("no_child_is_left")


@pytest.fixture
def no_child_is_left():
    before = children()
    yield
    assert children() <= before


def wait_for_all(pool, witness, rng, rows, limit_s):
    """Step until every slot has answered once more; returns the rows and the seconds it took."""
    began, missing = time.monotonic(), set(range(pool.slots))
    while missing:
        rows = drive(pool, witness, 1, rng, rows=rows)
        missing -= set(rows.slots.tolist())
        assert time.monotonic() - began < limit_s, f"slots {missing} did not come back within {limit_s} s"
    return rows, time.monotonic() - began


def kill_at_random(times, figure):
    pool, witness, rng = (
        PoolEnvironments(Telltale, slots=6, seed=5, workers=3, patience_s=0.05),
        Witness(6),
        np.random.default_rng(5),
    )
    rows = drive(pool, witness, 20, rng)
    longest = 0.0
    for number in range(times):
        victim = int(rng.choice(processes(pool)))
        time.sleep(rng.uniform(0, 2e-3))  # any moment of a step
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        while pool.counters()["restarts"] == number:  # a row that was complete before the kill is still delivered
            rows = drive(pool, witness, 1, rng, rows=rows)
            assert time.monotonic() - began < 10
        rows, _ = wait_for_all(pool, witness, rng, rows, limit_s=10.0)
        longest = max(longest, time.monotonic() - began)
        rows = drive(pool, witness, int(rng.integers(3, 30)), rng, rows=rows)
    counters = pool.counters()
    assert counters["restarts"] == times
    assert 0 < witness.restarts <= 2 * times
    assert witness.episodes > times
    assert zombies() == []
    pool.close()
    assert within(longest, 2.0)
    figure(f"pool: {times} kills, 0 mixed of {witness.rows:,} rows, all back within {longest:.2f} s, 0 zombies")


@pytest.mark.fault(1)
def test_workers_killed_at_random_five_times_leave_every_stream_whole(figure):
    kill_at_random(5, figure)


@pytest.mark.slow
@pytest.mark.fault(1)
def test_workers_killed_at_random_a_hundred_times_leave_every_stream_whole(figure):
    kill_at_random(100, figure)


@pytest.mark.fault(1)
def test_a_worker_killed_again_and_again_before_it_can_step_comes_back(monkeypatch, figure):
    monkeypatch.setattr(worker_module, "LONGEST_PAUSE_AFTER_KILL_S", 0.05)
    pool, witness, rng = PoolEnvironments(Telltale, slots=2, seed=5, workers=2), Witness(2), np.random.default_rng(5)
    rows = drive(pool, witness, 10, rng)
    attend, killed, before = pool.attend, set(), None

    def disturbed(timeout_s):
        nonlocal before
        pid = processes(pool)[0] if pool.workers[0].process else None
        if pid not in killed | {None} and len(killed) < 12:
            before = witness.state[0]
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        attend(timeout_s)

    pool.attend = disturbed
    began = time.monotonic()
    # Not until it reports a restart: between two episodes nothing was lost, and there is none to report.
    while len(killed) < 12 or witness.state[0] == before:
        rows = drive(pool, witness, 1, rng, rows=rows)
        assert time.monotonic() - began < 20
    drive(pool, witness, 20, rng, rows=rows)
    assert pool.counters()["restarts"] == 12
    pool.close()
    figure(f"the same worker killed {len(killed)} times in a row before its first step: it came back")


@pytest.mark.fault(1)
def test_a_worker_that_is_killed_for_ever_ends_the_run_and_that_is_said(monkeypatch):
    monkeypatch.setattr(worker_module, "MOST_KILLS", 3)
    began = time.monotonic()
    with pytest.raises(
        EnvironmentFailed, match=r"signal 9\) ended, killed from outside 3 times in a row.*out of memory"
    ):
        PoolEnvironments(kill_myself, slots=1, seed=1, workers=1)
    assert time.monotonic() - began < 20


@pytest.mark.fault(1)
def test_a_worker_killed_between_two_steps_is_replaced():
    pool, witness, rng = (
        PoolEnvironments(Telltale, slots=2, seed=5, workers=2, lockstep=True),
        Witness(2),
        np.random.default_rng(5),
    )
    rows = drive(pool, witness, 10, rng)
    for pid in processes(pool):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    rows = drive(pool, witness, 50, rng, rows=rows)
    assert pool.counters()["restarts"] == 2
    assert witness.restarts + sum(state[4] for state in witness.state) >= 1
    pool.close()


@pytest.mark.fault(2)
def test_a_stopped_worker_is_replaced_and_the_others_go_on(figure):
    limits = ProcessLimits(step_s=0.6, reset_s=0.6)
    pool = PoolEnvironments(Telltale, slots=2, seed=5, workers=2, patience_s=0.05, limits=limits)
    witness, rng = Witness(2), np.random.default_rng(5)
    rows = drive(pool, witness, 20, rng)
    stopped = processes(pool)[0]
    os.kill(stopped, signal.SIGSTOP)
    began, idle, missing, others, replaced = time.monotonic(), 0.0, True, 0, None
    while missing:
        before = time.monotonic()
        rows = drive(pool, witness, 1, rng, rows=rows)
        idle = max(idle, time.monotonic() - before)
        missing = 0 not in rows.slots or not witness.restarts
        others += 1 in rows.slots
        if replaced is None and stopped not in processes(pool) and len(processes(pool)) == 2:
            replaced = time.monotonic() - began
        assert time.monotonic() - began < 10
    assert others > 20
    assert within(idle, 1.0)
    assert within(replaced - 0.6, 1.0)
    assert not alive(stopped)
    assert pool.counters()["timeouts"] == 1
    pool.close()
    figure(f"stopped: replaced {replaced - 0.6:.2f} s after its time-out, another idle for {idle:.2f} s at most")


@pytest.mark.fault(2)
@pytest.mark.parametrize("where", ["hang_in_step", "hang_in_reset"])
def test_an_endless_sleep_is_cut_short(where, tmp_path, figure):
    marker = tmp_path / "hang"
    pool = PoolEnvironments(
        functools.partial(Telltale, **{where: str(marker)}),
        slots=2,
        seed=5,
        workers=2,
        patience_s=0.05,
        limits=ProcessLimits(step_s=0.5, reset_s=0.5),
    )
    witness, rng = Witness(2), np.random.default_rng(5)
    rows = drive(pool, witness, 10, rng)
    marker.touch()
    before, entered, idle, began = processes(pool), None, 0.0, time.monotonic()
    while (now := processes(pool)) == before or len(now) < 2:
        entered = time.monotonic() if entered is None and not marker.exists() else entered
        at = time.monotonic()
        rows = drive(pool, witness, 1, rng, rows=rows)
        idle = max(idle, time.monotonic() - at)
        assert time.monotonic() - began < 5
    late_s = time.monotonic() - entered - 0.5
    assert within(late_s, 1.0)
    assert within(idle, 1.0)
    rows, _ = wait_for_all(pool, witness, rng, rows, limit_s=5)
    assert witness.restarts <= 1  # its open episode, if there was one, was broken off
    assert pool.counters()["timeouts"] == pool.counters()["restarts"] == 1
    pool.close()
    figure(f"{where}: replaced {late_s:.2f} s after its time-out, another idle for {idle:.2f} s at most")


@pytest.mark.fault(2)
def test_a_waiting_pool_says_for_whom(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(pool_module, "SILENCE_S", 0.2)
    marker = tmp_path / "hang"
    make = functools.partial(Telltale, hang_in_step=str(marker), hang_s=0.8)
    pool, witness, rng = PoolEnvironments(make, slots=1, seed=5, workers=1), Witness(1), np.random.default_rng(5)
    rows = drive(pool, witness, 2, rng)
    marker.touch()
    with caplog.at_level(logging.WARNING, "laser_rl.envs"):
        drive(pool, witness, 10, rng, rows=rows)
    assert f"waiting for worker 0 (pid {processes(pool)[0]}, in step of slot 0)" in caplog.text
    pool.close()


def test_many_slow_slots_of_one_worker_are_not_a_hang():
    make = functools.partial(Telltale, pause_s=0.1)
    pool = PoolEnvironments(make, slots=8, seed=5, workers=1, limits=ProcessLimits(step_s=0.4), lockstep=True)
    drive(pool, Witness(8), 2, np.random.default_rng(0))  # 0.8 s a command, 0.1 s a step
    assert pool.counters()["timeouts"] == 0
    pool.close()


def test_the_whole_program_may_sleep_longer_than_the_limit():
    pool, witness, rng = (
        PoolEnvironments(Telltale, slots=2, seed=5, workers=1, limits=ProcessLimits(step_s=0.3)),
        Witness(2),
        np.random.default_rng(0),
    )
    rows = drive(pool, witness, 3, rng)
    time.sleep(0.8)
    drive(pool, witness, 30, rng, rows=rows)
    assert pool.counters()["restarts"] == 0
    pool.close()


@pytest.mark.fault(3)
def test_errors_now_and_then_cost_their_episodes_only(caplog, figure):
    make = functools.partial(Telltale, raise_with=0.01)
    pool, witness = PoolEnvironments(make, slots=4, seed=5, workers=2), Witness(4)
    with caplog.at_level(logging.WARNING, "laser_rl.envs"):
        drive(pool, witness, 600, np.random.default_rng(5))
    assert pool.counters()["errors"] == witness.restarts > 5
    raised = [record for record in caplog.records if "the telltale stumbled" in record.getMessage()]
    assert len(raised) == len(caplog.records) == 1  # from two workers
    assert "samples.py" in raised[0].getMessage()
    figure(f"pool: {pool.counters()['errors']} errors in 2,400 steps, logged once with the traceback")
    pool.close()


@pytest.mark.fault(3)
def test_a_constructor_that_always_raises_ends_the_run_soon(figure):
    began = time.monotonic()
    with pytest.raises(EnvironmentFailed, match=r"(?s)5 times in a row.*Traceback.*impossible.*the level is missing"):
        PoolEnvironments(impossible, slots=4, seed=1, workers=2)
    took_s = time.monotonic() - began
    assert took_s < 10
    figure(f"pool: 4 restarts a worker, then the error after {took_s:.1f} s")


@pytest.mark.fault(3)
def test_a_constructor_that_ends_its_process_ends_the_run_soon():
    began = time.monotonic()
    with pytest.raises(
        EnvironmentFailed, match=r"constructing of slot 0, ended with status 7.* the 5th failure in a row"
    ):
        PoolEnvironments(deadly, slots=1, seed=1, workers=1)
    assert time.monotonic() - began < 20


@pytest.mark.slow
@pytest.mark.fault(3)
def test_a_constructor_that_never_returns_ends_the_run():
    with pytest.raises(EnvironmentFailed, match=r"exceeded its limit of 0.2 s"):
        PoolEnvironments(endless, slots=1, seed=1, workers=1, limits=ProcessLimits(constructor_s=0.2))


@pytest.mark.fault(4)
@pytest.mark.parametrize("case", ["observation", "reward"])
def test_what_is_not_finite_never_leaves_the_pool(case):
    make = functools.partial(Scripted, step=functools.partial(not_finite, case=case))
    pool = PoolEnvironments(make, slots=2, seed=1, workers=2, name="Odd-v0", lockstep=True)
    rows = pool.reset()
    with pytest.raises(EnvironmentRefused, match=rf"Odd-v0 \(slot \d, episode 0, step 4\).*nan in {case}"):  # noqa: PT012
        for _ in range(4):
            pool.step(rows.slots, np.zeros(2, np.int64))
    pool.close()
    dropping = PoolEnvironments(make, slots=2, seed=1, workers=2, on_bad_value="drop", lockstep=True)
    rows = dropping.reset()
    for _ in range(12):
        rows = dropping.step(rows.slots, np.zeros(2, np.int64))
        assert np.isfinite(rows.observation).all()
        assert np.isfinite(rows.reward).all()
    assert dropping.counters()["dropped_episodes"] == 6
    dropping.close()


@pytest.mark.fault(5)
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("float64", "dtype float32, got float64"),
        ("shape", r"shape \(2,\), got \(3,\)"),
        ("reward none", "real number, got None"),
        ("old gym", "got a tuple of 4; return "),
        ("info", "info to be a dict, got object"),
    ],
)
def test_malformed_returns_are_refused_through_the_pool(case, message):
    make = functools.partial(Scripted, step=functools.partial(malformed, case=case), good_steps=0)
    pool = PoolEnvironments(make, slots=1, seed=1, workers=1, name="Odd-v0")
    pool.reset()
    with pytest.raises(EnvironmentRefused, match=message):
        pool.step(np.array([0]), np.array([0]))
    pool.close()
