"""Ranks as threads of one process: what a team adds up without its processes. And small float64 learners to compare."""

import threading

import numpy as np
import torch
from torch import nn

from laser_rl.agent.learner import Learner
from laser_rl.agent.parallel import own_columns, part_of
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops.distributions import Categorical
from laser_rl.types import Batch
from tests.networks.make import build_network

ACTIONS, COLUMNS, ROWS = 3, 8, 6
FAMILY = Categorical(ACTIONS)
WAIT_S = 30.0


class ThreadTeam:
    """One rank; all that were made together share a table and meet at a barrier."""

    def __init__(self, rank, size, table, barrier):
        self.rank, self.size, self._table, self._barrier = rank, size, table, barrier

    @classmethod
    def of(cls, size):
        table, barrier = [None] * size, threading.Barrier(size)
        return [cls(rank, size, table, barrier) for rank in range(size)]

    def _all(self, part):
        self._table[self.rank] = part.clone()
        self._barrier.wait(WAIT_S)
        parts = list(self._table)
        self._barrier.wait(WAIT_S)
        return parts

    def sum(self, part):
        total = torch.stack(self._all(part)).sum(0)
        return part.copy_(total)

    def columns(self, part):
        return torch.cat(self._all(part))

    def leave(self):
        """Whoever waits for this rank need not any more."""
        self._barrier.abort()


class Double(AgentNetwork):
    """In float64, so that an order of summation does not show."""

    def prepared(self, flat):
        flat = flat.double() * self.scale
        return flat if self.normaliser is None else self.normaliser(flat)

    def _features(self, torso, flat):
        return torso(flat)


def network(memory="none", tasks=0, picture=False, seed=1, normalised=False):
    torch.manual_seed(seed)
    seen = ObservationSpec((3, 12, 8), "uint8", scale=1 / 255) if picture else ObservationSpec((4,))
    names = tuple(f"task {number}" for number in range(tasks))
    spec = EnvironmentSpec("x", seen, DiscreteActions(ACTIONS), names)
    pixels = {"torso": "cnn", "channels": 4, "pixel_control_cell": 4} if picture else {}
    net = build_network(
        spec, hidden=(8,), memory=memory, memory_size=5, popart=tasks > 0, normalise_observation=normalised, **pixels
    )
    nn.init.orthogonal_(net.policy_head.weight)
    net.__class__ = Double
    return net.double()


def uneven_batch(net, update, picture=False, tasks=1, bad=None):
    """The last columns have far fewer real and trusted steps than the first, and no online ones: no two ranks have as many."""
    random = torch.Generator().manual_seed(update)
    shape = (ROWS, COLUMNS)

    def flag(share):
        return torch.rand(*shape, generator=random) < share

    behaviour = torch.randn(*shape, ACTIONS, generator=random, dtype=torch.float64)
    behaviour *= torch.linspace(0.1, 4.0, COLUMNS)[:, None]
    reward = 3 * torch.randn(*shape, generator=random, dtype=torch.float64)
    if bad is not None:
        reward[0, bad] = torch.nan
    seen = torch.randn(ROWS + 1, COLUMNS, 4, generator=random, dtype=torch.float64)
    if picture:
        seen = torch.randint(0, 256, (ROWS + 1, COLUMNS, 3, 12, 8), generator=random, dtype=torch.uint8)
    online = torch.arange(COLUMNS) < 2
    return Batch(
        observation=seen,
        is_first=torch.rand(ROWS + 1, COLUMNS, generator=random) < 0.1,
        last_action=torch.randint(0, ACTIONS, (ROWS + 1, COLUMNS), generator=random),
        last_reward=torch.randn(ROWS + 1, COLUMNS, generator=random, dtype=torch.float64),
        action=torch.randint(0, ACTIONS, shape, generator=random),
        reward=reward,
        terminated=flag(0.1),
        truncated=flag(0.1),
        lost_life=flag(0.2),
        is_transition=flag(torch.linspace(1.0, 0.3, COLUMNS))
        | (torch.arange(COLUMNS) == bad if bad is not None else False),
        behaviour=behaviour,
        member=torch.arange(COLUMNS, dtype=torch.int32) % 2,
        slot=torch.zeros(COLUMNS, dtype=torch.int32),
        task=torch.arange(COLUMNS, dtype=torch.int32) % tasks,
        episode=torch.zeros(COLUMNS, dtype=torch.long),
        seed=torch.zeros(COLUMNS, dtype=torch.long),
        version=torch.zeros(COLUMNS, dtype=torch.long),
        state=torch.randn(COLUMNS, net.state_size, generator=random, dtype=torch.float64),
        online=online,
        carried=~online & torch.tensor(update > 0),
        weight=0.5 + torch.rand(COLUMNS, generator=random, dtype=torch.float64),
        id=torch.arange(COLUMNS) + 100 * update,
    )


def learner(net, loss=None, rates=None, **more):
    return Learner(
        net,
        FAMILY,
        LossConfig(trust_bound=0.3, **(loss or {})),
        OptimiserConfig(**{"kind": "rmsprop", "learning_rate": 0.01, **(rates or {})}),
        sources=2,
        **more,
    )


def together(make, batches, ranks):
    """A learner for each rank, each in a thread, after all batches; `make(team)` makes one."""
    teams, errors = ThreadTeam.of(ranks), []
    learners = [make(team) for team in teams]

    def learn(team, one):
        try:
            for batch in batches:
                one.update(part_of(batch, own_columns(COLUMNS, team)), progress=0.0)
        except BaseException as error:
            errors.append(error)
            team.leave()

    threads = [threading.Thread(target=learn, args=pair) for pair in zip(teams, learners, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    first = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (first or errors)[0]
    return learners


def flat_state(one, without=()):
    """All tensors of a learner's state, as numbers."""
    tensors = one.state_dict().tensors
    return {
        f"{group}.{name}": tensor.double().numpy()
        for group, named in tensors.items()
        for name, tensor in named.items()
        if name not in {"generator", *without}
    }


def largest_difference(one, other):
    """Relative to the largest number, or to 1, over all tensors of two states."""
    assert one.keys() == other.keys()
    return max(
        float(np.abs(mine - other[name]).max() / max(1.0, np.abs(mine).max())) if mine.size else 0.0
        for name, mine in one.items()
    )
