"""The two channels of a learner: to its runners, and to the supervisor.

Runners call their learner (`LongPoll`): deliveries go one way, parameters and the reason to stop the other. With `in_step` a runner calls
at every look instead, which is as new as can be: for lock-step, where runs are compared bit by bit.

The supervisor calls every learner (`SupervisorLink.exchange`): rows, steps and states go one way; others' steps, orders, shards and the
reason to stop the other. A learner that is killed loses what it has not told yet, some hundredths of a second of rows.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from laser_rl.cluster.calls import Answer, AnswerLost, LongPoll, awaited, ray
from laser_rl.cluster.shard import ShardClient
from laser_rl.metrics.rows import Kind, Value
from laser_rl.metrics.standing import Exploit
from laser_rl.replay.encoded_unrolls import unseal
from laser_rl.replay.memory_layout import Packed
from laser_rl.training.stall import PATIENCE_S, StallWarning, join
from laser_rl.training.stop import Stop
from laser_rl.types import Episode, UnrollLayout

log = logging.getLogger("laser_rl.training")
SUPERVISOR = "supervisor"  # the thread of a learner's actor that answers the supervisor
NEWS_S = 0.25  # between two answers of a learner
HURRY_S = 0.05  # at least, where the member moves fast, or waits for others
CALLS_PER_S = 1000  # of all members together, so that the supervisor keeps up
LISTEN_S, FAILED_S = 0.01, 5.0  # between two looks of the supervisor's thread, and after one that failed
Order = tuple[Exploit, Any]  # a copy to make, and a list with a reference to the donor's state
MetricsRow = tuple[Kind, int, int, dict[str, Value]]  # what `Sink.write` gets
Shards = tuple[int, Sequence[ShardClient]]  # which list of shards this is, and the shards
RUNNERS = "runners"  # the threads of a learner's actor that answer its runners
STAY_S = 10.0  # how long a question stays with the learner
SENT_BYTES = 64 << 10  # of parameters that go along with calls; a reference costs calls of its own, of all who hold it
GONE = "the learner of this runner is gone"
WHO = "a runner"


class RemoteDelivery(NamedTuple):
    """What a runner sends to its learner."""

    encoded: Packed
    episodes: list[Episode]
    steps: int
    faults: dict[str, int]  # that the environments survived since the last delivery


# Number (a copy of a peer has no new version), version; the parameters, or a list of one reference.
_Published = tuple[int, int, Any]


class RunnerInbox:
    """The learner's end; `room` deliveries may wait. Runners call `put` and `newer`, each in a thread of the learner's actor."""

    def __init__(self, room: int, layout: UnrollLayout) -> None:
        self._room, self._layout = room, layout
        self._deliveries: deque[RemoteDelivery] = deque()
        self._next: dict[str, int] = {}  # number of the delivery that each stream sends next
        self._published: _Published | None = None
        self._reason: str | None = None
        self._changed = threading.Condition()

    def put(self, stream: str, number: int, delivery: RemoteDelivery, timeout_s: float) -> bool:
        """Leave a delivery for the learner; True also if it has come before. False if there was no room in time."""

        def is_known() -> bool:
            return self._next.get(stream, 0) > number

        with self._changed:
            if not self._changed.wait_for(lambda: is_known() or len(self._deliveries) < self._room, timeout_s):
                return False
            if not is_known():
                self._next[stream] = number + 1
                self._deliveries.append(delivery)
                self._changed.notify_all()
        return True

    def take(self, timeout_s: float) -> tuple[Packed, RemoteDelivery] | None:
        """The oldest delivery and its unrolls for `Mixer.queue`; None if none came in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._deliveries), timeout_s):
                return None
            taken = self._deliveries.popleft()
            self._changed.notify_all()
        return unseal(self._layout, taken.encoded), taken

    def publish(self, parameters: Tensor, version: int) -> None:
        # What is sent is never written again: a reader sees all of one version, whatever is published meanwhile. A reference
        # goes in a list, so that Ray does not look into it. Runners map the array in the object store of their node.
        values = parameters.detach().to("cpu").numpy()
        sent = values.copy() if values.nbytes <= SENT_BYTES else [ray().put(values)]
        with self._changed:
            self._published = 1 + (self._published[0] if self._published else 0), version, sent
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        with self._changed:
            self._reason = reason
            self._changed.notify_all()

    def newer(self, number: int, timeout_s: float) -> tuple[str | None, _Published | None]:
        """The reason to stop, if there is one, and later parameters than these, if there are some in time."""

        def later() -> _Published | None:
            return self._published if self._published is not None and self._published[0] > number else None

        with self._changed:
            self._changed.wait_for(lambda: self._reason is not None or later() is not None, timeout_s)
            return self._reason, later()


