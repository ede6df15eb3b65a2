"""Names and small files of a run directory."""

import json
import re
from pathlib import Path

from laser_rl.config import Config, validated
from laser_rl.errors import ConfigError

CONFIG = "config.json"


def read_config(path: Path) -> Config:
    """The configuration of a run directory."""
    file = path / CONFIG
    if not file.exists():
        raise ConfigError(f"{path} is no run directory: it has no {CONFIG}")
    try:
        return validated(json.loads(file.read_text()))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file} cannot be used: {error}") from None


def new_path(parent: Path, environment: str) -> Path:
    """The first free name for a run of this environment.

    >>> new_path(Path("nowhere"), "ALE/Pong-v5").as_posix()
    'nowhere/ALE-Pong-v5-1'
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", environment).strip("-") or "run"
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def require_same(config: Config, stored: Config) -> None:
    """A run goes on with the settings it was started with; only how long, where and what is reported may change."""
    for section in ("environment", "network", "replay", "loss", "optimiser"):
        ours, theirs = getattr(config, section).model_dump(), getattr(stored, section).model_dump()
        for name, value in ours.items():
            _require_equal(f"{section}.{name}", value, theirs[name])
    _require_equal("run.seed", config.run.seed, stored.run.seed)


def _require_equal(name: str, value: object, stored: object) -> None:
    if value != stored:
        raise ConfigError(
            f"this run was started with {name} = {stored}, not {value}; "
            "leave the flag out to go on with it, use --fresh to start again, or choose another --out"
        )
