"""The checks of `laser check-env` for environments that step many slots at once: ours, ALE's, mixtures, and a user's own vector."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from laser_rl.envs.records import Environments, Rows
from laser_rl.errors import EnvironmentRefused, UserError
from laser_rl.tools.bench import (
    CHUNKS,
    Bench,
    error_finding,
    memory_grows,
    no_end,
    random_actions,
    refusal,
    resident_bytes,
    too_slow,
)
from laser_rl.tools.check_env import MOST_BYTES, Stage, episode_facts
from laser_rl.tools.findings import CheckedEpisode, CheckedRow, CheckStopped, repeatable, time_limits

FEWEST_CALLS = 20


@dataclass
class VectorBench(Bench):
    """Environments under examination; `many` builds a set of them with a seed. Their values pass the border of training anyway."""

    many: Callable[[int], Environments] = lambda seed: NotImplemented
    busy_s: float = 0.0  # spent in steps of the walks so far
    users: bool = False  # a vector of the user's own: our own tasks and ALE are known to end

    @contextlib.contextmanager
    def open(self) -> Iterator[Environments]:
        """A new set; whatever goes wrong in it becomes `CheckStopped`."""
        self.watch("constructor", 0, 0)
        environments, doing = None, "the constructor"
        try:
            environments, doing = self.many(self.seed), "reset or step"
            yield environments
        except EnvironmentRefused as error:
            raise CheckStopped(
                refusal("construction" if environments is None else "observation", str(error))
            ) from error
        except UserError as error:
            if environments is None:  # too few slots, an extra that is missing: not the environment's fault
                raise
            raise CheckStopped(error_finding(error, doing)) from error
        except Exception as error:  # whatever a user's vector raises
            raise CheckStopped(error_finding(error, doing)) from error
        finally:
            if environments is not None:
                environments.close()

    def walk(self, environments: Environments, calls: int) -> Iterator[Rows]:
        """Random play: all rows as they come."""
        generator, deadline = np.random.default_rng(self.seed), time.monotonic() + self.seconds
        self.watch("reset", 0, 0)
        rows = environments.reset()
        yield rows
        for call in range(1, calls + 1):
            action = random_actions(environments.spec.action, generator, len(rows.slots))
            self.watch("step", 0, call)
            start = time.perf_counter()
            rows = environments.step(rows.slots, action)
            self.busy_s += time.perf_counter() - start
            yield rows
            if time.monotonic() > deadline:
                return

    def record(self) -> list[CheckedEpisode]:
        """Episodes of every slot, in order of slot and number."""
        found: dict[tuple[int, int], CheckedEpisode] = {}
        with self.open() as environments:
            size = int(np.prod(environments.spec.observation.shape)) * 4
            calls = max(FEWEST_CALLS, min(self.steps, MOST_BYTES // size) // environments.slots)
            for rows in self.walk(environments, calls):
                for slot, seen, _, reward, terminated, truncated, _, _, number, seed in zip(*rows, strict=True):
                    key = (int(slot), int(number))
                    episode = found.setdefault(key, CheckedEpisode(key[1], int(seed), slot=key[0]))
                    episode.rows.append(CheckedRow(seen.copy(), float(reward), bool(terminated), bool(truncated)))
        return [found[key] for key in sorted(found)]


def build_many(bench: VectorBench) -> None:
    """What they look like."""
    with bench.open() as environments:
        bench.facts |= {"spec": environments.spec, "slots": environments.slots}


def play_many(bench: VectorBench) -> None:
    """What rows show, and whether episodes end as they should."""
    bench.episodes = bench.record()
    episode_facts(bench.facts, bench.episodes)
    if bench.users:
        space = spaces.Box(-np.inf, np.inf, bench.episodes[0].rows[0].observation.shape, np.float32)
        bench.report(*time_limits(space, bench.episodes, {}))
        if not bench.facts["lengths"]:
            bench.report(*no_end(max(episode.length for episode in bench.episodes), enough=False))


def repeat_many(bench: VectorBench) -> None:
    """The same seed once more, in a fresh set."""
    bench.report(*repeatable(bench.episodes, bench.record(), []))


def run_many(bench: VectorBench) -> None:
    """Speed and memory."""
    steps, memory, bench.busy_s = 0, list[int](), 0.0
    with bench.open() as environments:
        calls = max(CHUNKS, bench.steps // environments.slots)
        chunk = max(1, calls // CHUNKS)
        for call, rows in enumerate(bench.walk(environments, calls), 1):
            steps += int((~rows.is_first).sum())
            if call % chunk == 0:
                gc.collect()
                memory.append(resident_bytes())
        chunk *= environments.slots
    per_second = bench.facts["steps_per_second"] = steps / max(bench.busy_s, 1e-9)
    bench.report(*memory_grows(memory, chunk), *too_slow(per_second, f"{per_second:,.0f} steps/s"))


STAGES: Mapping[str, tuple[Stage, tuple[str, ...]]] = {
    "build": (build_many, ("construction", "spaces")),
    "play": (play_many, ("interface", "observation", "finite", "reward", "time limit", "length")),
    "repeat": (repeat_many, ("repeatable",)),
    "run": (run_many, ("memory", "speed")),
}
