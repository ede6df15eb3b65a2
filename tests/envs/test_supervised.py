"""Who failed how often, and what is said of it."""

import functools
import logging

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from laser_rl.envs import worker as supervised
from laser_rl.envs.border import warn_once
from laser_rl.envs.make import MixedEnvironments, make_environments
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.envs.worker import SupervisedWorker
from laser_rl.errors import ConfigError, EnvironmentFailed, EnvironmentRefused
from tests.envs.samples import GOOD, Scripted, Telltale

SOME_RAISE = functools.partial(Telltale, raise_with=0.1)


def step(envs, times):
    rows = envs.reset()
    for _ in range(times):
        rows = envs.step(rows.slots, np.zeros(rows.slots.size, np.int64))


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_are_counted_by_slot(workers):
    more = {"workers": workers, "lockstep": True} if workers else {}
    envs = (PoolEnvironments if workers else SerialEnvironments)(SOME_RAISE, slots=4, seed=5, **more)
    step(envs, 100)
    each = [envs.counters(np.array([slot]))["errors"] for slot in range(4)]
    assert min(each) > 0
    assert envs.counters(np.array([1, 3]))["errors"] == each[1] + each[3]
    assert envs.counters()["errors"] == sum(each)
    envs.close()


def test_a_mixture_knows_whose_slots_failed():
    parts = [SerialEnvironments(make, slots=2, seed=5, name=str(make)[:20]) for make in (SOME_RAISE, Telltale)]
    envs = MixedEnvironments(parts, lockstep=True)  # slots 0 and 2 play the one that raises
    step(envs, 100)
    each = [envs.counters(np.array([slot]))["errors"] for slot in range(4)]
    assert each[0] > 0
    assert each[2] > 0
    assert each[1] == each[3] == 0
    assert envs.counters()["errors"] == sum(each) == parts[0].counters()["errors"]
    envs.close()


def test_kills_are_forgiven_longer_than_failures(monkeypatch):
    monkeypatch.setattr(supervised.time, "monotonic", lambda: 100.0)
    worker, pauses = SupervisedWorker(0, range(1)), []
    for _ in range(49):
        worker.failed("it ended", name="Maze", killed=True)
        pauses.append(worker.restart_at - 100.0)
    assert pauses[:4] == pytest.approx([0.0, 0.1, 0.3, 0.5])
    assert max(pauses) == pytest.approx(0.5)  # a worker is back within 2 s, its start included
    with pytest.raises(EnvironmentFailed, match="Maze: it ended, killed from outside 50 times in a row"):
        worker.failed("it ended", name="Maze", killed=True)


def test_a_step_forgives_and_failures_count_apart():
    worker = SupervisedWorker(0, range(1))
    for _ in range(4):
        worker.failed("it ended", name="Maze", killed=False)
        worker.failed("it ended", name="Maze", killed=True)
    worker.failures = worker.kills = 0
    for _ in range(4):
        worker.failed("it ended", name="Maze", killed=False)
    with pytest.raises(EnvironmentFailed, match="Maze: it ended, the 5th failure in a row"):
        worker.failed("it ended", name="Maze", killed=False)


def test_a_warning_is_logged_once_by_environment_and_key(caplog):
    with caplog.at_level(logging.WARNING, "laser_rl.envs"):
        for name, key in (("Maze", "a"), ("Maze", "a"), ("Desert", "a"), ("Maze", "b")):
            warn_once(name, key, f"{name} {key}")
    assert [record.getMessage() for record in caplog.records] == ["Maze a", "Desert a", "Maze b"]


def _with_lives(env, lives):
    return GOOD, 0.0, False, False, {"lives": lives, "anything": object()}


@pytest.mark.parametrize("lives", [1, np.int64(1), np.array(1), True])
def test_lives_may_be_any_whole_number(lives):
    made = functools.partial(Scripted, step=functools.partial(_with_lives, lives=lives), good_steps=0)
    envs = SerialEnvironments(made, slots=1, seed=1)
    envs.reset()
    assert not envs.step(np.array([0]), np.array([0])).lost_life[0]


@pytest.mark.parametrize("lives", [None, object(), [1], "3", 1.5, np.zeros(2, np.int64)])
def test_lives_that_are_none_are_refused_and_not_tried_again(lives, caplog):
    made = functools.partial(Scripted, step=functools.partial(_with_lives, lives=lives), good_steps=0)
    envs = SerialEnvironments(made, slots=1, seed=1, name="Odd-v0")
    envs.reset()
    with pytest.raises(EnvironmentRefused, match=r"Odd-v0 .*expected info\['lives'\] to be a whole number, got"):
        envs.step(np.array([0]), np.array([0]))
    assert not caplog.records


def test_a_vector_cannot_drop_one_episode():
    vector = gymnasium.vector.SyncVectorEnv([functools.partial(Scripted, spaces.Box(-1, 1, (2,), np.float32))] * 2)
    with pytest.raises(ConfigError, match="on_bad_value 'fail' with a vector"):
        make_environments(vector, slots=2, seed=1, on_bad_value="drop")
    vector.close()
