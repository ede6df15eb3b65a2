"""The charts of the page as data: each panel is a function of a run and what was asked, numbers in, JSON out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from laser_rl.view.runs import Run
from laser_rl.metrics.table import Array, Line, aligned
from laser_rl.metrics import sweep_curves
from laser_rl.metrics.reporting.pbt_sections import lineage
from laser_rl.metrics.reporting.subject import Subject
from laser_rl.metrics.sink import Kind

POINTS = 1000
_FEW = 4
_MOST_NUMBERS = 24_000  # of a panel: many members share them
_QUEUES = {"queue_inbox": "deliveries of the environments", "queue_batches": "batches gathered ahead"}
_AGES = tuple(age.replace("below ", "< ") for age in sweep_curves.AGES)


class Asked(NamedTuple):
    """What a page wants to see: x is `step` or `time`; one learner or, -1, all of them."""

    axis: str = "step"
    learner: int = -1


Named = tuple[str, int | None, Line]  # name, member, line


def returns(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Mean return of the last 100 episodes; of a run that does not report it, the returns of its episodes."""
    told = _of_members(run, subject, asked, "return_mean")
    drawn = told or _of_members(run, subject, asked, "return", "episode")
    leader = None if subject.best is None else subject.best.member
    return {**chart(run, drawn, asked, bands=len(drawn) == 1), "best": leader, "label": subject.score_label}


