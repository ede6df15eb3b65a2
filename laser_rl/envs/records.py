"""The interface `Environments`, its specs and `Rows`, the seeds of episodes, and the actions that rebuild open episodes.

Environments reset on the **next** step: the last observation of an episode is a row of its own, and the step that follows it is no
transition but brings the first row of the next episode (`is_first`). Everything here is NumPy; `envs` never imports torch.
"""

import dataclasses
import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError

Array = NDArray[np.generic]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
Fields = Mapping[str, tuple[tuple[int, ...], str]]  # shape and type of arrays by their names
ALIGNMENT = 64  # bytes; a cache line, so that two workers never write to the same one more than they must


@dataclass(frozen=True)
class Part:
    """A picture of a Dict or Tuple, or the vector of all else in it, where the observation is stored as bytes."""

    key: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ObservationSpec:
    """One observation as it is stored: uint8 [C, H, W] for pictures, float32 of any shape otherwise.

    A picture may carry an instruction: then its last row holds the numbers of `words` words (`envs.instructions`). With `parts`
    it is a vector of bytes, those of one part behind those of the other. The last `mask` numbers of a vector say which actions are legal
    (`envs.masks`).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0  # what a network multiplies it by
    words: int = 0
    parts: tuple[Part, ...] = ()
    mask: int = 0

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3  # noqa: PLR2004

    @property
    def pictures(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of all pictures in it."""
        shapes = [part.shape for part in self.parts] or [self.shape]
        return tuple(shape for shape in shapes if len(shape) == 3)  # noqa: PLR2004

    def numbers(self, stored: Array) -> dict[str, Array]:
        """The parts of stored observations [..., n] by their keys, as views and without the mask; "" where there are no parts."""
        found, at = dict[str, Array](), 0
        for part in self.parts:
            found[part.key] = stored[..., at : at + part.nbytes].view(part.dtype)
            at += part.nbytes
        return found or {"": stored[..., : stored.shape[-1] - self.mask]}


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


def action_layout(spec: ActionSpec) -> tuple[tuple[int, ...], str]:
    """Shape and type of one slot's action, as agents send it."""
    if isinstance(spec, DiscreteActions):
        return (), "int64"
    if isinstance(spec, MultiDiscreteActions):
        return (len(spec.counts),), "int64"
    return (len(spec.low),), "float32"


@dataclass(frozen=True)
class EnvironmentSpec:
    """What an agent has to know to be built."""

    name: str
    observation: ObservationSpec
    action: ActionSpec
    tasks: tuple[str, ...] = ()  # names, where one set of environments is a mixture of several
    spaces: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)  # as JSON, see `envs.spaces`

    def task_of(self, slot: int) -> int:
        """Which task a slot plays during the whole run: they take turns."""
        return slot % max(1, len(self.tasks))


def write_spec(spec: EnvironmentSpec) -> bytes:
    return json.dumps({**dataclasses.asdict(spec), "kind": type(spec.action).__name__}).encode()


def read_spec(message: bytes) -> EnvironmentSpec:
    parts = json.loads(message)
    kinds = {kind.__name__: kind for kind in (DiscreteActions, MultiDiscreteActions, BoxActions)}
    for name in ("observation", "action"):  # JSON has no tuples
        parts[name] = {key: tuple(value) if isinstance(value, list) else value for key, value in parts[name].items()}
    each = [Part(**{**part, "shape": tuple(part["shape"])}) for part in parts["observation"].pop("parts", ())]
    observation = ObservationSpec(**parts["observation"], parts=tuple(each))
    action = kinds[parts["kind"]](**parts["action"])
    return EnvironmentSpec(parts["name"], observation, action, tuple(parts["tasks"]), parts.get("spaces"))


class Rows(NamedTuple):
    """One row for each of n slots, in the order of `slots`; a slot appears at most once."""

    slots: Ints
    observation: Array
    is_first: Flags  # a reset observation: no transition led here
    reward: NDArray[np.float32]  # of the transition that led here, raw; 0 where is_first
    terminated: Flags  # this is the last observation of its episode; nothing can follow
    truncated: Flags  # this is the last observation of its episode; something could have followed
    lost_life: Flags  # the transition that led here cost a life
    restarted: Flags  # the slot's stream was broken before this row: the open unroll is void
    episode: Ints  # number of the episode within its slot
    seed: Ints  # what the episode was reset with


