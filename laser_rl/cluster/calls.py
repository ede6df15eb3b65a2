"""Calls to Ray actors: each is answered later, or never.

Ray need not be installed: `ray` imports it on first use. Ray restarts none of our actors and repeats no call: only we know what a restart
means.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from laser_rl.errors import require_modules
from laser_rl.training.stall import PATIENCE_S, StallWarning

T = TypeVar("T")
CALL_S = 120.0  # an actor answers in milliseconds; one that is being started on a busy machine needs half a minute
# Before the second replacement in a row twice the first, then twice as much each time.
PAUSE_S, MOST_PAUSE_S = 1.0, 60.0


class AnswerLost(Exception):
    """No answer will come to this call. The actor may have carried it out, and may live."""


class ActorGone(AnswerLost):
    """The actor is dead, with all that it held."""


class Answer(Generic[T]):
    """The answer to a call of an actor, given the reference that the call returned."""

    def __init__(self, reference: Any) -> None:
        self._future = reference.future()

    def done(self) -> bool:
        """True if `result` would not wait; costs no call."""
        return bool(self._future.done())

    def result(self, timeout: float) -> T:
        """Raises TimeoutError if the answer has not come by then, `AnswerLost` if it never will."""
        try:
            result: T = self._future.result(timeout)
        except Exception as error:
            raise _translated(error) from None
        return result


def _translated(error: Exception) -> Exception:
    """Ray's error as one of ours; an error that the method itself raised stays what it is."""
    if not type(error).__module__.startswith("ray."):
        return error
    errors, text = ray().exceptions, next(iter(str(error).splitlines()), repr(error))
    if isinstance(error, (errors.ActorDiedError, errors.ActorUnschedulableError)):  # the latter if its node died first
        return ActorGone(text)
    if isinstance(error, (errors.RayActorError, errors.ObjectLostError, errors.RaySystemError, errors.NodeDiedError)):
        return AnswerLost(text)
    return error


def awaited(answer: Answer[T], who: str, whom: str, timeout_s: float = CALL_S) -> T:
    """Wait for an answer; logs who waits for whom, and raises TimeoutError after `timeout_s` or if that is the answer."""
    deadline, waiting = time.monotonic() + timeout_s, StallWarning(who, whom)
    while True:
        left, there = deadline - time.monotonic(), answer.done()
        try:
            found = answer.result(timeout=max(0.0, min(PATIENCE_S, left)))
        except TimeoutError:
            if there:  # the actor itself has waited in vain
                raise
            if left <= 0:
                raise TimeoutError(f"{who} has waited {timeout_s:.0f} s for {whom}") from None
            waiting.again()
        else:
            waiting.over()
            return found


class LongPoll(Generic[T]):
    """Keeps one call waiting with an actor, and calls again after each answer.

    A call takes about a millisecond, often longer than a step of an environment. So the actor answers when it has news, or after some
    seconds, and to look whether the answer has come costs no call.
    """

    def __init__(self, call: Callable[[], Answer[T]]) -> None:
        self._call = call
        self._answer: Answer[T] | None = None
        self.gone = ""  # why the actor is dead and no answer will ever come

    def poll(self, timeout_s: float = 0.0) -> T | None:
        """The actor's answer; None if none has come in time, or it was lost."""
        if self.gone:
            return None
        self._answer = self._answer or self._call()
        found, there = None, self._answer.done()
        if timeout_s == 0.0 and not there:
            return None
        try:
            found = self._answer.result(timeout_s)
        except TimeoutError:
            if not there:  # otherwise it is the answer of an actor that has itself waited in vain
                return None
        except AnswerLost as error:
            self.gone = str(error) or "unknown" if isinstance(error, ActorGone) else ""
        self._answer = None
        return found


class Backoff:
    """When to replace what dies again and again: the first time at once, then later and later.

    Starting an actor costs seconds of a core, and Ray takes half a minute to see that a node is gone, and places actors there till then.
    """

    def __init__(self) -> None:
        self.in_a_row, self._progress = 0, -1.0
        self._due = 0.0

    def count(self, progress: float) -> None:
        """It has died; another number than the last time means that it had lived well."""
        self.in_a_row = self.in_a_row + 1 if progress == self._progress else 1
        self._progress = progress
        exponent = min(self.in_a_row - 1, 10)  # a day of deaths would be too great a power
        self._due = time.monotonic() + (min(MOST_PAUSE_S, PAUSE_S * 2**exponent) if exponent else 0.0)

    def pause_s(self) -> float:
        return self._due - time.monotonic()


@functools.cache
def ray() -> Any:
    """The module `ray`, which sends no statistics home; `MissingExtra` says what to install."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    require_modules("a cluster", "cluster", "ray")
    import ray as library  # noqa: PLC0415

    return library


def start_actor(kind: type, *arguments: Any, strategy: Any, cpus: float = 0.0, **options: Any) -> Any:
    settings = {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": strategy}
    return ray().remote(**settings, **options)(kind).remote(*arguments)


def on_node(node: str) -> Any:
    ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    return NodeAffinitySchedulingStrategy(node, soft=False)


def kill(actor: Any) -> None:
    with contextlib.suppress(Exception):
        ray().kill(actor, no_restart=True)
