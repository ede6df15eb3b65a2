"""An environment on the bench of `laser check-env`: copies, episodes whose rows pass the border of training, and what they cost."""

import contextlib
import copy
import itertools
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.border import OLD_STEP_PARTS, RESET_PARTS, STEP_PARTS, BadValue, Border, Env
from laser_rl.envs.construct import packages_of, require_one_agent
from laser_rl.envs.process import ProcessLimits
from laser_rl.envs.records import ActionSpec, DiscreteActions, MultiDiscreteActions, seed_of
from laser_rl.envs.spaces import action_border
from laser_rl.errors import EnvironmentRefused
from laser_rl.tools.findings import CHECKS, CheckedEpisode, CheckedRow, CheckStopped, Finding, Verdict, same

BEYOND = 1e3  # random numbers for a dimension with wider bounds than that are drawn as if it had none
MOST_FRAMES = 4  # of a traceback: the last ones are the user's own
FOREIGN = (str(Path(gymnasium.__file__).parent), str(Path(__file__).parents[1]), "<frozen importlib")
# Which check a refusal of the border belongs to, by what it expected.
KINDS = {
    "5 values": "interface",
    "(observation, info)": "interface",
    "reward": "reward",
    "terminated": "flags",
    "truncated": "flags",
    "info": "info",
    "the action_space": "action space",
}


