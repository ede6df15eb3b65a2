"""Delivers what one runner makes to a shard: in order, each unroll once, several deliveries under way.

A delivery is kept until its shard has acknowledged it, and is sent again to the shard that replaces a lost one. So nothing is lost but what
a shard had acknowledged and took with it, and what the runner itself had not had acknowledged when it died.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from laser_rl.cluster.calls import ActorGone, Answer, AnswerLost
from laser_rl.cluster.shard import ShardClient
from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.training.stall import PATIENCE_S, StallWarning

UNDER_WAY = 4  # deliveries; a call takes a millisecond, an insert less
ANSWER_S = 60.0  # a shard that lives answers in milliseconds
NO_SHARD_S = 0.02  # between two looks for one


@dataclass
class _Sent:
    number: int  # of the first unroll
    encoded: EncodedUnrolls
    answer: Answer[int] | None = None  # None: to be sent, or to be sent again


class ReplayWriter:
    """One stream of unrolls. Used by one thread.

    Args:
        shard: returns the shard that this stream goes to now, None while there is none. Asked again when a shard is lost.
        stream: a name that no other stream has, also no earlier life of the same runner: "2/runner-7/life-1".
    """

    def __init__(self, shard: Callable[[], ShardClient | None], stream: str) -> None:
        self._next_shard, self.stream = shard, stream
        self._shard: ShardClient | None = None
        self._lost: set[int] = set()
        self._waiting: StallWarning | None = None
        self._under_way: deque[_Sent] = deque()  # not acknowledged, oldest first
        self.sent = self.acknowledged = 0  # the number of the next unroll

    def send(self, encoded: EncodedUnrolls, timeout_s: float) -> bool:
        """Take a delivery; False if too many were under way for so long, then nothing was taken. True is no acknowledgement yet."""
        if not self._wait(UNDER_WAY - 1, timeout_s):
            return False
        self._under_way.append(_Sent(self.sent, encoded))
        self.sent += encoded.unrolls
        self._move()
        return True

    def flush(self, timeout_s: float) -> bool:
        """True if everything was acknowledged in time."""
        return self._wait(0, timeout_s)

    def _wait(self, most: int, timeout_s: float) -> bool:
        """Wait until at most so many deliveries are under way."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._move()
            if len(self._under_way) <= most:
                if self._waiting is not None:
                    self._waiting.over()
                self._waiting = None
                return True
            self._waiting = self._waiting or StallWarning(f"stream {self.stream}", "")
            self._waiting.whom = "a shard of the replay to take its unrolls"
            if self._shard is not None:
                self._waiting.whom = f"{self._shard} to acknowledge unroll {self.acknowledged}"
            self._waiting.again()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._pause(min(left, PATIENCE_S))

    def _pause(self, seconds: float) -> None:
        """Until the oldest delivery is answered, or for so long."""
        answer = self._under_way[0].answer
        if answer is None:
            time.sleep(min(seconds, NO_SHARD_S))
            return
        with contextlib.suppress(TimeoutError, AnswerLost):  # `_move` looks again
            answer.result(timeout=seconds)

    def _move(self) -> None:
        """Take up what was answered, and send what is to be sent, without waiting."""
        while self._under_way and (answer := self._under_way[0].answer) is not None and answer.done():
            if not self._is_acknowledged(answer):
                self._shard = None
                for sent in self._under_way:
                    sent.answer = None
        if self._shard is None and self._under_way:
            shard = self._next_shard()
            self._shard = None if shard is None or shard.number in self._lost else shard
        for sent in self._under_way:
            if sent.answer is None and self._shard is not None:
                sent.answer = self._shard.insert(self.stream, sent.number, sent.encoded, self.acknowledged)

    def _is_acknowledged(self, answer: Answer[int]) -> bool:
        """False if all has to be sent again: the shard is gone, did not answer, or lacks what was sent before."""
        try:
            expected = answer.result(timeout=ANSWER_S)
        except (AnswerLost, TimeoutError) as error:  # a TimeoutError: the shard waits for a reader that holds its lock
            if isinstance(error, ActorGone) and self._shard is not None:
                self._lost.add(self._shard.number)
            return False
        before = self.acknowledged
        while self._under_way and (end := self._under_way[0].number + self._under_way[0].encoded.unrolls) <= expected:
            self.acknowledged = end
            self._under_way.popleft()
        return self.acknowledged > before
