"""Examines an environment in a process of its own, and outlives whatever that does: hangs, crashes, endless output."""

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from laser_rl.envs.examine.child import ACTIVITY_BYTES, ENTRIES, EPISODE, PHASE, PHASES, STEP, STEPS, Order
from laser_rl.envs.examine.records import CHECKS, Finding, merged
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.envs.worker import read_spec
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused

ENTRY = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from laser_rl.envs.examine.child import main; main()"
)
LOOK_S = 0.05
LAST_WORDS_S = 0.5  # for the stack of a process that hangs
KILL_S = 10.0
MOST_ACCIDENTS = 2  # hangs and crashes; then what is left is not tried: each costs its whole time limit
TAIL_LINES = 8


@dataclass
class Examination:
    """What was found out about an environment."""

    name: str
    findings: list[Finding] = field(default_factory=list)  # one or more for each check
    facts: dict[str, Any] = field(default_factory=dict)
    spec: EnvironmentSpec | None = None

    @property
    def defects(self) -> tuple[Finding, ...]:
        """What has to be mended."""
        return tuple(one for one in self.findings if one.verdict == "defect")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What may be meant like that."""
        return tuple(one for one in self.findings if one.verdict == "warning")


@dataclass(frozen=True)
class Patience:
    """How long one call of the environment's code may take, in seconds."""

    step_s: float = 20.0
    reset_s: float = 60.0
    constructor_s: float = 120.0

    def of(self, phase: str) -> float:
        """For what is under way."""
        if phase in {"step", "close"}:
            return self.step_s
        return self.reset_s if phase == "reset" else self.constructor_s


def examine(
    name: str,
    *,
    steps: int = 2_000,
    slots: int = 4,
    seconds: float = 4.0,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    patience: Patience = Patience(),  # noqa: B008 - frozen
    say: Callable[[str], None] = lambda stage: None,
) -> Examination:
    """Examine the environment called `name`; refuses a name that nobody knows.

    Args:
        name: an id, or `module:callable`.
        steps: how many random ones, at most.
        slots: of environments that step many at once.
        seconds: for each stage, about.
        seed: of episodes and actions.
        options: keyword arguments of the environment.
        patience: with its single calls.
        say: is told the name of each stage as it begins.

    >>> examine("laser/Catch", steps=40).spec.observation.shape
    (50,)
    """
    order = Order(name, dict(options or {}), steps, slots, seconds, seed, min(patience.step_s, 20.0), ())
    return _Watcher(order, patience, say).run()


class _Watcher:
    """Starts the process, listens, and starts it again behind the stage that killed it."""

    def __init__(self, order: Order, patience: Patience, say: Callable[[str], None]) -> None:
        self._order, self._patience, self._say = order, patience, say
        self._found = Examination(order.name)
        self._checks: dict[str, tuple[str, ...]] = {}
        self._done: set[str] = set()
        self._skip: list[str] = []
        self._stage, self._ended, self._retried = "", False, False

    def run(self) -> Examination:
        for _ in range(MOST_ACCIDENTS):
            self._ended = True
            session = _Session(replace(self._order, skip=self._skip))
            try:
                self._listen(session)
            finally:
                session.close()
            if self._ended:
                break
        self._found.findings = _complete(self._found.findings, self._checks, self._done)
        return self._found

    def _listen(self, session: "_Session") -> None:
        for message in session.messages(self._patience):
            if message is None:
                self._accident(session)
                return
            self._hear(message)

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "refused" in message:
            raise EnvironmentRefused(message["refused"])
        if "stages" in message:
            self._checks = {name: tuple(checks) for name, checks in message["stages"].items()}
        if "stage" in message:
            self._stage = message["stage"]
            self._say(self._stage)
        if "finding" in message:
            self._found.findings.append(Finding(**message["finding"]))
        if "spec" in message:
            self._found.spec = read_spec(json.dumps(message["spec"]).encode())
        self._found.facts |= message.get("facts", {})
        if "done" in message:
            self._done.add(message["done"])
            self._skip.append(message["done"])

    def _accident(self, session: "_Session") -> None:
        self._ended = False
        self._found.findings.append(session.accident(self._patience))
        # What came before it in the same stage is still worth a look: once more, up to there.
        if self._stage == "play" and not self._retried and session.steps > 1:
            self._retried = True
            self._order = replace(self._order, steps=session.steps - 1)
        else:
            self._skip.append(self._stage)


