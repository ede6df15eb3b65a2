"""`laser experiment` and what it does: list the experiments, run some of them to their verdicts, report on their folders again.

What is done already is not done again, and the table is the same however often it was interrupted.

A folder of parts holds a file for each run that is complete, named by what decides its numbers: the whole sweep with its seed and
device, the buckets and the version of this package. So experiments that have a condition in common share its runs. After a change of
code that moves numbers, begin with an empty folder.
"""

import hashlib
import json
import logging
import multiprocessing
import os
import shlex
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import tyro

from laser_rl import __version__
from laser_rl.disk import make_folder, write_bytes, write_json
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError, UserError, require_modules
from laser_rl.metrics.log import MetricsLog, read
from laser_rl.metrics.machine import machine
from laser_rl.metrics.rows import Kind
from laser_rl.research.experiment import EXPERIMENTS, SUITES, Experiment, PlannedRun, experiment_of, planned, suite_of
from laser_rl.research.pages import ABOUT, CURVES, TIMES, About, report, table, verdict_table, write_index
from laser_rl.research.protocol import curve_lines
from laser_rl.training.settings import SweepConfig

SEEDS, SMOKE_SEEDS = 5, 2
UNDECISIVE = ("video_every_steps", "keep_videos", "devices")  # of `run`: came later, and move no number
END_S = 10.0


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
    """Each experiment gets a folder here: curves.csv, scores.csv, verdicts.csv, curves.png, README.md."""
    parts: Path | None = None
    """Where the numbers of single runs are kept; left out: OUT/parts."""
    smoke: bool = False
    """So short that nothing is learned, two tasks, two seeds: to see that everything works."""


def experiment_command(arguments: list[str]) -> int:
    """The command `laser experiment`."""
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
    tasks = suite.of(experiment, plan.tasks, smoke=plan.smoke)
    count = plan.seeds if plan.seeds is not None else SMOKE_SEEDS if plan.smoke else SEEDS
    if count < 1:
        raise ConfigError(f"expected at least one seed, got {count}")
    runs = planned(experiment, tasks, range(count), plan.device)
    parts, folder = plan.parts or plan.out / "parts", plan.out / experiment.name
    print(f"{experiment.name}: {experiment.question}", flush=True)
    perform(runs, parts, jobs=plan.jobs or len(os.sched_getaffinity(0)), kept=suite.kept)
    assemble(runs, parts, folder)
    about = About(
        name=experiment.name,
        suite=suite.name,
        tasks=tuple(task.name for task in tasks),
        seeds=tuple(range(count)),
        device=plan.device,
        smoke=plan.smoke,
        command=command,
    )
    write_json(folder / ABOUT, about.model_dump(mode="json"))
    show_reports((folder,))


