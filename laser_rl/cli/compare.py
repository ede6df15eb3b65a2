"""`laser compare`: Atari runs beside the columns of the paper's per-game table."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from laser_rl.cli.settings import expand_numbers
from laser_rl.errors import ConfigError
from laser_rl.research.paper import as_csv, as_json, compared, show


@dataclass(frozen=True)
class Compare:
    """Atari runs and sweeps beside LASER and Rainbow, game by game. Reads only, so it may be asked while they go on.

    A score is the mean return of the last 100 episodes in training, as in the paper's table; of a sweep, that of its best member. Medians
    are over the games that were run, of your runs as of the paper's agents.
    """

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps, each on one game."""
    frames: int | None = None
    """How the runs stood after so many frames, e.g. 50M; a step is four."""
    json: bool = False
    """Everything as JSON, medians included."""
    csv: bool = False
    """One line a run or sweep as CSV, without medians."""


def compare_command(arguments: list[str]) -> int:
    """`laser compare`."""
    asked = tyro.cli(Compare, prog="laser compare", args=expand_numbers(arguments))
    if not asked.run_dirs:
        raise ConfigError("compare what? name one or more run directories: laser compare runs/*")
    if asked.json and asked.csv:
        raise ConfigError("expected --json or --csv, got both; choose one")
    found = compared(asked.run_dirs, asked.frames)
    if asked.json:
        print(as_json(found))
    elif asked.csv:
        print(as_csv(found), end="")
    else:
        show(found)
    return 0
