"""`laser check-env` in a process of its own, which is watched: hangs, crashes and endless output of an environment are findings too.

The child sends JSON through a pipe: each finding as soon as it is made, and each call of the environment's code before it begins.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import gymnasium

from laser_rl.envs.construct import constructor
from laser_rl.envs.make import is_atari, is_mixture, make_environments
from laser_rl.envs.vector import VectorAdapter
from laser_rl.envs.worker import ProcessLimits, die_with, end_group, fate_of, start_python
from laser_rl.errors import UserError
from laser_rl.tools.bench import Bench, VectorBench, error_finding
from laser_rl.tools.check_env import EnvBench
from laser_rl.tools.findings import Examination, Finding

LAST_WORDS_S = 0.5  # for the stack of a process that hangs
TAIL_LINES = 8
WORKER_LIMIT_S = 20.0


@dataclass(frozen=True)
class Order:
    """What is to be examined, as it travels to the process and as flags ask for it."""

    id: str
    steps: int = 2_000
    """Random ones, at most; slow environments are played for fewer."""
    slots: int = 4
    """Of environments that step many at once; of a mixture at least so many, the same for each task."""
    seconds: float = 4.0
    """For each stage of the examination, about."""
    seed: int = 0
    """Of episodes and actions."""
    options: str = "{}"
    """Keyword arguments of the environment as JSON, e.g. '{"size": 5}'."""
    step_limit: float = 20.0
    """Seconds that one step may take before it counts as hanging."""
    reset_limit: float = 60.0
    """The same for one reset."""
    constructor_limit: float = 120.0
    """The same for the import and the constructor."""


def examine(order: Order, say: Callable[[str], None] = lambda stage: None) -> Examination:
    """Examine an environment; refuses a name that is not known. `say` is told the name of each stage as it begins.

    >>> examine(Order("laser/Catch", steps=40)).spec.observation.shape
    (50,)
    """
    found = Examination(order.id)
    with contextlib.closing(_Child(order)) as child:
        for message in child.messages():
            if "stage" in message:
                say(message["stage"])
            found.take(message)
    found.complete()
    return found


class _Child:
    """The process, seen from outside."""

    def __init__(self, order: Order) -> None:
        self._order, self._at = order, ("import", 0, 0)  # the call under way: phase, episode, step
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close(); what a user prints is not our table
        self._pipe, theirs = Pipe(duplex=False)
        arguments = [str(theirs.fileno()), str(os.getpid()), json.dumps(asdict(order))]
        self._process = start_python("laser_rl.tools.check_process", arguments, (theirs.fileno(),), self._output)
        theirs.close()

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the process says; a hang or a crash is told as a last finding."""
        with contextlib.suppress(EOFError):
            while True:
                limit, flag = self._limit()
                if not self._pipe.poll(limit):
                    fix = f"find out for what it waits (the stack is below) and give that a timeout; if it is only slow, raise {flag}"
                    yield self._accident("answers", f"an answer within {limit:g} s", "it hangs", fix, self._stack())
                    return
                message: dict[str, Any] = json.loads(self._pipe.recv_bytes())
                self._at = message.get("at", self._at)
                yield message
        fate = fate_of(self._process.pid, wait_s=10.0)
        if fate is None or (fate.si_code, fate.si_status) != (os.CLD_EXITED, 0):
            status = 0 if fate is None else fate.si_status
            killed = fate is not None and fate.si_code != os.CLD_EXITED
            how = f"signal {signal.Signals(status).name}" if killed else f"exit status {status}"
            fix = "nothing in an environment may end its process: look at native code, os._exit and sys.exit"
            tail = "\n".join(self._printed(0)[-TAIL_LINES:])
            yield self._accident("errors", "a process that stays alive", how, fix, tail)

    def _limit(self) -> tuple[float, str]:
        """How long the call under way may take, and the flag that says so."""
        if self._at[0] in {"step", "close"}:
            return self._order.step_limit, "--step-limit"
        if self._at[0] == "reset":
            return self._order.reset_limit, "--reset-limit"
        return self._order.constructor_limit, "--constructor-limit"

    def _accident(self, check: str, expected: str, got: str, fix: str, trace: str) -> dict[str, Any]:
        phase, episode, step = self._at
        doing = f"in {phase}" if phase != "idle" else "between two calls"
        where = f"slot 0, episode {episode}, step {step}"
        return {"finding": asdict(Finding(check, "defect", expected, f"{got} {doing}", fix, where, trace))}

    def _stack(self) -> str:
        """Where it hangs, by its own account."""
        start = self._output.seek(0, os.SEEK_END)
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(LAST_WORDS_S)
        foreign = ("/laser_rl/", "/gymnasium/", "<string>")
        frames = [line for line in self._printed(start) if line.lstrip().startswith("File")]
        return "\n".join(line for line in frames if not any(part in line for part in foreign))[:2_000]

    def _printed(self, start: int) -> list[str]:
        """The last lines of its output after `start`."""
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(start, end - (1 << 16)))
        return self._output.read().decode(errors="replace").splitlines()

    def close(self) -> None:
        """Nothing is left of the process, nor of what the environment has started and forgotten."""
        end_group(self._process)
        self._output.close()
        self._pipe.close()


