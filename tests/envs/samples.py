"""Environments that tell on whoever mixes up their rows, and the witness who listens."""

import contextlib
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from laser_rl.envs.instructions import WORDS

PRIME = 65_521
WIDTH = 64


def expected_observation(seed, t, total):
    """Every entry depends on the episode, the step and all actions so far: one foreign byte shows."""
    head = [seed >> 16, seed & 0xFFFF, t, total]
    check = (seed % PRIME + 7919 * t + 31 * total) % PRIME
    return np.array([*head, *((check + index) % PRIME for index in range(WIDTH - len(head)))], np.float32)


def words_in(picture):
    """The numbers of the words in a picture's last row, as `envs.instructions` describes it, and what follows them."""
    line = [int(byte) for channel in picture[:, -1] for byte in channel]
    return tuple(line[2 * index] + 256 * line[2 * index + 1] for index in range(WORDS)), line[2 * WORDS :]


def processes(pool):
    """Process numbers of the workers that live, in the order of their slots."""
    return [worker.process.pid for worker in pool.workers if worker.process is not None]


def total_after(total, action):
    return (total * 31 + int(action) + 1) % PRIME


class Telltale(gymnasium.Env):
    """Episodes of 5 to 24 steps by their seed, every third one truncated."""

    observation_space = spaces.Box(0, 0xFFFF, (WIDTH,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, hang_in_step=None, hang_in_reset=None, raise_with=0.0, pause_s=0.0, hang_s=1000.0):
        self._hang_in_step, self._hang_in_reset = hang_in_step, hang_in_reset
        self._raise_with, self._pause_s, self._hang_s = raise_with, pause_s, hang_s

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._hang_once(self._hang_in_reset)
        self._seed, self._t, self._total = seed, 0, 0
        return expected_observation(seed, 0, 0), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._hang_once(self._hang_in_step)
        time.sleep(self._pause_s)
        if self.np_random.random() < self._raise_with:
            raise RuntimeError(f"the telltale stumbled at step {self._t}")
        self._t, self._total = self._t + 1, total_after(self._total, action)
        ended = self._t == 5 + self._seed % 20
        truncated = ended and self._seed % 3 == 0
        observation = expected_observation(self._seed, self._t, self._total)
        return observation, float(self._t), ended and not truncated, truncated, {}

    def _hang_once(self, marker):
        if marker:
            with contextlib.suppress(FileNotFoundError):
                Path(marker).unlink()  # one of all copies gets it
                time.sleep(self._hang_s)


class Witness:
    """Follows every slot's stream row by row and knows what the next one has to be."""

    def __init__(self, slots):
        self.state = [None] * slots  # (episode, seed, t, total, ended)
        self.sent = np.zeros(slots, np.int64)  # the last action of each slot; a late row may answer an older call
        self.restarts = self.episodes = self.rows = 0

    def hear(self, rows, actions):
        """`actions`: by slot, the last one sent."""
        assert len(set(rows.slots.tolist())) == len(rows.slots)
        for index, slot in enumerate(rows.slots.tolist()):
            self._hear_one(slot, type(rows)(*(field[index] for field in rows)), actions[slot])

    def _hear_one(self, slot, row, action):
        before, self.rows = self.state[slot], self.rows + 1
        if row.is_first:
            assert before is None or row.episode > before[0]
            assert before is None or before[4] or row.restarted
            assert not (before is not None and before[4] and row.restarted)
            assert row.reward == 0
            assert not row.terminated | row.truncated
            self.restarts += bool(row.restarted)
            t, total = 0, 0
        else:
            assert not row.restarted
            assert before is not None
            assert not before[4]
            assert (row.episode, row.seed) == before[:2]
            t, total = before[2] + 1, total_after(before[3], action)
            assert row.reward == t
        np.testing.assert_array_equal(row.observation, expected_observation(int(row.seed), t, total))
        ended = t == 5 + int(row.seed) % 20
        assert (bool(row.terminated), bool(row.truncated)) == (
            ended and row.seed % 3 != 0,
            ended and row.seed % 3 == 0,
        )
        self.episodes += ended
        self.state[slot] = (row.episode, row.seed, t, total, ended)


def drive(envs, witness, steps, rng, *, before_step=lambda number: None, rows=None):
    """Random actions for `steps` calls; every row goes to the witness. Returns the last rows."""
    actions = witness.sent
    if rows is None:
        rows = envs.reset()
        witness.hear(rows, actions)
    for number in range(steps):
        before_step(number)
        actions[rows.slots] = rng.integers(3, size=rows.slots.size)
        rows = envs.step(rows.slots, actions[rows.slots])
        assert rows.slots.size
        witness.hear(rows, actions)
    return rows


class Scripted(gymnasium.Env):
    """Returns whatever it is told to, after some good steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space=None, reset=None, step=None, good_steps=3):
        self.observation_space = space if space is not None else spaces.Box(-1, 1, (2,), np.float32)
        self._reset, self._step, self._good = reset, step, good_steps
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._t = 0
        return self._reset(self) if self._reset else (self.observation_space.sample(), {})

    def step(self, action):
        self._t += 1
        if self._step and self._t > self._good:
            return self._step(self)
        return self.observation_space.sample(), 1.0, False, False, {}


GOOD = np.zeros(2, np.float32)
NOT_FINITE = {
    "observation": (np.array([0, np.nan], np.float32), 0.0, False, False, {}),
    "infinite": (np.array([0, -np.inf], np.float32), 0.0, False, False, {}),
    "reward": (GOOD, float("nan"), False, False, {}),
    "infinite reward": (GOOD, float("inf"), True, False, {}),
    "negative infinite reward": (GOOD, np.float32("-inf"), True, False, {}),
    "too large for float32": (GOOD, 1e39, True, False, {}),
}
MALFORMED = {
    "float64": (GOOD.astype(np.float64), 0.0, False, False, {}),
    "shape": (np.zeros(3, np.float32), 0.0, False, False, {}),
    "list": ([0.0, 0.0], 0.0, False, False, {}),
    "none": (None, 0.0, False, False, {}),
    "reward none": (GOOD, None, False, False, {}),
    "reward array": (GOOD, np.zeros(1), False, False, {}),
    "reward text": (GOOD, "1", False, False, {}),
    "reward complex": (GOOD, 1j, False, False, {}),
    "old gym": (GOOD, 0.0, False, {}),
    "not a tuple": None,
    "terminated": (GOOD, 0.0, 0, False, {}),
    "truncated": (GOOD, 0.0, False, None, {}),
    "info": (GOOD, 0.0, False, False, object()),
}


def not_finite(env, case):
    return NOT_FINITE[case]


def malformed(env, case):
    return MALFORMED[case]


def impossible():
    raise OSError("the level is missing")


def deadly():
    os._exit(7)


def endless():
    time.sleep(1000)