class RemoteLearner:
    """A runner's end: a `ParameterMailbox` and a `StopSignal`. A learner that is gone is a reason to stop, too."""

    def __init__(self, learner: Any, *, in_step: bool = False) -> None:
        self._learner, self._in_step = learner, in_step
        self._known, self._newest, self._reason = 0, None, None  # type: tuple[int, _Published | None, str | None]
        self._poll: LongPoll[tuple[str | None, _Published | None]] = LongPoll(lambda: self._newer(STAY_S))

    def _newer(self, timeout_s: float) -> Answer[tuple[str | None, _Published | None]]:
        return Answer(self.method("newer").remote(self._known, timeout_s))

    def method(self, name: str) -> Any:
        return getattr(self._learner, name).options(concurrency_group=RUNNERS)

    @property
    def reason(self) -> str | None:
        if self._reason is None:
            self._look()
        return self._reason

    def _look(self) -> None:
        found = self._newer(0.0).result(STAY_S) if self._in_step else self._poll.poll()
        if found is not None:
            self._reason, newest = found
            self._newest = newest or self._newest
        if self._poll.gone:
            self._reason = GONE

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy into `into` if there are newer parameters; returns the version that is now there."""
        self._look()
        if self._newest is None or self._newest[0] <= self._known:
            return newer_than
        (number, version, parameters), self._newest = self._newest, None
        if isinstance(parameters, list):
            try:
                parameters = awaited(Answer(parameters[0]), WHO, "parameters from its learner")
            except (AnswerLost, TimeoutError):  # its learner has died, and took it along
                return newer_than
        # By NumPy (a runner acts on a CPU): without a copy in between, and without torch's warning of a read-only array.
        into.detach().numpy()[...] = parameters
        self._known = number
        return version

    def shards(self) -> Sequence[ShardClient]:
        """The shards of the replay that the learner knows; none if it does not answer."""
        try:
            return awaited(Answer(self.method("shards").remote()), WHO, "its learner to name the shards")
        except (AnswerLost, TimeoutError):
            return ()


class News(NamedTuple):
    """What a learner tells the supervisor."""

    number: int  # of this news in the learner's life, from 0 on
    steps: int
    rows: Sequence[MetricsRow]
    state: bytes | None
    shards: int  # the list of shards that it knows


class Told(NamedTuple):
    """What the supervisor tells a learner."""

    slowest: int  # steps of the member that is furthest behind
    reason: str | None  # to stop
    order: Order | None = None
    shards: Shards | None = None  # if they have changed


class SupervisorLink:
    """A learner's side, and a `Sink` for the member's rows. Thread safe.

    The more members there are, the less often each answers; after `often` steps of the member the others should hear of it.
    """

    def __init__(self, stop: Stop, members: int, steps: int, often: int = 1, shards: Shards = (0, ())) -> None:
        self._stop, self._often, self._steps, self._told_steps = stop, often, steps, steps
        self._every_s, self._least_s = (max(least, members / CALLS_PER_S) for least in (NEWS_S, HURRY_S))
        self._lock, self._wake, self._answered = threading.Lock(), threading.Event(), 0.0
        self._rows: list[MetricsRow] = []
        self._state: bytes | None = None
        self._last, self._heard = News(-1, 0, (), None, 0), -1  # the newest news; the number of those that have arrived
        self.slowest, self.shards = 0, shards
        self.order: Order | None = None  # the newest

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        with self._lock:
            self._rows.append((kind, step, update, dict(values)))

    def flush(self) -> None:
        """See `Sink`; rows are never kept longer than `NEWS_S`."""

    def move(self, steps: int) -> None:
        self._steps = steps
        if steps - self._told_steps >= self._often:
            self.hurry()

    def hurry(self) -> None:
        """Answer soon: this member waits for others, or others for it."""
        self._wake.set()

    def publish(self, state: bytes) -> None:
        with self._lock:
            self._state = state

    def exchange(self, number: int, told: Told) -> News:
        """The supervisor's call. News whose answer was lost are told again: `number` is that of the news that it expects."""
        self.slowest, self.order, self.shards = told.slowest, told.order, told.shards or self.shards
        if told.reason is not None:
            self._stop.interrupt(told.reason)
        self._heard = number - 1
        if number == self._last.number:
            return self._last
        self._wake.wait(self._every_s)
        time.sleep(max(0.0, self._answered + self._least_s - time.monotonic()))
        self._wake.clear()
        with self._lock:
            self._last = News(number, self._steps, self._rows, self._state, self.shards[0])
            self._rows, self._state = [], None
        self._told_steps, self._answered = self._last.steps, time.monotonic()
        return self._last

    def close(self) -> None:
        """Wait until the supervisor has heard everything."""
        waiting = StallWarning("a learner", "the supervisor to hear its last rows")
        while self._rows or self._state is not None or self._heard < self._last.number:
            self._wake.set()
            time.sleep(PATIENCE_S / 10)
            waiting.again()
        waiting.over()


