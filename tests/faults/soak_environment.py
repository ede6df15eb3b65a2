"""What the soak plays: observations that tell on whoever mixes them up, now and then one that is not a number, now and then an error."""

import math

from tests.envs.samples import Telltale

NOT_A_NUMBER = 0.002  # of the steps
AN_ERROR = 0.0005


class Faulty(Telltale):
    """A telltale that lies now and then, in ways that have to be noticed."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.np_random.random() < NOT_A_NUMBER:
            observation[10] = math.nan
        return observation, reward, terminated, truncated, info


def make():
    return Faulty(raise_with=AN_ERROR, pause_s=0.001)
