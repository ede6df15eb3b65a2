"""The stages of `laser check-env`, and what they find. `check_process` runs them in a process that it watches.

An environment is opened as training opens it, so that the border of training (`envs.border`) judges every row; the stages add what only
shows over whole episodes, copies and time. A stage ends at its first defect.
"""

import contextlib
import functools
import itertools
import json
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from laser_rl.envs import slot
from laser_rl.envs.construct import constructor
from laser_rl.envs.make import is_atari, is_mixture, make_environments
from laser_rl.envs.masks import choices_of, legal
from laser_rl.envs.records import ActionSpec, DiscreteActions, Environments, MultiDiscreteActions, Rows, write_spec
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import EnvironmentRefused, UserError

Verdict = Literal["good", "warning", "defect", "not done"]

# What a good environment does, by the name of the check.
CHECKS = {
    "construction": "it can be built twice, with the same spaces, which an agent can be built for",
    "rows": "five values of the right types; observations of the declared dtype, shape and bounds; finite numbers",
    "errors": "no exception in the constructor, reset or step",
    "answers": "an answer in time",
    "repeatable": "the same seed and the same actions give the same episode in two copies",
    "seed": "an episode depends on its seed, not on the episodes before it",
    "gymnasium": "nothing that Gymnasium's own checker objects to",
    "after the end": "an episode's last observation is its own, and nothing resets by itself",
    "length": "episodes end, or are cut off",
    "speed": "at least 100 steps a second in one process",
}
# The checks that a stage has made when it has come to its end.
STAGES = {
    "build": ("construction",),
    "play": ("rows", "after the end", "repeatable", "speed", "length"),
    "resume": ("seed",),
    "gymnasium": ("gymnasium",),
}
# Of one Python environment, not of those that step many slots at once, and only where nothing is known to be wrong.
WHERE_GOOD = ("resume", "gymnasium")
PHASES = {slot.CONSTRUCTING: "constructor", slot.RESETTING: "reset", slot.STEPPING: "step"}
FOREIGN = (str(Path(gymnasium.__file__).parent), str(Path(__file__).parents[1]), "<frozen importlib", "<string>")
SLOTS = 4  # of environments that step many at once; of a mixture one for each task
ENDLESS_STEPS = 30_000  # an Atari game is cut off after 27,000
SLOW = 100.0  # steps a second
OWN_GENERATOR = "draw from self.np_random only, and begin reset with super().reset(seed=seed)"


@dataclass(frozen=True)
class Order:
    """What is to be examined, as it travels to the process and as flags ask for it."""

    id: str
    steps: int = 2_000
    """Random ones, at most; slow environments are played for fewer."""
    seconds: float = 8.0
    """For each stage of the examination, about."""
    seed: int = 0
    """Of episodes and actions."""
    options: str = "{}"
    """Keyword arguments of the environment as JSON, e.g. '{"size": 5}'."""
    limit: float = 60.0
    """Seconds that one call of the environment's code may take before it counts as hanging."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: a sentence with what to do; `trace` has the user's own lines."""

    check: str
    verdict: Verdict
    text: str
    trace: str = ""


@dataclass
class CheckStopped(Exception):
    """The stage under way cannot go on."""

    finding: Finding


def error_finding(error: BaseException, place: str, fix: str = "correct the line below") -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(FOREIGN)][-4:]
    trace = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
    got = f"{type(error).__name__}: {error}".partition("\n\n")[0][:300]
    return Finding("errors", "defect", f"{got} in {place}; {fix}", trace)


def place_of(at: tuple[str, int, int]) -> str:
    return "{} (slot 0, episode {}, step {})".format(*at)


