"""Delivers what one runner makes to a shard: in order, each unroll once, several parcels under way.

A parcel is kept until its shard has acknowledged it, and sent again to whoever takes the shard's place. So nothing is lost but what a
shard had acknowledged and took with it, and what the runner itself had not had acknowledged when it died.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from laser_rl.cluster.client import Answer, AnswerLost, ShardClient, ShardLost
from laser_rl.cluster.shard import Receipt
from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.training.stall import PATIENCE_S, StallWarning

UNDER_WAY = 4  # parcels; a call takes a millisecond, an insert less
ANSWER_S = 60.0  # of a shard that lives: milliseconds
NO_SHARD_S = 0.02  # between two looks for one


@dataclass
class _Sent:
    number: int
    parcel: EncodedUnrolls
    answer: Answer[Receipt] | None = None  # None: to be sent
    tries: int = 0

    @property
    def end(self) -> int:
        return self.number + self.parcel.unrolls


class ReplayWriter:
    """One stream of unrolls. Used by one thread.

    Args:
        home: the shard that this stream goes to now, None while there is none. Asked again whenever a shard is lost.
        stream: a name that nobody else has, also no earlier life of the same runner: "2/runner-7/life-1".
        under_way: parcels that may wait for their acknowledgement; after that `send` waits.
        number: of the first unroll.
        on_receipt: hears of every acknowledgement.

    >>> from laser_rl.replay.encoded_unrolls import seal
    >>> from laser_rl.replay.records import pack
    >>> from laser_rl.cluster.in_process_shard import NearShard
    >>> from laser_rl.cluster.shard import Shard, ShardPlan
    >>> from laser_rl.types import UnrollLayout, empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> shard = NearShard(Shard(ShardPlan(layout, 100, number=0)))
    >>> courier = ReplayWriter(lambda: shard, "runner 5")
    >>> courier.send(seal(pack(layout, empty_unrolls(layout, 8)), "raw"), timeout_s=5.0), courier.flush(timeout_s=5.0)
    (True, True)
    >>> courier.sent, courier.acknowledged
    (8, 8)
    """

    def __init__(
        self,
        home: Callable[[], ShardClient | None],
        stream: str,
        *,
        under_way: int = UNDER_WAY,
        number: int = 0,
        on_receipt: Callable[[ShardClient, Receipt], None] = lambda shard, receipt: None,
    ) -> None:
        self._home, self.stream, self._most, self._on_receipt = home, stream, under_way, on_receipt
        self._shard: ShardClient | None = None  # at which the stream is open
        self._opening: tuple[ShardClient, Answer[int]] | None = None
        self._waiting: StallWarning | None = None
        self._lost: set[int] = set()
        self._parcels: deque[_Sent] = deque()  # not acknowledged, oldest first
        self.sent = self.acknowledged = number  # how many unrolls, or rather the number of the next
        self.resent = 0  # parcels

    def send(self, parcel: EncodedUnrolls, timeout_s: float) -> bool:
        """False if no room was free in time: then nothing was taken, ask again. True is no acknowledgement yet."""
        if not self._wait(self._most - 1, timeout_s):
            return False
        self._parcels.append(_Sent(self.sent, parcel))
        self.sent += parcel.unrolls
        self._move()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Whether everything was acknowledged in time."""
        return self._wait(0, timeout_s)

    def _wait(self, most: int, timeout_s: float) -> bool:
        """Until at most so many parcels are not acknowledged."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._move()
            if len(self._parcels) <= most:
                if self._waiting is not None:
                    self._waiting.over()
                self._waiting = None
                return True
            self._waiting = self._waiting or StallWarning(f"stream {self.stream}", "")
            self._waiting.whom = self._whom()
            self._waiting.again()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._pause(min(left, PATIENCE_S))

    def _whom(self) -> str:
        if self._shard is None:
            return "a shard of the replay to take its unrolls"
        return (
            f"shard {self._shard.number} of the replay on {self._shard.where} to acknowledge unroll {self.acknowledged}"
        )

    def _pause(self, seconds: float) -> None:
        """Until something is answered, or for so long."""
        answer = self._opening[1] if self._opening is not None else self._parcels[0].answer
        if answer is None:
            time.sleep(min(seconds, NO_SHARD_S))
            return
        with contextlib.suppress(TimeoutError, AnswerLost):  # `_move` looks again
            answer.result(timeout=seconds)

    def _move(self) -> None:
        """Take up what was answered, send what is to be sent; waits for nothing."""
        while self._parcels and (answer := self._parcels[0].answer) is not None and answer.done():
            if self._taken_up(answer):
                continue
            for parcel in self._parcels:
                parcel.answer = None
            break
        if any(parcel.answer is None for parcel in self._parcels):
            self._send_all()

    def _taken_up(self, answer: Answer[Receipt]) -> bool:
        """Whether the stream goes on; False if it has to be opened again."""
        try:
            receipt = answer.result(timeout=ANSWER_S)
        except (AnswerLost, TimeoutError) as error:  # or a reader of its memory has stopped, and it waits for that
            if isinstance(error, ShardLost) and self._shard is not None:
                self._lost.add(self._shard.number)
            self._shard = None
            return False
        if self._shard is not None:
            self._on_receipt(self._shard, receipt)
        if receipt.expected is None or receipt.expected < self._parcels[0].end:
            self._shard = None  # it does not know us, or lacks what was sent before: ask where to go on
            return False
        self._acknowledge(receipt.expected)
        return True

    def _acknowledge(self, expected: int) -> None:
        while self._parcels and self._parcels[0].end <= expected:
            self.acknowledged = self._parcels.popleft().end

    def _send_all(self) -> None:
        if self._shard is None:
            self._open()
        for parcel in self._parcels if self._shard is not None else ():
            if parcel.answer is None and self._shard is not None:
                parcel.answer = self._shard.insert(self.stream, parcel.number, parcel.parcel)
                self.resent += parcel.tries > 0
                parcel.tries += 1

    def _open(self) -> None:
        """Find out at whom to go on, and where."""
        if self._opening is None:
            shard = self._home()
            if shard is None or shard.number in self._lost:
                return
            self._opening = shard, shard.open(self.stream, self._parcels[0].number)
        shard, answer = self._opening
        if not answer.done():
            return
        self._opening = None
        try:
            expected = answer.result(timeout=ANSWER_S)
        except AnswerLost as error:
            if isinstance(error, ShardLost):
                self._lost.add(shard.number)
            return
        self._shard = shard
        self._acknowledge(expected)
