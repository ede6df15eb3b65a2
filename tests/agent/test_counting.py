"""Actor, store, lanes, learner, end to end: the state at every row that is learned from is that of its episode run from the start.

The environment's observations say which row of which episode they are, so what a memory has to hold is known beforehand.
"""

import numpy as np
import pytest
import torch
from torch import nn

from laser_rl.agent.actor import Actor
from laser_rl.agent.learner import Learner
from laser_rl.agent.policy import Policy
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops.distributions import Categorical
from laser_rl.ops.recurrence import unroll
from laser_rl.replay.lanes import Lanes
from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.mixer import Counts, Mixer
from laser_rl.replay.store import Replay
from laser_rl.types import Inputs, UnrollLayout
from tests.envs.samples import WIDTH, Telltale
from tests.networks.make import build_network

SLOTS, ACTIONS = 5, 3
FAMILY = Categorical(ACTIONS)
BATCHES = {3: 300, 7: 200, 40: 60}  # by the length of an unroll
SEED, STEP, TOTAL = 0, 2, 3  # places in an observation


class Counting(nn.Module):
    """Counts the rows since the episode's first, and adds up what they showed: whole numbers, so nothing is rounded."""

    features, state_size = WIDTH, 2

    def forward(self, features, last, is_first, state):
        def step(row, before):
            return before + torch.stack([torch.ones_like(row[:, STEP]), row[:, TOTAL] + 7 * row[:, STEP]], dim=1)

        return features, unroll(step, features, is_first, state)


class Plain(nn.Module):
    """The observation as it is."""

    features = WIDTH

    def forward(self, observation):
        return observation


class Listening(AgentNetwork):
    """Remembers what it was last called with."""

    def forward(self, inputs, state, *, auxiliary=False):
        output, states = super().forward(inputs, state, auxiliary=auxiliary)
        self.heard = (state.detach().clone(), states.detach().clone())
        return output, states


def assemble(network, steps, capacity, *, seed=0, online=2, replayed=6):
    environments = SerialEnvironments(Telltale, slots=SLOTS, seed=seed)
    layout = UnrollLayout(steps, 0, (WIDTH,), "float32", (), "int64", ACTIONS, state_size=network.state_size)
    store, counts = Replay(layout, capacity), Counts(online, replayed)
    mixer = Mixer(layout, store, counts, np.random.Generator(np.random.PCG64(seed)), sampler=Lanes(store, replayed))
    loss = LossConfig(trust="off", entropy_cost=0.0)
    learner = Learner(network, FAMILY, loss, OptimiserConfig(learning_rate=1e-30), seed=seed)
    actor = Actor(environments, Policy(network, FAMILY, seed=seed), layout)
    actor.begin()
    return actor, mixer, learner, allocate(layout, online + replayed)


def batches(actor, mixer, batch, count):
    while count:
        taken = actor.step()
        if taken.unrolls is not None:
            mixer.offer(taken.unrolls)
            while mixer.ready() and count:
                mixer.fill(batch)
                yield batch
                count -= 1


@pytest.mark.parametrize("steps", [3, 7, 40], ids=["episodes longer", "episodes of like length", "episodes shorter"])
@pytest.mark.parametrize("capacity", [260, 200_000], ids=["evictions", "none"])
def test_a_counting_memory_counts_every_episode_from_its_first_row(steps, capacity):
    network = Listening(Plain(), parameter_size=ACTIONS, memory=Counting())
    capacity = max(capacity, 12 * steps)
    actor, mixer, learner, batch = assemble(network, steps, capacity)
    learned = carried = begun = resets = 0
    for filled in batches(actor, mixer, batch, BATCHES[steps]):
        with torch.no_grad():
            _, masked = learner.recurrent.unroll(filled)
        start, after = network.heard
        row = filled.observation[..., STEP]
        # After row t the memory has seen rows 0 … t of the episode: t + 1 of them, whatever unrolls they came in.
        real = masked.is_transition
        assert torch.equal(after[:-1, :, 0][real], row[:-1][real] + 1)
        inside = real[0] & ~filled.is_first[0]  # a first row does not look at what was before
        assert torch.equal(start[inside, 0], row[0][inside])
        learned += int(masked.is_transition[:, ~filled.online].sum())
        carried += int(filled.carried.sum())
        begun += int((~filled.carried & ~filled.online).sum())
        resets += int(filled.is_first[1:].sum())
    assert learned > 1000
    assert carried > 100 or steps == 40
    assert begun > 50
    assert resets > 100
    assert (mixer.store.first_id > 0) == (capacity < 200_000)


@pytest.mark.parametrize("steps", [3, 7, 40])
def test_what_the_rows_showed_is_in_the_memory_whole(steps):
    """The second number depends on every row: one left out, doubled or out of order makes another sum."""
    network = Listening(Plain(), parameter_size=ACTIONS, memory=Counting())
    actor, mixer, learner, batch = assemble(network, steps, 600)
    shown = {}  # (seed of the episode, step) -> what the row adds
    checked = 0
    for filled in batches(actor, mixer, batch, BATCHES[steps] // 2):
        with torch.no_grad():
            _, masked = learner.recurrent.unroll(filled)
        _, after = network.heard
        seen = filled.observation
        for t, b in np.ndindex(*seen.shape[:2]):
            seed, step = filled_place(seen[t, b])
            shown[seed, step] = float(seen[t, b, TOTAL] + 7 * seen[t, b, STEP])
        for t, b in torch.nonzero(masked.is_transition).tolist():
            seed, step = filled_place(seen[t, b])
            if all((seed, earlier) in shown for earlier in range(step)):
                assert after[t, b, 1] == sum(shown[seed, earlier] for earlier in range(step + 1))
                checked += 1
    assert checked > 1000


def filled_place(observation):
    return (int(observation[SEED]), int(observation[SEED + 1])), int(observation[STEP])


@pytest.mark.parametrize("kind", ["lstm", "gru", "preco"])
def test_a_refreshed_state_is_that_of_the_whole_episode_in_one_go(kind):
    """With parameters that stand still: whatever a lane carries, the episode run from its first row in one piece gives."""
    torch.manual_seed(0)
    spec = EnvironmentSpec("telltale", ObservationSpec((WIDTH,), scale=1e-5), DiscreteActions(ACTIONS))
    network = build_network(spec, hidden=(8,), memory=kind, memory_size=6)
    nn.init.orthogonal_(network.policy_head.weight)
    actor, mixer, learner, batch = assemble(network, 4, 300)
    episodes, checked = {}, 0
    for filled in batches(actor, mixer, batch, 100):
        with torch.no_grad():
            output, masked = learner.recurrent.unroll(filled)
        for t, b in torch.nonzero(masked.is_transition & ~filled.online).tolist():
            seed, step = filled_place(filled.observation[t, b])
            rows = episodes.setdefault(seed, {})
            rows[step] = [part[t, b].clone() for part in filled.inputs]
            if step % 5 == 4 and all(earlier in rows for earlier in range(step)):
                whole = [torch.stack([rows[k][n] for k in range(step + 1)])[:, None] for n in range(4)]
                with torch.no_grad():
                    expected, _ = network(Inputs(*whole), network.initial_state(1))
                torch.testing.assert_close(output.policy[t, b], expected.policy[-1, 0], rtol=1e-4, atol=1e-6)
                checked += 1
    assert checked > 100
