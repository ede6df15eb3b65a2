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
from laser_rl.types import Array

log = logging.getLogger("laser_rl.agent")


class Decision(NamedTuple):
    """For n slots."""

    action: Array  # as stored
    behaviour: NDArray[np.float32]  # [n, P]
    environment_action: Array


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
    def act(self, observation: Array, slots: NDArray[np.int64] | None = None) -> Decision:
        """Decide for n observations [n, ...], stacked as the network expects them."""
        seen = torch.from_numpy(observation).to(self.device).unsqueeze(0)
        first = torch.zeros(seen.shape[:2], dtype=torch.bool, device=self.device)
        with checks.unchecked():
            output, _ = self.network(seen, first, self.network.initial_state(len(observation)))
            return decide(self.family, output.policy[0], self.generator, deterministic=self.deterministic)


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


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Go on with the same random numbers; on another kind of device that is impossible, and said."""
    try:
        generator.set_state(state.cpu())
    except RuntimeError:
        log.warning("the run goes on on another kind of device: its random numbers start anew")
