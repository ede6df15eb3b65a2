"""All parameters of a network in one vector, the optimisers that move it, and the roll-back when they fail.

An optimiser step, a look for NaN, a publication to the actors is then one operation each, however many layers there are; and the
parameters of several members can lie side by side, as the rows of a matrix.
"""

import itertools
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from laser_rl.config import OptimiserConfig
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops import adam, rmsprop

log = logging.getLogger("laser_rl.agent")
GOOD_EVERY = 200  # updates between two states to go back to
GIVE_UP_AFTER = 20  # skipped updates in a row: these parameters will not recover
LOOK_EVERY = 5  # launched updates between two decisions about a roll-back; each decision reads all parameters once


class ParameterSlice(NamedTuple):
    """Where one parameter lies in the vector."""

    name: str
    first: int
    last: int
    shape: tuple[int, ...]


class FlatParameters:
    """`value` and `gradient` are vectors; each parameter of the network, and its gradient, becomes a view into them."""

    def __init__(self, network: nn.Module) -> None:
        named = dict(network.named_parameters())
        kinds = {(p.dtype, p.device) for p in named.values()}
        if len(kinds) != 1:
            raise ConfigError(
                f"a network's parameters must have one type and one device, got {sorted(map(str, kinds))}"
            )
        self.parameters = list(named.values())
        ends = itertools.accumulate(parameter.numel() for parameter in self.parameters)
        self.places = [
            ParameterSlice(name, end - parameter.numel(), end, tuple(parameter.shape))
            for (name, parameter), end in zip(named.items(), ends, strict=True)
        ]
        self.value = torch.cat([_flat(parameter) for parameter in self.parameters])
        self.gradient = torch.zeros_like(self.value)
        self._look()

    def move(self, value: Tensor, gradient: Tensor) -> None:
        """Live in other memory of the same size from now on; the values come along."""
        value.copy_(self.value)
        gradient.copy_(self.gradient)
        self.value, self.gradient = value, gradient
        self._look()

    def _look(self) -> None:
        for parameter, place in zip(self.parameters, self.places, strict=True):
            parameter.data = shaped(self.value[place.first : place.last], place.shape)
            parameter.grad = shaped(self.gradient[place.first : place.last], place.shape)


