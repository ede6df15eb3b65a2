"""The process in which an environment is examined: it says what it is about to do, what it found, and dies with its parent.

Findings leave as lines of JSON through a pipe; which call of the environment's code is under way stands in shared memory, so that saying
it costs next to nothing.
"""

import faulthandler
import json
import mmap
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np

from laser_rl.envs.construct import constructor
from laser_rl.envs.examine import rows, stages
from laser_rl.envs.examine.bench import Bench, Facts, Stop
from laser_rl.envs.examine.play import fault_of
from laser_rl.envs.examine.records import Finding
from laser_rl.envs.make import is_atari, is_mixture, make_environments
from laser_rl.envs.process import Limits
from laser_rl.envs.records import Environments
from laser_rl.envs.vector import VectorAdapter
from laser_rl.envs.worker import die_with, write_spec
from laser_rl.errors import UserError

PHASES = ("idle", "import", "constructor", "reset", "step", "close", "workers")
PHASE, EPISODE, STEP, ENTRIES, STEPS = range(5)  # the last: of the stage that is under way
ACTIVITY_BYTES = 64


@dataclass(frozen=True)
class Order:
    """What is to be examined, as it travels to the process."""

    name: str
    options: Mapping[str, Any]
    steps: int
    slots: int
    seconds: float
    seed: int
    worker_limit_s: float
    skip: Sequence[str]  # stages that are done, or are not to be tried again


Kind = tuple[Any, Mapping[str, tuple[Callable[[Any, Facts], list[Finding]], tuple[str, ...]]]]


class Child:
    """Examines, and tells."""

    def __init__(self, out: int, activity: mmap.mmap, order: Order) -> None:
        self._out, self._order = out, order
        self._activity = np.frombuffer(activity, np.int64)

    def tell(self, **message: Any) -> None:
        """One line for the parent."""
        os.write(self._out, json.dumps(message).encode() + b"\n")

    def watch(self, phase: str, episode: int, step: int) -> None:
        """The parent looks at this, and kills this process if it stays the same for too long."""
        activity = self._activity
        activity[PHASE], activity[EPISODE], activity[STEP] = PHASES.index(phase), episode, step
        activity[ENTRIES] += 1
        activity[STEPS] += phase == "step"

    def run(self) -> None:
        """Every stage that is wanted; a stage that ends early is told and the next one begins."""
        self.watch("import", 0, 0)
        try:
            bench, wanted = self._bench()
            self.tell(stages={name: checks for name, (_, checks) in wanted.items()})
            for name, (stage, _) in wanted.items():
                if name not in self._order.skip and not self._done(name, bench, stage):
                    return
        except UserError as error:
            self.tell(refused=str(error))
        except Exception as error:  # a user's module may raise anything when it is imported
            fault = fault_of(error, "import")
            expected, fix = "a module that can be imported", "correct the line below"
            self._find(Finding("errors", "defect", expected, fault.error, fix, trace=fault.trace))

    def _done(self, name: str, bench: Any, stage: Callable[[Any, Facts], list[Finding]]) -> bool:
        """Whether there is any sense in going on."""
        self.tell(stage=name)
        self._activity[STEPS] = 0
        facts: Facts = {}
        try:
            for one in stage(bench, facts):
                self._find(one)
        except Stop as stop:
            self._find(stop.finding)
            return name != "build"
        except UserError:
            raise
        except Exception as error:  # an environment so odd that looking at it fails
            fault = fault_of(error, name)
            expected, fix = (
                "an environment like Gymnasium's",
                "derive the class from gymnasium.Env, and keep to its methods",
            )
            self._find(Finding("errors", "defect", expected, fault.error, fix, trace=fault.trace))
            return name != "build"
        finally:
            self.watch("idle", 0, 0)
        self._tell_facts(facts)
        self.tell(done=name)
        return True

    def _find(self, one: Finding) -> None:
        self.tell(finding=asdict(one))

    def _tell_facts(self, facts: Facts) -> None:
        spec = facts.pop("spec", None)
        if spec is not None:
            self.tell(spec=json.loads(write_spec(spec)))
        if facts:
            self.tell(facts=facts)

    def _bench(self) -> Kind:
        order, name = self._order, self._order.name
        common: dict[str, Any] = {
            "name": name, "steps": order.steps, "seconds": order.seconds, "seed": order.seed, "watch": self.watch
        }  # fmt: skip
        if name.startswith("laser/") or is_atari(name) or is_mixture(name):
            return rows.RowsBench(self._many, **common), rows.STAGES
        make = constructor(name, order.options)  # imports what has to be imported, and refuses what is not there
        vector = _vector_of(name, make, order.options, order.slots)
        if vector is not None:
            return rows.RowsBench(_Adapted(vector, name), users=True, **common), rows.STAGES
        limits = Limits(order.worker_limit_s, order.worker_limit_s, 2 * order.worker_limit_s)
        return Bench(make, limits=limits, **common), stages.STAGES

    def _many(self, seed: int) -> Environments:
        order = self._order
        return make_environments(order.name, slots=order.slots, seed=seed, options=order.options, lockstep=True)


@dataclass(frozen=True)
class _Adapted:
    """A user's vector, with our rows."""

    make: Callable[[], Any]
    name: str

    def __call__(self, seed: int) -> Environments:
        return VectorAdapter(self.make(), seed=seed, name=self.name)


def _vector_of(name: str, make: Callable[[], Any], options: Mapping[str, Any], slots: int) -> Callable[[], Any] | None:
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


def main() -> None:
    """Entry: `python -c … <pipe> <activity> <parent's process id> <order as JSON>`."""
    out, memory, parent = (int(number) for number in sys.argv[1:4])
    die_with(parent)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # says where it hangs, even inside a library
    warnings.simplefilter("ignore")  # Gymnasium's own remarks; ours are the findings
    for descriptor in (out, memory):
        os.set_inheritable(descriptor, False)
    order = Order(**json.loads(sys.argv[4]))
    Child(out, mmap.mmap(memory, ACTIVITY_BYTES), order).run()
    os._exit(0)  # threads that the environment has left would be waited for
