"""Runs an experiment: what is done already is not done again, and the table is the same however often it was interrupted.

A folder of parts holds a file for each run that is complete, named by what decides its numbers: the whole sweep with its seed and
device, the buckets and the version of this package. So experiments that have a condition in common share its runs. After a change of
code that moves numbers, begin with an empty folder.
"""

import contextlib
import csv
import hashlib
import io
import json
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from laser_rl import __version__
from laser_rl.disk import make_folder, write_bytes, write_json
from laser_rl.envs.worker import die_with
from laser_rl.errors import ConfigError, UserError
from laser_rl.evaluation.statistics import Floats
from laser_rl.metrics.machine import machine
from laser_rl.research import protocol
from laser_rl.research.execute import Buckets, executed
from laser_rl.research.experiment import PlannedRun
from laser_rl.training.settings import sweep_from

log = logging.getLogger("laser_rl.research")
Job = Mapping[str, Any]
CURVES, TIMES = "curves.csv", "times.csv"
UNDECISIVE = ("video_every_steps", "keep_videos", "devices")  # of `run`: came later, and move no number
_PLACE, _COUNTS = ("task", "condition", "seed"), ("step", "update", "episodes")
CURVE_COLUMNS = (*_PLACE, *_COUNTS, "mean", "best", "worst", "acceptance", "online_share")
PATIENCE_S = 600.0  # without an end of any run, before a message names the runs that are waited for
END_S = 10.0


class RunsFailed(UserError):
    """Some runs of an experiment failed; the others are kept."""

    exit_status = 4


def perform(
    runs: Sequence[PlannedRun],
    parts: Path,
    *,
    jobs: int = 1,
    kept: bool = False,
    say: Callable[[str], None] | None = None,
) -> int:
    """Run what is missing; returns how many that were.

    Args:
        runs: all of an experiment.
        parts: where those of several experiments may lie.
        jobs: worker processes.
        kept: give each run a run directory beside its part, from which it goes on if it is interrupted.
        say: gets a line for each run that ends; left out: it is printed.
    """
    say = say or (lambda line: print(line, flush=True))
    make_folder(parts)
    # All conditions of a seed before the next seed: an experiment that is looked at early says something about all of them.
    ordered = sorted({part_of(parts, run): run for run in runs}.items(), key=lambda item: item[1].seed)
    missing = [(part, run) for part, run in ordered if not part.exists()]
    if missing:
        say(f"{len(missing)} runs to do, {len(ordered) - len(missing)} done already")
    failed = []
    for number, ended in enumerate(spread(perform_one, [_job(*one, kept=kept) for one in missing], jobs), start=1):
        label = missing[ended.place][1].label
        if ended.error is not None:
            failed.append(f"{label}: {ended.error}")
        say(f"[{number}/{len(missing)}] {label}: {ended.result or 'failed'}")
    if failed:
        raise RunsFailed(
            f"{len(failed)} of {len(missing)} runs failed; the same command tries those again\n" + "\n".join(failed)
        )
    return len(missing)


def part_of(parts: Path, run: PlannedRun) -> Path:
    """Where the numbers of a run are, or will be."""
    sweep = run.sweep.model_dump(mode="json")
    for name in UNDECISIVE:
        del sweep["base"]["run"][name]
    decisive = {"sweep": sweep, "bucket": run.task.bucket_steps, "version": __version__}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return parts / f"{run.task.name}-seed{run.seed}-{digest[:16]}.json"


def _job(part: Path, run: PlannedRun, *, kept: bool) -> Job:
    return {
        "label": run.label,
        "sweep": run.sweep.model_dump(mode="json"),
        "bucket_steps": run.task.bucket_steps,
        "part": part,
        "directory": part.with_suffix("") if kept else None,
    }


def perform_one(job: Job) -> str:
    """Run one sweep and write its part, at once and last of all; says how it went."""
    begin = time.monotonic()
    buckets = executed(sweep_from(job["sweep"]), job["bucket_steps"], job["directory"])
    seconds = time.monotonic() - begin
    about = {"seconds": round(seconds, 1), "made_with": made_with(job["sweep"]["base"]["run"]["device"])}
    write_json(job["part"], {**about, "sweep": job["sweep"], "buckets": buckets.state_dict()})
    known = _known(protocol.carried(buckets.value)[:, -1])
    said = f"{known.mean():.3f} at the end" if known.size else "no episode ended"
    return f"{said}, {seconds:.0f} s"


def made_with(device: str) -> str:
    """Versions, hardware and date, as a page says them; runs of one experiment may come from several machines."""
    found = machine()
    where = found["gpu"] if device.startswith("cuda") else found["processor"]
    versions = f"laser-rl {__version__}, Python {found['python']}, torch {torch.__version__}"
    return f"{versions}, {where or found['system']} with {found['cores']} cores, {datetime.now(UTC):%-d %B %Y}"


class Part(NamedTuple):
    """What is kept of a run."""

    buckets: Buckets
    seconds: float
    made_with: str


