"""An environment on the bench: copies of it, episodes of it, and one recording that every stage may look at."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from laser_rl.envs.border import Env
from laser_rl.envs.construct import packages_of, require_one_agent
from laser_rl.envs.examine.episodes import own_limits
from laser_rl.envs.examine.play import Actions, Watch, chain, fault_of, nobody, play_episode
from laser_rl.envs.examine.records import Episode, Finding, Recording
from laser_rl.envs.process import Limits
from laser_rl.envs.records import seed_of
from laser_rl.errors import EnvironmentRefused

MOST_BYTES = 64 << 20  # of recorded observations
MOST_FAULTS = 3

Facts = dict[str, Any]  # what a stage has learnt that is neither good nor bad


@dataclass
class Stop(Exception):
    """Nothing more can be examined."""

    finding: Finding


@dataclass
class Bench:
    """An environment under examination: how to build it, how long to look, and what was seen so far."""

    make: Callable[[], Env]
    name: str
    steps: int = 2_000
    seconds: float = 4.0  # for each stage, about; slow environments are played for fewer steps
    seed: int = 0
    watch: Watch = nobody
    limits: Limits = field(default_factory=Limits)
    recorded: Recording | None = None
    repeats: bool = True

    def build(self) -> Env:
        """A new copy, or `Stop`."""
        self.watch("constructor", 0, 0)
        try:
            with packages_of(self.name):
                made: Any = self.make()
            require_one_agent(made, self.name)
        except EnvironmentRefused as error:
            raise Stop(refusal("construction", str(error))) from error
        except Exception as error:  # whatever a user's constructor raises
            fault = fault_of(error, "constructor")
            fix = "correct the line below"
            raise Stop(
                Finding("errors", "defect", "no exception in the constructor", fault.error, fix, trace=fault.trace)
            ) from error
        parts = ("observation_space", "action_space", "reset", "step")
        missing = [part for part in parts if not hasattr(made, part)]
        if missing or isinstance(made, gymnasium.vector.VectorEnv):
            got = (
                f"{type(made).__name__} without {', '.join(missing)}" if missing else f"{type(made).__name__}, a vector"
            )
            fix = "subclass gymnasium.Env and set both spaces in __init__, or name a function that returns one"
            if not missing:
                fix = "annotate the function with `-> gymnasium.vector.VectorEnv`, and it is examined as one"
            raise Stop(Finding("construction", "defect", "a gymnasium.Env from its constructor", got, fix))
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

    def episode_seed(self, number: int) -> int:
        """As training would choose it."""
        return int(seed_of(self.seed, np.array([0]), np.array([number]))[0])

    def play(
        self, env: Env, number: int, *, most: int, deadline: float, actions: Iterator[Any] | None = None
    ) -> Episode:
        """One episode with the actions that belong to its number, or with these."""
        chosen = Actions(env.action_space, seed=self.seed)
        return play_episode(
            env,
            chosen.of(number) if actions is None else actions,
            chosen.convert,
            number=number,
            seed=self.episode_seed(number),
            most_steps=most,
            watch=self.watch,
            deadline=deadline,
        )

    @property
    def recording(self) -> Recording:
        """What the environment does under random actions; played once."""
        if self.recorded is None:
            self.recorded = self._record()
        return self.recorded

    def _record(self) -> Recording:
        env, deadline = self.build(), time.monotonic() + self.seconds
        spec = getattr(env, "spec", None)
        limit = None if spec is None else spec.max_episode_steps
        wrapped = [one for one in chain(env) if isinstance(one, gymnasium.wrappers.TimeLimit)]
        limits = own_limits(one for one in chain(env) if one not in wrapped)
        found = Recording(env.observation_space, env.action_space, [], limit if wrapped else None, limits)
        size = int(np.prod(env.observation_space.shape or (1,))) * 8
        left, faults = min(self.steps, max(20, MOST_BYTES // size)), 0
        while left > 0 and faults < MOST_FAULTS and (time.monotonic() < deadline or not found.episodes):
            episode = self.play(env, len(found.episodes), most=left, deadline=deadline)
            found.episodes.append(episode)
            left -= max(1, episode.length)
            if episode.fault is not None:
                faults += 1
                _close(env)
                env = self.build()
        _close(env)
        return found


def _close(env: Env) -> None:
    with contextlib.suppress(Exception):  # closing has a stage of its own
        env.close()


def refusal(check: str, text: str) -> Finding:
    """A refusal of ours, which says what was expected, what came and what to do, as a finding.

    >>> refusal("spaces", "Maze: expected two bounds, got one; set both").fix
    'set both'
    """
    sentence, _, fix = text.partition("\n")[0].rpartition("; ")
    expected, _, got = sentence.partition(", got ")
    return Finding(check, "defect", expected.partition("expected ")[2] or expected, got, fix)
