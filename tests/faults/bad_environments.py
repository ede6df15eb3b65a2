"""More environments that misbehave. Workers that play them import this module, so it imports little."""

import functools
import os
import signal
import sys
from pathlib import Path

import gymnasium
import numpy as np

from tests.envs.samples import GOOD, MALFORMED, Scripted


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


LIVES = {"lives": object(), "no lives": None}
EXPECTED = {
    "float64": "observation of dtype float32, got float64",
    "shape": "observation of shape (2,), got (3,)",
    "list": "observation to be a NumPy array, got list",
    "none": "observation to be a NumPy array, got None",
    "outside": "observation[0] within [-1.0, 1.0], got 2.0",
    "reward none": "reward to be a real number, got None",
    "reward array": "reward to be a real number, got an array of dtype float64 and shape (1,)",
    "reward text": "reward to be a real number, got str",
    "reward complex": "reward to be a real number, got complex",
    "old gym": "5 values from step, got a tuple of 4",
    "not a tuple": "5 values from step, got None",
    "terminated": "terminated to be a bool, got int",
    "truncated": "truncated to be a bool, got None",
    "info": "info to be a dict, got object",
    "action space": "the action_space to stay Discrete(2), got Discrete(3)",
    "lives": "info['lives'] to be a whole number, got object",
    "no lives": "info['lives'] to be a whole number, got None",
}


def mistaken(env, case):
    """For `Scripted`: what `step` returns."""
    if case == "action space":
        env.action_space = gymnasium.spaces.Discrete(3)
        return GOOD, 0.0, False, False, {}
    return (GOOD, 0.0, False, False, {"lives": LIVES[case]}) if case in LIVES else MALFORMED[case]


def crooked(case="old gym"):
    """By the name of this module, for a command line."""
    return Scripted(step=functools.partial(mistaken, case=case), good_steps=1)


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def unlicensed():
    """Never begins; leaves a mark of each try in the file that the variable names."""
    with Path(os.environ["LASER_TEST_TRIES"]).open("a") as tries:
        tries.write(".")
    raise OSError("no licence for this game")


class Leaves(gymnasium.Env):
    """Asks the whole program to end in the hundredth step of its process, in the way that a subclass knows."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0  # of all copies in this process

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        Leaves.steps += 1
        if Leaves.steps >= 100:
            Leaves.steps = 0  # several tests may run in one process
            self.leave()
        return np.full(2, self.t, np.float32), 1.0, self.t == 30, False, {}


class CallsSysExit(Leaves):
    def leave(self):
        sys.exit(0)


class CallsOsExit(Leaves):
    def leave(self):
        os._exit(0)


class RaisesSystemExit(Leaves):
    def leave(self):
        raise SystemExit


class RaisesKeyboardInterrupt(Leaves):
    def leave(self):
        raise KeyboardInterrupt
