"""More environments that misbehave. Workers that play them import this module, so it imports little."""

import functools
import os
import signal
import sys
import traceback
from pathlib import Path

import gymnasium
import numpy as np

from laser_rl.envs import doom
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
    """One entry leaves its Box [-1, 1] at step `at` of each episode of 200 steps, and stays finite."""

    at = 3
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        return np.array([0.0, 2.5 if self.t >= self.at else 0.5], np.float32)

    def step(self, action):
        self.t += 1
        return self.look(), 1.0, self.t == 200, False, {}


class LeavesInAProcess(Leaves):
    """A name of its own: a warning comes once a process for each name."""


class LeavesLate(Leaves):
    """After the rows that are looked at in full."""

    at = 150


class LeavesTwice(Leaves):
    """Two parts leave, at different steps; a third one is a picture that reaches its bounds."""

    observation_space = gymnasium.spaces.Dict(
        arm=gymnasium.spaces.Box(-1, 1, (1,), np.float64),
        legs=gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 9, (2, 2), np.int32)]),
        eye=gymnasium.spaces.Box(0, 200, (4, 4, 3), np.uint8),
    )

    def look(self):
        legs = np.full((2, 2), 12 if self.t >= 120 else 4, np.int32)
        eye = np.full((4, 4, 3), 200, np.uint8)
        return {"arm": np.array([1.5 if self.t >= self.at else 0.5]), "legs": (legs,), "eye": eye}


def trains_but_is_not_evaluated():
    """CartPole, but an error where it is made for an evaluation."""
    if any(frame.name == "evaluate" for frame in traceback.extract_stack()):
        raise OSError("no licence for this game")
    return gymnasium.make("CartPole-v1")


class AsksToEnd(gymnasium.Env):
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
        AsksToEnd.steps += 1
        if AsksToEnd.steps >= 100:
            AsksToEnd.steps = 0  # several tests may run in one process
            self.leave()
        return np.full(2, self.t, np.float32), 1.0, self.t == 30, False, {}


class CallsSysExit(AsksToEnd):
    def leave(self):
        sys.exit(0)


class CallsOsExit(AsksToEnd):
    def leave(self):
        os._exit(0)


class RaisesSystemExit(AsksToEnd):
    def leave(self):
        raise SystemExit


class RaisesKeyboardInterrupt(AsksToEnd):
    def leave(self):
        raise KeyboardInterrupt


def with_an_engine_that_ends():
    """A scenario of ViZDoom whose engine's program ends at once."""
    doom._launcher = lambda engine, parent: "/bin/false"
    return doom.DoomEnv("basic")
