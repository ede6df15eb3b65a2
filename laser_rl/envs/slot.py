"""`Slot` steps one Python environment, restarts it after faults and writes its rows; serial environments and pool workers use it.

`SerialEnvironments` steps its slots one after the other in the thread that asks: the specification of the pool.
"""

import functools
import signal
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.envs import masks
from laser_rl.envs.border import BadValue, Border, Env, Warn, warn_once
from laser_rl.envs.construct import BorrowedEnv, StreamBroken, packages_of
from laser_rl.envs.records import ActionHistory, Array, Environments, Ints, RowBlock, Rows, empty_block, seed_of
from laser_rl.errors import EnvironmentEnded, EnvironmentFailed, EnvironmentRefused

COUNTERS = ("restarts", "timeouts", "errors", "dropped_episodes", "lost_episodes")
RESTARTS, TIMEOUTS, ERRORS, DROPPED, LOST = range(len(COUNTERS))
IDLE, CONSTRUCTING, RESETTING, STEPPING, PAUSING = range(5)
MOST_FAILURES = 5  # in a row, without one good step in between
FIRST_PAUSE_S = 0.1
SEEDS_AT_ONCE = 64  # one by one they would cost as much as a small environment's reset
# These do not derive from Exception: uncaught, they would look like the user's own request to exit.
EXITS = (SystemExit, KeyboardInterrupt)

OnBadValue = Literal["fail", "drop"]
Made = TypeVar("Made")


