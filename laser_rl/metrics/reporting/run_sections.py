"""The sections of one agent: last numbers, scores, curves, replay."""

from collections.abc import Mapping, Sequence

import numpy as np

from laser_rl.envs.scores import RETURN_OF, SCORE_OF
from laser_rl.metrics import curves, display
from laser_rl.metrics.curves import curve
from laser_rl.metrics.reporting.binning import percentile_band, series
from laser_rl.metrics.reporting.document import (
    LIGHT,
    Cell,
    HeatMap,
    Lines,
    Section,
    Series,
    Table,
    number,
    pairs,
    section,
    words,
)
from laser_rl.metrics.reporting.scores import scores_table
from laser_rl.metrics.reporting.subject import Subject
from laser_rl.metrics.sink import Row
from laser_rl.metrics.sweep_curves import AGES, acceptance_by_age

_BINNED = "Points are means of bins of steps, the band goes from the lowest to the highest value in each."
_LAST = 10  # rows
_TRUSTED = "Of the replayed steps, the share whose behaviour lies inside the learner's trust region; only those are learned from."
# title: (label of y, {name of a number: what it is called}, share, note)
_CHARTS: dict[str, tuple[str, dict[str, str], bool, str]] = {
    "Trusted share of replayed steps": ("share", {"acceptance": "trusted"}, True, _TRUSTED),
    "Policy entropy": ("nats", {"entropy": "entropy"}, False, "0: the policy has decided."),
    "Divergence from the behaviour": ("KL, nats", {"kl": "KL"}, False, "How far the policy has moved from the ones whose data it learns."),
    "Clipped importance ratios": ("share", {"rho_clipped": "ρ", "c_clipped": "c"}, True, "Share of ratios that V-trace cuts off."),
    "Policy lag": ("updates", {"lag_updates": "online"}, False, "Age of the newest data when it is learned."),
    "Losses": ("loss", {"policy_loss": "policy", "value_loss": "value"}, False, ""),
    "Gradient norm": ("norm", {"gradient_norm": "norm"}, False, ""),
}  # fmt: skip


def final_numbers(subject: Subject) -> Section | None:
    """The counts of the last row, and the newest value of everything that training reported."""
    if not subject.rows:
        return None
    values = newest(subject.rows, "train")
    last, first = subject.rows[-1], subject.rows[0]
    seconds = float(last["time"]) - float(first["time"]) if "time" in last and "time" in first else 0.0
    counts = {
        "steps": number(last["step"], display.count),
        "updates": number(last["update"], display.count),
        "from first to last row": Cell(display.duration(seconds), seconds),
    }
    ended = subject.state in {"finished", "stopped"}
    table = pairs("", counts | {name: words(text) for name, text in display.texts(values).items()})
    played = newest(subject.rows, "evaluation")
    evaluation = {
        curves.MEDIAN.lower() if subject.mixed and name == "mean" else name: number(value, _full)
        if isinstance(value, int | float)
        else words(value)
        for name, value in played.items()
        if name not in {"kind", "time", "member"} and not name.startswith((RETURN_OF, SCORE_OF))
    }
    return section(
        "At the end" if ended else "At the last row",
        [scores_table(subject), table, pairs("Last evaluation", evaluation)],
    )


def _full(value: float) -> str:
    return f"{value:,.6g}"


def newest(rows: Sequence[Row], kind: str) -> Row:
    """The newest value of every number in the rows of a kind.

    >>> newest([{"kind": "train", "kl": 1.0}, {"kind": "train", "entropy": 2.0}], "train")
    {'kind': 'train', 'kl': 1.0, 'entropy': 2.0}
    """
    values: Row = {}
    for row in rows:
        if row["kind"] == kind:
            values |= row
    return values


def learning(subject: Subject) -> Section | None:
    """Returns with the spread of episodes and with evaluations, and what training reports of itself."""
    charts = [returns_chart(subject), *(_chart(subject, title) for title in _CHARTS)]
    return section("Curves", charts)


def returns_chart(subject: Subject) -> Lines | None:
    """The curve that people look for first."""
    mean = series(subject.score_label.lower(), curves.returns(subject.rows), 0, band=False, style="thick")
    if mean is None:
        return None
    spread = None if subject.mixed else percentile_band(subject.single_episodes(), "single episodes")
    played = subject.curve("mean", "evaluation")
    dots = Series("evaluations", *played, colour=1, style="dots") if len(played[0]) else None
    note = "Band: from the 10th to the 90th percentile of single episodes, thin line: their median." if spread else ""
    return Lines(
        subject.score_label,
        "score" if subject.mixed else "return",
        tuple(one for one in (spread, mean, dots) if one is not None),
        note,
        marks=subject.marks,
    )