def read_part(path: Path) -> Part:
    """ConfigError if the file is damaged."""
    try:
        found = json.loads(path.read_bytes())
        return Part(Buckets.from_state_dict(found["buckets"]), float(found["seconds"]), str(found["made_with"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error!r}; remove it, and run the experiment again") from None


def assemble(runs: Sequence[PlannedRun], parts: Path, folder: Path) -> Path:
    """`curves.csv` of an experiment from the parts of all its runs, in the order of the runs; and `times.csv`, which differs each time."""
    make_folder(folder)
    lines, times = [], []
    for run in runs:
        part = read_part(part_of(parts, run))
        place = dict(zip(_PLACE, (run.task.name, run.condition, run.seed), strict=True))
        lines += [{**place, **line} for line in curve_lines(part.buckets)]
        times.append({**place, "seconds": part.seconds, "made_with": part.made_with})
    write_bytes(folder / TIMES, table((*times[0],), times))
    write_bytes(folder / CURVES, table(CURVE_COLUMNS, lines))
    return folder / CURVES


def curve_lines(buckets: Buckets) -> list[dict[str, Any]]:
    """A sweep as one line a bucket: mean, best and worst of the members that have a number by then, updates of all of them."""
    value, update = protocol.carried(buckets.value), protocol.carried(buckets.update)
    lines = []
    for place, step in enumerate(buckets.step):
        known = _known(value[:, place])
        lines.append(
            {
                "step": int(step),
                "update": int(np.nansum(update[:, place])),
                "episodes": int(buckets.episodes[:, place].sum()),
                "mean": _cell(known),
                "best": _cell(known, np.max),
                "worst": _cell(known, np.min),
                "acceptance": _cell(_known(buckets.acceptance[:, place])),
                "online_share": _cell(_known(buckets.online_share[:, place])),
            }
        )
    return lines


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _cell(values: Floats, made: Callable[[Floats], Any] = np.mean) -> str:
    return f"{made(values):.6g}" if values.size else ""


def table(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> bytes:
    r"""Lines as CSV, the same bytes for the same lines.

    >>> table(("a", "b"), [{"a": 1, "b": "x, y"}])
    b'a,b\n1,"x, y"\n'
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().encode()


def read_table(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; remove it, and run the experiment again") from None


class RunEnded(NamedTuple):
    """How a job ended: what it returned, or why it failed."""

    place: int
    result: Any
    error: str | None


def spread(work: Callable[[Job], Any], jobs: Sequence[Job], workers: int) -> Iterator[RunEnded]:
    """Do all jobs in worker processes and yield them as they end. `work` has to be importable. With one worker, in this process.

    A job that fails, or whose process dies, does not end the others; workers die with this process.

    >>> [ended.result for ended in spread(dict, [{"a": 1}], workers=1)]
    [{'a': 1}]
    """
    if workers <= 1 or len(jobs) <= 1:
        for place, job in enumerate(jobs):
            yield RunEnded(place, *_attempt(work, job))
        return
    waiting = list(enumerate(jobs))
    crew = [_Worker(work) for _ in range(min(workers, len(jobs)))]
    try:
        for worker in crew:
            worker.begin(*waiting.pop(0))
        while busy := {worker.connection: worker for worker in crew if worker.place is not None}:
            ready = wait(list(busy), PATIENCE_S)
            if not ready:
                names = (str(jobs[worker.place or 0].get("label", "")) for worker in busy.values())
                log.info("still waiting for %s", "; ".join(names))
            for worker in [worker for connection, worker in busy.items() if connection in ready]:
                yield worker.ended()
                if waiting:
                    worker.begin(*waiting.pop(0))
    finally:
        for worker in crew:
            worker.kill()


class _Worker:
    """One process, started again if it dies."""

    place: int | None = None
    connection: "Connection[Any, Any]"

    def __init__(self, work: Callable[[Job], Any]) -> None:
        self._work = work
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # torch in a process that was forked is not safe
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._work, os.getpid()))
        self._process.start()
        theirs.close()  # so that its death is the end of the pipe

    def begin(self, place: int, job: Job) -> None:
        self.place = place
        with contextlib.suppress(BrokenPipeError):  # it died while idle: `ended` finds that out
            self.connection.send(job)

    def ended(self) -> RunEnded:
        place, self.place = self.place or 0, None
        try:
            return RunEnded(place, *self.connection.recv())
        except (EOFError, ConnectionResetError):
            self._process.join(END_S)
            status = self._process.exitcode
            self.kill()
            self._start()
            return RunEnded(place, None, f"its process died with status {status}; was there enough memory?")

    def kill(self) -> None:
        """A busy one has written nothing that counts, an idle one has nothing to do."""
        self._process.kill()
        self._process.join(END_S)
        self.connection.close()


def _serve(connection: "Connection[Any, Any]", work: Callable[[Job], Any], parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_attempt(work, connection.recv()))


def _attempt(work: Callable[[Job], Any], job: Job) -> tuple[Any, str | None]:
    try:
        return work(job), None
    except UserError as error:
        return None, str(error)
    except Exception:  # the other runs go on, and every error is told at the end
        return None, traceback.format_exc()
