"""`laser doctor`: is this machine fine?"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from laser_rl.tools import doctor
from laser_rl.tools.doctor import Probe

BAD = 1  # exit status
MARKS = {"good": "good", "warning": "WARNING", "bad": "BAD", "optional": "–"}
COLOURS = {"good": "32", "warning": "33", "bad": "31;1", "optional": "2"}


@dataclass(frozen=True)
class Doctor:
    """Look whether this machine is fine: versions, cores, memory, disk, GPU, processes. Exit status 1 if something is bad."""

    run_dir: Path = Path("runs")
    """Where runs are going to be; its file system is tried."""
    json: bool = False
    """Everything as JSON."""


def doctor_command(arguments: list[str]) -> int:
    """`laser doctor`."""
    asked = tyro.cli(Doctor, prog="laser doctor", args=arguments)
    lines: list[Probe] = []
    coloured = sys.stdout.isatty()
    for line in doctor.looked_at(asked.run_dir):
        lines.append(line)
        if not asked.json:
            print(_text(line, coloured=coloured), flush=True)
    bad, warned = (sum(line.verdict == verdict for line in lines) for verdict in ("bad", "warning"))
    if asked.json:
        values = {"fine": not bad, "bad": bad, "warnings": warned, "lines": [asdict(line) for line in lines]}
        print(json.dumps(values, indent=2))
    else:
        print(f"\n{_result(bad, warned)}")
    return BAD if bad else 0


def _text(line: Probe, *, coloured: bool) -> str:
    mark = f"{MARKS[line.verdict]:<8}"
    mark = f"\x1b[{COLOURS[line.verdict]}m{mark}\x1b[0m" if coloured else mark
    todo = f"; {line.todo}" if line.todo else ""
    return f"{line.part:<16}{mark}  {line.found}{todo}"


def _result(bad: int, warned: int) -> str:
    if bad:
        return f"{bad} bad, {warned} to look at: mend what is bad, then ask again"
    return f"fine, {warned} to look at" if warned else "fine"
