"""The policy as one function of tensors: what an agent does at one row, without its random numbers."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laser_rl.agent.policy import choose, finite
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.ops import checks, popart
from laser_rl.ops.distributions import Family
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.types import Inputs, UnrollLayout


class Acting(nn.Module):
    """Rows [B, ...] in; the likeliest action, the policy's parameters and the value out, and the memory where there is one.

    A copy of the network on the CPU, in float32 and in evaluation mode: our kernels need a GPU, and a file is to run anywhere.

    Args:
        network: of the agent; it is copied.
        family: what its parameters mean.
        starts: where the environment begins to count its choices; the network counts from 0.

    >>> from laser_rl.networks.torso import MLP
    >>> from laser_rl.ops.distributions import Categorical
    >>> acting = Acting(AgentNetwork(MLP((4,), (8,)), parameter_size=2), Categorical(2))
    >>> acting.inputs, acting.outputs
    (('observation',), ('action', 'logits', 'value'))
    >>> [tuple(part.shape) for part in acting(torch.zeros(5, 4))]
    [(5,), (5, 2), (5,)]
    """

    starts: Tensor | None  # None: all at 0

    def __init__(self, network: AgentNetwork, family: Family, starts: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.network, self.family = copy.deepcopy(network).cpu().eval(), family
        self.network.bf16 = False
        first = torch.tensor(starts, dtype=torch.int64).reshape(family.action_shape) if starts else None
        self.register_buffer("starts", first, persistent=False)

    @property
    def recurrent(self) -> bool:
        """Whether it carries a state from row to row."""
        return self.network.state_size > 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return (
            ("observation", "is_first", "last_action", "last_reward", "state") if self.recurrent else ("observation",)
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results, in order."""
        parameters = ("mean", "log_std") if isinstance(self.family, DiagonalGaussian) else ("logits",)
        return ("action", *parameters, "value", *(("next_state",) if self.recurrent else ()))

    def forward(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """One row of each of B episodes."""
        # Who has no memory looks at nothing but the observation, whatever stands for the rest.
        observation, first, action, reward, state = rows if self.recurrent else rows * len((*Inputs._fields, "state"))
        if self.recurrent and self.starts is not None:
            # A first row has no last action, and whatever number stands for that may lie below the first choice.
            action = torch.where(first.reshape(-1, *(1,) * self.starts.ndim), 0, action - self.starts)
        inputs = Inputs(*(part.unsqueeze(0) for part in (observation, first, action, reward)))
        with checks.unchecked():
            output, states = self.network(inputs, state)
            _, parameters, environment_action = choose(self.family, output.policy[0], _UNUSED, deterministic=True)
            if self.starts is not None:
                environment_action = environment_action + self.starts
            results = (environment_action, *self._named(parameters), self._value(output))
        return (*results, finite(states[-1])) if self.recurrent else results

    def _named(self, parameters: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(self.family, DiagonalGaussian):
            return (parameters,)
        mean, raw = parameters.chunk(2, -1)
        return mean, (self.family.min_scale + F.softplus(raw)).log()

    def _value(self, output: Output) -> Tensor:
        """In the units of the returns, [B]; of a mixture [B, tasks], each in its task's own."""
        head = self.network.popart
        if head is None:
            return output.value[0]
        value = output.value[0] * popart.sigma(head.statistics) + head.statistics.mean
        return (value.squeeze(-1) if value.shape[-1] == 1 else value).float()


_UNUSED = torch.Generator()  # the likeliest action needs no random numbers


def example(acting: Acting, layout: UnrollLayout, seen: tuple[int, ...], batch: int) -> tuple[Tensor, ...]:
    """Arguments of the right types, all zero."""
    dtype, action = getattr(torch, layout.observation_dtype), getattr(torch, layout.action_dtype)
    rows = (
        torch.zeros(batch, *seen, dtype=dtype),
        torch.zeros(batch, dtype=torch.bool),
        torch.zeros(batch, *layout.action_shape, dtype=action),
        torch.zeros(batch),
        torch.zeros(batch, layout.state_size),
    )
    return rows if acting.recurrent else rows[:1]
