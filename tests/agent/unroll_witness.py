"""Follows a slot's unrolls of the telltale environment: every input row and outcome must be the one that has to be there."""

import numpy as np

from tests.envs.samples import expected_observation, total_after


class UnrollWitness:
    """One for all slots; `hear` takes blocks of unrolls in the order they were finished."""

    def __init__(self):
        self.unrolls = self.resets = self.ends = 0
        self._last = {}  # slot -> (observation, is_first, episode, seed) of the last input row

    def hear(self, unrolls, *, contiguous=True):
        for n in range(len(unrolls.member)):
            self._hear_one(type(unrolls)(*(field[n] for field in unrolls)), contiguous)

    def _hear_one(self, unroll, contiguous):
        self.unrolls += 1
        slot, steps = int(unroll.slot), len(unroll.reward)
        if contiguous and slot in self._last:  # the last input row of an unroll is the first of the next
            np.testing.assert_array_equal(unroll.observation[0], self._last[slot])
        self._last[slot] = unroll.observation[-1].copy()
        for t in range(steps):
            self._step(unroll, t)

    def _step(self, unroll, t):
        now, then = Row(unroll.observation[t]), Row(unroll.observation[t + 1])
        if not now.ended:
            assert unroll.is_transition[t]
            assert (then.seed, then.t) == (now.seed, now.t + 1)
            assert then.total == total_after(now.total, unroll.action[t])
            assert unroll.reward[t] == then.t == unroll.last_reward[t + 1]
            assert unroll.last_action[t + 1] == unroll.action[t]
            assert unroll.terminated[t] == (then.ended and then.seed % 3 != 0)
            assert unroll.truncated[t] == (then.ended and then.seed % 3 == 0)
            assert not unroll.is_first[t + 1]
            self.ends += then.ended
        else:  # the step after an episode's last row is no transition
            assert not unroll.is_transition[t]
            assert then.t == 0
            assert then.seed != now.seed
            assert unroll.is_first[t + 1]
            assert (unroll.reward[t], unroll.last_reward[t + 1], unroll.last_action[t + 1]) == (0, 0, 0)
            assert not unroll.terminated[t] | unroll.truncated[t]
            self.resets += 1


class Row:
    """What a telltale's observation says of itself, if it is whole."""

    def __init__(self, observation):
        high, low, t, total = (int(number) for number in observation[:4])
        self.seed, self.t, self.total = (high << 16) + low, t, total
        np.testing.assert_array_equal(observation, expected_observation(self.seed, t, total))
        self.ended = t == 5 + self.seed % 20