def exit_of(error: BaseException, name: str) -> BaseException:
    """The error to raise in place of one of `EXITS` from an environment: an environment must not end the program.

    A Ctrl-C of the user's own stays: one in the main thread where Python's own handler is at work, or the class that our handler raises.
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

    A fault in the environment ends its episode and begins another one, in a new copy. `warn` receives tracebacks and what is odd but goes
    on, `watch` each entry into the environment's own code.
    """

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        name: str,
        slot: int,
        seed: int,
        counts: NDArray[np.int64],
        on_bad_value: OnBadValue,
        warn: Warn,
        watch: Callable[[int, int], None] = lambda phase, slot: None,
        episode: int = -1,
        broken: bool = False,
    ) -> None:
        self._make, self._name, self._slot, self._seed = make, name, slot, seed
        self._counts, self._on_bad_value, self._watch = counts, on_bad_value, watch
        self._episode, self._broken, self._warn = episode, broken, warn
        self._env: Any = None  # an Env, unless the last one has failed
        self._made: Any = None  # the same, as it was constructed
        self._failures, self._open, self._digest, self._lives = 0, False, 0, 0
        self._fresh, self._lost_life = True, False
        self._begun: tuple[int, Any] | None = None  # the seed and the result of a reset that is still to become a row
        self._mask_in_info: bool | None = None  # not known before the first reset
        self._border = self._patiently(self._construct)
        self.spec = self._border.spec

    def bind(self, block: RowBlock, index: int) -> None:
        self._row, self._digests, self._index = block.rows, block.digest, index
        self._out = block.rows.observation[index]
        self._bytes = self._out.reshape(-1).view(np.uint8).data
        self._border.bind(self._out)

    def advance(self, action: Any) -> None:
        """The next row: of this episode, or of the next one where it had ended (then the action is ignored)."""
        if self._open:
            try:
                self._transition(action)
            except StreamBroken:
                pass
            except BadValue as bad:
                self._refuse_or_drop(bad)
            except EnvironmentRefused:
                raise
            except Exception:  # whatever a user's environment raises
                self._failed(traceback.format_exc())
            else:
                self._failures = 0
                return
            self._broken = True
        self._begin()

    def rebuild(self, episode: int, actions: Array, digest: int) -> None:
        """Play an episode again up to where it was; begin a new one if that does not give the same observations."""
        if episode < 0:
            self._begin()
            return
        self._episode = episode - 1
        try:
            self._first_row()
            for action in actions:
                if not self._open:
                    break
                self._transition(action)
            # An episode that ended too early has another digest: it covers every row.
            same = self._digest == digest
        except EnvironmentRefused:
            raise
        except Exception:  # the environment went another way: the digest could not agree either
            self.close()
            same = False
        if not same:
            self._counts[LOST] += 1
            self._episode, self._broken = episode, True
            self._begin()

    def close(self) -> None:
        """Close the environment; the next row comes from another copy."""
        env, self._env, self._made, self._begun = self._env, None, None, None
        self._open = False
        if env is not None:
            try:
                env.close()
            except Exception:  # it is being thrown away; what it says now helps no user
                return

    def _patiently(self, attempt: Callable[[], Made]) -> Made:
        while True:
            try:
                return attempt()
            except BadValue as bad:
                self._refuse_or_drop(bad)
            except EnvironmentRefused:
                raise
            except Exception:  # whatever a user's environment or its constructor raises
                self._failed(traceback.format_exc())

    def _construct(self) -> Border:
        self._watch(CONSTRUCTING, self._slot)
        with packages_of(self._name):
            made: Any = self._make()
        if not isinstance(getattr(made, "action_space", None), gymnasium.Space) or hasattr(made, "num_envs"):
            raise EnvironmentRefused(
                f"{self._name}: expected a gymnasium.Env from its constructor, got {type(made).__name__}; "
                "subclass gymnasium.Env, or hand in a function that returns one (a VectorEnv is handed in itself; multi-agent "
                "environments are not supported)"
            )
        if self._mask_in_info is None:
            self._look_for_mask(made)
        self._made, self._env = made, masks.MaskInObservation(made) if self._mask_in_info else made
        return Border(self._env, self._name, self._slot, self._warn)

    def _look_for_mask(self, env: Env) -> None:
        """Reset an environment that may have a mask of actions in its info: its spec depends on that. The first row is of this reset."""
        self._mask_in_info = False
        if masks.may_be_in_info(env.observation_space, env.action_space):
            seed = self._seed_of(self._episode + 1)
            self._watch(RESETTING, self._slot)
            try:
                result = env.reset(seed=seed)
            except Exception:  # the first row meets it again, where it is handled
                return
            finally:
                self._watch(CONSTRUCTING, self._slot)
            self._mask_in_info = masks.in_info(result)
            self._begun = seed, masks.merged(result) if self._mask_in_info else result

    def _begin(self) -> None:
        self._open = False
        self._patiently(self._first_row)

    def _first_row(self) -> None:
        if self._env is None:
            self._border = self._construct()
            if self._border.spec != self.spec:
                raise EnvironmentRefused(
                    f"{self._name}: expected every copy to have the same spaces, got {self.spec} and then {self._border.spec}; "
                    "make the constructor give the same spaces each time"
                )
            self._border.bind(self._out)
        # A new number for each attempt: a seed that raises would raise again.
        self._episode += 1
        seed = self._seed_of(self._episode)
        self._border.starting(self._episode)
        begun, self._begun = self._begun, None
        if begun is None or begun[0] != seed or (isinstance(self._made, BorrowedEnv) and self._made.turn.lost):
            self._watch(RESETTING, self._slot)
            begun = seed, self._env.reset(seed=seed)
        info = self._border.after_reset(begun[1])
        row, index = self._row, self._index
        row.episode[index], row.seed[index] = self._episode, seed
        row.is_first[index], row.restarted[index] = True, self._broken
        row.reward[index] = 0.0
        row.terminated[index] = row.truncated[index] = row.lost_life[index] = False
        self._digest = zlib.crc32(self._bytes)
        self._digests[index] = self._digest
        self._lives = self._border.lives(info, 0) if info else 0
        self._open, self._broken, self._fresh, self._lost_life = True, False, True, False

    def _seed_of(self, episode: int) -> int:
        block, place = divmod(episode, SEEDS_AT_ONCE)
        return _seeds(self._seed, self._slot, block)[place]

    def _transition(self, action: Any) -> None:
        self._watch(STEPPING, self._slot)
        result = self._env.step(self._border.to_action(action))
        reward, terminated, truncated, info = self._border.after_step(result, self._env)
        # A store into an array costs as much as a good part of a small environment's step: only what changes is written.
        row, index = self._row, self._index
        if self._fresh:
            row.is_first[index] = row.restarted[index] = self._fresh = False
        row.reward[index] = reward
        if info or self._lost_life:
            lives = self._border.lives(info, self._lives)
            self._row.lost_life[index] = self._lost_life = lives < self._lives
            self._lives = lives
        self._digest = zlib.crc32(self._bytes, self._digest)
        self._digests[index] = self._digest
        if terminated or truncated:
            row.terminated[index], row.truncated[index] = terminated, not terminated
            self._open = False

    def _refuse_or_drop(self, bad: BadValue) -> None:
        key, value = bad.args
        if self._on_bad_value == "fail":
            raise EnvironmentRefused(
                f"{self._border.where()}: expected finite numbers, got {value} in {key}; "
                "correct the environment, or set on_bad_value to 'drop' to discard such episodes"
            ) from bad
        self._counts[DROPPED] += 1
        self._count_failure(f"{self._border.where()}: {value} in {key}")

    def _failed(self, text: str) -> None:
        self._counts[ERRORS] += 1
        *frames, last = text.strip().splitlines()
        # Each distinct traceback is logged once, whatever its message says of the moment.
        key = "\n".join([*frames, last.partition(":")[0]])
        self._warn(key, f"{self._name} raised; its episode is dropped and a new copy made (logged once):\n{text}")
        self.close()
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


