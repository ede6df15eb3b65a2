"""The sections of a sweep: the best member, all members beside each other, who learned from whom, what is in the replay."""

import math

import numpy as np

from laser_rl.metrics import curves, display, sweep_curves
from laser_rl.metrics.curves import curve
from laser_rl.metrics.reporting.binning import BINS, binned, series
from laser_rl.metrics.reporting.document import (
    LIGHT,
    Array,
    Chart,
    HeatMap,
    Lines,
    Section,
    Series,
    Stack,
    Table,
    number,
    pairs,
    section,
    setting,
)
from laser_rl.metrics.reporting.run_sections import age_map
from laser_rl.metrics.reporting.scores import scores_table
from laser_rl.metrics.reporting.subject import Subject
from laser_rl.metrics.sink import Row

_OPTIMISTIC = "The best at each time is a maximum over members of noisy means, chosen anew at each step: optimistic, as in the paper."
_TRUST = "Of the steps that a learner (down) replays from a source (across), the share inside its trust region, in its last rows."
_FAR = "The further two policies are from each other, the less one can use of the other's experience."
_TIMES = 3
_LAST = 10  # rows
_MOST_ROWS = 4000  # of a member; of more, every so many are taken


def best_member(subject: Subject) -> Section | None:
    """Who it is, what it scored and with which settings."""
    leader = subject.best
    if leader is None:
        return None
    scores = {
        "mean of its last evaluation": number(leader.evaluation),
        subject.score_label.lower(): number(leader.return_mean),
    }
    known = {name: cell for name, cell in scores.items() if cell.value is not None}
    settings = {name: setting(value) for name, value in leader.settings.items()}
    note = "Chosen among members by the same numbers that are shown here, and thus likely to look better than it is."
    return section("Best member", [pairs("", {"member": number(leader.member, str), **known, **settings}, note)])


def members(subject: Subject) -> Section | None:
    """A line a member: what it differs in, how far it is, whom it trusts, what went wrong; then scores with intervals."""
    standing = subject.members
    names = tuple(dict.fromkeys(name for one in standing for name in one.settings))
    columns = (
        "member", *names, "steps", "updates", "score" if subject.mixed else "return", "trusted: own", "others", "skipped", "rollbacks",
        "exploits",
    )  # fmt: skip
    lines = tuple(
        (
            number(one.member, str),
            *(setting(one.settings[name]) if name in one.settings else number(None) for name in names),
            number(one.steps, display.count),
            number(one.updates, display.count),
            number(one.return_mean),
            number(one.acceptance_own, display.share),
            number(one.acceptance_others, display.share),
            number(one.skipped, display.count),
            number(one.rollbacks, display.count),
            number(one.exploits, display.count),
        )
        for one in standing
    )
    leader = None if subject.best is None else subject.best.member
    table = Table(
        "Members", columns, lines, "Settings are those of now: population based training may have moved them.", leader
    )
    return section("Members", [table, scores_table(subject)])


def returns(subject: Subject) -> Section | None:
    """Returns of each member, the best at each time, mean and range."""
    every = {one.member: curves.returns(subject.of(one.member)) for one in subject.members}
    found = {member: pair for member, pair in every.items() if len(pair[0])}
    if not found:
        return None
    drawn = [series(str(member), pair, member, band=False) for member, pair in found.items()]
    charts: list[Chart] = []
    label, measure = subject.score_label, "score" if subject.mixed else "return"
    all_members = tuple(one for one in drawn if one is not None)
    charts.append(Lines(f"{label}, by member", measure, all_members, marks=subject.marks, legend="member"))
    spread = sweep_curves.spread(found)
    if len(found) > 1 and len(spread.steps):
        mean = Series("mean of members", spread.steps, spread.mean, spread.low, spread.high, LIGHT)
        top = Series("best at each time", spread.steps, spread.best, colour=0, style="thick")
        note = f"Band: from the lowest to the highest member. {_OPTIMISTIC}"
        charts.append(Lines(f"{label}, best and mean", measure, (mean, top), note, marks=subject.marks))
    return section("Scores" if subject.mixed else "Returns", charts)


