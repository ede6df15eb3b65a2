"""What is needed to believe a report and to repeat it: events, commands, versions, hardware, seeds, every setting."""

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from laser_rl.metrics import display
from laser_rl.metrics.machine import machine
from laser_rl.metrics.reporting.document import (
    Cell,
    Commands,
    Notice,
    Section,
    Table,
    number,
    pairs,
    section,
    setting,
    words,
)
from laser_rl.metrics.reporting.subject import SEED, Subject
from laser_rl.trust import FLAG, code_in

_MOST_EVENTS = 40
_QUIET = {"checkpoint", "exploit", "resumed"}  # many, or told elsewhere
_HARDWARE = ("processor", "cores", "memory_bytes", "gpu", "system", "python")
_YEAR_3000 = 32_503_680_000  # seconds; later ones were not written by us, and the C library may refuse them


def happened(subject: Subject) -> Section | None:
    """Events other than checkpoints, and what each resumption made void."""
    marks = [
        (
            "resumed",
            one.step,
            f"had reached step {one.reached:,}; {one.void:,} rows void"
            + ("" if one.member is None else f"; member {one.member}"),
        )
        for one in subject.resumptions
    ]
    told = [
        (str(row.get("event", "event")), int(row["step"]), "" if "member" not in row else f"member {row['member']}")
        for row in subject.rows
        if row["kind"] == "event" and row.get("event") not in _QUIET
    ]
    every = sorted([*marks, *told], key=lambda event: event[1])[-_MOST_EVENTS:]
    lines = tuple((words(event), number(step, display.count), words(more)) for event, step, more in every)
    return section("What happened", [Table("Events", ("event", "step", "what"), lines) if lines else None])


def reproduce(subject: Subject, *, alone: bool = True) -> Section | None:
    """The commands, then on what and with which versions it was made; `alone`: no other directory is in the report."""
    return section("Reproduce", [Commands(commands(subject)), *_provenance(subject, alone=alone)])


def commands(subject: Subject) -> str:
    """How to run it again from its settings, how to go on with it, how to look at it."""
    folder = str(subject.run_dir)
    again, here = shlex.quote(f"{folder}-again"), shlex.quote(folder)
    file = shlex.quote(f"{folder}/{'sweep' if subject.is_sweep else 'config'}.json")
    same = f"laser sweep {file} --out {again}" if subject.is_sweep else f"laser train --config {file} --out {again}"
    play = f"laser evaluate {here} --member best" if subject.is_sweep else f"laser evaluate {here} --episodes 100"
    others = {
        name: value for name, value in subject.settings.items() if name not in {"environment.id", "replay.start_from"}
    }
    flag = f" {FLAG}" if code_in(subject.environment, others) else ""  # or they would be refused
    return (
        f"# the same again\n{same}{flag}\n# go on, look\nlaser resume {here}{flag}\n{play}{flag}\nlaser status {here}"
    )


def _provenance(subject: Subject, *, alone: bool) -> Sequence[Table | Notice | None]:
    seeds = {"seed": setting(subject.settings[SEED])} if SEED in subject.settings else {}
    about = {"environment": words(subject.environment), **seeds}
    if "recipe" in subject.settings:
        about["recipe"] = words(subject.settings["recipe"])
    if not subject.sessions and not alone:
        return [pairs("Experiment", about), Notice("Versions and hardware of this run were not recorded.", "note")]
    if not subject.sessions:
        unknown = (
            "Versions and hardware of this run were not recorded. Below are those of the machine that wrote this report, "
            "which need not be the same."
        )
        return [
            pairs("Experiment", about),
            Notice(unknown, "note"),
            *_machine(machine(), "Where the report was written"),
        ]
    last = subject.sessions[-1]
    sessions = tuple(
        (words(_when(one.get("time"))), words(one.get("command", "")), words(_brief(one))) for one in subject.sessions
    )
    table = Table("Sessions", ("started", "command", "machine"), sessions)
    return [pairs("Experiment", about), table, *_machine(last, "Hardware and versions of the last session")]


def _machine(found: Mapping[str, Any], title: str) -> list[Table | None]:
    cells: dict[str, Cell] = {}
    for name in _HARDWARE:
        value = found.get(name)
        if name == "memory_bytes":
            cells["memory"] = number(value, display.size)
        elif name == "gpu":
            cells["GPU"] = words(value or "none seen")
        else:
            cells[name] = setting(value)
    libraries = found.get("libraries")
    for name, version in (libraries if isinstance(libraries, dict) else {}).items():
        cells[name] = words(version)
    return [pairs(title, cells)]


def _brief(session: Mapping[str, Any]) -> str:
    libraries = session.get("libraries")
    torch = libraries.get("torch", "unknown") if isinstance(libraries, dict) else "unknown"
    return f"{session.get('gpu') or session.get('processor') or 'unknown'}, {session.get('cores', '?')} cores, torch {torch}"


def _when(value: object) -> str:
    if not isinstance(value, int | float) or not 0 <= value < _YEAR_3000:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(value))


def configuration(subject: Subject) -> Section | None:
    """Every setting."""
    return section("Configuration", [pairs("", {name: setting(value) for name, value in subject.settings.items()})])
