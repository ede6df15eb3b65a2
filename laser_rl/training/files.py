"""Names and small files of a run directory."""

import itertools
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl import checkpoint, trust
from laser_rl.checkpoint import guarded
from laser_rl.config import Config, validated
from laser_rl.errors import ConfigError, UserError, shortened
from laser_rl.metrics.display import flat_settings
from laser_rl.training.settings import FORMAT, SweepConfig, sweep_from
from laser_rl.trust import code_in

CONFIG, SWEEP = "config.json", "sweep.json"
SETTINGS = "settings"  # under this name a checkpoint's state holds what these files hold
EVALUATION_DUE = "evaluation_due"  # a note in a member's state: all steps are done, the last evaluation is not
LIMIT_BYTES = 4 << 20


class Change(NamedTuple):
    """A setting that is not what the checkpoint says."""

    name: str
    before: object
    now: object

    def __str__(self) -> str:
        return f"{self.name} is {shortened(self.now)}, and {shortened(self.before)} in the newest checkpoint"

    @property
    def allowed(self) -> bool:
        """Whether a run may go on with it: how long it runs, where, and what it reports."""
        free = self.name.startswith("run.") or self.name in {"processes", "stack", "recipe"}
        return free and self.name != "run.seed"


def is_sweep(path: Path) -> bool:
    return (path / SWEEP).exists()


def read_sweep(path: Path, *, used: bool = True) -> SweepConfig:
    """The settings of a run directory, of one agent or of a sweep; not `used` where they are only compared with others."""
    file = path / (SWEEP if is_sweep(path) else CONFIG)
    if not file.exists():
        raise ConfigError(f"{path} is no run directory: it has no {file.name}")
    try:
        values = json.loads(guarded.read_bytes(file, limit=LIMIT_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be used: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} cannot be used: it holds {type(values).__name__}, expected settings")
    if used:
        trust.note(values, file)
    try:
        return _settings_in(file, values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _settings_in(file: Path, values: Mapping[str, Any]) -> SweepConfig:
    if file.name == CONFIG or "base" not in values:
        return SweepConfig(base=validated(values))
    if values.get("format") != FORMAT:
        raise ConfigError(f"format is {values.get('format')}, expected {FORMAT}; please upgrade laser-rl")
    return sweep_from({name: value for name, value in values.items() if name not in {"format", "recipe", "settings"}})


def described(sweep: SweepConfig) -> dict[str, Any]:
    """Settings as JSON: those of one agent alone, or of a sweep, where `settings` says what each member differs in."""
    if sweep.single:
        return sweep.base.model_dump(mode="json")
    settings = json.loads(json.dumps(sweep.settings))
    return {"format": FORMAT, "recipe": sweep.base.recipe, "settings": settings, **sweep.model_dump(mode="json")}


def begun_with(path: Path) -> SweepConfig | None:
    """The settings in the newest checkpoint, which a manifest's SHA-256 covers, unlike the files that people edit; None if it has none."""
    state = checkpoint.newest_state(path)
    values = None if state is None else state.get(SETTINGS)
    return _settings_in(path / checkpoint.CHECKPOINTS, values) if isinstance(values, dict) else None


def changes(path: Path) -> list[Change] | None:
    """What the file of a run or sweep says otherwise than its newest checkpoint; None if no checkpoint holds settings."""
    begun = begun_with(path)
    return None if begun is None else _differences(begun, read_sweep(path, used=False))


def _differences(before: SweepConfig, now: SweepConfig) -> list[Change]:
    old, new = _flat(before), _flat(now)
    return [Change(name, old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


def _flat(settings: SweepConfig) -> dict[str, Any]:
    values = described(settings)
    values.pop("settings", None)  # what members differ in follows from the grid or the draws
    return flat_settings({**values.pop("base", {}), **values})


def command_for(verb: str, path: Path) -> str:
    """`laser resume RUN_DIR`, or another command for it, as it has to be typed: with the flag where the settings name code."""
    try:
        members = read_sweep(path, used=False).configs
    except UserError:  # the command itself says why
        members = ()
    named = any(map(_code_of, members))
    return f"laser {verb} {shlex.quote(str(path))}" + (f" {trust.FLAG}" if named else "")


def require_trusted(*configs: Config) -> None:
    """`Untrusted` if only a file gave the name of code in one of these, before anything is written or started."""
    for one in configs:
        trust.require(*_code_of(one))


def _code_of(config: Config) -> list[str]:
    environment = config.environment
    return code_in(environment.id, environment.options, config.loss.trust, config.optimiser.schedule)


def awaits_evaluation(training: Mapping[str, Any]) -> bool:
    return bool(training.get("notes", {}).get(EVALUATION_DUE, 0))


def has_ended(training: Mapping[str, Any]) -> bool:
    """Whether a member with this state of its training has done its steps and was evaluated after them, or is about to be."""
    evaluated = training.get("evaluated")
    return awaits_evaluation(training) or bool(evaluated and evaluated[-1][0] == training["steps"])


def new_path(parent: Path, environment: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", environment).strip("-") or "run"
    return next(path for n in itertools.count(1) if not (path := parent / f"{name}-{n}").exists())


def require_same(path: Path, given: SweepConfig | None, *, accept_changes: bool) -> None:
    """ConfigError unless a run goes on with its members and settings; how long, where and what is reported may change."""
    there = read_sweep(path, used=False)
    sweep, stored = given or there, (None if accept_changes else begun_with(path)) or there
    go_on = "use 'laser resume --accept-changes' to go on with what the file says, --fresh to start again, or choose another --out"
    if list(sweep.settings) != list(stored.settings):
        members = f"{len(stored.settings)} members {list(stored.settings)}"
        raise ConfigError(f"this sweep was started with {members}, not with {list(sweep.settings)}; {go_on}")
    # The same members may be named by a grid, by draws or one by one.
    named = {"grid", "random", "draws", "members"}
    found = [one for one in _differences(stored, sweep) if not one.allowed and one.name.partition(".")[0] not in named]
    if found:
        said = "; ".join(f"{one.name} = {one.before}, not {one.now}" for one in found)
        raise ConfigError(f"this run was started with {said}; leave the flag out or set the file back, {go_on}")
