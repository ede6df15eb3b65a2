"""Names and small files of a run directory."""

import json
import re
from pathlib import Path
from typing import Any

from laser_rl.checkpoint import guarded
from laser_rl.config import Config, validated
from laser_rl.errors import ConfigError
from laser_rl.sweep.settings import FORMAT, SweepConfig, sweep_from

CONFIG, SWEEP = "config.json", "sweep.json"
_LIMIT_BYTES = 4 << 20


def read_config(path: Path) -> Config:
    """The configuration of a run directory."""
    if not (path / CONFIG).exists() and is_sweep(path):
        raise ConfigError(f"{path} is a sweep; say which member, or use a command for sweeps")
    return validated(_read(path, CONFIG))


def is_sweep(path: Path) -> bool:
    """Whether a run directory is that of a sweep."""
    return (path / SWEEP).exists()


def read_sweep(path: Path) -> SweepConfig:
    """The settings of a sweep's run directory."""
    values = _read(path, SWEEP)
    if values.pop("format", None) != FORMAT:
        raise ConfigError(f"{path / SWEEP} is of another format than {FORMAT}; please upgrade laser-rl")
    for derived in ("recipe", "settings"):
        values.pop(derived, None)
    return sweep_from(values)


def _read(path: Path, name: str) -> dict[str, Any]:
    file = path / name
    if not file.exists():
        raise ConfigError(f"{path} is no run directory: it has no {name}")
    try:
        values = json.loads(guarded.read_bytes(file, limit=_LIMIT_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be used: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} cannot be used: it holds {type(values).__name__}, expected settings")
    return values


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


def require_same_sweep(sweep: SweepConfig, stored: SweepConfig) -> None:
    """A sweep goes on with the members it was started with; how they are spread over processes may change."""
    require_same(sweep.base, stored.base)
    _require_equal("share", sweep.share, stored.share)
    _require_equal("pbt", sweep.pbt, stored.pbt)
    if list(sweep.settings) != list(stored.settings):
        raise ConfigError(
            f"this sweep was started with {len(stored.settings)} members {list(stored.settings)}, not with {list(sweep.settings)}; "
            "use --fresh to start again, or choose another --out"
        )


def _require_equal(name: str, value: object, stored: object) -> None:
    if value != stored:
        raise ConfigError(
            f"this run was started with {name} = {stored}, not {value}; "
            "leave the flag out to go on with it, use --fresh to start again, or choose another --out"
        )
