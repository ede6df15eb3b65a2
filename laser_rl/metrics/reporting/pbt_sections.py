"""Population based training: how settings moved, who descends from whom, and every exploit."""

from collections.abc import Sequence

import numpy as np

from laser_rl.metrics import display
from laser_rl.metrics.curves import Curve
from laser_rl.metrics.reporting.document import Lineage, Lines, Section, Series, Table, number, section, words
from laser_rl.metrics.reporting.subject import Subject
from laser_rl.metrics.sweep_curves import Copy, copies, founders

_TUNED = ("learning_rate", "entropy_cost")  # what training rows report
_MOST_COPIES = 200
_LINEAGE = (
    "A line a member, in the colour of the one whose first parameters it carries; arrows from donor to recipient."
)


def pbt(subject: Subject) -> Section | None:
    """None if nobody copied anybody."""
    history = copies(subject.rows)
    if not history:
        return None
    names = [*_TUNED, *sorted({name for one in history for name in one.after} - set(_TUNED))]
    charts = [_settings_chart(subject, history, name) for name in names]
    return section("Population based training", [lineage(subject, history), *charts, _table(history)])


def lineage(subject: Subject, history: Sequence[Copy]) -> Lineage | None:
    """The pieces of each member's life, and the exploits between them."""
    members = len(subject.members)
    known = [one for one in history if max(one.member, one.donor) < members]
    if not known:
        return None
    end = max(float(row["step"]) for row in subject.rows if "member" in row)
    pieces = []
    for member, changes in founders(known, members).items():
        stops = [float(step) for step, _ in changes[1:]] + [end]
        for (start, founder), stop in zip(changes, stops, strict=True):
            pieces.append((member, float(start), stop, founder))
    exploits = tuple((float(one.step), one.donor, one.member) for one in known)
    return Lineage("Lineage", members, end, tuple(pieces), exploits, _LINEAGE)


def _settings_chart(subject: Subject, history: Sequence[Copy], name: str) -> Lines | None:
    found = {one.member: _moves(subject, history, name, one.member) for one in subject.members}
    drawn = tuple(
        Series(str(member), *pair, colour=member, style="steps") for member, pair in found.items() if len(pair[0])
    )
    if not drawn:
        return None
    positive = all((one.y > 0).all() for one in drawn)  # settings move by factors
    return Lines(f"{name} over steps", name, drawn, marks=subject.marks, log=positive, legend="member")


def _moves(subject: Subject, history: Sequence[Copy], name: str, member: int) -> Curve:
    """A member's setting over steps: as training rows report it, and as exploits set it; where it was set or changes, and its ends."""
    rows = subject.of(member)
    own = [one for one in history if one.member == member and name in one.before and name in one.after]
    steps, values = subject.curve(name, member=member)
    points = list(zip(steps.tolist(), values.tolist(), strict=True))
    if own and not points:
        points = [(0.0, own[0].before[name]), (float(rows[-1]["step"]), own[-1].after[name])]
    # Stable: at the same step the exploit comes last, so that the line jumps there.
    exploited = [(float(one.step), one.after[name]) for one in own]
    points = sorted([*points, *exploited], key=lambda point: point[0])
    ends, marked = {0, len(points) - 1}, set(exploited)
    kept = [point for n, point in enumerate(points) if n in ends or point in marked or point[1] != points[n - 1][1]]
    array = np.array(kept, dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _table(history: Sequence[Copy]) -> Table:
    columns = ("step", "member", "donor", "its score", "donor's score", "settings before", "settings after")
    lines = tuple(
        (
            number(one.step, display.count),
            number(one.member, str),
            number(one.donor, str),
            number(one.score),
            number(one.donor_score),
            words(display.label(one.before)),
            words(display.label(one.after)),
        )
        for one in history[-_MOST_COPIES:]
    )
    cut = f"The last {_MOST_COPIES} of {len(history):,}." if len(history) > _MOST_COPIES else ""
    return Table("Exploits", columns, lines, cut)
