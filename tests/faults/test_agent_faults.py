"""Faults of environments while an agent learns: rows 1 to 4 of the list, through the whole ring."""

import os
import random
import signal
import subprocess
import threading
import time
from functools import partial

import gymnasium
import numpy as np
import pytest

from laser_rl.errors import UserError
from laser_rl.runtime.build import build_member
from laser_rl.runtime.launch import prepare, run
from tests.agent.unroll_witness import UnrollWitness
from tests.envs.samples import Telltale
from tests.runtime.small import small


def learn(source, *, disturb=None, until=None, **settings):
    """Train with environments in processes; `disturb(environments, over)` runs beside it. Returns the member and its training.

    With `until`, an event, it goes on until that is set instead of for so many steps.
    """
    defaults = {
        "environment.placement": "process",
        "workers": 2,
        "slots": 4,
        "steps": 3000,
        "capacity_steps": 3000,
        "checkpoint_every_steps": 0,
    }
    member = build_member(small("Telltale", **{**defaults, **settings}), source)
    over = threading.Event()
    try:
        training = prepare(member, callbacks=[lambda progress: until is None or not until.is_set()])
        helper = threading.Thread(target=disturb or (lambda *_: None), args=(member.environments, over), daemon=True)
        helper.start()
        run(training, evaluate_at_end=False)
    finally:
        over.set()
        member.environments.close()
    helper.join(10)
    return member, training


def assert_whole(member, training):
    """Every unroll in the replay is one that really happened, and every update had its unrolls."""
    replay, witness = member.replay, UnrollWitness()
    witness.hear(replay.export(np.arange(replay.first_id, replay.next_id)), contiguous=False)
    assert witness.unrolls == len(replay) > 0
    # One new unroll for each update; a run of `local` that is stopped has up to two batches gathered ahead and not learned.
    ahead = 2 if training.stop.reason == "a callback" and member.config.run.runtime == "local" else 0
    assert 0 <= replay.next_id - member.mixer.pending - training.update <= ahead


def killing(times, done):
    def disturb(environments, over):
        dice = random.Random(3)  # noqa: S311
        try:
            kill(environments, over, dice)
        finally:
            done.set()

    def kill(environments, over, dice):
        for _ in range(times):
            # Five deaths before a first step would rightly count as a broken environment.
            time.sleep(dice.uniform(0.4, 1.2))
            if over.is_set():
                return
            try:
                os.kill(dice.choice(environments.processes()), signal.SIGKILL)
            except (ProcessLookupError, IndexError):
                continue

    return disturb


def kill_and_learn(runtime, times):
    source, done = partial(Telltale, pause_s=0.002), threading.Event()
    member, training = learn(
        source, disturb=killing(times, done), until=done, runtime=runtime, steps=10**7, log_every_s=0.2
    )
    assert done.is_set()
    assert_whole(member, training)
    assert member.environments.counters()["restarts"] >= 0.8 * times  # some were hit again before they were back
    states = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "stat="], capture_output=True, text=True, check=False
    )
    assert not [state for state in states.stdout.split() if state.startswith("Z")]  # no zombie


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_workers_killed_while_an_agent_learns(runtime):
    kill_and_learn(runtime, times=5)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_workers_killed_a_hundred_times_while_an_agent_learns(runtime):
    kill_and_learn(runtime, times=100)


def test_a_worker_that_hangs_is_replaced_and_learning_goes_on():
    def stop_one(environments, over):
        time.sleep(0.5)
        os.kill(environments.processes()[0], signal.SIGSTOP)

    source = partial(Telltale, pause_s=0.002)
    member, training = learn(source, disturb=stop_one, runtime="local", step_timeout_s=1.0, steps=4000)
    assert_whole(member, training)
    assert member.environments.counters()["timeouts"] == 1


def test_errors_now_and_then_cost_their_episodes_only():
    member, training = learn(partial(Telltale, raise_with=0.01))
    assert_whole(member, training)
    assert member.environments.counters()["errors"] > 5


class Poisoned(gymnasium.Env):
    """Counts; one observation in fifty is NaN, one reward in fifty infinite."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        bad = self.np_random.random(2) < 0.02
        observation = np.array([self.t, np.nan if bad[0] else 0.0], np.float32)
        return observation, np.inf if bad[1] else 1.0, self.t == 30, False, {}


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_nothing_that_is_not_finite_is_ever_learned(placement):
    settings = {"environment.placement": placement, "on_bad_value": "drop"}
    member, training = learn(Poisoned, **settings)
    unrolls = member.replay.export(np.arange(member.replay.first_id, member.replay.next_id))
    assert all(np.isfinite(field).all() for field in (unrolls.observation, unrolls.reward, unrolls.behaviour))
    assert member.environments.counters()["dropped_episodes"] > 20
    assert training.member.learner.skipped == 0
    with pytest.raises(UserError, match=r"(?s)Poisoned.*step"):
        learn(Poisoned, **{**settings, "on_bad_value": "fail"})