class Environments:
    """Some slots, each an environment. Rows come back for at least one of the slots that owe one, not always for all."""

    spec: EnvironmentSpec
    slots: int

    def reset(self) -> Rows:
        """Start every slot; called once."""
        raise NotImplementedError

    def step(self, slots: Ints, action: Array) -> Rows:
        """Act in `slots` (none of which owes a row) and return the rows that are there.

        Where the slot's last row ended its episode, the action is ignored and the row is the next episode's first.
        """
        raise NotImplementedError

    def state_dict(self) -> Mapping[str, Array] | None:
        """All that `load_state_dict` needs to go on exactly here; None if these environments cannot do that."""
        return None

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        """The current row of every slot; `restarted` where the open episode could not be rebuilt and a new one began."""
        raise ConfigError(
            f"{self.spec.name}: expected environments with a state to restore, got {type(self).__name__} and the state {sorted(state)}; "
            "start it with reset()"
        )

    def counters(self, slots: Ints | None = None) -> Mapping[str, int]:
        """Faults survived so far, in all slots or in these: restarts, timeouts, errors, dropped episodes."""
        return {}

    def close(self) -> None:
        """End all processes and threads; may be called twice."""


def check_slots(state: Mapping[str, Array], slots: int) -> None:
    if len(state["episode"]) != slots:
        raise ConfigError(
            f"expected the state of {slots} environment slots, got {len(state['episode'])}; "
            "resume with the number of slots that the run was started with"
        )


def seed_of(seed: int, slot: Ints, episode: Ints) -> Ints:
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


class VectorEpisodes:
    """Numbers, seeds and lives of the episodes of a vector of environments; makes rows of what the vector returns.

    The vector's first slot has the number `first` in all of them.
    """

    def __init__(self, slots: int, seed: int, *, first: int = 0) -> None:
        self._seed, self._first = seed, first
        self.number, self._lives = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self.ended = np.zeros(slots, np.bool_)  # the slot's last row was the last of its episode

    def seeds(self, slots: Ints) -> Ints:
        return seed_of(self._seed, self._first + slots, self.number[slots])

    def begin(self, slots: Ints, observation: Array, lives: Any = None) -> Rows:
        """First rows; the caller has counted the episodes."""
        none = np.zeros(slots.size, np.bool_)
        self.ended[slots] = False
        self._lose_lives(slots, lives)
        reward, whose = np.zeros(slots.size, np.float32), (self.number[slots], self.seeds(slots))
        return Rows(slots, observation, ~none, reward, none, none.copy(), none.copy(), none.copy(), *whose)

    def advance(
        self, slots: Ints, observation: Array, reward: Array, terminated: Flags, truncated: Flags, lives: Any
    ) -> Rows:
        """Rows of a step; first rows where the last one ended an episode (Gymnasium's NEXT_STEP)."""
        first = self.ended[slots]
        self.number[slots] += first
        terminated, truncated = terminated & ~first, truncated & ~terminated & ~first
        lost = self._lose_lives(slots, lives) & ~first
        self.ended[slots] = terminated | truncated
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes Inf
            raw = np.where(first, 0.0, reward).astype(np.float32)
        whose = self.number[slots], self.seeds(slots)
        return Rows(slots, observation, first, raw, terminated, truncated, lost, np.zeros_like(first), *whose)

    def _lose_lives(self, slots: Ints, lives: Any) -> Flags:
        if lives is None:
            return np.zeros(slots.size, np.bool_)
        lost: Flags = np.asarray(lives) < self._lives[slots]
        self._lives[slots] = lives
        return lost


class RowBlock(NamedTuple):
    """The newest row of every slot, in ordinary or in shared memory; the worker that steps slot i writes at index i."""

    rows: Rows
    digest: Ints  # of all rows of the episode so far

    def take(self, slots: Ints) -> Rows:
        # For rows of several numbers `take` takes a fifth of the time of an index, for single numbers twice as long.
        return Rows(slots, self.rows.observation.take(slots, 0), *(field[slots] for field in self.rows[2:]))  # type: ignore[arg-type]


