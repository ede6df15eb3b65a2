"""The stages of `laser check-env`, and the messages in which they tell what they find.

An environment is opened as training opens it, so that the border of training (`envs.border`) judges every row; the stages add what only
shows over whole episodes, copies, processes, memory and time. A stage ends at its first defect. Everything runs in the calling process;
`check_process` supervises it in one of its own.
"""

import contextlib
import functools
import gc
import itertools
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from laser_rl.envs import slot
from laser_rl.envs.construct import constructor
from laser_rl.envs.make import is_atari, is_mixture, make_environments
from laser_rl.envs.records import (
    ActionSpec,
    BoxActions,
    DiscreteActions,
    Environments,
    MultiDiscreteActions,
    Rows,
    write_spec,
)
from laser_rl.envs.vector import VectorAdapter
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused, UserError
from laser_rl.tools import recordings
from laser_rl.tools.findings import CHECKS, Finding, Order, error_finding, refusal
from laser_rl.tools.recordings import OWN_GENERATOR, CheckedEpisode, CheckedRow

MOST_BYTES = 64 << 20  # of recorded observations
FEWEST_CALLS, WORKER_STEPS = 20, 20
ENDLESS_STEPS = 30_000  # an Atari game is cut off after 27,000
WORKER_LIMIT_S = 20.0
WIDE = 1e6
NO_RESET = (
    "return the episode's own last observation with terminated or truncated, and do not call reset inside of step"
)
PHASES = {slot.CONSTRUCTING: "constructor", slot.RESETTING: "reset", slot.STEPPING: "step"}
# The checks that a stage has made when it has come to its end.
STAGES = {
    "build": ("construction",),
    "measure": ("memory", "speed", "length"),  # first: what other stages free would hide what grows
    "play": ("rows", "after the end", "time limit"),
    "repeat": ("repeatable",),
    "resume": ("seed", "generators"),
    "gymnasium": ("gymnasium",),
    "workers": ("workers",),
}
OF_ONE = (
    "resume",
    "end",
    "gymnasium",
    "workers",
)  # of one Python environment, not of those that step many slots at once
WHERE_GOOD = ("resume", "gymnasium")  # need an environment in which nothing is known to be wrong


@dataclass
class CheckStopped(Exception):
    """The stage under way cannot go on."""

    finding: Finding


