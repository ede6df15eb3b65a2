"""What an environment that was handed in is called in files: a name that makes it again, where there is one."""

import functools
import json
import sys
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec


def stored_name(source: Any) -> tuple[str, dict[str, Any]]:
    """An id or `module:name`, and options, that make such an environment; <...> around what no name can make again.

    An environment goes by its `spec.id` unless wrappers were put around it, which an id would leave out; a class or function by its place
    in a module that can be imported.

    >>> stored_name(gymnasium.make("CartPole-v1", max_episode_steps=20)), stored_name(json.JSONDecoder)
    (('CartPole-v1', {'max_episode_steps': 20}), ('json.decoder:JSONDecoder', {}))
    >>> stored_name(lambda: None)
    ('<<lambda>>', {})
    """
    if isinstance(source, str):
        return source, {}
    if isinstance(source, gymnasium.Env | gymnasium.vector.VectorEnv):
        return _of_instance(source)
    if isinstance(source, functools.partial):
        return f"<partial of {_label(source.func)}>", {}
    return _reference(source) or f"<{_label(source)}>", {}


def can_be_made_again(spec: EnvSpec) -> bool:
    """Whether `gymnasium.make(spec)` gives such an environment with all its wrappers."""
    return all(wrapper.kwargs is not None for wrapper in spec.additional_wrappers)


def _of_instance(env: Any) -> tuple[str, dict[str, Any]]:
    vector = isinstance(env, gymnasium.vector.VectorEnv)
    spec = _spec_of_slots(env) if vector else env.spec
    if spec is None:
        bare = env.unwrapped is env and not vector
        return (_reference(type(env)) if bare else None) or f"<{_label(type(env))}>", {}
    wrappers = [wrapper.name for wrapper in spec.additional_wrappers]
    wrappers += [type(env).__name__] if isinstance(env, gymnasium.vector.VectorWrapper) else []
    known, length = gymnasium.registry.get(spec.id), spec.max_episode_steps
    options = {name: value for name, value in spec.kwargs.items() if name not in _NOT_THE_TASK}
    if known is not None and known.max_episode_steps != length:
        options["max_episode_steps"] = length
    if wrappers or known is None or not _is_json(options):
        return f"<{' in '.join([spec.id, *wrappers])}>", {}
    return str(spec.id), options


_NOT_THE_TASK = frozenset({"render_mode", "max_episode_steps", "num_envs", "vectorization_mode", "vector_kwargs"})


def _spec_of_slots(vector: Any) -> Any:
    """That of every environment of a vector, if it is the same."""
    if vector.spec is not None or not isinstance(vector.unwrapped, _FROM_PARTS):
        return vector.spec
    first, *others = vector.unwrapped.get_attr("spec")
    return first if all(other == first for other in others) else None


_FROM_PARTS = (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv)


def _is_json(options: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(options)) == options)
    except (TypeError, ValueError):
        return False


def _reference(source: Any) -> str | None:
    """`module:name` where importing that module and looking the name up gives this very thing."""
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", None)
    found: Any = sys.modules.get(str(module))
    if module in {None, "__main__", "builtins"} or name is None or found is None:
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is source else None


def _label(source: Any) -> str:
    return str(getattr(source, "__qualname__", type(source).__qualname__)).replace(",", " ")
