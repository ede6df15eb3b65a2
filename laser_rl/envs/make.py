"""Make environments: `make_environments` for training, of one task or of a mixture (`MixedEnvironments`); `make_renderable` for videos."""

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np

from laser_rl.config import AtariConfig, EnvironmentConfig
from laser_rl.envs.atari import AtariEnvironments, AtariScreen, AtariWorkers, MinAtarScreen, atari_game
from laser_rl.envs.border import Env
from laser_rl.envs.construct import BorrowedEnv, constructor
from laser_rl.envs.pool import PoolEnvironments, wait_for_rows
from laser_rl.envs.puzzles import task_of
from laser_rl.envs.records import ActionSpec, Array, DiscreteActions, Environments, EnvironmentSpec, Ints, Rows, seed_of
from laser_rl.envs.scores import ATARI_57, PREFIX, refuse_twice, tasks_of
from laser_rl.envs.slot import EXITS, OnBadValue, SerialEnvironments, exit_of
from laser_rl.envs.tasks import TaskEnv, TaskEnvironments
from laser_rl.envs.vector import Vector, VectorAdapter
from laser_rl.envs.worker import ProcessLimits
from laser_rl.errors import ConfigError, EnvironmentRefused, UserError

Source = str | Callable[[], Env] | Env | Vector


def make_environments(
    source: Source,
    config: EnvironmentConfig | None = None,
    *,
    seed: int,
    slots: int | None = None,
    lockstep: bool = False,
    **settings: Any,
) -> Environments:
    """Environments from an id, a constructor, an environment or a vector of them, as `config` or `settings` of its fields say.

    An id is one of ours (`laser/Catch`), a game (`ALE/Breakout-v5`), one of MinAtar's (`MinAtar/Breakout-v1`) or MiniGrid's, any other that
    Gymnasium knows (`module:Name-v0` imports the module first), or `module:callable`. Ours and ALE's step all slots at once in native code;
    Python environments run in this thread, or with `placement="process"` in supervised workers. Several ids with commas between them, or
    a suite of tasks (`suite:grid`), are a mixture: the slots take turns, and `options` reach every task. Where `source` is no name, they
    only say how another was made.
    """
    config = config or EnvironmentConfig(**settings)
    slots = config.slots if slots is None else slots
    if slots < 1:
        raise ConfigError(f"expected at least one environment slot, got {slots}")
    if isinstance(source, gymnasium.vector.VectorEnv):
        return _adapted(source, slots, seed, config.on_bad_value)
    # One a core that this process may use.
    workers = config.workers or max(1, min(slots, len(os.sched_getaffinity(0))))
    limits = ProcessLimits(config.step_timeout_s, config.reset_timeout_s)
    if isinstance(source, str) and is_mixture(source):
        return _mixture(source, config, slots, seed, workers, lockstep=lockstep)
    if isinstance(source, str) and source.startswith("laser/"):
        return TaskEnvironments(task_of(source, config.options), slots=slots, seed=seed)
    if isinstance(source, str) and is_atari(source):
        return _atari(source, config, slots, seed, limits, lockstep=lockstep)
    try:
        made, name = _constructor_of(source, slots, config)
        common: dict[str, Any] = {"slots": slots, "seed": seed, "name": name, "on_bad_value": config.on_bad_value}
        if config.placement != "process":
            return SerialEnvironments(made, **common)
        return PoolEnvironments(made, workers=workers, limits=limits, lockstep=lockstep, **common)
    except EXITS as error:
        raise exit_of(error, str(source)) from None


