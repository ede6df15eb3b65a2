"""The examination of a Python environment, stage by stage; each one builds the copies that it needs and may be the only one."""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from laser_rl.envs.border import Env
from laser_rl.envs.examine import resources
from laser_rl.envs.examine.bench import Bench, Facts, Stop, refusal
from laser_rl.envs.examine.episodes import (
    Ending,
    Endings,
    after_the_end,
    episodes_end,
    global_generators,
    repeatable,
    running_statistics,
    seeds_matter,
    time_limits,
)
from laser_rl.envs.examine.play import Actions, chain, fault_of, random_actions, replayed
from laser_rl.envs.examine.records import Episode, Fault, Finding, Row, merged
from laser_rl.envs.examine.values import error_finding, wrong_values
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused

ENDLESS_STEPS = 30_000  # an Atari game is cut off after 27,000
ENDS, SEEDS, SEED_STEPS, COPIES, WORKER_STEPS, MIDDLES = 8, 5, 30, 5, 20, 200
WIDE = 1e6


def build_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """Two copies at once, the same spaces, and an agent that could play in them."""
    found: list[Finding] = []
    with bench.copy() as env:
        found += _spaces(env, bench.name, facts)
        try:
            with bench.copy() as twin:
                spaces, others = (env.observation_space, env.action_space), (twin.observation_space, twin.action_space)
                if spaces != others:
                    fix = "make the constructor give the same spaces each time"
                    found.append(
                        Finding("construction", "defect", f"the spaces {spaces}", f"{others} in a second copy", fix)
                    )
        except Stop as stop:
            one = stop.finding
            fix = "let each copy have its own files, ports and windows: training plays in several copies at once"
            found.append(
                Finding(
                    "construction", "defect", "a second copy while the first is open", one.got, fix, trace=one.trace
                )
            )
    return found


