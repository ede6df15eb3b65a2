"""The panels of the page as data: each is a function of a run and of what was asked, numbers in, JSON out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from laser_rl.envs.scores import RETURN_OF, SCORE_OF, reference_of
from laser_rl.metrics import display
from laser_rl.metrics.history import Array, CurveLine, aligned
from laser_rl.metrics.rows import Kind, mean
from laser_rl.metrics.standing import Exploit, MemberStanding, copies, newest_means, trials
from laser_rl.view.runs import Subject

POINTS = 1000
_FEW = 4
_MOST_NUMBERS = 24_000  # of a panel: many members share them
_MOST_COPIES = 200
_MOST_SETTINGS = 12
_LOG_SPAN = 10  # from here on an axis is logarithmic
SEED = "run.seed"
NOT_COMPARED = {SEED, "run.steps", "run.device", "run.runtime", "run.threads", "run.log_every_s"}
_AGES = ("< 10", "< 100", "< 1,000", "< 10,000", "older")  # in updates, as `acceptance_age_0` to `_4`
_YOUNGER = ("youngest", "a quarter is younger", "half is younger", "three quarters are younger", "oldest")
_QUARTERS = {f"age_{25 * quarter}": text for quarter, text in enumerate(_YOUNGER)}
# Numbers of training rows, a line for each and each member; of many members only the last one.
TRAINED: dict[str, dict[str, str]] = {
    "policy-loss": {"policy_loss": "policy loss"},
    "value-loss": {"value_loss": "value loss"},
    "entropy": {"entropy": "entropy"},
    "kl": {"kl": "KL"},
    "gradient": {"gradient_norm": "gradient norm"},
    "learning-rate": {"learning_rate": "learning rate"},
    "entropy-cost": {"entropy_cost": "entropy cost"},
    "clipped": {"c_clipped": "c", "rho_clipped": "ρ"},
    "lag": {"lag_updates": "lag"},
    "steps": {"steps_per_second": "steps/s"},
    "updates": {"updates_per_second": "updates/s"},
    "waiting": {"learner_busy": "learner busy", "learner_wait": "learner wait"},
    "queues": {"queue_inbox": "deliveries of the environments", "queue_batches": "batches gathered ahead"},
    "memory": {"memory_bytes": "memory"},
}


class Asked(NamedTuple):
    """What a page wants to see: x is `step` or `time`; one learner or, -1, all of them; how fine."""

    axis: str = "step"
    learner: int = -1
    points: int = POINTS


Data = dict[str, Any]
Named = tuple[str, int | None, CurveLine]  # name, member, line


def _trained(names: Mapping[str, str], subject: Subject, asked: Asked) -> Data:
    shown = list(names.items()) if len(subject.members) <= _FEW else list(names.items())[-1:]
    drawn = [line for name, label in shown for line in _of_members(subject, asked, name, label, several=len(names) > 1)]
    return chart(subject, drawn, asked)


def _returns(subject: Subject, asked: Asked) -> Data:
    told = _of_members(subject, asked, "return_mean", subject.score_label)
    drawn = told or _of_members(subject, asked, "return", "return of an episode", kind="episode")
    leader = None if subject.best is None else subject.best.member
    return {**chart(subject, drawn, asked), "best": leader, "label": subject.score_label}


def _episodes(subject: Subject, asked: Asked) -> Data:
    if len(subject.members) > 1 or subject.mixed or not len(subject.history.line("train", 0, "return_mean").x):
        return chart(subject, [], asked)
    return chart(subject, _of_members(subject, asked, "return", "single episodes", kind="episode"), asked)


def _evaluations(subject: Subject, asked: Asked) -> Data:
    drawn: list[Named] = []
    for one in subject.members:
        names = ("mean", "ci95_low", "ci95_high")
        mean, low, high = (subject.history.line("evaluation", one.member, name, asked.axis) for name in names)
        if len(mean.x):
            known = len(mean.x) == len(low.x) == len(high.x)
            ends = (low.mean, high.mean) if known else (mean.mean, mean.mean)
            name = str(one.member) if subject.is_sweep else "evaluation"
            drawn.append((name, one.member, CurveLine(mean.x, mean.mean, *ends)))
    return chart(subject, drawn, asked, bands=True)


def _tasks(subject: Subject, asked: Asked) -> Data:
    leader = subject.best
    if leader is None or not subject.mixed:
        return chart(subject, [], asked)
    names = [name for name in subject.history.names("train", leader.member) if name.startswith(SCORE_OF)]
    every = ((name, subject.history.line("train", leader.member, name, asked.axis)) for name in names)
    return chart(subject, [(name.removeprefix(SCORE_OF), None, line) for name, line in every if len(line.x)], asked)


def _task_table(subject: Subject, asked: Asked) -> Data:
    """Of a mixture: the newest numbers of each task beside random play and the best known, of the best member."""
    leader = subject.best
    if leader is None or not subject.mixed:
        return table([], [])
    rows = [subject.history.values(kind, leader.member) for kind in ("train", "evaluation")]
    names = dict.fromkeys(name.removeprefix(SCORE_OF) for row in rows for name in row if name.startswith(SCORE_OF))
    lines = []
    for name in names:
        reference = reference_of(name)
        known = (None, None) if reference is None else (reference.random, reference.best)
        numbers = [values.get(prefix + name) for values in rows for prefix in (RETURN_OF, SCORE_OF)]
        lines.append([name, *(cell(value) for value in (*known, *numbers))])
    return table(["task", "random", "best", "return", "score", "evaluation", "its score"], lines)


def _trust(subject: Subject, asked: Asked) -> Data:
    """What is trusted of each source's replayed steps, by one learner or by the mean of all; of a single run, of its own."""
    members = range(len(subject.members))
    learners = [asked.learner] if asked.learner in members else list(members)
    drawn: list[Named] = []
    for source in members:
        name = f"acceptance_from_{source}"
        lines = [subject.history.line("train", learner, name, asked.axis) for learner in learners]
        lines = [line for line in lines if len(line.x)]
        if lines:
            drawn.append((f"steps of {source}", source, _mean_line(lines)))
    return chart(subject, drawn or _of_members(subject, asked, "acceptance", "trusted"), asked)


