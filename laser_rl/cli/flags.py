"""Flags, files and recipes become the settings of a run or a sweep; later sources win: recipe, file, flags."""

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from laser_rl import recipes, trust
from laser_rl.cli.options import SHORT, ShowFlags
from laser_rl.config import Config, full_name, override, problems, setting_fields, unknown, validated
from laser_rl.errors import ConfigError, shortened
from laser_rl.training.files import read_sweep
from laser_rl.training.settings import SOURCES, SweepConfig, sweep_from, with_source

# PyYAML takes 30 s for a MiB of short values, and minutes for a number with many colons; JSON is parsed at once.
FILE_LIMIT_BYTES, YAML_LIMIT_BYTES = 1 << 20, 32 << 10
Asked = TypeVar("Asked")
_MOST_VALUES, _MOST_LEVELS = 100_000, 20
_ENV = SHORT["env"]
_WORDS = {"True": True, "False": False, "None": None}  # as other flags take them
_KINDS = ("log_uniform", "uniform", "choice")


@dataclass
class Typed:
    """What was typed after a command."""

    own: dict[str, Any] = field(default_factory=dict)  # values of the command's own flags, as words
    settings: dict[str, Any] = field(default_factory=dict)  # values by full name
    alone: list[str] = field(default_factory=list)  # words that are no flag and no flag's value

    def take(self, flags: Callable[..., Asked], **default: Any) -> Asked:
        """The command's own flags, over `default`."""
        try:
            return flags(**{**default, **self.own})
        except ValidationError as error:
            raise ConfigError(problems(error, unknown)) from None

    def begins(self) -> tuple[Path | None, str | None, str | None]:
        """File, recipe and environment; a word that stands alone is a file or else the environment."""
        files = [self.own["config"]] if "config" in self.own else []
        for word in self.alone:
            if word.startswith("-"):
                raise ConfigError(f"expected flags that begin with two hyphens, got {word}")
            is_file = Path(word).suffix in {".yaml", ".yml", ".json"} or Path(word).is_file()
            others = files if is_file else [self.settings[name] for name in (_ENV,) if name in self.settings]
            if others:
                what = "file" if is_file else "environment"
                raise ConfigError(f"the {what} is given twice, {others[0]} and {word}; leave one of them out")
            if is_file:
                files.append(word)
            else:
                self.settings[_ENV] = word
        return Path(files[-1]) if files else None, self.settings.get("recipe"), self.settings.get(_ENV)


def typed(arguments: Sequence[str], command: type, *, fixed: str = "") -> Typed:
    """Tell a command's own flags from settings: by full name, by last name where only one setting has it, or by a short name.

    `command` is the class of its own flags. `fixed` says why settings that are none of these cannot be given; empty: they can.
    """
    trust.pass_in(*arguments, *(word.partition("=")[2] for word in arguments))
    own = setting_fields(command)
    starts = [place for place, word in enumerate(arguments) if word.startswith("--")]
    found = Typed(alone=list(arguments[: starts[0]] if starts else arguments))
    for start, end in itertools.pairwise([*starts, len(arguments)]):
        word, equals, value = arguments[start].partition("=")
        given, after = [value] if equals else [], list(arguments[start + 1 : end])
        name, kind, negated = _flag(word, own, fixed)
        if kind is bool:
            most = int(not equals and not negated and after[:1] in (["True"], ["False"]))
        else:
            most = len(after) if get_origin(kind) is tuple else int(not equals)
        given, found.alone = given + after[:most], found.alone + after[most:]
        if kind is bool:
            given = given or [str(not negated)]
        elif not given:
            raise ConfigError(f"{word} needs a value")
        if name not in own:
            found.settings[name] = _read_value(kind, given)
        elif get_origin(kind) is tuple:  # may be repeated
            found.own[name] = [*found.own.get(name, []), *given]
        else:
            found.own[name] = _WORDS.get(given[0], given[0])
    return found


def _flag(word: str, own: Mapping[str, FieldInfo], fixed: str) -> tuple[str, Any, bool]:
    """The name and the type of what a flag sets, one of the command's own or a setting, and whether the flag says no."""
    known, asked = setting_fields(), word.removeprefix("--").replace("-", "_")
    section, dot, last = SHORT.get(asked, asked).rpartition(".")
    name, negated = section + dot + last.removeprefix("no_"), last.startswith("no_")
    is_setting = any(name in {full, full.rpartition(".")[2]} for full in known)
    if name not in own and is_setting:
        name = full_name(name)
        if fixed:
            name = name.rpartition(".")[2]
            if name not in own:
                raise ConfigError(f"{asked} {fixed}")
    field = own.get(name) or known.get(name)
    if field is None or (negated and field.annotation is not bool):
        raise ConfigError(unknown(asked, [*own, *SHORT]))
    return name, field.annotation, negated


def _read_value(kind: Any, words: Sequence[str]) -> Any:
    """The value of a setting; several words are a list, and a text is taken as it is."""
    if get_origin(kind) is tuple and not words[0].startswith("["):
        return [value_of(word) for word in words]
    is_text = kind in {str, str | None} and words[0] != "None"
    return words[0] if is_text else value_of(words[0])


