"""A network of layers with tanh, of one member or of several side by side: forward, and backward in closed form.

For small layers autograd and modules take longer than the arithmetic, and on a CPU torch's tanh ten times as long as NumPy's.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from laser_rl.agent.parameters import ParameterSlice, shaped
from laser_rl.networks.agent_network import AgentNetwork, Output


class DenseLayer(NamedTuple):
    """Views of K members' parameters and of their gradients."""

    weight: Tensor  # [K, outputs, inputs]
    bias: Tensor  # [K, 1, outputs]
    by_weight: Tensor
    by_bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight.mT)

    def back(self, x: Tensor, by_output: Tensor) -> None:
        """The gradients of the parameters, from that of the output at the input `x`."""
        torch.bmm(by_output.mT, x, out=self.by_weight)
        torch.sum(by_output, 1, keepdim=True, out=self.by_bias)


class Dense:
    """A `network` that is `dense`; the rows of `value` and `gradient` [K, P] are members' parameters and their gradients.

    Batches have the columns of the first member, then those of the second.
    """

    def __init__(
        self, network: AgentNetwork, places: Sequence[ParameterSlice], value: Tensor, gradient: Tensor
    ) -> None:
        self._network, self._members, self.value = network, len(value), value
        named = {
            place.name: [shaped(rows[:, place.first : place.last], place.shape) for rows in (value, gradient)]
            for place in places
        }

        def layer(name: str) -> DenseLayer:
            (weight, by_weight), (bias, by_bias) = named[f"{name}.weight"], named[f"{name}.bias"]
            return DenseLayer(weight, bias.unsqueeze(1), by_weight, by_bias.unsqueeze(1))

        hidden = [name.removesuffix(".weight") for name in named if ".layers." in name and name.endswith(".weight")]
        self._torso = [layer(name) for name in hidden if name.startswith("torso.")]
        self._value_torso = [layer(name) for name in hidden if name.startswith("value_torso.")]
        self._policy, self._value = layer("policy_head"), layer("value_head")
        self.parameters = 2 * (len(hidden) + 2)

    def policy(self, observation: Tensor) -> Tensor:
        """The policies' parameters [rows, P] at observations [rows, ...], as many of each member."""
        rows = observation.unsqueeze(0)
        policy = self._policy(_through(self._torso, self._seen(rows))[-1])
        return self._network.masked(self._together(policy, 1), rows)[0]

    def forward(self, observation: Tensor) -> Output:
        """At rows [T+1, B, ...]; `backward` reads what this remembers."""
        with torch.no_grad():
            seen, rows = self._seen(observation), len(observation)
            self._features = _through(self._torso, seen)
            self._valued = _through(self._value_torso, seen) if self._value_torso else self._features
            policy = self._together(self._policy(self._features[-1]), rows)
            value = self._together(self._value(self._valued[-1]), rows).squeeze(-1)
            return Output(self._network.masked(policy, observation), value)

    def backward(self, by_policy: Tensor, by_value: Tensor) -> None:
        """From the gradients of the outputs to those of all parameters, in place. Forbidden actions have none: their π is 0."""
        with torch.no_grad():
            by_policy, by_value = self._apart(by_policy), self._apart(by_value.unsqueeze(-1))
            self._policy.back(self._features[-1], by_policy)
            self._value.back(self._valued[-1], by_value)
            by_features, by_valued = torch.bmm(by_policy, self._policy.weight), torch.bmm(by_value, self._value.weight)
            if self._value_torso:
                _back_through(self._value_torso, self._valued, by_valued)
            else:
                by_features += by_valued
            _back_through(self._torso, self._features, by_features)

    def _seen(self, observation: Tensor) -> Tensor:
        flat = self._network.prepared(self._network.without_mask(observation).flatten(0, 1))
        assert isinstance(flat, Tensor)  # noqa: S101 - it has no parts
        return self._apart(flat.reshape(*observation.shape[:2], -1))  # pictures lie channels-last

    def _apart(self, rows: Tensor) -> Tensor:
        """[T+1, B, n] → [K, rows of a member, n]."""
        own = rows if self._members == 1 else rows.reshape(len(rows), self._members, -1, rows.shape[-1]).transpose(0, 1)
        return own.reshape(self._members, -1, rows.shape[-1])

    def _together(self, own: Tensor, rows: int) -> Tensor:
        apart = own.view(self._members, rows, -1, own.shape[-1])
        return apart[0] if self._members == 1 else apart.transpose(0, 1).flatten(1, 2)


def _through(layers: Sequence[DenseLayer], x: Tensor) -> list[Tensor]:
    """The input of the first layer and the output of each."""
    outputs = [x]
    for layer in layers:
        x = layer(outputs[-1])
        if x.device.type == "cpu":
            np.tanh(x.numpy(), out=x.numpy())
        else:
            x.tanh_()
        outputs.append(x)
    return outputs


def _back_through(layers: Sequence[DenseLayer], outputs: Sequence[Tensor], slope: Tensor) -> None:
    """`slope` is the gradient of the last output."""
    for layer, (x, output) in reversed(list(zip(layers, itertools.pairwise(outputs), strict=True))):
        by_sum = torch.ops.aten.tanh_backward(slope, output)
        layer.back(x, by_sum)
        if x is not outputs[0]:
            slope = torch.bmm(by_sum, layer.weight)
