"""`laser sweep`: several agents at once, and what is said at their end."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console as Terminal

from laser_rl import checkpoint, recipes
from laser_rl.api.sweep import require_memory, require_no_run
from laser_rl.cli.play import how_to_watch
from laser_rl.cli.settings import Shortcuts, apply, expand_numbers, flags, peek
from laser_rl.cli.sweep_settings import SOURCES, Begun, begin, grid_of, one_by_one, random_of
from laser_rl.cli.watch import dashboard_of, require_dashboard
from laser_rl.config import Config, full_name
from laser_rl.errors import ConfigError
from laser_rl.metrics.console import Console
from laser_rl.metrics.display import label
from laser_rl.metrics.sink import Sink
from laser_rl.metrics.tensorboard import TensorBoardLog
from laser_rl.metrics.tracking import hint, named, reached, trackers
from laser_rl.runtime.cluster.loading import require_ray
from laser_rl.runtime.cluster.settings import ClusterSettings, cluster_of, free_running, require_possible
from laser_rl.runtime.files import command_for, new_path, require_trusted
from laser_rl.runtime.results import MemberResult, SweepEnd
from laser_rl.runtime.stop import EXIT_STATUS, StoppedAtOnce, nothing_to_save
from laser_rl.runtime.sweep_directory import SweepDirectory
from laser_rl.runtime.sweep_launch import sweep
from laser_rl.sweep.settings import Sharing, SweepConfig, sweep_from


@dataclass(frozen=True)
class Sweep:
    """Train several agents that differ in a few settings, run at the same speed and learn from one replay.

    What members differ in comes from --grid, from --random with --draws, from a file or from a recipe for sweeps: demo, atari-shared,
    dmlab-pbt. Every recipe for one agent will do as a base. All settings below are those of the base.
    """

    file: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="FILE")]] = None
    """Comes first. A YAML or JSON file with a sweep: base (as for laser train --config), grid, random, draws, members, share, pbt, stack,
    processes."""
    grid: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,VALUE")]] = ()
    """Values of a setting, learning_rate=3e-4,1e-3; every combination with the other lists is a member."""
    random: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=KIND:LOW:HIGH")]] = ()
    """A distribution, learning_rate=log_uniform:1e-4:1e-2, discount=uniform:0.9:1 or trust=choice:implied:off."""
    draws: int | None = None
    """How many members to draw from --random."""
    share: Sharing = "shared"
    """One replay for all, one each, or none."""
    pbt: bool = False
    """Population based training: as the recipe or file says; if they say nothing, after a tenth of the steps each member looks at another
    one every 50 of its episodes, copies it if its returns are better, and goes on with its learning rate and entropy cost, each × or ÷
    1.2 with a probability of 1/3."""
    stack: Literal["auto", "on", "off"] = "auto"
    """Compute members side by side: faster for small networks."""
    processes: int = 1
    """Over how many processes the members are spread; 0: one a core. More than one is not deterministic."""
    cluster: Annotated[str | None, tyro.conf.arg(metavar="auto|local|HOST:PORT|ray://HOST:PORT")] = None
    """Run on a Ray cluster: learners, environment runners and the replay are spread over its nodes. auto joins the one of this machine, or
    starts one. With --runtime serial in lock-step: slow, and the same parameters as on one machine."""
    cluster_runners: int = 1
    """Environment runners of each member on a cluster; they share its slots."""
    out: Path | None = None
    """The run directory; runs/NAME-sweep-1, -2, ... if left out. An existing one goes on where it stopped."""
    fresh: bool = False
    """Throw away what the run directory holds and start again."""
    plain: bool = False
    """Lines instead of a live table."""
    dashboard: bool = False
    """Show the sweep in a browser while it goes on: a process of its own, on this machine only."""
    track: Annotated[tuple[str, ...], tyro.conf.arg(metavar="wandb,trackio,mlflow")] = ()
    """Rows of metrics also go to one or several trackers, a run a member, on this machine only unless their own environment variables say
    otherwise."""
    quick: Annotated[Shortcuts, tyro.conf.arg(name="")] = field(default_factory=Shortcuts)
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def sweep_command(arguments: list[str]) -> int:
    """`laser sweep`."""
    arguments = one_by_one(expand_numbers(arguments))
    recipe, _, env, network = peek(arguments)
    file = Path(arguments[0]) if arguments and not arguments[0].startswith("-") else None
    begun = begin(recipe, file, env, network)
    shown = {name: begun.rest[name] for name in ("share", "stack", "processes") if name in begun.rest}
    default = Sweep(pbt=begun.rest.get("pbt") is not None, settings=begun.base, **shown)
    asked = flags(default, "laser sweep", arguments)
    if asked.file != file:
        raise ConfigError(f"the file comes first: laser sweep {asked.file} ...")
    config = sweep_of(asked, begun)
    path = asked.out or new_path(Path("runs"), f"{config.base.environment.id}-sweep")
    track = named(asked.track)
    cluster = cluster_of(asked.cluster, asked.cluster_runners)
    if cluster is not None and not asks_for_runtime(arguments):
        config = free_running(config)
    more: dict[str, Any] = {"dashboard": asked.dashboard, "track": track, "cluster": cluster}
    return sweep_in(path, config, fresh=asked.fresh, plain=asked.plain, **more)


def asks_for_runtime(arguments: Sequence[str]) -> bool:
    """Whether a flag says how members run.

    >>> asks_for_runtime(["--runtime", "serial"]), asks_for_runtime(["--run.steps", "10"])
    (True, False)
    """
    return any(word.partition("=")[0] in {"--runtime", "--run.runtime"} for word in arguments)


def sweep_of(asked: Sweep, begun: Begun) -> SweepConfig:
    """Flags over what they begin with; refused if nothing says what members differ in."""
    rest: dict[str, Any] = dict(begun.rest)
    if asked.grid or asked.random:
        rest = {
            name: value for name, value in rest.items() if name not in SOURCES and (name != "draws" or asked.random)
        }
    given = {"grid": grid_of(asked.grid), "random": random_of(asked.random), "draws": asked.draws}
    rest |= {name: value for name, value in given.items() if value}
    if not any(rest.get(name) for name in SOURCES):
        raise ConfigError(
            "a sweep needs to know what its members differ in; give --grid learning_rate=3e-4,1e-3, --random "
            "learning_rate=log_uniform:1e-4:1e-2 --draws 10, a file, or one of the recipes for sweeps: "
            f"--recipe {', '.join(recipes.SWEEPS)}"
        )
    if rest.get("random") and not rest.get("draws"):
        raise ConfigError("--random says where members are drawn from, but not how many; add --draws 10")
    base = apply(asked.settings, asked.quick)
    pbt = (rest.get("pbt") or recipes.small_pbt(base.run.steps)) if asked.pbt else None
    chosen = {"share": asked.share, "stack": asked.stack, "processes": asked.processes}
    return sweep_from({**rest, **chosen, "pbt": pbt, "base": base})


def sweep_in(
    path: Path,
    config: SweepConfig,
    *,
    fresh: bool,
    plain: bool,
    dashboard: bool = False,
    track: Sequence[str] = (),
    cluster: ClusterSettings | None = None,
    accept_changes: bool = False,
) -> int:
    """Run a sweep in a run directory and say how it went and what can be done next."""
    try:
        with nothing_to_save():
            more: dict[str, Any] = {"dashboard": dashboard, "track": track, "cluster": cluster}
            return _sweep_in(path, config, fresh=fresh, plain=plain, accept_changes=accept_changes, **more)
    except KeyboardInterrupt as error:  # before the first step, or again while the end is being saved
        return broken_off(path, error)


def _sweep_in(
    path: Path,
    config: SweepConfig,
    *,
    fresh: bool,
    plain: bool,
    dashboard: bool,
    track: Sequence[str],
    cluster: ClusterSettings | None,
    accept_changes: bool,
) -> int:
    require_trusted(*config.configs)
    if not fresh:
        require_no_run(path)
    if cluster is None:
        require_memory(config)
    else:
        require_possible(config, cluster)
        require_ray()
    if dashboard:
        require_dashboard()
    directory = SweepDirectory(path, config, fresh=fresh, accept_changes=accept_changes)
    terminal = Terminal(highlight=False, force_terminal=False if plain else None)
    steps, pbt = config.base.run.steps, config.pbt is not None
    title = f"{config.base.environment.id}, {len(config.settings)} members in {path}"
    boards = TensorBoardLog(path)
    more = trackers(track, path.name, [own.model_dump(mode="json") for own in config.configs], path, fresh=fresh)
    try:
        with (
            dashboard_of(path, asked=dashboard),
            Console(title, steps, config.settings, pbt=pbt, terminal=terminal) as console,
        ):
            sinks: list[Sink] = [directory.log, boards, console, *more]
            end = sweep(config, directory, sinks=sinks, cluster=cluster)
    finally:
        boards.close()
        directory.close()
        for sink in more:
            sink.close()
    return _farewell(path, end)


def broken_off(path: Path, error: KeyboardInterrupt) -> int:
    """Say what is left of a run that was ended at once, and how to go on."""
    name = error.name if isinstance(error, StoppedAtOnce) else "SIGINT"
    saved = any((path / checkpoint.CHECKPOINTS).glob("step-*"))
    how = f"go on with: {command_for('resume', path)}" if saved else "nothing was saved yet, so start again"
    print(f"stopped ({name}) at once; {how}")
    return EXIT_STATUS[name]


def _farewell(path: Path, end: SweepEnd) -> int:
    folder, steps = shlex.quote(str(path)), min(member.steps for member in end.members)
    if end.interrupted is not None:
        print(
            f"stopped ({end.interrupted}) at step {steps:,} of each member; go on with: {command_for('resume', path)}"
        )
        return EXIT_STATUS.get(end.interrupted, 1)
    from laser_rl.view.report import report  # noqa: PLC0415 - training itself imports nothing of the page

    updates = sum(member.updates for member in end.members)
    copies = f", {len(end.exploits)} exploits" if end.exploits else ""
    print(f"done: {len(end.members)} members, {steps:,} steps each, {updates:,} updates in all{copies}")
    for line in _lines(end.members):
        print(line)
    best = end.best()
    print(f"best:     member {best.number}, {_now(best)}")
    print(f"report:   {report(path)}")
    print(f"evaluate: {command_for('evaluate', path)} --member best --episodes 100")
    for line in how_to_watch(best.config.environment, path, "--member best"):
        print(line)
    print(f"curves:   tensorboard --logdir {folder}")
    for library in reached(path):
        print(f"tracked:  {hint(library, folder)}")
    return 0


def _lines(members: Sequence[MemberResult]) -> list[str]:
    labels = [_now(member) for member in members]
    width = max(map(len, labels))
    return [
        f"member {member.number:<2} {text:<{width}}  {member.evaluation}"
        for member, text in zip(members, labels, strict=True)
    ]


def _now(member: MemberResult) -> str:
    """Its settings as they are at the end: population based training may have moved them."""
    sections = member.config.model_dump()
    found = {name: _look_up(sections, name) for name in member.settings}
    return label(found)


def _look_up(sections: dict[str, Any], name: str) -> Any:
    place: Any = sections
    for part in full_name(name).split("."):
        place = place[part]
    return place
