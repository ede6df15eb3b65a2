"""What `laser experiment` does: list the experiments, run some of them to their verdicts, report on their folders again."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from laser_rl.errors import ConfigError
from laser_rl.research.experiment import EXPERIMENTS, SUITES, Experiment, ExperimentTask, planned, shrunk, suite_of
from laser_rl.research.report import About, experiment_of, report, verdict_table, write_index
from laser_rl.research.runner import assemble, perform

SEEDS, SMOKE_SEEDS, SMOKE_TASKS = 5, 2, 2
CORES = 2  # of which the list's minutes are


@dataclass(frozen=True)
class Plan:
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
    """Each experiment gets a folder here: curves.csv, scores.csv, summary.csv, verdicts.csv, curves.png, README.md."""
    parts: Path | None = None
    """Where the numbers of single runs are kept; left out: OUT/parts."""
    smoke: bool = False
    """So short that nothing is learned, two tasks, two seeds: to see that everything works."""


def run_experiments(plan: Plan, command: str) -> None:
    """Run what is missing, judge the claims, write a folder for each experiment and one page over all of them."""
    names = list(EXPERIMENTS) if plan.names == ("all",) else plan.names
    experiments = [experiment_of(name) for name in names]  # refused before the first of them runs for an hour
    messages = logging.getLogger("laser_rl.training")  # of hundreds of runs: only warnings reach the terminal
    before = messages.level
    messages.setLevel(logging.WARNING)
    try:
        for experiment in experiments:
            _run(experiment, plan, command)
    finally:
        messages.setLevel(before)
    print(f"all experiments there: {write_index(plan.out)}")


def _run(experiment: Experiment, plan: Plan, command: str) -> None:
    suite = suite_of(plan.suite)
    tasks = suite.of(experiment, plan.tasks)
    if plan.smoke:
        tasks = [shrunk(task) for task in (tasks if plan.tasks else tasks[:SMOKE_TASKS])]
    count = plan.seeds if plan.seeds is not None else SMOKE_SEEDS if plan.smoke else SEEDS
    if count < 1:
        raise ConfigError(f"expected at least one seed, got {count}")
    runs = planned(experiment, tasks, range(count), plan.device)
    parts, folder = plan.parts or plan.out / "parts", plan.out / experiment.name
    print(f"{experiment.name}: {experiment.question}", flush=True)
    perform(runs, parts, jobs=plan.jobs or len(os.sched_getaffinity(0)), kept=suite.kept)
    assemble(runs, parts, folder)
    About(
        name=experiment.name,
        suite=suite.name,
        tasks=tuple(task.name for task in tasks),
        seeds=tuple(range(count)),
        device=plan.device,
        smoke=plan.smoke,
        command=command,
    ).write(folder)
    show_report(folder)


def show_report(folder: Path) -> None:
    """Judge and draw again from `curves.csv`, and print the verdicts."""
    print("\n".join(verdict_table(report(folder))))
    print(f"written to {folder}: README.md, curves.png, curves.csv, scores.csv, summary.csv, verdicts.csv")


def listing(suite_name: str, seeds: int = SEEDS) -> str:
    """All experiments: what each is about, its claims, how many runs it has and how long they take."""
    suite = suite_of(suite_name)
    plans = [(experiment, suite.of(experiment)) for experiment in EXPERIMENTS.values()]
    lines = [f"suite {suite.name} with {seeds} seeds; minutes are estimates for {CORES} cores"]
    for experiment, tasks in plans:
        conditions = len(experiment.variants)
        runs = len(tasks) * conditions * seeds
        size = f"{conditions} conditions, {len(tasks)} tasks, {runs} runs, {_minutes([(experiment, tasks)], seeds)}"
        lines += ["", f"{experiment.name}  ({experiment.figure}; {size})", f"  {experiment.question}"]
        lines += [f"  - {claim.text}" for claim in experiment.claims]
    lines += ["", f"all  ({_minutes(plans, seeds)}: a condition that several have is run once)"]
    lines.append(f"suites: {', '.join(SUITES)}; run one with: laser experiment run NAME --suite {suite.name}")
    return "\n".join(lines)


def _minutes(plans: Sequence[tuple[Experiment, Sequence[ExperimentTask]]], seeds: int) -> str:
    different = {
        condition.sweep.model_dump_json(): condition.seconds
        for experiment, tasks in plans
        for task in tasks
        for condition in experiment.conditions(task)
    }
    minutes = sum(different.values()) * seeds / 60 / CORES
    return f"{minutes:.0f} minutes" if minutes else "time not measured"