@functools.lru_cache(maxsize=4096)
def _seeds(seed: int, slot: int, block: int) -> list[int]:
    episodes = np.arange(block * SEEDS_AT_ONCE, (block + 1) * SEEDS_AT_ONCE)
    seeds: list[int] = seed_of(seed, np.full(SEEDS_AT_ONCE, slot), episodes).tolist()
    return seeds


class SlotEnvironments(Environments):
    """What `SerialEnvironments` and the pool have in common: copies of a Python environment, each in a `Slot`."""

    _block: RowBlock
    _history: ActionHistory
    _counts: NDArray[np.int64]

    def state_dict(self) -> Mapping[str, Array] | None:
        """The numbers of the open episodes, their actions and a digest of their rows, as of the last row that each slot handed out."""
        return self._history.state_dict()

    def counters(self, slots: Ints | None = None) -> Mapping[str, int]:
        """Faults survived so far, in all slots or in these; those of a whole worker count in its first slot."""
        counts = self._counts if slots is None else self._counts[slots]
        return dict(zip(COUNTERS, counts.sum(0).tolist(), strict=True))


class SerialEnvironments(SlotEnvironments):
    """`slots` copies of a Python environment, in this thread."""

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        slots: int,
        seed: int,
        name: str = "environment",
        on_bad_value: OnBadValue = "fail",
        **hooks: Any,  # `warn` and `watch` of each Slot
    ) -> None:
        self.slots = slots
        self._counts = np.zeros((slots, len(COUNTERS)), np.int64)
        common: dict[str, Any] = {"name": name, "seed": seed, "on_bad_value": on_bad_value}
        common |= {"warn": functools.partial(warn_once, name), **hooks}
        self._members = [Slot(make, slot=index, counts=self._counts[index], **common) for index in range(slots)]
        self.spec = self._members[0].spec
        self._block = empty_block(self.spec.observation, slots)
        for index, member in enumerate(self._members):
            member.bind(self._block, index)
        self._history = ActionHistory(slots, self.spec.action)

    def reset(self) -> Rows:
        return self.step(np.arange(self.slots), np.zeros(self.slots))

    def step(self, slots: Ints, action: Array) -> Rows:
        members = self._members
        try:
            for slot, chosen in zip(slots.tolist(), action, strict=True):
                members[slot].advance(chosen)
        except EXITS as error:
            raise exit_of(error, self.spec.name) from None
        rows = self._block.take(slots)
        self._history.note(rows, action.astype(self._history.dtype, copy=False), self._block.digest[slots])
        return rows

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        actions = self._history.load_state_dict(state)
        played: Any = zip(state["episode"].tolist(), actions, state["digest"].tolist(), strict=True)
        try:
            for member, episode in zip(self._members, played, strict=True):
                member.rebuild(*episode)
        except EXITS as error:
            raise exit_of(error, self.spec.name) from None
        rows = self._block.take(np.arange(self.slots))
        self._history.note(rows, None, self._block.digest)
        return rows

    def close(self) -> None:
        for member in self._members:
            member.close()