def _who(subject: Subject, asked: Asked) -> Data:
    count = len(subject.members)
    newest = subject.history.newest("sweep", -1)
    cells = [
        [0.0 if i == j else mean(row.get(f"divergence_{i}_{j}") for row in newest) for j in range(count)]
        for i in range(count)
    ]
    known = any(math.isfinite(value) for i, row in enumerate(cells) for j, value in enumerate(row) if i != j)
    trusted = newest_means(subject.history, [f"acceptance_from_{n}" for n in range(count)], count)
    by_age = newest_means(subject.history, [f"acceptance_age_{age}" for age in range(len(_AGES))], count)
    return {
        "members": count,
        "trusted": [numbers(row) for row in trusted],
        "divergence": [numbers(row) for row in cells] if known else None,
        "ages": list(_AGES),
        "by_age": [numbers(row) for row in by_age],
    }


def _replay(subject: Subject, asked: Asked) -> Data:
    labels = {f"share_of_{one.member}": str(one.member) for one in subject.members}
    return chart(subject, _of_sweep(subject, asked, labels), asked)


def _shared(labels: Mapping[str, str], own: tuple[str, str], subject: Subject, asked: Asked) -> Data:
    """Numbers of the replay of a sweep; of a single run, one number of its training rows."""
    return chart(subject, _of_sweep(subject, asked, labels) or _of_members(subject, asked, *own), asked)


def _lineage(subject: Subject, asked: Asked) -> Data:
    count, end = len(subject.members), max((one.steps for one in subject.members), default=0)
    history = [one for one in copies(subject.history) if max(one.member, one.donor) < count and one.member != one.donor]
    pieces = []
    for member, changes in founders(history, count).items() if history else ():
        stops = [step for step, _ in changes[1:]] + [end]
        pieces += [(member, start, stop, founder) for (start, founder), stop in zip(changes, stops, strict=True)]
    exploits = [(one.step, one.donor, one.member) for one in history]
    return {"members": count, "end": end, "pieces": pieces, "copies": exploits[-500:]}


