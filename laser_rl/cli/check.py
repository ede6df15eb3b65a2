"""`laser check-env`, `laser doctor`: is this environment right, is this machine fine?"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from laser_rl.errors import ConfigError
from laser_rl.tools import doctor
from laser_rl.tools.check_process import examine
from laser_rl.tools.findings import Order, agent_facts, as_json, as_text

FAILED = 1  # exit status
MARKS = {"good": "good", "warning": "WARNING", "bad": "BAD", "optional": "–"}
COLOURS = {"good": "32", "warning": "33", "bad": "31;1", "optional": "2"}


@dataclass(frozen=True)
class CheckEnv(Order):
    """Examine an environment: what it declares, what it returns, seeds, ends, leaks, speed. Exit status 1 if there is a defect."""

    id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """An id that Gymnasium knows, one of ours, `module:Name-v0`, or `module:callable`."""
    json: bool = False
    """Everything as JSON."""

    def __call__(self) -> int:
        """Examine it and print what was found."""
        from laser_rl.recipes.agents import shared  # noqa: PLC0415 - imports the settings, which the help text does not need

        if min(self.steps, self.slots) < 1 or self.seconds <= 0:
            raise ConfigError("expected --steps, --slots and --seconds above 0; leave them out for the usual ones")
        _require_object(self.options)
        order = {name: value for name, value in vars(self).items() if name != "json"}
        loud = sys.stderr.isatty() and not self.json
        found = examine(
            Order(**{**order, "slots": shared(self.id, self.slots)}),
            lambda stage: print(f"laser: {self.id}: {stage} …", file=sys.stderr) if loud else None,
        )
        agent = None if found.spec is None else agent_facts(found.spec, self.id)
        if self.json:
            print(json.dumps(as_json(found, agent), indent=2))
        else:
            print("\n".join(as_text(found, agent, coloured=sys.stdout.isatty())))
        return FAILED if found.of("defect") else 0


def _require_object(options: str) -> None:
    example = "e.g. '{\"size\": 5}'"
    try:
        found = json.loads(options)
    except ValueError as error:
        raise ConfigError(f"expected --options to be JSON, got {options!r} ({error}); {example}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"expected --options to be a JSON object, got {options!r}; {example}")


@dataclass(frozen=True)
class Doctor:
    """Look whether this machine is fine: versions, cores, memory, disk, GPU, processes. Exit status 1 if something is bad."""

    run_dir: Path = Path("runs")
    """Where runs are going to be; its file system is tried."""
    json: bool = False
    """Everything as JSON."""

    def __call__(self) -> int:
        """Print a line for each probe."""
        lines: list[doctor.Probe] = []
        for line in doctor.looked_at(self.run_dir):
            lines.append(line)
            if not self.json:
                print(_text(line), flush=True)
        bad, warned = (sum(line.verdict == verdict for line in lines) for verdict in ("bad", "warning"))
        if self.json:
            values = {"fine": not bad, "bad": bad, "warnings": warned, "lines": [asdict(line) for line in lines]}
            print(json.dumps(values, indent=2))
        elif bad:
            print(f"\n{bad} bad, {warned} to look at: mend what is bad, then ask again")
        else:
            print(f"\nfine, {warned} to look at" if warned else "\nfine")
        return FAILED if bad else 0


def _text(line: doctor.Probe) -> str:
    mark = f"{MARKS[line.verdict]:<8}"
    mark = f"\x1b[{COLOURS[line.verdict]}m{mark}\x1b[0m" if sys.stdout.isatty() else mark
    todo = f"; {line.todo}" if line.todo else ""
    return f"{line.part:<16}{mark}  {line.found}{todo}"
