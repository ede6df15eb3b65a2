import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from laser_rl.envs.make import make_environments
from laser_rl.envs.records import VectorEpisodes
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.envs.vector import VectorAdapter
from laser_rl.errors import ConfigError, EnvironmentRefused
from tests.envs.samples import Scripted, Telltale


class FixedSeeds(gymnasium.Wrapper):
    """Episodes that follow one another without a seed get one that is a function of the last: comparable across modes."""

    def reset(self, *, seed=None, options=None):
        self._last = seed if seed is not None else (self._last * 31 + 7) % 2**31
        return self.env.reset(seed=self._last, options=options)


def adapter(mode, slots=3):
    vector = SyncVectorEnv([lambda: FixedSeeds(Telltale()) for _ in range(slots)], autoreset_mode=mode)
    return VectorAdapter(vector, seed=5)


def streams(envs, steps):
    """By slot, all rows as plain tuples; actions depend on the slot and on how many rows it had."""
    seen = [[] for _ in range(envs.slots)]

    def note(rows):
        for index, slot in enumerate(rows.slots.tolist()):
            fields = (rows.is_first, rows.reward, rows.terminated, rows.truncated, rows.episode)
            seen[slot].append((rows.observation[index].tolist(), *(field[index].item() for field in fields)))

    rows = envs.reset()
    note(rows)
    for _ in range(steps):
        action = np.array([(slot + len(seen[slot])) % 3 for slot in rows.slots.tolist()])
        rows = envs.step(rows.slots, action)
        note(rows)
    return seen


def test_same_step_resets_give_the_streams_of_next_step_resets():
    left, right = streams(adapter(AutoresetMode.NEXT_STEP), 120), streams(adapter(AutoresetMode.SAME_STEP), 250)
    for one, other in zip(left, right, strict=True):
        length = min(len(one), len(other))
        assert length > 80
        assert one[:length] == other[:length]


def test_without_resets_of_its_own_every_episode_gets_its_seed():
    serial, vector = SerialEnvironments(Telltale, slots=3, seed=5), adapter(AutoresetMode.DISABLED)
    for one, other in zip(streams(serial, 120), streams(vector, 250), strict=True):
        length = min(len(one), len(other))
        assert length > 80
        assert one[:length] == other[:length]


def test_a_mode_that_is_not_said_is_refused():
    vector = SyncVectorEnv([Telltale])
    for mode in (None, "Sometimes"):
        vector.metadata = {"autoreset_mode": mode}
        with pytest.raises(EnvironmentRefused, match="expected metadata.*got " + repr(mode)):
            VectorAdapter(vector, seed=1)


def test_it_has_no_state():
    envs = adapter(AutoresetMode.NEXT_STEP)
    assert envs.state_dict() is None
    with pytest.raises(ConfigError, match="a state to restore"):
        envs.load_state_dict({})
    envs.close()
    envs.close()


def test_what_is_not_finite_is_refused_with_its_slot():
    def bad(env):
        return np.full(2, np.nan, np.float32), 0.0, False, False, {}

    envs = VectorAdapter(SyncVectorEnv([Scripted, lambda: Scripted(step=bad, good_steps=0)]), seed=1)
    envs.reset()
    with pytest.raises(EnvironmentRefused, match="finite observations, got NaN or Inf in slot 1"):
        envs.step(np.arange(2), np.zeros(2, np.int64))


def test_actions_of_any_kind_reach_the_vector():
    class Echo(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
        action_space = gymnasium.spaces.Box(-1, 1, (1, 2), np.float64)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2), {}

        def step(self, action):
            assert self.action_space.contains(action)
            return action[0], 0.0, False, False, {}

    envs = VectorAdapter(SyncVectorEnv([Echo, Echo]), seed=1)
    envs.reset()
    action = np.array([[0.5, -0.25], [1, 0]], np.float32)
    np.testing.assert_array_equal(envs.step(np.arange(2), action).observation, action)


def test_a_vector_with_one_generator_for_all_slots_is_seeded_once():
    def heads():
        vector = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
        with pytest.raises(gymnasium.error.Error):
            vector.reset(seed=[1, 2, 3])
        envs = VectorAdapter(vector, seed=4)
        push = np.arange(3), np.zeros(3, np.int64)  # to one side: episodes end after ten steps
        rows = [envs.reset().observation, *(envs.step(*push).observation for _ in range(60))]
        envs.close()
        return np.stack(rows)

    first = heads()
    np.testing.assert_array_equal(first, heads())
    assert not np.array_equal(first[0, 0], first[0, 1])
    assert len(np.unique(first[:, 0], axis=0)) == 61  # no episode twice


def test_the_step_that_resets_is_no_transition_whatever_the_vector_says():
    episodes, slot, seen = VectorEpisodes(1, seed=1), np.arange(1), np.zeros((1, 2), np.float32)
    yes, no = np.array([True]), np.array([False])
    episodes.begin(slot, seen, [3])
    last = episodes.advance(slot, seen, np.array([2.0]), yes, yes, [3])
    assert [last.reward[0], last.terminated[0], last.truncated[0], last.episode[0]] == [2.0, True, False, 0]
    first = episodes.advance(slot, seen, np.array([2.0]), yes, yes, [1])
    assert [first.is_first[0], first.reward[0], first.episode[0]] == [True, 0.0, 1]
    assert not (first.terminated | first.truncated | first.lost_life)[0]
    assert episodes.advance(slot, seen, np.array([2.0]), no, no, [0]).lost_life[0]


@pytest.mark.parametrize("source", [Telltale, lambda: SyncVectorEnv([Telltale, Telltale])])
def test_an_episode_is_void_after_another_player_has_reset_the_environment(source):
    env = source()
    slots = getattr(env, "num_envs", 1)
    one, other = (make_environments(env, slots=slots, seed=seed) for seed in (1, 2))
    actions = np.arange(slots), np.zeros(slots, np.int64)
    one.reset()
    assert not one.step(*actions).restarted.any()
    other.reset()
    rows = one.step(*actions)
    assert (rows.is_first & rows.restarted & (rows.episode == 1)).all()
    assert not one.step(*actions).restarted.any()
    assert not any(one.counters().values())  # no fault of the environment's
