"""The checks of `laser check-env` for one Python environment, stage by stage.

The border of training (`envs.border`) and Gymnasium's own checker judge single values; the stages add what only shows over whole
episodes, copies, processes, memory and time. Everything runs in the calling process; `check_process` supervises it in one of its own.
"""

import contextlib
import gc
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from laser_rl.envs.border import Env
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused
from laser_rl.tools.bench import (
    CHUNKS,
    Bench,
    TimedRun,
    actions_of,
    error_finding,
    handles,
    leaks,
    memory_grows,
    no_end,
    random_actions,
    refusal,
    resident_bytes,
    row_of,
    too_slow,
)
from laser_rl.tools.findings import (
    CHECKS,
    FINAL_KEYS,
    NO_RESET,
    OWN_GENERATOR,
    Array,
    CheckedEpisode,
    CheckStopped,
    Finding,
    Verdict,
    flat,
    merged,
    own_limits,
    repeatable,
    resets_itself,
    time_limits,
)

ENDLESS_STEPS = 30_000  # an Atari game is cut off after 27,000
ENDS, COPIES, WORKER_STEPS, MIDDLES = 8, 5, 20, 25
MOST_BYTES = 64 << 20  # of recorded observations
MOST_FAULTS = 3
WIDE = 1e6


def build_stage(bench: Bench) -> None:
    """Two copies at once, the same spaces, and an agent that could play in them."""
    with bench.copy() as env:
        _spaces(bench, env)
        try:
            with bench.copy() as twin:
                spaces, others = (env.observation_space, env.action_space), (twin.observation_space, twin.action_space)
                if spaces != others:
                    fix = "make the constructor give the same spaces each time"
                    bench.find("construction", "defect", f"the spaces {spaces}", f"{others} in a second copy", fix)
        except CheckStopped as stop:
            fix = "let each copy have its own files, ports and windows: training plays in several copies at once"
            expected, one = "a second copy while the first is open", stop.finding
            bench.find("construction", "defect", expected, one.got, fix, trace=one.trace)


def _spaces(bench: Bench, env: Env) -> None:
    specs: list[Any] = []
    for border, space in ((observation_border, env.observation_space), (action_border, env.action_space)):
        try:
            specs.append(border(space, bench.name).spec)
        except EnvironmentRefused as error:
            bench.report(refusal("spaces", str(error)))
    if bench.defects:
        return
    bench.facts["spec"] = EnvironmentSpec(bench.name, *specs)
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Box) and (np.abs([space.low, space.high]) > WIDE).any():
        got = f"{'very wide ones' if np.isfinite(space.low).all() else 'no bounds'}, {space}"
        fix = "declare the range in which actions differ, e.g. Box(-1, 1, …), and scale inside of step"
        bench.find("spaces", "warning", "bounds within which actions make sense", got, fix)