def show_reports(folders: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Judge and draw again from curves.csv.

    Args:
        folders: Of experiments: OUT/sharing.
    """
    if not folders:
        raise ConfigError("report on what? name the folder of an experiment: laser experiment report OUT/sharing")
    for folder in folders:
        print("\n".join(verdict_table(report(folder))))
        print(f"written to {folder}: README.md, curves.png, curves.csv, scores.csv, verdicts.csv")


def listing(suite: str = "small", seeds: int = SEEDS) -> str:
    """All experiments: what each is about, its claims and how many runs it has.

    Args:
        suite: small, atari or dmlab.
        seeds: How often each condition is run.
    """
    of = suite_of(suite).of
    lines = [f"suite {suite} with {seeds} seeds"]
    for experiment in EXPERIMENTS.values():
        conditions, tasks = len(experiment.variants), len(of(experiment))
        size = f"{conditions} conditions, {tasks} tasks, {tasks * conditions * seeds} runs"
        lines += ["", f"{experiment.name}  ({experiment.figure}; {size})", f"  {experiment.question}"]
        lines += [f"  - {claim.text}" for claim in experiment.claims]
    lines += ["", "all  (a condition that several have is run once)"]
    lines.append(f"suites: {', '.join(SUITES)}; run one with: laser experiment run NAME --suite {suite}")
    return "\n".join(lines)


class RunsFailed(UserError):
    """Some runs of an experiment failed; the others are kept."""

    exit_status = 4


def perform(runs: Sequence[PlannedRun], parts: Path, *, jobs: int = 1, kept: bool = False) -> int:
    """Run what is missing in the folder of `parts`; returns how many that were. `kept`: with run directories, to go on from."""
    make_folder(parts)
    # All conditions of a seed before the next seed: an experiment that is looked at early says something about all of them.
    ordered = sorted({part_of(parts, run): run for run in runs}.items(), key=lambda item: item[1].seed)
    missing = [(part, run) for part, run in ordered if not part.exists()]
    if missing:
        print(f"{len(missing)} runs to do, {len(ordered) - len(missing)} done already", flush=True)
    failed = []
    for number, (place, result, error) in enumerate(spread(partial(perform_one, kept=kept), missing, jobs), 1):
        run = missing[place][1]
        label = f"{run.task.name}, {run.condition}, seed {run.seed}"
        if error is not None:
            failed.append(f"{label}: {error}")
        print(f"[{number}/{len(missing)}] {label}: {result or 'failed'}", flush=True)
    if failed:
        raise RunsFailed(
            f"{len(failed)} of {len(missing)} runs failed; the same command tries those again\n" + "\n".join(failed)
        )
    return len(missing)


def part_of(parts: Path, run: PlannedRun) -> Path:
    sweep = run.sweep.model_dump(mode="json")
    for name in UNDECISIVE:
        del sweep["base"]["run"][name]
    decisive = {"sweep": sweep, "bucket": run.task.bucket_steps, "version": __version__}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return parts / f"{run.task.name}-seed{run.seed}-{digest[:16]}.json"


def perform_one(job: tuple[Path, PlannedRun], *, kept: bool) -> str:
    """Run one sweep and write its part, at once and last of all; says how it went."""
    part, run = job
    begin, sweep, found = time.monotonic(), run.sweep, machine()
    lines = executed(sweep, run.task.bucket_steps, part.with_suffix("") if kept else None)
    seconds = time.monotonic() - begin
    where = found["gpu"] if sweep.base.run.device.startswith("cuda") else found["processor"]
    about = {
        "seconds": round(seconds, 1),
        # As a page says it; runs of one experiment may come from several machines.
        "made_with": f"laser-rl {__version__}, Python {found['python']}, torch {found['libraries']['torch']}, "
        f"{where or found['system']} with {found['cores']} cores, {datetime.now(UTC):%-d %B %Y}",
    }
    write_json(part, {**about, "sweep": sweep.model_dump(mode="json"), "lines": lines})
    return f"{lines[-1]['mean'] or 'no episode'} at the end, {seconds:.0f} s"


def executed(sweep: SweepConfig, bucket_steps: int, directory: Path | None = None) -> list[dict[str, Any]]:
    """Run a sweep to its end, in one thread or, with a directory, as `laser sweep` does; returns a line a bucket."""
    import torch  # noqa: PLC0415 - `laser experiment --help` does without it

    from laser_rl.api.sweep import require_memory  # noqa: PLC0415 - they import torch
    from laser_rl.training.directory import RunDirectory  # noqa: PLC0415
    from laser_rl.training.launch import act_and_learn, prepare, train  # noqa: PLC0415

    torch.set_num_threads(1)
    require_memory(sweep)
    kinds: tuple[Kind, ...] = ("episode", "train")
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="laser-experiment-") as folder, closing(MetricsLog(folder)) as log:
            trainer = prepare(sweep, sinks=[log])
            with closing(trainer.group):
                act_and_learn(trainer)
                trainer.report()
            rows = read(folder, kinds)
    else:
        with closing(RunDirectory(directory, sweep)) as opened:
            end = train(sweep, opened, sinks=[opened.log])
        if end.interrupted is not None:
            raise KeyboardInterrupt(end.interrupted)  # not an error of this run: the others must not go on either
        rows = read(directory, kinds)
    tasks = tuple(tasks_of(sweep.base.environment.id))
    return curve_lines(
        rows,
        members=len(sweep.settings),
        steps=sweep.base.run.steps,
        bucket_steps=bucket_steps,
        tasks=tasks if len(tasks) > 1 else (),
    )


def read_part(path: Path) -> tuple[list[dict[str, Any]], float, str]:
    """What is kept of a run: its lines, its seconds and what it was made with; ConfigError if the file is damaged."""
    try:
        found = json.loads(path.read_bytes())
        return [dict(line) for line in found["lines"]], float(found["seconds"]), str(found["made_with"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error!r}; remove it, and run the experiment again") from None


def assemble(runs: Sequence[PlannedRun], parts: Path, folder: Path) -> Path:
    """`curves.csv` of an experiment from the parts of all its runs, in the order of the runs; and `times.csv`, which differs each time."""
    make_folder(folder)
    lines, times = [], []
    for run in runs:
        curve, seconds, made_with = read_part(part_of(parts, run))
        place = {"task": run.task.name, "condition": run.condition, "seed": run.seed}
        lines += [{**place, **line} for line in curve]
        times.append({**place, "seconds": seconds, "made_with": made_with})
    write_bytes(folder / TIMES, table((*times[0],), times))
    write_bytes(folder / CURVES, table((*lines[0],), lines))
    return folder / CURVES


def spread(work: Callable[[Any], Any], jobs: Sequence[Any], workers: int) -> Iterator[tuple[int, Any, str | None]]:
    """Do all jobs, each in a process of its own, so many at a time; yield a job's place, its result and its error as it ends.

    With one worker, in this process. A job that fails, or whose process dies, does not end the others; all die with this process.
    """
    if workers <= 1 or len(jobs) <= 1:
        for place, job in enumerate(jobs):
            yield place, *_attempt(work, job)
        return
    context = multiprocessing.get_context("spawn")  # torch in a process that was forked is not safe
    waiting, busy = list(enumerate(jobs)), dict[Any, tuple[int, Any]]()
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                place, job = waiting.pop(0)
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, work, job, os.getpid()))
                process.start()
                theirs.close()  # so that its death is the end of the pipe
                busy[ours] = place, process
            for ready in wait(list(busy)):
                connection: Any = ready
                place, process = busy.pop(connection)
                try:
                    outcome = connection.recv()
                except (EOFError, ConnectionResetError):
                    process.join(END_S)
                    outcome = None, f"its process died with status {process.exitcode}; was there enough memory?"
                _end(process)
                yield place, *outcome
    finally:
        for _, process in busy.values():
            _end(process)


def _end(process: Any) -> None:
    process.kill()  # it may die at any time: only a finished job has written what counts
    process.join(END_S)


def _serve(connection: "Connection[Any, Any]", work: Callable[[Any], Any], job: Any, parent: int) -> None:
    from laser_rl.envs.worker import die_with  # noqa: PLC0415 - gymnasium

    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    connection.send(_attempt(work, job))


def _attempt(work: Callable[[Any], Any], job: Any) -> tuple[Any, str | None]:
    try:
        return work(job), None
    except UserError as error:
        return None, str(error)
    except Exception:  # the other runs go on, and every error is told at the end
        return None, traceback.format_exc()
