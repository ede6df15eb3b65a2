"""Functions of the user's own, by name: `module:function`, which any process can import, or an object that a program has passed in."""

import functools
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from laser_rl.envs.construct import imported, stored_name
from laser_rl.errors import ConfigError, EnvironmentRefused, shortened
from laser_rl.trust import HERE, require

_passed: dict[str, Callable[..., Any]] = {}  # objects that no import finds, by the name that settings have for them


def name_of(function: Callable[..., Any]) -> str:
    """`module:function` if importing that gives this very object, otherwise a name that only this process knows."""
    name, _ = stored_name(function)
    module, _, last = name.partition(":")
    if last.isidentifier() and not module.startswith("<"):
        return name
    label = "".join(c for c in getattr(function, "__name__", type(function).__name__) if c.isidentifier()) or "function"
    number, name = 1, HERE + label
    while _passed.setdefault(name, function) is not function:  # another object has this name already
        number += 1
        name = f"{HERE}{label}_{number}"
    return name


def pass_again(name: str, function: Callable[..., Any], setting: str) -> None:
    """Let a stored name stand for this object, as it did in the process that stored it."""
    if not callable(function):
        raise ConfigError(f"expected {setting} to be a function, got {shortened(function)}")
    if not name.startswith(HERE):
        raise ConfigError(f"the agent was trained with {setting} {name!r}, expected none; leave {setting} out")
    _passed[name] = function


def function_named(name: str, setting: str) -> Callable[..., Any]:
    """The function that a setting names; imported only if the user has passed the name, or trusts the file that holds it."""
    if name.startswith(HERE):
        if name not in _passed:
            raise ConfigError(
                f"{setting} was a function of the program that trained, {name.removeprefix(HERE)!r}, which no other process can import; "
                f"pass it again ({setting.rpartition('.')[2]}=...), or define it in a module"
            )
        return _passed[name]
    require(name)
    return _imported(name, setting)


def own_factor(name: str, remaining: float) -> float:
    """What a schedule of the user's own makes of the share of the run that remains, 1 to 0: a factor of the learning rate."""
    found = function_named(name, "optimiser.schedule")(remaining)
    if not isinstance(found, Real) or not 0 <= float(found) < math.inf:
        raise ConfigError(
            f"{name}: expected a finite number of at least 0 for {remaining:.3f} of the run remaining, got {shortened(found)}; "
            "return a factor of the learning rate"
        )
    return float(found)


@functools.cache
def _imported(name: str, setting: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = imported(name)
    except EnvironmentRefused as error:
        raise ConfigError(f"{setting}: {error}") from error
    return function
