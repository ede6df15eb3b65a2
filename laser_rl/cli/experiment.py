"""`laser experiment`: the figures and tables of the paper, run again."""

import contextlib
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from laser_rl.errors import ConfigError
from laser_rl.research import EXPERIMENTS, SUITES, Experiment, Task, planned, shrunk, suite_of
from laser_rl.research.experiment import core_minutes
from laser_rl.research.index import write_index
from laser_rl.research.report import About, experiment_of, report, write_about
from laser_rl.research.runner import assemble, perform
from laser_rl.research.verdicts import ALL, Judged

SEEDS, SMOKE_SEEDS, SMOKE_TASKS = 5, 2, 2
CORES = 2  # of which the list's minutes are


@dataclass(frozen=True)
class List:
    """All experiments: what each is about, how many runs it has and how long they take."""

    suite: str = "small"
    """small, atari or dmlab."""
    seeds: int = SEEDS
    """How often each condition is run."""


@dataclass(frozen=True)
class RunExperiment:
    """Run experiments and judge their claims. What is there already is not run again: after an interruption, the same command goes on."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """As `laser experiment list` shows them; all: every one."""
    suite: str = "small"
    """small: hours on two cores. atari, dmlab: the paper's own recipes, for large machines."""
    tasks: tuple[str, ...] = ()
    """Some tasks of the suite; left out: those of the experiment."""
    seeds: int | None = None
    """How often each condition is run, with seeds 0, 1, ...; left out: 5."""
    jobs: int = 0
    """Runs at a time, each in a process; 0: one a core."""
    device: str = "cpu"
    """Where networks are; small ones are fastest on cpu."""
    out: Path = Path("runs/experiments")
    """Each experiment gets a folder here: curves.csv, scores.csv, verdicts.csv, curves.png, README.md."""
    parts: Path | None = None
    """Where the numbers of single runs are kept; left out: OUT/parts."""
    smoke: bool = False
    """So short that nothing is learned, two tasks, two seeds: to see that everything works."""


@dataclass(frozen=True)
class Report:
    """Judge and draw again from curves.csv."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Of experiments: OUT/sharing."""


def experiment_command(arguments: list[str]) -> int:
    """`laser experiment`."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("list", [])
    if command in {"-h", "--help"}:
        print("usage: laser experiment {list,run,report} [OPTIONS]\n\nlaser experiment run --help explains one")
        return 0
    if command in {*EXPERIMENTS, "all"}:  # `laser experiment sharing` is short for `laser experiment run sharing`
        command, rest = "run", arguments
    if command not in COMMANDS:
        raise ConfigError(f"laser experiment {command}: expected {', '.join(COMMANDS)}, or an experiment's name")
    return COMMANDS[command](rest)


def _list(arguments: list[str]) -> int:
    asked = tyro.cli(List, prog="laser experiment list", args=arguments)
    suite = suite_of(asked.suite)
    plans = [(experiment, suite.of(experiment)) for experiment in EXPERIMENTS.values()]
    print(f"suite {suite.name} with {asked.seeds} seeds; minutes are estimates for {CORES} cores")
    for experiment, tasks in plans:
        conditions = len(experiment.conditions(tasks[0]))
        runs = len(tasks) * conditions * asked.seeds
        size = (
            f"{conditions} conditions, {len(tasks)} tasks, {runs} runs, {_minutes([(experiment, tasks)], asked.seeds)}"
        )
        print(f"\n{experiment.name}  ({experiment.figure}; {size})\n  {experiment.question}")
        print("\n".join(f"  - {claim.text}" for claim in experiment.claims))
    print(f"\nall  ({_minutes(plans, asked.seeds)}: a condition that several have is run once)")
    print(f"suites: {', '.join(SUITES)}; run one with: laser experiment run NAME --suite {suite.name}")
    return 0


def _minutes(plans: Sequence[tuple[Experiment, Sequence[Task]]], seeds: int) -> str:
    minutes = core_minutes(plans, seeds) / CORES
    return f"{minutes:.0f} minutes" if minutes else "time not measured"


def _run(arguments: list[str]) -> int:
    asked = tyro.cli(RunExperiment, prog="laser experiment run", args=arguments)
    if not asked.names:
        raise ConfigError("run which experiment? 'laser experiment list' shows them")
    names = list(EXPERIMENTS) if asked.names == ("all",) else list(asked.names)
    experiments = [experiment_of(name) for name in names]  # refused before the first of them runs for an hour
    with _quiet():
        for experiment in experiments:
            _run_one(experiment, asked, shlex.join(["laser", "experiment", "run", *arguments]))
    print(f"all experiments there: {write_index(asked.out)}")
    return 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What hundreds of runs would say of themselves is not for the terminal."""
    log = logging.getLogger("laser_rl.runtime")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def _run_one(experiment: Experiment, asked: RunExperiment, command: str) -> None:
    suite = suite_of(asked.suite)
    tasks = suite.of(experiment, asked.tasks)
    if asked.smoke:
        tasks = [shrunk(task) for task in (tasks if asked.tasks else tasks[:SMOKE_TASKS])]
    count = asked.seeds if asked.seeds is not None else SMOKE_SEEDS if asked.smoke else SEEDS
    if count < 1:
        raise ConfigError(f"expected at least one seed, got {count}")
    seeds = tuple(range(count))
    runs = planned(experiment, tasks, seeds, asked.device)
    parts, folder = asked.parts or asked.out / "parts", asked.out / experiment.name
    print(f"{experiment.name}: {experiment.question}", flush=True)
    jobs = asked.jobs or len(os.sched_getaffinity(0))
    perform(runs, parts, jobs=jobs, kept=suite.kept, say=_say)
    assemble(runs, parts, folder)
    names = tuple(task.name for task in tasks)
    write_about(
        folder,
        About(experiment.name, suite.name, names, seeds, asked.device, asked.smoke, command),
    )
    _show(folder, report(folder))


def _say(line: str) -> None:
    print(line, flush=True)


def _report(arguments: list[str]) -> int:
    asked = tyro.cli(Report, prog="laser experiment report", args=arguments)
    if not asked.folders:
        raise ConfigError("report on what? name the folder of an experiment: laser experiment report OUT/sharing")
    for folder in asked.folders:
        _show(folder, report(folder))
    return 0


def _show(folder: Path, judged: Sequence[Judged]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for name in ("claim", "measured by", "all tasks", "difference of scores"):
        table.add_column(name)
    for one in judged:
        if one.task == ALL:
            numbers = "" if one.verdict is None else str(one.verdict).partition(": ")[2]
            # Square brackets would be styles.
            table.add_row(one.claim.text, one.claim.statistic, one.word, numbers.replace("[", r"\["))
    Console(highlight=False).print(table)
    print(f"written to {folder}: README.md, curves.png, curves.csv, scores.csv, verdicts.csv")


COMMANDS: dict[str, Callable[[list[str]], int]] = {"list": _list, "run": _run, "report": _report}
