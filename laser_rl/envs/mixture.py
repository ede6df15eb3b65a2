"""Several tasks as one set of environments: slot s plays task s mod the number of tasks, for good.

Tasks that run in this thread are stepped one after the other. Those that wait for other processes are stepped each in a thread of its own,
so that they wait at the same time; a task that is late is left behind, and its rows come with a later step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.records import (
    ActionSpec,
    Array,
    DiscreteActions,
    Environments,
    EnvironmentSpec,
    Ints,
    Rows,
    action_layout,
)
from laser_rl.envs.scores import refuse_twice
from laser_rl.errors import ConfigError, EnvironmentRefused

GLANCE_S, CLOSE_LIMIT_S = 0.1, 2.0


@dataclass
class _Part:
    """One task's environments and how its calls stand."""

    index: int
    envs: Environments
    actions: int  # that the task knows; 0 where they are not discrete
    background: bool
    queued: list[int] = field(default_factory=list)  # its own slots that are asked to act and not handed over yet
    owed: int = 0  # rows that are to come, with those of `queued`
    call: Future[Rows] | None = None  # under way in its thread
    began_at: float = 0.0


class MixedEnvironments:
    """The environments of several tasks, `parts`, as one.

    All have the same observations and the same number of slots. Where tasks have different numbers of discrete actions, the mixture has
    the largest, and an action that a task does not know acts as its action 0. With `lockstep` a step waits for all rows that are owed;
    otherwise a task that takes longer than `patience_s` is left behind.
    """

    def __init__(
        self, parts: Sequence[Environments], *, name: str | None = None, patience_s: float = 0.5, lockstep: bool = False
    ) -> None:
        action, names = _common_actions(parts), tuple(part.spec.name for part in parts)
        self.slots = sum(part.slots for part in parts)
        # All tasks are seen alike; actions are the mixture's own where they are numbered, of which a task may know a part.
        known = dict(parts[0].spec.spaces or {}) | ({"action": None} if isinstance(action, DiscreteActions) else {})
        self.spec = EnvironmentSpec(name or ",".join(names), parts[0].spec.observation, action, names, known)
        self._patience_s, self._lockstep = patience_s, lockstep
        self._parts = [
            _Part(index, part, _count(part.spec.action), isinstance(part, PoolEnvironments))
            for index, part in enumerate(parts)
        ]
        shape, dtype = action_layout(action)
        self._action = np.zeros((self.slots, *shape), dtype)
        self._threads = ThreadPoolExecutor(max_workers=len(parts), thread_name_prefix="laser-task")

    def reset(self) -> Rows:
        """Start every slot; waits for all of them."""
        return self._everywhere(lambda part: part.envs.reset())

    def step(self, slots: Ints, action: Array) -> Rows:
        """Hand out the actions and return the rows that are there, of any slot that owed one, in the order of the slots."""
        self._action[slots] = action
        for slot in slots.tolist():
            own, index = divmod(slot, len(self._parts))
            self._parts[index].queued.append(own)
            self._parts[index].owed += 1
        arrived = []
        for part in self._parts:
            if part.background:
                self._begin_call(part)
            elif part.queued:
                arrived.append(self._receive(part, part.envs.step(*self._orders(part))))
        return self._merge(self._gather(arrived, all_rows=self._lockstep))

    def state_dict(self) -> Mapping[str, Array] | None:
        """Those of all tasks; None if one of them has none, or while one of them is late: its rows may be ahead of those handed out."""
        merged: dict[str, Array] = {}
        for name, part in zip(self.spec.tasks, self._parts, strict=True):
            state = part.envs.state_dict() if part.call is None else None
            if state is None:
                return None
            merged.update({f"{name}:{key}": value for key, value in state.items()})
        return merged

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        """Go on exactly there, in every task."""
        states: dict[str, dict[str, Array]] = {name: {} for name in self.spec.tasks}
        for key, value in state.items():
            task, _, name = key.rpartition(":")
            states.setdefault(task, {})[name] = value
        if len(states) != len(self.spec.tasks) or not all(states.values()):
            raise ConfigError(
                f"{self.spec.name}: expected the state of {', '.join(self.spec.tasks)}, got that of "
                f"{', '.join(sorted({key.rpartition(':')[0] for key in state}))}; resume with the tasks that the run was started with"
            )
        return self._everywhere(lambda part: part.envs.load_state_dict(states[self.spec.tasks[part.index]]))

    def counters(self, slots: Ints | None = None) -> Mapping[str, int]:
        """Faults survived so far, by all tasks together."""
        own, of = np.divmod(np.arange(self.slots) if slots is None else slots, len(self._parts))
        counts: dict[str, int] = {}
        for part in self._parts:
            for name, count in part.envs.counters(own[of == part.index]).items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def close(self) -> None:
        """Close all of them, also where one fails to."""
        wait([part.call for part in self._parts if part.call is not None], timeout=CLOSE_LIMIT_S)
        with ExitStack() as stack:
            stack.callback(self._threads.shutdown, wait=False)
            for part in self._parts:
                stack.callback(part.envs.close)

    def _orders(self, part: _Part) -> tuple[Ints, Array]:
        """The slots and actions that a part is handed now, in its own counting."""
        own, part.queued = np.array(part.queued, np.int64), []
        action = self._action[own * len(self._parts) + part.index]
        return own, np.where(action < part.actions, action, 0) if part.actions else action

    def _begin_call(self, part: _Part) -> None:
        """Also where no slot is asked: to collect what is owed from earlier."""
        if part.owed and part.call is None:
            part.began_at = time.monotonic()
            part.call = self._threads.submit(part.envs.step, *self._orders(part))

    def _receive(self, part: _Part, rows: Rows) -> Rows:
        part.owed -= rows.slots.size
        return rows._replace(slots=rows.slots * len(self._parts) + part.index)

    def _gather(self, arrived: list[Rows], *, all_rows: bool) -> list[Rows]:
        """Rows of at least one part. Waits for the others while they are within their time, or for `all_rows`; parts limit their calls."""
        if not arrived and not any(part.call for part in self._parts):
            raise ValueError(
                f"{self.spec.name}: expected at least one slot to act in, or one that owes a row; got neither"
            )
        while True:
            arrived += self._collect(all_rows=all_rows)
            late = [part for part in self._parts if part.call is not None]
            now = time.monotonic()
            ends = [part.began_at + self._patience_s - now for part in late]
            if not late or (arrived and not all_rows and max(ends) <= 0):
                return arrived
            wait([part.call for part in late if part.call], timeout=min([GLANCE_S, *(end for end in ends if end > 0)]))

    def _collect(self, *, all_rows: bool) -> list[Rows]:
        """What the calls that are done have brought; where more is owed to `all_rows`, the next ones begin."""
        arrived = []
        for part in self._parts:
            if part.call is not None and part.call.done():
                done, part.call = part.call, None
                arrived.append(self._receive(part, done.result()))
                if all_rows:
                    self._begin_call(part)
        return arrived

    def _everywhere(self, act: Callable[[_Part], Rows]) -> Rows:
        """All rows of all parts, those in the background at the same time."""
        for part in self._parts:
            part.owed = part.envs.slots
            if part.background:
                part.call = self._threads.submit(act, part)
        arrived = [self._receive(part, act(part)) for part in self._parts if not part.background]
        return self._merge(self._gather(arrived, all_rows=True))

    @staticmethod
    def _merge(arrived: Sequence[Rows]) -> Rows:
        order = np.argsort(np.concatenate([rows.slots for rows in arrived]))
        return Rows(*(np.concatenate(column)[order] for column in zip(*arrived, strict=True)))