class Bench:
    """An environment under examination; refuses a name that is not known. `send` is handed every message."""

    def __init__(self, order: Order, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._order, self._send = order, send
        self._at = ("import", 0, 0)  # the call under way: phase, episode, step
        self._told: set[tuple[str, str]] = set()
        self._reset_in_step = False
        self._make: Callable[[], Environments]
        name, options = order.id, json.loads(order.options)
        self._one = not (name.startswith("laser/") or is_atari(name) or is_mixture(name))
        if self._one:
            self._python = constructor(name, options)  # imports what has to be imported, and refuses what is not there
            hooks: dict[str, Any] = {"warn": self._warned}
            hooks["watch"] = lambda phase, _: self._watch(PHASES.get(phase, "idle"), *self._at[1:])
            self._make = lambda: slot.SerialEnvironments(self._noted, slots=1, seed=order.seed, name=name, **hooks)
        else:
            slots = len(tasks_of(name)) if is_mixture(name) else SLOTS
            how: dict[str, Any] = {"seed": order.seed, "slots": slots, "options": options, "lockstep": True}
            self._make = lambda: make_environments(name, **how)

    def run(self) -> None:
        """All stages; one that ends early is told, and the next one begins. What cannot be built is not played."""
        names = [name for name in STAGES if self._one or name not in WHERE_GOOD]
        self._send({"checks": [check for name in names for check in STAGES[name]]})
        for name in names:
            if name in WHERE_GOOD and any(verdict == "defect" for _, verdict in self._told):
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
            check, sentence = "construction" if name == "build" else "rows", str(error).partition("\n")[0]
            self._report(Finding(check, "defect", sentence))
            return False
        except UserError:
            raise
        except Exception as error:  # whatever a user's environment raises
            self._report(error_finding(error, name))
            return False
        finally:
            self._watch("idle")
        told = {check for check, _ in self._told}
        self._report(*(Finding(check, "good", CHECKS[check]) for check in STAGES[name] if check not in told))
        return True

    def _watch(self, phase: str, episode: int = 0, step: int = 0) -> None:
        """Say what is about to be called: a process that is silent for too long is killed."""
        self._at = (phase, episode, step)
        self._send({"at": self._at})

    def _report(self, *findings: Finding) -> None:
        """Tell what was found, once: stages may meet the same."""
        for one in findings:
            if (one.check, one.verdict) not in self._told:
                self._told.add((one.check, one.verdict))
                self._send({"finding": asdict(one)})

    def _warned(self, _: str, sentence: str) -> None:
        """What a slot says: while it handles an exception of the environment, or of a value outside of its Box."""
        if (error := sys.exception()) is not None:
            fix = "correct the line below, or handle this case; every action has to be playable, and reset has to work at any time"
            raise CheckStopped(error_finding(error, place_of(self._at), fix)) from error
        self._report(Finding("rows", "warning", sentence))

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

    def _walk(self, environments: Environments) -> Iterator[tuple[Rows, NDArray[Any] | None, float]]:
        """Random play: rows as they come, with the actions (None: a reset) and the seconds that led to them."""
        generator, deadline = np.random.default_rng(self._order.seed), time.monotonic() + self._order.seconds
        action, step = None, 0
        self._watch("reset")
        start = time.perf_counter()
        rows = environments.reset()
        while True:
            yield rows, action, time.perf_counter() - start
            if time.monotonic() > deadline:
                return
            spec = environments.spec
            allowed = legal(spec.observation, rows.observation) if spec.observation.mask else None
            action = random_actions(spec.action, generator, len(rows.slots), allowed)
            step = 1 if rows.is_first[0] else step + 1
            self._watch("step", int(rows.episode[0]), step)
            self._reset_in_step = False
            start = time.perf_counter()
            rows = environments.step(rows.slots, action)

    def _build(self) -> None:
        with self._open() as environments:
            spec = environments.spec
            try:
                with self._open() as twin:
                    others = twin.spec
            except CheckStopped as stop:
                fix = "let each copy have its own files, ports and windows: training plays in several copies at once"
                text = f"a second copy while the first is open raises {stop.finding.text.partition(' in ')[0]}; {fix}"
                raise CheckStopped(Finding("construction", "defect", text, stop.finding.trace)) from stop
            if spec != others:
                text = f"{spec}, and {others} in a second copy; make the constructor give the same spaces each time"
                self._report(Finding("construction", "defect", text))
            self._send({"spec": write_spec(spec).decode()})

    def _play(self) -> None:
        took: dict[str, list[float]] = {"reset": [], "step": []}
        steps, lengths, returns = 0, list[int](), list[float]()
        with self._open() as environments, self._open() as twin:
            played, paid = np.zeros(environments.slots, np.int64), np.zeros(environments.slots)
            for rows, action, seconds in self._walk(environments):
                ended = rows.terminated | rows.truncated
                if self._reset_in_step and ended.any():
                    got = "step calls reset at the end: the observation that it returns is the next episode's first"
                    fix = "return the episode's own last observation with terminated or truncated, and do not call reset inside of step"
                    self._report(Finding("after the end", "defect", f"{got}; {fix}"))
                other = twin.reset() if action is None else twin.step(rows.slots, action)
                if ("repeatable", "warning") not in self._told:
                    self._compare(rows, other)
                took["reset" if rows.is_first.all() else "step"].append(seconds)
                steps += int((~rows.is_first).sum())
                played, paid = np.where(rows.is_first, 0, played + 1), np.where(rows.is_first, 0.0, paid + rows.reward)
                lengths += played[ended].tolist()
                returns += paid[ended].tolist()
                if steps >= (self._order.steps if lengths or not self._one else ENDLESS_STEPS):
                    break
        self._send({"facts": _episodes(steps, lengths, returns) | self._speed(steps, environments.slots, took)})
        if self._one and not lengths and not self._is_limited():
            got = f"no end in {steps:,} steps of random play, and no TimeLimit"
            fix = "register it with max_episode_steps=…, or wrap it with gymnasium.wrappers.TimeLimit: evaluations play whole episodes"
            verdict: Verdict = "defect" if steps >= ENDLESS_STEPS else "warning"
            self._report(Finding("length", verdict, f"{got}; {fix} and would wait for ever"))

    def _is_limited(self) -> bool:
        with contextlib.closing(self._python()) as env:
            return hasattr(env, "has_wrapper_attr") and env.has_wrapper_attr("_max_episode_steps")

    def _compare(self, rows: Rows, twin: Rows) -> None:
        for part in ("observation", "reward", "terminated", "truncated"):
            value, other = getattr(rows, part), getattr(twin, part)
            if np.array_equal(value, other):
                continue
            got = f"{part} differs between two copies with the same seed and actions in {place_of(self._at)}"
            last_digits = np.allclose(value, other, rtol=1e-5, atol=1e-5)
            fix = "use one thread and no atomics if you need exact resumes; learning does not suffer from last digits"
            text = f"{got}; {fix if last_digits else OWN_GENERATOR}"
            says_so = self._one and getattr(getattr(self._python(), "spec", None), "nondeterministic", False)
            if not last_digits and not says_so:
                raise CheckStopped(Finding("repeatable", "defect", text))
            return self._report(Finding("repeatable", "warning", text))
        return None

    def _speed(self, steps: int, slots: int, took: Mapping[str, list[float]]) -> dict[str, str]:
        mean_ms = {name: 1e3 * sum(each) / max(1, len(each)) for name, each in took.items()}
        per_second = steps / max(sum(map(sum, took.values())), 1e-9)
        told = f"{per_second:,.0f} steps/s: step takes {mean_ms['step']:.3g} ms, reset {mean_ms['reset']:.3g} ms"
        if 0 < per_second < SLOW:
            fix = "find the slow line with `python -m cProfile`, and train with --environment.placement process --environment.workers N"
            self._report(Finding("speed", "warning", f"{told}; {fix}"))
        return {"speed": told if self._one else f"{per_second:,.0f} steps/s in {slots} slots"}

    def _resume(self) -> None:
        with self._open() as environments, self._open() as other:
            for rows, _, _ in itertools.islice(self._walk(environments), self._order.steps):
                if rows.episode[0] > 1 and self._at[2] > 2 and not rows.is_first[0]:  # noqa: PLR2004 - in a later episode
                    break
            other.load_state_dict(environments.state_dict() or {})
            lost = other.counters()["lost_episodes"]
        if lost:
            got = "an episode with its seed and actions gives other observations in a fresh copy: runs cannot be resumed exactly"
            fix = f"set everything back in reset; {OWN_GENERATOR}. A wrapper with running statistics cannot do that: use fixed numbers"
            self._report(Finding("seed", "warning", f"{got}; {fix}"))

    def _gymnasium(self) -> None:
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
                self._report(Finding("gymnasium", "warning", f"{text}; {fix}"))


def random_actions(
    spec: ActionSpec, generator: np.random.Generator, count: int, allowed: NDArray[np.bool_] | None = None
) -> NDArray[Any]:
    """Actions for `count` slots, uniform among those `allowed`, within the bounds, and normal where there are none."""
    if allowed is not None:
        parts = np.split(generator.uniform(0.5, 1.0, allowed.shape) * allowed, np.cumsum(choices_of(spec))[:-1], axis=1)
        chosen = np.stack([part.argmax(1) for part in parts], axis=1)
        return chosen[:, 0] if isinstance(spec, DiscreteActions) else chosen
    if isinstance(spec, DiscreteActions):
        return generator.integers(spec.count, size=count)
    if isinstance(spec, MultiDiscreteActions):
        return generator.integers(np.array(spec.counts), size=(count, len(spec.counts)))
    low, high = np.array(spec.low), np.array(spec.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 0.0), (count, len(low)))
    return np.where(bounded, uniform, generator.standard_normal(uniform.shape)).astype(np.float32)


def _episodes(steps: int, lengths: list[int], returns: list[float]) -> dict[str, str]:
    spread = f": {min(lengths):,} to {max(lengths):,} steps, {mean(lengths):,.1f} on average" if lengths else ""
    facts = {"episodes": f"{len(lengths):,} ended in {steps:,} random steps{spread}"}
    if len(returns) > 1:
        error = 1.96 * stdev(returns) / math.sqrt(len(returns))
        spread = f"± {error:.2g} (95 %), from {min(returns):,.4g} to {max(returns):,.4g}"
        facts["random return"] = f"{mean(returns):,.4g} {spread}"
    return facts
