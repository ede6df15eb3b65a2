"""The actor: rows in, actions out, and the stream of each slot cut into unrolls.

Every slot writes its own unroll at its own pace: rows may come for some slots only, and a slot whose worker died starts its unroll anew.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl.agent.policy import Decision, Seen, restore_generator
from laser_rl.envs.records import Environments, Rows
from laser_rl.types import Array, Episode, UnrollLayout, Unrolls, empty_unrolls

Slots = NDArray[np.int64]


class ActorStep(NamedTuple):
    """What one step of an actor brought."""

    unrolls: Unrolls | None
    episodes: list[Episode]
    moved: Slots  # slots that made a transition; resets are none

    @property
    def steps(self) -> int:
        """Transitions."""
        return len(self.moved)


class Decides(Protocol):
    """A policy of one member, or of several that share an actor."""

    generator: torch.Generator

    def act(self, rows: Seen, slots: Slots) -> Decision:
        """Decide for the newest rows of these slots."""


class FrameStack:
    """The newest frames of each slot, oldest first; frames of an earlier episode are zero."""

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


class Actor:
    """Steps environments with a policy.

    Args:
        environments: not yet reset.
        policy: whose parameters somebody else moves; that somebody also sets `version`.
        layout: of the unrolls.
        member: who writes: one member, or that of each slot.
        stagger: shift the slots against each other, so that unrolls are finished evenly in time instead of all at once. The first
            rows of a shifted slot are not recorded.
    """

    def __init__(
        self,
        environments: Environments,
        policy: Decides,
        layout: UnrollLayout,
        *,
        member: int | Slots = 0,
        stagger: bool = True,
    ) -> None:
        slots = environments.slots
        self.environments, self.policy, self.layout = environments, policy, layout
        self.member = np.broadcast_to(np.asarray(member), slots)
        self.versions = np.zeros(slots, np.int64)  # of the parameters that act in each slot
        self._open = empty_unrolls(layout, slots)
        self._open.member[:] = self.member
        own = slots // len(np.unique(self.member))  # slots of one member
        self._open.slot[:] = np.arange(slots) % own
        self._open.task[:] = [environments.spec.task_of(slot) for slot in self._open.slot.tolist()]
        self._memory = np.zeros((slots, layout.state_size), np.float32)  # before each slot's newest row
        self._shift = np.arange(slots) % own * layout.steps // own * stagger
        self._unrecorded = self._shift.copy()  # rows still to come before the recording starts
        self._cursor = np.zeros(slots, np.int64)  # steps recorded in the open unroll
        self._ended = np.zeros(slots, bool)  # the slot's newest row is the last of its episode
        self._length = np.zeros(slots, np.int64)
        self._return = np.zeros(slots, np.float64)
        self._stack = FrameStack(slots, layout.stack, layout.observation_shape, layout.observation_dtype)
        self._ready: Slots = np.zeros(0, np.int64)  # slots that wait for an action

    @property
    def version(self) -> int:
        """Of the parameters that act, where one member has all slots."""
        return int(self.versions[0])

    @version.setter
    def version(self, version: int) -> None:
        self.versions[:] = version

    def begin(self, *, recorded: bool = False) -> None:
        """Reset all environments; before the first step, unless a state is loaded.

        With `recorded` no first row is left out where there is a memory, for slots that have written into this replay before: an unroll
        that began in the middle of an episode could be taken for the next of the one that was cut off.
        """
        if recorded and self.layout.state_size:
            self._unrecorded[:] = 0
        rows = self.environments.reset()
        self._stack.push(rows)
        self._begin_unrolls(rows)
        self._ended[rows.slots] = False
        self._ready = rows.slots

    def step(self, among: NDArray[np.bool_] | None = None) -> ActorStep:
        """Act in every slot that waits (only `among` these, if given), and record the rows that come."""
        slots = self._ready if among is None else self._ready[among[self._ready]]
        resting = self._ready[:0] if among is None else self._ready[~among[self._ready]]
        at = self._cursor[slots]
        begun = slots[at == 0]
        self._open.version[begun], self._open.state[begun] = self.versions[begun], self._memory[begun]
        decision = self.policy.act(self._seen(slots, at), slots)
        if decision.state is not None:
            self._memory[slots] = decision.state
        # Written at once, so that it is there whenever the slot's row comes; counted only then.
        self._open.action[slots, at] = decision.action
        self._open.behaviour[slots, at] = decision.behaviour
        self._open.is_transition[slots, at] = ~self._ended[slots]
        rows = self.environments.step(slots, decision.environment_action)
        self._stack.push(rows)
        episodes = self._count(rows)
        unrolls = self._record(rows)
        self._ended[rows.slots] = rows.terminated | rows.truncated
        self._ready = rows.slots if among is None else np.concatenate([rows.slots, resting])
        return ActorStep(unrolls, episodes, rows.slots[~rows.is_first])

    def _seen(self, slots: Slots, at: Slots) -> Seen:
        """The newest row of each slot: it is the open unroll's row `at`."""
        recording = self._open
        first = cast("NDArray[np.bool_]", recording.is_first[slots, self.layout.context + at])
        last = recording.last_action[slots, at], recording.last_reward[slots, at]
        return Seen(self._stack.seen(slots), first, *last, self._memory[slots])

    def _record(self, rows: Rows) -> Unrolls | None:
        skipped = rows.restarted | (self._unrecorded[rows.slots] > 0)
        if skipped.any():
            without = _only(rows, skipped)
            self._unrecorded[without.slots] = np.where(without.restarted, 0, self._unrecorded[without.slots] - 1)
            self._begin_unrolls(without)
            rows = _only(rows, ~skipped)
        slots, at = rows.slots, self._cursor[rows.slots]
        recording, first = self._open, rows.is_first
        recording.reward[slots, at] = rows.reward
        recording.terminated[slots, at] = rows.terminated
        recording.truncated[slots, at] = rows.truncated
        recording.lost_life[slots, at] = rows.lost_life
        recording.last_reward[slots, at + 1] = rows.reward
        recording.last_action[slots, at + 1] = self._taken(rows)
        recording.observation[slots, self.layout.context + at + 1] = rows.observation
        recording.is_first[slots, self.layout.context + at + 1] = first
        self._cursor[slots] = at + 1
        full = at + 1 == self.layout.steps
        return self._cut(_only(rows, full)) if full.any() else None

    def _cut(self, rows: Rows) -> Unrolls:
        """Hand out full unrolls; their last input row (and the context before it) is the first of the next ones."""
        slots, steps, kept = rows.slots, self.layout.steps, self.layout.stack
        done = Unrolls(*(field[slots] for field in self._open))
        for name in ("observation", "is_first"):
            field = getattr(self._open, name)
            field[slots, :kept] = field[slots, steps : steps + kept]
        for name in ("last_action", "last_reward"):
            field = getattr(self._open, name)
            field[slots, 0] = field[slots, steps]
        self._open.episode[slots], self._open.seed[slots] = rows.episode, rows.seed
        self._cursor[slots] = 0
        return done

    def _taken(self, rows: Rows) -> Array:
        """The action that led to these rows; none led to an episode's first, or to a row after the stream was broken."""
        action = self._open.action[rows.slots, self._cursor[rows.slots]]
        return np.where(rows.is_first.reshape(-1, *[1] * (action.ndim - 1)), 0, action).astype(action.dtype)

    def _begin_unrolls(self, rows: Rows) -> None:
        """Start anew at these rows; the context is what the stack still holds."""
        slots, context, recording = rows.slots, self.layout.context, self._open
        recording.observation[slots, : context + 1] = self._stack.array[slots]
        recording.is_first[slots, :context] = False  # the stack has been cut already
        recording.is_first[slots, context] = rows.is_first
        recording.last_action[slots, 0] = self._taken(rows)
        recording.last_reward[slots, 0] = rows.reward
        recording.episode[slots], recording.seed[slots] = rows.episode, rows.seed
        self._cursor[slots] = 0

    def _count(self, rows: Rows) -> list[Episode]:
        slots = rows.slots
        self._length[slots] = np.where(rows.is_first, 0, self._length[slots] + 1)
        self._return[slots] = np.where(rows.is_first, 0.0, self._return[slots] + rows.reward)
        ended = slots[rows.terminated | rows.truncated]
        return [Episode(int(s), int(self._length[s]), float(self._return[s])) for s in ended]

    def state_dict(self) -> dict[str, dict[str, Array]]:
        """Open unrolls, stacks, counters, random numbers; and the environments, if they can be saved."""
        own = {f"open/{name}": field.copy() for name, field in self._open._asdict().items()}
        own |= {name: array.copy() for name, array in self._arrays().items()}
        own["generator"] = self.policy.generator.get_state().numpy().copy()
        own["ready"] = self._ready.copy()
        owed = len(self._ready) < self.environments.slots  # a row is on its way: nobody can say where that slot stands
        environments = None if owed else self.environments.state_dict()
        return {"actor": own, "environments": dict(environments or {})}

    def load_state_dict(self, tensors: Mapping[str, Mapping[str, Array]]) -> int:
        """Go on where `state` was taken; returns how many open episodes could not be rebuilt and were lost."""
        own, environments = tensors["actor"], tensors.get("environments", {})
        for name, field in self._open._asdict().items():
            field[...] = own[f"open/{name}"]
        for name, array in self._arrays().items():
            array[...] = own[name]
        restore_generator(self.policy.generator, torch.from_numpy(np.array(own["generator"])))
        rows = self.environments.load_state_dict(environments) if environments else self.environments.reset()
        lost = rows.restarted if environments else np.ones(len(rows.slots), bool)
        self._ready = rows.slots
        if environments:
            self._ready = np.array(own["ready"])
        if lost.any():
            new = _only(rows, lost)
            self._stack.push(new)
            self._begin_unrolls(new)
            self._ended[new.slots], self._length[new.slots], self._return[new.slots] = False, 0, 0.0
            if (
                not self.layout.state_size
            ):  # shifted anew, or all would end their unrolls at once from now on; see `begin` for the others
                self._unrecorded[new.slots] = self._shift[new.slots]
        return int(lost.sum())

    def _arrays(self) -> dict[str, Array]:
        return {
            "unrecorded": self._unrecorded,
            "cursor": self._cursor,
            "ended": self._ended,
            "length": self._length,
            "return": self._return,
            "stack": self._stack.array,
            "memory": self._memory,
        }


def _only(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    return Rows._make(field[chosen] for field in rows)
