"""Identical speed: nobody acts who is ahead of the slowest member by more than an unroll, or a few turns."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laser_rl.training.stall import StallWarning

Steps = NDArray[np.int64]


class StepBarrier:
    """Keeps the step counts of all members of a sweep within `max(unroll_steps, (turns + 1) · slots)` of each other.

    Args:
        steps: of every member of the sweep; may be memory that other processes write their own into.
        own: which of them move here.
        unroll_steps: T.
        slots: the most steps that one turn of a member makes.
        turns: that a member may be ahead by. With 0 only the slowest act as soon as a turn is longer than an unroll: right where members
            take turns, but processes would act one at a time, each waiting for the others to learn.

    >>> pace = StepBarrier(np.array([0, 18, 25]), [0, 1, 2], unroll_steps=20, slots=4)
    >>> pace.among([False, False, False])
    [True, False, False]
    """

    def __init__(self, steps: Steps, own: Sequence[int], *, unroll_steps: int, slots: int, turns: int = 0) -> None:
        self.steps, self._own = steps, list(own)
        self._slack = max(0, unroll_steps - slots, turns * slots)
        self._waiting: StallWarning | None = None

    def among(self, done: Sequence[bool]) -> list[bool]:
        """Who of those here may act: not ahead, and not done."""
        own = zip(self._own, done, strict=True)
        return [not ended and self.allows(int(self.steps[number])) for number, ended in own]

    def allows(self, steps: int) -> bool:
        """Whether a member that has done so many steps may act."""
        return steps - int(self.steps.min()) <= self._slack

    def own_steps(self, place: int) -> int:
        """How far a member here has got, as it was last told."""
        return int(self.steps[self._own[place]])

    def move(self, place: int, steps: int) -> None:
        """A member here has got so far."""
        self.steps[self._own[place]] = steps
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.over()

    def wait(self) -> None:
        """Called while everybody here has to wait; says for whom, and gives up in the end."""
        waiting = self._waiting or StallWarning(f"the process of members {self._own}", "another")
        self._waiting, waiting.whom = waiting, f"member {int(self.steps.argmin())}, which is behind"
        waiting.again()
