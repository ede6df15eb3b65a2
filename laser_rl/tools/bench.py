"""The bench of `laser check-env`: stages that examine an environment, and the messages in which they tell what they find.

`Bench` is what all kinds of environments have in common. `VectorBench` examines those that step many slots at once (ours, ALE's,
mixtures, a user's own vector) by their rows; `check_env.EnvBench` examines one Python environment.
"""

import contextlib
import copy
import gc
import os
import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.border import Env
from laser_rl.envs.records import (
    ActionSpec,
    DiscreteActions,
    Environments,
    EnvironmentSpec,
    MultiDiscreteActions,
    Rows,
    write_spec,
)
from laser_rl.envs.spaces import action_border
from laser_rl.errors import EnvironmentRefused, UserError
from laser_rl.tools import recordings
from laser_rl.tools.findings import CheckStopped, Finding
from laser_rl.tools.recordings import CheckedEpisode, CheckedRow

BEYOND = 1e3  # random numbers for a dimension with wider bounds than that are drawn as if it had none
MOST_BYTES = 64 << 20  # of recorded observations
MOST_FRAMES = 4  # of a traceback: the last ones are the user's own
FEWEST_CALLS = 20
FOREIGN = (str(Path(gymnasium.__file__).parent), str(Path(__file__).parents[1]), "<frozen importlib")


@dataclass
class Bench:
    """An environment under examination: how long to look, and what was seen so far.

    Args:
        name: of the environment.
        steps: random ones, at most.
        seconds: for each stage, about; slow environments are played for fewer steps.
        seed: of episodes and actions.
        send: is handed every message, a mapping of plain values (see `findings.Examination.take`).
    """

    name: str
    steps: int = 2_000
    seconds: float = 4.0
    seed: int = 0
    send: Callable[[Mapping[str, Any]], None] = lambda message: None
    facts: dict[str, Any] = field(default_factory=dict)
    episodes: list[CheckedEpisode] = field(default_factory=list)
    defects: set[str] = field(default_factory=set)
    STAGES: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # the checks that a stage has made when it has come to its end

    def run(self, only: Iterable[str] | None = None) -> None:
        """All stages, or some; one that ends early is told, and the next one begins. Without a copy there is nothing more to do."""
        self.send({"stages": self.STAGES})
        for name in self.STAGES if only is None else only:
            self.send({"stage": name})
            if not self._finish(name) and name == "build":
                return

    def _finish(self, name: str) -> bool:
        try:
            getattr(self, name)()
        except CheckStopped as stop:
            self.report(stop.finding)
            return False
        except UserError:
            raise
        except Exception as error:  # an environment so odd that looking at it fails
            self.report(error_finding(error, f"the stage {name}: derive the class from gymnasium.Env"))
            return False
        finally:
            self.watch("idle", 0, 0)
        self.send({"facts": self.facts, "done": [name]})
        return True

    def watch(self, phase: str, episode: int, step: int) -> None:
        """Say what is about to be called: a process that is silent for too long is killed."""
        self.send({"at": (phase, episode, step)})

    def report(self, *findings: Finding) -> None:
        """Tell what was found."""
        for one in findings:
            if one.verdict == "defect":
                self.defects.add(one.check)
            self.send({"finding": asdict(one)})

    def send_spec(self, spec: EnvironmentSpec) -> None:
        """Tell what an agent would see."""
        self.send({"spec": write_spec(spec).decode()})

    def report_speed(self, memory: list[int], chunk_steps: int, per_second: float, got: str) -> None:
        """Judge a run in which nothing was recorded."""
        self.facts["steps_per_second"] = per_second
        self.report(*recordings.memory_grows(memory, chunk_steps), *recordings.too_slow(per_second, got))


