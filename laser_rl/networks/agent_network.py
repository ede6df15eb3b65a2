"""The whole network: torso, memory, heads."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from laser_rl.networks.memory import Memory, NoMemory, State
from laser_rl.networks.torso import orthogonal


class Output(NamedTuple):
    """What the heads say at every row."""

    policy: Tensor  # [T, B, P], parameters of the family
    value: Tensor  # [T, B]


class AgentNetwork(nn.Module):
    """Rows [T, B, ...] in, policy parameters and values out.

    Args:
        torso: a module from [N, ...] to [N, features]; it receives the observation as float, times `scale`.
        memory: what happens between torso and heads.
        parameter_size: P of the policy's family.
        value_torso: the value's own torso; None shares the policy's.
        scale: what a stored observation is multiplied by.
        bf16: run the torso in bfloat16 (heads and everything after them stay in float32).

    >>> from laser_rl.networks.torso import MLP
    >>> network = AgentNetwork(MLP((4,), (8,)), parameter_size=2)
    >>> output, state = network(torch.zeros(3, 5, 4), torch.zeros(3, 5, dtype=torch.bool), ())
    >>> output.policy.shape, output.value.shape
    (torch.Size([3, 5, 2]), torch.Size([3, 5]))
    """

    def __init__(
        self,
        torso: nn.Module,
        *,
        parameter_size: int,
        memory: Memory | None = None,
        value_torso: nn.Module | None = None,
        scale: float = 1.0,
        bf16: bool = False,
    ) -> None:
        super().__init__()
        features = int(torso.features)  # type: ignore[arg-type]
        self.torso, self.value_torso = torso, value_torso
        self.memory: Memory = memory or NoMemory(features)
        self.scale, self.bf16 = scale, bf16
        # A policy that starts near uniform, as small weights make it, explores before it has reasons not to.
        self.policy_head = orthogonal(nn.Linear(self.memory.features, parameter_size), gain=0.01)
        self.value_head = orthogonal(nn.Linear(_features(value_torso, self.memory.features), 1), gain=1.0)

    def initial_state(self, batch: int) -> State:
        """The memory's."""
        return self.memory.initial_state(batch)

    def forward(self, observation: Tensor, is_first: Tensor, state: State) -> tuple[Output, State]:
        """All rows at once; only the memory looks at time."""
        rows = observation.shape[:2]
        flat = self._prepare(observation.flatten(0, 1))
        features, state = self.memory(self._features(self.torso, flat).view(*rows, -1), is_first, state)
        seen = features if self.value_torso is None else self._features(self.value_torso, flat).view(*rows, -1)
        return Output(self.policy_head(features), self.value_head(seen).squeeze(-1)), state

    def _prepare(self, flat: Tensor) -> Tensor:
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        flat = flat.to(dtype)
        if self.scale != 1.0:
            flat = flat * self.scale
        picture = flat.ndim == 4  # noqa: PLR2004
        return flat.contiguous(memory_format=torch.channels_last) if picture else flat

    def _features(self, torso: Callable[[Tensor], Tensor], flat: Tensor) -> Tensor:
        cast = torch.autocast(flat.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext()
        with cast:
            return torso(flat).float()


def _features(torso: nn.Module | None, shared: int) -> int:
    return shared if torso is None else int(torso.features)  # type: ignore[arg-type]
