"""What users hand to methods of `LASER` and `Sweep`, checked: a mistake is one sentence that says what was expected and what came."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laser_rl.agent.functions import name_of
from laser_rl.agent.policy import Memento
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.errors import ConfigError, EnvironmentRefused, shortened, written_out
from laser_rl.metrics.rows import Sink
from laser_rl.training.member_training import Callback
from laser_rl.training.settings import SweepConfig
from laser_rl.types import Array


def count_of(method: str, name: str, value: object, *, least: int = 0) -> int:
    """A whole number; 1e5 is how people write it, "200k" and "1.5M" are what the command line takes.

    >>> count_of("learn", "steps", "1.5k"), count_of("learn", "steps", 1e5)
    (1500, 100000)
    """
    if isinstance(value, str) and (digits := written_out(value).replace("_", "")).isdecimal():
        value = int(digits)
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    whole = whole or (isinstance(value, float) and value.is_integer())
    if not whole or value < least:  # type: ignore[operator]
        raise ConfigError(f"{method}: expected {name} to be a whole number of at least {least}, got {shortened(value)}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def callbacks_of(method: str, callback: object) -> list[Callback]:
    """One function, several, or none."""
    every = callback if isinstance(callback, Sequence) else [] if callback is None else [callback]
    for one in every:
        if not callable(one):
            expected = "a function of one argument, or a list of them"
            raise ConfigError(f"{method}: expected callback to be {expected}, got {shortened(one)}")
    return list(every)


def with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which functions have become names; `learning_rate=f` is a rate of 1 with the schedule f."""
    named = dict(settings)
    for name, value in settings.items():
        if not callable(value):
            continue
        last = str(name).rpartition(".")[2]
        if last in {"trust", "schedule"}:
            named[name] = name_of(value)
        elif last == "learning_rate":
            if {"schedule", "optimiser.schedule"} & settings.keys():
                raise ConfigError("learning_rate is a function and so is its own schedule; leave out schedule")
            named |= {name: 1.0, "optimiser.schedule": name_of(value)}
    return named


def named_in_grid(name: str, value: Any) -> Any:
    """A value of a grid, with the name of a function in its place."""
    if callable(value) and str(name).rpartition(".")[2] == "learning_rate":
        raise ConfigError("a grid cannot hold functions as learning rates; give numbers, and the functions as schedule")
    return with_names({name: value})[name]


@contextlib.contextmanager
def watched(
    method: str,
    sweep: SweepConfig,
    steps: int,
    run_dir: Path | None,
    *,
    progress_bar: object,
    tensorboard_log: object,
    verbose: object,
) -> Iterator[list[Sink]]:
    """The sinks that a run of so many `steps` is watched with, closed at its end: TensorBoard's files, a table or lines."""
    for name, value in (("progress_bar", progress_bar), ("verbose", verbose)):
        if value not in (0, 1):
            raise ConfigError(f"{method}: expected {name} to be 0 or 1 (False or True), got {shortened(value)}")
    with contextlib.ExitStack() as stack:
        sinks: list[Sink] = []
        if tensorboard_log is not None:
            from laser_rl.metrics.tensorboard import TensorBoardLog  # noqa: PLC0415 - slow to import

            try:
                folder = Path(tensorboard_log)  # type: ignore[arg-type]
                folder.mkdir(parents=True, exist_ok=True)
            except (OSError, TypeError, ValueError) as error:
                expected = "a folder that can be written to"
                raise ConfigError(
                    f"{method}: expected tensorboard_log to be {expected}, got {shortened(tensorboard_log)} ({error})"
                ) from None
            sinks.append(TensorBoardLog(folder))
        if progress_bar or verbose:
            from rich.console import Console as Terminal  # noqa: PLC0415 - only where something is shown

            from laser_rl.metrics.console import Console  # noqa: PLC0415

            live = None if progress_bar else False  # None: if there is a terminal, or a notebook
            terminal = Terminal(highlight=False, force_terminal=live, force_jupyter=live)
            name = sweep.base.environment.id + ("" if sweep.single else f", {len(sweep.settings)} members")
            title = name if run_dir is None else f"{name} in {run_dir}"
            sinks.append(Console(title, max(1, steps), sweep.settings, pbt=bool(sweep.moved), terminal=terminal))
        for sink in sinks:
            stack.callback(sink.close)
        yield sinks


def observed(sees: Callable[[Any], Any], observation: Any, spec: EnvironmentSpec) -> Array:
    """One observation as it is stored; ConfigError if it is not one of this agent's environment."""
    shape, dtype, said, why = spec.observation.shape, np.dtype(spec.observation.dtype), shortened(observation), ""
    if isinstance(observation, np.ndarray | np.generic):
        said = f"{observation.dtype} of shape {observation.shape}"
    mistakes = (ArithmeticError, AttributeError, EnvironmentRefused, LookupError, TypeError, ValueError, AssertionError)
    try:
        # A list stands for an array; a Dict's or Tuple's parts are looked at by their space.
        seen = np.asarray(sees(np.asarray(observation) if isinstance(observation, list) else observation))
        fits = seen.shape == shape
        numbers = spec.observation.numbers(seen).values() if fits else [seen]
        if any(part.dtype.kind == "f" and not np.isfinite(part).all() for part in numbers):
            why = " with NaN or infinity in it"
        elif fits and seen.dtype.kind in ("bui" if dtype == np.uint8 else "buif"):
            return seen.astype(dtype, copy=False)
    except mistakes as error:
        why = f" ({type(error).__name__}: {error})"
    raise ConfigError(
        f"predict: expected one observation of {spec.name}, stored as {dtype} of shape {shape}, or a batch [n, ...], got {said}{why}"
    )


def each_of(name: str, value: Any, count: int, dtype: type[np.float32 | np.bool_]) -> NDArray[Any]:
    """One number for all of `count` observations, or one for each."""
    what = "true or false" if dtype is np.bool_ else "a finite number"
    with contextlib.suppress(TypeError, ValueError):
        found = np.asarray(value)
        fits = found.dtype.kind in ("b" if dtype is np.bool_ else "buif") and found.shape in {(), (count,)}
        if fits and np.isfinite(found).all():
            return np.broadcast_to(found, (count,)).astype(dtype)
    raise ConfigError(f"predict: expected {name} to be {what}, one or {count} of them, got {shortened(value)}")


def require_state(state: object, count: int) -> None:
    """ConfigError if it is not the state of so many episodes."""
    if state is not None and not isinstance(state, Memento):
        expected = "what the last call returned, or None at the start"
        raise ConfigError(f"predict: expected state to be {expected}, got {type(state).__name__}")
    if state is not None and len(state.memory) != count:
        raise ConfigError(
            f"predict: expected the state of {count} observations, got one of {len(state.memory)}; hand in what the last call with as many "
            "observations returned, or None at the start"
        )
