"""`laser verify`: is every file of a run or sweep what was written?"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from laser_rl.errors import ConfigError
from laser_rl.tools.verify import exit_status, findings, text


@dataclass(frozen=True)
class Verify:
    """Check every file of runs and sweeps: settings, metrics, checkpoints, replay. A line a file.

    Exit status 3 if one is damaged or was changed, 6 if one cannot be read.
    """

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    json: bool = False
    """Everything as JSON, a list with one object a directory."""


def verify_command(arguments: list[str]) -> int:
    """`laser verify`."""
    asked = tyro.cli(Verify, prog="laser verify", args=arguments)
    if not asked.run_dirs:
        raise ConfigError("verify what? name one or more run directories: laser verify runs/*")
    found = {run_dir: list(findings(run_dir)) for run_dir in asked.run_dirs}
    if asked.json:
        listed = [{"run_dir": str(path), "files": [asdict(one) for one in files]} for path, files in found.items()]
        print(json.dumps(listed, indent=2))
    else:
        print("\n\n".join(text(path, files) for path, files in found.items()))
    return exit_status(one for files in found.values() for one in files)
