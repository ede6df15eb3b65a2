"""Flags, files and recipes become one configuration; later sources win: recipe, file, flags."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
import yaml
from pydantic import ValidationError

from laser_rl import recipes, trust
from laser_rl.config import Config, override, problems, validated
from laser_rl.errors import ConfigError, shortened

# PyYAML takes 30 s for a MiB of short values, and minutes for a number with many colons; JSON is parsed at once.
FILE_LIMIT_BYTES, YAML_LIMIT_BYTES = 1 << 20, 32 << 10
Asked = TypeVar("Asked")
_MOST_VALUES, _MOST_LEVELS = 100_000, 20
# PyYAML's safe constructors also fail in ways of their own: !!bool x is a KeyError, !!timestamp x an AttributeError.
_UNREADABLE = (
    yaml.YAMLError,
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Shortcuts:
    """What is asked for most, under short names; each stands for a full setting."""

    env: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None
    """What to play: environment.id."""
    steps: int | None = None
    """Environment steps: run.steps; 200k and 5M are understood."""
    budget_minutes: float | None = None
    """Minutes of training, if the steps are not done before: run.budget-minutes."""
    seed: int | None = None
    """run.seed."""
    runtime: Annotated[str | None, tyro.conf.arg(metavar="{serial,local}")] = None
    """run.runtime."""
    device: str | None = None
    """run.device."""
    video_every: int | None = None
    """Environment steps between two videos: run.video-every-steps; 1M is understood."""
    replay_from: Annotated[str | None, tyro.conf.arg(metavar="RUN_DIR")] = None
    """Begin with the replay of another run or sweep: replay.start_from."""

    def over(self, config: Config) -> Config:
        """A configuration with those that were given over it."""
        full = {
            "env": "environment.id",
            "steps": "run.steps",
            "budget_minutes": "run.budget_minutes",
            "seed": "run.seed",
            "runtime": "run.runtime",
            "device": "run.device",
            "video_every": "run.video_every_steps",
            "replay_from": "replay.start_from",
        }
        return override(config, {full[name]: value for name, value in vars(self).items() if value is not None})


def peek(arguments: list[str]) -> tuple[str | None, Path | None, str | None, dict[str, str]]:
    """The three flags that decide what the others begin with, and those of the network by their full names.

    >>> peek(["--env", "Pendulum-v1", "--network.memory=lstm", "--network.no-separate-value"])[3]
    {'network.memory': 'lstm', 'network.separate_value': ''}
    """
    found: dict[str, str] = {}
    network: dict[str, str] = {}
    for number, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        value = value if equals else next(iter(arguments[number + 1 :]), "")
        if flag in {"--recipe", "--config", "--env", "--environment.id", "--id"}:
            found[flag] = value
        elif flag.startswith("--network."):
            network[flag.removeprefix("--").replace("-", "_").replace(".no_", ".")] = value
    file = found.get("--config")
    env = found.get("--env") or found.get("--environment.id")
    trust.pass_in(env or "")
    return found.get("--recipe"), Path(file) if file else None, env, network


def base_config(
    recipe: str | None, file: Path | None, env: str | None, asked: Mapping[str, Any] | None = None
) -> Config:
    """Where the flags begin: the recipe by name, or what fits the environment; then the file's values over it."""
    return base_from(read_file(file) if file is not None else {}, recipe, env, asked)


def base_from(
    stored: Mapping[str, Any], recipe: str | None, env: str | None, asked: Mapping[str, Any] | None = None
) -> Config:
    """The same from what a file holds; a recipe's choice gives way to what the file or the flags ask for."""
    sections = {name: value for name, value in stored.items() if name != "recipe"}
    env = env or environment_of(stored)
    recipe = recipe or recipe_of(stored)
    if recipe == "default" or (recipe is None and env is None):
        recipe = "cartpole"
    config = recipes.by_name(recipe, env) if recipe is not None else fitting(env or "")
    network = sections.get("network")
    from_file = {f"network.{name}": value for name, value in network.items()} if isinstance(network, dict) else {}
    return merged(recipes.giving_way(config, {**from_file, **(asked or {})}), sections)


def recipe_of(stored: Mapping[str, Any]) -> str | None:
    """The recipe that a file names, if it does."""
    name = stored.get("recipe")
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"recipe is {shortened(name)}, expected a name; 'laser train --help' lists them")
    return name


def environment_of(stored: Mapping[str, Any]) -> str | None:
    """The environment that the sections of a file name, if they do."""
    section = stored.get("environment")
    name = section.get("id") if isinstance(section, dict) else None
    return name if isinstance(name, str) else None  # anything else is refused with the other settings


def merged(config: Config, sections: Mapping[str, Any]) -> Config:
    """A configuration with what a file says over it."""
    return validated(_merged(config.model_dump(), sections)) if sections else config


def fitting(env: str) -> Config:
    """The recipe that fits an environment, which is opened once to be looked at."""
    from laser_rl.training.evaluate import spec_of  # noqa: PLC0415 - torch: not for a look at a report

    return recipes.for_environment(spec_of(env, recipes.cartpole(env)), env)


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
        if not is_json and _brackets(text) > _MOST_LEVELS:  # PyYAML would take more than a second to find that out
            raise ConfigError(f"{path} cannot be read: expected at most {_MOST_LEVELS} levels of brackets")
        values = json.loads(text) if is_json else yaml.safe_load(text)
    except _UNREADABLE as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    _require_plain(path, values)
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {type(values).__name__}, expected sections such as 'loss:' with settings under them"
        )
    trust.note(values, path)
    return values


def _brackets(text: str) -> int:
    """How many are open at once, at most; those in quotes count as well."""
    return max(itertools.accumulate((letter in "[{") - (letter in "]}") for letter in text), default=0)


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
    merged = dict(base)
    for name, value in over.items():
        inner = merged.get(name)
        # `options` is the user's own: replaced whole.
        merged[name] = (
            _merged(inner, value)
            if isinstance(inner, dict) and isinstance(value, dict) and name != "options"
            else value
        )
    return merged


def flags(default: Asked, prog: str, arguments: list[str]) -> Asked:
    """What the flags ask for, over `default`; settings that do not go together are refused like any other mistake."""
    trust.pass_in(*arguments, *(word.partition("=")[2] for word in arguments))
    try:
        return tyro.cli(type(default), prog=prog, args=arguments, default=default)
    except ValidationError as error:  # tyro sees to those within one section
        raise ConfigError(problems(error)) from None
