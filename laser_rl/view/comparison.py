"""Several directories side by side, live and in a report: charts with a line for each, tables, and what they differ in."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from laser_rl.metrics import display
from laser_rl.metrics.history import Array, CurveLine
from laser_rl.metrics.standing import MemberStanding
from laser_rl.view.facts import interval
from laser_rl.view.panels import NOT_COMPARED, SEED, TRAINED, Asked, Data, Named, cell, chart, scatter, table
from laser_rl.view.runs import Subject

SIDE_BY_SIDE = "Side by side"
_GRID = 400  # places of a band
_SEEDS = (
    "Runs that differ in nothing but the seed are one condition. Intervals (95 %, bootstrap) are over seeds; of fewer than five seeds they "
    "are too narrow. Of a sweep, its best member is taken, which is optimistic."
)
_BANDS = "Lines: means over runs. Bands: lowest to highest run, where all have numbers. Of a sweep: its best member at each time."
_RUNS = "A line a directory; of a sweep, its best member at each time."
_BEST = "Of a sweep, the numbers of its best member."
_POINTS = "Each setting that differs, against the score; a point is a run or a member, the best one has a ring."
_TRUSTED = "The share of replayed steps that the learner can use: its policy is close enough to the one that acted."
_SAME = "All other settings are the same in all directories. – where a directory does not say."


class _Condition(NamedTuple):
    name: str
    colour: int  # of its first directory
    subjects: tuple[Subject, ...]


def overview(subjects: Sequence[Subject]) -> Data:
    """What the page is told of the comparison as a whole; directories take the places of members."""
    leaders = [one.best for one in subjects]
    scores = [None if lead is None else cell(lead.return_mean) for lead in leaders]
    members: list[Data] = [
        {"member": n, "name": one.name, "score": scores[n], "settings": {}} for n, one in enumerate(subjects)
    ]
    panels = [about for about, _ in comparison(subjects).values()]
    return {"name": SIDE_BY_SIDE, "panels": panels, "members": members, "best": None}


def comparison(subjects: Sequence[Subject]) -> dict[str, tuple[Data, Callable[[Asked], Data]]]:
    """What the page is told of each panel, and what makes its data, by id. What is left out is as in the page of one run."""
    conditions, found = _conditions_of(subjects), {}

    def add(name: str, group: str, make: Callable[[Asked], Data], **about: object) -> None:
        found[name] = {"id": name, "group": group, **about}, make

    environments = list(dict.fromkeys(one.environment for one in subjects))
    for number, name in enumerate(environments):
        own = [one for one in conditions if one.subjects[0].environment == name]
        played = {n: one for n, one in enumerate(subjects) if one.environment == name}
        single = [_Condition(one.name, n, (one,)) for n, one in played.items()]
        suffix = f", {name}" if len(environments) > 1 else ""
        several, label = len(own) < len(single), own[0].subjects[0].score_label
        line = {"title": label + suffix, "kind": "chart", "each": True, "wide": True}
        add(f"compared-{number}", "Score", partial(_compared, own), **line, why=_BANDS if several else _RUNS)
        if several:
            add(f"runs-{number}", "Score", partial(_compared, single), **line, why=_RUNS)
        points = {"title": f"Which settings do well{suffix}", "kind": "scatter", "wide": True, "optional": True}
        add(f"settings-{number}", "Settings", partial(scatter, [*played.values()], [*played]), **points, why=_POINTS)
    wide = {"kind": "table", "wide": True}
    add("conditions", "Score", partial(_conditions_table, conditions), title="By condition", why=_SEEDS, **wide)
    add("directories", "Score", partial(_directories_table, subjects), title="By directory", why=_BEST, **wide)
    add("differences", "Settings", partial(_differences, subjects), title="Settings that differ", why=_SAME, **wide)
    for name, numbers in TRAINED.items():
        if len(numbers) == 1:
            add(name, "Training", partial(_trained, subjects, next(iter(numbers))), optional=True)
    trusted = {"title": "Trusted steps", "why": _TRUSTED, "kind": "chart", "share": True, "optional": True}
    add("acceptance", "Training", partial(_trained, subjects, "acceptance"), **trusted)
    return found


def _conditions_of(subjects: Sequence[Subject]) -> list[_Condition]:
    """Directories by their settings without the seed, named by what differs; one without settings is a condition of its own."""
    groups: dict[str, list[int]] = {}
    for n, one in enumerate(subjects):
        own = {name: value for name, value in one.settings.items() if name not in NOT_COMPARED}
        key = json.dumps([one.is_sweep, own, one.files.sweep.get("settings")], sort_keys=True, default=str)
        groups.setdefault(key if one.settings else f"{key} {one.run_dir}", []).append(n)
    firsts = [subjects[group[0]] for group in groups.values()]
    names = [name for name in _differing(firsts) if name not in NOT_COMPARED]
    labels = []
    for one in firsts:
        own = {display.last_name(name): one.settings.get(name) for name in names}
        labels.append(display.label(own) if 0 < len(own) < 4 else one.name)  # noqa: PLR2004 - more would be no name
    if len(set(labels)) < len(labels):
        labels = [one.name for one in firsts]
    grouped = zip(labels, groups.values(), strict=True)
    return [_Condition(label, group[0], tuple(subjects[n] for n in group)) for label, group in grouped]


def _differing(subjects: Sequence[Subject]) -> list[str]:
    """The settings that are not the same in all directories; one that a directory does not have counts as different."""
    names = dict.fromkeys(name for one in subjects for name in one.settings)
    return [name for name in names if len({repr(one.settings.get(name, ...)) for one in subjects}) > 1]


def _conditions_table(conditions: Sequence[_Condition], asked: Asked) -> Data:
    lines = []
    for one in conditions:
        leaders = [subject.best for subject in one.subjects]
        scores = [lead.return_mean if lead.evaluation is None else lead.evaluation for lead in leaders if lead]
        known = [score for score in scores if score is not None]
        seeds = ", ".join(str(subject.settings.get(SEED, "?")) for subject in one.subjects)
        mean, low, high = (cell(float(of(known))) if known else None for of in (np.mean, min, max))
        environment = one.subjects[0].environment
        lines.append([one.name, environment, len(one.subjects), seeds, mean, _between(interval(known)), low, high])
    columns = ["condition", "environment", "runs", "seeds", "mean score", "interval over seeds", "lowest", "highest"]
    return table(columns, lines)


def _directories_table(subjects: Sequence[Subject], asked: Asked) -> Data:
    lines = []
    for one in subjects:
        steps = min((member.steps for member in one.members), default=0)
        lead = one.best or MemberStanding(0, {})
        numbers = [cell(lead.return_mean), cell(lead.evaluation), _between(lead.evaluation_interval)]
        kind = f"sweep of {len(one.members)}" if one.is_sweep else "run"
        lines.append([one.name, one.environment, _told(one, SEED), kind, one.state, steps, *numbers])
    columns = ["directory", "environment", "seed", "kind", "state", "steps", "training", "evaluation", "interval"]
    return table(columns, lines)


def _differences(subjects: Sequence[Subject], asked: Asked) -> Data:
    lines = [[name, *(_told(one, name) for one in subjects)] for name in _differing(subjects)]
    return table(["setting", *(one.name for one in subjects)], lines)


def _trained(subjects: Sequence[Subject], name: str, asked: Asked) -> Data:
    """A number of training rows, a line a directory; of a sweep, that of the member that is best now."""
    drawn: list[Named] = []
    for n, one in enumerate(subjects):
        line = _line(one, 0 if one.best is None else one.best.member, name, asked)
        if len(line.x):
            drawn.append((one.name, n, line))
    return chart(None, drawn, asked)


def _compared(conditions: Sequence[_Condition], asked: Asked) -> Data:
    drawn: list[Named] = []
    for one in conditions:
        curves = [curve for subject in one.subjects if len((curve := _curve(subject, asked))[0])]
        steps, values = _band(curves) if len(curves) > 1 else (np.empty(0), np.empty((0, 0)))
        if len(steps):
            line = CurveLine(steps, values.mean(0), values.min(0), values.max(0))
            drawn.append((f"{one.name} ({len(curves)} runs)", one.colour, line))
        else:
            drawn += [(one.subjects[0].name, one.colour, CurveLine(x, y, y, y)) for x, y in curves]
    return chart(None, drawn, asked, bands=True)


def _curve(subject: Subject, asked: Asked) -> tuple[Array, Array]:
    """Returns over steps or time; of a sweep the best at each time: a maximum of noisy means, and thus optimistic."""
    lines = [_line(subject, one.member, "return_mean", asked) for one in subject.members]
    curves = [(line.x, line.mean) for line in lines if len(line.x)]
    if len(curves) < 2:  # noqa: PLR2004
        return curves[0] if curves else (np.empty(0), np.empty(0))
    steps, values = _band(curves)
    return steps, values.max(0, initial=-np.inf)


def _line(subject: Subject, member: int, name: str, asked: Asked) -> CurveLine:
    """By time, each directory counts from its own beginning."""
    line = subject.history.line("train", member, name, asked.axis)
    return line._replace(x=line.x - (subject.history.began or 0.0)) if asked.axis == "time" else line


def _band(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Curves on common steps, where all of them have numbers: steps [n] and values [runs, n]."""
    start, stop = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if stop < start:
        return np.empty(0), np.empty((len(curves), 0))
    grid = np.linspace(start, stop, _GRID)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves])


def _between(ends: tuple[float, float] | None) -> str:
    return "–" if ends is None else " to ".join(display.short(end) for end in ends)


def _told(subject: Subject, name: str) -> str:
    return display.setting(subject.settings[name])[:500] if name in subject.settings else "–"
