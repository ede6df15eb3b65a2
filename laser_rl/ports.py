"""The four seams between the core and what carries it: threads here, other machines elsewhere."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.types import Batch, Episode, Unrolls


class Delivery(NamedTuple):
    """What an actor hands over at once."""

    unrolls: Unrolls
    episodes: list[Episode]
    steps: int


class UnrollOutbox(Protocol):
    """The actor's end of an inbox."""

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        """False if there was no room in time; the actor keeps what it has and asks again."""


class UnrollInbox(UnrollOutbox, Protocol):
    """From actors to the learner: bounded, first in first out."""

    def take(self, timeout_s: float) -> Delivery | None:
        """None if nothing came in time."""


class ReplayStore(Protocol):
    """What holds everybody's unrolls."""

    def insert(self, unrolls: Unrolls) -> NDArray[np.int64]:
        """Ids of the new ones; the oldest leave."""

    def sample_into(
        self, count: int, random: np.random.Generator, batch: Batch, first_column: int
    ) -> NDArray[np.int64]:
        """Uniform draws with replacement, gathered into columns of a batch; returns their ids."""


class ParameterMailbox(Protocol):
    """From the learner to its actors: only the newest counts."""

    def publish(self, parameters: Tensor, version: int) -> None:
        """Replace what is there."""

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy into `into` if there is a newer version; returns the version that is now there."""


class StopSignal(Protocol):
    """One way to end everything."""

    def request(self, reason: str) -> None:
        """The first reason stays."""

    @property
    def reason(self) -> str | None:
        """None while the run goes on."""