@dataclass
class Bench:
    """An environment under examination: how to build it, how long to look, whom to tell, and what was seen so far."""

    make: Callable[[], Env]
    name: str
    steps: int = 2_000
    seconds: float = 4.0  # for each stage, about; slow environments are played for fewer steps
    seed: int = 0
    tell: Callable[[Finding], None] = lambda finding: None
    watch: Callable[[str, int, int], None] = lambda phase, episode, step: (
        None
    )  # before each call of the environment's code
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    facts: dict[str, Any] = field(default_factory=dict)  # neither good nor bad
    episodes: list[CheckedEpisode] = field(default_factory=list)
    defects: set[str] = field(default_factory=set)

    def find(
        self, check: str, verdict: Verdict, expected: str, got: str, fix: str, where: str = "", trace: str = ""
    ) -> None:
        """Report a finding."""
        self.report(Finding(check, verdict, expected, got, fix, where, trace))

    def report(self, *findings: Finding) -> None:
        """Report findings."""
        for one in findings:
            if one.verdict == "defect":
                self.defects.add(one.check)
            self.tell(one)

    def build(self) -> Env:
        """A new copy, or `CheckStopped`."""
        self.watch("constructor", 0, 0)
        try:
            with packages_of(self.name):
                made: Any = self.make()
            require_one_agent(made, self.name)
        except EnvironmentRefused as error:
            raise CheckStopped(refusal("construction", str(error))) from error
        except Exception as error:  # whatever a user's constructor raises
            raise CheckStopped(error_finding(error, "the constructor")) from error
        missing = [part for part in ("observation_space", "action_space", "reset", "step") if not hasattr(made, part)]
        if missing or isinstance(made, gymnasium.vector.VectorEnv):
            got, fix = f"{type(made).__name__}, a vector", "annotate the function with `-> gymnasium.vector.VectorEnv`"
            if missing:
                got = f"{type(made).__name__} without {', '.join(missing)}"
                fix = "subclass gymnasium.Env and set both spaces in __init__, or name a function that returns one"
            raise CheckStopped(Finding("construction", "defect", "a gymnasium.Env from its constructor", got, fix))
        return made  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def copy(self) -> Iterator[Env]:
        """A new copy that is closed afterwards, whatever that raises: closing has a stage of its own."""
        env = self.build()
        try:
            yield env
        finally:
            self.watch("close", 0, 0)
            with contextlib.suppress(Exception):
                env.close()

    def play(
        self,
        env: Env,
        number: int,
        *,
        most: int | None = None,
        again: CheckedEpisode | None = None,
        judge: bool = False,
    ) -> CheckedEpisode:
        """One episode: with the actions that belong to its number or with those of a recorded one; `judge` reports what is wrong."""
        episode, deadline = CheckedEpisode(number, self.episode_seed(number)), time.monotonic() + self.seconds
        actions = (
            actions_of(env.action_space, self.seed, number) if again is None else (row.action for row in again.rows[1:])
        )
        border = self._border(env) if judge else None
        returned: Any = None
        sent: Any = None
        try:
            self.watch("reset", number, 0)
            result: Any = env.reset(seed=episode.seed)
            returned = self._note(episode, env, border, result, None)
            for step, sent in zip(range(1, (most or self.steps) + 1), actions, strict=False):
                self.watch("step", number, step)
                action = copy.deepcopy(sent)
                result = env.step(sent)
                if judge and not same(episode.rows[-1].observation, returned):
                    self._altered(episode)
                returned = self._note(episode, env, border, result, action)
                if episode.rows[-1].ends or time.monotonic() > deadline:
                    break
        except Exception as error:  # whatever a user's environment raises
            episode.broken = True
            if judge:
                phase = f"step({sent!r:.40})" if episode.rows else "reset"
                self.report(error_finding(error, phase, episode.place(len(episode.rows)), env.action_space))
        self.watch("idle", number, len(episode.rows))  # what follows is not the environment's time
        return episode

    def _border(self, env: Env) -> Border | None:
        def outside(_: str, sentence: str) -> None:
            found = re.match(r".*? \((.*?)\): (.*) is (.*), outside of (\[.*?\]) as ", sentence)
            where, key, value, bounds = found.groups() if found else ("", "observation", sentence, "its bounds")
            fix = "widen observation_space, or clip what is returned; training goes on with such values as they are"
            self.find("observation", "warning", f"{key} within {bounds}", value, fix, where)

        try:
            return Border(env, self.name, 0, outside, full_rows=self.steps)
        except EnvironmentRefused:  # spaces of which the stage before has told
            return None

    def _note(self, episode: CheckedEpisode, env: Env, border: Border | None, result: Any, action: Any) -> Any:
        """Keep the row with a copy of its observation; gives back the observation itself."""
        row, step = row_of(result, first=not episode.rows), len(episode.rows)
        if border is not None:
            if step == 0:
                border.starting(episode.number)
            try:
                border.after_reset(result) if step == 0 else border.after_step(result, env)
            except EnvironmentRefused as error:
                expected = str(error).partition("expected ")[2]
                check = next((check for words, check in KINDS.items() if expected.startswith(words)), "observation")
                self.report(replace(refusal(check, str(error)), where=episode.place(step)))
            except BadValue as bad:
                fix = "find the division by zero, the root or logarithm of a negative number, or the sum that overflows"
                check = "reward" if bad.key == "reward" else "finite"
                self.find(check, "defect", f"finite numbers in {bad.key}", str(bad.value), fix, episode.place(step))
        returned, row.action = row.observation, action
        row.observation = copy.deepcopy(returned)
        episode.rows.append(row)
        return returned

    def _altered(self, episode: CheckedEpisode) -> None:
        self.find(
            "own arrays", "defect", "a returned observation to stay as it is", "the next step wrote into the returned array",
            "return a copy: `return self._observation.copy(), ...`", episode.place(episode.length),
        )  # fmt: skip

    def episode_seed(self, number: int) -> int:
        """As training would choose it."""
        return int(seed_of(self.seed, np.array([0]), np.array([number]))[0])


def row_of(result: Any, *, first: bool) -> CheckedRow:
    """What was returned, read as kindly as possible; what cannot be read ends the episode."""
    size = len(result) if isinstance(result, tuple) else 0
    if first:
        return (
            CheckedRow(result[0], info=result[1]) if size == RESET_PARTS else CheckedRow(result[0] if size else result)
        )
    if size == STEP_PARTS:
        return CheckedRow(*result)
    if size == OLD_STEP_PARTS:
        return CheckedRow(result[0], result[1], result[2], info=result[3])
    return CheckedRow(None, terminated=True)


def refusal(check: str, text: str) -> Finding:
    """A refusal of ours, which says what was expected, what came and what to do, as a finding.

    >>> refusal("spaces", "Maze: expected two bounds, got one; set both").fix
    'set both'
    """
    sentence, _, fix = text.partition("\n")[0].rpartition("; ")
    expected, _, got = sentence.partition(", got ")
    return Finding(check, "defect", expected.partition("expected ")[2] or expected, got, fix)


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


