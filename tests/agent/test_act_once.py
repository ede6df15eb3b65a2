"""Playing observation by observation: an episode that begins sees nothing of the one before it."""

from types import SimpleNamespace

import numpy as np

from laser_rl.agent.policy import Decision, act_once

LAYOUT = SimpleNamespace(
    stack=3, observation_shape=(1, 2, 2), observation_dtype="uint8", state_size=2, action_shape=(), action_dtype="int64"
)


class Watching:
    """Answers action 7 and counts in its memory; keeps what it saw."""

    def act(self, seen):
        self.seen = seen
        action = np.full(len(seen.observation), 7)
        return Decision(action, np.zeros((len(action), 1), np.float32), action, seen.state + 1)


def test_frames_and_the_last_action_of_an_earlier_episode_are_gone_and_those_of_an_open_one_stay():
    policy, before = Watching(), None
    for t, first in enumerate([(True, True), (False, False), (False, True), (False, False)], start=1):
        observation = np.full((2, 1, 2, 2), t, np.uint8)
        reward = np.full(2, 0.5 * t, np.float32)
        action, before = act_once(policy, LAYOUT, observation, reward, np.array(first), before)
        assert action.tolist() == [7, 7]
        frames = policy.seen.observation[:, :, 0, 0].tolist()
        expected = {1: [[0, 0, 1]] * 2, 2: [[0, 1, 2]] * 2, 3: [[1, 2, 3], [0, 0, 3]], 4: [[2, 3, 4], [0, 3, 4]]}
        assert frames == expected[t]
        assert policy.seen.last_action.tolist() == {1: [0, 0], 2: [7, 7], 3: [7, 0], 4: [7, 7]}[t]
        assert policy.seen.state.tolist() == [[t - 1, t - 1]] * 2, "the network itself resets its memory"