class Bench:
    """An environment under examination; refuses a name that is not known.

    Args:
        order: what is to be examined, and for how long.
        send: is handed every message, a mapping of plain values (see `findings.Examination.take`).
    """

    def __init__(self, order: Order, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._order, self._send = order, send
        self._at = ("import", 0, 0)  # the call under way: phase, episode, step
        self._facts: dict[str, Any] = {}
        self._episodes: list[CheckedEpisode] = []
        self._told: set[tuple[str, str]] = set()
        self._defects: set[str] = set()
        self._drew: list[str] = []  # the generators of the whole program that it used
        self._users, self._one = True, False
        self._reset_in_step = False
        self._make: Callable[[], Environments]
        name, options = order.id, json.loads(order.options)
        how: dict[str, Any] = {"seed": order.seed, "name": name}
        if name.startswith("laser/") or is_atari(name) or is_mixture(name):
            how = {"seed": order.seed, "slots": order.slots, "options": options, "lockstep": True}
            self._users, self._make = False, lambda: make_environments(name, **how)
            return
        self._python = constructor(name, options)  # imports what has to be imported, and refuses what is not there
        if vector := _vector_of(name, self._python, order.slots, options):
            self._make = lambda: VectorAdapter(vector(), **how)
            return
        hooks: dict[str, Any] = {"warn": self._warned, "watch": self._watch_slot}
        self._one, self._make = True, lambda: slot.SerialEnvironments(self._noted, slots=1, **how, **hooks)

    def run(self) -> None:
        """All stages; one that ends early is told, and the next one begins. What cannot be built is not played."""
        names = [name for name in STAGES if self._one or name not in OF_ONE]
        self._send({"checks": [check for name in names for check in STAGES[name]]})
        for name in names:
            if name in WHERE_GOOD and self._defects:
                continue
            self._send({"stage": name})
            if not self._finish(name) and name == "build":
                return

    def _finish(self, name: str) -> bool:
        try:
            stage: Callable[[], None] = getattr(self, f"_{name}")
            stage()
        except CheckStopped as stop:
            self._report(stop.finding)
            return False
        except EnvironmentRefused as error:
            self._report(refusal("construction" if name == "build" else "rows", str(error)))
            return False
        except UserError:
            raise
        except Exception as error:  # whatever a user's environment raises
            self._report(error_finding(error, name))
            return False
        finally:
            self._watch("idle")
        self._send({"facts": self._facts, "done": STAGES[name]})
        return True

    def _watch(self, phase: str, episode: int = 0, step: int = 0) -> None:
        """Say what is about to be called: a process that is silent for too long is killed."""
        self._at = (phase, episode, step)
        self._send({"at": self._at})

    def _watch_slot(self, phase: int, _: int) -> None:
        self._watch(PHASES.get(phase, "idle"), *self._at[1:])

    def _report(self, *findings: Finding) -> None:
        """Tell what was found, once: stages may meet the same."""
        for one in findings:
            if (one.check, one.fix) not in self._told:
                self._told.add((one.check, one.fix))
                self._defects |= {one.check} if one.verdict == "defect" else set()
                self._send({"finding": asdict(one)})

    def _warned(self, _: str, sentence: str) -> None:
        """What a slot says: while it handles an exception of the environment, or of a value outside of its Box."""
        if (error := sys.exception()) is not None:
            phase, episode, step = self._at
            fix = "correct the line below, or handle this case; every action has to be playable, and reset has to work at any time"
            where = f"slot 0, episode {episode}, step {step}"
            raise CheckStopped(error_finding(error, phase, where, fix)) from error
        place, _, said = sentence.partition("): ")
        got, where = said.partition(" as observation_space")[0], place.rpartition(" (")[2]
        fix = "widen observation_space, or clip what is returned; training goes on with such values as they are"
        self._report(Finding("rows", "warning", "values within the bounds of their space", got, fix, where))

    def _noted(self) -> Any:
        """A copy of which it is known whether `step` calls `reset`."""
        env: Any = self._python()
        inner = getattr(env, "unwrapped", env)
        with contextlib.suppress(AttributeError):  # there is none, or the class has slots
            inner.reset = functools.partial(self._reset_noted, inner.reset)
        return env

    def _reset_noted(self, reset: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._reset_in_step |= self._at[0] == "step"
        return reset(*args, **named)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Environments]:
        self._watch("constructor")
        with contextlib.closing(self._make()) as environments:
            yield environments
            self._watch("close")

    def _walk(self, environments: Environments) -> Iterator[tuple[Rows, float]]:
        """Random play: rows as they come, with the seconds that each call took."""
        generator, deadline = np.random.default_rng(self._order.seed), time.monotonic() + self._order.seconds
        self._watch("reset")
        start, step = time.perf_counter(), 0
        rows = environments.reset()
        while True:
            yield rows, time.perf_counter() - start
            if time.monotonic() > deadline:
                return
            action = random_actions(environments.spec.action, generator, len(rows.slots))
            step = 1 if rows.is_first[0] else step + 1
            self._watch("step", int(rows.episode[0]), step)
            start = time.perf_counter()
            self._reset_in_step = False
            rows = environments.step(rows.slots, action)
            if self._reset_in_step and (rows.terminated | rows.truncated).any():
                got = "step calls reset at the end: the observation that it returns is the next episode's first"
                self._report(Finding("after the end", "defect", CHECKS["after the end"], got, NO_RESET))

    def _record(self) -> list[CheckedEpisode]:
        """Episodes of every slot, in order of slot and number."""
        found: dict[tuple[int, int], CheckedEpisode] = {}
        with self._open() as environments:
            size = int(np.prod(environments.spec.observation.shape)) * 4
            calls = max(FEWEST_CALLS, min(self._order.steps, MOST_BYTES // size) // environments.slots)
            for rows, _ in itertools.islice(self._walk(environments), 1 + calls):
                for number, seen, _, reward, terminated, truncated, _, _, episode, seed in zip(*rows, strict=True):
                    key = (int(number), int(episode))
                    row = CheckedRow(seen.copy(), float(reward), bool(terminated), bool(truncated))
                    found.setdefault(key, CheckedEpisode(*key, int(seed))).rows.append(row)
        return [found[key] for key in sorted(found)]

    def _build(self) -> None:
        """Two copies at once, the same spaces, and an agent that could play in them."""
        with self._open() as environments:
            spec = environments.spec
            self._facts |= {} if self._one else {"slots": environments.slots}
            self._send({"spec": write_spec(spec).decode()})
            if isinstance(spec.action, BoxActions) and (np.abs([spec.action.low, spec.action.high]) > WIDE).any():
                fix = "declare the range in which actions differ, e.g. Box(-1, 1, …), and scale inside of step"
                got = f"no bounds, or very wide ones: from {spec.action.low} to {spec.action.high}"
                self._report(Finding("construction", "warning", "bounds within which actions make sense", got, fix))
            try:
                with self._open() as twin:
                    others = twin.spec
            except CheckStopped as stop:
                fix = "let each copy have its own files, ports and windows: training plays in several copies at once"
                expected = "a second copy while the first is open"
                self._report(replace(stop.finding, check="construction", expected=expected, fix=fix))
                return
            if spec != others:
                fix = "make the constructor give the same spaces each time"
                self._report(Finding("construction", "defect", str(spec), f"{others} in a second copy", fix))

    def _play(self) -> None:
        """Record random play; the border of training judges each row."""
        before = _shared_generators()
        self._episodes = self._record()
        now = _shared_generators()
        self._drew = [name for name in before if before[name] != now[name]]
        self._facts |= recordings.episode_facts(self._episodes)
        if self._users:
            self._report(*recordings.time_limits(self._episodes))

    def _repeat(self) -> None:
        """The same seeds once more, in a fresh copy."""
        found = recordings.repeatable(self._episodes, self._record())
        if found and self._one and getattr(getattr(self._python(), "spec", None), "nondeterministic", False):
            found = [replace(one, verdict="warning") for one in found]  # it says so itself
        self._report(*found)

    def _resume(self) -> None:
        """An open episode is played again in a fresh copy, as a resume does; and are generators used that all copies share?"""
        with self._open() as environments, self._open() as other:
            for rows, _ in itertools.islice(self._walk(environments), self._order.steps):
                if rows.episode[0] > 1 and self._at[2] > 2 and not rows.is_first[0]:  # noqa: PLR2004 - in a later episode
                    break
            other.load_state_dict(environments.state_dict() or {})
            lost = other.counters()["lost_episodes"]
        if lost:
            fix = f"set everything back in reset; {OWN_GENERATOR}. A wrapper with running statistics cannot do that: use fixed numbers"
            expected = "an episode to depend on its seed and its actions, not on those before it"
            got = "other observations in a fresh copy: runs cannot be resumed exactly"
            self._report(Finding("seed", "warning", expected, got, fix))
        if self._drew:
            got, fix = f"{' and '.join(self._drew)} used in reset or step", f"replace it: {OWN_GENERATOR}"
            self._report(Finding("generators", "warning", CHECKS["generators"], got, fix))

    def _gymnasium(self) -> None:
        """Gymnasium's own checker, which stops at its first objection."""
        with contextlib.closing(self._python()) as env, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # matters of taste, such as actions that are not normalised
            self._watch("reset")
            try:
                check_env(env, skip_render_check=True, skip_close_check=True)
            except Exception as error:  # assertions, and errors of its own
                text = " ".join(str(error).split()) or type(error).__name__
                fix = "training here goes on without it, other libraries may not: see https://gymnasium.farama.org/api/env"
                if "super().reset(seed=seed)" in text:
                    fix = f"{OWN_GENERATOR}, also if the task has no chance in it"
                self._report(Finding("gymnasium", "warning", CHECKS["gymnasium"], text, fix))

    def _measure(self) -> None:
        """Speed and memory, with nothing recorded; for much longer where no episode has ended yet."""
        took: dict[str, list[float]] = {"reset": [], "step": []}
        steps, ends, memory, chunk = 0, 0, list[int](), max(1, self._order.steps // recordings.CHUNKS)
        with self._open() as environments:
            slots = environments.slots
            for rows, seconds in self._walk(environments):
                took["reset" if rows.is_first.all() else "step"].append(seconds)
                steps, ends = steps + int((~rows.is_first).sum()), ends + int((rows.terminated | rows.truncated).sum())
                if len(memory) < min(recordings.CHUNKS, steps // chunk):
                    memory.append(_resident_bytes())
                if steps >= (ENDLESS_STEPS if self._users and not ends else self._order.steps):
                    break
        total = {name: sum(each) for name, each in took.items()}
        slowest, per_second = max(total, key=lambda name: total[name]), steps / max(sum(total.values()), 1e-9)
        mean_ms = {f"{name}_ms": 1e3 * total[name] / max(1, len(each)) for name, each in took.items()}
        self._facts |= {"steps_per_second": per_second, **mean_ms}
        share = f"{100 * total[slowest] / sum(total.values()):.0f} % of the time is spent in {slowest}"
        told = "step takes {step_ms:.1f} ms, reset {reset_ms:.1f} ms".format(**mean_ms)
        slow = recordings.too_slow(per_second, f"{per_second:,.0f} steps/s: {told}; {share}")
        self._report(*recordings.memory_grows(memory, chunk), *slow)
        if self._users and not ends and not (self._one and _is_limited(self._python())):
            self._report(recordings.no_end(steps, enough=slots == 1 and steps >= ENDLESS_STEPS))

    def _workers(self) -> None:
        """As training with worker processes plays it: two of them, each with a copy."""
        limits = dict.fromkeys(("step_timeout_s", "reset_timeout_s"), min(self._order.step_limit, WORKER_LIMIT_S))
        how: dict[str, Any] = {"slots": 2, "workers": 2, "seed": self._order.seed, "lockstep": True, **limits}
        self._watch("workers")
        try:
            made = make_environments(self._python, placement="process", **how)
            with contextlib.closing(made) as pool:
                for _ in itertools.islice(self._walk(pool), WORKER_STEPS):
                    self._watch("workers")
        except (EnvironmentRefused, EnvironmentFailed) as error:
            head, _, trace = str(error).partition("\n\n")
            fix = "the checks above say more; what a copy needs has to be importable and free in every process, or use placement thread"
            last = "\n".join(trace.splitlines()[-6:])
            self._report(Finding("workers", "defect", CHECKS["workers"], head, fix, trace=last))


def random_actions(spec: ActionSpec, generator: np.random.Generator, count: int) -> NDArray[Any]:
    """Actions for `count` slots, uniform within the bounds and normal where there are none."""
    if isinstance(spec, DiscreteActions):
        return generator.integers(spec.count, size=count)
    if isinstance(spec, MultiDiscreteActions):
        return generator.integers(np.array(spec.counts), size=(count, len(spec.counts)))
    low, high = np.array(spec.low), np.array(spec.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 0.0), (count, len(low)))
    return np.where(bounded, uniform, generator.standard_normal(uniform.shape)).astype(np.float32)


def _resident_bytes() -> int:
    """Memory of this process, without garbage."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _shared_generators() -> dict[str, Any]:
    """The states of the generators that the whole program shares."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - it is the user's use of it that is looked for
    inner = state["state"]
    return {"numpy.random": (inner["key"].tobytes(), inner["pos"], state["has_gauss"]), "random": random.getstate()}


def _is_limited(env: Any) -> bool:
    with contextlib.closing(env):
        return hasattr(env, "has_wrapper_attr") and env.has_wrapper_attr("_max_episode_steps")


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