@dataclass
class VectorBench(Bench):
    """Many slots at once. Their values pass the border of training anyway.

    Args:
        make: builds a set of environments with a seed.
        users: a vector of the user's own; our own tasks and ALE are known to end.
    """

    make: Callable[[int], Environments] = lambda seed: NotImplemented
    users: bool = False
    STAGES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "build": ("construction", "spaces"),
        "play": ("interface", "observation", "finite", "reward", "time limit", "length"),
        "repeat": ("repeatable",),
        "measure": ("memory", "speed"),
    }

    def build(self) -> None:
        """What they look like."""
        with self._open() as environments:
            self.facts["slots"] = environments.slots
            self.send_spec(environments.spec)

    def play(self) -> None:
        """What rows show, and whether episodes end as they should."""
        self.episodes = self._record()
        self.facts |= recordings.episode_facts(self.episodes)
        if self.users:
            space = spaces.Box(-np.inf, np.inf, self.episodes[0].rows[0].observation.shape, np.float32)
            self.report(*recordings.time_limits(space, self.episodes, {}))
            if not self.facts["lengths"]:
                self.report(recordings.no_end(max(episode.length for episode in self.episodes), enough=False))

    def repeat(self) -> None:
        """The same seed once more, in a fresh set."""
        self.report(*recordings.repeatable(self.episodes, self._record()))

    def measure(self) -> None:
        """Speed and memory."""
        steps, seconds, memory = 0, 0.0, list[int]()
        with self._open() as environments:
            calls = max(recordings.CHUNKS, self.steps // environments.slots)
            chunk = max(1, calls // recordings.CHUNKS)
            for call, (rows, took_s) in enumerate(self._walk(environments, calls), 1):
                steps, seconds = steps + int((~rows.is_first).sum()), seconds + took_s
                if call % chunk == 0:
                    memory.append(resident_bytes())
            chunk *= environments.slots
        per_second = steps / max(seconds, 1e-9)
        self.report_speed(memory, chunk, per_second, f"{per_second:,.0f} steps/s")

    @contextlib.contextmanager
    def _open(self) -> Iterator[Environments]:
        """A new set; whatever goes wrong in it becomes `CheckStopped`."""
        self.watch("constructor", 0, 0)
        environments = None
        try:
            environments = self.make(self.seed)
            yield environments
        except Exception as error:  # whatever a user's vector raises
            if isinstance(error, EnvironmentRefused):
                check = "construction" if environments is None else "observation"
                raise CheckStopped(refusal(check, str(error))) from error
            if isinstance(error, UserError) and environments is None:
                raise  # too few slots, an extra that is missing: not the environment's fault
            doing = "the constructor" if environments is None else "reset or step"
            raise CheckStopped(error_finding(error, doing)) from error
        finally:
            if environments is not None:
                environments.close()

    def _walk(self, environments: Environments, calls: int) -> Iterator[tuple[Rows, float]]:
        """Random play: all rows as they come, with the seconds that each step took."""
        generator, deadline = np.random.default_rng(self.seed), time.monotonic() + self.seconds
        self.watch("reset", 0, 0)
        rows = environments.reset()
        yield rows, 0.0
        for call in range(1, calls + 1):
            action = random_actions(environments.spec.action, generator, len(rows.slots))
            self.watch("step", 0, call)
            start = time.perf_counter()
            rows = environments.step(rows.slots, action)
            yield rows, time.perf_counter() - start
            if time.monotonic() > deadline:
                return

    def _record(self) -> list[CheckedEpisode]:
        """Episodes of every slot, in order of slot and number."""
        found: dict[tuple[int, int], CheckedEpisode] = {}
        with self._open() as environments:
            size = int(np.prod(environments.spec.observation.shape)) * 4
            calls = max(FEWEST_CALLS, min(self.steps, MOST_BYTES // size) // environments.slots)
            for rows, _ in self._walk(environments, calls):
                for slot, seen, _, reward, terminated, truncated, _, _, number, seed in zip(*rows, strict=True):
                    key = (int(slot), int(number))
                    episode = found.setdefault(key, CheckedEpisode(key[1], int(seed), slot=key[0]))
                    episode.rows.append(CheckedRow(seen.copy(), float(reward), bool(terminated), bool(truncated)))
        return [found[key] for key in sorted(found)]


def refusal(check: str, text: str, where: str = "") -> Finding:
    """A refusal of ours, which says what was expected, what came and what to do, as a finding.

    >>> refusal("spaces", "Maze: expected two bounds, got one; set both").fix
    'set both'
    """
    sentence, _, fix = text.partition("\n")[0].rpartition("; ")
    expected, _, got = sentence.partition(", got ")
    return Finding(check, "defect", expected.partition("expected ")[2] or expected, got, fix, where)


def error_finding(error: BaseException, phase: str, where: str = "", action_space: Any = None) -> Finding:
    """An exception with the last frames of the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(FOREIGN)]
    trace = "".join([*traceback.format_list(own[-MOST_FRAMES:]), *traceback.format_exception_only(error)]).rstrip()
    fix = "correct the line below"
    if action_space is not None:
        fix += f", or handle this case; every action of {action_space} has to be playable, and reset has to work at any time"
    got = f"{type(error).__name__}: {error}".partition("\n\n")[0][:300]
    return Finding("errors", "defect", f"no exception in {phase}", got, fix, where, trace)


def random_actions(spec: ActionSpec, generator: np.random.Generator, count: int) -> NDArray[Any]:
    """Actions for `count` slots, uniform within the bounds and normal where there are none."""
    if isinstance(spec, DiscreteActions):
        return generator.integers(spec.count, size=count)
    if isinstance(spec, MultiDiscreteActions):
        return generator.integers(np.array(spec.counts), size=(count, len(spec.counts)))
    low, high = np.array(spec.low), np.array(spec.high)
    free = ~((np.abs(low) <= BEYOND) & (np.abs(high) <= BEYOND))
    bounded = generator.uniform(np.where(free, 0.0, low), np.where(free, 0.0, high), (count, len(low)))
    normal = np.clip(generator.standard_normal((count, len(low))), low, high)
    return np.where(free, normal, bounded).astype(np.float32)


def actions_of(space: gymnasium.Space[Any], seed: int, episode: int) -> Iterator[Any]:
    """The actions of an episode, the same ones each time; episode 0 begins with the extremes.

    >>> [next(actions) for actions in [actions_of(gymnasium.spaces.Discrete(3, start=1), 0, 0)] for _ in range(3)]
    [1, 2, 3]
    """
    try:
        border = action_border(space, "")
    except EnvironmentRefused:  # a finding of its own; it can be played all the same
        space = copy.deepcopy(space)
        space.seed(seed + episode)
        while True:
            yield space.sample()
    if episode == 0:
        yield from map(border.convert, _extremes(border.spec))
    generator = np.random.default_rng([seed, episode])
    while True:
        yield border.convert(random_actions(border.spec, generator, 1)[0])


def _extremes(spec: ActionSpec) -> list[Any]:
    if isinstance(spec, DiscreteActions):
        return list(np.arange(min(spec.count, 100)))
    if isinstance(spec, MultiDiscreteActions):
        return [np.zeros(len(spec.counts), np.int64), np.array(spec.counts) - 1]
    narrow = np.abs([*spec.low, *spec.high]).max(initial=0) <= BEYOND
    return [np.array(spec.low, np.float32), np.array(spec.high, np.float32)] if narrow else []


def resident_bytes() -> int:
    """Memory of this process, without garbage."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def handles() -> dict[str, int]:
    """How many files are open and how many threads and processes there are, of this process."""
    own, processes = Path("/proc/self"), 0
    for children in own.glob("task/*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            processes += len(children.read_text().split())
    files, threads = len(list((own / "fd").iterdir())), len(list((own / "task").iterdir()))
    return {"files": files, "threads": threads, "processes": processes}


def close_quietly(env: Env) -> None:
    """Close an environment whatever that raises: closing has a stage of its own."""
    with contextlib.suppress(Exception):
        env.close()


def shared_generators() -> dict[str, Any]:
    """The generators that the whole program shares."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - it is the user's use of it that is looked for
    inner = state["state"]
    return {"numpy.random": (inner["key"].tobytes(), inner["pos"], state["has_gauss"]), "random": random.getstate()}


def wrapped_by(env: Any) -> Iterator[Any]:
    """The environment and all that it wraps, outermost first."""
    for _ in range(100):  # one may wrap itself
        if env is None:
            return
        yield env
        env = getattr(env, "env", None)
