"""Environments with masks of actions, and with several pictures in one observation."""

from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.envs.samples import PRIME, total_after

ILLEGAL = -100.0


class Forbidding(gymnasium.Env):
    """Two thirds of all actions are forbidden, other ones at every step; an illegal one ends the episode and is noted in a file.

    The best legal action is worth 1: the one whose number the observation shows among those of its choice. An episode's last row has no
    mask in info, and an empty one in the Dict.
    """

    def __init__(self, noted=None, *, where="info", several=False, steps=9):
        self.noted, self.where, self.sizes, self.steps = noted, where, (3, 4) if several else (6,), steps
        self.action_space = spaces.MultiDiscrete(self.sizes) if several else spaces.Discrete(6, start=2)
        seen = spaces.Box(0, 1, (sum(self.sizes),), np.float32)
        self.observation_space = seen
        if where == "key":
            self.observation_space = spaces.Dict({"seen": seen, "action_mask": spaces.MultiBinary(sum(self.sizes))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look()

    def step(self, action):
        chosen = np.atleast_1d(action) - (2 if len(self.sizes) == 1 else 0)
        parts = np.split(self.legal, np.cumsum(self.sizes)[:-1])
        fine = all(part[one] for part, one in zip(parts, chosen, strict=True))
        if not fine and self.noted:
            with Path(self.noted).open("a") as file:
                file.write(f"{action}\n")
        best = [part[one] for part, one in zip(np.split(self.best, np.cumsum(self.sizes)[:-1]), chosen, strict=True)]
        self.t += 1
        ended = not fine or self.t == self.steps
        observation, info = self.look(last=ended)
        return observation, float(np.mean(best)) if fine else ILLEGAL, ended, False, info

    def look(self, *, last=False):
        masks, best = [], []
        for size in self.sizes:
            mask = self.np_random.random(size) < 1 / 3
            mask[self.np_random.integers(size)] = True
            one = np.zeros(size, np.float32)
            one[self.np_random.choice(np.flatnonzero(mask))] = 1
            masks.append(mask)
            best.append(one)
        self.legal, self.best = np.concatenate(masks), np.concatenate(best)
        mask = self.legal.astype(np.int8)
        if self.where == "key":
            return {"seen": self.best, "action_mask": mask * (not last)}, {}
        return self.best, {} if last else {"action_mask": mask if len(self.sizes) == 1 else tuple(masks)}


NEAR, FAR, DEPTH = (9, 8, 3), (80, 40), (2, 5, 6)


def expected_parts(seed, t, total):
    """All numbers of a picture book's page depend on the episode, the step and all actions so far."""
    drawn = np.random.default_rng((seed, t, total))
    return {
        "eyes": {
            "near": drawn.integers(0, 256, NEAR).astype(np.uint8),
            "far": drawn.integers(0, 101, FAR).astype(np.uint8),
        },
        "depth": drawn.normal(size=DEPTH).astype(np.float32),
        "place": np.array([seed >> 16, seed & 0xFFFF, t, total], np.float32),
        "mode": int(drawn.integers(3)),
    }


class PictureBook(gymnasium.Env):
    """Two pictures of bytes, one of floats, a vector and a choice; episodes of 3 to 9 steps by their seed."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict(
        {
            "eyes": spaces.Dict({"near": spaces.Box(0, 255, NEAR, np.uint8), "far": spaces.Box(0, 100, FAR, np.uint8)}),
            "depth": spaces.Box(-np.inf, np.inf, DEPTH, np.float32),
            "place": spaces.Box(0, 0xFFFF, (4,), np.float32),
            "mode": spaces.Discrete(3),
        }
    )

    def __init__(self, change=None):
        self.change = change

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = int(self.np_random.integers(1 << 31)) if seed is None else seed  # a vector resets by itself
        self.t, self.total = 0, 0
        return expected_parts(self.seed, 0, 0), {}

    def step(self, action):
        self.t, self.total = self.t + 1, total_after(self.total, action)
        seen = expected_parts(self.seed, self.t, self.total)
        if self.change is not None and self.t == 2:
            self.change(seen)
        return seen, float(self.total) / PRIME, self.t == 3 + self.seed % 7, False, {}


class MaskedBook(PictureBook):
    """The same with a mask of actions in info; action 1 is illegal at every second step."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"action_mask": self.mask()}

    def step(self, action):
        assert self.mask()[action]
        *result, _ = super().step(action)
        return *result, {"action_mask": self.mask()}

    def mask(self):
        return np.array([1, self.t % 2 == 0, 1], np.int8)


class Both(gymnasium.Env):
    """The right one of two actions depends on the picture's bright side and on a number: neither alone says anything about it."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        {"picture": spaces.Box(0, 255, (8, 8, 1), np.uint8), "number": spaces.Box(-1, 1, (1,), np.float32)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action):
        right = int(action) == self.side ^ self.sign
        self.t += 1
        return self.look(), float(right), self.t == 8, False, {}

    def look(self):
        self.side, self.sign = (int(one) for one in self.np_random.integers(2, size=2))
        picture = self.np_random.integers(0, 60, (8, 8, 1)).astype(np.uint8)
        picture[:, 4 * self.side : 4 * self.side + 4] += 150
        return {"picture": picture, "number": np.array([2 * self.sign - 1], np.float32)}


class Drawn(Forbidding):
    """One that can be filmed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, noted=None, *, render_mode=None):
        super().__init__(noted)
        self.render_mode = render_mode

    def render(self):
        return np.full((16, 16, 3), self.t, np.uint8)
