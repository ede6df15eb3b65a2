"""From a learner to whoever acts with its parameters, in one process."""

import threading
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from laser_rl.gpu_streams import Handover
from laser_rl.training.busy import UNDER_WAY


@dataclass
class _Copy:
    """Parameters that were published."""

    parameters: Tensor
    version: int
    handover: Handover


class ThreadMailbox:
    """The newest parameters, behind a lock.

    A learner publishes when an update has been launched, which a GPU may do two updates later. An actor whose stream waited for that
    would act once an update. So several copies go round, and the actor takes the newest that is there already.

    `collect` writes into memory that stays where it is, which is what a captured graph reads.
    """

    def __init__(self, parameters: Tensor, version: int) -> None:
        self._lock, self._version = threading.Lock(), version
        # Those under way, one that is there, and the one that is written next.
        copies = UNDER_WAY + 2 if parameters.device.type == "cuda" else 1
        self._copies = deque(
            _Copy(torch.empty_like(parameters, requires_grad=False), version - 1, Handover(parameters.device))
            for _ in range(copies)
        )
        self.publish(parameters, version)
        # The first ones are there from the beginning: an actor that goes on with a run must not act with others before.
        self._copies[-1].handover.await_written("the actor", "the parameters to begin with")

    def publish(self, parameters: Tensor, version: int) -> None:
        """Replace the oldest."""
        with self._lock, torch.no_grad():
            copy = self._copies.popleft()
            with copy.handover.write():
                copy.parameters.copy_(parameters)
            copy.version = self._version = version
            self._copies.append(copy)

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy the newest that is there, if it is newer."""
        if self._version <= newer_than:  # a stale look costs one step with older parameters
            return newer_than
        with self._lock, torch.no_grad():
            for copy in reversed(self._copies):
                if copy.version <= newer_than:
                    break
                if copy.handover.written():
                    with copy.handover.read():
                        into.copy_(copy.parameters)
                    return copy.version
        return newer_than
