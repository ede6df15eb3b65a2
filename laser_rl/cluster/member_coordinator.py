"""Where runners, learners and supervisors meet: unrolls for a member, its newest parameters, the reason to stop, who the shards are.

A plain class whose methods wait without blocking each other (asyncio); a Ray actor is made of it in `actors`. It holds little: a few sealed
deliveries, and of parameters only a reference. Whoever waits here says how long; then None or False is the answer, never an exception.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.types import Episode


class RemoteDelivery(NamedTuple):
    """A `Delivery` on its way, sealed."""

    parcel: EncodedUnrolls
    episodes: list[Episode]
    steps: int
    faults: dict[str, int] = {}  # noqa: RUF012 - never written to: what the environments survived since the last delivery


class Published(NamedTuple):
    """The newest parameters of a member."""

    life: int  # of the learner: after a restart it may go on with an older version
    version: int
    sent: Any  # the parameters themselves if they are small; or a list of one reference, so that Ray does not look into it


class MemberCoordinator:
    """One for each member, and one for the run as a whole.

    Args:
        room: deliveries that may wait for the learner.

    >>> from laser_rl.replay.encoded_unrolls import EncodedUnrolls
    >>> desk, delivery = MemberCoordinator(room=1), RemoteDelivery(None, [], 5)
    >>> async def example():
    ...     first = await desk.put("runner 1", 0, delivery, 0.0), await desk.put("runner 1", 0, delivery, 0.0)  # sent again
    ...     return first, await desk.put("runner 2", 0, delivery, 0.01), len(await desk.take(9, 0.0)), await desk.take(9, 0.01)
    >>> asyncio.run(example())
    ((True, True), False, 1, [])
    """

    def __init__(self, room: int = 4) -> None:
        self._room = room
        self._waiting: deque[RemoteDelivery] = deque()
        self._next: dict[str, int] = {}  # number of the delivery that each stream sends next
        self._life = 0
        self._published: Published | None = None
        self._reason: str | None = None
        self._roster: tuple[int, Any] = (0, ())
        self._changed = asyncio.Condition()

    async def put(self, stream: str, number: int, delivery: RemoteDelivery, timeout_s: float) -> bool:
        """Leave a delivery for the learner; True also if it has come before. False if there was no room in time."""

        def settled() -> bool:
            return self._next.get(stream, 0) > number or len(self._waiting) < self._room

        if not await self._until(settled, timeout_s):
            return False
        async with self._changed:
            if self._next.get(stream, 0) > number:
                return True
            if len(self._waiting) >= self._room:  # somebody else was faster
                return False
            self._next[stream] = number + 1
            self._waiting.append(delivery)
            self._changed.notify_all()
        return True

    async def take(self, most: int, timeout_s: float) -> list[RemoteDelivery]:
        """The oldest deliveries; none if none came in time."""
        await self._until(lambda: bool(self._waiting), timeout_s)
        async with self._changed:
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._changed.notify_all()
        return taken

    async def begin(self) -> int:
        """A learner begins, or begins again: the number of its life."""
        self._life += 1
        return self._life

    async def publish(self, life: int, version: int, sent: Any) -> None:
        """Replace the parameters, unless there are newer ones, or this comes late from a learner that has been replaced."""
        async with self._changed:
            there = self._published
            if there is None or (life, version) > (there.life, there.version):
                self._published = Published(life, version, sent)
                self._changed.notify_all()

    async def newer(self, life: int, version: int, timeout_s: float) -> Published | None:
        """Parameters newer than these, or of a later life; None if there are none in time."""

        def there() -> bool:
            return self._published is not None and (self._published.life, self._published.version) > (life, version)

        return self._published if await self._until(there, timeout_s) else None

    async def stop(self, reason: str) -> str:
        """Ask everybody to end; returns the reason that stays, which is the first."""
        async with self._changed:
            self._reason = self._reason or reason
            self._changed.notify_all()
        return self._reason

    async def stopped(self, timeout_s: float) -> str | None:
        """The reason to stop; None if there was none in time."""
        await self._until(lambda: self._reason is not None, timeout_s)
        return self._reason

    async def post_roster(self, shards: Any) -> int:
        """Who the shards are from now on: clients that can be sent around. Returns the number of this roster."""
        async with self._changed:
            self._roster = (self._roster[0] + 1, shards)
            self._changed.notify_all()
        return self._roster[0]

    async def roster(self, newer_than: int, timeout_s: float) -> tuple[int, Any] | None:
        """A newer roster with its number; None if there is none in time."""
        return self._roster if await self._until(lambda: self._roster[0] > newer_than, timeout_s) else None

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        if holds() or timeout_s <= 0:
            return holds()
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(holds), timeout_s)
            except TimeoutError:
                return holds()
        return True