def shaped(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view [..., n] → [..., *shape]; kernels of convolutions lie channels-last, as the pictures do."""
    rows = flat.shape[:-1]
    if len(shape) != 4:  # noqa: PLR2004
        return flat.view(*rows, *shape)
    out, inputs, height, width = shape
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
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} of {whose} is not finite; it is not taken")


class Optimiser:
    """The optimiser that a configuration names, for parameters [P] or [K, P], the rows of K members; `state` has tensors of that shape."""

    def __init__(self, value: Tensor, config: OptimiserConfig) -> None:
        self._adam = config.kind == "adam"
        self._constants: dict[str, Any] = {"epsilon": config.added}
        if not self._adam:
            self._constants |= {"decay": config.decay, "momentum": config.momentum}
        self.state: dict[str, Tensor] = (adam if self._adam else rmsprop).initial(value)._asdict()

    def step(self, taken: Tensor | None, value: Tensor, gradient: Tensor, learning_rate: Tensor) -> None:
        """Move `value` in place. Nothing moves where the device says that the step is not `taken`; None: the host knows that it is."""
        constants = {"learning_rate": learning_rate, **self._constants}
        if self._adam:
            adam.update(value, gradient, adam.AdamState(**self.state), taken, **constants)
        else:
            taken = torch.ones((), dtype=torch.bool, device=value.device) if taken is None else taken
            rmsprop.update(value, gradient, rmsprop.RmsPropState(**self.state), taken, **constants)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy values in place: memory stays where it is."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name].reshape(tensor.shape))

    def move(self, rows: Mapping[str, Tensor]) -> None:
        """Live in other memory from now on; the values come along."""
        for name, tensor in self.state.items():
            rows[name].copy_(tensor)
            self.state[name] = rows[name]


class RecoveryCounts(NamedTuple):
    """Counts of updates without a finite gradient."""

    skipped: int = 0
    failing: int = 0  # in a row, until now
    rollbacks: int = 0


class Recovery:
    """Keeps a copy of the last state that learned, and restores it after `GIVE_UP_AFTER` failed updates in a row.

    The state is that of the parameters, of the network's buffers and of the optimiser.
    """

    def __init__(self, flat: FlatParameters, network: AgentNetwork, optimiser: Optimiser) -> None:
        self._flat, self._network, self._optimiser = flat, network, optimiser
        self._counts, self._counts_there = RecoveryCounts(), torch.zeros(3, dtype=torch.int64, device=flat.value.device)
        self._there = False  # whether the device's counts are the newer ones
        self.good = self._copies()

    @property
    def counts(self) -> RecoveryCounts:
        """The present counts; waits for the device where it counts."""
        if self._there:
            before, self._counts = self._counts, RecoveryCounts(*self._counts_there.tolist())
            for number in range(before.rollbacks, self._counts.rollbacks):
                self._say(number)
        return self._counts

    def count(self, version: int, *, learned: bool) -> bool:
        """Count an update whose outcome the host knows; True if too many have failed and an earlier state was restored."""
        skipped, failing, rollbacks = self.counts
        self._there = False
        failing = 0 if learned else failing + 1
        self._counts = RecoveryCounts(skipped + (not learned), failing, rollbacks)
        if failing >= GIVE_UP_AFTER:  # the next update overwrites what was published of the broken state
            self._say(rollbacks)
            for name, tensor in self._live().items():
                tensor.copy_(self.good[name].reshape(tensor.shape))
            self._counts = self._counts._replace(failing=0, rollbacks=rollbacks + 1)
            return True
        if learned and version % GOOD_EVERY == 0:
            self.good = self._copies()
        return False

    def launching(self) -> None:
        if not self._there:
            # Numbers that travel with their launch: from memory of the host they would have to be waited for.
            for place, number in zip(self._counts_there.unbind(), self._counts, strict=True):
                place.fill_(number)
            self._there = True

    def note(self, finite: Tensor) -> None:
        """The outcome of an update, as the device knows it. Can be recorded in a graph."""
        skipped, failing, _ = self._counts_there.unbind()
        skipped.add_(~finite)
        failing.add_(1).mul_(~finite)

    def launched(self, version: int) -> Tensor | None:
        """After every launched update: in each fifth one the device decides about a roll-back; returns that decision, else None.

        So a roll-back may come four updates later than with `count`, and does not come if meanwhile a gradient was finite.
        """
        _, failing, rollbacks = self._counts_there.unbind()
        gave_up = None
        if version % LOOK_EVERY == 0:
            gave_up = failing >= GIVE_UP_AFTER
            for name, tensor in self._live().items():
                torch.where(gave_up, self.good[name].reshape(tensor.shape), tensor, out=tensor)
            failing.mul_(~gave_up)
            rollbacks.add_(gave_up)
        if version % GOOD_EVERY == 0:
            learned = failing == 0
            for name, tensor in self._live().items():
                good = self.good[name].reshape(tensor.shape)
                torch.where(learned, tensor, good, out=good)
        return gave_up

    def adopted(self) -> None:
        """After other parameters were copied in. A roll-back restores the member's own until these have learned."""
        self._counts, self._there = self.counts._replace(failing=0), False

    def load_state_dict(self, good: Mapping[str, Tensor] | None, numbers: Mapping[str, Any]) -> None:
        """Go on with the copy that was saved, or with one of the present state."""
        device, kept = self._flat.value.device, self._copies() if good is None else good
        self.good = {name: tensor.to(device, copy=True).contiguous() for name, tensor in kept.items()}
        self._counts = RecoveryCounts(*(numbers[name] for name in RecoveryCounts._fields))
        self._there = False

    def _live(self) -> dict[str, Tensor]:
        buffers = {f"buffer.{name}": tensor for name, tensor in self._network.named_buffers()}
        return {"value": self._flat.value, **self._optimiser.state, **buffers}

    def _copies(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._live().items()}

    def _say(self, rollbacks: int) -> None:
        if rollbacks & (rollbacks - 1) == 0:  # the first, second, fourth, eighth, …
            log.warning(
                "%d updates in a row had no finite gradient: back to the parameters of at most %d updates before (time %d); "
                "lower the learning rate or clip gradients if this repeats",
                GIVE_UP_AFTER,
                GOOD_EVERY + GIVE_UP_AFTER,
                rollbacks + 1,
            )