def _count(action: ActionSpec) -> int:
    return action.count if isinstance(action, DiscreteActions) else 0


def _common_actions(parts: Sequence[Environments]) -> ActionSpec:
    """The largest of discrete actions, or those that all parts have; refuses parts that do not fit together."""
    if not parts:
        raise EnvironmentRefused("expected at least one task for a mixture, got none; name some")
    refuse_twice([part.spec.name for part in parts])
    first, one = parts[0], parts[0].spec
    for part in parts[1:]:
        other = part.spec
        if other.observation != one.observation:
            raise EnvironmentRefused(
                f"expected tasks that are seen alike, got {one.observation} in {one.name} and {other.observation} "
                f"in {other.name}; bring one to the form of the other in a wrapper, or train them apart"
            )
        if part.slots != first.slots:
            raise ConfigError(
                f"expected as many slots for every task, got {first.slots} for {one.name} and {part.slots} for "
                f"{other.name}; they take turns"
            )
        if not (_count(one.action) and _count(other.action)) and other.action != one.action:
            raise EnvironmentRefused(
                f"expected tasks with discrete actions, or all with the same ones, got {one.action} in {one.name} and "
                f"{other.action} in {other.name}; train them apart"
            )
    counts = [_count(part.spec.action) for part in parts]
    return DiscreteActions(max(counts)) if all(counts) else one.action
