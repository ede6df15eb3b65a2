"""The stages of `laser check-env` for one Python environment.

The border of training (`envs.border`) and Gymnasium's own checker judge single values; the stages add what only shows over whole
episodes, copies, processes, memory and time. Everything runs in the calling process; `check_process` supervises it in one of its own.
"""

import contextlib
import copy
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from laser_rl.envs.border import BadValue, Border, Env
from laser_rl.envs.construct import packages_of, require_one_agent
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.records import EnvironmentSpec, seed_of
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.envs.worker import ProcessLimits
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused
from laser_rl.tools import bench, recordings
from laser_rl.tools.bench import Bench, error_finding, random_actions, refusal
from laser_rl.tools.findings import CHECKS, CheckStopped, Finding
from laser_rl.tools.recordings import NO_RESET, OWN_GENERATOR, Array, CheckedEpisode

ENDLESS_STEPS = 30_000  # an Atari game is cut off after 27,000
ENDS, COPIES, WORKER_STEPS, MIDDLES = 8, 5, 20, 25
MOST_FAULTS = 3
WIDE = 1e6
FINAL_KEYS = frozenset({"final_obs", "final_observation", "terminal_observation"})
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
class EnvBench(Bench):
    """One Python environment.

    Args:
        make: its constructor.
        limits: of the worker processes.
    """

    make: Callable[[], Env] = lambda: NotImplemented
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    drew: list[str] = field(default_factory=list)  # the generators of the whole program that it used
    STAGES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "build": ("construction", "spaces"),
        "play": (
            "interface",
            "observation",
            "finite",
            "reward",
            "flags",
            "info",
            "own arrays",
            "action space",
            "time limit",
        ),
        "repeat": ("repeatable", "seed", "generators"),
        "gymnasium": ("gymnasium",),
        "end": ("after the end",),
        "copies": ("handles",),
        "measure": ("memory", "speed", "length"),
        "workers": ("workers",),
    }

    def build(self) -> None:
        """Two copies at once, the same spaces, and an agent that could play in them."""
        with self._copy() as env:
            self._spaces(env)
            try:
                with self._copy() as twin:
                    found, others = (
                        (env.observation_space, env.action_space),
                        (twin.observation_space, twin.action_space),
                    )
            except CheckStopped as stop:
                expected = "a second copy while the first is open"
                fix = "let each copy have its own files, ports and windows: training plays in several copies at once"
                self.report(replace(stop.finding, check="construction", expected=expected, fix=fix, where=""))
                return
            if found != others:
                fix = "make the constructor give the same spaces each time"
                got = f"{others} in a second copy"
                self.report(Finding("construction", "defect", f"the spaces {found}", got, fix))

    def _spaces(self, env: Env) -> None:
        specs: list[Any] = []
        for border, space in ((observation_border, env.observation_space), (action_border, env.action_space)):
            try:
                specs.append(border(space, self.name).spec)
            except EnvironmentRefused as error:
                self.report(refusal("spaces", str(error)))
        if self.defects:
            return
        self.send_spec(EnvironmentSpec(self.name, *specs))
        actions = env.action_space
        if isinstance(actions, gymnasium.spaces.Box) and (np.abs([actions.low, actions.high]) > WIDE).any():
            got = f"{'very wide ones' if np.isfinite(actions.low).all() else 'no bounds'}, {actions}"
            fix = "declare the range in which actions differ, e.g. Box(-1, 1, …), and scale inside of step"
            self.report(Finding("spaces", "warning", "bounds within which actions make sense", got, fix))

    def play(self) -> None:
        """Record random play; the border of training judges each row."""
        env, deadline = self._built(), time.monotonic() + self.seconds
        space, before = env.observation_space, bench.shared_generators()
        size = int(np.prod(space.shape or (1,))) * 8
        left, faults = min(self.steps, max(20, bench.MOST_BYTES // size)), 0
        parts = [part for part in bench.wrapped_by(env) if not isinstance(part, gymnasium.wrappers.TimeLimit)]
        limits = recordings.own_limits(parts)
        while left > 0 and faults < MOST_FAULTS and (time.monotonic() < deadline or not self.episodes):
            episode = self._episode(env, len(self.episodes), most=left, judge=True)
            self.episodes.append(episode)
            left -= max(1, episode.length)
            if episode.broken:
                faults += 1
                bench.close_quietly(env)
                env = self._built()
        bench.close_quietly(env)
        now = bench.shared_generators()
        self.drew = [name for name in before if before[name] != now[name]]
        self.facts |= recordings.episode_facts(self.episodes)
        self.report(*recordings.time_limits(space, self.episodes, limits))

    def repeat(self) -> None:
        """The same episodes in a fresh copy, and the first of them once more, each behind another one than before."""
        played = [episode for episode in self.episodes if not episode.broken][:ENDS]
        with self._copy() as env:
            fresh = [self._episode(env, one.number, most=one.length, again=one) for one in played]
            again = [
                self._episode(env, one.number, most=one.length, again=one) for one in reversed(played[: ENDS // 2])
            ]
            spec, parts = getattr(env, "spec", None), list(bench.wrapped_by(env))
        found = recordings.repeatable(played, fresh, again)
        running = [type(part).__name__ for part in parts if hasattr(part, "obs_rms") or hasattr(part, "return_rms")]
        if spec is not None and spec.nondeterministic:  # it says so itself
            found = [replace(one, verdict="warning") for one in found]
        elif running:  # meant to depend on the episodes before
            fix = (
                f"{running[0]} carries statistics from episode to episode, so exact resumes are lost, and each copy and each evaluation "
                "begins with none; use fixed numbers instead (gymnasium.wrappers.TransformObservation) if that matters"
            )
            found = [replace(one, verdict="warning", fix=fix) for one in found]
        self.report(*found)
        if self.drew:
            expected = "the generators that the whole program shares to be left alone"
            got, fix = f"{' and '.join(self.drew)} used in reset or step", f"replace it: {OWN_GENERATOR}"
            harmful = {"repeatable", "seed"} & self.defects
            self.report(Finding("generators", "defect" if harmful else "warning", expected, got, fix))

    def gymnasium(self) -> None:
        """Gymnasium's own checker. It stops at its first objection, so it is asked only where nothing is known to be wrong."""
        if self.defects:
            self.report(Finding("gymnasium", "not done", CHECKS["gymnasium"]))
            return
        with self._copy() as env, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # matters of taste, such as actions that are not normalised
            self.watch("reset", 0, 0)
            try:
                check_env(env, skip_render_check=True, skip_close_check=True)
            except Exception as error:  # assertions, and errors of its own
                text = " ".join(str(error).split()) or type(error).__name__
                fix = "training here goes on without it, other libraries may not: see https://gymnasium.farama.org/api/env"
                if "super().reset(seed=seed)" in text:
                    fix = (
                        f"{OWN_GENERATOR}; if the task has no chance in it, call super().reset(seed=seed) all the same"
                    )
                self.report(Finding("gymnasium", "warning", CHECKS["gymnasium"], text, fix))

    def end(self) -> None:
        """Some episodes to their end and one step beyond: does the environment reset by itself?"""
        firsts, middles, finals, thens = list[Array](), list[Array](), list[Array](), list[Array]()
        deadline = time.monotonic() + self.seconds
        with self._copy() as env:
            space = env.observation_space
            for number in range(4 * ENDS):
                episode = self._episode(env, number)
                if episode.broken or time.monotonic() > deadline or len(finals) >= ENDS:
                    break
                rows = [recordings.flat(space, row.observation) for row in episode.rows]
                firsts.append(rows[0])
                middles += rows[1:-1][:MIDDLES]
                if not episode.ended:
                    continue
                finals.append(rows[-1])
                info = episode.rows[-1].info
                if isinstance(info, dict) and FINAL_KEYS & set(info):
                    expected = "the last observation of an episode to be its own"
                    got = f"info has {sorted(FINAL_KEYS & set(info))}: the observation is already the next episode's first"
                    self.report(Finding("after the end", "defect", expected, got, NO_RESET))
                    return
                self.watch("step", number, episode.length + 1)
                with contextlib.suppress(Exception):  # it may well refuse
                    action = next(bench.actions_of(env.action_space, self.seed, number + 1))
                    then = recordings.row_of(env.step(action), first=False)
                    thens += [] if then.ends else [recordings.flat(space, then.observation)]
        self.report(*recordings.resets_itself(firsts, middles, finals, thens))

    def copies(self) -> None:
        """Copies that are built, played and closed one after the other: what is left of them?"""
        counts: list[Mapping[str, int]] = []
        for number in range(COPIES):
            env = self._built()
            self._episode(env, number, most=3)
            self.watch("close", number, 0)
            try:
                env.close()
            except Exception as error:  # whatever a user's close raises
                fix = "correct the line below; close has to work at any time"
                self.report(replace(error_finding(error, "close"), fix=fix))
            del env
            gc.collect()
            counts.append(bench.handles())
        self.report(*recordings.leaks(counts[1:]))

    def measure(self) -> None:
        """Speed and memory, with nothing recorded; for much longer where no episode has ended yet."""
        steps, ends, resets, seconds, memory = 0, 0, 0, {"step": 0.0, "reset": 0.0}, list[int]()
        chunk, deadline = max(1, self.steps // recordings.CHUNKS), time.monotonic() + self.seconds
        with self._copy() as env:
            limited = any(isinstance(one, gymnasium.wrappers.TimeLimit) for one in bench.wrapped_by(env))
            endless = bool(self.facts.get("played_steps")) and not self.facts["lengths"] and not limited
            actions, over = bench.actions_of(env.action_space, self.seed, 0), True
            try:
                while time.monotonic() < deadline and steps < (ENDLESS_STEPS if endless and not ends else self.steps):
                    if over:
                        self.watch("reset", resets, 0)
                        start = time.perf_counter()
                        env.reset(seed=self._seed_of(resets))
                        seconds["reset"] += time.perf_counter() - start
                        resets += 1
                    action = next(actions)
                    self.watch("step", resets - 1, steps)
                    start = time.perf_counter()
                    result: Any = env.step(action)
                    seconds["step"] += time.perf_counter() - start
                    over, steps = recordings.row_of(result, first=False).ends, steps + 1
                    ends += over
                    if steps % chunk == 0 and steps <= self.steps:
                        memory.append(bench.resident_bytes())
            except Exception as error:  # whatever a user's environment raises
                self.report(error_finding(error, "reset or step", f"step {steps} of a long run", env.action_space))
                return
        total_s, slowest = max(sum(seconds.values()), 1e-9), max(seconds, key=lambda name: seconds[name])
        step_ms, reset_ms = 1e3 * seconds["step"] / max(1, steps), 1e3 * seconds["reset"] / max(1, resets)
        share = f"{100 * seconds[slowest] / total_s:.0f} % of the time is spent in {slowest}"
        got = f"{steps / total_s:,.0f} steps/s: step takes {step_ms:.1f} ms, reset {reset_ms:.1f} ms; {share}"
        self.facts |= {"step_ms": step_ms, "reset_ms": reset_ms}
        self.report_speed(memory, chunk, steps / total_s, got)
        if endless and not ends:
            self.report(recordings.no_end(steps, enough=steps >= ENDLESS_STEPS))

    def workers(self) -> None:
        """As training with worker processes plays it: two of them, each with a copy, behind the border that refuses bad rows."""
        self.watch("workers", 0, 0)
        how: dict[str, Any] = {"slots": 2, "workers": 2, "seed": self.seed, "limits": self.limits, "lockstep": True}
        try:
            with contextlib.closing(PoolEnvironments(self.make, name=self.name, **how)) as pool:
                rows, generator = pool.reset(), np.random.default_rng(self.seed)
                for _ in range(WORKER_STEPS):
                    self.watch("workers", 0, 0)
                    rows = pool.step(rows.slots, random_actions(pool.spec.action, generator, len(rows.slots)))
        except (EnvironmentRefused, EnvironmentFailed) as error:
            head, _, trace = str(error).partition("\n\n")
            fix = "the checks above say more; what a copy needs has to be importable and free in every process, or use placement thread"
            last = "\n".join(trace.splitlines()[-6:])
            self.report(Finding("workers", "defect", CHECKS["workers"], head, fix, trace=last))

    def _built(self) -> Env:
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
    def _copy(self) -> Iterator[Env]:
        env = self._built()
        try:
            yield env
        finally:
            self.watch("close", 0, 0)
            bench.close_quietly(env)

    def _episode(
        self,
        env: Env,
        number: int,
        *,
        most: int | None = None,
        again: CheckedEpisode | None = None,
        judge: bool = False,
    ) -> CheckedEpisode:
        """One episode: with the actions that belong to its number or with those of a recorded one; `judge` reports what is wrong."""
        episode, deadline = CheckedEpisode(number, self._seed_of(number)), time.monotonic() + self.seconds
        actions = bench.actions_of(env.action_space, self.seed, number)
        if again is not None:
            actions = (row.action for row in again.rows[1:])
        border = self._border(env) if judge else None
        sent: Any = None
        try:
            self.watch("reset", number, 0)
            result: Any = env.reset(seed=episode.seed)
            returned = self._note(episode, env, border, result, None)
            for step, sent in zip(range(1, (most or self.steps) + 1), actions, strict=False):
                self.watch("step", number, step)
                action = copy.deepcopy(sent)
                result = env.step(sent)
                if judge and not recordings.same(episode.rows[-1].observation, returned):
                    expected, got = (
                        "a returned observation to stay as it is",
                        "the next step wrote into the returned array",
                    )
                    fix, where = "return a copy: `return self._observation.copy(), ...`", episode.place(episode.length)
                    self.report(Finding("own arrays", "defect", expected, got, fix, where))
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

    def _seed_of(self, episode: int) -> int:
        """As training would choose it."""
        return int(seed_of(self.seed, np.array([0]), np.array([episode]))[0])

    def _border(self, env: Env) -> Border | None:
        def outside(_: str, sentence: str) -> None:
            place, _, said = sentence.partition("): ")
            got, where = said.partition(" as observation_space")[0], place.rpartition(" (")[2]
            fix = "widen observation_space, or clip what is returned; training goes on with such values as they are"
            self.report(Finding("observation", "warning", "values within the bounds of their space", got, fix, where))

        try:
            return Border(env, self.name, 0, outside, full_rows=self.steps)
        except EnvironmentRefused:  # spaces of which the stage before has told
            return None

    def _note(self, episode: CheckedEpisode, env: Env, border: Border | None, result: Any, action: Any) -> Any:
        """Keep the row with a copy of its observation; gives back the observation itself."""
        row, step = recordings.row_of(result, first=not episode.rows), len(episode.rows)
        try:
            if border is not None and step == 0:
                border.starting(episode.number)
                border.after_reset(result)
            elif border is not None:
                border.after_step(result, env)
        except EnvironmentRefused as error:
            expected = str(error).partition("expected ")[2]
            check = next((check for words, check in KINDS.items() if expected.startswith(words)), "observation")
            self.report(refusal(check, str(error), episode.place(step)))
        except BadValue as bad:
            fix = "find the division by zero, the root or logarithm of a negative number, or the sum that overflows"
            check, expected = "reward" if bad.key == "reward" else "finite", f"finite numbers in {bad.key}"
            self.report(Finding(check, "defect", expected, str(bad.value), fix, episode.place(step)))
        returned, row.action = row.observation, action
        row.observation = copy.deepcopy(returned)
        episode.rows.append(row)
        return returned
