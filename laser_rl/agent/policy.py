"""A policy that acts: observations in, actions out, and the distribution that they were drawn from."""

import logging
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops import checks
from laser_rl.ops.distributions import Family
from laser_rl.types import Array, Inputs

log = logging.getLogger("laser_rl.agent")


class Seen(NamedTuple):
    """What n slots show, and what is remembered of them."""

    observation: Array  # [n, ...], stacked as the network expects it
    is_first: NDArray[np.bool_]
    last_action: Array  # as stored
    last_reward: Array
    state: Array  # [n, S], the memory before this row


class Decision(NamedTuple):
    """For n slots."""

    action: Array  # as stored
    behaviour: NDArray[np.float32]  # [n, P]
    environment_action: Array
    state: Array | None = None  # [n, S], the memory after this row


class Policy:
    """A network, a family and a stream of random numbers.

    Args:
        network: its parameters may move between two calls.
        family: what its parameters mean.
        seed: of the actions.
        deterministic: take the mode instead of a sample.
    """

    def __init__(self, network: AgentNetwork, family: Family, *, seed: int, deterministic: bool = False) -> None:
        self.network, self.family, self.deterministic = network, family, deterministic
        self.device = next(network.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)

    @torch.inference_mode()
    def act(self, rows: Seen, slots: NDArray[np.int64] | None = None) -> Decision:
        """Decide for n rows."""
        remembers = self.network.state_size > 0
        parts = rows if remembers else (rows.observation,) * len(rows)  # who has no memory looks at nothing else
        observation, first, action, reward, state = (torch.from_numpy(part).to(self.device) for part in parts)
        inputs = Inputs(*(part.unsqueeze(0) for part in (observation, first, action, reward)))
        with checks.unchecked():
            output, states = self.network(inputs, state)
            decision = decide(self.family, output.policy[0], self.generator, deterministic=self.deterministic)
        return decision._replace(state=finite(states[-1]).cpu().numpy()) if remembers else decision


def decide(family: Family, behaviour: Tensor, generator: torch.Generator, *, deterministic: bool = False) -> Decision:
    """Actions from a policy's parameters [n, P].

    A network that has diverged answers with NaN. Then the parameters are taken to be 0 (a uniform choice, a standard normal): what is
    stored is what the action was drawn from, nothing non-finite reaches the replay, and the learner has time to roll back.
    """
    behaviour = behaviour.float()
    broken = ~behaviour.isfinite().all(-1, keepdim=True)
    behaviour = torch.where(broken, 0.0, behaviour)
    action = family.mode(behaviour) if deterministic else family.sample(behaviour, generator)
    for_environment = family.to_environment(action)
    return Decision(action.cpu().numpy(), behaviour.cpu().numpy(), for_environment.cpu().numpy())


def finite(state: Tensor) -> Tensor:
    """A memory that has diverged forgets everything: nothing non-finite is carried on, or reaches the replay.

    >>> finite(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]))
    tensor([[1., 2.],
            [0., 0.]])
    """
    return torch.where(state.isfinite().all(-1, keepdim=True), state, 0.0)


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Go on with the same random numbers; on another kind of device that is impossible, and said."""
    try:
        generator.set_state(state.cpu())
    except RuntimeError:
        log.warning("the run goes on on another kind of device: its random numbers start anew")
