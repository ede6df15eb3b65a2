"""Bring your own: a Gymnasium environment, and a torch module that knows something about it.

A walker on a ring of 8 cells looks for a door. The shortest way takes 16/7 steps on average: no agent's mean return exceeds 0.77.
"""

import sys

import gymnasium
import numpy as np
import torch
from torch import nn

from laser_rl import LASER

CELLS = 8


class Ring(gymnasium.Env):
    """Sees where the walker is and where the door is. A step costs 0.1, the door brings 1."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2, CELLS), np.float32)
    action_space = gymnasium.spaces.Discrete(2)  # back, on

    def reset(self, *, seed=None, options=None):
        """Seeds self.np_random: draw from nothing else, and runs repeat."""
        super().reset(seed=seed)
        (self.walker, self.door), self.age = self.np_random.choice(CELLS, 2, replace=False), 0
        return np.eye(CELLS, dtype=np.float32)[[self.walker, self.door]], {}

    def step(self, action):
        """Terminated: nothing can follow. Truncated: something could have, and the agent goes on to reckon with it."""
        self.walker, self.age = (self.walker + 2 * action - 1) % CELLS, self.age + 1
        found, seen = bool(self.walker == self.door), np.eye(CELLS, dtype=np.float32)[[self.walker, self.door]]
        return seen, found - 0.1, found, self.age >= 50, {}


class RingTorso(nn.Module):
    """From observations [N, 2·CELLS], flattened as all but pictures are, to features [N, 32]. LASER adds policy and value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(CELLS, 32)

    def forward(self, observation):
        """All that matters on a ring is door − walker: a correlation, one product after Fourier's transform."""
        walker, door = torch.fft.rfft(observation.view(-1, 2, CELLS)).unbind(1)
        return torch.tanh(self.linear(torch.fft.irfft(door * walker.conj(), CELLS)))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
    agent = LASER(Ring, net=lambda shape: RingTorso(), seed=1, learning_rate=2e-3, entropy_cost=0.05, reward_scale=1.0)
    print(f"mean return of 100 episodes: {agent.learn(steps).evaluate(100).mean:.2f}, at best 0.77")
    env, state, terminated, truncated = Ring(), None, False, False
    observation, _ = env.reset(seed=3)
    while not (terminated or truncated):
        action, state = agent.predict(observation, state, deterministic=True)
        print(f"walker in cell {env.walker}, door in cell {env.door}: {('back', 'on')[action]}")
        observation, reward, terminated, truncated, _ = env.step(action)
    agent.close()
