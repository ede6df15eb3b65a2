"""Frame stacks while acting; the replay rebuilds the same ones when it gathers."""

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.records import Rows
from laser_rl.types import Array


class FrameStack:
    """The newest frames of each slot, oldest first; frames of an earlier episode are zero.

    >>> stack = FrameStack(slots=1, frames=2, shape=(1, 1, 1), dtype="uint8")
    >>> stack.array.shape
    (1, 2, 1, 1, 1)
    """

    def __init__(self, slots: int, frames: int, shape: tuple[int, ...], dtype: str) -> None:
        self.frames = frames
        self.array: Array = np.zeros((slots, frames, *shape), dtype)

    def push(self, rows: Rows) -> None:
        """One more frame in each slot that has a row."""
        slots = rows.slots
        if self.frames > 1:
            self.array[slots, :-1] = self.array[slots, 1:]
            self.array[slots[rows.is_first], :-1] = 0
        self.array[slots, -1] = rows.observation

    def seen(self, slots: NDArray[np.int64]) -> Array:
        """What the network sees: [n, frames · C, H, W] for pictures, the observation itself if there is no stack."""
        stacked = self.array[slots]
        if self.frames == 1:
            return stacked[:, 0]
        return stacked.reshape(len(stacked), -1, *stacked.shape[3:])


def follow(frames: Array, frame: Array) -> tuple[Array, Array]:
    """One more frame of a single episode: the newest frames, and what the network sees of them, [1, ...].

    >>> frames, seen = follow(np.zeros((2, 1, 1, 1)), np.ones((1, 1, 1)))
    >>> frames.ravel().tolist(), seen.shape
    ([0.0, 1.0], (1, 2, 1, 1))
    """
    frames = np.concatenate([frames[1:], frame[np.newaxis].astype(frames.dtype)])
    return frames, frames.reshape(1, -1, *frame.shape[1:]) if len(frames) > 1 else frames
