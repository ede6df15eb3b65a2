"""All parameters of a network in one piece of memory.

An optimiser step, a look for NaN, a publication to the actors is then one operation each, however many layers there are.
"""

import math

import torch
from torch import Tensor, nn

from laser_rl.errors import ConfigError


class FlatParameters:
    """`value` and `gradient` are vectors; each parameter of the network, and its gradient, becomes a view into them.

    >>> layer = nn.Linear(2, 1)
    >>> flat = FlatParameters(layer)
    >>> flat.value.zero_()
    tensor([0., 0., 0.])
    >>> layer.weight.tolist()
    [[0.0, 0.0]]
    """

    def __init__(self, network: nn.Module) -> None:
        parameters = list(network.parameters())
        kinds = {(p.dtype, p.device) for p in parameters}
        if len(kinds) != 1:
            raise ConfigError(
                f"a network's parameters must have one type and one device, got {sorted(map(str, kinds))}"
            )
        self.value = torch.cat([torch.zeros(p.numel(), dtype=p.dtype, device=p.device) for p in parameters])
        self.gradient = torch.zeros_like(self.value)
        first = 0
        for parameter in parameters:
            last = first + parameter.numel()
            view = _like(self.value[first:last], parameter)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = _like(self.gradient[first:last], parameter)
            first = last

    def state_bytes(self) -> bytes:
        """For a hash."""
        return self.value.detach().cpu().numpy().tobytes()


def _like(flat: Tensor, parameter: nn.Parameter) -> Tensor:
    """A view of the parameter's shape; kernels of convolutions lie channels-last, as the pictures do."""
    if parameter.ndim != 4:  # noqa: PLR2004
        return flat.view(parameter.shape)
    out, inputs, height, width = parameter.shape
    assert flat.numel() == math.prod(parameter.shape)  # noqa: S101
    return flat.view(out, height, width, inputs).permute(0, 3, 1, 2)
