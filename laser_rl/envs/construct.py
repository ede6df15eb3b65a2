"""From a name to the constructor of a Python environment, and from an environment to its name.

Constructors are plain functions, so that they can be sent to a worker process by reference.
"""

import contextlib
import difflib
import functools
import importlib
import json
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from laser_rl.envs.border import Env
from laser_rl.envs.dmlab import dmlab_constructor
from laser_rl.envs.doom import doom_constructor
from laser_rl.envs.grid import GridPictures
from laser_rl.envs.scores import ATARI_57
from laser_rl.errors import EnvironmentRefused, MissingExtra
from laser_rl.trust import code_in, require

MINIGRID = "MiniGrid-"
EXTRAS = {"MinAtar/": ("minatar.gym", "minatar"), MINIGRID: ("minigrid", "minigrid")}


def constructor(name: str, options: Mapping[str, Any]) -> Callable[[], Env]:
    """A function that makes the environment called `name`; refuses an unknown name at once."""
    require(*code_in(name, options))
    if name.startswith("<"):
        raise EnvironmentRefused(
            f"the environment was handed in as an object, {name[1:-1]}, which no name can make again; pass it: LASER.load(path, env=...), "
            "or LASER(env, run_dir=...)"
        )
    if all(part.isidentifier() for part in name.partition(":")[2].split(".")):  # an id ends in -v0 and is no identifier
        imported(name)
        return functools.partial(_from_attribute, name, dict(options))
    if name.startswith("dmlab/"):
        return dmlab_constructor(name.removeprefix("dmlab/"), options)
    if name.startswith("doom/"):
        return doom_constructor(name.removeprefix("doom/"), options)
    _registered(name)
    return functools.partial(_from_registry, name, dict(options))


@contextlib.contextmanager
def packages_of(name: str) -> Iterator[None]:
    """Refuse, in one sentence, an environment that needs a package which is not installed; trying again would not help."""
    try:
        yield
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        said, module = " ".join(str(error).split()).rstrip("."), getattr(error, "name", None)
        how = f" (pip install {module.partition('.')[0]})" if module and "pip install" not in said else ""
        raise EnvironmentRefused(
            f"{name}: expected all packages that it needs, got {type(error).__name__}: {said}; install what is missing{how}"
        ) from error


def _from_registry(name: str, options: Mapping[str, Any]) -> Env:
    """A registered environment, without Gymnasium's own passive checker: ours is stricter and does not warn."""
    identifier = _registered(name)
    with _quiet(), packages_of(name):
        env = gymnasium.make(identifier, disable_env_checker=True, **options)
    return GridPictures(env) if identifier.startswith(MINIGRID) else env


def _from_attribute(name: str, options: Mapping[str, Any]) -> Any:
    with packages_of(name):
        return imported(name)(**options)


def imported(name: str) -> Any:
    """What `module:name` stands for; refuses what is no class or function."""
    module, _, attribute = name.partition(":")
    found = _nested(_import(module), attribute)
    if not callable(found):
        got = "nothing" if found is None else type(found).__name__
        raise EnvironmentRefused(f"expected {name} to be a class or a function, got {got}; check the spelling")
    return found


def _nested(found: Any, attribute: str) -> Any:
    for part in attribute.split("."):  # a class within a class
        found = getattr(found, part, None)
    return found


def _import(module: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:  # a command line has its own directory there, users have theirs in mind
        sys.path.append(str(Path.cwd()))
    try:
        with _quiet():
            return importlib.import_module(module)
    except ImportError as error:
        raise EnvironmentRefused(
            f"expected {module!r} to be a module that can be imported from here, got {type(error).__name__}: {error}; "
            "check the spelling, and that its package is installed"
        ) from error


def _registered(name: str) -> str:
    """Import the module that registers `name`, refuse a name that is not registered, and return the id alone."""
    module, _, identifier = name.rpartition(":")
    if module:
        _import(module)
    for prefix, (package, extra) in EXTRAS.items():
        if identifier.startswith(prefix):
            os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # pygame would greet the user on standard output
            try:
                with _quiet():
                    registers = importlib.import_module(package)  # at once, or when it is told to
            except ImportError as error:
                raise MissingExtra(prefix.rstrip("/-"), extra) from error
            registered = any(known.startswith(prefix) for known in gymnasium.registry)
            if not registered and hasattr(registers, "register_envs"):
                registers.register_envs()
    try:
        with _quiet():
            gymnasium.spec(identifier)
    except gymnasium.error.Error as error:
        games = ["ALE/" + "".join(part.capitalize() for part in game.split("_")) + "-v5" for game in ATARI_57]
        known = {
            each.lower(): each
            for each in [*gymnasium.registry, "laser/Catch", "laser/DeepSea-10", "laser/TMaze-10", *games]
        }
        near = [known[found] for found in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)]
        hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium.pprint_registry() lists what is registered"
        raise EnvironmentRefused(f"expected the id of an environment, got {name!r} ({error}); {hint}") from error
    return identifier


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what other packages say about their own optional parts on import."""
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


class StreamBroken(Exception):
    """Another player has reset the environment since this one's last step: the open episode is void."""


