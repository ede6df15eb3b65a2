"""`laser train`, `laser resume`."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from laser_rl import checkpoint
from laser_rl.cli.settings import Shortcuts, apply, base_config, expand_numbers
from laser_rl.config import Config, override
from laser_rl.errors import ConfigError
from laser_rl.metrics.console import Console
from laser_rl.metrics.curves import report
from laser_rl.metrics.tensorboard import TensorBoard
from laser_rl.recipes import RECIPES
from laser_rl.runtime.directory import RunDirectory, new_path
from laser_rl.runtime.launch import Result, train
from laser_rl.runtime.stop import EXIT_STATUS


@dataclass(frozen=True)
class Train:
    """Train one agent. Begin with a recipe and an environment; every setting below can be changed."""

    recipe: Annotated[str | None, tyro.conf.arg(metavar="{" + ",".join(RECIPES) + "}")] = None
    """Where the settings begin; chosen by the environment if left out."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """A YAML or JSON file with settings."""
    out: Path | None = None
    """The run directory; runs/NAME-1, -2, ... if left out. An existing one goes on where it stopped."""
    fresh: bool = False
    """Throw away what the run directory holds and start again."""
    plain: bool = False
    """Lines instead of a live table."""
    quick: Annotated[Shortcuts, tyro.conf.arg(name="")] = field(default_factory=Shortcuts)
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def train_command(arguments: list[str]) -> int:
    """`laser train`."""
    arguments = expand_numbers(arguments)
    peek = _peek(arguments)
    asked = tyro.cli(
        Train, prog="laser train", args=arguments, default=Train(settings=base_config(*peek)), config=(tyro.conf.OmitArgPrefixes,)
    )
    config = apply(asked.settings, asked.quick)
    path = asked.out or new_path(Path("runs"), config.environment.id)
    if asked.fresh and path.exists():
        checkpoint.clear(path)
    return run_in(path, config, plain=asked.plain)


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, killed or finished."""

    run_dir: tyro.conf.Positional[Path]
    steps: int | None = None
    """A new total number of environment steps."""
    fresh: bool = False
    """Start again from nothing, with the same settings."""
    plain: bool = False
    """Lines instead of a live table."""


def resume_command(arguments: list[str]) -> int:
    """`laser resume`."""
    from laser_rl.runtime.directory import read_config  # noqa: PLC0415

    asked = tyro.cli(Resume, prog="laser resume", args=expand_numbers(arguments))
    config = read_config(asked.run_dir)
    if asked.steps is not None:
        config = override(config, {"run.steps": asked.steps})
    if asked.fresh:
        checkpoint.clear(asked.run_dir)
    elif checkpoint.latest(asked.run_dir) is None:
        raise ConfigError(f"{asked.run_dir} holds no checkpoint to go on from; use --fresh to start again")
    return run_in(asked.run_dir, config, plain=asked.plain)


def run_in(path: Path, config: Config, *, plain: bool) -> int:
    """Train in a run directory and say how it went and what can be done next."""
    directory = RunDirectory(path, config)
    live = sys.stdout.isatty() and not plain
    with Console(total_steps=config.run.steps, live=live, title=f"{config.environment.id} in {path}") as console:
        board = TensorBoard(path)
        try:
            result = train(config, directory, sinks=[directory.log, board, console])
        finally:
            board.close()
            directory.close()
    return _farewell(path, result)


def _farewell(path: Path, result: Result) -> int:
    if result.interrupted is not None:
        print(f"stopped ({result.interrupted}) at step {result.steps:,}; go on with: laser resume {path}")
        return EXIT_STATUS.get(result.interrupted, 1)
    print(f"done: {result.steps:,} steps, {result.updates:,} updates, {result.evaluation}")
    print(f"report:   {report(path)}")
    print(f"evaluate: laser evaluate {path} --episodes 100")
    print(f"watch:    laser enjoy {path} --video {path}/video.mp4")
    print(f"curves:   tensorboard --logdir {path}")
    return 0


def _peek(arguments: list[str]) -> tuple[str | None, Path | None, str | None]:
    """The three flags that decide what the others begin with."""
    found: dict[str, str] = {}
    for number, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in {"--recipe", "--config", "--env", "--environment.id", "--id"}:
            found[flag] = value if equals else next(iter(arguments[number + 1 :]), "")
    file = found.get("--config")
    env = found.get("--env") or found.get("--environment.id")
    return found.get("--recipe"), Path(file) if file else None, env
