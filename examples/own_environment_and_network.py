"""Bring your own: a Gymnasium environment, and a torch module that knows something about it. Run: python examples/own_environment_and_network.py

A walker on a ring of 12 cells looks for a door. The shortest way takes 36/11 steps on average, so no agent earns more than 0.673.
"""

import argparse

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from laser_rl.api import LASER

CELLS, LONGEST = 12, 50


class Ring(gymnasium.Env):
    """Where am I, where is the door: two rows of a picture that is bent to a ring. A step costs 0.1, the door brings 1."""

    observation_space = spaces.Box(0.0, 1.0, (2, CELLS), np.float32)
    action_space = spaces.Discrete(2)  # back, on

    def reset(self, *, seed=None, options=None):
        """Two different cells."""
        super().reset(seed=seed)  # seeds self.np_random: draw from nothing else, and runs repeat
        self.walker, self.door = self.np_random.choice(CELLS, 2, replace=False)
        self.age = 0
        return self.look(), {}

    def step(self, action):
        """Terminated is an end of the world, truncated one of our patience: the agent learns differently from them."""
        self.walker, self.age = (self.walker + 2 * action - 1) % CELLS, self.age + 1
        found = bool(self.walker == self.door)
        return self.look(), found - 0.1, found, self.age >= LONGEST and not found, {}

    def look(self):
        return np.eye(CELLS, dtype=np.float32)[[self.walker, self.door]]


class RingTorso(nn.Sequential):
    """From observations [N, 2 · CELLS], flattened as all but pictures are, to features [N, F]; LASER adds policy and value."""

    def __init__(self) -> None:
        across = nn.Conv1d(2, 16, CELLS // 2 + 1, padding=CELLS // 4, padding_mode="circular")
        super().__init__(nn.Unflatten(1, (2, CELLS)), across, nn.ReLU(), nn.Flatten(), nn.Linear(16 * CELLS, 32), nn.ReLU())


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20_000)
agent = LASER(Ring, net=lambda shape: RingTorso(), seed=1, entropy_cost=0.01).learn(parser.parse_args().steps)
print("100 episodes:", agent.evaluate(episodes=100))

env, state, done = Ring(), None, False
observation, _ = env.reset(seed=7)
while not done:
    action, state = agent.predict(observation, state)
    print(f"walker in cell {env.walker:2d}, door in cell {env.door:2d}: {'on' if action else 'back'}")
    observation, reward, terminated, truncated, _ = env.step(action)
    done = terminated or truncated
print("found" if terminated else "lost", "after", env.age, "steps")
agent.close()
