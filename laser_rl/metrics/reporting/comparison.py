"""Several directories side by side: runs that differ in nothing but the seed are one condition, with an interval over seeds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laser_rl.metrics import curves, display, sweep_curves
from laser_rl.metrics.curves import Curve, band
from laser_rl.metrics.reporting.binning import series
from laser_rl.metrics.reporting.document import (
    Cell,
    Lines,
    Part,
    Section,
    Series,
    Table,
    number,
    pairs,
    part,
    section,
    setting,
    words,
)
from laser_rl.metrics.reporting.scores import between, interval
from laser_rl.metrics.reporting.subject import SEED, Subject

_NO_CONDITION = {SEED, "run.steps", "run.device", "run.runtime", "run.threads", "run.log_every_s"}
_SEEDS = (
    "Runs that differ in nothing but the seed are one condition. Intervals (95 %, bootstrap) are over seeds; of fewer than five seeds they "
    "are too narrow. Of a sweep, its best member is taken, which is optimistic."
)


@dataclass(frozen=True, eq=False)
class Condition:
    """Directories with the same settings."""

    name: str
    subjects: tuple[Subject, ...]

    @property
    def environment(self) -> str:
        """The same for all of them, since it is a setting."""
        return self.subjects[0].environment


def comparison(subjects: Sequence[Subject]) -> Part:
    """The part that comes first where there are several directories."""
    conditions = conditions_of(subjects)
    environments = dict.fromkeys(one.environment for one in conditions)
    charts = [
        returns_chart([one for one in conditions if one.environment == name], name if len(environments) > 1 else "")
        for name in environments
    ]
    sections = [
        section("Scores", [_conditions_table(conditions), _directories_table(subjects)]),
        section("Curves", [*charts, *_speed_chart(subjects)]),
        _differences(subjects),
    ]
    return part("Side by side", f"{len(subjects)} directories, {len(conditions)} conditions", sections)


def conditions_of(subjects: Sequence[Subject]) -> list[Condition]:
    """Directories by their settings without the seed, named by what differs.

    A directory without settings is a condition of its own.
    """
    groups: dict[str, list[Subject]] = {}
    for one in subjects:
        own = {name: value for name, value in one.settings.items() if name not in _NO_CONDITION}
        key = json.dumps([one.is_sweep, own, one.sweep.get("settings")], sort_keys=True, default=str)
        groups.setdefault(key if one.settings else f"{key} {one.run_dir}", []).append(one)
    firsts = [group[0] for group in groups.values()]
    names = [name for name in differing(firsts) if name not in _NO_CONDITION]
    found = []
    for group in groups.values():
        own = {display.last_name(name): group[0].settings.get(name) for name in names}
        label = display.label(own) if names and len(own) <= 3 else group[0].name  # noqa: PLR2004 - more is no name
        found.append(Condition(label, tuple(group)))
    if len({one.name for one in found}) < len(found):
        return [Condition(one.subjects[0].name, one.subjects) for one in found]
    return found


def differing(subjects: Sequence[Subject]) -> list[str]:
    """The settings that are not the same in all directories; one that an older version did not know counts as different."""
    names = dict.fromkeys(name for one in subjects for name in one.settings)
    missing = object()
    return [
        name
        for name in names
        if any(one.settings.get(name, missing) != subjects[0].settings.get(name, missing) for one in subjects[1:])
    ]


def score_of(subject: Subject) -> float | None:
    """The last evaluation, or else the return in training, of the best member."""
    leader = subject.best
    if leader is None:
        return None
    return leader.return_mean if leader.evaluation is None else leader.evaluation


def _conditions_table(conditions: Sequence[Condition]) -> Table:
    lines = []
    for one in conditions:
        known = np.array([score for subject in one.subjects if (score := score_of(subject)) is not None])
        seeds = ", ".join(str(subject.settings.get(SEED, "?")) for subject in one.subjects)
        mean = float(known.mean()) if len(known) else None
        ends = (float(known.min()), float(known.max())) if len(known) else (None, None)
        lines.append(
            (
                words(one.name),
                words(one.environment),
                number(len(one.subjects), display.count),
                words(seeds),
                number(mean),
                between(interval(known)),
                number(ends[0]),
                number(ends[1]),
            )
        )
    columns = ("condition", "environment", "runs", "seeds", "mean score", "interval over seeds", "lowest", "highest")
    return Table("By condition", columns, tuple(lines), _SEEDS)


def _directories_table(subjects: Sequence[Subject]) -> Table:
    lines = []
    for one in subjects:
        leader = one.best
        steps = min((member.steps for member in one.members), default=0)
        lines.append(
            (
                words(one.name),
                words(one.environment),
                setting(one.settings[SEED]) if SEED in one.settings else number(None),
                words(f"sweep of {len(one.members)}" if one.is_sweep else "run"),
                words(one.state.partition(":")[0]),
                number(steps, display.count),
                number(None if leader is None else leader.return_mean),
                number(None if leader is None else leader.evaluation),
                between(None if leader is None else leader.evaluation_interval),
            )
        )
    columns = (
        "directory",
        "environment",
        "seed",
        "kind",
        "state",
        "steps",
        "training",
        "evaluation",
        "interval over episodes",
    )
    return Table("By directory", columns, tuple(lines), "Of a sweep, the numbers of its best member.")


def returns_chart(conditions: Sequence[Condition], environment: str = "") -> Lines | None:
    """The mean of each condition of one environment, with a band from its lowest to its highest run."""
    drawn: list[Series] = []
    mixed = False
    for colour, one in enumerate(conditions):
        pairs = [pair for subject in one.subjects if len((pair := _curve(subject))[0])]
        mixed = mixed or any(subject.mixed for subject in one.subjects)
        steps, values = band(pairs) if len(pairs) > 1 else (np.empty(0), np.empty((0, 0)))
        if len(steps):
            drawn.append(
                Series(f"{one.name} ({len(pairs)} runs)", steps, values.mean(0), values.min(0), values.max(0), colour)
            )
        else:
            alone = [series(one.name, pair, colour, band=False) for pair in pairs]
            drawn += [line for line in alone if line is not None]
    label = curves.MEDIAN if mixed else "Mean return of the last 100 episodes"
    label += f", {environment}" if environment else ""
    note = "Lines: means over runs. Bands: lowest to highest run, where all have numbers. Of a sweep: its best member at each time."
    return Lines(label, "score" if mixed else "return", tuple(drawn), note, legend="condition") if drawn else None


def _curve(subject: Subject) -> Curve:
    if not subject.is_sweep:
        return curves.returns(subject.rows)
    spread = sweep_curves.spread(sweep_curves.member_returns(subject.rows))
    return spread.steps, spread.best


def _speed_chart(subjects: Sequence[Subject]) -> list[Lines]:
    drawn = []
    for colour, one in enumerate(subjects):
        line = None if one.is_sweep else series(one.name, one.curve("steps_per_second"), colour, band=False)
        drawn += [line] if line is not None else []
    return [Lines("Steps per second", "steps/s", tuple(drawn), limits=(0.0, None), legend="directory")] if drawn else []


def _differences(subjects: Sequence[Subject]) -> Section | None:
    names = differing(subjects)
    lines = tuple((words(name), *(_told(one.settings, name) for one in subjects)) for name in names)
    columns = ("setting", *(one.name for one in subjects))
    note = "All other settings are the same in all directories. – where a directory does not say."
    return section("Settings that differ", [Table("Settings that differ", columns, lines, note) if lines else None])


def common(subjects: Sequence[Subject]) -> Part:
    """The part that comes last: what is the same in all directories, told once."""
    differ = set(differing(subjects))
    same = {name: setting(value) for name, value in subjects[0].settings.items() if name not in differ}
    return part("The same in all", "", [section("Common settings", [pairs("", same)])])


def _told(settings: dict[str, Any], name: str) -> Cell:
    return setting(settings[name]) if name in settings else number(None)
