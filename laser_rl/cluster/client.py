"""A shard as others see it: every call is answered later, or never."""

import time
from typing import Protocol, TypeVar

from laser_rl.cluster.shard import Gathered, Receipt, ShardReport
from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.replay.shared import Ids
from laser_rl.training.stall import PATIENCE_S, StallWarning

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AnswerLost(Exception):
    """No answer will come to this call; whether it was carried out is not known. The shard may live."""


class ShardLost(AnswerLost):
    """The shard is gone, with all that it held."""


class Answer(Protocol[T_co]):
    """What will come; a `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """Whether `result` would not wait."""

    def result(self, timeout: float) -> T_co:
        """TimeoutError if it has not come by then; `AnswerLost` or `ShardLost` if it never will."""


class ShardClient(Protocol):
    """The methods of `Shard`, from afar; `actors.RayShard` for one in a cluster."""

    @property
    def number(self) -> int:
        """Of the shard; a replacement has another."""

    @property
    def where(self) -> str:
        """For messages: on which node."""

    @property
    def capacity(self) -> int:
        """In unrolls."""

    def open(self, stream: str, number: int) -> Answer[int]:
        """See `Shard`, as for all of them."""

    def insert(self, stream: str, number: int, parcel: EncodedUnrolls) -> Answer[Receipt]:
        """Deliver."""

    def gather(self, ids: Ids) -> Answer[Gathered]:
        """Copies of unrolls."""

    def report(self) -> Answer[ShardReport]:
        """About itself."""


def awaited(answer: Answer[T], who: str, whom: str, timeout_s: float) -> T:
    """The answer; who waits says so. TimeoutError after `timeout_s`, or if that is the answer; `AnswerLost` if it will never come.

    >>> from concurrent.futures import Future
    >>> answer = Future()
    >>> answer.set_result(5)
    >>> awaited(answer, "the learner", "shard 3", timeout_s=1.0)
    5
    """
    deadline, waiting = time.monotonic() + timeout_s, StallWarning(who, whom)
    while True:
        left, there = deadline - time.monotonic(), answer.done()
        try:
            found = answer.result(timeout=max(0.0, min(PATIENCE_S, left)))
        except TimeoutError:
            if there:  # whoever was asked has itself waited in vain
                raise
            if left <= 0:
                raise TimeoutError(f"{who} has waited {timeout_s:.0f} s for {whom}") from None
            waiting.again()
        else:
            waiting.over()
            return found