CHUNKS = 6
LEAST_GROWTH, LARGE_GROWTH = 8 << 20, 32 << 20  # bytes; an allocator's own moods are smaller
LEAST_BYTES_A_STEP = 512
SLOW = 100.0  # steps a second
LEFT_OPEN = {
    "files": "close what was opened (files, sockets, pipes) in close()",
    "threads": "tell threads to end and join them in close()",
    "processes": "end and wait for processes in close()",
}


@dataclass
class TimedRun:
    """A stretch of play without any recording."""

    steps: int = 0
    ended: int = 0
    resets: int = 0
    step_s: float = 0.0
    reset_s: float = 0.0
    memory: list[int] = field(default_factory=list)  # resident bytes, after each part of the steps

    @property
    def total_s(self) -> float:
        """Resets included."""
        return max(self.step_s + self.reset_s, 1e-9)

    def __str__(self) -> str:
        step_ms, reset_ms = 1e3 * self.step_s / max(1, self.steps), 1e3 * self.reset_s / max(1, self.resets)
        name, share = ("reset", self.reset_s) if self.reset_s > self.step_s else ("step", self.step_s)
        where = f"{100 * share / self.total_s:.0f} % of the time is spent in {name}"
        return (
            f"{self.steps / self.total_s:,.0f} steps/s: step takes {step_ms:.1f} ms, reset {reset_ms:.1f} ms; {where}"
        )


def handles() -> dict[str, int]:
    """How many files are open and how many threads and processes there are, of this process."""
    own = Path("/proc/self")
    return {
        "files": len(list((own / "fd").iterdir())),
        "threads": len(list((own / "task").iterdir())),
        "processes": len(children()),
    }


def children() -> list[int]:
    """Processes that this one started and has not waited for."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += [int(number) for number in task.read_text().split()]
    return found


def leaks(counts: Sequence[Mapping[str, int]]) -> list[Finding]:
    """`counts` after each of several copies was built, played and closed; the first one may open what stays for good.

    >>> [found.got for found in leaks([{"files": 9, "threads": 1, "processes": 0 + copy} for copy in range(4)])]
    ['3 processes left by 3 copies']
    """
    found = []
    for kind, fix in LEFT_OPEN.items():
        numbers = [count[kind] for count in counts]
        pairs = list(itertools.pairwise(numbers))
        if len(pairs) > 1 and all(after > before for before, after in pairs):  # once may be a cache
            got = f"{numbers[-1] - numbers[0]} {kind} left by {len(pairs)} copies"
            found.append(Finding("handles", "defect", f"no {kind} left after close", got, fix))
    return found


def no_end(steps: int, *, enough: bool) -> list[Finding]:
    """Episodes that do not end; `enough` says that many steps were played, not just all there was time for."""
    got = f"no end in {steps:,} steps of random play, and no TimeLimit"
    fix = (
        "register it with max_episode_steps=…, or wrap it with gymnasium.wrappers.TimeLimit: evaluations play whole episodes "
        "and would wait for ever"
    )
    return [Finding("length", "defect" if enough else "warning", "episodes that end or are cut off", got, fix)]


def too_slow(per_second: float, got: str) -> list[Finding]:
    """A warning below 100 steps a second."""
    fix = "find the slow line with `python -m cProfile`, and train with --environment.placement process --environment.workers N"
    return [Finding("speed", "warning", CHECKS["speed"], got, fix)] if 0 < per_second < SLOW else []


def memory_grows(memory: Sequence[int], chunk_steps: int) -> list[Finding]:
    """A leak grows in every part of the run, the first one left out: that fills caches.

    >>> memory_grows([100 << 20] * 6, 500)
    []
    >>> [found.verdict for found in memory_grows([(100 + 10 * part) << 20 for part in range(6)], 500)]
    ['defect']
    """
    later = list(memory[1:])
    if len(later) < CHUNKS - 2 or any(after <= before for before, after in itertools.pairwise(later)):
        return []
    growth, steps = later[-1] - later[0], chunk_steps * (len(later) - 1)
    if growth < LEAST_GROWTH or growth / steps < LEAST_BYTES_A_STEP:
        return []
    verdict: Verdict = "defect" if growth >= LARGE_GROWTH else "warning"
    got = f"{growth / 1e6:,.0f} MB more after {steps:,} steps: {growth / steps / 1e3:,.1f} GB in a million steps"
    fix = "look for a list or dict that is added to in step or reset and never emptied; laser replaces no worker for its size"
    return [Finding("memory", verdict, CHECKS["memory"], got, fix)]


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
