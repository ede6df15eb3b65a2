"""`laser config`, `laser report`: to look at things without changing them, also while they are written; the flags of `laser status`."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro
import yaml

from laser_rl.cli.options import ShowFlags
from laser_rl.config import Config, override
from laser_rl.errors import ConfigError
from laser_rl.training.files import read_sweep
from laser_rl.training.settings import SweepConfig
from laser_rl.view.report import report


def config_command(arguments: list[str]) -> int:
    """`laser config show`; its output is a file for `laser train --config`, or for `laser sweep` if it is a sweep's."""
    from laser_rl.cli.flags import begin, typed  # noqa: PLC0415 - recipes, which the other commands do not need

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


@dataclass(frozen=True)
class Report:
    """Write a report, one HTML file: of a run, of a sweep, or of several of them side by side. Reads only, also while they go on."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    out: Path | None = None
    """The HTML file; by default report.html in the directory or, of several, where you are."""

    def __call__(self) -> int:
        if self.out is not None and (self.out.is_dir() or self.out.suffix not in {".html", ".htm"}):
            raise ConfigError(f"--out names the HTML file, expected something like report.html, got {self.out}")
        print(report(*self.run_dirs, out=self.out))
        return 0


@dataclass(frozen=True)
class Status:
    """How runs and sweeps stand: a line a member. Reads only, so it may be asked at any time."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    json: bool = False
    """Everything as JSON, a list with one object a directory."""
