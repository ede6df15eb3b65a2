"""What processes of a sweep tell each other: how many steps every member has done, and its newest state.

A member's state has two places. Its owner writes into the one that is not current, then makes it current: whoever reads sees a whole state,
whenever the owner is killed, and the state outlives its owner. The memory has no name: it goes with the last that holds it.
"""

import json
import mmap
import os
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.checkpoint.snapshot import flat, grouped
from laser_rl.envs.block import carve, size_of
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.saving import member_groups, member_numbers

ROOM_FOR_NUMBERS = 1 << 18  # counters, windows of all tasks, settings, evaluation: up to 100 kilobytes
TRIES = 100
PUBLISH_S = 1.0  # so much of a member's learning is lost if its process is killed; with large networks more, see `member_process`


class MemberState(NamedTuple):
    """A member as its owner last published it."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, Any]


class SharedStateStore:
    """Shared by the processes of a sweep.

    Args:
        members: how many the sweep has.
        size: bytes of the largest state.
        handle: of the file of another process's board, to attach to.

    >>> board = SharedStateStore(members=2, size=10)
    >>> board.put(1, b"state")
    >>> SharedStateStore(members=2, size=10, handle=board.handle).get(1), board.get(0)
    (b'state', None)
    """

    def __init__(self, members: int, size: int, handle: int | None = None) -> None:
        self.members, self.size = members, size
        fields = {
            "steps": ((members,), "int64"),
            "ended": ((members,), "int64"),  # 1 once the member's process has done all that was asked of it
            "current": ((members,), "int64"),  # how many states were put; the newest is in place `current % 2`
            "length": ((members, 2), "int64"),
            "checksum": ((members, 2), "int64"),
            "boxes": ((members, 2, size), "uint8"),
        }
        self.handle = os.memfd_create("laser-board") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, size_of(fields))
        arrays: dict[str, NDArray[Any]] = carve(memoryview(mmap.mmap(self.handle, size_of(fields))), fields)
        self.steps, self.ended = arrays["steps"], arrays["ended"]
        self._current, self._length, self._checksum = arrays["current"], arrays["length"], arrays["checksum"]
        self._boxes = arrays["boxes"]

    def put(self, member: int, data: bytes) -> None:
        """Publish; only the member's owner does."""
        if len(data) > self.size:
            raise ValueError(f"a state of {len(data):,} bytes for a board of {self.size:,}; make the board larger")
        place = int(self._current[member] + 1) % 2
        self._boxes[member, place, : len(data)] = np.frombuffer(data, np.uint8)
        self._length[member, place], self._checksum[member, place] = len(data), zlib.crc32(data)
        self._current[member] += 1  # last: until here the old one counts

    def get(self, member: int) -> bytes | None:
        """The newest state, whole; None if there is none yet."""
        for _ in range(TRIES):
            current = int(self._current[member])
            if not current:
                return None
            place = current % 2
            data = self._boxes[member, place, : int(self._length[member, place])].tobytes()
            # Two newer ones while we read would have gone over this one.
            if zlib.crc32(data) == self._checksum[member, place] and int(self._current[member]) - current < 2:  # noqa: PLR2004
                return data
        raise RuntimeError(f"member {member} publishes faster than it can be read; this should not happen")


def published(training: MemberTraining) -> bytes:
    """A member's state for the board: all but its actor and the unrolls that wait for an update."""
    groups = dict(member_groups(training))
    groups["mixer"] = {name: np.asarray(array)[:0] for name, array in groups["mixer"].items()}
    tensors = {
        name: (value if isinstance(value, Tensor) else _tensor(value)).detach().cpu().contiguous()
        for name, value in flat(groups).items()
    }
    return safetensors.torch.save(tensors, metadata={"numbers": json.dumps(member_numbers(training))})


def parsed(data: bytes) -> MemberState:
    """The inverse of `published`."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return MemberState(grouped(safetensors.torch.load(data)), json.loads(header["__metadata__"]["numbers"]))


def packed(tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]) -> bytes:
    """A state from a checkpoint, as `published` would write it."""
    dense = {name: tensor.contiguous() for name, tensor in flat(tensors).items()}
    return safetensors.torch.save(dense, metadata={"numbers": json.dumps(numbers)})


def _tensor(array: Any) -> Tensor:
    import torch  # noqa: PLC0415

    return torch.from_numpy(np.ascontiguousarray(array))