class _Session:
    """One process."""

    def __init__(self, order: Order) -> None:
        self._memory = os.memfd_create("laser-examine")
        os.ftruncate(self._memory, ACTIVITY_BYTES)
        self._map = mmap.mmap(self._memory, ACTIVITY_BYTES)
        self._activity = np.frombuffer(self._map, np.int64)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._in, theirs = os.pipe()
        path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
        numbers = [str(theirs), str(self._memory), str(os.getpid()), json.dumps(asdict(order))]
        self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and our own code)
            [sys.executable, "-c", ENTRY, *numbers, path],
            pass_fds=(theirs, self._memory),
            stdin=subprocess.DEVNULL,
            stdout=self._output,  # what a user's environment prints is not our table
            stderr=self._output,
            process_group=0,
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
        )
        os.close(theirs)
        self._hung = False

    @property
    def entries(self) -> int:
        """How often the environment's code was called in this process."""
        return int(self._activity[ENTRIES])

    @property
    def steps(self) -> int:
        """How often step was called in the stage that is under way."""
        return int(self._activity[STEPS])

    def messages(self, patience: Patience) -> Iterator[dict[str, Any] | None]:
        """What the process says, line by line; None at the end if it hung or crashed."""
        rest, since, last = b"", time.monotonic(), -1
        while True:
            ready, _, _ = select.select([self._in], [], [], LOOK_S)
            if ready:
                block = os.read(self._in, 1 << 16)
                if not block:
                    if self._status() != 0:
                        yield None
                    return
                *lines, rest = (rest + block).split(b"\n")
                yield from (json.loads(line) for line in lines)
                since = time.monotonic()
            if self.entries != last:
                last, since = self.entries, time.monotonic()
            if time.monotonic() - since > patience.of(PHASES[int(self._activity[PHASE])]):
                self._hung = True
                yield None
                return

    def accident(self, patience: Patience) -> Finding:
        """What ended the process, as a finding."""
        phase = PHASES[int(self._activity[PHASE])]
        where = f"slot 0, episode {int(self._activity[EPISODE])}, step {int(self._activity[STEP])}"
        doing = f"in {phase}" if phase != "idle" else "between two calls"
        if self._hung:
            limit = patience.of(phase)
            fix = f"find out for what it waits (the stack is below) and give that a timeout; if it is only slow, raise --{_flag(phase)}"
            trace = self._stack()
            return Finding("answers", "defect", f"an answer within {limit:g} s", f"it hangs {doing}", fix, where, trace)
        status = self._status()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        fix = "nothing in an environment may end its process: look at native code, os._exit and sys.exit"
        return Finding("errors", "defect", "a process that stays alive", f"{how} {doing}", fix, where, self._tail())

    def _status(self) -> int:
        """How it ended, as `subprocess` has it; it is not reaped, so that its group still belongs to it."""
        deadline = time.monotonic() + KILL_S
        while (fate := os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            if time.monotonic() > deadline:
                raise EnvironmentFailed(
                    f"expected process {self._process.pid} to end within {KILL_S:.0f} s, it did not; end it by hand, then check again"
                )
            time.sleep(LOOK_S / 5)
        return fate.si_status if fate.si_code == os.CLD_EXITED else -fate.si_status

    def _stack(self) -> str:
        """Where it hangs, by its own account."""
        self._output.seek(0, os.SEEK_END)
        start = self._output.tell()
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(LAST_WORDS_S)
        self._output.seek(start)
        lines = self._output.read(1 << 16).decode(errors="replace").splitlines()
        own = [line for line in lines if line.lstrip().startswith("File") and "/laser_rl/envs/" not in line]
        return "\n".join(line for line in own if "/gymnasium/" not in line and "<string>" not in line)[:2_000]

    def _tail(self) -> str:
        self._output.seek(0)
        lines = self._output.read()[-8_192:].decode(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def close(self) -> None:
        """Nothing is left of the process, nor of what the environment has started and forgotten."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # if it had no time yet to make its group
        self._process.wait(KILL_S)
        del self._activity
        self._map.close()
        self._output.close()
        os.close(self._in)
        os.close(self._memory)


def _flag(phase: str) -> str:
    return {"step": "step-limit", "close": "step-limit", "reset": "reset-limit"}.get(phase, "constructor-limit")


def _complete(found: list[Finding], checks: Mapping[str, tuple[str, ...]], done: set[str]) -> list[Finding]:
    """In the order of the checks: what was found, what is good, and what could not be looked at."""
    found = merged(found)
    applies = {check for names in checks.values() for check in names} | {"errors", "answers"}
    made = {check for stage in done for check in checks[stage]} | {"errors", "answers"}
    complete: list[Finding] = []
    for check, expected in CHECKS.items():
        own = [one for one in found if one.check == check]
        if own:
            complete += own
        elif check in made:
            complete.append(Finding(check, "good", expected))
        elif check in applies or not checks:
            complete.append(Finding(check, "not done", expected))
    return complete
