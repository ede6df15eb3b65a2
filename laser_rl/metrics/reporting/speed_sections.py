"""How fast it was, and who waited for whom."""

from collections.abc import Sequence

import numpy as np

from laser_rl.metrics import display
from laser_rl.metrics.reporting.binning import series
from laser_rl.metrics.reporting.document import Array, Cell, Lines, Section, Series, Table, number, section, words
from laser_rl.metrics.reporting.subject import Subject

_PER_SECOND = {"steps_per_second": "steps/s", "updates_per_second": "updates/s", "learned_steps_per_second": "learned steps/s"}  # fmt: skip
_SHARES = {"learner_busy": "learner busy", "learner_wait": "learner waits for data"}
_WHO = (
    "Medians over all rows. A learner that is busy nearly all the time is what limits the speed; one that waits for data is slowed down "
    "by the environments or by acting. On a GPU the thread that launches work may wait while the card is busy: look at 'busy' first."
)
_FULL = 0.9


def speed(subject: Subject) -> Section | None:
    """Steps and updates per second, learner busy or waiting, memory."""
    return section("Throughput and who waited", [_table(subject), _steps_chart(subject), _waiting_chart(subject)])


def _table(subject: Subject) -> Table | None:
    lines = []
    for one in subject.members:
        found = {name: subject.curve(name, member=one.member)[1] for name in (*_PER_SECOND, *_SHARES, "memory_bytes")}
        per_second = [number(median(found[name])) for name in _PER_SECOND]
        shares = [number(median(found[name]), display.share) for name in _SHARES]
        memory = found["memory_bytes"]
        peak = number(float(memory.max()) if len(memory) else None, display.size)
        name = words(one.member if subject.is_sweep else subject.name)
        lines.append((name, *per_second, *shares, peak, words(limit(found["learner_busy"]))))
    first = "member" if subject.is_sweep else "run"
    columns = (first, *_PER_SECOND.values(), *_SHARES.values(), "memory at most", "limited by")
    return Table("Speed", columns, tuple(lines), _WHO) if any(_known(line) for line in lines) else None


def _known(line: Sequence[Cell]) -> bool:
    return any(cell.value is not None for cell in line[1:])


def limit(busy: Array) -> str:
    """Who limits the speed, in a word, by how busy the learner was; nothing where that is not known.

    >>> limit(np.array([0.97])), limit(np.array([0.3])), limit(np.empty(0))
    ('learner', 'acting', '')
    """
    found = median(busy)
    return "" if found is None else "learner" if found > _FULL else "acting"


def median(values: Array) -> float | None:
    """The median, if there is anything."""
    return float(np.median(values)) if len(values) else None


def _steps_chart(subject: Subject) -> Lines | None:
    drawn = _of_members(subject, "steps_per_second")
    return _lines("Steps per second", "steps/s", drawn, subject, (0.0, None)) if drawn else None


def _waiting_chart(subject: Subject) -> Lines | None:
    if subject.is_sweep:
        drawn = _of_members(subject, "learner_busy")
        return _lines("Learner busy", "share of the time", drawn, subject, (0.0, 1.0), share=True) if drawn else None
    found = [series(text, subject.curve(name), n) for n, (name, text) in enumerate(_SHARES.items())]
    both = tuple(one for one in found if one is not None)
    title = "Learner busy, learner waiting"
    return _lines(title, "share of the time", both, subject, (0.0, 1.0), share=True) if both else None


def _of_members(subject: Subject, name: str) -> tuple[Series, ...]:
    pairs = ((one.member, subject.curve(name, member=one.member)) for one in subject.members)
    found = (series(str(member), pair, member, band=not subject.is_sweep) for member, pair in pairs)
    return tuple(one for one in found if one is not None)


def _lines(
    title: str, label: str, drawn: tuple[Series, ...], subject: Subject, limits: tuple[float, float | None], *, share: bool = False
) -> Lines:  # fmt: skip
    legend = "member" if subject.is_sweep else ""
    return Lines(title, label, drawn, marks=subject.marks, limits=limits, share=share, legend=legend)
