"""`laser train`, `laser resume`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console as Terminal

from laser_rl import checkpoint
from laser_rl.cli.play import how_to_watch
from laser_rl.cli.settings import Shortcuts, apply, base_config, expand_numbers, flags, peek
from laser_rl.cli.sweep import broken_off, sweep_in
from laser_rl.cli.watch import dashboard_of, require_dashboard
from laser_rl.config import Config, override
from laser_rl.errors import ConfigError
from laser_rl.metrics.console import Console
from laser_rl.metrics.tensorboard import TensorBoardLog
from laser_rl.metrics.tracking import hint, named, reached, tracked, trackers
from laser_rl.runtime.cluster.settings import cluster_of, free_running
from laser_rl.runtime.directory import RunDirectory
from laser_rl.runtime.files import (
    command_for,
    is_sweep,
    new_path,
    read_config,
    read_sweep,
    require_trusted,
    require_unchanged,
)
from laser_rl.runtime.launch import Result, train
from laser_rl.runtime.stop import EXIT_STATUS, nothing_to_save


@dataclass(frozen=True)
class Train:
    """Train one agent. Begin with a recipe and an environment; every setting below can be changed."""

    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """A YAML or JSON file with settings."""
    out: Path | None = None
    """The run directory; runs/NAME-1, -2, ... if left out. An existing one goes on where it stopped."""
    fresh: bool = False
    """Throw away what the run directory holds and start again."""
    plain: bool = False
    """Lines instead of a live table."""
    dashboard: bool = False
    """Show the run in a browser while it goes on: a process of its own, on this machine only."""
    track: Annotated[tuple[str, ...], tyro.conf.arg(metavar="wandb,trackio,mlflow")] = ()
    """Rows of metrics also go to one or several trackers, on this machine only unless their own environment variables say otherwise."""
    quick: Annotated[Shortcuts, tyro.conf.arg(name="")] = field(default_factory=Shortcuts)
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def train_command(arguments: list[str]) -> int:
    """`laser train`."""
    arguments = expand_numbers(arguments)
    begin = peek(arguments)
    asked = flags(Train(settings=base_config(*begin)), "laser train", arguments)
    config = apply(asked.settings, asked.quick)
    path = asked.out or new_path(Path("runs"), config.environment.id)
    track = named(asked.track)
    return run_in(path, config, fresh=asked.fresh, plain=asked.plain, dashboard=asked.dashboard, track=track)


@dataclass(frozen=True)
class Resume:
    """Go on with a run or sweep that was stopped, killed or finished."""

    run_dir: tyro.conf.Positional[Path]
    steps: int | None = None
    """A new total number of environment steps, in a sweep of each member."""
    budget_minutes: float | None = None
    """A new total of minutes, those of the earlier sessions included."""
    cluster: Annotated[str | None, tyro.conf.arg(metavar="auto|local|HOST:PORT|ray://HOST:PORT")] = None
    """Go on with a sweep on a Ray cluster, wherever it began; without it, on this machine."""
    cluster_runners: int = 1
    """Environment runners of each member on a cluster."""
    fresh: bool = False
    """Start again from nothing, with the same settings."""
    accept_changes: bool = False
    """Go on although config.json or sweep.json was edited, with what it says now."""
    plain: bool = False
    """Lines instead of a live table."""


def resume_command(arguments: list[str]) -> int:
    """`laser resume`."""
    asked = tyro.cli(Resume, prog="laser resume", args=expand_numbers(arguments))
    given = {"run.steps": asked.steps, "run.budget_minutes": asked.budget_minutes}
    more = {name: value for name, value in given.items() if value is not None}
    sweep = read_sweep(asked.run_dir) if is_sweep(asked.run_dir) else None
    config = override(read_config(asked.run_dir) if sweep is None else sweep.base, more)
    if not asked.fresh and checkpoint.latest(asked.run_dir, replay="unread") is None:
        raise ConfigError(f"{asked.run_dir} holds no checkpoint to go on from; use --fresh to start again")
    if not asked.fresh and not asked.accept_changes:
        require_unchanged(asked.run_dir)
    track, accept = tracked(asked.run_dir), asked.accept_changes
    if sweep is not None:
        sweep, cluster = sweep.model_copy(update={"base": config}), cluster_of(asked.cluster, asked.cluster_runners)
        sweep = sweep if cluster is None else free_running(sweep)
        how: dict[str, Any] = {"track": track, "cluster": cluster, "accept_changes": accept}
        return sweep_in(asked.run_dir, sweep, fresh=asked.fresh, plain=asked.plain, **how)
    if asked.cluster is not None:
        raise ConfigError(f"{asked.run_dir} is a run of one agent, expected a sweep; leave out --cluster")
    return run_in(asked.run_dir, config, fresh=asked.fresh, plain=asked.plain, track=track, accept_changes=accept)


def run_in(
    path: Path,
    config: Config,
    *,
    fresh: bool,
    plain: bool,
    dashboard: bool = False,
    track: Sequence[str] = (),
    accept_changes: bool = False,
) -> int:
    """Train in a run directory and say how it went and what can be done next."""
    try:
        with nothing_to_save():
            require_trusted(config)
            if is_sweep(path) and not fresh:
                raise ConfigError(f"{path} holds a sweep; use --fresh to throw it away, or choose another --out")
            if dashboard:
                require_dashboard()
            directory = RunDirectory(path, config, fresh=fresh, accept_changes=accept_changes)
            return _run_in(directory, config, fresh=fresh, plain=plain, dashboard=dashboard, track=track)
    except KeyboardInterrupt as error:  # before the first step, or again while the end is being saved
        return broken_off(path, error)


def _run_in(
    directory: RunDirectory, config: Config, *, fresh: bool, plain: bool, dashboard: bool, track: Sequence[str]
) -> int:
    path = directory.path
    terminal = Terminal(highlight=False, force_terminal=False if plain else None)
    with (
        dashboard_of(path, asked=dashboard),
        Console(f"{config.environment.id} in {path}", config.run.steps, terminal=terminal) as console,
    ):
        board = TensorBoardLog(path)
        more = trackers(track, path.name, [config.model_dump(mode="json")], path, fresh=fresh)
        try:
            result = train(config, directory, sinks=[directory.log, board, console, *more])
        finally:
            board.close()
            directory.close()
            for sink in more:
                sink.close()
    return _farewell(path, result)


def _farewell(path: Path, result: Result) -> int:
    folder = shlex.quote(str(path))
    if result.interrupted is not None:
        print(f"stopped ({result.interrupted}) at step {result.steps:,}; go on with: {command_for('resume', path)}")
        return EXIT_STATUS.get(result.interrupted, 1)
    from laser_rl.view.report import report  # noqa: PLC0415 - training itself imports nothing of the page

    print(f"done: {result.steps:,} steps, {result.updates:,} updates, {result.evaluation}")
    print(f"report:   {report(path)}")
    print(f"evaluate: {command_for('evaluate', path)} --episodes 100")
    for line in how_to_watch(result.member.config.environment, path):
        print(line)
    print(f"curves:   tensorboard --logdir {folder}")
    for library in reached(path):
        print(f"tracked:  {hint(library, folder)}")
    return 0
