"""Value, entropy and trust at each row of an episode that is filmed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from laser_rl.agent.policy import Seen
from laser_rl.agent.relevance import behaviour_relevance
from laser_rl.config import LossConfig
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.ops import checks
from laser_rl.ops.distributions import Family
from laser_rl.types import Inputs


class Remark(NamedTuple):
    """The numbers of one row. `trusted` is None where there is no other policy to compare with."""

    value: float
    entropy: float
    trusted: float | None


class Commentator:
    """Reads the rows of one episode in order, some at a time; memories are carried from call to call.

    `trusted` is the share of the `sources` that lie inside the trust region at that row: β(π, μ_i, s) < b, where μ_i is what source i would
    do there. Each source reads the episode from its first row on with a memory of its own, as a replayed episode is refreshed.

    Args:
        network: the one that plays, π.
        family: what its parameters mean.
        loss: which relevance function.
        bound: the threshold b; infinite trusts everything.
        sources: networks of those whose experience is replayed, μ_i.
        task: which one of a mixture is played; values are in its units.
        seed: of the actions that are drawn where they cannot be enumerated.
    """

    def __init__(
        self,
        network: AgentNetwork,
        family: Family,
        loss: LossConfig,
        *,
        bound: float,
        sources: Sequence[AgentNetwork] = (),
        task: int = 0,
        seed: int = 0,
    ) -> None:
        self._networks, self._family, self._loss, self._bound = [network, *sources], family, loss, bound
        self._task = task
        self._device = next(network.parameters()).device
        self._states = [one.initial_state(1) for one in self._networks]
        self._generator = torch.Generator(self._device).manual_seed(seed)

    @torch.inference_mode()
    def __call__(self, rows: Sequence[Seen]) -> list[Remark]:
        """A remark for each row."""
        if not rows:
            return []
        parts = (np.stack([getattr(row, name) for row in rows]) for name in Inputs._fields)
        inputs = Inputs(*(torch.from_numpy(part).to(self._device) for part in parts))  # [T, 1, ...]
        with checks.unchecked():
            outputs = []
            for place, network in enumerate(self._networks):
                output, states = network(inputs, self._states[place])
                self._states[place] = states[-1]
                outputs.append(output)
            value = self._value(outputs[0])[:, 0].tolist()
            entropy = self._family.entropy(outputs[0].policy.float())[:, 0].tolist()
            trusted = self._trusted(outputs)
        return [Remark(*remark) for remark in zip(value, entropy, trusted, strict=True)]

    def _value(self, output: Output) -> Tensor:
        popart = self._networks[0].popart
        if popart is None:
            return output.value
        task = torch.full((1,), self._task, dtype=torch.int64, device=self._device)
        return popart.value(output.value, task)

    def _trusted(self, outputs: Sequence[Output]) -> Sequence[float | None]:
        policy, *others = (output.policy.float() for output in outputs)
        if not others:
            return [None] * len(policy)
        inside = [
            behaviour_relevance(self._family, policy, other, self._loss, self._generator) < self._bound
            for other in others
        ]
        shares: list[float] = torch.stack(inside).float().mean(0)[:, 0].tolist()
        return shares
