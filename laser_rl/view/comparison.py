"""Several directories side by side: runs that differ in nothing but the seed are one condition, with an interval over seeds."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from laser_rl.metrics import display
from laser_rl.metrics.history import Array, CurveLine
from laser_rl.view.facts import interval
from laser_rl.view.panels import Asked, Data, Named, cell, chart, table
from laser_rl.view.subject import Subject

SEED = "run.seed"
_NO_CONDITION = {SEED, "run.steps", "run.device", "run.runtime", "run.threads", "run.log_every_s"}
_SEEDS = (
    "Runs that differ in nothing but the seed are one condition. Intervals (95 %, bootstrap) are over seeds; of fewer than five seeds they "
    "are too narrow. Of a sweep, its best member is taken, which is optimistic."
)
_BANDS = "Lines: means over runs. Bands: lowest to highest run, where all have numbers. Of a sweep: its best member at each time."
_SAME = "All other settings are the same in all directories. – where a directory does not say."
_GRID = 400
_LONGEST_NAME = 3  # settings in the name of a condition


@dataclass(frozen=True, eq=False)
class ComparedCondition:
    """Directories with the same settings."""

    name: str
    subjects: tuple[Subject, ...]


def comparison(subjects: Sequence[Subject]) -> tuple[list[Data], dict[str, Data]]:
    """The panels of the comparison: what each is called, and the data of each by its id."""
    found = list(_panels(subjects))
    return [{"id": name, **about} for name, about, _ in found], {name: data for name, _, data in found}


def _panels(subjects: Sequence[Subject]) -> Iterator[tuple[str, Data, Data]]:
    conditions = conditions_of(subjects)
    wide = {"kind": "table", "wide": True}
    yield "conditions", {"title": "By condition", "why": _SEEDS, **wide}, conditions_table(conditions)
    why = "Of a sweep, the numbers of its best member."
    yield "directories", {"title": "By directory", "why": why, **wide}, _directories_table(subjects)
    environments = dict.fromkeys(subject.environment for subject in subjects)
    for number, environment in enumerate(environments):
        own = [one for one in conditions if one.subjects[0].environment == environment]
        title = own[0].subjects[0].score_label + (f", {environment}" if len(environments) > 1 else "")
        yield (
            f"compared-{number}",
            {"title": title, "why": _BANDS, "kind": "chart", "each": True, "wide": True},
            compared(own),
        )
    alone = [subject for subject in subjects if not subject.is_sweep]
    speeds = [(one.name, n, one.history.line("train", 0, "steps_per_second")) for n, one in enumerate(alone)]
    speeds = [one for one in speeds if len(one[2].x)]
    about = {"title": "Steps per second", "why": "Of runs of one agent.", "kind": "chart", "optional": True}
    yield "compared-speed", about, chart(None, speeds, Asked(points=_GRID))
    names = differing(subjects)
    lines = [[name, *(_told(one, name) for one in subjects)] for name in names]
    columns = ["setting", *(one.name for one in subjects)]
    yield "differences", {"title": "Settings that differ", "why": _SAME, **wide}, table(columns, lines)
    same = [[name, _told(subjects[0], name)] for name in subjects[0].settings if name not in names]
    about = {"title": "Settings that are the same in all", "why": "", "optional": True, **wide}
    yield "common", about, table(["setting", "value"], same)


def conditions_of(subjects: Sequence[Subject]) -> list[ComparedCondition]:
    """Directories by their settings without the seed, named by what differs; one without settings is a condition of its own."""
    groups: dict[str, list[Subject]] = {}
    for one in subjects:
        own = {name: value for name, value in one.settings.items() if name not in _NO_CONDITION}
        key = json.dumps([one.is_sweep, own, one.files.sweep.get("settings")], sort_keys=True, default=str)
        groups.setdefault(key if one.settings else f"{key} {one.run_dir}", []).append(one)
    names = [name for name in differing([group[0] for group in groups.values()]) if name not in _NO_CONDITION]
    found = []
    for group in groups.values():
        own = {display.last_name(name): group[0].settings.get(name) for name in names}
        label = display.label(own) if names and len(own) <= _LONGEST_NAME else group[0].name
        found.append(ComparedCondition(label, tuple(group)))
    if len({one.name for one in found}) < len(found):
        return [ComparedCondition(one.subjects[0].name, one.subjects) for one in found]
    return found


def differing(subjects: Sequence[Subject]) -> list[str]:
    """The settings that are not the same in all directories; one that a directory does not have counts as different."""
    names = dict.fromkeys(name for one in subjects for name in one.settings)
    missing = object()
    return [
        name
        for name in names
        if any(one.settings.get(name, missing) != subjects[0].settings.get(name, missing) for one in subjects[1:])
    ]


def conditions_table(conditions: Sequence[ComparedCondition]) -> Data:
    """Scores of each condition: of each run the last evaluation, or else the return in training, of its best member."""
    lines = []
    for one in conditions:
        leaders = [subject.best for subject in one.subjects]
        scores = [lead.return_mean if lead.evaluation is None else lead.evaluation for lead in leaders if lead]
        known = np.array([score for score in scores if score is not None])
        seeds = ", ".join(str(subject.settings.get(SEED, "?")) for subject in one.subjects)
        numbers = [cell(float(number)) for number in (known.mean(), known.min(), known.max())] if len(known) else []
        mean, low, high = numbers or (None, None, None)
        environment = one.subjects[0].environment
        lines.append([one.name, environment, len(one.subjects), seeds, mean, _between(interval(known)), low, high])
    columns = ["condition", "environment", "runs", "seeds", "mean score", "interval over seeds", "lowest", "highest"]
    return table(columns, lines)


def _directories_table(subjects: Sequence[Subject]) -> Data:
    lines = []
    for one in subjects:
        leader = one.best
        steps = min((member.steps for member in one.members), default=0)
        numbers: list[float | str | None] = [None, None, "–"]
        if leader is not None:
            numbers = [cell(leader.return_mean), cell(leader.evaluation), _between(leader.evaluation_interval)]
        kind = f"sweep of {len(one.members)}" if one.is_sweep else "run"
        lines.append([one.name, one.environment, _told(one, SEED), kind, one.state, steps, *numbers])
    columns = ["directory", "environment", "seed", "kind", "state", "steps", "training", "evaluation", "interval"]
    return table(columns, lines)


def compared(conditions: Sequence[ComparedCondition]) -> Data:
    """The mean of each condition, with a band from its lowest to its highest run."""
    drawn: list[Named] = []
    for colour, one in enumerate(conditions):
        curves = [curve for subject in one.subjects if len((curve := _curve(subject))[0])]
        steps, values = band(curves) if len(curves) > 1 else (np.empty(0), np.empty((0, 0)))
        if len(steps):
            line = CurveLine(steps, values.mean(0), values.min(0), values.max(0))
            drawn.append((f"{one.name} ({len(curves)} runs)", colour, line))
        else:
            drawn += [(one.name, colour, CurveLine(x, y, y, y)) for x, y in curves]
    return chart(None, drawn, Asked(points=_GRID), bands=True)


def _curve(subject: Subject) -> tuple[Array, Array]:
    """Returns over steps; of a sweep the best at each time: a maximum of noisy means, and thus optimistic."""
    lines = [subject.history.line("train", one.member, "return_mean") for one in subject.members]
    curves = [(line.x, line.mean) for line in lines if len(line.x)]
    if len(curves) < 2:  # noqa: PLR2004
        return curves[0] if curves else (np.empty(0), np.empty(0))
    steps, values = band(curves)
    return steps, values.max(0, initial=-np.inf)


def band(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Curves on common steps, where all of them have numbers: steps [n] and values [runs, n].

    >>> first = (np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    >>> second = (np.array([5.0, 20.0]), np.array([0.0, 15.0]))
    >>> steps, values = band([first, second])
    >>> steps[[0, -1]].tolist(), values[:, -1].tolist()
    ([5.0, 10.0], [10.0, 5.0])
    """
    start, stop = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if stop < start:
        return np.empty(0), np.empty((len(curves), 0))
    grid = np.linspace(start, stop, _GRID)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves])


def _between(ends: tuple[float, float] | None) -> str:
    return "–" if ends is None else " to ".join(display.short(end) for end in ends)


def _told(subject: Subject, name: str) -> str:
    return display.setting(subject.settings[name])[:500] if name in subject.settings else "–"
