"""What members of a sweep differ in, from flags and files; later sources win: recipe, file, flags."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl import recipes
from laser_rl.cli.settings import base_from, environment_of, merged, read_file, recipe_of
from laser_rl.config import Config, full_name
from laser_rl.errors import ConfigError
from laser_rl.training.settings import SweepConfig, sweep_from

SOURCES = ("grid", "random", "members")
_LISTS = {"--grid", "--random"}
_WORDS = {"True": True, "False": False, "None": None}  # as other flags take them
_KINDS = {"log_uniform": ("low", "high"), "uniform": ("low", "high"), "choice": None}


class Begun(NamedTuple):
    """Where the flags of a sweep begin."""

    base: Config
    rest: dict[str, Any]  # all other fields of a sweep


def begin(recipe: str | None, file: Path | None, env: str | None, asked: Mapping[str, Any] | None = None) -> Begun:
    """The recipe, of a sweep or of one agent, or what fits the environment; then the file's values over it."""
    stored = _read(file) if file is not None else {}
    sections = stored.pop("base", {})
    if not isinstance(sections, dict):
        raise ConfigError(f"base is {sections!r}, expected sections such as 'loss:' with settings under them")
    named = recipe_of(stored) or recipe_of(sections)
    stored.pop("recipe", None)
    recipe, env = recipe or named, env or environment_of(sections)
    rest: dict[str, Any] = {}
    if recipe in recipes.SWEEPS:
        sweep = recipes.sweep_by_name(recipe, env)
        rest = sweep.model_dump(exclude={"base"})
        base = merged(sweep.base, {name: value for name, value in sections.items() if name != "recipe"})
    else:
        _require_recipe(recipe)
        base = base_from(sections, recipe, env, asked)
    if any(stored.get(name) for name in SOURCES):
        rest = {name: value for name, value in rest.items() if name not in {*SOURCES, "draws"}}
    return Begun(base, rest | stored)


def _require_recipe(name: str | None) -> None:
    known = [*recipes.SWEEPS, *recipes.RECIPES]
    if name is not None and name not in {*known, "default"}:
        hint = _close_to(name, known) or f"there are {', '.join(known)}"
        raise ConfigError(f"there is no recipe {name!r}; {hint}")


def _close_to(name: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _read(file: Path) -> dict[str, Any]:
    values = read_file(file)
    if values.pop("format", None) is not None:  # the sweep.json of a run directory; it says some things twice
        values.pop("settings", None)
    known = [*SweepConfig.model_fields, "recipe"]
    for name in values:
        if name not in known:
            hint = _close_to(name, known) or "settings of all members go under 'base:'"
            raise ConfigError(f"{file} has {name!r}, expected {', '.join(known)}; {hint}")
    if isinstance(values.get("stack"), bool):  # YAML's on and off
        values["stack"] = "on" if values["stack"] else "off"
    plain = {name: value for name, value in values.items() if name not in {*SOURCES, "draws", "base", "recipe"}}
    sweep_from({**plain, "members": [{}]})  # refuses a bad value before flags are read over it
    return {name: _numbers(value) if name in SOURCES else value for name, value in values.items()}


def _numbers(value: Any) -> Any:
    """With 1e-3, which YAML takes for text, as a number."""
    if isinstance(value, dict):
        return {name: _numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    return value_of(value) if isinstance(value, str) else value


def one_by_one(arguments: Sequence[str]) -> list[str]:
    """Several words after --grid or --random as flags of their own.

    >>> one_by_one(["--grid", "a=1,2", "b=3", "--plain", "c=4"])
    ['--grid', 'a=1,2', '--grid', 'b=3', '--plain', 'c=4']
    """
    words: list[str] = []
    flag = ""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word.startswith("--"):
            flag = word if word in _LISTS else ""
        elif flag and before != flag and "=" in word:
            words.append(flag)
        words.append(word)
    return words


def grid_of(words: Iterable[str]) -> dict[str, list[Any]]:
    """Lists of values by name.

    >>> grid_of(["learning_rate=3e-4,1e-3", "trust=implied,off", "hidden=[64,64],[32]"])
    {'learning_rate': [0.0003, 0.001], 'trust': ['implied', 'off'], 'hidden': [[64, 64], [32]]}
    """
    example = "--grid learning_rate=3e-4,1e-3"
    found: dict[str, list[Any]] = {}
    for word in words:
        name, values = _named(word, "--grid", example, found)
        parts = re.split(r",(?![^\[]*\])", values)  # not the commas of a list
        if not all(parts):
            raise ConfigError(f"--grid {word}: a value is empty; write {example}")
        found[name] = [value_of(part) for part in parts]
    return found


def random_of(words: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Distributions by name.

    >>> random_of(["learning_rate=log_uniform:1e-4:1e-2"])
    {'learning_rate': {'kind': 'log_uniform', 'low': 0.0001, 'high': 0.01}}
    """
    example = "--random learning_rate=log_uniform:1e-4:1e-2"
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        name, text = _named(word, "--random", example, found)
        kind, *parts = text.split(":")
        if kind not in _KINDS:
            raise ConfigError(f"--random {word}: {kind!r} is no distribution; there are {', '.join(_KINDS)}: {example}")
        values, names = [value_of(part) for part in parts], _KINDS[kind]
        if names is None:
            found[name] = {"kind": kind, "values": values}
        elif len(values) == len(names) and all(isinstance(value, int | float) for value in values):
            found[name] = {"kind": kind, **dict(zip(names, values, strict=True))}
        else:
            raise ConfigError(f"--random {word}: {kind} needs two numbers, got {parts}; write {example}")
    return found


def _named(word: str, flag: str, example: str, found: Mapping[str, Any]) -> tuple[str, str]:
    name, equals, values = word.partition("=")
    if not (name and equals and values):
        raise ConfigError(f"{flag} {word}: expected a name and what follows it; write {example}")
    full = full_name(name)
    if full in {full_name(other) for other in found}:
        raise ConfigError(f"{flag} names {full} twice; give all its values at once: {example}")
    return name, values


def value_of(word: str) -> Any:
    """A number, a list or a word, as a setting takes it.

    >>> [value_of(word) for word in ("1e-3", "8", ".5", "implied", "None", "[64, 64]")]
    [0.001, 8, 0.5, 'implied', None, [64, 64]]
    """
    if word in _WORDS:
        return _WORDS[word]
    try:
        return json.loads(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return word
