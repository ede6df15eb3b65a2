"""The actors through which runners, learners and the supervisor meet: one for each member, and one for the run.

Plain classes whose methods wait without blocking each other (asyncio); Ray actors are made of them. They hold little: a few encoded
deliveries, and of large parameters only a reference. The caller says how long a method may wait; then None or False is the answer, never
an exception.

No file system is shared: learners leave rows, steps and states with the coordinator of the run, and the supervisor collects them and writes
the run directory. A learner that is killed loses what it has not left there yet, some hundredths of a second of rows.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from laser_rl.cluster.calls import ActorGone, AnswerLost, call
from laser_rl.metrics.rows import Kind, Value
from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.training.pbt import Exploit
from laser_rl.training.stall import join
from laser_rl.training.stop import Stop
from laser_rl.types import Episode

REPLACED = "another learner has taken its place"
GONE = "the coordinator of this run is gone"
NEWS_S = 0.25  # between two calls of a learner
HURRY_S = 0.05  # at least, where the member moves fast, or waits for others
Versioned = tuple[Any, Any]  # a version, and the value
PARAMETERS, STOP, SHARDS = "parameters", "stop", "shards"  # names of values
Order = tuple[Exploit, Any]  # a copy to make, and a list with a reference to the donor's state
MetricsRow = tuple[Kind, int, int, dict[str, Value]]  # what `Sink.write` gets
CALLS_PER_S = 1000  # of all members together, so that one coordinator is enough


class RemoteDelivery(NamedTuple):
    """What a runner sends to its learner."""

    encoded: EncodedUnrolls
    episodes: list[Episode]
    steps: int
    faults: dict[str, int]  # that the environments survived since the last delivery


class MemberCoordinator:
    """Deliveries for a member's learner, and values that all may read: parameters, the reason to stop, which shards there are.

    Args:
        room: deliveries that may wait for the learner.
    """

    def __init__(self, room: int = 0) -> None:
        self._room = room
        self._deliveries: deque[RemoteDelivery] = deque()
        self._next: dict[str, int] = {}  # number of the delivery that each stream sends next
        self._posted: dict[str, Versioned] = {}
        self._changed = asyncio.Condition()

    async def put(self, stream: str, number: int, delivery: RemoteDelivery, timeout_s: float) -> bool:
        """Leave a delivery for the learner; True also if it has come before. False if there was no room in time."""

        def settled() -> bool:
            return self._next.get(stream, 0) > number or len(self._deliveries) < self._room

        if not await self._until(settled, timeout_s):
            return False
        async with self._changed:
            if self._next.get(stream, 0) > number:
                return True
            if len(self._deliveries) >= self._room:  # another runner was faster
                return False
            self._next[stream] = number + 1
            self._deliveries.append(delivery)
            self._changed.notify_all()
        return True

    async def take(self, most: int, timeout_s: float) -> list[RemoteDelivery]:
        """The oldest deliveries; none if none came in time."""
        await self._until(lambda: bool(self._deliveries), timeout_s)
        async with self._changed:
            taken = [self._deliveries.popleft() for _ in range(min(most, len(self._deliveries)))]
            self._changed.notify_all()
        return taken

    async def post(self, name: str, version: Any, value: Any) -> Any:
        """Replace a value by one of a later version; returns the one that stays."""
        async with self._changed:
            if name not in self._posted or version > self._posted[name][0]:
                self._posted[name] = version, value
                self._changed.notify_all()
        return self._posted[name][1]

    async def newer(self, name: str, version: Any, timeout_s: float) -> Versioned | None:
        """A later version than this one, with its value; None if there is none in time."""

        def there() -> bool:
            return name in self._posted and self._posted[name][0] > version

        return self._posted[name] if await self._until(there, timeout_s) else None

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        if holds() or timeout_s <= 0:
            return holds()
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(holds), timeout_s)
            except TimeoutError:
                return holds()
        return True


class News(NamedTuple):
    """What a learner tells the coordinator of the run."""

    number: int  # of this news in the learner's life, from 0 on
    steps: int
    rows: Sequence[MetricsRow] = ()
    state: bytes | None = None


class Reply(NamedTuple):
    """What the coordinator of the run tells a learner."""

    slowest: int  # steps of the member that is furthest behind
    reason: str | None  # to stop
    order: Order | None = None


class RunCoordinator(MemberCoordinator):
    """Where learners leave rows, steps and states, and hear of others' steps and of orders. `steps` are those of every member so far."""

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__()
        self._steps = list(steps)
        self._heard: dict[int, tuple[int, int]] = {}  # by member: life of its learner, and the number that comes next
        self._rows: list[MetricsRow] = []
        self._states: dict[int, bytes] = {}
        self._orders: dict[int, Order] = {}

    async def tell(self, member: int, life: int, news: News) -> Reply:
        """A learner's news; what comes again is left out. A learner that has been replaced is told to stop."""
        known_life, expected = self._heard.get(member, (life, 0))
        if life < known_life:
            return Reply(min(self._steps), REPLACED)
        if life > known_life or news.number >= expected:
            self._heard[member] = life, news.number + 1
            self._steps[member] = max(self._steps[member], news.steps)  # made is made, whatever of its learning is lost
            self._rows += news.rows
            if news.state is not None:
                self._states[member] = bytes(news.state)
        _, reason = self._posted.get(STOP, (0, None))
        return Reply(min(self._steps), reason, self._orders.get(member))

    async def collect(self) -> tuple[list[MetricsRow], list[int], dict[int, bytes]]:
        """All that is new for the supervisor: rows, steps of each member, and states by member."""
        collected = self._rows, list(self._steps), self._states
        self._rows, self._states = [], {}
        return collected

    async def order(self, member: int, order: Order) -> None:
        """Which copy a member is to make; it hears the newest order with every reply, and knows by its number whether it has obeyed."""
        self._orders[member] = order


