"""One Python environment in its slot: its episodes, its faults, its row. Steps in a thread and in a worker process are this code."""

import signal
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.block import RowBlock
from laser_rl.envs.border import BadValue, Border, Env, Tell
from laser_rl.envs.construct import StreamBroken, packages_of, require_one_agent
from laser_rl.envs.records import EnvironmentSpec, seed_of
from laser_rl.errors import EnvironmentEnded, EnvironmentFailed, EnvironmentRefused

COUNTERS = ("restarts", "timeouts", "errors", "dropped_episodes", "lost_episodes")
RESTARTS, TIMEOUTS, ERRORS, DROPPED, LOST = range(len(COUNTERS))
IDLE, CONSTRUCTING, RESETTING, STEPPING, PAUSING = range(5)
MOST_FAILURES = 5  # in a row, without one good step in between
FIRST_PAUSE_S = 0.1
SEEDS_AT_ONCE = 64
EXITS = (
    SystemExit,
    KeyboardInterrupt,
)  # no part of Exception: what they pass through would take them for the end that the user wants

OnBadValue = Literal["fail", "drop"]
Array = NDArray[np.generic]


def exit_of(error: BaseException, name: str) -> BaseException:
    """What to raise instead of one of `EXITS` that comes out of an environment: the end of a program is not the environment's to decide.

    A Ctrl-C of the user's own stays what it is. It can only be one in the main thread, where Python's own handler is at work; where ours
    is, it raises a class of its own.
    """
    if isinstance(error, KeyboardInterrupt):
        handled = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        here = threading.current_thread() is threading.main_thread()
        if type(error) is not KeyboardInterrupt or (here and not handled):
            return error
    what = ": ".join(filter(None, (type(error).__name__, str(error))))
    return EnvironmentEnded(
        f"{name}: the environment asked the program to end ({what}); let it return terminated or truncated, or raise an Exception"
    )


