"""Runs an experiment: what is done already is not done again, and the table is the same however often it was interrupted.

A folder of parts holds a file for each run that is complete, named by what decides its numbers: the whole sweep with its seed and
device, the buckets and the version of this package. So experiments that have a condition in common share its runs. After a change of
code that moves numbers, begin with an empty folder.
"""

import csv
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from laser_rl import __version__
from laser_rl.checkpoint.atomic import make_folder, write_bytes, write_json
from laser_rl.errors import ConfigError, UserError
from laser_rl.metrics.machine import machine
from laser_rl.research import protocol
from laser_rl.research.execute import Buckets, Floats, executed, from_lines, to_lines
from laser_rl.research.experiment import Run
from laser_rl.research.pool import spread
from laser_rl.sweep.settings import sweep_from

CURVES, TIMES = "curves.csv", "times.csv"
UNDECISIVE = ("video_every_steps", "keep_videos", "devices")  # of `run`: came later, and move no number
PART_COLUMNS = ("member", "step", "update", "episodes", "value", "acceptance", "online_share")
CURVE_COLUMNS = (
    "task",
    "condition",
    "seed",
    "step",
    "update",
    "episodes",
    "mean",
    "best",
    "worst",
    "acceptance",
    "online_share",
)


class RunsFailed(UserError):
    """Some runs of an experiment failed; the others are kept."""

    exit_status = 4


def perform(
    runs: Sequence[Run], parts: Path, *, jobs: int = 1, kept: bool = False, say: Callable[[str], None] = print
) -> int:
    """Run what is missing; returns how many that were.

    Args:
        runs: all of an experiment.
        parts: where those of several experiments may lie.
        jobs: worker processes.
        kept: give each run a run directory beside its part, from which it goes on if it is interrupted.
        say: gets a line for each run that ends.
    """
    make_folder(parts)
    # All conditions of a seed before the next seed: an experiment that is looked at early says something about all of them.
    ordered = sorted({part_of(parts, run): run for run in runs}.items(), key=lambda item: item[1].seed)
    missing = [(part, run) for part, run in ordered if not part.exists()]
    if missing:
        say(f"{len(missing)} runs to do, {len(ordered) - len(missing)} done already")
    failed = []
    work = [_job(part, run, part.with_suffix("") if kept else None) for part, run in missing]
    for number, ended in enumerate(spread(perform_one, work, jobs), start=1):
        label = missing[ended.place][1].label
        if ended.error is not None:
            failed.append(f"{label}: {ended.error}")
        say(f"[{number}/{len(missing)}] {label}: {ended.result or 'failed'}")
    if failed:
        raise RunsFailed(
            f"{len(failed)} of {len(missing)} runs failed; the same command tries those again\n" + "\n".join(failed)
        )
    return len(missing)


def part_of(parts: Path, run: Run) -> Path:
    """Where the numbers of a run are, or will be."""
    sweep = run.sweep.model_dump(mode="json")
    for name in UNDECISIVE:
        del sweep["base"]["run"][name]
    decisive = {"sweep": sweep, "bucket": run.task.bucket_steps, "version": __version__}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return parts / f"{run.task.name}-seed{run.seed}-{digest[:16]}.csv"


def _job(part: Path, run: Run, directory: Path | None) -> dict[str, Any]:
    return {
        "label": run.label,
        "sweep": run.sweep.model_dump(mode="json"),
        "bucket_steps": run.task.bucket_steps,
        "part": str(part),
        "directory": None if directory is None else str(directory),
    }


def perform_one(job: Mapping[str, Any]) -> str:
    """Run one sweep and write its part, at once and last of all; says how it went."""
    begin, part = time.monotonic(), Path(job["part"])
    directory = None if job["directory"] is None else Path(job["directory"])
    buckets = executed(sweep_from(job["sweep"]), job["bucket_steps"], directory)
    seconds = time.monotonic() - begin
    # What a run was and how long it took is kept beside its numbers: times are not the same twice.
    about = {"seconds": round(seconds, 1), "made_with": made_with(job["sweep"]["base"]["run"]["device"])}
    write_json(part.with_suffix(".json"), {**about, "sweep": job["sweep"]})
    write_bytes(part, table(PART_COLUMNS, to_lines(buckets)))
    known = _known(protocol.carried(buckets.value)[:, -1])
    said = f"{known.mean():.3f} at the end" if known.size else "no episode ended"
    return f"{said}, {seconds:.0f} s"


def made_with(device: str) -> str:
    """Versions, hardware and date, as a page says them; runs of one experiment may come from several machines.

    >>> made_with("cpu").startswith(f"laser-rl {__version__}, Python 3.")
    True
    """
    found = machine()
    where = found["gpu"] if device.startswith("cuda") else found["processor"]
    versions = f"laser-rl {__version__}, Python {found['python']}, torch {torch.__version__}"
    return f"{versions}, {where or found['system']} with {found['cores']} cores, {datetime.now(UTC):%-d %B %Y}"


def assemble(runs: Sequence[Run], parts: Path, folder: Path) -> Path:
    """`curves.csv` of an experiment from the parts of all its runs, in the order of the runs; and `times.csv`, which differs each time."""
    make_folder(folder)
    lines, times = [], []
    for run in runs:
        part = part_of(parts, run)
        place = {"task": run.task.name, "condition": run.condition, "seed": run.seed}
        lines += [{**place, **line} for line in curve_lines(from_lines(read_table(part)))]
        about = json.loads(part.with_suffix(".json").read_bytes())
        times.append({**place, "seconds": about["seconds"], "made_with": about["made_with"]})
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
                **{name: _cell(known, made) for name, made in (("mean", np.mean), ("best", np.max), ("worst", np.min))},
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
