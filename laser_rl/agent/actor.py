"""The actor: rows in, actions out, and the stream of each environment cut into unrolls.

Every environment fills its own unroll at its own pace: a step may bring rows of some environments only, and an environment whose worker
died starts its unroll anew. In arrays an environment is its index, `env`.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl.agent.policy import Decision, Seen, channels, restore_generator
from laser_rl.envs.records import Environments, Rows
from laser_rl.types import Array, Episode, UnrollLayout, Unrolls, empty_unrolls

Envs = NDArray[np.int64]


class ActorStep(NamedTuple):
    """What one step of an actor brought."""

    unrolls: Unrolls | None
    episodes: list[Episode]
    moved: Envs  # environments that made a transition; resets are none

    @property
    def steps(self) -> int:
        return len(self.moved)


class Decides(Protocol):
    """A policy of one member, or of several that share an actor."""

    generator: torch.Generator

    def act(self, rows: Seen, envs: Envs) -> Decision:
        """Decide for the newest rows of these environments."""


class Actor:
    """Steps environments, not yet reset, with a policy; `member` is the one that acts, or that of each environment.

    The caller moves the policy's parameters and sets `version`. The environments are shifted against each other, so that unrolls are
    finished evenly in time instead of all at once: the first rows of a shifted environment are not recorded.
    """

    def __init__(
        self, environments: Environments, policy: Decides, layout: UnrollLayout, *, member: int | Envs = 0
    ) -> None:
        count = environments.slots
        self.environments, self.policy, self.layout = environments, policy, layout
        self.member = np.broadcast_to(np.asarray(member), count)
        self.versions = np.zeros(count, np.int64)  # of the parameters that act in each environment
        self._open = empty_unrolls(layout, count)
        self._open.member[:] = self.member
        own = count // len(np.unique(self.member))  # environments of one member
        self._open.slot[:] = np.arange(count) % own
        self._open.task[:] = [environments.spec.task_of(env) for env in self._open.slot.tolist()]
        # Views of the same memory without the dimension of environments: to index by two arrays takes ten times as long as by one.
        self._flat = Unrolls(*(field.reshape(-1, *field.shape[2:]) for field in self._open))
        self._outcomes = np.arange(count) * layout.steps  # an environment's first place there
        self._memory = np.zeros((count, layout.state_size), np.float32)  # before each environment's newest row
        self._shift = np.arange(count) % own * layout.steps // own
        self._unrecorded = self._shift.copy()  # rows still to come before the recording starts
        self._cursor = np.zeros(count, np.int64)  # steps recorded in the open unroll
        self._ended = np.zeros(count, bool)  # the environment's newest row is the last of its episode
        self._length = np.zeros(count, np.int64)
        self._return = np.zeros(count, np.float64)
        # The newest frames of each environment, oldest first; those of an earlier episode are zero.
        self._stack: Array = np.zeros((count, layout.stack, *layout.observation_shape), layout.observation_dtype)
        self._ready: Envs = np.zeros(0, np.int64)  # environments that wait for an action

    @property
    def version(self) -> int:
        """Version of the parameters that act, where one member has all environments."""
        return int(self.versions[0])

    @version.setter
    def version(self, version: int) -> None:
        self.versions[:] = version

    def begin(self, *, recorded: bool = False) -> None:
        """Reset all environments; before the first step, unless a state is loaded.

        `recorded`: these environments have written into this replay before. Then, with a memory, no first row is left out: an unroll that
        began in the middle of an episode could be taken for the continuation of the one that was cut off.
        """
        if recorded and self.layout.state_size:
            self._unrecorded[:] = 0
        rows = self.environments.reset()
        self._push(rows)
        self._begin_unrolls(rows)
        self._ended[rows.slots] = False
        self._ready = rows.slots

    def step(self, among: NDArray[np.bool_] | None = None) -> ActorStep:
        """Act in every environment that waits (only `among` these, if given), and record the rows that come."""
        envs = self._ready if among is None else self._ready[among[self._ready]]
        resting = self._ready[:0] if among is None else self._ready[~among[self._ready]]
        at = self._cursor[envs]
        place, begun = self._outcomes[envs] + at, envs[at == 0]
        if len(begun):
            self._open.version[begun], self._open.state[begun] = self.versions[begun], self._memory[begun]
        decision = self.policy.act(self._seen(envs, at), envs)
        if decision.state is not None:
            self._memory[envs] = decision.state
        # Written at once, so that it is there whenever the environment's row comes; counted only then.
        self._flat.action[place] = decision.action
        self._flat.behaviour[place] = decision.behaviour
        self._flat.is_transition[place] = ~self._ended[envs]
        rows = self.environments.step(envs, decision.environment_action)
        self._push(rows)
        episodes = self._count(rows)
        unrolls = self._record(rows)
        self._ready = rows.slots if among is None else np.concatenate([rows.slots, resting])
        return ActorStep(unrolls, episodes, rows.slots[~rows.is_first])

    def _seen(self, envs: Envs, at: Envs) -> Seen:
        """The newest row of each environment: it is the open unroll's row `at`."""
        recording, seen = self._open, channels(self._stack.take(envs, 0))
        if not self.layout.state_size:
            return Seen(seen)
        first = cast("NDArray[np.bool_]", recording.is_first[envs, self.layout.context + at])
        last = recording.last_action[envs, at], recording.last_reward[envs, at]
        return Seen(seen, first, *last, self._memory[envs])

    def _push(self, rows: Rows) -> None:
        if self.layout.stack > 1:
            self._stack[rows.slots, :-1] = self._stack[rows.slots, 1:]
            self._stack[rows.slots[rows.is_first], :-1] = 0
        self._stack[rows.slots, -1] = rows.observation

    def _record(self, rows: Rows) -> Unrolls | None:
        skipped = rows.restarted | (self._unrecorded[rows.slots] > 0)
        if np.count_nonzero(skipped):  # `any` takes four times as long
            without = _only(rows, skipped)
            self._unrecorded[without.slots] = np.where(without.restarted, 0, self._unrecorded[without.slots] - 1)
            self._begin_unrolls(without)
            rows = _only(rows, ~skipped)
        envs, flat, after = rows.slots, self._flat, self._cursor[rows.slots] + 1
        place = self._outcomes[envs] + after - 1
        longer = envs + 1  # each unroll so far has a row of inputs more than of outcomes, and `stack` more frames
        inputs, frame = place + longer, place + longer * self.layout.stack
        for name in ("reward", "terminated", "truncated", "lost_life"):
            getattr(flat, name)[place] = getattr(rows, name)
        flat.last_reward[inputs] = rows.reward
        flat.last_action[inputs] = self._taken(rows)
        flat.observation[frame], flat.is_first[frame] = rows.observation, rows.is_first
        self._cursor[envs] = after
        full = after == self.layout.steps
        return self._cut(_only(rows, full)) if np.count_nonzero(full) else None

    def _cut(self, rows: Rows) -> Unrolls:
        """Hand out full unrolls; their last input row (and the context before it) is the first of the next ones."""
        envs, steps, kept = rows.slots, self.layout.steps, self.layout.stack
        done = Unrolls(*(field.take(envs, 0) for field in self._open))
        for field in (self._open.observation, self._open.is_first):
            field[envs, :kept] = field[envs, steps : steps + kept]
        for field in (self._open.last_action, self._open.last_reward):
            field[envs, 0] = field[envs, steps]
        self._open.episode[envs], self._open.seed[envs] = rows.episode, rows.seed
        self._cursor[envs] = 0
        return done

    def _taken(self, rows: Rows) -> Array:
        """The action that led to these rows; none led to an episode's first, or to a row after the stream was broken."""
        action: Array = self._flat.action[self._outcomes[rows.slots] + self._cursor[rows.slots]]
        action[rows.is_first] = 0
        return action

    def _begin_unrolls(self, rows: Rows) -> None:
        """Start anew at these rows; the context is what the stack still holds."""
        envs, context, recording = rows.slots, self.layout.context, self._open
        recording.observation[envs, : context + 1] = self._stack[envs]
        recording.is_first[envs, :context] = False  # the stack has been cut already
        recording.is_first[envs, context] = rows.is_first
        recording.last_action[envs, 0] = self._taken(rows)
        recording.last_reward[envs, 0] = rows.reward
        recording.episode[envs], recording.seed[envs] = rows.episode, rows.seed
        self._cursor[envs] = 0

    def _count(self, rows: Rows) -> list[Episode]:
        envs, first = rows.slots, rows.slots[rows.is_first]
        self._length[envs] += 1
        self._return[envs] += rows.reward
        if len(first):
            self._length[first], self._return[first] = 0, 0.0
        self._ended[envs] = ended = rows.terminated | rows.truncated
        return [Episode(int(s), int(self._length[s]), float(self._return[s])) for s in envs[ended]]

    def state_dict(self) -> dict[str, dict[str, Array]]:
        """Open unrolls, stacks, counters, random numbers; and the environments, if they can be saved."""
        own = {f"open/{name}": field.copy() for name, field in self._open._asdict().items()}
        own |= {name: array.copy() for name, array in self._arrays().items()}
        own["generator"] = self.policy.generator.get_state().numpy().copy()
        own["ready"] = self._ready.copy()
        owed = len(self._ready) < self.environments.slots  # a row is on its way, so that environment's state is unknown
        environments = None if owed else self.environments.state_dict()
        return {"actor": own, "environments": dict(environments or {})}

    def load_state_dict(self, tensors: Mapping[str, Mapping[str, Array]]) -> int:
        """Continue from a saved state; returns how many open episodes could not be rebuilt and were lost."""
        own, environments = tensors["actor"], tensors.get("environments", {})
        for name, field in self._open._asdict().items():
            field[...] = own[f"open/{name}"]
        for name, array in self._arrays().items():
            array[...] = own[name]
        restore_generator(self.policy.generator, torch.from_numpy(np.array(own["generator"])))
        rows = self.environments.load_state_dict(environments) if environments else self.environments.reset()
        lost = rows.restarted if environments else np.ones(len(rows.slots), bool)
        self._ready = np.array(own["ready"]) if environments else rows.slots
        if lost.any():
            new = _only(rows, lost)
            self._push(new)
            self._begin_unrolls(new)
            self._ended[new.slots], self._length[new.slots], self._return[new.slots] = False, 0, 0.0
            if not self.layout.state_size:  # else see `begin`. Without a shift all unrolls would end at once
                self._unrecorded[new.slots] = self._shift[new.slots]
        return int(lost.sum())

    def _arrays(self) -> dict[str, Array]:
        names = ("unrecorded", "cursor", "ended", "length", "return", "stack", "memory")
        return {name: getattr(self, f"_{name}") for name in names}


def _only(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    return Rows._make(field[chosen] for field in rows)