def _spaces(env: Env, name: str, facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    try:
        observation = observation_border(env.observation_space, name).spec
        action = action_border(env.action_space, name).spec
        facts["spec"] = EnvironmentSpec(name, observation, action)
    except EnvironmentRefused:
        for border, space in ((observation_border, env.observation_space), (action_border, env.action_space)):
            try:
                border(space, name)
            except EnvironmentRefused as error:
                found.append(refusal("spaces", str(error)))
    if not isinstance(env.action_space, gymnasium.spaces.Box) or found:
        return found
    low, high = env.action_space.low, env.action_space.high
    expected = "bounds within which actions make sense"
    fix = "declare the range in which actions differ, e.g. Box(-1, 1, …), and scale inside of step"
    if not np.isfinite(low).all():
        found.append(Finding("spaces", "warning", expected, f"no bounds in {env.action_space}", fix))
    elif (np.abs([low, high]) > WIDE).any():
        found.append(Finding("spaces", "warning", expected, f"very wide ones, {env.action_space}", fix))
    return found


def play_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """All that single rows show, and lengths and returns of the episodes."""
    recording = bench.recording
    whole = [episode for episode in recording.episodes if episode.ended and episode.fault is None]
    facts["lengths"] = [episode.length for episode in whole]
    facts["returns"] = [_return(episode) for episode in whole]
    facts["played_steps"] = recording.steps
    return [*wrong_values(recording), *time_limits(recording)]


def _return(episode: Episode) -> float:
    try:
        return float(sum(float(row.reward) for row in episode.rows))
    except (TypeError, ValueError):  # a reward that is no number: a finding of its own
        return float("nan")


def repeat_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """The same episodes in a fresh copy, and the first of them once more, each behind another one than before."""
    played = [episode for episode in bench.recording.episodes if episode.fault is None][:ENDS]
    if not played:
        return []
    with bench.copy() as env:
        fresh = [_again(bench, env, episode) for episode in played]
        again = [_again(bench, env, episode) for episode in reversed(played[: ENDS // 2])]
        spec = getattr(env, "spec", None)
        running = running_statistics(chain(env))
    found = repeatable(played, fresh, again)
    if spec is not None and spec.nondeterministic:  # it says so itself
        found = [replace(one, verdict="warning") for one in found]
    elif running:  # meant to depend on the episodes before
        fix = (
            f"{running} carries statistics from episode to episode, so exact resumes are lost, and each copy and each evaluation "
            "begins with none; use fixed numbers instead (gymnasium.wrappers.TransformObservation) if that matters"
        )
        found = [replace(one, verdict="warning", fix=fix) for one in found]
    bench.repeats = not any(one.verdict == "defect" for one in found)
    return [*found, *global_generators(bench.recording.episodes, repeats=bench.repeats)]


def _again(bench: Bench, env: Env, episode: Episode) -> Episode:
    deadline = time.monotonic() + bench.seconds
    actions = replayed(episode)
    return bench.play(env, episode.number, most=len(actions), deadline=deadline, actions=iter(actions))


def seeds_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """A few seeds under the same actions."""
    deadline, episodes, seeded = time.monotonic() + bench.seconds, [], False
    with bench.copy() as env:
        for number in range(SEEDS):
            actions = Actions(env.action_space, seed=bench.seed).of(0)
            episode = bench.play(env, number, most=SEED_STEPS, deadline=deadline, actions=actions)
            episodes.append(episode)
            seeded = getattr(getattr(env, "unwrapped", env), "_np_random_seed", None) == episode.seed
    return seeds_matter(episodes, seeded=seeded)


def end_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """Some episodes to their end and one step beyond."""
    deadline = time.monotonic() + bench.seconds
    with bench.copy() as env:
        seen = Endings(env.observation_space, [], [], [], [type(one).__name__ for one in chain(env)])
        for number in range(4 * ENDS):
            episode = bench.play(env, number, most=bench.steps, deadline=deadline)
            if episode.fault is not None or time.monotonic() > deadline:
                break
            seen.firsts.append(episode.rows[0].observation)
            seen.middles += [row.observation for row in episode.rows[1:-1]][: MIDDLES // ENDS]
            if episode.ended:
                seen.ends.append(_beyond(bench, env, episode))
            if len(seen.ends) >= ENDS:
                break
    return after_the_end(seen)


def _beyond(bench: Bench, env: Env, episode: Episode) -> Ending:
    actions = Actions(env.action_space, seed=bench.seed)
    bench.watch("step", episode.number, episode.length + 1)
    try:
        result: Any = env.step(actions.convert(next(actions.of(episode.number + 1))))
    except Exception as error:  # it may well refuse
        return Ending(episode.rows[-1], None, fault_of(error, "step"))
    five = isinstance(result, tuple) and len(result) == 5  # noqa: PLR2004 - as Gymnasium has it
    return Ending(episode.rows[-1], Row(*result) if five else None)


def length_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """Where no episode has ended, one is played for much longer."""
    recording = bench.recording
    if any(episode.ended for episode in recording.episodes) or recording.step_limit is not None:
        return []
    if not recording.steps:
        return []
    deadline, steps = time.monotonic() + bench.seconds, 0
    with bench.copy() as env:
        actions = Actions(env.action_space, seed=bench.seed)
        chosen, ended = actions.of(0), 0
        bench.watch("reset", 0, 0)
        try:
            env.reset(seed=bench.episode_seed(0))
            while steps < ENDLESS_STEPS and not ended and time.monotonic() < deadline:
                steps += 1
                bench.watch("step", 0, steps)
                result: Any = env.step(actions.convert(next(chosen)))
                ended = int(bool(result[2]) or bool(result[3]))
        except Exception as error:  # it came late
            return [_late(error, steps, env)]
    return episodes_end(steps, ended, limited=False, steps=steps, enough=steps >= ENDLESS_STEPS)


def _late(error: Exception, steps: int, env: Env) -> Finding:
    broken = Episode(0, 0, rows=[Row(None)] * steps, fault=fault_of(error, "step"))
    return error_finding(broken, env.action_space)


def copies_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """Copies that are built, played and closed one after the other: what is left of them?"""
    counts: list[Mapping[str, int]] = []
    found: list[Finding] = []
    for number in range(COPIES):
        env = bench.build()
        bench.play(env, number, most=3, deadline=time.monotonic() + bench.seconds)
        bench.watch("close", number, 0)
        try:
            env.close()
        except Exception as error:  # whatever a user's close raises
            fault: Fault = fault_of(error, "close")
            fix = "correct the line below; close has to work at any time"
            found.append(Finding("errors", "defect", "no exception in close", fault.error, fix, trace=fault.trace))
        del env
        gc.collect()
        counts.append(resources.handles())
    return merged([*found, *resources.leaks(counts[1:], resources.open_files())])


def run_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """Speed and memory, with nothing recorded."""
    with bench.copy() as env:
        actions = Actions(env.action_space, seed=bench.seed)
        sent = (actions.convert(action) for action in actions.of(0))
        try:
            done = resources.run(
                env, sent, seed=bench.seed, steps=bench.steps, seconds=bench.seconds, watch=bench.watch
            )
        except Exception as error:  # whatever a user's environment raises
            return [_late(error, 1, env)]
    facts |= {
        "steps_per_second": done.steps_per_second,
        "step_ms": 1e3 * done.step_s / max(1, done.steps),
        "reset_ms": 1e3 * done.reset_s / max(1, done.episodes),
    }
    return [*resources.memory_grows(done.memory, done.chunk_steps), *resources.too_slow(done)]


def workers_stage(bench: Bench, facts: Facts) -> list[Finding]:
    """As training with worker processes plays it: two of them, each with a copy, behind the border that refuses bad rows."""
    expected = "two worker processes that play at once"
    bench.watch("workers", 0, 0)
    try:
        pool = PoolEnvironments(
            bench.make, slots=2, seed=bench.seed, workers=2, name=bench.name, on_bad_value="fail",
            limits=bench.limits, lockstep=True,
        )  # fmt: skip
    except (EnvironmentRefused, EnvironmentFailed) as error:
        return [_in_worker(expected, error)]
    try:
        rows = pool.reset()
        generator = np.random.default_rng(bench.seed)
        for _ in range(WORKER_STEPS):
            bench.watch("workers", 0, 0)
            rows = pool.step(rows.slots, random_actions(pool.spec.action, generator, len(rows.slots)))
    except (EnvironmentRefused, EnvironmentFailed) as error:
        return [_in_worker(expected, error)]
    finally:
        pool.close()
    return []


def _in_worker(expected: str, error: Exception) -> Finding:
    text = str(error)
    head, _, trace = text.partition("\n\n")
    fix = "the checks above say more; what a copy needs has to be importable and free in every process, or use placement thread"
    return Finding("workers", "defect", expected, head, fix, trace="\n".join(trace.splitlines()[-6:]))


Stage = Callable[[Bench, Facts], list[Finding]]
# Which checks have been made when a stage has come to its end.
STAGES: Mapping[str, tuple[Stage, tuple[str, ...]]] = {
    "build": (build_stage, ("construction", "spaces")),
    "play": (
        play_stage,
        ("interface", "observation", "finite", "reward", "flags", "info", "own arrays", "action space", "time limit"),
    ),
    "repeat": (repeat_stage, ("repeatable", "generators")),
    "seeds": (seeds_stage, ("seed",)),
    "end": (end_stage, ("after the end",)),
    "length": (length_stage, ("length",)),
    "copies": (copies_stage, ("handles",)),
    "run": (run_stage, ("memory", "speed")),
    "workers": (workers_stage, ("workers",)),
}


def examined(bench: Bench, stages: Mapping[str, tuple[Stage, tuple[str, ...]]] = STAGES) -> tuple[list[Finding], Facts]:
    """All stages one after the other, in this process: nothing here survives an environment that hangs (`watch.examine` does).

    >>> bench = Bench(lambda: gymnasium.make("CartPole-v1", disable_env_checker=True), "CartPole-v1", steps=200)
    >>> examined(bench, {"play": STAGES["play"]})[0]
    []
    """
    facts: Facts = {}
    found: list[Finding] = []
    for stage, _ in stages.values():
        try:
            found += stage(bench, facts)
        except Stop as stop:
            found.append(stop.finding)
            break
    return merged(found), facts