@dataclass
class _Link:
    poll: LongPoll[News]
    number: int = 0  # of the news that come next
    shards: int = -1  # the list that the learner knows


class LearnerLinks:
    """The supervisor's side, in a thread of its own: members hear of each other also while a checkpoint is written."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.reason: str | None = None  # to stop
        self.shards: list[Shards] = [(0, ()) for _ in steps]  # of each member
        self.steps = list(steps)
        # The copy that each is to make: it hears the newest order with every call, and knows by its number whether it has obeyed.
        self.orders: dict[int, Order] = {}
        self._links: dict[int, _Link] = {}
        self._rows: list[MetricsRow] = []
        self._states: dict[int, bytes] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    def connect(self, member: int, learner: Any) -> None:
        """From now on listen to this learner of a member, and to none before it."""

        def ask() -> Answer[News]:
            order, shards = self.orders.get(member), self.shards[member]
            told = Told(min(self.steps), self.reason, order, shards if shards[0] > link.shards else None)
            return Answer(learner.exchange.options(concurrency_group=SUPERVISOR).remote(link.number, told))

        link = _Link(LongPoll(ask))
        with self._lock:
            self._links[member] = link

    def collect(self) -> tuple[list[MetricsRow], list[int], dict[int, bytes]]:
        """All that has come since the last time: rows, steps of each member, and states by member."""
        with self._lock:
            collected = self._rows, list(self.steps), self._states
            self._rows, self._states = [], {}
        return collected

    def close(self) -> None:
        self._over.set()
        join(self._thread, "the supervisor", "a call to a learner")

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                links = list(self._links.items())
            try:
                heard = [self._listen(member, link) for member, link in links]
            except Exception as error:  # without a head Ray raises anything; then the supervisor ends the run
                log.warning("the learners cannot be heard: %s", next(iter(str(error).splitlines()), repr(error)))
                self._over.wait(FAILED_S)
                continue
            if not any(heard):
                self._over.wait(LISTEN_S)

    def _listen(self, member: int, link: _Link) -> bool:
        news = link.poll.poll()
        if news is None:
            return False
        with self._lock:
            if self._links[member] is link:
                link.number, link.shards = news.number + 1, news.shards
                # Steps that were made are made, whatever of their learning is lost.
                self.steps[member] = max(self.steps[member], news.steps)
                self._rows += news.rows
                if news.state is not None:
                    self._states[member] = bytes(news.state)
        return True
