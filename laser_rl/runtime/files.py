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
