"""Python environments stepped one after the other in the thread that asks: the specification of the pool."""

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.block import ActionHistory, RowBlock, fresh_block
from laser_rl.envs.border import Env
from laser_rl.envs.records import Environments, Rows
from laser_rl.envs.slot import COUNTERS, EXITS, OnBadValue, Slot, exit_of
from laser_rl.envs.spaces import action_layout

Array = NDArray[np.generic]
LOGGER = logging.getLogger("laser_rl.envs")
MOST_REPORTS = 100


class ErrorLog:
    """Logs each distinct error once: by its traceback, not by what its message says of the moment.

    Members of a sweep have environments of their own, but one such log: what one of them has said, none of the others says again.
    """

    _open: ClassVar[weakref.WeakValueDictionary[str, set[str]]] = weakref.WeakValueDictionary()

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen = self._open.setdefault(name, set())

    def close(self) -> None:
        """Environments of the same name that are opened after all of these are closed log their errors again."""
        self._seen = set()

    def report(self, text: str) -> None:
        """Log a traceback unless its like was logged before."""
        *frames, last = text.strip().splitlines()
        key = "\n".join([*frames, last.split(":", maxsplit=1)[0]])
        if key not in self._seen and len(self._seen) < MOST_REPORTS:
            self._seen.add(key)
            LOGGER.warning("%s raised; its episode is dropped and a new copy made (logged once):\n%s", self._name, text)


class SlotEnvironments(Environments):
    """What `SerialEnvironments` and the pool have in common: copies of a Python environment, each in a `Slot`."""

    _block: RowBlock
    _history: ActionHistory
    _counts: NDArray[np.int64]
    _log: ErrorLog

    def state_dict(self) -> Mapping[str, Array]:
        """Seeds are known: the numbers of the open episodes, their actions and a digest of their observations.

        They are as of the last row that was handed out of each slot; actions under way are not part of it.
        """
        return self._history.state_dict()

    def counters(self, slots: NDArray[np.int64] | None = None) -> Mapping[str, int]:
        """Faults survived so far, in all slots or in these; those of a whole worker count in its first slot."""
        counts = self._counts if slots is None else self._counts[slots]
        return dict(zip(COUNTERS, counts.sum(0).tolist(), strict=True))


class SerialEnvironments(SlotEnvironments):
    """`slots` copies of a Python environment, in this thread."""

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        slots: int,
        seed: int,
        name: str = "environment",
        on_bad_value: OnBadValue = "fail",
    ) -> None:
        self.slots = slots
        self._counts = np.zeros((slots, len(COUNTERS)), np.int64)
        self._log = ErrorLog(name)
        self._members = [
            Slot(
                make,
                name=name,
                slot=index,
                seed=seed,
                counts=self._counts[index],
                on_bad_value=on_bad_value,
                report=self._log.report,
            )
            for index in range(slots)
        ]
        self.spec = self._members[0].spec
        self._block = fresh_block(self.spec.observation, slots)
        for index, member in enumerate(self._members):
            member.bind(self._block, index)
        shape, dtype = action_layout(self.spec.action)
        self._no_action = np.zeros((slots, *shape), dtype)
        self._history = ActionHistory(slots, shape, dtype)

    def reset(self) -> Rows:
        """Start every slot."""
        return self.step(np.arange(self.slots), self._no_action)

    def step(self, slots: NDArray[np.int64], action: Array) -> Rows:
        """One row for each of `slots`."""
        members = self._members
        try:
            for slot, chosen in zip(slots.tolist(), action, strict=True):
                members[slot].advance(chosen)
        except EXITS as error:
            raise exit_of(error, self.spec.name) from None
        rows = self._block.take(slots)
        self._history.note(rows, action.astype(self._no_action.dtype, copy=False), self._block.digest[slots])
        return rows

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        """Play the open episodes again."""
        episodes: list[Any] = state["episode"].tolist()
        digests: list[Any] = state["digest"].tolist()
        try:
            for member, *episode in zip(self._members, episodes, self._history.load_state_dict(state), digests, strict=True):
                member.rebuild(*episode)
        except EXITS as error:
            raise exit_of(error, self.spec.name) from None
        rows = self._block.take(np.arange(self.slots))
        self._history.renew(rows, self._block.digest)
        return rows

    def close(self) -> None:
        """Close every environment."""
        self._log.close()
        for member in self._members:
            member.close()
