"""Names and small files of a run directory."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from laser_rl import trust
from laser_rl.checkpoint import guarded
from laser_rl.config import Config, validated
from laser_rl.errors import ConfigError, UserError
from laser_rl.sweep.settings import FORMAT, SweepConfig, sweep_from
from laser_rl.trust import code_in

CONFIG, SWEEP = "config.json", "sweep.json"
_LIMIT_BYTES = 4 << 20


def read_config(path: Path, *, used: bool = True) -> Config:
    """The configuration of a run directory; not `used` where it is only compared with one that did not come from a file."""
    if not (path / CONFIG).exists() and is_sweep(path):
        raise ConfigError(f"{path} is a sweep; say which member, or use a command for sweeps")
    return validated(_read(path, CONFIG, used=used))


def is_sweep(path: Path) -> bool:
    """Whether a run directory is that of a sweep."""
    return (path / SWEEP).exists()


def read_sweep(path: Path, *, used: bool = True) -> SweepConfig:
    """The settings of a sweep's run directory; `used` as of `read_config`."""
    values = _read(path, SWEEP, used=used)
    if values.pop("format", None) != FORMAT:
        raise ConfigError(f"{path / SWEEP} is of another format than {FORMAT}; please upgrade laser-rl")
    for derived in ("recipe", "settings"):
        values.pop(derived, None)
    return sweep_from(values)


def command_for(verb: str, path: Path) -> str:
    """`laser resume RUN_DIR`, or another command for it, as it has to be typed: with the flag where the settings name code.

    >>> command_for("resume", Path("runs/my run"))
    "laser resume 'runs/my run'"
    """
    try:
        members = read_sweep(path, used=False).configs if is_sweep(path) else [read_config(path, used=False)]
    except UserError:  # whoever types it hears why
        members = []
    named = any(code_in(one.environment.id, one.environment.options, one.loss.trust) for one in members)
    return f"laser {verb} {shlex.quote(str(path))}" + (f" {trust.FLAG}" if named else "")


def require_trusted(*configs: Config) -> None:
    """`Untrusted` if only a file gave the name of code in one of these, before anything is written or started."""
    for one in configs:
        trust.require(*code_in(one.environment.id, one.environment.options, one.loss.trust))


def _read(path: Path, name: str, *, used: bool = True) -> dict[str, Any]:
    file = path / name
    if not file.exists():
        raise ConfigError(f"{path} is no run directory: it has no {name}")
    try:
        values = json.loads(guarded.read_bytes(file, limit=_LIMIT_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be used: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} cannot be used: it holds {type(values).__name__}, expected settings")
    if used:
        trust.note(values, file)
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
