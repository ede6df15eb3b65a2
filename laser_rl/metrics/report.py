"""`report.html`: one file without scripts or links that shows runs and sweeps, alone or side by side; also as Markdown and CSV."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from laser_rl.errors import ConfigError
from laser_rl.metrics.page import REPORT, write_text
from laser_rl.metrics.reporting import (
    pbt_sections,
    record_sections,
    run_sections,
    speed_sections,
    sweep_sections,
    video_sections,
)
from laser_rl.metrics.reporting.comparison import common, comparison
from laser_rl.metrics.reporting.document import Document, Part, Section, part, section
from laser_rl.metrics.reporting.faults import notices
from laser_rl.metrics.reporting.html import html
from laser_rl.metrics.reporting.markdown import markdown
from laser_rl.metrics.reporting.subject import Subject, distinct, subject_of
from laser_rl.metrics.reporting.tidy import tidy

Format = Literal["html", "markdown", "csv"]
_ENDINGS: dict[Format, str] = {"html": ".html", "markdown": ".md", "csv": ".csv"}


def report(run_dir: str | Path) -> Path:
    """Write `report.html` into a run directory, also while the run goes on.

    >>> import tempfile
    >>> from laser_rl.metrics.log import MetricsLog
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"entropy": 0.6})
    >>> "<h1>" in report(run_dir).read_text()
    True
    """
    return write_report([run_dir])[0]


def write_report(
    run_dirs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    formats: Sequence[Format] = ("html",),
    running: Collection[Path] = (),
) -> list[Path]:
    """Write the report of one or several directories, each format to a file beside the others.

    Args:
        run_dirs: of runs or sweeps.
        out: the HTML file; by default `report.html` in the directory or, of several, in the current one.
        formats: which files to write.
        running: those directories in which a process is still at work.
    """
    paths = [Path(one) for one in run_dirs]
    document = document_of(paths, running)
    page = Path(out) if out is not None else (paths[0] if len(paths) == 1 else Path()) / REPORT
    writers = {"html": lambda whole: html(whole, page.parent), "markdown": markdown, "csv": tidy}
    return [
        write_text(page.with_suffix(_ENDINGS[one]) if one != "html" else page, writers[one](document))
        for one in formats
    ]


def document_of(run_dirs: Sequence[Path], running: Collection[Path] = ()) -> Document:
    """The report as data.

    >>> document_of([])
    Traceback (most recent call last):
    laser_rl.errors.ConfigError: a report of what? name one or more run directories: laser report runs/*
    """
    if not run_dirs:
        raise ConfigError("a report of what? name one or more run directories: laser report runs/*")
    named = zip(run_dirs, distinct(run_dirs), strict=True)
    subjects = [replace(subject_of(path, running=path in running), name=name) for path, name in dict(named).items()]
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    parts = [part_of(one, alone=len(subjects) == 1) for one in subjects]
    if len(subjects) == 1:
        return Document(subjects[0].name, f"{parts[0].lead}. Report of {written}.", (parts[0],))
    return Document(
        f"Report of {len(subjects)} directories",
        f"Written {written}.",
        (comparison(subjects), *parts, common(subjects)),
    )


def part_of(subject: Subject, *, alone: bool = True) -> Part:
    """Everything about one directory; of several, settings are told once for all of them."""
    kind = sweep_sections.described(subject) if subject.is_sweep else "run"
    lead = f"{kind.capitalize()} on {subject.environment}, {subject.state.partition(':')[0]}"
    warnings = section("Warnings", notices(subject))
    own = _of_sweep(subject) if subject.is_sweep else _of_run(subject)
    records = [
        record_sections.happened(subject),
        record_sections.reproduce(subject, alone=alone),
        record_sections.configuration(subject) if alone else None,
    ]
    films = video_sections.videos(subject, alone=alone)
    return part(subject.name, lead, [warnings, *own, films, speed_sections.speed(subject), *records])


def _of_run(subject: Subject) -> list[Section | None]:
    return [
        run_sections.final_numbers(subject),
        run_sections.tasks(subject, subject.rows),
        run_sections.learning(subject),
        run_sections.replay(subject),
    ]


def _of_sweep(subject: Subject) -> list[Section | None]:
    leader = subject.best
    return [
        sweep_sections.best_member(subject),
        sweep_sections.members(subject),
        sweep_sections.returns(subject),
        run_sections.tasks(subject, subject.of(leader.member)) if leader is not None else None,
        sweep_sections.trust(subject),
        sweep_sections.replay(subject),
        pbt_sections.pbt(subject),
    ]