def trust(subject: Subject) -> Section | None:
    """From whom and by whom, by age, over time; and how far policies are from each other."""
    rows, count = subject.rows, len(subject.members)
    names = tuple(str(member) for member in range(count))
    matrix = _accepted(subject)
    blocks: list[Chart | None] = []
    if _of_others(matrix):
        blocks.append(_trust_map("Trusted share of replayed steps", names, matrix, _TRUST))
    end = max((one.steps for one in subject.members), default=0)
    for step in [end * n / _TIMES for n in range(1, _TIMES)]:  # the last is the map above
        earlier = _accepted(subject, step)
        blocks.append(
            _trust_map(f"Trusted share at step {step:,.0f}", names, earlier, "") if _of_others(earlier) else None
        )
    divergence = sweep_curves.divergence_matrix(rows, count)
    if _of_others(divergence):
        title = "Mean KL(policy i || policy j) on replayed states"
        blocks.append(HeatMap(title, "policy i", "policy j", names, names, divergence, _FAR, share=False))
    blocks.append(age_map(sweep_curves.acceptance_by_age(_newest(subject), count, last=_LAST), names))
    blocks += _acceptance_charts(subject)
    return section("Who learns from whom", blocks)


def _newest(subject: Subject, until: float = math.inf) -> list[Row]:
    return [row for one in subject.members for row in subject.newest(one.member, _LAST, until)]


def _accepted(subject: Subject, until: float = math.inf) -> Array:
    return sweep_curves.acceptance_matrix(_newest(subject, until), len(subject.members), last=_LAST)


def _trust_map(title: str, names: tuple[str, ...], matrix: Array, note: str) -> HeatMap:
    return HeatMap(title, "learner", "source of the replayed steps", names, names, matrix, note, top=1.0)


def _of_others(matrix: Array) -> bool:
    """Whether any number is about two different members."""
    return bool(np.isfinite(matrix[~np.eye(len(matrix), dtype=bool)]).any())


def _acceptance_charts(subject: Subject) -> list[Chart | None]:
    found = {}
    for one in subject.members:
        rows = subject.of(one.member)
        found[one.member] = sweep_curves.own_and_others(rows[:: 1 + len(rows) // _MOST_ROWS], one.member)
    charts: list[Chart | None] = []
    for place, whose in enumerate(("its own", "the others'")):
        drawn = [series(str(member), two[place], member, band=False) for member, two in found.items()]
        lines = tuple(one for one in drawn if one is not None)
        title = f"Trusted share of {whose} replayed steps"
        chart = Lines(title, "share", lines, marks=subject.marks, limits=(0.0, 1.0), share=True, legend="learner")
        charts.append(chart if lines else None)
    return charts


def replay(subject: Subject) -> Section | None:
    """Who produced what is in the replay, and how old it is, over time."""
    count = len(subject.members)
    steps, shares = sweep_curves.composition(subject.rows, count)
    names = tuple(str(member) for member in range(count))
    blocks: list[Chart | None] = []
    if len(steps):
        thin = np.linspace(0, len(steps) - 1, min(len(steps), BINS)).astype(int)
        blocks.append(
            Stack(
                "Who produced what is in the replay",
                "share of the replay",
                names,
                steps[thin],
                shares[:, thin],
                marks=subject.marks,
            )
        )
    blocks.append(_ages(subject, *sweep_curves.age_percentiles(subject.rows)))
    fill = series("fill", curve(subject.rows, "replay_fill", "sweep"), 0)
    if fill is not None:
        blocks.append(
            Lines(
                "How full the replay is",
                "share of its capacity",
                (fill,),
                marks=subject.marks,
                limits=(0.0, 1.0),
                share=True,
            )
        )
    return section("Replay", blocks)


def _ages(subject: Subject, steps: Array, ages: Array) -> Lines | None:
    if not len(steps):
        return None
    low, first, middle, third, high = (binned((steps, one))[1] for one in ages)
    at = binned((steps, ages[0]))[0]
    every = Series("youngest to oldest", at, middle, low, high, LIGHT, "faint")
    half = Series("median, and the middle half", at, middle, first, third, 0)
    return Lines("Age of what is in the replay", "updates", (every, half), marks=subject.marks, limits=(0.0, None))


def described(subject: Subject) -> str:
    """How many members, and what is shared."""
    share = str(subject.sweep.get("share", "")) or "unknown"
    told = {"shared": "one replay for all", "separate": "a replay each", "none": "no replay"}.get(
        share, f"replay: {share}"
    )
    return f"sweep of {len(subject.members)} members, {told}"
