import functools
import logging

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.envs.records import seed_of
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.errors import ConfigError, EnvironmentFailed
from tests.envs.samples import Scripted, Telltale, Witness, drive


def test_every_row_is_the_one_its_slot_owes():
    envs, witness = SerialEnvironments(Telltale, slots=3, seed=4), Witness(3)
    drive(envs, witness, 200, np.random.default_rng(0))
    assert witness.episodes > 20
    assert witness.restarts == 0
    assert envs.counters() == dict.fromkeys(envs.counters(), 0)


def test_slots_may_act_alone_and_in_any_order():
    envs, witness, rng = SerialEnvironments(Telltale, slots=4, seed=4), Witness(4), np.random.default_rng(0)
    actions = np.zeros(4, np.int64)
    witness.hear(envs.reset(), actions)
    for _ in range(100):
        slots = rng.permutation(4)[: rng.integers(1, 5)]
        actions[slots] = rng.integers(3, size=slots.size)
        rows = envs.step(slots, actions[slots])
        assert rows.slots.tolist() == slots.tolist()
        witness.hear(rows, actions)


def test_every_episode_has_the_seed_of_its_number():
    envs = SerialEnvironments(Telltale, slots=2, seed=9)
    rows = envs.reset()
    for _ in range(60):
        np.testing.assert_array_equal(rows.seed, seed_of(9, rows.slots, rows.episode))
        rows = envs.step(rows.slots, np.zeros(2, np.int64))
    assert rows.episode.min() >= 2


@given(st.integers(0, 60), st.integers(0, 2**31))
def test_a_restored_run_goes_on_as_if_nothing_had_happened(steps, seed):
    one, rng = SerialEnvironments(Telltale, slots=2, seed=seed), np.random.default_rng(seed)
    here = drive(one, Witness(2), steps, rng)
    state = {name: value.copy() for name, value in one.state_dict().items()}
    other = SerialEnvironments(Telltale, slots=2, seed=seed)
    there = other.load_state_dict(state)
    for _ in range(30):
        for left, right in zip(here, there, strict=True):
            np.testing.assert_array_equal(left, right)
        action = rng.integers(3, size=2)
        here, there = one.step(np.arange(2), action), other.step(np.arange(2), action)
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])
    assert other.counters()["lost_episodes"] == 0


class Drifting(Telltale):
    """Not a function of its seed."""

    born = 0

    def __init__(self):
        super().__init__()
        type(self).born += 1

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation + np.float32(self.born), info


def test_an_episode_that_cannot_be_rebuilt_is_lost_and_counted():
    one = SerialEnvironments(Drifting, slots=2, seed=1)
    one.reset()
    one.step(np.array([1]), np.array([0]))
    rows = SerialEnvironments(Drifting, slots=2, seed=1)
    restored = rows.load_state_dict(one.state_dict())
    assert restored.restarted.tolist() == [True, True]
    assert restored.is_first.all()
    assert restored.episode.tolist() == [1, 1]
    assert rows.counters()["lost_episodes"] == 2
    assert rows.state_dict()["length"].tolist() == [0, 0]


def test_a_state_of_another_size_is_refused():
    state = SerialEnvironments(Telltale, slots=3, seed=1).state_dict()
    with pytest.raises(ConfigError, match="2 environment slots, got 3"):
        SerialEnvironments(Telltale, slots=2, seed=1).load_state_dict(state)


def test_an_error_in_a_step_costs_an_episode_and_is_logged_once(caplog):
    envs = SerialEnvironments(functools.partial(Telltale, raise_with=0.03), slots=2, seed=1)
    witness = Witness(2)
    with caplog.at_level(logging.WARNING, "laser_rl.envs"):
        drive(envs, witness, 400, np.random.default_rng(0))
    assert witness.restarts == envs.counters()["errors"] > 5
    assert len(caplog.records) == 1
    assert "the telltale stumbled" in caplog.text
    assert "samples.py" in caplog.text


def _raise(env):
    raise RuntimeError("no step today")


def test_a_step_that_always_raises_ends_the_run_with_its_traceback():
    envs = SerialEnvironments(functools.partial(Scripted, step=_raise, good_steps=0), slots=1, seed=1)
    envs.reset()
    for _ in range(4):
        assert envs.step(np.array([0]), np.array([0])).restarted.all()
    with pytest.raises(EnvironmentFailed, match=r"(?s)5 times in a row.*Traceback.*no step today"):
        envs.step(np.array([0]), np.array([0]))


def test_a_good_step_forgives_what_was_before():
    envs = SerialEnvironments(functools.partial(Scripted, step=_raise, good_steps=1), slots=1, seed=1)
    envs.reset()
    for _ in range(30):
        envs.step(np.array([0]), np.array([0]))
    assert envs.counters()["errors"] == 15


def test_a_constructor_that_always_raises_is_tried_five_times():
    tries = []

    def make():
        tries.append(1)
        raise OSError("no such level")

    with pytest.raises(EnvironmentFailed, match=r"(?s)Traceback.*no such level"):
        SerialEnvironments(make, slots=1, seed=1)
    assert len(tries) == 5


def test_lives_lost_are_reported():
    class Lives(Scripted):
        def step(self, action):
            observation, *rest, _ = super().step(action)
            return observation, *rest, {"lives": 3 - self._t // 2}

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"lives": 3}

    envs = SerialEnvironments(Lives, slots=1, seed=1)
    envs.reset()
    lost = [bool(envs.step(np.array([0]), np.array([0])).lost_life[0]) for _ in range(4)]
    assert lost == [False, True, False, True]


def test_cartpole_is_gymnasiums_own():
    envs = SerialEnvironments(lambda: gymnasium.make("CartPole-v1"), slots=1, seed=3)
    rows, bare = envs.reset(), gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(0)
    for _ in range(200):
        if rows.is_first[0]:
            observation, _ = bare.reset(seed=int(rows.seed[0]))
        np.testing.assert_array_equal(rows.observation[0], observation)
        action = rng.integers(2, size=1)
        if not (rows.terminated[0] or rows.truncated[0]):
            observation, *_ = bare.step(int(action[0]))
        rows = envs.step(np.array([0]), action)
