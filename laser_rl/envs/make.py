"""One function makes every kind of environment; another makes one to look at."""

import functools
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Literal

import gymnasium
import numpy as np

from laser_rl.envs.atari import (
    ATARI_57,
    AtariEnvironments,
    AtariScreen,
    AtariSettings,
    MinAtarScreen,
    atari_game,
)
from laser_rl.envs.border import Env
from laser_rl.envs.construct import BorrowedEnv, constructor, require_one_agent
from laser_rl.envs.mixture import MixedEnvironments
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.puzzles import task_of
from laser_rl.envs.records import Environments, seed_of
from laser_rl.envs.scores import PREFIX, tasks_of
from laser_rl.envs.slot import EXITS, OnBadValue, SerialEnvironments, exit_of
from laser_rl.envs.tasks import TaskEnv, TaskEnvironments
from laser_rl.envs.vector import VectorAdapter
from laser_rl.envs.worker import ProcessLimits
from laser_rl.errors import ConfigError, EnvironmentRefused, UserError

Placement = Literal["auto", "thread", "process"]
Source = str | Callable[[], Env] | Env | gymnasium.vector.VectorEnv[Any, Any, Any]
ALTERNATING = 2  # groups of ALE's slots, where a step need not wait for all


def make_environments(
    source: Source,
    *,
    slots: int,
    seed: int,
    placement: Placement = "auto",
    workers: int | None = None,
    options: Mapping[str, Any] | None = None,
    atari: AtariSettings | None = None,
    step_timeout_s: float = 60.0,
    reset_timeout_s: float = 60.0,
    constructor_timeout_s: float = 120.0,
    patience_s: float = 0.5,
    on_bad_value: OnBadValue = "fail",
    lockstep: bool = False,
) -> Environments:
    """Environments from an id, a constructor, an environment or a vector of them.

    An id is one of ours (`laser/Catch`), a game (`ALE/Breakout-v5`), one of MinAtar's (`MinAtar/Breakout-v1`) or MiniGrid's, any other that
    Gymnasium knows (`module:Name-v0` imports the module first), or `module:callable`. Ours and ALE's step all slots at once in native code;
    Python environments run in this thread, or with `placement="process"` in supervised workers. Several ids with commas between them, or
    a suite of tasks (`suite:grid`), are a mixture: the slots take turns, and `options` reach every task.

    >>> envs = make_environments("CartPole-v1", slots=2, seed=1)
    >>> envs.spec.observation.shape
    (4,)
    >>> make_environments("laser/DeepSea-5,laser/SparseGrid-5", slots=4, seed=1).spec.tasks
    ('laser/DeepSea-5', 'laser/SparseGrid-5')
    """
    if slots < 1:
        raise ConfigError(f"expected at least one environment slot, got {slots}")
    if isinstance(source, gymnasium.vector.VectorEnv):
        return _adapted(source, slots, seed, on_bad_value)
    limits = ProcessLimits(step_timeout_s, reset_timeout_s, constructor_timeout_s)
    pool: dict[str, Any] = {"limits": limits, "patience_s": patience_s, "lockstep": lockstep}
    make = functools.partial(_make_one, placement=placement, atari=atari, on_bad_value=on_bad_value, pool=pool)
    workers = workers or max(1, min(slots, len(os.sched_getaffinity(0))))  # one a core that this process may use
    if not isinstance(source, str) or not is_mixture(source):
        return make(source, slots=slots, seed=seed, options=options or {}, workers=workers)
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
            # The seed goes by the task's name: it plays the same episodes in every company.
            own_seed = int(seed_of(seed, np.array([zlib.crc32(task.encode())]), np.zeros(1, np.int64))[0])
            all_options, own_workers = {**own, **(options or {})}, max(1, workers // len(tasks))
            parts.append(make(task, slots=share, seed=own_seed, options=all_options, workers=own_workers))
            made.callback(parts[-1].close)
        mixture = MixedEnvironments(parts, name=source, lockstep=lockstep)
        made.pop_all()
        return mixture


def _make_one(
    source: Source,
    *,
    slots: int,
    seed: int,
    placement: Placement,
    workers: int,
    options: Mapping[str, Any],
    atari: AtariSettings | None,
    on_bad_value: OnBadValue,
    pool: Mapping[str, Any],
) -> Environments:
    if isinstance(source, str) and source.startswith("laser/"):
        return TaskEnvironments(task_of(source, options), slots=slots, seed=seed)
    if isinstance(source, str) and is_atari(source):
        if options:
            raise ConfigError(
                f"{source}: expected no options for a game, got {sorted(options)}; the settings of Atari are separate"
            )
        groups = 1 if pool["lockstep"] else ALTERNATING
        return AtariEnvironments(source, slots=slots, seed=seed, settings=atari, groups=groups)
    try:
        make, name = _constructor_of(source, slots, placement, options)
        common: dict[str, Any] = {"slots": slots, "seed": seed, "name": name, "on_bad_value": on_bad_value}
        if placement != "process":
            return SerialEnvironments(make, **common)
        return PoolEnvironments(make, workers=workers, **common, **pool)
    except EXITS as error:
        raise exit_of(error, str(source)) from None


def make_renderable(
    source: Source, *, options: Mapping[str, Any] | None = None, atari: AtariSettings | None = None
) -> Env:
    """One environment whose `render()` gives RGB frames; its observations are those of training, before they are flattened.

    >>> env = make_renderable("laser/DeepSea-4")
    >>> _ = env.reset(seed=1)
    >>> env.render().shape
    (64, 64, 3)
    """
    if isinstance(source, gymnasium.vector.VectorEnv):
        raise EnvironmentRefused(
            "expected one environment to look at, got a vector of them; hand in its id or constructor"
        )
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
        return AtariScreen(source, atari or AtariSettings())
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
    """Whether ALE's vector environment is meant.

    >>> is_atari("ALE/Breakout-v5"), is_atari("pong"), is_atari("MinAtar/Breakout-v1")
    (True, True, False)
    """
    return name.startswith("ALE/") or ("/" not in name and ":" not in name and atari_game(name) in ATARI_57)


def is_mixture(name: str) -> bool:
    """Whether a name stands for several tasks."""
    return name.startswith(PREFIX) or "," in name


def _adapted(
    vector: gymnasium.vector.VectorEnv[Any, Any, Any], slots: int, seed: int, on_bad_value: OnBadValue
) -> Environments:
    if on_bad_value == "drop":
        raise ConfigError(
            "expected on_bad_value 'fail' with a vector of environments, got 'drop': none of its episodes can be ended alone; "
            "hand in a constructor of one environment"
        )
    if vector.num_envs != slots:
        raise ConfigError(
            f"expected a vector of {slots} environments, got one of {vector.num_envs}; ask for {vector.num_envs} slots"
        )
    return VectorAdapter(vector, seed=seed, owned=False)


def _constructor_of(
    source: Source, slots: int, placement: Placement, options: Mapping[str, Any]
) -> tuple[Callable[[], Env], str]:
    if isinstance(source, str):
        return constructor(source, options), source
    if options:
        raise ConfigError(
            f"expected options only with the name of an environment, got {sorted(options)} with {source!r}; use functools.partial"
        )
    if isinstance(source, gymnasium.Env):
        if slots != 1 or placement == "process":
            raise ConfigError(
                f"expected one slot in this thread for an environment that exists already, got {slots}; hand in its constructor"
            )
        return lambda: BorrowedEnv(source), source.spec.id if source.spec is not None else type(source).__name__
    require_one_agent(source, type(source).__name__)
    if not callable(source):
        raise EnvironmentRefused(
            f"expected an id, a constructor, a gymnasium.Env or a VectorEnv, got {type(source).__name__}; e.g. 'CartPole-v1'"
        )
    return source, getattr(source, "__qualname__", type(source).__name__)