def _trials(subject: Subject, asked: Asked) -> Data:
    found = trials(subject.history, subject.members)
    names = list(dict.fromkeys(name for one in found for name in one.settings))
    lines = [[*one[:5], cell(one.score), *(cell(one.settings.get(name), 4) for name in names)] for one in found]
    return table(["trial", "member", "from step", "to step", "how it ended", "score", *names], lines)


def _sentence(one: Exploit) -> str:
    scores = f" (score {display.short(one.score)} against {display.short(one.donor_score)})"
    texts = {name: [f"{side[name]:.3g}" for side in (one.before, one.after) if name in side] for name in one.after}
    moved = [f"{name} from {ends[0]} to {ends[1]}" for name, ends in texts.items() if len(set(ends)) > 1]
    changed = f"changed {' and '.join(moved)}" if moved else "kept its settings"
    known = math.isfinite(one.score) and math.isfinite(one.donor_score)
    if one.trial is not None:
        settings, before = display.listed(one.after), f"The one before was {one.ended}"
        heir = f", with the parameters of member {one.donor}" if one.donor != one.member else ""
        score = f" at {display.short(one.score)}" if math.isfinite(one.score) else ""
        return (
            f"At {one.step:,} steps trial {one.trial} began in member {one.member}{heir}: {settings}. {before}{score}."
        )
    if one.donor == one.member:
        return f"At {one.step:,} steps member {one.member} {changed}."
    return (
        f"At {one.step:,} steps member {one.member} copied member {one.donor}{scores if known else ''} and {changed}."
    )


def scatter(subjects: Sequence[Subject], places: Sequence[int], asked: Asked) -> Data:
    """Each setting that varies against the score, a point a member; of several directories, with the place of each as its colour."""
    members = [(n, one, member) for n, one in enumerate(subjects) for member in one.members]
    evaluated = all(member.evaluation is not None for _, _, member in members)
    points, values = [], []
    for n, subject, member in members:
        score = cell(member.evaluation if evaluated else member.return_mean)
        if score is not None:
            own = f"member {member.member}"
            name = own if not places else f"{subject.name}, {own}" if subject.is_sweep else subject.name
            points.append({"member": places[n] if places else member.member, "name": name, "score": score})
            values.append(_settings_of(subject, member))
    names = [name for name in dict.fromkeys(name for one in values for name in one) if not name.startswith("run.")]
    varied = [name for name in names if len({repr(one.get(name)) for one in values}) > 1]
    what = "Mean of the last evaluation" if evaluated else subjects[0].score_label
    axes = [_axis(name, [one.get(name) for one in values]) for name in varied[:_MOST_SETTINGS]]
    return {"score": what, "points": points, "settings": axes, "more": len(varied) - len(axes)}


def _settings_of(subject: Subject, member: MemberStanding) -> dict[str, Any]:
    """Every setting of a member as it is now, by full name; a list is not an axis."""
    full = {display.last_name(name): name for name in subject.settings}
    own = {full.get(display.last_name(name), name): value for name, value in member.settings.items()}
    every = {**subject.settings, **own}
    return {name: value for name, value in every.items() if isinstance(value, str | int | float | None)}


def _axis(name: str, values: Sequence[Any]) -> Data:
    """Numbers, on a logarithmic axis if they span more than a factor of ten; everything else as texts."""
    known = [cell(value) for value in values if not isinstance(value, bool)]
    found = [value for value in known if value is not None]
    if len(found) < len(values):
        return {"name": display.last_name(name), "log": False, "values": [display.setting(one)[:40] for one in values]}
    log = min(found) > 0 and max(found) > _LOG_SPAN * min(found)
    return {"name": display.last_name(name), "log": log, "values": found}


