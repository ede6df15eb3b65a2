"""`laser check-env`, `laser doctor`: is this environment right, is this machine fine?"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, MultiDiscreteActions
from laser_rl.errors import ConfigError
from laser_rl.tools import doctor
from laser_rl.tools.check_env import Order
from laser_rl.tools.check_process import Examination, examine

COLOURS = {"good": "32", "warning": "33", "bad": "31;1", "defect": "31;1", "not done": "2"}


@dataclass(frozen=True)
class CheckEnv(Order):
    """Examine an environment: what it declares, what it returns, seeds, ends, speed. Exit status 1 if there is a defect."""

    id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """An id that Gymnasium knows, one of ours, `module:Name-v0`, or `module:callable`."""
    json: bool = False
    """Everything as JSON."""

    def __call__(self) -> int:
        from laser_rl.recipes import for_environment, shared  # noqa: PLC0415 - settings, which the help text does not need

        if min(self.steps, self.slots) < 1 or self.seconds <= 0:
            raise ConfigError("expected --steps, --slots and --seconds above 0; leave them out for the usual ones")
        try:
            dict(**json.loads(self.options))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"expected --options to be a JSON object, got {self.options!r} ({error}); e.g. '{{\"size\": 5}}'"
            ) from None
        order = {name: value for name, value in vars(self).items() if name != "json"}
        loud = sys.stderr.isatty() and not self.json
        found = examine(
            Order(**{**order, "slots": shared(self.id, self.slots)}),
            lambda stage: print(f"laser: {self.id}: {stage} …", file=sys.stderr) if loud else None,
        )
        if found.spec is not None:
            recipe = {"recipe": f"{for_environment(found.spec, self.id).recipe}: laser train --env {self.id}"}
            found.facts = spec_facts(found.spec) | found.facts | recipe
        if self.json:
            verdict = "defect" if found.of("defect") else "warning" if found.of("warning") else "good"
            about = {"environment": self.id, "verdict": verdict, "findings": [asdict(one) for one in found.findings]}
            print(json.dumps({**about, "facts": found.facts}, indent=2))
        else:
            print("\n".join(as_text(found)))
        return int(bool(found.of("defect")))


def spec_facts(spec: EnvironmentSpec) -> dict[str, str]:
    seen, action = spec.observation, spec.action
    kind = "picture" if seen.is_image else "vector"
    stored = f"{seen.dtype} {seen.shape}, a {kind}, scaled by {seen.scale:.4g}"
    if seen.parts:
        stored = "; ".join(f"{part.key}: {part.dtype} {part.shape}, scaled by {part.scale:.4g}" for part in seen.parts)
    stored += f"; the last {seen.mask} numbers say which actions are legal" if seen.mask else ""
    chosen = f"one of {action.count} choices" if isinstance(action, DiscreteActions) else ""
    if isinstance(action, BoxActions):
        chosen = f"{len(action.low)} real numbers, from {list(action.low)} to {list(action.high)}"
    elif isinstance(action, MultiDiscreteActions):
        chosen = f"{len(action.counts)} choices at once, among {', '.join(map(str, action.counts))}"
    facts = {"observation": stored, "action": chosen}
    return facts | ({"tasks": ", ".join(spec.tasks)} if spec.tasks else {})


def as_text(found: Examination) -> Iterator[str]:
    """A line for each check, then what an agent would see, then the result."""
    for one in found.findings:
        yield _line(one.check, one.verdict, one.text)
        yield from (f"{'':<28}| {line}" for line in one.trace.splitlines())
    yield ""
    yield from (f"{name:<16}{text}" for name, text in found.facts.items())
    defects, warnings = len(found.of("defect")), len(found.of("warning"))
    advice = "mend the defects, then check again" if defects else "it can be trained" if warnings else "fine"
    checks = len({one.check for one in found.findings if one.verdict != "not done"})
    yield f"\n{found.name}: {defects} defects, {warnings} warnings in {checks} checks; {advice}"


@dataclass(frozen=True)
class Doctor:
    """Look whether this machine is fine: versions, cores, memory, disk, GPU, processes. Exit status 1 if something is bad."""

    run_dir: Path = Path("runs")
    """Where runs are going to be; its file system is tried."""
    json: bool = False
    """Everything as JSON."""

    def __call__(self) -> int:
        lines: list[doctor.Probe] = []
        for line in doctor.looked_at(self.run_dir):
            lines.append(line)
            if not self.json:
                print(_line(line.part, line.verdict, "; ".join(filter(None, (line.found, line.todo)))), flush=True)
        bad, warned = (sum(line.verdict == verdict for line in lines) for verdict in ("bad", "warning"))
        if self.json:
            values = {"fine": not bad, "bad": bad, "warnings": warned, "lines": [asdict(line) for line in lines]}
            print(json.dumps(values, indent=2))
        else:
            print(f"\n{bad} bad, {warned} to look at{': mend what is bad, then ask again' if bad else ''}")
        return int(bool(bad))


def _line(part: str, verdict: str, text: str) -> str:
    mark = f"{verdict if verdict in ('good', 'not done') else verdict.upper():<10}"
    mark = f"\x1b[{COLOURS[verdict]}m{mark}\x1b[0m" if sys.stdout.isatty() else mark
    return f"{part:<16}{mark}  {text}"