def begin(
    file: Path | None, recipe: str | None, env: str | None, *, sweep: bool = False
) -> tuple[Config, dict[str, Any]]:
    """Where the flags begin: a recipe by name, or what fits the environment, and a file's values over it.

    Of a sweep the recipe may be one for sweeps, and all but the base comes as plain values.
    """
    stored: dict[str, Any] = {} if file is None else _read_sweep(file) if sweep else {"base": read_file(file)}
    sections, named = stored.pop("base", {}), stored.pop("recipe", None)
    if not isinstance(sections, dict):
        raise ConfigError(f"base is {sections!r}, expected sections such as 'loss:' with settings")
    recipe = recipe or named or sections.get("recipe")
    if recipe is not None and not isinstance(recipe, str):
        raise ConfigError(f"recipe is {shortened(recipe)}, expected a name; 'laser train --help' lists them")
    section = sections.get("environment")
    known = section.get("id") if isinstance(section, dict) else None
    env = env or (known if isinstance(known, str) else None)  # anything else is refused with the other settings
    if sweep and recipe in recipes.SWEEPS:
        chosen = recipes.SWEEPS[recipe](*([] if env is None else [env]))
        return merged(chosen.base, sections), with_source(chosen.model_dump(exclude={"base"}), stored)
    if recipe is not None or env is None:
        return merged(recipes.by_name(recipe or "cartpole", env), sections), stored
    from laser_rl.api.agent import base_config  # noqa: PLC0415 - torch, and the environment is opened once

    return merged(base_config(env, None), sections), stored


def config_command(arguments: list[str]) -> int:
    """`laser config show`; its output is a file for `laser train --config`, or for `laser sweep` if it is a sweep's."""
    if arguments and arguments[0] != "show":
        raise ConfigError(f"laser config {arguments[0]}: expected laser config show, with flags as of laser train")
    given = typed(arguments[1:], ShowFlags)
    config: Config | SweepConfig = override(begin(*given.begins())[0], given.settings)
    asked = given.take(ShowFlags)
    if asked.run_dir:
        sweep = read_sweep(asked.run_dir)
        config = sweep.base if sweep.single else sweep
    values = config.model_dump(mode="json")
    print(json.dumps(values, indent=2) if asked.json else yaml.safe_dump(values, sort_keys=False).rstrip())
    return 0


def merged(config: Config, stored: Mapping[str, Any]) -> Config:
    """A configuration with what the sections of a file say over it."""
    sections = {name: value for name, value in stored.items() if name != "recipe"}
    network = sections.get("network")
    if isinstance(network, dict) and network.get("memory", "none") != "none":  # as `override` does
        sections["network"] = {"separate_value": False, **network}
    return validated(_merged(config.model_dump(), sections)) if sections else config


def read_file(path: Path) -> dict[str, Any]:
    """Settings from a YAML or JSON file; nothing in it is executed."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    is_json, size = path.suffix == ".json", path.stat().st_size
    limit = FILE_LIMIT_BYTES if is_json else YAML_LIMIT_BYTES
    if size > limit:
        hint = "" if is_json else f"; a .json file may have {FILE_LIMIT_BYTES:,}"
        raise ConfigError(f"{path} has {size:,} bytes, expected a configuration of at most {limit:,}{hint}")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if is_json else _from_yaml(text)
    except Exception as error:  # PyYAML has its own ways to fail: !!bool x is a KeyError
        raise ConfigError(f"{path} cannot be read: {error}") from None
    _require_plain(path, values)
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {type(values).__name__}, expected sections such as 'loss:' with settings")
    trust.note(values, path)
    return values


class _Loader(yaml.SafeLoader):
    """Takes 1e-3 for a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+e[-+]?\d+", re.IGNORECASE), list("+-0123456789")
)


def _from_yaml(text: str) -> Any:
    depths = itertools.accumulate((letter in "[{") - (letter in "]}") for letter in text)
    if max(depths, default=0) > _MOST_LEVELS:  # PyYAML would take more than a second to find that out
        raise ValueError(f"expected at most {_MOST_LEVELS} levels of brackets")
    return _Loader(text).get_single_data()


def _require_plain(path: Path, values: Any) -> None:
    """A few lines of YAML can stand for billions of values, or for a value that holds itself: by aliases of aliases."""
    waiting, count = [(values, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
        count += len(inner)
        if depth > _MOST_LEVELS or count > _MOST_VALUES:
            raise ConfigError(
                f"{path} cannot be read: expected at most {_MOST_VALUES:,} values in {_MOST_LEVELS} levels, aliases written out"
            )
        waiting += [(one, depth + 1) for one in inner]


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        name: _merged(base[name], value)
        for name, value in over.items()
        if isinstance(value, dict) and isinstance(base.get(name), dict)
    }
    return {**base, **over, **inner}


def _read_sweep(file: Path) -> dict[str, Any]:
    values = read_file(file)
    if values.pop("format", None) is not None:  # the sweep.json of a run directory; it says some things twice
        values.pop("settings", None)
    if isinstance(values.get("stack"), bool):  # YAML's on and off
        values["stack"] = "on" if values["stack"] else "off"
    plain = {name: value for name, value in values.items() if name not in {*SOURCES, "draws", "base", "recipe"}}
    sweep_from({**plain, "members": [{}]})  # refuses a bad value before flags are read over it
    return values


def grid_of(words: Iterable[str]) -> dict[str, list[Any]]:
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
    example = "--random learning_rate=log_uniform:1e-4:1e-2"
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        name, text = _named(word, "--random", example, found)
        kind, *parts = text.split(":")
        if kind not in _KINDS:
            raise ConfigError(f"--random {word}: {kind!r} is no distribution; there are {', '.join(_KINDS)}: {example}")
        values = [value_of(part) for part in parts]
        if kind == "choice":
            found[name] = {"kind": kind, "values": values}
        elif [type(value) in {int, float} for value in values] == [True, True]:
            found[name] = {"kind": kind, "low": values[0], "high": values[1]}
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
    """A number, a list or a word, as a setting takes it."""
    if word in _WORDS:
        return _WORDS[word]
    for reading in (json.loads, float):
        with contextlib.suppress(ValueError):
            return reading(word)
    return word