PANELS: dict[str, Callable[[Subject, Asked], Data]] = {
    "returns": _returns,
    "episodes": _episodes,
    "evaluations": _evaluations,
    "tasks": _tasks,
    "task-table": _task_table,
    "trust": _trust,
    "who": _who,
    "replay": _replay,
    "ages": partial(_shared, _QUARTERS, ("replay_age_updates", "mean age")),
    "fill": partial(_shared, {"replay_fill": "replay"}, ("replay_fill", "replay")),
    "lineage": _lineage,
    "copies": lambda subject, _: {"sentences": [*map(_sentence, reversed(copies(subject.history)[-_MOST_COPIES:]))]},
    "trials": _trials,
    "settings": lambda subject, asked: scatter([subject], (), asked),
    **{name: partial(_trained, names) for name, names in TRAINED.items()},
}


def chart(subject: Subject | None, named: Sequence[Named], asked: Asked, *, bands: bool = False) -> Data:
    """A line has `low` and `high` if that is asked for, or if it is alone and each of its points stands for several rows."""
    points = max(50, min(asked.points, _MOST_NUMBERS // max(1, len(named))))
    x, lines = aligned([line for _, _, line in named], points)
    history = None if subject is None else subject.history
    start = (history.began or 0.0) if history is not None and asked.axis == "time" else 0.0
    found = []
    for (name, member, _), line in zip(named, lines, strict=True):
        one: Data = {"name": name, "member": member, "y": numbers(line.mean)}
        if bands or (len(named) == 1 and np.nanmax(line.high - line.low, initial=0.0) > 0):
            one |= {"low": numbers(line.low), "high": numbers(line.high)}
        found.append(one)
    marks = [] if history is None else history.marks[-20:]
    at = {mark[1] - start if asked.axis == "time" else mark[0] for mark in marks}
    return {"x": numbers(x - start, digits=9), "lines": found, "marks": numbers(sorted(at), digits=9)}


def table(columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> Data:
    return {"columns": list(columns), "rows": [list(line) for line in lines]}


def founders(history: Iterable[Exploit], members: int) -> dict[int, list[tuple[int, int]]]:
    """For each member the steps from which on it carried whose first parameters: (step, founder), starting with (0, itself)."""
    found = {member: [(0, member)] for member in range(members)}
    for copy in history:
        found[copy.member].append((copy.step, found[copy.donor][-1][1]))
    return found


def _mean_line(lines: Sequence[CurveLine]) -> CurveLine:
    if len(lines) == 1:
        return lines[0]
    x, found = aligned(lines, POINTS)
    every = np.stack([line.mean for line in found])
    count = np.isfinite(every).sum(0)
    mean = np.nansum(every, 0) / np.maximum(count, 1)
    return CurveLine(x[count > 0], mean[count > 0], mean[count > 0], mean[count > 0])


def numbers(values: Array | Iterable[float], digits: int = 6) -> list[float | None]:
    return [cell(value, digits) for value in values]


def cell(value: object, digits: int = 9) -> float | None:
    return float(f"{value:.{digits}g}") if isinstance(value, int | float) and math.isfinite(value) else None


def _of_sweep(subject: Subject, asked: Asked, labels: Mapping[str, str]) -> list[Named]:
    """Numbers of the sweep itself that its rows have; a label that is a number has the colour of that member."""
    every = {text: subject.history.line("sweep", -1, name, asked.axis) for name, text in labels.items()}
    return [(text, int(text) if text.isdecimal() else None, line) for text, line in every.items() if len(line.x)]


def _of_members(
    subject: Subject, asked: Asked, name: str, label: str, *, kind: Kind = "train", several: bool = False
) -> list[Named]:
    """A number of each member that has it; named by the member in a sweep, and by the label if there are several numbers."""
    found = []
    for one in subject.members:
        line = subject.history.line(kind, one.member, name, asked.axis)
        called = f"{one.member}: {label}" if several else str(one.member)
        if len(line.x):
            alone = None if several else one.member  # several lines of one agent have a colour each
            found.append((called, one.member, line) if subject.is_sweep else (label, alone, line))
    return found
