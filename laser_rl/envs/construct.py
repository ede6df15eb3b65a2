"""Constructors of Python environments, from a name: plain functions, so that they can be sent to a worker process by reference."""

import difflib
import functools
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import gymnasium

from laser_rl.envs.atari import ATARI_57
from laser_rl.envs.border import Env
from laser_rl.errors import EnvironmentRefused, MissingExtra

OURS = ("laser/Catch", "laser/DeepSea-10", "laser/TMaze-10")


def constructor(name: str, options: Mapping[str, Any]) -> Callable[[], Env]:
    """A function that makes the environment called `name`; refuses an unknown name at once.

    >>> constructor("CartPole-v1", {})().spec.id
    'CartPole-v1'
    >>> constructor("gymnasium.envs.classic_control:CartPoleEnv", {})().action_space
    Discrete(2)
    """
    module, _, attribute = name.partition(":")
    if attribute and attribute.isidentifier() and not _is_registered(name):
        _attribute(module, attribute)
        return functools.partial(from_attribute, module, attribute, dict(options))
    _find_spec(name)
    return functools.partial(from_registry, name, dict(options))


def from_registry(name: str, options: Mapping[str, Any]) -> Env:
    """A registered environment, without Gymnasium's own passive checker: ours is stricter and does not warn."""
    _find_spec(name)
    with _quiet():
        return gymnasium.make(name, disable_env_checker=True, **options)


def from_attribute(module: str, attribute: str, options: Mapping[str, Any]) -> Env:
    """What `module:attribute` returns when called."""
    return cast("Env", _attribute(module, attribute)(**options))


def _attribute(module: str, attribute: str) -> Callable[..., Any]:
    if str(Path.cwd()) not in sys.path:  # a command line has its own directory there, users have theirs in mind
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise EnvironmentRefused(
            f"expected {module}:{attribute} to name a module and something in it, got {type(error).__name__}: {error}; "
            "check the spelling and that the module can be imported from here"
        ) from error
    if not callable(found):
        raise EnvironmentRefused(
            f"expected {module}:{attribute} to be callable, got {type(found).__name__}; name a class or a function"
        )
    return cast("Callable[..., Any]", found)


def _is_registered(name: str) -> bool:
    module, _, identifier = name.partition(":")
    return identifier in gymnasium.registry and module in sys.modules


def _find_spec(name: str) -> None:
    """Import whoever registers `name`, and refuse it if nobody does."""
    if name.startswith("MinAtar/"):
        _register_minatar()
    try:
        with _quiet():
            gymnasium.spec(name)
    except ImportError as error:
        raise EnvironmentRefused(
            f"expected the module before the colon in {name!r} to register environments, got {error}; check that it can be imported"
        ) from error
    except gymnasium.error.Error as error:
        near = nearest(name)
        hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium.pprint_registry() lists what is registered"
        raise EnvironmentRefused(f"expected the id of an environment, got {name!r} ({error}); {hint}") from error


def nearest(name: str) -> list[str]:
    """Known ids that look like `name`.

    >>> nearest("CartPol-v1")[0]
    'CartPole-v1'
    """
    games = ["ALE/" + "".join(part.capitalize() for part in game.split("_")) + "-v5" for game in ATARI_57]
    known = {identifier.lower(): identifier for identifier in [*gymnasium.registry, *OURS, *games]}
    return [known[found] for found in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)]


def _register_minatar() -> None:
    if any(identifier.startswith("MinAtar/") for identifier in gymnasium.registry):
        return
    try:
        with _quiet():
            gym = importlib.import_module("minatar.gym")  # an extra: only when it is asked for
    except ImportError as error:
        raise MissingExtra("MinAtar", "minatar") from error
    gym.register_envs()


@contextmanager
def _quiet() -> Iterator[None]:
    """Other packages warn about their own optional parts on import; nobody asked."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers  # logging.warning adds one where there was none
