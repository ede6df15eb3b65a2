"""Memories: what a network carries from row to row."""

from typing import Protocol

from torch import Tensor

State = tuple[Tensor, ...]


class Memory(Protocol):
    """From features [T, B, F] to features [T, B, `features`], with a state that `is_first` resets."""

    features: int

    def initial_state(self, batch: int) -> State:
        """The state before an episode's first row."""

    def __call__(self, features: Tensor, is_first: Tensor, state: State) -> tuple[Tensor, State]:
        """Features with the past in them, and the state after the last row."""


class NoMemory:
    """A feed-forward agent: features pass through, the state is empty.

    >>> NoMemory(3).initial_state(5)
    ()
    """

    def __init__(self, features: int) -> None:
        self.features = features

    def initial_state(self, batch: int) -> State:
        """Nothing to remember."""
        return ()

    def __call__(self, features: Tensor, is_first: Tensor, state: State) -> tuple[Tensor, State]:
        """As they come."""
        return features, state
