"""What the page tells in words and tables: how a run and its members stand, warnings, settings, machine, events, videos."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from laser_rl.envs.scores import RETURN_OF, SCORE_OF
from laser_rl.evaluation.statistics import bootstrap_interval
from laser_rl.metrics import display
from laser_rl.metrics.history import FAULTS
from laser_rl.metrics.rows import Row, episodes_in
from laser_rl.metrics.standing import MemberStanding
from laser_rl.metrics.videos import Film
from laser_rl.view.panels import Data, cell
from laser_rl.view.runs import SILENT_S, Subject

_MOST_EVENTS, _MOST_SESSIONS, _MOST_TEXT, _MOST_NAMED = 50, 20, 500, 12
_WINDOW = 100
_SHOWN = ("steps_per_second", "updates_per_second", "learner_wait", "memory_bytes")  # of the newest training rows
_TIME_DIGITS = 13  # milliseconds since 1970


def summary(subject: Subject, *, known: float = 1.0) -> Data:
    """How it stands now: what a page gets with every piece of news. `known` is the share of the log that has been read."""
    last = cell((subject.history.last or {}).get("time"), _TIME_DIGITS)
    leader, total = subject.best, subject.settings.get("run.steps")
    return {
        "name": subject.name,
        "kind": _kind(subject),
        "is_sweep": subject.is_sweep,
        "environment": subject.environment,
        "state": subject.state,
        "last": last,
        "silent": subject.running and last is not None and subject.now - last > SILENT_S,
        "known": round(known, 3),
        "rows": subject.history.rows,
        "total": total if isinstance(total, int) and not isinstance(total, bool) else None,
        "best": None if leader is None else leader.member,
        "score": "score" if subject.mixed else "return",
        "members": [_member(subject, one) for one in subject.members],
        "faults": {short: sum(_counts(subject, name).values()) for name, (short, _) in FAULTS.items()},
        "exploits": sum(one.exploits for one in subject.members),
        "notices": notices(subject) if known == 1.0 else [],
    }


def details(subject: Subject, films: Sequence[Film]) -> Data:
    leader = 0 if subject.best is None else subject.best.member
    played = subject.history.values("evaluation", leader)
    evaluation = {
        ("score" if subject.mixed and name == "mean" else name): _text(value) if isinstance(value, str) else cell(value)
        for name, value in played.items()
        if name not in {"kind", "time", "member"} and not name.startswith((RETURN_OF, SCORE_OF))
    }
    return {
        "settings": {name: _text(display.setting(value)) for name, value in subject.settings.items()},
        "numbers": {name: _text(text) for name, text in display.texts(subject.history.values("train", leader)).items()},
        "evaluation": evaluation,
        "intervals": [_training_interval(subject, one.member) for one in subject.members],
        "machine": _machine(subject),
        "sessions": [
            {"time": cell(one.get("time"), _TIME_DIGITS), "command": _text(one.get("command", ""))}
            for one in subject.files.sessions[-_MOST_SESSIONS:]
        ],
        "events": [_event(row) for row in subject.history.events if row.get("event") != "exploit"][-_MOST_EVENTS:],
        "videos": [_video(one) for one in films],
    }


def notices(subject: Subject) -> list[list[str]]:
    """What a reader must not overlook, as (level, sentence): the state, faults, resumptions."""
    found = _state_notices(subject)
    for name, (_, sentence) in FAULTS.items():
        counts = {member: count for member, count in _counts(subject, name).items() if count}
        if counts:
            whose = f": {_whose(counts)}" if subject.is_sweep else ""
            found.append(["warning", f"{sum(counts.values()):,} {sentence}{whose}."])
    return found + _resumed(subject)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:  # noqa: PLR2004
        return None
    return bootstrap_interval([np.asarray(values, np.float64)], lambda drawn: drawn.mean(-1))


def video_id(video: Film) -> str:
    """By what a page asks for a file: nothing that could be a path."""
    return hashlib.sha256(video.path.name.encode(errors="surrogateescape")).hexdigest()[:24]


def _kind(subject: Subject) -> str:
    if not subject.is_sweep:
        return "one agent"
    share = str(subject.files.sweep.get("share", "")) or "unknown"
    known = {"shared": "one replay for all", "separate": "a replay each", "none": "no replay"}
    return f"sweep of {len(subject.members)} members, {known.get(share, f'replay: {share}')}"


def _member(subject: Subject, one: MemberStanding) -> Data:
    newest, played = (subject.history.values(kind, one.member) for kind in ("train", "evaluation"))
    # What population based training has moved in another member is as the sweep began with it.
    full = {display.last_name(name): name for name in subject.settings}
    others = dict.fromkeys(name for other in subject.members for name in other.settings)
    values = {name: subject.settings.get(full.get(display.last_name(name), name)) for name in others} | one.settings
    settings = {name: value for name, value in values.items() if value is not None}
    return {
        "member": one.member,
        "settings": {str(name): _text(display.setting(value)) for name, value in settings.items()},
        "steps": one.steps,
        "updates": one.updates,
        "score": cell(one.return_mean),
        "evaluation": cell(one.evaluation),
        "interval": _cells(one.evaluation_interval),
        "own": cell(one.acceptance_own),
        "others": cell(one.acceptance_others),
        **{name: cell(played.get(name)) for name in ("iqm", "episodes")},
        **{name: cell(newest.get(name)) for name in _SHOWN},
        "skipped": subject.history.count(one.member, "skipped_updates"),
        "restarts": subject.history.count(one.member, "environment_restarts"),
        "exploits": one.exploits,
    }


def _training_interval(subject: Subject, member: int) -> list[float | None] | None:
    """Over the last 100 episodes, if all of them have rows of their own; returns of several tasks have nothing in common."""
    rows = subject.history.newest("episode", member)
    if subject.mixed or any(episodes_in(row) > 1 for row in rows):
        return None
    return _cells(interval([float(row["return"]) for row in rows if cell(row.get("return")) is not None]))


def _cells(ends: tuple[float, float] | None) -> list[float | None] | None:
    return None if ends is None else [cell(end) for end in ends]


def _counts(subject: Subject, name: str) -> dict[int, int]:
    return {one.member: subject.history.count(one.member, name) for one in subject.members}


def _state_notices(subject: Subject) -> list[list[str]]:
    if subject.running:
        return []
    if not subject.history.rows:
        return [["warning", "There are no rows yet: nothing has been learned, or the log is missing."]]
    found = []
    if subject.state == "broken off":
        said = "neither that this is finished nor that it was stopped: nothing here is a final result."
        found.append(["warning", f"The last row says {said}"])
    ended = {one.member: subject.history.values("train", one.member).get("episodes") for one in subject.members}
    few = {member: int(n) for member, n in ended.items() if isinstance(n, int | float) and n < _WINDOW}
    if few:
        whose = _whose(few) if subject.is_sweep else f"{next(iter(few.values()))}"
        said = f"Fewer than {_WINDOW} episodes have ended: {whose}. Returns are means over those there are."
        found.append(["note", said])
    return found


def _whose(counts: dict[int, int]) -> str:
    shown = [f"member {member}: {count:,}" for member, count in list(counts.items())[:_MOST_NAMED]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more members" if more else "")


def _resumed(subject: Subject) -> list[list[str]]:
    marks = sorted({step for step, _ in subject.history.marks})
    if not marks:
        return []
    steps = ", ".join(f"{step:,.0f}" for step in marks[:_MOST_NAMED])
    more = f" and {len(marks) - _MOST_NAMED} more" if len(marks) > _MOST_NAMED else ""
    return [["note", f"Resumed at step {steps}{more} (dotted in the charts); rows after the checkpoint are left out."]]


def _machine(subject: Subject) -> dict[str, Any]:
    session = subject.files.sessions[-1] if subject.files.sessions else {}
    libraries, memory = session.get("libraries"), session.get("memory_bytes")
    found = {
        "seed": subject.settings.get("run.seed"),
        "recipe": subject.settings.get("recipe"),
        "started": session.get("time"),
        "times started": len(subject.files.sessions) or "not recorded",
        "processor": session.get("processor"),
        "cores": session.get("cores"),
        "memory": display.size(memory) if isinstance(memory, int) else None,
        "GPU": session.get("gpu"),
        "system": session.get("system"),
        "Python": session.get("python"),
        **(libraries if isinstance(libraries, dict) else {}),
    }
    told = {str(name): value for name, value in found.items() if value is not None}
    return {name: cell(value) if isinstance(value, int | float) else _text(value) for name, value in told.items()}


def _video(one: Film) -> Data:
    told = {name: getattr(one, name) for name in ("time", "media", "step", "member", "task", "length")}
    return {"id": video_id(one), "name": _text(one.path.name), "return": cell(one.total), **told}


def _event(row: Row) -> Data:
    rest = {name: value for name, value in row.items() if name not in {"kind", "event", "time", "step", "update"}}
    told = ", ".join(f"{name} {display.setting(value)}" for name, value in list(rest.items())[:12])
    step, time_s = int(row["step"]), cell(row.get("time"), _TIME_DIGITS)
    return {"time": time_s, "step": step, "event": _text(row.get("event")), "told": _text(told)}


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} …"
