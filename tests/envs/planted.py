"""A good environment, and the same one with one defect each: what `laser check-env` has to find."""

import os
import signal
import subprocess
import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces

from laser_rl.envs.tasks import TaskEnv, TMaze

BOUND = 5.0


class Walk(gymnasium.Env):
    """A walk on a line that begins near 0, is pushed about by chance, and ends far out; nothing is wrong with it."""

    observation_space = spaces.Box(-20.0, 20.0, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-0.1, 0.1, 2)
        self.age = 0
        return self.look(), {}

    def step(self, action):
        self.age += 1
        self.speed = float(np.clip(self.speed + 0.3 * (int(action) - 1) + self.chance(), -2, 2))
        self.place += self.speed
        return self.look(), self.pay(), self.ended(), self.age >= 40 and not self.ended(), {}

    def chance(self):
        return self.np_random.normal(0, 0.3)

    def pay(self):
        return -abs(self.place)

    def ended(self):
        return bool(abs(self.place) > BOUND)

    def look(self):
        return np.array([self.place, self.speed, 1.0], np.float32)


class Doubles(Walk):
    def look(self):
        return np.array([self.place, self.speed, 1.0])


class Longer(Walk):
    def look(self):
        return np.zeros(4, np.float32)


class Lists(Walk):
    def look(self):
        return [self.place, self.speed, 1.0]


class Outside(Walk):
    def look(self):
        return np.array([self.place, self.speed, 21.0 if self.age == 7 else 1.0], np.float32)


class NotANumber(Walk):
    def look(self):
        return np.array([self.place, self.speed, np.nan if self.age == 4 else 1.0], np.float32)


class NanReward(Walk):
    def pay(self):
        return float("nan") if self.age == 3 else 0.0


class ArrayReward(Walk):
    def pay(self):
        return np.array([1.0])


class WholeFlags(Walk):
    def ended(self):
        return int(abs(self.place) > BOUND)


class OldReset(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class OldStep(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class Unseeded(Walk):
    def __init__(self):
        self.own = np.random.default_rng()

    def chance(self):
        return self.own.normal()


class OwnStream(Walk):
    """The seed is thrown away: episodes follow from one another."""

    def __init__(self):
        self.own = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.own.uniform(-0.1, 0.1)
        return self.look(), {}


class GlobalGenerator(Walk):
    def chance(self):
        return np.random.normal()  # noqa: NPY002


class SeedsGlobally(Walk):
    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed)

    def chance(self):
        return np.random.normal()  # noqa: NPY002


class IgnoresSeed(Walk):
    def reset(self, *, seed=None, options=None):
        self.place = self.speed = 0.05
        self.age = 0
        return self.look(), {}

    def chance(self):
        return 0.0


class NoChance(IgnoresSeed):
    """A task without chance that hands its seed on: nothing is wrong with it."""

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        return super().reset(seed=seed)


class ResetsItself(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            observation, _ = self.reset()
        return observation, reward, terminated, truncated, info


class FinalInInfo(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            info = {"final_observation": observation}
            observation, _ = self.reset()
        return observation, reward, terminated, truncated, info


class Endless(Walk):
    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


class HangsInStep(Walk):
    def step(self, action):
        if self.age == 8:
            time.sleep(1000)
        return super().step(action)


class HangsInReset(Walk):
    def reset(self, *, seed=None, options=None):
        threading.Event().wait()


class Raises(Walk):
    def step(self, action):
        if self.age == 5:
            return self.table()[int(action) + 7]
        return super().step(action)

    def table(self):
        return [1, 2, 3]


class Crashes(Walk):
    def step(self, action):
        if self.age == 5:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


class ChangesActions(Walk):
    def step(self, action):
        if self.age == 2:
            self.action_space = spaces.Discrete(2)
        return super().step(int(action))


class WholeBox(Walk):
    action_space = spaces.Box(0, 2, (1,), np.int64)

    def step(self, action):
        return super().step(action[0])


class HalfBounded(Walk):
    action_space = spaces.Box(0.0, np.inf, (1,), np.float32)

    def step(self, action):
        return super().step(min(2, action[0]))


class BeginsAtFive(Walk):
    """Actions 5, 6 and 7: nothing is wrong with it."""

    action_space = spaces.Discrete(3, start=5)

    def step(self, action):
        assert 5 <= action <= 7
        return super().step(action - 5)


class LeaksProcesses(Walk):
    def __init__(self):
        self.server = subprocess.Popen(["sleep", "47.11"])


class NotDerived:
    """Has the methods, and nothing else."""

    observation_space, action_space = Walk.observation_space, Walk.action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


class OnlyOnce(Walk):
    taken = False

    def __init__(self):
        if OnlyOnce.taken:
            raise OSError("port 5555 is in use")
        OnlyOnce.taken = True

    def close(self):
        OnlyOnce.taken = False


class NotBuilt(Walk):
    def __init__(self):
        self.map = {}["nowhere"]


class SlowReset(Walk):
    def reset(self, *, seed=None, options=None):
        time.sleep(0.3)
        return super().reset(seed=seed)


class NearlySame(Walk):
    copies = 0

    def __init__(self):
        NearlySame.copies += 1
        self.error = 1e-7 * NearlySame.copies

    def look(self):
        return super().look() + np.float32(self.error)


class CarriesOver(Walk):
    """As MinAtar: the last action of an episode is felt in the next one."""

    last = 1

    def step(self, action):
        last, self.last = self.last, int(action)
        return super().step(last)


def unseeded_and_says_so():
    env = Unseeded()
    env.spec = gymnasium.envs.registration.EnvSpec("Planted-v0", entry_point=Unseeded, nondeterministic=True)
    return env


def running_statistics():
    return gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1", disable_env_checker=True))


def auto_reset():
    return gymnasium.wrappers.Autoreset(Walk())


def our_task():
    return TaskEnv(TMaze(5))
