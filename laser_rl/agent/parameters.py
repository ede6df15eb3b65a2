"""All parameters of a network in one piece of memory.

An optimiser step, a look for NaN, a publication to the actors is then one operation each, however many layers there are; and the
parameters of several members can lie side by side, as the rows of a matrix.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from laser_rl.errors import ConfigError


class ParameterSlice(NamedTuple):
    """Where one parameter lies in the vector."""

    name: str
    first: int
    last: int
    shape: tuple[int, ...]


class FlatParameters:
    """`value` and `gradient` are vectors; each parameter of the network, and its gradient, becomes a view into them.

    >>> layer = nn.Linear(2, 1)
    >>> flat = FlatParameters(layer)
    >>> flat.value.zero_()
    tensor([0., 0., 0.])
    >>> layer.weight.tolist()
    [[0.0, 0.0]]
    >>> rows = torch.ones(2, 3)
    >>> flat.move(rows[1], torch.zeros(3))
    >>> rows.tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, network: nn.Module) -> None:
        named = dict(network.named_parameters())
        kinds = {(p.dtype, p.device) for p in named.values()}
        if len(kinds) != 1:
            raise ConfigError(
                f"a network's parameters must have one type and one device, got {sorted(map(str, kinds))}"
            )
        self._parameters = list(named.values())
        self.places: list[ParameterSlice] = []
        first = 0
        for name, parameter in named.items():
            self.places.append(ParameterSlice(name, first, first + parameter.numel(), tuple(parameter.shape)))
            first += parameter.numel()
        sample = self._parameters[0]
        self.value = torch.cat([_flat(parameter) for parameter in self._parameters])
        self.gradient = torch.zeros(first, dtype=sample.dtype, device=sample.device)
        self._look()

    def move(self, value: Tensor, gradient: Tensor) -> None:
        """Live in other memory of the same size from now on; the values come along."""
        value.copy_(self.value)
        gradient.copy_(self.gradient)
        self.value, self.gradient = value, gradient
        self._look()

    def _look(self) -> None:
        for parameter, place in zip(self._parameters, self.places, strict=True):
            parameter.data = shaped(self.value[place.first : place.last], place.shape)
            parameter.grad = shaped(self.gradient[place.first : place.last], place.shape)

    def state_bytes(self) -> bytes:
        """For a hash."""
        return self.value.detach().cpu().numpy().tobytes()


def shaped(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view [..., n] → [..., *shape]; kernels of convolutions lie channels-last, as the pictures do.

    >>> shaped(torch.zeros(2, 6), (3, 2)).shape
    torch.Size([2, 3, 2])
    """
    rows = flat.shape[:-1]
    if len(shape) != 4:  # noqa: PLR2004
        return flat.view(*rows, *shape)
    out, inputs, height, width = shape
    assert flat.shape[-1] == math.prod(shape)  # noqa: S101
    return flat.view(*rows, out, height, width, inputs).movedim(-1, -3)


def _flat(parameter: nn.Parameter) -> Tensor:
    """In the order in which `shaped` reads it."""
    data = parameter.data
    return (data.permute(0, 2, 3, 1) if data.ndim == 4 else data).reshape(-1)  # noqa: PLR2004


def load_network(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy values in place: parameters stay the views that they are."""
    own = network.state_dict()
    if missing := own.keys() ^ tensors.keys():
        raise ConfigError(
            f"the stored network does not fit this one; they differ in {sorted(missing)}. If it was trained with a network of "
            "your own, hand it in again: LASER(env, net=YourModule, run_dir=...)"
        )
    for name, tensor in own.items():
        if (tensors[name].shape, tensors[name].dtype) != (tensor.shape, tensor.dtype):
            raise ConfigError(
                f"the stored network does not fit this one: {name} is {tensors[name].dtype} {tuple(tensors[name].shape)}, "
                f"expected {tensor.dtype} {tuple(tensor.shape)}; use the settings and the environment that it was trained with"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def require_finite(tensors: Mapping[str, Tensor], whose: str) -> None:
    """ValueError if a number is not."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} of {whose} is not finite; it is not taken")
