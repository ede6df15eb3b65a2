"""What the page tells in words and tables: how a run and its members stand, settings, machine, faults, events."""

import hashlib
import math
import time
from typing import Any

from laser_rl.metrics.history import COUNTERS
from laser_rl.view.runs import Run
from laser_rl.metrics import display
from laser_rl.metrics.reporting.subject import Subject
from laser_rl.metrics.reporting.sweep_sections import described
from laser_rl.metrics.sink import Row
from laser_rl.metrics.videos import Film

SILENT_S = 60.0
_MOST_EVENTS = 50
_MOST_TEXT = 500


def summary(run: Run, subject: Subject) -> dict[str, Any]:
    """How it stands now: what a page gets with every piece of news."""
    last = run.history.last or {}
    at = last.get("time")
    silent = max(0.0, time.time() - float(at)) if isinstance(at, int | float) else None
    leader = subject.best
    return {
        "run": run.number,
        "name": run.name,
        "version": run.version,
        "kind": described(subject) if subject.is_sweep else "one agent",
        "is_sweep": subject.is_sweep,
        "environment": subject.environment,
        "state": run.state,
        "last": at if isinstance(at, int | float) and math.isfinite(at) else None,
        "silent": run.state == "running" and silent is not None and silent > SILENT_S,
        "known": round(run.known, 3),
        "rows": run.history.rows,
        "total": _count(subject.settings.get("run.steps")),
        "best": None if leader is None else leader.member,
        "score": "score" if subject.mixed else "return",
        "members": [_member(run, subject, n) for n in range(len(subject.members))],
        "faults": {
            text: sum(run.history.count(one.member, name) for one in subject.members) for name, text in COUNTERS.items()
        },
        "exploits": sum(one.exploits for one in subject.members),
        "videos": len(run.videos()),
    }


def details(run: Run, subject: Subject) -> dict[str, Any]:
    """Settings, machine, events and videos: what changes seldom."""
    session = subject.sessions[-1] if subject.sessions else {}
    libraries = session.get("libraries")
    memory = session.get("memory_bytes")
    machine = {
        "command": session.get("command"),
        "started": session.get("time"),
        "times started": len(subject.sessions),
        "processor": session.get("processor"),
        "cores": session.get("cores"),
        "memory": display.size(memory) if isinstance(memory, int) else None,
        "GPU": session.get("gpu"),
        "system": session.get("system"),
        "Python": session.get("python"),
        **(libraries if isinstance(libraries, dict) else {}),
    }
    return {
        "settings": {name: _text(display.setting(value)) for name, value in subject.settings.items()},
        "machine": {
            str(name): value if isinstance(value, int | float) else _text(value)
            for name, value in machine.items()
            if value is not None
        },
        "events": [_event(row) for row in list(run.history.events)[-_MOST_EVENTS:]],
        "videos": [_video(one) for one in run.videos()],
    }


def video_id(video: Film) -> str:
    """By what a page asks for a file: nothing that could be a path.

    >>> from pathlib import Path
    >>> len(video_id(Film(Path("step-1.mp4"), "video/mp4", 0.0, 9)))
    24
    """
    return hashlib.sha256(video.name.encode(errors="surrogateescape")).hexdigest()[:24]


def _video(one: Film) -> dict[str, Any]:
    return {
        "id": video_id(one),
        "name": _text(one.name),
        "time": one.time,
        "media": one.media,
        "step": one.step,
        "member": one.member,
        "task": one.task,
        "return": _finite(one.total),
        "length": one.length,
        "entropy": _finite(one.entropy),
        "trusted": _finite(one.trusted),
    }


def _member(run: Run, subject: Subject, number: int) -> dict[str, Any]:
    one = subject.members[number]
    newest = next((row for row in reversed(subject.of(number)) if row["kind"] == "train"), {})
    own = one.acceptance_own if one.acceptance_own is not None else newest.get("acceptance")
    return {
        "member": one.member,
        "settings": {str(name): _text(display.setting(value)) for name, value in one.settings.items()},
        "steps": one.steps,
        "updates": one.updates,
        "score": _finite(one.return_mean),
        "evaluation": _finite(one.evaluation),
        "interval": [_finite(end) for end in one.evaluation_interval] if one.evaluation_interval else None,
        "own": _finite(own),
        "others": _finite(one.acceptance_others),
        "steps_per_second": _finite(newest.get("steps_per_second")),
        "updates_per_second": _finite(newest.get("updates_per_second")),
        "wait": _finite(newest.get("learner_wait")),
        "memory": _finite(newest.get("memory_bytes")),
        "skipped": run.history.count(number, "skipped_updates"),
        "restarts": run.history.count(number, "environment_restarts"),
        "exploits": one.exploits,
    }


def _event(row: Row) -> dict[str, Any]:
    rest = {name: value for name, value in row.items() if name not in {"kind", "event", "time", "step", "update"}}
    told = ", ".join(f"{name} {display.setting(value)}" for name, value in list(rest.items())[:12])
    return {
        "time": _finite(row.get("time")),
        "step": int(row["step"]),
        "event": _text(row.get("event")),
        "told": _text(told),
    }


def _finite(value: object) -> float | None:
    return float(f"{value:.9g}") if isinstance(value, int | float) and math.isfinite(value) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} …"
