"""What crosses the border between environments and agents: what they look like, and rows.

Environments reset on the **next** step: the last observation of an episode is a row of its own, and the step that follows it is no
transition but brings the first row of the next episode (`is_first`). Everything here is NumPy; `envs` never imports torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError


@dataclass(frozen=True)
class ObservationSpec:
    """One observation as it is stored: uint8 [C, H, W] for pictures, float32 of any shape otherwise.

    A picture may carry an instruction: then its last row holds no pixels but the numbers of `words` words (`envs.instructions`).

    >>> ObservationSpec((1, 84, 84), "uint8", scale=1 / 255).is_image
    True
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0  # what a network multiplies it by
    words: int = 0

    @property
    def is_image(self) -> bool:
        """Whether a convolution can read it."""
        return len(self.shape) == 3  # noqa: PLR2004


@dataclass(frozen=True)
class DiscreteActions:
    """One choice among `count`. Agents number them from 0, the environment from `start`."""

    count: int
    start: int = 0


@dataclass(frozen=True)
class MultiDiscreteActions:
    """Several choices at once. Agents number each from 0, the environment from its entry of `starts`; empty: from 0, too."""

    counts: tuple[int, ...]
    starts: tuple[int, ...] = ()


@dataclass(frozen=True)
class BoxActions:
    """Real numbers, flattened; a dimension has two finite bounds or none."""

    low: tuple[float, ...]
    high: tuple[float, ...]


ActionSpec = DiscreteActions | MultiDiscreteActions | BoxActions


@dataclass(frozen=True)
class EnvironmentSpec:
    """What an agent has to know to be built.

    >>> EnvironmentSpec("two", ObservationSpec((4,)), DiscreteActions(2), ("CartPole-v1", "laser/Catch")).task_of(5)
    1
    """

    name: str
    observation: ObservationSpec
    action: ActionSpec
    tasks: tuple[str, ...] = ()  # names, where one set of environments is a mixture of several
    spaces: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)  # as JSON, see `envs.spaces`

    def task_of(self, slot: int) -> int:
        """Which task a slot plays, for good: they take turns."""
        return slot % max(1, len(self.tasks))


class Rows(NamedTuple):
    """One row for each of n slots, in the order of `slots`; a slot appears at most once."""

    slots: NDArray[np.int64]
    observation: NDArray[np.generic]
    is_first: NDArray[np.bool_]  # a reset observation: no transition led here
    reward: NDArray[np.float32]  # of the transition that led here, raw; 0 where is_first
    terminated: NDArray[np.bool_]  # this is the last observation of its episode; nothing can follow
    truncated: NDArray[np.bool_]  # this is the last observation of its episode; something could have followed
    lost_life: NDArray[np.bool_]  # the transition that led here cost a life
    restarted: NDArray[np.bool_]  # the slot's stream was broken before this row: the open unroll is void
    episode: NDArray[np.int64]  # number of the episode within its slot
    seed: NDArray[np.int64]  # what the episode was reset with


class Environments(Protocol):
    """Some slots, each an environment. Rows come back for at least one of the slots that owe one, not always for all."""

    spec: EnvironmentSpec
    slots: int

    def reset(self) -> Rows:
        """Start every slot; called once."""

    def step(self, slots: NDArray[np.int64], action: NDArray[np.generic]) -> Rows:
        """Act in `slots` (none of which owes a row) and return the rows that are there.

        Where the slot's last row ended its episode, the action is ignored and the row is the next episode's first.
        """

    def state_dict(self) -> Mapping[str, NDArray[np.generic]] | None:
        """All that `load_state_dict` needs to go on exactly here; None if these environments cannot do that."""
        return None

    def load_state_dict(self, state: Mapping[str, NDArray[np.generic]]) -> Rows:
        """The current row of every slot; `restarted` where the open episode could not be rebuilt and a new one began."""
        raise ConfigError(
            f"{self.spec.name}: expected environments with a state to restore, got {type(self).__name__} and the state {sorted(state)}; "
            "start it with reset()"
        )

    def counters(self, slots: NDArray[np.int64] | None = None) -> Mapping[str, int]:
        """Faults survived so far, in all slots or in these: restarts, timeouts, errors, dropped episodes."""
        return {}

    def close(self) -> None:
        """End all processes and threads; may be called twice."""


def seed_of(seed: int, slot: NDArray[np.int64], episode: NDArray[np.int64]) -> NDArray[np.int64]:
    """The seed of an episode, a number below 2³¹: an episode is a function of it and of the actions, so it can be rebuilt."""
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(_mix(np.uint64(seed)) ^ slot.astype(np.uint64)) ^ episode.astype(np.uint64))
    return (mixed >> np.uint64(33)).astype(np.int64)


def _mix(value: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves half the bits of the output."""
    value = np.asarray(value + np.uint64(0x9E3779B97F4A7C15))
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
