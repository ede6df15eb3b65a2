"""The examination of environments that step many slots at once: ours, ALE's, mixtures, and a user's own vector."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.examine import resources
from laser_rl.envs.examine.bench import MOST_BYTES, Facts, Stop, refusal
from laser_rl.envs.examine.episodes import episodes_end, repeatable, seeds_matter, time_limits
from laser_rl.envs.examine.play import Watch, fault_of, nobody, random_actions
from laser_rl.envs.examine.records import Episode, Finding, Recording, Row
from laser_rl.envs.examine.values import wrong_values
from laser_rl.envs.records import Environments, EnvironmentSpec, Rows
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused, UserError

FEWEST_CALLS = 20


@dataclass
class RowsBench:
    """Environments under examination; `make` builds a set of them with a seed."""

    make: Callable[[int], Environments]
    name: str
    users: bool = False  # a vector of the user's own: our own tasks and ALE are known to end, and to be seeded
    steps: int = 2_000
    seconds: float = 4.0
    seed: int = 0
    watch: Watch = nobody
    recorded: Recording | None = None
    spec: EnvironmentSpec | None = field(default=None, repr=False)

    def build(self, seed: int) -> Environments:
        """A new set, or `Stop`."""
        self.watch("constructor", 0, 0)
        try:
            return self.make(seed)
        except EnvironmentRefused as error:
            raise Stop(refusal("construction", str(error))) from error
        except UserError:  # too few slots, an extra that is missing: not the environment's fault
            raise
        except Exception as error:  # whatever a user's constructor raises
            raise Stop(_error(error, "the constructor", "")) from error

    @property
    def recording(self) -> Recording:
        """What they do under random actions; played once."""
        if self.recorded is None:
            self.recorded = self.record(self.seed)
        return self.recorded

    def record(self, seed: int, steps: int | None = None) -> Recording:
        """Episodes of every slot, in order of slot and number."""
        environments = self.build(seed)
        try:
            found = self._played(environments, steps or self.steps)
        except EnvironmentRefused as error:
            raise Stop(refusal("observation", str(error))) from error
        except Exception as error:  # whatever a user's vector raises
            raise Stop(_error(error, "reset or step", "")) from error
        finally:
            environments.close()
        space = space_of(environments.spec)
        return Recording(space, spaces.Discrete(1), [found[key] for key in sorted(found)])

    def _played(self, environments: Environments, steps: int) -> dict[tuple[int, int], Episode]:
        size = int(np.prod(environments.spec.observation.shape)) * 4
        most = min(steps, MOST_BYTES // size) // environments.slots
        found: dict[tuple[int, int], Episode] = {}
        for rows, action in walk(environments, max(FEWEST_CALLS, most), self.seconds, self.seed, self.watch):
            for index, slot in enumerate(rows.slots.tolist()):
                key = (slot, int(rows.episode[index]))
                episode = found.setdefault(key, Episode(key[1], int(rows.seed[index]), slot))
                episode.rows.append(
                    Row(
                        rows.observation[index].copy(), float(rows.reward[index]), bool(rows.terminated[index]),
                        bool(rows.truncated[index]), action=None if action is None else action[index],
                    )
                )  # fmt: skip
        return found


def walk(
    environments: Environments, calls: int, seconds: float, seed: int, watch: Watch = nobody
) -> Iterator[tuple[Rows, NDArray[Any] | None]]:
    """Random play: all rows as they come, and the actions that led to them."""
    generator, deadline = np.random.default_rng(seed), time.monotonic() + seconds
    watch("reset", 0, 0)
    rows = environments.reset()
    yield rows, None
    for call in range(1, calls + 1):
        action = random_actions(environments.spec.action, generator, len(rows.slots))
        watch("step", 0, call)
        rows = environments.step(rows.slots, action)
        yield rows, action
        if time.monotonic() > deadline:
            return


def space_of(spec: EnvironmentSpec) -> spaces.Box:
    """All that a row may hold."""
    if spec.observation.dtype == "uint8":
        return spaces.Box(0, 255, spec.observation.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, spec.observation.shape, np.float32)


def _error(error: Exception, where: str, place: str) -> Finding:
    fault = fault_of(error, where)
    if isinstance(error, EnvironmentFailed):
        head, _, trace = str(error).partition("\n\n")
        return Finding("errors", "defect", f"no exception in {where}", head, "correct the line below", place, trace)
    fix = "correct the line below, or handle this case"
    return Finding("errors", "defect", f"no exception in {where}", fault.error, fix, place, fault.trace)


def build_rows(bench: RowsBench, facts: Facts) -> list[Finding]:
    """What they look like."""
    environments = bench.build(bench.seed)
    facts |= {"spec": environments.spec, "slots": environments.slots}
    environments.close()
    return []


def play_rows(bench: RowsBench, facts: Facts) -> list[Finding]:
    """All that rows show."""
    recording = bench.recording
    whole = [episode for episode in recording.episodes if episode.ended]
    facts["lengths"] = [episode.length for episode in whole]
    facts["returns"] = [sum(row.reward for row in episode.rows) for episode in whole]
    facts["played_steps"] = recording.steps
    return [*wrong_values(recording), *(time_limits(recording) if bench.users else [])]


def repeat_rows(bench: RowsBench, facts: Facts) -> list[Finding]:
    """The same seed once more, in a fresh set."""
    return repeatable(bench.recording.episodes, bench.record(bench.seed).episodes, [])


def seed_rows(bench: RowsBench, facts: Facts) -> list[Finding]:
    """Two other seeds, under the same actions."""
    others = [bench.record(bench.seed + number, steps=1).episodes[0] for number in (1, 2)]
    return seeds_matter([bench.recording.episodes[0], *others], seeded=not bench.users)


def length_rows(bench: RowsBench, facts: Facts) -> list[Finding]:
    """Whether episodes of a user's vector end."""
    longest = max((episode.length for episode in bench.recording.episodes), default=0)
    ended = sum(episode.ended for episode in bench.recording.episodes)
    return episodes_end(longest, ended, limited=not bench.users, steps=longest, enough=False)