class Slot:
    """Steps one environment and writes its rows at its place in a block.

    A fault in the environment ends its episode and begins another one, in a new copy; `report` receives the traceback, `watch` each
    entry into the environment's own code, and `warn` what is odd but goes on (None: it is logged here).
    """

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        name: str,
        slot: int,
        seed: int,
        counts: NDArray[np.int64],
        on_bad_value: OnBadValue = "fail",
        report: Callable[[str], None] = lambda text: None,
        warn: Tell | None = None,
        watch: Callable[[int, int], None] = lambda phase, slot: None,
        episode: int = -1,
        broken: bool = False,
    ) -> None:
        self._make, self._name, self._slot, self._seed = make, name, slot, seed
        self._counts, self._on_bad_value, self._report, self._watch = counts, on_bad_value, report, watch
        self._episode, self._broken, self._warn = episode, broken, warn
        self._env: Env | None = None
        self._failures, self._open, self._digest, self._lives = 0, False, 0, 0
        self._fresh, self._lost_life = True, False
        self._seeds: list[int] = []
        self._seed_block = -1
        self._border = self._construct_patiently()
        self._out: Array = np.zeros(0)
        self._bytes = memoryview(b"")

    @property
    def spec(self) -> EnvironmentSpec:
        """What the environment looks like."""
        return self._border.spec

    def bind(self, block: RowBlock, index: int) -> None:
        """Write rows at `index` of `block` from now on."""
        self._block, self._index = block, index
        self._out = block.observation[index]
        self._bytes = self._out.reshape(-1).view(np.uint8).data
        self._border.bind(self._out)

    def advance(self, action: Any) -> None:
        """The next row: of this episode, or of the next one where it had ended (then the action is ignored)."""
        if not self._open:
            self._begin()
            return
        try:
            self._transition(action)
            self._failures = 0
        except BadValue as bad:
            self._broken = True
            self._refuse_or_drop(bad)
            self._begin()
        except EnvironmentRefused:
            raise
        except StreamBroken:
            self._broken = True
            self._begin()
        except Exception:  # whatever a user's environment raises
            self._broken = True
            self._failed(traceback.format_exc())
            self._begin()

    def rebuild(self, episode: int, actions: Array, digest: int) -> None:
        """Play an episode again up to where it was; begin a new one if that does not give the same observations."""
        if episode < 0:
            self._begin()
            return
        self._episode = episode - 1
        try:
            self._first_row()
            same = self._play(actions) and self._digest == digest
        except EnvironmentRefused:
            raise
        except Exception:  # the environment went another way: the digest could not agree either
            self._drop_environment()
            same = False
        if not same:
            self._counts[LOST] += 1
            self._episode, self._broken = episode, True
            self._begin()

    def _play(self, actions: Array) -> bool:
        for action in actions:
            if not self._open:
                return False
            self._transition(action)
        return True

    def close(self) -> None:
        """Close the environment."""
        self._drop_environment()

    def _construct_patiently(self) -> Border:
        while True:
            try:
                return self._construct()
            except EnvironmentRefused:
                raise
            except Exception:  # whatever a user's constructor raises
                self._failed(traceback.format_exc())

    def _construct(self) -> Border:
        self._watch(CONSTRUCTING, self._slot)
        with packages_of(self._name):
            made: Any = self._make()
        require_one_agent(made, self._name)
        parts = ("observation_space", "action_space", "reset", "step")
        if isinstance(made, gymnasium.vector.VectorEnv) or not all(hasattr(made, part) for part in parts):
            raise EnvironmentRefused(
                f"{self._name}: expected a gymnasium.Env from its constructor, got {type(made).__name__}; "
                "subclass gymnasium.Env, or hand in a function that returns one (a VectorEnv is handed in itself)"
            )
        self._env = made
        return Border(made, self._name, self._slot, self._warn)

    def _reconstruct(self) -> None:
        border = self._construct()
        if border.spec != self._border.spec:
            raise EnvironmentRefused(
                f"{self._name}: expected every copy to have the same spaces, got {self._border.spec} and then {border.spec}; "
                "make the constructor give the same spaces each time"
            )
        self._border = border
        self._border.bind(self._out)

    def _begin(self) -> None:
        self._open = False
        while not self._open:
            try:
                if self._env is None:
                    self._reconstruct()
                self._first_row()
            except BadValue as bad:
                self._refuse_or_drop(bad)
            except EnvironmentRefused:
                raise
            except Exception:  # whatever a user's environment raises
                self._failed(traceback.format_exc())

    def _first_row(self) -> None:
        assert self._env is not None  # noqa: S101  (for mypy; both callers made it)
        # A new number for each attempt: a seed that raises would raise again.
        self._episode += 1
        seed = self._seed_now()
        self._border.starting(self._episode)
        self._watch(RESETTING, self._slot)
        info = self._border.after_reset(self._env.reset(seed=seed))
        block, index = self._block, self._index
        block.episode[index], block.seed[index] = self._episode, seed
        block.is_first[index], block.restarted[index] = True, self._broken
        block.reward[index] = 0.0
        block.terminated[index] = block.truncated[index] = block.lost_life[index] = False
        self._digest = zlib.crc32(self._bytes)
        block.digest[index] = self._digest
        self._lives = self._border.lives(info, 0) if info else 0
        self._open, self._broken, self._fresh, self._lost_life = True, False, True, False

    def _seed_now(self) -> int:
        """The seeds of the next episodes are mixed together: one by one they would cost as much as a small environment's reset."""
        block, place = divmod(self._episode, SEEDS_AT_ONCE)
        if block != self._seed_block:
            episodes = np.arange(block * SEEDS_AT_ONCE, (block + 1) * SEEDS_AT_ONCE)
            self._seeds = seed_of(self._seed, np.full(SEEDS_AT_ONCE, self._slot), episodes).tolist()
            self._seed_block = block
        return self._seeds[place]

    def _transition(self, action: Any) -> None:
        assert self._env is not None  # noqa: S101  (for mypy; an open episode has an environment)
        self._watch(STEPPING, self._slot)
        result = self._env.step(self._border.action.convert(action))
        reward, terminated, truncated, info = self._border.after_step(result, self._env)
        # A store into an array costs as much as a good part of a small environment's step: only what changes is written.
        block, index = self._block, self._index
        if self._fresh:
            block.is_first[index] = block.restarted[index] = self._fresh = False
        block.reward[index] = reward
        if info or self._lost_life:
            self._count_lives(info)
        self._digest = zlib.crc32(self._bytes, self._digest)
        block.digest[index] = self._digest
        if terminated or truncated:
            block.terminated[index], block.truncated[index] = terminated, not terminated
            self._open = False

    def _count_lives(self, info: Mapping[str, Any]) -> None:
        lives = self._border.lives(info, self._lives)
        self._lost_life = lives < self._lives
        self._block.lost_life[self._index] = self._lost_life
        self._lives = lives

    def _refuse_or_drop(self, bad: BadValue) -> None:
        if self._on_bad_value == "fail":
            raise EnvironmentRefused(
                f"{self._border.where()}: expected finite numbers, got {bad.value} in {bad.key}; "
                "correct the environment, or set on_bad_value to 'drop' to discard such episodes"
            ) from bad
        self._counts[DROPPED] += 1
        self._count_failure(f"{self._border.where()}: {bad.value} in {bad.key}")

    def _failed(self, text: str) -> None:
        self._counts[ERRORS] += 1
        self._report(text)
        self._drop_environment()
        self._count_failure(text)
        self._counts[RESTARTS] += 1

    def _count_failure(self, text: str) -> None:
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise EnvironmentFailed(
                f"{self._name}: slot {self._slot} failed {self._failures} times in a row, the last time with the error below; "
                f"correct the environment (`laser check-env` steps it alone)\n\n{text}"
            )
        if self._failures > 1:
            self._watch(PAUSING, self._slot)
            time.sleep(FIRST_PAUSE_S * 2 ** (self._failures - 2))

    def _drop_environment(self) -> None:
        env, self._env = self._env, None
        self._open = False
        if env is not None:
            try:
                env.close()
            except Exception:  # it is being thrown away; what it says now helps no user
                return
