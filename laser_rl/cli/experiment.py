"""`laser experiment` reproduces the paper's figures and tables."""

import shlex
from collections.abc import Callable

import tyro

from laser_rl.errors import ConfigError, require_modules
from laser_rl.research.experiment import EXPERIMENTS
from laser_rl.research.run_experiments import Plan, listing, run_experiments, show_reports


def experiment_command(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("list", [])
    if command in {"-h", "--help"}:
        print("usage: laser experiment {list,run,report} [OPTIONS]\n\nlaser experiment run --help explains one")
        return 0
    if command in {*EXPERIMENTS, "all"}:  # `laser experiment sharing` is short for `laser experiment run sharing`
        command, rest = "run", arguments
    commands: dict[str, Callable[..., Plan | str | None]] = {"list": listing, "run": Plan, "report": show_reports}
    if command not in commands:
        raise ConfigError(f"laser experiment {command}: expected {', '.join(commands)}, or an experiment's name")
    if command != "list":  # before hours of runs that could not be judged
        require_modules("laser experiment", "experiments", "matplotlib", "scipy")
    found = tyro.cli(commands[command], prog=f"laser experiment {command}", args=rest)
    if isinstance(found, Plan):
        if not found.names:
            raise ConfigError("run which experiment? 'laser experiment list' shows them")
        run_experiments(found, shlex.join(["laser", "experiment", "run", *rest]))
    elif found is not None:
        print(found)
    return 0
