"""Several tasks as one set of environments: slot s plays task s mod the number of tasks, for good.

Tasks that run in this thread are stepped one after the other. Those in worker processes work at the same time; a late worker is left
behind, and its rows come with a later step.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from laser_rl.envs.pool import PoolEnvironments, wait_for_rows
from laser_rl.envs.records import ActionSpec, Array, DiscreteActions, Environments, EnvironmentSpec, Ints, Rows
from laser_rl.envs.scores import refuse_twice
from laser_rl.errors import ConfigError, EnvironmentRefused


class MixedEnvironments(Environments):
    """The environments of several tasks, `parts`, as one.

    All have the same observations and the same number of slots. Where tasks have different numbers of discrete actions, the mixture has
    the largest, and an action that a task does not know acts as its action 0. With `lockstep` a step waits for all rows that are owed;
    otherwise a worker that takes longer than its pool's patience is left behind.
    """

    def __init__(self, parts: Sequence[Environments], *, name: str | None = None, lockstep: bool = False) -> None:
        action, names = _common_actions(parts), tuple(part.spec.name for part in parts)
        self.slots = sum(part.slots for part in parts)
        # All tasks are seen alike; actions are the mixture's own where they are numbered, of which a task may know a part.
        known = dict(parts[0].spec.spaces or {}) | ({"action": None} if isinstance(action, DiscreteActions) else {})
        self.spec = EnvironmentSpec(name or ",".join(names), parts[0].spec.observation, action, names, known)
        self._parts, self._lockstep = list(parts), lockstep
        self._actions = [_count(part.spec.action) for part in parts]  # that a task knows; 0 where they are not discrete

    def reset(self) -> Rows:
        """Start every slot; waits for all of them."""
        every = np.arange(self.slots // len(self._parts))
        return self._everywhere(lambda _, part: part.reset(), lambda _, pool: pool.send(every, np.zeros(())))

    def step(self, slots: Ints, action: Array) -> Rows:
        """Hand out the actions and return the rows that are there, of any slot that owed one, in the order of the slots."""
        own, of = np.divmod(slots, len(self._parts))
        arrived = {}
        for index, part in enumerate(self._parts):
            mine = of == index
            if mine.any():
                chosen, known = action[mine], self._actions[index]
                chosen = np.where(chosen < known, chosen, 0) if known else chosen
                if isinstance(part, PoolEnvironments):
                    part.send(own[mine], chosen)
                else:
                    arrived[index] = part.step(own[mine], chosen)
        return self._gather(arrived, all_rows=self._lockstep)

    def state_dict(self) -> Mapping[str, Array] | None:
        """Those of all tasks; None if one of them has none."""
        merged: dict[str, Array] = {}
        for name, part in zip(self.spec.tasks, self._parts, strict=True):
            state = part.state_dict()
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
        return self._everywhere(
            lambda name, part: part.load_state_dict(states[name]), lambda name, pool: pool.send_state(states[name])
        )

    def counters(self, slots: Ints | None = None) -> Mapping[str, int]:
        """Faults survived so far, by all tasks together."""
        own, of = np.divmod(np.arange(self.slots) if slots is None else slots, len(self._parts))
        counts: dict[str, int] = {}
        for index, part in enumerate(self._parts):
            for name, count in part.counters(own[of == index]).items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def close(self) -> None:
        """Close all of them, also where one fails to."""
        with ExitStack() as stack:
            for part in self._parts:
                stack.callback(part.close)

    def _everywhere(
        self, act: Callable[[str, Environments], Rows], send: Callable[[str, PoolEnvironments], None]
    ) -> Rows:
        """All rows of all parts; pools are sent their orders first, so that their workers are busy at the same time."""
        named = list(zip(self.spec.tasks, self._parts, strict=True))
        for name, part in named:
            if isinstance(part, PoolEnvironments):
                send(name, part)
        every = enumerate(named)
        arrived = {index: act(*each) for index, each in every if not isinstance(each[1], PoolEnvironments)}
        return self._gather(arrived, all_rows=True)

    def _gather(self, arrived: dict[int, Rows], *, all_rows: bool) -> Rows:
        """The rows of the tasks in this thread, which are there, and those of the others."""
        pools = {index: part for index, part in enumerate(self._parts) if isinstance(part, PoolEnvironments)}
        wait_for_rows(list(pools.values()), all_rows=all_rows, some=bool(arrived))
        arrived.update({index: pool.receive() for index, pool in pools.items()})
        numbered = [rows._replace(slots=rows.slots * len(self._parts) + index) for index, rows in arrived.items()]
        order = np.argsort(np.concatenate([rows.slots for rows in numbered]))
        return Rows(*(np.concatenate(column)[order] for column in zip(*numbered, strict=True)))


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