def main() -> None:
    """Entry of the process, with a pipe, the parent's process id and the order."""
    pipe = Connection(int(sys.argv[1]), readable=False)
    die_with(int(sys.argv[2]))
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # says where it hangs, even inside a library
    warnings.simplefilter("ignore")  # Gymnasium's own remarks; ours are the findings
    os.set_inheritable(pipe.fileno(), False)

    def send(message: Mapping[str, Any]) -> None:
        pipe.send_bytes(json.dumps(message).encode())

    try:
        _bench(Order(**json.loads(sys.argv[3])), send).run()
    except UserError as error:
        send({"refused": str(error)})
    except Exception as error:  # a user's module may raise anything when it is imported
        send({"finding": asdict(error_finding(error, "the import"))})
    os._exit(0)  # threads that the environment has left would be waited for


def _bench(order: Order, send: Callable[[Mapping[str, Any]], None]) -> Bench:
    name, options = order.id, json.loads(order.options)
    common: dict[str, Any] = {
        "name": name, "steps": order.steps, "seconds": order.seconds, "seed": order.seed, "send": send
    }  # fmt: skip
    if name.startswith("laser/") or is_atari(name) or is_mixture(name):
        how: dict[str, Any] = {"slots": order.slots, "options": options, "lockstep": True}
        return VectorBench(make=lambda seed: make_environments(name, seed=seed, **how), **common)
    make = constructor(name, options)  # imports what has to be imported, and refuses what is not there
    vector = _vector_of(name, make, order.slots, options)
    if vector is not None:
        return VectorBench(make=lambda seed: VectorAdapter(vector(), seed=seed, name=name), users=True, **common)
    limit = min(order.step_limit, WORKER_LIMIT_S)
    return EnvBench(make=make, limits=ProcessLimits(limit, limit, 2 * limit), **common)


def _vector_of(name: str, make: Callable[[], Any], slots: int, options: Mapping[str, Any]) -> Callable[[], Any] | None:
    """How to build a vector, where a name stands for one: a registered id without an environment of its own, or a class or function."""
    module, _, attribute = name.rpartition(":")
    spec = gymnasium.registry.get(attribute)
    if spec is not None and spec.entry_point is None and spec.vector_entry_point is not None:
        return lambda: gymnasium.make_vec(attribute, num_envs=slots, **options)
    if not (module and attribute.isidentifier()):
        return None
    found = getattr(sys.modules[module], attribute)
    kind = found if isinstance(found, type) else getattr(found, "__annotations__", {}).get("return")
    return make if isinstance(kind, type) and issubclass(kind, gymnasium.vector.VectorEnv) else None
