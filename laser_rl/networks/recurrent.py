"""Memories: what a network carries from row to row.

A state is one tensor [B, S], whatever the cell has inside, so that it can lie in an unroll, in a checkpoint, or beside another member's.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from laser_rl.ops.recurrence import unroll

MemoryName = Literal["none", "lstm", "gru", "preco"]


class Memory(nn.Module):
    """From features [T, B, F] and the last step [T, B, C] to features [T, B, `features`], with a state that `is_first` resets.

    The state is moved by `step` row by row; its first `features` numbers are what the heads see.
    """

    def __init__(self, features: int, state_size: int) -> None:
        super().__init__()
        self.features, self.state_size = features, state_size

    def step(self, row: Tensor, before: Tensor) -> Tensor:
        """The state after a row of features and last step, [B, F + C]."""
        raise NotImplementedError

    def forward(self, features: Tensor, last: Tensor, is_first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Features with the past in them, and the state after each row: the learner carries one from the middle, the actor the last."""
        states = unroll(self.step, torch.cat([features, last], -1), is_first, state)
        return states[..., : self.features], states


class NoMemory(Memory):
    """A feed-forward agent: features pass through, the state is empty."""

    def __init__(self, features: int) -> None:
        super().__init__(features, 0)

    def forward(self, features: Tensor, last: Tensor, is_first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return features, features[..., :0]


class LSTM(Memory):
    """Long short-term memory over features and last step together; the state is h, then c."""

    def __init__(self, features: int, last: int, size: int, span: int = 0) -> None:
        super().__init__(size, 2 * size)
        self.cell = lstm_cell(features + last, size, span)

    def step(self, row: Tensor, before: Tensor) -> Tensor:
        return torch.cat(self.cell(row, before.chunk(2, -1)), -1)


class GRU(Memory):
    """Gated recurrent unit over features and last step together; the state is h."""

    def __init__(self, features: int, last: int, size: int, span: int = 0) -> None:
        super().__init__(size, size)
        self.cell = nn.GRUCell(features + last, size)
        if span:
            with torch.no_grad():  # the gate that keeps the old state, as for the LSTM
                keeps = slice(size, 2 * size)
                self.cell.bias_ih[keeps] = 0.0
                self.cell.bias_hh[keeps] = _lifetimes(size, span)

    def step(self, row: Tensor, before: Tensor) -> Tensor:
        after: Tensor = self.cell(row, before)
        return after


class PreCo(Memory):
    """Predictor and corrector (Amos et al. 2018): one LSTM cell reads the last step and predicts, a second reads what came and corrects.

    Both move one hidden state. The heads, and the next row, see the corrected one.
    """

    def __init__(self, features: int, last: int, size: int, span: int = 0) -> None:
        super().__init__(size, 2 * size)
        self.predictor, self.corrector = lstm_cell(last, size, span), lstm_cell(features, size, span)
        self._split = [features, last]

    def step(self, row: Tensor, before: Tensor) -> Tensor:
        seen, done = torch.split(row, self._split, -1)
        predicted = self.predictor(done, before.chunk(2, -1))
        return torch.cat(self.corrector(seen, predicted), -1)


def state_size(name: MemoryName, size: int) -> int:
    return {"none": 0, "lstm": 2, "gru": 1, "preco": 2}[name] * size


def build_memory(name: MemoryName, features: int, last: int, size: int, span: int = 0) -> Memory:
    """A memory by name; `span` is how many rows its units last at the start, 0: a few."""
    if name == "none":
        return NoMemory(features)
    return {"lstm": LSTM, "gru": GRU, "preco": PreCo}[name](features, last, size, span)


def lstm_cell(inputs: int, size: int, span: int = 0) -> nn.LSTMCell:
    """With biases as TensorFlow's (none, but 1 for forget gates): a memory that begins by forgetting learns nothing to keep.

    With a span the units begin with lifetimes from 1 to `span` rows, after Tallec & Ollivier 2018: gradients reach T rows back, so what is
    to be kept for longer must last that long before anything is learned of it. Their closed input gates are left out.
    """
    cell = nn.LSTMCell(inputs, size)
    with torch.no_grad():
        cell.bias_ih.zero_()
        cell.bias_hh.zero_()
        cell.bias_hh[size : 2 * size] = _lifetimes(size, span) if span else 1.0
    return cell


def _lifetimes(size: int, span: int) -> Tensor:
    """Biases b of gates that keep σ(b) of the state a row: e^b rows, from 1 to `span`."""
    return torch.rand(size).mul(max(1, span - 2)).add(1.0).log()