def _chart(subject: Subject, title: str) -> Lines | None:
    label, names, share, note = _CHARTS[title]
    found = [series(text, subject.curve(name), n) for n, (name, text) in enumerate(names.items())]
    drawn = tuple(one for one in found if one is not None)
    if not drawn:
        return None
    long = any(one.low is not None for one in drawn)
    limits = (0.0, 1.0) if share else (None, None)
    return Lines(
        title,
        label,
        drawn,
        f"{note} {_BINNED if long else ''}".strip(),
        marks=subject.marks,
        limits=limits,
        share=share,
    )


def tasks(subject: Subject, rows: Sequence[Row]) -> Section | None:
    """Of a mixture: the newest numbers of every task, and every task's curve."""
    names = task_names(rows) if subject.mixed else []
    if not names:
        return None
    return section("Tasks", [tasks_table(rows), *_task_charts(subject, rows, names)])


def task_names(rows: Sequence[Row]) -> list[str]:
    """The tasks that rows speak of, in order; none if it was no mixture.

    >>> task_names([{"kind": "train", "step": 1, "score_of_b": 0.5, "score_of_a": 0.1}])
    ['b', 'a']
    """
    told = (name for row in rows if row["kind"] in {"train", "evaluation"} for name in row if name.startswith(SCORE_OF))
    return [name.removeprefix(SCORE_OF) for name in dict.fromkeys(told)]


def tasks_table(rows: Sequence[Row]) -> Table:
    """From training and from the last evaluation, beside the scores they are compared with."""
    from laser_rl.envs.suites import reference_of  # noqa: PLC0415 - needs Gymnasium

    trained, played = newest(rows, "train"), newest(rows, "evaluation")
    columns = ("task", "random", "best", "return", "score", "evaluation", "its score")
    lines = []
    for name in task_names(rows):
        reference = reference_of(name)
        known = (None, None) if reference is None else (reference.random, reference.best)
        numbers = [values.get(prefix + name) for values in (trained, played) for prefix in (RETURN_OF, SCORE_OF)]
        lines.append((words(name), *(number(value) for value in (*known, *numbers))))
    note = "Scores: 0 is random play, 1 the best known. A task of which neither is known is shown with its raw return."
    return Table("By task", columns, tuple(lines), note)


def _task_charts(subject: Subject, rows: Sequence[Row], names: Sequence[str]) -> list[Lines]:
    median = series("median of all tasks", curves.returns(rows), LIGHT, band=False, style="faint")
    charts = []
    for name in names:
        own = series("score", curve(rows, SCORE_OF + name), 0, band=False)
        played = curve(rows, SCORE_OF + name, "evaluation")
        dots = Series("evaluations", *played, colour=1, style="dots") if len(played[0]) else None
        found = tuple(one for one in (median, own, dots) if one is not None)
        if found:
            charts.append(Lines(name, "normalised score", found, marks=subject.marks))
    return charts


def replay(subject: Subject) -> Section | None:
    """How full the replay is and how old what is replayed, and what of it is trusted by age."""
    names: Mapping[str, tuple[str, str, bool]] = {
        "How full the replay is": ("replay_fill", "share of its capacity", True),
        "Age of what is replayed": ("replay_age_updates", "updates", False),
    }
    charts: list[Lines | HeatMap | None] = []
    for title, (name, label, share) in names.items():
        own = series(label, subject.curve(name), 0)
        limits = (0.0, 1.0) if share else (0.0, None)
        if own is not None:
            charts.append(Lines(title, label, (own,), marks=subject.marks, limits=limits, share=share))
    trained = [row for row in subject.rows if row["kind"] == "train"]
    rows: list[Row] = [{**row, "member": 0} for row in trained[-_LAST:]]
    return section("Replay", [*charts, age_map(acceptance_by_age(rows, 1, last=_LAST), ("all",))])


def age_map(shares: "np.ndarray", names: tuple[str, ...]) -> HeatMap | None:
    """What is trusted by the age of the data; none if that was not told."""
    if not np.isfinite(shares).any():
        return None
    title = "Trusted share by age of the data"
    ages = tuple(age.replace("below ", "< ") for age in AGES)
    return HeatMap(
        title,
        "learner",
        "age, updates",
        names,
        ages,
        shares,
        "In its last rows; – where nothing of that age was replayed.",
        top=1.0,
    )