class CoordinatorClient:
    """A learner's side of `RunCoordinator`: news and replies travel in a thread of their own. A `Sink` for the member's rows; thread safe.

    Args:
        coordinator: of the run.
        member: number in the sweep.
        life: of this learner; a later one takes its place.
        stop: told the run's reason to stop.
        members: of the sweep; the more, the less often each calls.
        steps: of the member, to begin with.
        often: steps of the member after which others should hear of it.
    """

    def __init__(
        self, coordinator: Any, member: int, life: int, stop: Stop, members: int, steps: int, often: int = 1
    ) -> None:
        self._coordinator, self._member, self._life, self._stop = coordinator, member, life, stop
        self._every_s, self._least_s = (max(least, members / CALLS_PER_S) for least in (NEWS_S, HURRY_S))
        self._often, self._told_steps = often, steps
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._rows: list[MetricsRow] = []
        self._state: bytes | None = None
        self._steps, self._number, self._closing = steps, 0, False
        self.gone = False  # the coordinator does not answer any more
        self.slowest = 0  # steps of the slowest member, as last heard
        self.order: Order | None = None  # the newest
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """See `Sink`."""
        with self._lock:
            self._rows.append((kind, step, update, dict(values)))

    def flush(self) -> None:
        """See `Sink`; rows are never kept longer than `NEWS_S`."""

    def move(self, steps: int) -> None:
        """The member has got so far."""
        self._steps = steps
        if steps - self._told_steps >= self._often:
            self.hurry()

    def hurry(self) -> None:
        """Call soon: this member waits for others, or others for it."""
        self._wake.set()

    def publish(self, state: bytes) -> None:
        """The member's newest state, see `shared_state.published`."""
        with self._lock:
            self._state = state

    def close(self) -> None:
        """Send what is left, and end."""
        self._closing = True
        self._wake.set()
        join(self._thread, f"the learner of member {self._member}", "the coordinator of the run to hear its last rows")

    def _run(self) -> None:
        over, last = False, time.monotonic()
        while not over and not self.gone:
            self._wake.wait(self._every_s)
            if not self._closing:
                time.sleep(max(0.0, last + self._least_s - time.monotonic()))
            self._wake.clear()
            over, last = self._closing, time.monotonic()
            with self._lock:
                news = News(self._number, self._steps, self._rows, self._state)
                self._rows, self._state = [], None
            self._told_steps = news.steps
            self._number += 1
            self._tell(news)

    def _tell(self, news: News) -> None:
        """Call until there is an answer: the coordinator knows the number of news that come again."""
        reply: Reply | None = None
        while reply is None:
            asked = self._coordinator.tell.remote(self._member, self._life, news)
            try:
                reply = call(asked, f"the learner of member {self._member}", "the coordinator of the run")
            except (ActorGone, TimeoutError):
                self.gone = True
                self._stop.interrupt(GONE)
                return
            except AnswerLost:
                continue
        self.slowest, self.order = reply.slowest, reply.order
        if reply.reason is not None:
            self._stop.interrupt(reply.reason)