def play_stage(bench: Bench) -> None:
    """Record random play; the border of training judges each row."""
    env, deadline = bench.build(), time.monotonic() + bench.seconds
    size = int(np.prod(env.observation_space.shape or (1,))) * 8
    left, faults = min(bench.steps, max(20, MOST_BYTES // size)), 0
    before, space = _generators(), env.observation_space
    limits = own_limits(one for one in _chain(env) if not isinstance(one, gymnasium.wrappers.TimeLimit))
    while left > 0 and faults < MOST_FAULTS and (time.monotonic() < deadline or not bench.episodes):
        episode = bench.play(env, len(bench.episodes), most=left, judge=True)
        bench.episodes.append(episode)
        left -= max(1, episode.length)
        if episode.broken:
            faults += 1
            _close(env)
            env = bench.build()
    _close(env)
    now = _generators()
    bench.facts["drew"] = [name for name in before if before[name] != now[name]]
    episode_facts(bench.facts, bench.episodes)
    bench.report(*time_limits(space, bench.episodes, limits))


def episode_facts(facts: dict[str, Any], episodes: Sequence[CheckedEpisode]) -> None:
    """Lengths and returns of the episodes that came to their end."""
    whole = [episode for episode in episodes if episode.ended and not episode.broken]
    facts["lengths"], facts["returns"] = [episode.length for episode in whole], [_return(one) for one in whole]
    facts["played_steps"] = sum(max(0, episode.length) for episode in episodes)


def _return(episode: CheckedEpisode) -> float:
    try:
        return float(sum(float(row.reward) for row in episode.rows))
    except (TypeError, ValueError):  # a reward that is no number: a finding of its own
        return float("nan")


def _close(env: Env) -> None:
    with contextlib.suppress(Exception):  # closing has a stage of its own
        env.close()


def _generators() -> dict[str, Any]:
    """The generators that the whole program shares."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - it is the user's use of it that is looked for
    inner = state["state"]
    return {"numpy.random": (inner["key"].tobytes(), inner["pos"], state["has_gauss"]), "random": random.getstate()}


def _chain(env: Any) -> Iterator[Any]:
    """The environment and all that it wraps, outermost first."""
    for _ in range(100):  # one may wrap itself
        if env is None:
            return
        yield env
        env = getattr(env, "env", None)


def repeat_stage(bench: Bench) -> None:
    """The same episodes in a fresh copy, and the first of them once more, each behind another one than before."""
    played = [episode for episode in bench.episodes if not episode.broken][:ENDS]
    with bench.copy() as env:
        fresh = [bench.play(env, episode.number, most=episode.length, again=episode) for episode in played]
        again = [bench.play(env, one.number, most=one.length, again=one) for one in reversed(played[: ENDS // 2])]
        spec, parts = getattr(env, "spec", None), list(_chain(env))
    found = repeatable(played, fresh, again)
    running = [type(part).__name__ for part in parts if hasattr(part, "obs_rms") or hasattr(part, "return_rms")]
    if spec is not None and spec.nondeterministic:  # it says so itself
        found = [replace(one, verdict="warning") for one in found]
    elif running:  # meant to depend on the episodes before
        fix = (
            f"{running[0]} carries statistics from episode to episode, so exact resumes are lost, and each copy and each evaluation "
            "begins with none; use fixed numbers instead (gymnasium.wrappers.TransformObservation) if that matters"
        )
        found = [replace(one, verdict="warning", fix=fix) for one in found]
    bench.report(*found)
    if drew := bench.facts.pop("drew", []):
        verdict: Verdict = "defect" if {"repeatable", "seed"} & bench.defects else "warning"
        expected, got = "the generators that the whole program shares to be left alone", f"{' and '.join(drew)} used"
        bench.find("generators", verdict, expected, f"{got} in reset or step", f"replace it: {OWN_GENERATOR}")


def gymnasium_stage(bench: Bench) -> None:
    """Gymnasium's own checker. It stops at its first objection, so it is asked only where nothing is known to be wrong."""
    if bench.defects:
        bench.report(Finding("gymnasium", "not done", CHECKS["gymnasium"]))
        return
    with bench.copy() as env, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matters of taste, such as actions that are not normalised
        bench.watch("reset", 0, 0)
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:  # assertions, and errors of its own
            text = " ".join(str(error).split())
            fix = "training here goes on without it, other libraries may not: see https://gymnasium.farama.org/api/env"
            if "super().reset(seed=seed)" in text:
                fix = f"{OWN_GENERATOR}; if the task has no chance in it, call super().reset(seed=seed) all the same"
            bench.find("gymnasium", "warning", CHECKS["gymnasium"], text or type(error).__name__, fix)


def end_stage(bench: Bench) -> None:
    """Some episodes to their end and one step beyond: does the environment reset by itself?"""
    firsts, middles, finals, thens = list[Array](), list[Array](), list[Array](), list[Array]()
    deadline = time.monotonic() + bench.seconds
    with bench.copy() as env:
        space = env.observation_space
        for number in range(4 * ENDS):
            episode = bench.play(env, number)
            if episode.broken or time.monotonic() > deadline or len(finals) >= ENDS:
                break
            firsts.append(flat(space, episode.rows[0].observation))
            middles += [flat(space, row.observation) for row in episode.rows[1:-1]][:MIDDLES]
            if not episode.ended:
                continue
            last = episode.rows[-1]
            finals.append(flat(space, last.observation))
            if isinstance(last.info, dict) and FINAL_KEYS & set(last.info):
                expected = "the last observation of an episode to be its own"
                got = f"info has {sorted(FINAL_KEYS & set(last.info))}: the observation is already the next episode's first"
                bench.find("after the end", "defect", expected, got, NO_RESET)
                return
            bench.watch("step", number, episode.length + 1)
            with contextlib.suppress(Exception):  # it may well refuse
                then = row_of(env.step(next(actions_of(env.action_space, bench.seed, number + 1))), first=False)
                thens += [] if then.ends else [flat(space, then.observation)]
    bench.report(*resets_itself(firsts, middles, finals, thens))


def copies_stage(bench: Bench) -> None:
    """Copies that are built, played and closed one after the other: what is left of them?"""
    counts: list[Mapping[str, int]] = []
    for number in range(COPIES):
        env = bench.build()
        bench.play(env, number, most=3)
        bench.watch("close", number, 0)
        try:
            env.close()
        except Exception as error:  # whatever a user's close raises
            fix = "correct the line below; close has to work at any time"
            bench.report(replace(error_finding(error, "close"), fix=fix))
        del env
        gc.collect()
        counts.append(handles())
    bench.report(*leaks(counts[1:]))


def run_stage(bench: Bench) -> None:
    """Speed and memory, with nothing recorded; for much longer where no episode has ended yet."""
    done, most = TimedRun(), bench.steps
    with bench.copy() as env:
        limited = any(isinstance(one, gymnasium.wrappers.TimeLimit) for one in _chain(env))
        endless = bool(bench.facts.get("played_steps")) and not bench.facts["lengths"] and not limited
        try:
            _run(bench, env, done, until_end=endless)
        except Exception as error:  # whatever a user's environment raises
            bench.report(error_finding(error, "reset or step", f"step {done.steps} of a long run", env.action_space))
            return
    per_second = done.steps / done.total_s
    bench.facts |= {
        "steps_per_second": per_second,
        "step_ms": 1e3 * done.step_s / max(1, done.steps),
        "reset_ms": 1e3 * done.reset_s / max(1, done.resets),
    }
    bench.report(*memory_grows(done.memory, max(1, most // CHUNKS)), *too_slow(per_second, str(done)))
    if endless and not done.ended:
        bench.report(*no_end(done.steps, enough=done.steps >= ENDLESS_STEPS))


def _run(bench: Bench, env: Env, done: TimedRun, *, until_end: bool) -> None:
    actions, clock, over = actions_of(env.action_space, bench.seed, 0), time.perf_counter, True
    deadline, chunk = time.monotonic() + bench.seconds, max(1, bench.steps // CHUNKS)
    while time.monotonic() < deadline:
        if done.steps >= (ENDLESS_STEPS if until_end and not done.ended else bench.steps):
            return
        if over:
            bench.watch("reset", done.resets, 0)
            start = clock()
            env.reset(seed=bench.episode_seed(done.resets))
            done.reset_s, done.resets = done.reset_s + clock() - start, done.resets + 1
        action = next(actions)
        bench.watch("step", done.resets - 1, done.steps)
        start = clock()
        result: Any = env.step(action)
        done.step_s, done.steps = done.step_s + clock() - start, done.steps + 1
        over = row_of(result, first=False).ends
        done.ended += over
        if done.steps % chunk == 0 and done.steps <= bench.steps:
            gc.collect()
            done.memory.append(resident_bytes())


def workers_stage(bench: Bench) -> None:
    """As training with worker processes plays it: two of them, each with a copy, behind the border that refuses bad rows."""
    bench.watch("workers", 0, 0)
    try:
        with contextlib.closing(
            PoolEnvironments(
                bench.make, slots=2, seed=bench.seed, workers=2, name=bench.name, limits=bench.limits, lockstep=True
            )
        ) as pool:
            rows, generator = pool.reset(), np.random.default_rng(bench.seed)
            for _ in range(WORKER_STEPS):
                bench.watch("workers", 0, 0)
                rows = pool.step(rows.slots, random_actions(pool.spec.action, generator, len(rows.slots)))
    except (EnvironmentRefused, EnvironmentFailed) as error:
        head, _, trace = str(error).partition("\n\n")
        fix = "the checks above say more; what a copy needs has to be importable and free in every process, or use placement thread"
        bench.find("workers", "defect", CHECKS["workers"], head, fix, trace="\n".join(trace.splitlines()[-6:]))


Stage = Callable[[Any], None]
# Which checks have been made when a stage has come to its end.
STAGES: Mapping[str, tuple[Stage, tuple[str, ...]]] = {
    "build": (build_stage, ("construction", "spaces")),
    "play": (
        play_stage,
        ("interface", "observation", "finite", "reward", "flags", "info", "own arrays", "action space", "time limit"),
    ),
    "repeat": (repeat_stage, ("repeatable", "seed", "generators")),
    "gymnasium": (gymnasium_stage, ("gymnasium",)),
    "end": (end_stage, ("after the end",)),
    "copies": (copies_stage, ("handles",)),
    "run": (run_stage, ("memory", "speed", "length")),
    "workers": (workers_stage, ("workers",)),
}


def check(
    make: Callable[[], Env], name: str = "environment", *, stages: Iterable[str] = STAGES, **settings: Any
) -> list[Finding]:
    """All that is wrong with an environment, found in this process: nothing here survives one that hangs.

    Args:
        make: its constructor.
        name: for the messages.
        stages: some of `STAGES`; all if left out.
        settings: more fields of `Bench`, such as `steps` and `seconds`.

    >>> check(lambda: gymnasium.make("CartPole-v1", disable_env_checker=True), stages=["play"], steps=200)
    []
    """
    found: list[Finding] = []
    bench = Bench(make, name, tell=found.append, **settings)
    for stage in stages:
        try:
            STAGES[stage][0](bench)
        except CheckStopped as stop:
            found.append(stop.finding)
            break
    return merged(found)