def run_rows(bench: RowsBench, facts: Facts) -> list[Finding]:
    """Speed and memory."""
    environments = bench.build(bench.seed)
    calls = max(resources.CHUNKS, bench.steps // environments.slots)
    done, start = resources.Run(chunk_steps=max(1, calls // resources.CHUNKS)), time.perf_counter()
    seconds = 0.0
    try:
        for call, (rows, _) in enumerate(walk(environments, calls, bench.seconds, bench.seed, bench.watch), 1):
            seconds += time.perf_counter() - start
            done.steps += int((~rows.is_first).sum())
            if call % done.chunk_steps == 0:
                gc.collect()
                done.memory.append(resources.resident_bytes())
            start = time.perf_counter()
    except Exception as error:  # whatever a user's vector raises
        raise Stop(_error(error, "reset or step", "")) from error
    finally:
        environments.close()
    done.step_s, done.chunk_steps = seconds, done.chunk_steps * environments.slots
    facts["steps_per_second"] = done.steps_per_second
    return [*resources.memory_grows(done.memory, done.chunk_steps), *resources.too_slow(done)]


Stage = Callable[[RowsBench, Facts], list[Finding]]
STAGES: Mapping[str, tuple[Stage, tuple[str, ...]]] = {
    "build": (build_rows, ("construction", "spaces")),
    "play": (play_rows, ("interface", "observation", "finite", "reward", "time limit")),
    "repeat": (repeat_rows, ("repeatable",)),
    "seeds": (seed_rows, ("seed",)),
    "length": (length_rows, ("length",)),
    "run": (run_rows, ("memory", "speed")),
}
