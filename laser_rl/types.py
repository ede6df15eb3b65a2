"""The records that travel between the layers, and the protocols between actor and learner: inbox, mailbox and stop signal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor  # a name in annotations: `laser verify` begins without torch

Array = NDArray[np.generic]


@dataclass(frozen=True)
class UnrollLayout:
    """Shapes and types of one unroll.

    `context` rows stand before the T+1 input rows: what a stack of frames needs of the past. Observations are single frames.
    """

    steps: int
    context: int
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    parameter_size: int
    state_size: int = 0  # of the memory of one environment; 0 for a feed-forward agent

    @property
    def stack(self) -> int:
        """How many frames the network sees at once."""
        return self.context + 1

    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of each field of `Unrolls`, without the leading dimension."""
        inputs, rows = self.steps + 1, self.context + self.steps + 1
        flags = dict.fromkeys(("terminated", "truncated", "lost_life", "is_transition"), ((self.steps,), "bool"))
        return {
            "observation": ((rows, *self.observation_shape), self.observation_dtype), "is_first": ((rows,), "bool"),
            "last_action": ((inputs, *self.action_shape), self.action_dtype), "last_reward": ((inputs,), "float32"),
            "action": ((self.steps, *self.action_shape), self.action_dtype), "reward": ((self.steps,), "float32"),
            **flags, "behaviour": ((self.steps, self.parameter_size), "float32"), "member": ((), "int32"),
            "slot": ((), "int32"), "task": ((), "int32"), "episode": ((), "int64"), "seed": ((), "int64"),
            "version": ((), "int64"), "state": ((self.state_size,), "float32")
        }  # fmt: skip


class Unrolls(NamedTuple):
    """n unrolls, unroll-major: every array has a leading n. Row t of an outcome answers row t of the inputs (docs/glossary.md)."""

    observation: Array  # [n, context + T+1, ...]
    is_first: Array  # [n, context + T+1]
    last_action: Array  # [n, T+1, ...]
    last_reward: Array  # [n, T+1], raw
    action: Array  # [n, T, ...], as stored by the policy's family
    reward: Array  # [n, T], raw
    terminated: Array  # [n, T]
    truncated: Array
    lost_life: Array
    is_transition: Array  # False on the step that follows an episode's last row
    behaviour: Array  # [n, T, P]
    member: Array  # [n]
    slot: Array  # index of the environment among those of its member
    task: Array  # which task of the mixture that environment plays
    episode: Array  # number of the episode of input row 0 within its environment
    seed: Array  # of that episode
    version: Array  # of the parameters that acted at row 0
    state: Array  # [n, S], the actor's memory before row 0


def empty_unrolls(layout: UnrollLayout, count: int) -> Unrolls:
    """Fresh zeroed arrays for `count` unrolls."""
    return Unrolls(**{name: np.zeros((count, *shape), dtype) for name, (shape, dtype) in layout.fields().items()})


class Inputs(NamedTuple):
    """What a network reads of some rows, time-major."""

    observation: "Tensor"  # [T, B, ...]
    is_first: "Tensor"  # [T, B]
    last_action: "Tensor"  # [T, B, ...], as stored by the policy's family; 0 on a first row
    last_reward: "Tensor"  # [T, B], raw


class Batch(NamedTuple):
    """B unrolls, time-major, as the learner reads them. The first columns are the online ones."""

    observation: "Tensor"  # [T+1, B, ...]; pictures are stacked: [T+1, B, stack · C, H, W], oldest frame first
    is_first: "Tensor"  # [T+1, B]
    last_action: "Tensor"
    last_reward: "Tensor"
    action: "Tensor"  # [T, B, ...]
    reward: "Tensor"
    terminated: "Tensor"
    truncated: "Tensor"
    lost_life: "Tensor"
    is_transition: "Tensor"
    behaviour: "Tensor"  # [T, B, P]
    member: "Tensor"  # [B]
    slot: "Tensor"
    task: "Tensor"
    episode: "Tensor"
    seed: "Tensor"
    version: "Tensor"
    state: "Tensor"  # [B, S]: the memory before row 0, where the column is not `carried`
    online: "Tensor"  # [B]: the member's own newest, not drawn from replay
    carried: "Tensor"  # [B]: goes on where this column of the batch before ended; the learner has the state
    weight: "Tensor"  # [B]: of the column's losses; 1 but for prioritised draws
    id: "Tensor"  # [B]: of the unroll in the replay; -1 if online

    @property
    def inputs(self) -> "Inputs":
        """What the network reads."""
        return Inputs(self.observation, self.is_first, self.last_action, self.last_reward)


class Episode(NamedTuple):
    """A finished episode, as reported."""

    slot: int
    length: int
    raw_return: float


class Delivery(NamedTuple):
    """What an actor hands over at once."""

    unrolls: Unrolls
    episodes: list[Episode]
    steps: int


class UnrollOutbox(Protocol):
    """The actor's end of an inbox."""

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        """False if there was no room in time; the actor keeps what it has and asks again."""


class ParameterMailbox(Protocol):
    """Where an actor finds its learner's parameters: only the newest count."""

    def collect(self, into: "Tensor", newer_than: int) -> int:
        """Copy into `into` if there is a newer version; returns the version that is now there."""


class StopSignal(Protocol):
    """Tells a loop to end."""

    @property
    def reason(self) -> str | None:
        """None while the run goes on."""
