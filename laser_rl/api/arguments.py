"""Arguments of an agent's methods, refused with a sentence where they cannot be meant."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np

from laser_rl.envs.records import EnvironmentSpec
from laser_rl.errors import ConfigError, EnvironmentRefused, shortened
from laser_rl.types import Array


def require_count(method: str, name: str, value: object, *, least: int = 0) -> int:
    """ConfigError for what is not a whole number of at least `least`.

    >>> require_count("learn", "steps", -1)
    Traceback (most recent call last):
    laser_rl.errors.ConfigError: learn: expected steps to be a whole number of at least 0, got -1
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    whole = whole or (isinstance(value, float) and value.is_integer())  # 1e5 is how people write it
    if not whole or value < least:  # type: ignore[operator]
        raise ConfigError(f"{method}: expected {name} to be a whole number of at least {least}, got {shortened(value)}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def require_number(method: str, name: str, value: object) -> float:
    """ConfigError for what is not one finite number.

    >>> require_number("predict", "reward", np.float32(0.5))
    0.5
    """
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{method}: expected {name} to be a finite number, got {shortened(value)}")
    return float(value)


def observed(sees: Callable[[Any], Any], observation: object, spec: EnvironmentSpec) -> Array:
    """One observation as it is stored; ConfigError if it is not one of this agent's environment."""
    shape, dtype = spec.observation.shape, np.dtype(spec.observation.dtype)
    expected = f"predict: expected one observation of {spec.name}"
    try:
        seen = np.asarray(sees(_as_array(observation)))
    except (
        ArithmeticError,
        AttributeError,
        EnvironmentRefused,
        LookupError,
        TypeError,
        ValueError,
        AssertionError,
    ) as error:
        raise ConfigError(f"{expected}, got {_said(observation)} ({type(error).__name__}: {error})") from None
    if seen.shape != shape:
        raise ConfigError(f"{expected}, {dtype} of shape {shape} once it is stored, got {_said(observation)}")
    if seen.dtype.kind not in ("bui" if dtype == np.uint8 else "buif"):
        raise ConfigError(f"{expected}, which is stored as {dtype}, got {_said(observation)}")
    if seen.dtype.kind == "f" and not np.isfinite(seen).all():
        raise ConfigError(f"{expected}, got {_said(observation)} with NaN or infinity in it")
    return seen.astype(dtype, copy=False)


def _as_array(observation: Any) -> Any:
    """A list stands for an array; a Dict's or Tuple's parts are looked at by their space."""
    return np.asarray(observation) if isinstance(observation, list) else observation


def _said(observation: object) -> str:
    if isinstance(observation, np.ndarray | np.generic):
        return f"{observation.dtype} of shape {observation.shape}"
    if isinstance(observation, dict):
        return f"a dict with {sorted(map(str, observation))}"
    return shortened(observation) if isinstance(observation, str | int | float) else type(observation).__name__
