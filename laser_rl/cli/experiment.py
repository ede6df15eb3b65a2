"""`laser experiment` reproduces the paper's figures and tables, `laser theory` computes its propositions."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass

import tyro

from laser_rl.errors import ConfigError, require_modules
from laser_rl.research.experiment import EXPERIMENTS
from laser_rl.research.propositions import show
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


@dataclass(frozen=True)
class Theory:
    """Compute the paper's five propositions on a random Markov decision process, for one policy and four behaviours."""

    states: int = 4
    """How many states the process has."""
    actions: int = 3
    """How many actions each state offers."""
    discount: float = 0.9
    """gamma."""
    clip_rho: float = 1.0
    """V-trace's clipping constant, rho-bar."""
    bound: float = 0.1
    """The trust region's threshold b on KL(policy || implied policy)."""
    sharpness: float = 2.0
    """How deterministic the random policies are; 1 is uniform on the simplex."""
    seed: int = 0
    """Of the process and the policies."""

    def __call__(self) -> int:
        show(**vars(self))
        return 0