def evaluations(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Means of evaluations with their intervals."""
    drawn: list[Named] = []
    for one in subject.members:
        mean, low, high = (
            run.history.line("evaluation", one.member, name, asked.axis) for name in ("mean", "ci95_low", "ci95_high")
        )
        known = len(mean.x) == len(low.x) == len(high.x)
        if len(mean.x):
            ends = (low.mean, high.mean) if known else (mean.mean, mean.mean)
            drawn.append((str(one.member), one.member, Line(mean.x, mean.mean, *ends)))
    return chart(run, drawn, asked, bands=True)


def trust(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """What is trusted of each source's replayed steps, by one learner or by the mean of all; of a single run, of its own."""
    members = range(len(subject.members))
    learners = [asked.learner] if asked.learner in members else list(members)
    drawn: list[Named] = []
    for source in members:
        name = f"acceptance_from_{source}"
        lines = [run.history.line("train", learner, name, asked.axis) for learner in learners]
        lines = [line for line in lines if len(line.x)]
        if lines:
            drawn.append((f"steps of {source}", source, mean_of(lines)))
    if not drawn:
        drawn = _of_members(run, subject, asked, "acceptance")
    return chart(run, drawn, asked)


def who(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Who trusts whose steps, how far policies are from each other, and what is trusted by age; in the newest rows."""
    count, rows = len(subject.members), run.history.newest("train")
    if not subject.is_sweep:
        rows = [{**row, "member": 0} for row in rows]
    divergence = sweep_curves.divergence_matrix(run.history.newest("sweep"), count)
    return {
        "members": count,
        "trusted": matrix(sweep_curves.acceptance_matrix(rows, count)),
        "divergence": matrix(divergence) if count > 1 and np.isfinite(divergence).sum() > count else None,
        "ages": list(_AGES),
        "by_age": matrix(sweep_curves.acceptance_by_age(rows, count)),
    }


def replay(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Shares of the replay by member."""
    every = ((str(one.member), one.member, f"share_of_{one.member}") for one in subject.members)
    found = [(name, member, run.history.line("sweep", -1, key, asked.axis)) for name, member, key in every]
    return chart(run, [one for one in found if len(one[2].x)], asked)


def ages(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """How old the replay is, as percentiles; of a single run, the mean age of what it replays."""
    names = {
        0: "youngest",
        25: "a quarter is younger",
        50: "half is younger",
        75: "three quarters are younger",
        100: "oldest",
    }
    found: list[Named] = [
        (text, None, run.history.line("sweep", -1, f"age_{part}", asked.axis)) for part, text in names.items()
    ]
    found = [one for one in found if len(one[2].x)]
    return chart(run, found or _of_members(run, subject, asked, "replay_age_updates"), asked)


def fill(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """How full the replay is."""
    whole: Named = ("replay", None, run.history.line("sweep", -1, "replay_fill", asked.axis))
    return chart(run, [whole] if len(whole[2].x) else _of_members(run, subject, asked, "replay_fill"), asked)


def steps(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Environment steps a second."""
    return chart(run, _of_members(run, subject, asked, "steps_per_second"), asked)


def updates(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Updates a second."""
    return chart(run, _of_members(run, subject, asked, "updates_per_second"), asked)


def waiting(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Share of the time in which learners wait for data, and in which they learn."""
    names = ("learner_busy", "learner_wait") if len(subject.members) <= _FEW else ("learner_wait",)
    return chart(run, _by_name(run, subject, asked, {name: name.replace("_", " ") for name in names}), asked)


def queues(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """What waits between acting and learning; of many members, only what is ready for their learners."""
    names = [*_QUEUES] if len(subject.members) <= _FEW else ["queue_batches"]
    return chart(run, _by_name(run, subject, asked, {name: _QUEUES[name] for name in names}), asked)


def _by_name(run: Run, subject: Subject, asked: Asked, labels: Mapping[str, str]) -> list[Named]:
    """Several numbers of each member."""
    drawn: list[Named] = []
    for one in subject.members:
        known = set(run.history.names("train", one.member))
        for name, label in labels.items():
            if name not in known:
                continue
            line = run.history.line("train", one.member, name, asked.axis)
            drawn.append(
                (
                    f"{one.member}: {label}" if subject.is_sweep else label,
                    one.member if subject.is_sweep else None,
                    line,
                )
            )
    return drawn


def descent(run: Run, subject: Subject, asked: Asked) -> dict[str, Any]:
    """Whose first parameters each member carries, and who copied whom."""
    history = sweep_curves.copies(subject.rows)
    found = lineage(subject, history) if history else None
    if found is None:
        return {"members": len(subject.members), "pieces": [], "copies": [], "end": 0}
    return {"members": found.members, "end": found.end, "pieces": found.pieces, "copies": found.copies[-500:]}


PANELS: dict[str, Callable[[Run, Subject, Asked], dict[str, Any]]] = {
    "returns": returns,
    "evaluations": evaluations,
    "trust": trust,
    "who": who,
    "replay": replay,
    "ages": ages,
    "fill": fill,
    "steps": steps,
    "updates": updates,
    "waiting": waiting,
    "queues": queues,
    "lineage": descent,
}


def chart(run: Run, named: Sequence[Named], asked: Asked, *, bands: bool = False) -> dict[str, Any]:
    """Lines on one axis, at most 1,000 places, for the page to draw as it is; seconds count from the first row."""
    points = max(50, min(POINTS, _MOST_NUMBERS // max(1, len(named))))
    x, lines = aligned([line for _, _, line in named], points)
    start = (run.history.began or 0.0) if asked.axis == "time" else 0.0
    found = []
    for (name, member, _), line in zip(named, lines, strict=True):
        one: dict[str, Any] = {"name": name, "member": member, "y": numbers(line.mean)}
        if bands:
            one |= {"low": numbers(line.low), "high": numbers(line.high)}
        found.append(one)
    marks = [mark[1] - start if asked.axis == "time" else mark[0] for mark in run.history.marks[-20:]]
    return {"x": numbers(x - start, digits=9), "lines": found, "marks": numbers(sorted(set(marks)), digits=9)}


def mean_of(lines: Sequence[Line]) -> Line:
    """The mean of lines where they have numbers.

    >>> x, y = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    >>> mean_of([Line(x, y, y, y), Line(x, y + 1, y, y)]).mean.tolist()
    [0.5, 1.5]
    """
    if len(lines) == 1:
        return lines[0]
    x, found = aligned(lines, POINTS)
    every = np.stack([line.mean for line in found])
    count = np.isfinite(every).sum(0)
    mean = np.nansum(every, 0) / np.maximum(count, 1)
    return Line(x[count > 0], mean[count > 0], mean[count > 0], mean[count > 0])


def numbers(values: Array | Iterable[float], digits: int = 6) -> list[float | None]:
    """For JSON: a few digits, None where there is no number.

    >>> numbers([0.123456789, float("nan"), 1e6])
    [0.123457, None, 1000000.0]
    """
    form = f"%.{digits}g"
    return [float(form % value) if math.isfinite(value) else None for value in values]


def matrix(values: Array) -> list[list[float | None]]:
    """Row by row."""
    return [numbers(row) for row in values]


def _of_members(run: Run, subject: Subject, asked: Asked, name: str, kind: Kind = "train") -> list[Named]:
    found = [
        (str(one.member), one.member, run.history.line(kind, one.member, name, asked.axis)) for one in subject.members
    ]
    return [one for one in found if len(one[2].x)]