# The player that reset an environment last, by the environment's id, which is its own for as long as a player holds it.
_PLAYERS: "weakref.WeakValueDictionary[int, Turn]" = weakref.WeakValueDictionary()


class Turn:
    """Whose turn it is in an environment that exists once: the player's that took it, by a reset, last."""

    def __init__(self, env: Any) -> None:
        self._env = env.unwrapped

    @property
    def lost(self) -> bool:
        return _PLAYERS.get(id(self._env)) is not self

    def take(self) -> None:
        _PLAYERS[id(self._env)] = self


class BorrowedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of the user's: closing this leaves it open, a step after another player's turn raises `StreamBroken`."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.turn = Turn(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.turn.take()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.turn.lost:
            raise StreamBroken
        return self.env.step(action)

    def close(self) -> None:
        """Leave it open: the user made it."""


def stored_name(source: Any) -> tuple[str, dict[str, Any]]:
    """An id or `module:name`, and options, that make such an environment; <...> around what no name can make again.

    An environment goes by its `spec.id` unless wrappers were put around it, which an id would leave out; a class or function by its place
    in a module that can be imported.
    """
    if isinstance(source, str):
        return source, {}
    if isinstance(source, gymnasium.Env | gymnasium.vector.VectorEnv):
        return _of_instance(source)
    if isinstance(source, functools.partial):
        return f"<partial of {_label(source.func)}>", {}
    return _reference(source) or f"<{_label(source)}>", {}


def _of_instance(env: Any) -> tuple[str, dict[str, Any]]:
    vector, spec = isinstance(env, gymnasium.vector.VectorEnv), env.spec
    if vector and spec is None and isinstance(env.unwrapped, _FROM_PARTS):
        first, *others = env.unwrapped.get_attr("spec")  # that of all environments, if it is the same
        spec = first if all(other == first for other in others) else None
    if spec is None:
        bare = env.unwrapped is env and not vector
        return (_reference(type(env)) if bare else None) or f"<{_label(type(env))}>", {}
    wrappers = [wrapper.name for wrapper in spec.additional_wrappers]
    wrappers += [type(env).__name__] if isinstance(env, gymnasium.vector.VectorWrapper) else []
    known, length = gymnasium.registry.get(spec.id), spec.max_episode_steps
    options = {name: value for name, value in spec.kwargs.items() if name not in _NOT_THE_TASK}
    if known is not None and known.max_episode_steps != length:
        options["max_episode_steps"] = length
    with contextlib.suppress(TypeError, ValueError):  # where JSON has no form for an option
        if not wrappers and known is not None and json.loads(json.dumps(options)) == options:
            return str(spec.id), options
    return f"<{' in '.join([spec.id, *wrappers])}>", {}


_NOT_THE_TASK = frozenset({"render_mode", "max_episode_steps", "num_envs", "vectorization_mode", "vector_kwargs"})
_FROM_PARTS = (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv)


def _reference(source: Any) -> str | None:
    """`module:name` where importing that module and looking the name up gives this very thing."""
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", None)
    found: Any = sys.modules.get(str(module))
    if module in {None, "__main__", "builtins"} or name is None or found is None:
        return None
    return f"{module}:{name}" if _nested(found, name) is source else None


def _label(source: Any) -> str:
    return str(getattr(source, "__qualname__", type(source).__qualname__)).replace(",", " ")
