"""`laser check-env` in a process of its own, which is watched: hangs, crashes and endless output of an environment are findings too.

The child writes lines of JSON into a pipe: each finding as soon as it is made, and each call of the environment's code before it begins.
"""

import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any

import gymnasium

from laser_rl.envs.construct import constructor
from laser_rl.envs.make import is_atari, is_mixture, make_environments
from laser_rl.envs.process import ProcessLimits, end_group, fate_of, start_python
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.envs.vector import VectorAdapter
from laser_rl.envs.worker import die_with, read_spec, write_spec
from laser_rl.errors import EnvironmentRefused, UserError
from laser_rl.tools import check_env, check_vector
from laser_rl.tools.bench import Bench, error_finding
from laser_rl.tools.findings import CheckStopped, Finding, completed

LOOK_S = 0.05
LAST_WORDS_S = 0.5  # for the stack of a process that hangs
TAIL_LINES = 8
WORKER_LIMIT_S = 20.0


@dataclass(frozen=True)
class Order:
    """What is to be examined, as it travels to the process; times in seconds."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 2_000
    slots: int = 4  # of environments that step many at once
    seconds: float = 4.0  # for each stage, about
    seed: int = 0
    step_s: float = 20.0  # how long one call of the environment's code may take
    reset_s: float = 60.0
    constructor_s: float = 120.0

    def limit(self, phase: str) -> tuple[float, str]:
        """The limit of what is under way, and its flag on the command line."""
        if phase in {"step", "close"}:
            return self.step_s, "--step-limit"
        return (self.reset_s, "--reset-limit") if phase == "reset" else (self.constructor_s, "--constructor-limit")


@dataclass
class Examination:
    """What was found out about an environment."""

    name: str
    findings: list[Finding] = field(default_factory=list)  # one or more for each check
    facts: dict[str, Any] = field(default_factory=dict)
    spec: EnvironmentSpec | None = None

    def of(self, verdict: str) -> list[Finding]:
        """The findings with this verdict."""
        return [one for one in self.findings if one.verdict == verdict]


def examine(order: Order, say: Callable[[str], None] = lambda stage: None) -> Examination:
    """Examine an environment; refuses a name that is not known. `say` is told the name of each stage as it begins.

    >>> examine(Order("laser/Catch", steps=40)).spec.observation.shape
    (50,)
    """
    found, stages, done = Examination(order.name), dict[str, list[str]](), list[str]()
    with contextlib.closing(_Child(order)) as child:
        for message in child.messages():
            if "refused" in message:
                raise EnvironmentRefused(message["refused"])
            if "stage" in message:
                say(message["stage"])
            if "finding" in message:
                found.findings.append(Finding(**message["finding"]))
            if "spec" in message:
                found.spec = read_spec(message["spec"].encode())
            stages |= message.get("stages", {})
            found.facts |= message.get("facts", {})
            done += message.get("done", [])
    found.findings = completed(found.findings, stages, done)
    return found


class _Child:
    """The process, seen from outside."""

    def __init__(self, order: Order) -> None:
        self._order, self._at = order, ("import", 0, 0)  # the call under way: phase, episode, step
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close(); what a user prints is not our table
        self._in, theirs = os.pipe()
        arguments = [str(theirs), str(os.getpid()), json.dumps(asdict(order))]
        self._process = start_python("laser_rl.tools.check_process", arguments, (theirs,), self._output)
        os.close(theirs)

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the process says, line by line; a hang or a crash is told as a last finding."""
        rest = b""
        while True:
            limit, flag = self._order.limit(self._at[0])
            if not select.select([self._in], [], [], limit)[0]:
                fix = f"find out for what it waits (the stack is below) and give that a timeout; if it is only slow, raise {flag}"
                yield self._accident("answers", f"an answer within {limit:g} s", "it hangs", fix, self._stack())
                return
            block = os.read(self._in, 1 << 16)
            if not block:
                break
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                message = json.loads(line)
                self._at = message.get("at", self._at)
                yield message
        fate = fate_of(self._process.pid, wait_s=10.0)
        if fate is None or (fate.si_code, fate.si_status) != (os.CLD_EXITED, 0):
            status = 0 if fate is None else fate.si_status
            ended = fate is None or fate.si_code == os.CLD_EXITED
            how = f"exit status {status}" if ended else f"signal {signal.Signals(status).name}"
            fix = "nothing in an environment may end its process: look at native code, os._exit and sys.exit"
            yield self._accident("errors", "a process that stays alive", how, fix, self._tail())

    def _accident(self, check: str, expected: str, got: str, fix: str, trace: str) -> dict[str, Any]:
        phase, episode, step = self._at
        doing = f"in {phase}" if phase != "idle" else "between two calls"
        where = f"slot 0, episode {episode}, step {step}"
        return {"finding": asdict(Finding(check, "defect", expected, f"{got} {doing}", fix, where, trace))}

    def _stack(self) -> str:
        """Where it hangs, by its own account."""
        self._output.seek(0, os.SEEK_END)
        start = self._output.tell()
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(LAST_WORDS_S)
        self._output.seek(start)
        lines = self._output.read(1 << 16).decode(errors="replace").splitlines()
        foreign = ("/laser_rl/", "/gymnasium/", "<string>")
        own = [line for line in lines if line.lstrip().startswith("File") and not any(part in line for part in foreign)]
        return "\n".join(own)[:2_000]

    def _tail(self) -> str:
        self._output.seek(0)
        lines = self._output.read()[-8_192:].decode(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def close(self) -> None:
        """Nothing is left of the process, nor of what the environment has started and forgotten."""
        end_group(self._process)
        self._output.close()
        os.close(self._in)


class _Examiner:
    """What runs in the process: every stage, telling what it finds."""

    def __init__(self, out: int, order: Order) -> None:
        self._out, self._order = out, order

    def tell(self, **message: Any) -> None:
        """One line for the parent."""
        os.write(self._out, json.dumps(message).encode() + b"\n")

    def watch(self, phase: str, episode: int, step: int) -> None:
        """The parent kills this process if nothing more comes for too long."""
        self.tell(at=(phase, episode, step))

    def run(self) -> None:
        """All stages; one that ends early is told and the next one begins."""
        self.watch("import", 0, 0)
        try:
            bench, stages = self._bench()
            self.tell(stages={name: checks for name, (_, checks) in stages.items()})
            for name, (stage, _) in stages.items():
                self.tell(stage=name)
                if not self._done(name, bench, stage) and name == "build":
                    return
        except UserError as error:
            self.tell(refused=str(error))
        except Exception as error:  # a user's module may raise anything when it is imported
            self.tell(finding=asdict(error_finding(error, "the import")))

    def _done(self, name: str, bench: Bench, stage: check_env.Stage) -> bool:
        """Run a stage; whether it came to its end."""
        try:
            stage(bench)
        except CheckStopped as stop:
            bench.report(stop.finding)
            return False
        except UserError:
            raise
        except Exception as error:  # an environment so odd that looking at it fails
            bench.report(error_finding(error, f"the stage {name}: derive the class from gymnasium.Env"))
            return False
        finally:
            self.watch("idle", 0, 0)
        spec = bench.facts.pop("spec", None)
        if spec is not None:
            self.tell(spec=write_spec(spec).decode())
        self.tell(facts={key: value for key, value in bench.facts.items() if key != "drew"}, done=[name])
        return True

    def _bench(self) -> tuple[Bench, Mapping[str, tuple[check_env.Stage, tuple[str, ...]]]]:
        order, name = self._order, self._order.name
        common: dict[str, Any] = {
            "name": name, "steps": order.steps, "seconds": order.seconds, "seed": order.seed, "watch": self.watch,
            "tell": lambda finding: self.tell(finding=asdict(finding)),
        }  # fmt: skip
        if name.startswith("laser/") or is_atari(name) or is_mixture(name):

            def many(seed: int) -> Any:
                return make_environments(name, slots=order.slots, seed=seed, options=order.options, lockstep=True)

            return check_vector.VectorBench(_nothing, many=many, **common), check_vector.STAGES
        make = constructor(name, order.options)  # imports what has to be imported, and refuses what is not there
        vector = _vector_of(name, make, order)
        if vector is not None:
            bench = check_vector.VectorBench(_nothing, users=True, **common)
            bench.many = lambda seed: VectorAdapter(vector(), seed=seed, name=name)
            return bench, check_vector.STAGES
        limit = min(order.step_s, WORKER_LIMIT_S)
        return Bench(make, limits=ProcessLimits(limit, limit, 2 * limit), **common), check_env.STAGES


def _nothing() -> Any:
    raise NotImplementedError


def _vector_of(name: str, make: Callable[[], Any], order: Order) -> Callable[[], Any] | None:
    """How to build a vector, where a name stands for one: a registered id without an environment of its own, or a class or function."""
    module, _, attribute = name.rpartition(":")
    spec = gymnasium.registry.get(attribute)
    if spec is not None and spec.entry_point is None and spec.vector_entry_point is not None:
        return lambda: gymnasium.make_vec(attribute, num_envs=order.slots, **order.options)
    if not (module and attribute.isidentifier()):
        return None
    found = getattr(sys.modules[module], attribute)
    kind = found if isinstance(found, type) else getattr(found, "__annotations__", {}).get("return")
    return make if isinstance(kind, type) and issubclass(kind, gymnasium.vector.VectorEnv) else None


def main() -> None:
    """Entry of the process, with a pipe, the parent's process id and the order."""
    out, parent = (int(number) for number in sys.argv[1:3])
    die_with(parent)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # says where it hangs, even inside a library
    warnings.simplefilter("ignore")  # Gymnasium's own remarks; ours are the findings
    os.set_inheritable(out, False)
    _Examiner(out, Order(**json.loads(sys.argv[3]))).run()
    os._exit(0)  # threads that the environment has left would be waited for