def _atari(
    game: str, config: EnvironmentConfig, slots: int, seed: int, limits: ProcessLimits, *, lockstep: bool
) -> Environments:
    if config.options:
        raise ConfigError(
            f"{game}: expected no options for a game, got {sorted(config.options)}; the settings of Atari are separate"
        )
    common: dict[str, Any] = {"slots": slots, "seed": seed, "settings": config.atari}
    if config.placement == "process" or (config.placement == "auto" and not lockstep):
        # Where two groups take turns, each has a process a core: with half of them cores would rest while their group waits.
        cores = config.atari.threads or len(os.sched_getaffinity(0))
        workers = config.workers or min(max(1, slots // 2), cores if lockstep else 2 * cores)
        return AtariWorkers(game, workers=workers, limits=limits, lockstep=lockstep, **common)
    return AtariEnvironments(game, **common)


def _mixture(
    source: str, config: EnvironmentConfig, slots: int, seed: int, workers: int, *, lockstep: bool
) -> Environments:
    tasks = tasks_of(source)
    share, rest = divmod(slots, len(tasks))
    if rest:
        fits = [str(number * len(tasks)) for number in (share, share + 1) if number]
        raise ConfigError(
            f"{source}: expected a number of environment slots that its {len(tasks)} tasks can share evenly, got {slots}; "
            f"use {' or '.join(fits)}"
        )
    with ExitStack() as made:
        parts: list[Environments] = []
        for task, own in tasks.items():
            # The seed depends on the task's name, so a task plays the same episodes in any mixture.
            own_seed = int(seed_of(seed, np.array([zlib.crc32(task.encode())]), np.zeros(1, np.int64))[0])
            settings = {"options": {**own, **config.options}, "workers": max(1, workers // len(tasks))}
            its = config.model_copy(update=settings)
            parts.append(make_environments(task, its, seed=own_seed, slots=share, lockstep=lockstep))
            made.callback(parts[-1].close)
        mixture = MixedEnvironments(parts, name=source, lockstep=lockstep)
        made.pop_all()
        return mixture


class MixedEnvironments(Environments):
    """The environments of several tasks, `parts`, as one: slot s plays task s mod the number of tasks during the whole run.

    All have the same observations and the same number of slots. Tasks that run in this thread are stepped one after the other, those in
    worker processes at the same time. Where tasks have different numbers of discrete actions, the mixture has
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
        self._pools = {index: part for index, part in enumerate(parts) if isinstance(part, PoolEnvironments)}
        self._actions = [_count(part.spec.action) for part in parts]  # that a task knows; 0 where they are not discrete

    def reset(self) -> Rows:
        every = np.arange(self.slots // len(self._parts))
        return self._everywhere(lambda _, part: part.reset(), lambda _, pool: pool.send(every, np.zeros(())))

    def step(self, slots: Ints, action: Array) -> Rows:
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
        merged: dict[str, Array] = {}
        for name, part in zip(self.spec.tasks, self._parts, strict=True):
            state = part.state_dict()
            if state is None:
                return None
            merged.update({f"{name}:{key}": value for key, value in state.items()})
        return merged

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        states: dict[str, dict[str, Array]] = {}
        for key, value in state.items():
            task, _, name = key.rpartition(":")
            states.setdefault(task, {})[name] = value
        if set(states) != set(self.spec.tasks):
            raise ConfigError(
                f"{self.spec.name}: expected the state of {', '.join(self.spec.tasks)}, got that of "
                f"{', '.join(sorted(states))}; resume with the tasks that the run was started with"
            )
        return self._everywhere(
            lambda name, part: part.load_state_dict(states[name]), lambda name, pool: pool.send_state(states[name])
        )

    def counters(self, slots: Ints | None = None) -> Mapping[str, int]:
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
        tasks, every = self.spec.tasks, enumerate(self._parts)
        for index, pool in self._pools.items():
            send(tasks[index], pool)
        arrived = {index: act(tasks[index], part) for index, part in every if index not in self._pools}
        return self._gather(arrived, all_rows=True)

    def _gather(self, arrived: dict[int, Rows], *, all_rows: bool) -> Rows:
        wait_for_rows(list(self._pools.values()), all_rows=all_rows, some=bool(arrived))
        arrived.update({index: pool.receive() for index, pool in self._pools.items()})
        numbered = [rows._replace(slots=rows.slots * len(self._parts) + index) for index, rows in arrived.items()]
        order = np.argsort(np.concatenate([rows.slots for rows in numbered]))
        return Rows(*(np.concatenate(column)[order] for column in zip(*numbered, strict=True)))


def _count(action: ActionSpec) -> int:
    return action.count if isinstance(action, DiscreteActions) else 0


def _common_actions(parts: Sequence[Environments]) -> ActionSpec:
    """The largest of discrete actions, or those that all parts have; refuses parts that do not fit together."""
    refuse_twice([part.spec.name for part in parts])
    one = parts[0].spec
    for other in (part.spec for part in parts[1:]):
        if other.observation != one.observation:
            raise EnvironmentRefused(
                f"expected tasks that are seen alike, got {one.observation} in {one.name} and {other.observation} "
                f"in {other.name}; bring one to the form of the other in a wrapper, or train them apart"
            )
        if not (_count(one.action) and _count(other.action)) and other.action != one.action:
            raise EnvironmentRefused(
                f"expected tasks with discrete actions, or all with the same ones, got {one.action} in {one.name} and "
                f"{other.action} in {other.name}; train them apart"
            )
    counts = [_count(part.spec.action) for part in parts]
    return DiscreteActions(max(counts)) if all(counts) else one.action


def make_renderable(
    source: Source, *, options: Mapping[str, Any] | None = None, atari: AtariConfig | None = None
) -> Env:
    """One environment whose `render()` gives RGB frames; its observations are those of training, before they are flattened."""
    if isinstance(source, gymnasium.vector.VectorEnv):
        raise EnvironmentRefused("expected one environment to look at, got a vector; hand in its id or constructor")
    if not isinstance(source, str):
        return BorrowedEnv(source) if isinstance(source, gymnasium.Env) else source()
    if is_mixture(source):
        tasks = tasks_of(source.partition("#")[0])
        raise EnvironmentRefused(
            f"expected one task to look at, got the {len(tasks)} of {source}; name one of them, e.g. {next(iter(tasks))}"
        )
    if source.startswith("laser/"):
        return TaskEnv(task_of(source, options or {}))
    if is_atari(source):
        return AtariScreen(source, atari or AtariConfig())
    if source.startswith("MinAtar/"):
        return MinAtarScreen(constructor(source, options or {})())
    make = constructor(source, {**(options or {}), "render_mode": "rgb_array"})
    try:
        return make()
    except UserError:
        raise
    except Exception as error:  # whatever a user's constructor raises when it is handed that argument
        raise EnvironmentRefused(
            f"{source} cannot be drawn: expected a constructor that takes render_mode='rgb_array', got {type(error).__name__}: {error}; "
            "add that argument, keep it as self.render_mode, and return a picture from render()"
        ) from error


def is_atari(name: str) -> bool:
    return name.startswith("ALE/") or ("/" not in name and ":" not in name and atari_game(name) in ATARI_57)


def is_box2d(name: str) -> bool:
    spec = gymnasium.registry.get(name)
    return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.box2d")


def is_mixture(name: str) -> bool:
    return name.startswith(PREFIX) or "," in name


def _adapted(vector: Vector, slots: int, seed: int, on_bad_value: OnBadValue) -> Environments:
    if on_bad_value == "drop":
        raise ConfigError(
            "expected on_bad_value 'fail' with a vector of environments, got 'drop': none of its episodes can be ended alone; "
            "hand in a constructor of one environment"
        )
    if vector.num_envs != slots:
        raise ConfigError(
            f"expected a vector of {slots} environments, got one of {vector.num_envs}; ask for {vector.num_envs} slots"
        )
    return VectorAdapter(vector, seed=seed)


def _constructor_of(source: Source, slots: int, config: EnvironmentConfig) -> tuple[Callable[[], Env], str]:
    if isinstance(source, str):
        return constructor(source, config.options), source
    if isinstance(source, gymnasium.Env):
        if slots != 1 or config.placement == "process":
            raise ConfigError(
                f"expected one slot in this thread for an environment that exists already, got {slots}; hand in its constructor"
            )
        return lambda: BorrowedEnv(source), source.spec.id if source.spec is not None else type(source).__name__
    if not callable(source):
        raise EnvironmentRefused(
            f"expected an id, a constructor, a gymnasium.Env or a VectorEnv, got {type(source).__name__}; e.g. 'CartPole-v1'"
        )
    return source, getattr(source, "__qualname__", type(source).__name__)
