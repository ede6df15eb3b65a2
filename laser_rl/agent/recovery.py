"""Updates that had no finite gradient, and the way back to parameters that had one.

The host counts where it waits for each update's outcome anyway. Where updates are only launched, the device counts, and decides about the
way back without the host: what it undoes it undoes with `where`, so nobody has to look.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from laser_rl.agent.optimiser import Optimiser
from laser_rl.agent.parameters import FlatParameters
from laser_rl.networks.agent_network import AgentNetwork

log = logging.getLogger("laser_rl.agent")
LOOK_EVERY = 5  # launched updates between two decisions about the way back; each reads everything once


class RecoveryCounts(NamedTuple):
    """Of updates without a finite gradient."""

    skipped: int = 0
    failing: int = 0  # in a row, until now
    rollbacks: int = 0


class Recovery:
    """Keeps a copy of what learned, and goes back to it.

    Args:
        flat: the parameters.
        network: its buffers go back as well.
        optimiser: and its state.
        good_every: updates between two copies.
        give_up_after: skipped updates in a row; these parameters will not recover.
    """

    def __init__(
        self, flat: FlatParameters, network: AgentNetwork, optimiser: Optimiser, *, good_every: int, give_up_after: int
    ) -> None:
        self._flat, self._network, self._optimiser = flat, network, optimiser
        self._good_every, self._give_up_after = good_every, give_up_after
        self._counts, self._counts_there = RecoveryCounts(), torch.zeros(3, dtype=torch.int64, device=flat.value.device)
        self._there = False  # whether the device's counts are the newer ones
        self.good = self._copies()

    @property
    def counts(self) -> RecoveryCounts:
        """As they are now; waits for the device where it counts."""
        if self._there:
            before, self._counts = self._counts, RecoveryCounts(*self._counts_there.tolist())
            for number in range(before.rollbacks, self._counts.rollbacks):
                self._say(number)
        return self._counts

    def count(self, version: int, *, learned: bool) -> bool:
        """After an update whose outcome is known; True if it was one too many, and all is back at an earlier state."""
        skipped, failing, rollbacks = self.counts
        self._there = False
        failing = 0 if learned else failing + 1
        self._counts = RecoveryCounts(skipped + (not learned), failing, rollbacks)
        if failing >= self._give_up_after:
            self.roll_back()
            return True
        if learned and version % self._good_every == 0:
            self.good = self._copies()
        return False

    def roll_back(self) -> None:
        """To the last state that learned; whatever has been published of the broken one is overwritten by the next update."""
        skipped, _, rollbacks = self.counts
        self._there = False
        self._say(rollbacks)
        for name, tensor in self._live().items():
            tensor.copy_(self.good[name].reshape(tensor.shape))
        self._counts = RecoveryCounts(skipped, 0, rollbacks + 1)

    def launching(self) -> None:
        """From now on the device counts."""
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
        """After an update that was launched; whether it went back, if that was to be decided.

        Decided in every fifth update: it may be four updates later than `count` would be, and is not if meanwhile one was finite.
        """
        _, failing, rollbacks = self._counts_there.unbind()
        gave_up = None
        if version % LOOK_EVERY == 0:
            gave_up = failing >= self._give_up_after
            for name, tensor in self._live().items():
                torch.where(gave_up, self.good[name].reshape(tensor.shape), tensor, out=tensor)
            failing.mul_(~gave_up)
            rollbacks.add_(gave_up)
        if version % self._good_every == 0:
            learned = failing == 0
            for name, tensor in self._live().items():
                good = self.good[name].reshape(tensor.shape)
                torch.where(learned, tensor, good, out=good)
        return gave_up

    def adopted(self) -> None:
        """The parameters are others now, and have not failed yet. The way back leads to one's own until these have learned, too."""
        self._counts, self._there = self.counts._replace(failing=0), False

    def load_state_dict(self, good: Mapping[str, Tensor], counts: RecoveryCounts) -> None:
        """Go on there."""
        device = self._flat.value.device
        self.good = {name: tensor.to(device, copy=True).contiguous() for name, tensor in good.items()}
        self._counts, self._there = counts, False

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
                self._give_up_after,
                self._good_every + self._give_up_after,
                rollbacks + 1,
            )