def block_fields(observation: ObservationSpec, slots: int) -> Fields:
    dtypes = {"reward": "float32", **dict.fromkeys(("slots", "episode", "seed", "digest"), "int64")}
    fields = {name: ((slots,), dtypes.get(name, "bool")) for name in (*Rows._fields, "digest")}
    return {**fields, "observation": ((slots, *observation.shape), observation.dtype)}


def block_over(arrays: Mapping[str, Array]) -> RowBlock:
    rows = Rows(*(arrays[name] for name in Rows._fields))  # type: ignore[arg-type]
    return RowBlock(rows, cast("Ints", arrays["digest"]))


def empty_block(observation: ObservationSpec, slots: int) -> RowBlock:
    fields = block_fields(observation, slots)
    return block_over({name: np.zeros(shape, dtype) for name, (shape, dtype) in fields.items()})


def size_of(fields: Fields) -> int:
    return sum(_aligned(shape, dtype) for shape, dtype in fields.values())


def shared_arrays(
    name: str, fields: Fields, handle: int | None = None
) -> tuple[int, mmap.mmap, dict[str, NDArray[Any]]]:
    """Arrays in a file without a name, or in another process's: its descriptor, memory and arrays. It goes with the last that has it."""
    file, size = os.memfd_create(name) if handle is None else handle, size_of(fields)
    if os.fstat(file).st_size < size:  # never shrinks what another process has mapped
        os.ftruncate(file, size)
    memory = mmap.mmap(file, size)
    return file, memory, carve(memoryview(memory), fields)


def carve(buffer: memoryview | bytearray, fields: Fields) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for name, (shape, dtype) in fields.items():
        arrays[name] = np.ndarray(shape, dtype, buffer=buffer, offset=offset)
        offset += _aligned(shape, dtype)
    return arrays


def _aligned(shape: tuple[int, ...], dtype: str) -> int:
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT


class ActionHistory:
    """The actions of every slot's open episode. With its seed they make the episode again; the digest says whether they did."""

    def __init__(self, slots: int, action: ActionSpec) -> None:
        self._shape, self.dtype = action_layout(action)
        self._width = np.dtype(self.dtype).itemsize * math.prod(self._shape)
        self._actions = [bytearray() for _ in range(slots)]
        self._episode, self._digest = np.full(slots, -1, np.int64), np.zeros(slots, np.int64)

    def note(self, rows: Rows, action: Array | None, digest: Ints) -> None:
        """Take in rows and the actions that led to them; `action` None: rows of `load_state_dict`, whose actions are known."""
        data, width = b"" if action is None else action.tobytes(), self._width
        for index, (slot, first) in enumerate(zip(rows.slots.tolist(), rows.is_first.tolist(), strict=True)):
            if first:
                self._actions[slot].clear()
            else:
                self._actions[slot] += data[index * width : (index + 1) * width]
        self._episode[rows.slots], self._digest[rows.slots] = rows.episode, digest

    def state_dict(self) -> dict[str, Array]:
        """Flat arrays, one entry a slot; `actions` of all slots one after the other."""
        joined = np.frombuffer(b"".join(self._actions), self.dtype).reshape(-1, *self._shape)
        lengths = np.array([len(actions) // self._width for actions in self._actions], np.int64)
        digest = self._digest.copy()
        return {"episode": self._episode.copy(), "digest": digest, "length": lengths, "actions": joined.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> list[Array]:
        """Take over a state; returns each slot's actions."""
        check_slots(state, len(self._actions))
        actions = np.ascontiguousarray(state["actions"], dtype=self.dtype).reshape(-1, *self._shape)
        parts = np.split(actions, np.cumsum(state["length"])[:-1])
        self._actions = [bytearray(part.tobytes()) for part in parts]
        self._episode, self._digest = np.array(state["episode"], np.int64), np.array(state["digest"], np.int64)
        return parts
