"""`laser check-env`: the command, and the watched process in which it plays: hangs, crashes and endless output are findings, too.

The child sends JSON through a pipe: each finding as soon as it is made, and each call of the environment's code before it begins.
"""

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Annotated, Any

import tyro

from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, MultiDiscreteActions, read_spec
from laser_rl.envs.worker import die_with, end_group, fate_of, start_python
from laser_rl.errors import ConfigError, EnvironmentRefused, UserError
from laser_rl.metrics.display import verdict_line
from laser_rl.tools.check_env import CHECKS, FOREIGN, Bench, Finding, Order, error_finding, place_of


@dataclass
class Examination:
    """What was found out about an environment, collected from the messages of a `check_env.Bench`."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)  # neither good nor bad
    spec: EnvironmentSpec | None = None
    checks: list[str] = field(default_factory=lambda: list(CHECKS))  # those that apply

    def take(self, message: Mapping[str, Any]) -> None:
        if "refused" in message:
            raise EnvironmentRefused(message["refused"])
        if "finding" in message:
            self.findings.append(Finding(**message["finding"]))
        if "spec" in message:
            self.spec = read_spec(message["spec"].encode())
        self.checks = message.get("checks", self.checks)
        self.facts |= message.get("facts", {})

    def of(self, verdict: str) -> list[Finding]:
        return [one for one in self.findings if one.verdict == verdict]

    def complete(self) -> None:
        """Put the findings in the order of the checks, and add what could not be looked at."""
        found, self.findings = self.findings, []
        for check, text in CHECKS.items():
            own = [one for one in found if one.check == check]
            if not own and check in {"errors", "answers"}:
                own = [Finding(check, "good", text)]
            elif not own and check in self.checks:
                own = [Finding(check, "not done", text)]
            self.findings += own


def examine(order: Order, say: Callable[[str], None] = lambda stage: None) -> Examination:
    """Examine an environment; refuses a name that is not known. `say` is told the name of each stage as it begins.

    A hang or a crash is a last finding. At the end nothing is left of the process, nor of what it started.
    """
    found, place = Examination(order.id), "import"
    pipe, theirs = Pipe(duplex=False)
    arguments = [str(theirs.fileno()), str(os.getpid()), json.dumps(asdict(order))]
    with pipe, tempfile.TemporaryFile() as output:  # what a user prints is not our table
        process = start_python(__name__, arguments, (theirs.fileno(),), stdout=output, stderr=output)
        theirs.close()
        try:
            while pipe.poll(order.limit):
                message: dict[str, Any] = json.loads(pipe.recv_bytes())
                place = place_of(message["at"]) if "at" in message else place
                if "stage" in message:
                    say(message["stage"])
                found.take(message)
            text = f"no answer within {order.limit:g} s: it hangs in {place}"
            fix = "give what it waits for a timeout (the stack is below); if it is only slow, raise --limit"
            start = output.seek(0, os.SEEK_END)
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)  # for its last words
            frames = [line for line in _printed(output, start) if line.lstrip().startswith("File")]
            stack = "\n".join(line for line in frames if not any(part in line for part in FOREIGN))[:2_000]
            found.findings.append(Finding("answers", "defect", f"{text}; {fix}", stack))
        except EOFError:
            fate = fate_of(process.pid, wait_s=10.0)
            if fate is None or (fate.si_code, fate.si_status) != (os.CLD_EXITED, 0):
                status = 0 if fate is None else fate.si_status
                killed = fate is not None and fate.si_code != os.CLD_EXITED
                how = f"signal {signal.Signals(status).name}" if killed else f"exit status {status}"
                fix = "nothing in an environment may end its process: look at native code, os._exit and sys.exit"
                last_words = "\n".join(_printed(output, 0)[-8:])
                found.findings.append(
                    Finding("errors", "defect", f"the process ended with {how} in {place}; {fix}", last_words)
                )
        finally:
            end_group(process)
    found.complete()
    return found


@dataclass(frozen=True)
class CheckEnv(Order):
    """Examine an environment: what it declares, what it returns, seeds, ends, speed. Exit status 1 if there is a defect."""

    id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """An id that Gymnasium knows, one of ours, `module:Name-v0`, or `module:callable`."""
    json: bool = False
    """Everything as JSON."""

    def __call__(self) -> int:
        from laser_rl.recipes import for_environment  # noqa: PLC0415 - settings, which the help text does not need

        if self.steps < 1 or self.seconds <= 0:
            raise ConfigError("expected --steps and --seconds above 0; leave them out for the usual ones")
        try:
            dict(**json.loads(self.options))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"expected --options to be a JSON object, got {self.options!r} ({error}); e.g. '{{\"size\": 5}}'"
            ) from None
        order = Order(**{name: value for name, value in vars(self).items() if name != "json"})
        loud = sys.stderr.isatty() and not self.json
        found = examine(order, lambda stage: print(f"laser: {self.id}: {stage} …", file=sys.stderr) if loud else None)
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
        yield verdict_line(one.check, one.verdict, one.text)
        yield from (f"{'':<28}| {line}" for line in one.trace.splitlines())
    yield ""
    yield from (f"{name:<16}{text}" for name, text in found.facts.items())
    defects, warnings = len(found.of("defect")), len(found.of("warning"))
    advice = "mend the defects, then check again" if defects else "it can be trained" if warnings else "fine"
    checks = len({one.check for one in found.findings if one.verdict != "not done"})
    yield f"\n{found.name}: {defects} defects, {warnings} warnings in {checks} checks; {advice}"


def _printed(output: IO[bytes], start: int) -> list[str]:
    end = output.seek(0, os.SEEK_END)
    output.seek(max(start, end - (1 << 16)))
    return output.read().decode(errors="replace").splitlines()


def main() -> None:
    pipe = Connection(int(sys.argv[1]), readable=False)
    die_with(int(sys.argv[2]))
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # says where it hangs, even inside a library
    warnings.simplefilter("ignore")  # Gymnasium's own remarks; ours are the findings
    os.set_inheritable(pipe.fileno(), False)

    def send(message: Mapping[str, Any]) -> None:
        pipe.send_bytes(json.dumps(message).encode())

    try:
        Bench(Order(**json.loads(sys.argv[3])), send).run()
    except UserError as error:
        send({"refused": str(error)})
    except Exception as error:  # a user's module may raise anything when it is imported
        send({"finding": asdict(error_finding(error, "the import"))})
    os._exit(0)  # threads that the environment has left would be waited for
