"""Rows of many slots as one set of arrays, in ordinary or in shared memory; and what is kept of an open episode to rebuild it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.records import ObservationSpec, Rows
from laser_rl.errors import ConfigError

Array = NDArray[np.generic]
ALIGNMENT = 64  # bytes; a cache line, so that two workers never write to the same one more than they must


class RowBlock(NamedTuple):
    """The newest row of every slot; the worker that steps slot i writes at index i."""

    observation: Array
    is_first: NDArray[np.bool_]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    lost_life: NDArray[np.bool_]
    restarted: NDArray[np.bool_]
    episode: NDArray[np.int64]
    seed: NDArray[np.int64]
    digest: NDArray[np.int64]  # of all rows of the episode so far

    def take(self, slots: NDArray[np.int64]) -> Rows:
        """A copy of the rows of `slots`."""
        return Rows(slots, *(field[slots] for field in self[:-1]))  # type: ignore[arg-type]  # the same fields in the same order


def block_fields(observation: ObservationSpec, slots: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each array of a block."""
    flags = ("is_first", "terminated", "truncated", "lost_life", "restarted")
    return {
        "observation": ((slots, *observation.shape), observation.dtype),
        "reward": ((slots,), "float32"),
        **dict.fromkeys(flags, ((slots,), "bool")),
        **dict.fromkeys(("episode", "seed", "digest"), ((slots,), "int64")),
    }


def size_of(fields: Mapping[str, tuple[tuple[int, ...], str]]) -> int:
    """Bytes that `carve` needs."""
    return sum(_aligned(shape, dtype) for shape, dtype in fields.values())


def carve(buffer: memoryview | bytearray, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
    """Arrays over `buffer`, one after the other."""
    arrays: dict[str, Array] = {}
    offset = 0
    for name, (shape, dtype) in fields.items():
        arrays[name] = np.ndarray(shape, dtype, buffer=buffer, offset=offset)
        offset += _aligned(shape, dtype)
    return arrays


def fresh_block(observation: ObservationSpec, slots: int) -> RowBlock:
    """A block in ordinary memory."""
    fields = block_fields(observation, slots)
    return RowBlock(**carve(bytearray(size_of(fields)), fields))  # type: ignore[arg-type]


def _aligned(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT


class ActionHistory:
    """The actions of every slot's open episode. With its seed they make the episode again; the digest says whether they did."""

    def __init__(self, slots: int, action_shape: tuple[int, ...], action_dtype: str) -> None:
        self._actions = [bytearray() for _ in range(slots)]
        self._shape, self._dtype = action_shape, action_dtype
        self._episode = np.full(slots, -1, np.int64)
        self._digest = np.zeros(slots, np.int64)

    def note(self, rows: Rows, action: Array, digest: NDArray[np.int64]) -> None:
        """Rows that were handed out, and the actions that led to them."""
        width = action.dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
        data = action.tobytes()
        for index, (slot, first) in enumerate(zip(rows.slots.tolist(), rows.is_first.tolist(), strict=True)):
            if first:
                self._actions[slot].clear()
            else:
                self._actions[slot] += data[index * width : (index + 1) * width]
        self._episode[rows.slots] = rows.episode
        self._digest[rows.slots] = digest

    def renew(self, rows: Rows, digest: NDArray[np.int64]) -> None:
        """After `load_state_dict`: the rows that every slot stands at now; forgets the actions of episodes that could not be rebuilt."""
        for slot in np.flatnonzero(rows.is_first).tolist():
            self._actions[slot].clear()
        self._episode[:], self._digest[:] = rows.episode, digest

    def state_dict(self) -> dict[str, Array]:
        """Flat arrays, one entry a slot; `actions` of all slots one after the other."""
        joined = np.frombuffer(b"".join(self._actions), self._dtype).reshape(-1, *self._shape)
        width = np.dtype(self._dtype).itemsize * int(np.prod(self._shape, dtype=np.int64))
        return {
            "episode": self._episode.copy(),
            "digest": self._digest.copy(),
            "length": np.array([len(actions) // width for actions in self._actions], np.int64),
            "actions": joined.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> list[Array]:
        """Take over a state; returns each slot's actions."""
        if len(state["episode"]) != len(self._actions):
            raise ConfigError(
                f"expected the state of {len(self._actions)} environment slots, got {len(state['episode'])}; "
                "resume with the number of slots that the run was started with"
            )
        actions = np.ascontiguousarray(state["actions"], dtype=self._dtype).reshape(-1, *self._shape)
        parts = np.split(actions, np.cumsum(state["length"])[:-1])
        self._actions = [bytearray(part.tobytes()) for part in parts]
        self._episode = np.array(state["episode"], np.int64)
        self._digest = np.array(state["digest"], np.int64)
        return parts
