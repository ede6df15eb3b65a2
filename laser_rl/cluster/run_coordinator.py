"""The coordinator of a run: learners leave rows, steps and states here, and hear of others' steps and of orders.

No file system is shared: the supervisor collects all of it and writes the run directory. A learner that is killed loses what it has not
left here yet, some hundredths of a second of rows; its last state is here or with the supervisor already.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from laser_rl.cluster.member_coordinator import MemberCoordinator
from laser_rl.metrics.rows import Kind, Value

REPLACED = "another learner has taken its place"


class MetricsRow(NamedTuple):
    """A row of metrics on its way."""

    kind: Kind
    step: int
    update: int
    values: dict[str, Value]


class News(NamedTuple):
    """What a learner has to say."""

    number: int  # of this news in the learner's life, from 0 on
    steps: int
    lines: Sequence[MetricsRow] = ()
    state: bytes | None = None


class Reply(NamedTuple):
    """What it hears."""

    slowest: int  # steps of the member that is furthest behind
    reason: str | None  # to stop
    order: Any = None  # see `RunCoordinator.order`


class Collected(NamedTuple):
    """What the supervisor gets."""

    lines: list[MetricsRow]
    steps: list[int]
    states: dict[int, bytes]


class RunCoordinator(MemberCoordinator):
    """See above.

    Args:
        steps: of every member, to begin with.

    >>> import asyncio
    >>> ledger = RunCoordinator([0, 7])
    >>> async def example():
    ...     await ledger.enter(0, 1, News(0, 5, [MetricsRow("train", 5, 1, {"loss": 2.0})]))
    ...     return await ledger.enter(1, 1, News(0, 9)), await ledger.collect(0.0)
    >>> asyncio.run(example())
    (Reply(slowest=5, reason=None, order=None), Collected(lines=[MetricsRow(...)], steps=[5, 9], states={}))
    """

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__()
        self._steps = list(steps)
        self._heard: dict[int, tuple[int, int]] = {}  # by member: life of its learner, and the number that comes next
        self._lines: list[MetricsRow] = []
        self._states: dict[int, bytes] = {}
        self._orders: dict[int, Any] = {}

    async def go_on(self, steps: Sequence[int]) -> None:
        """The steps of a checkpoint, before any learner begins."""
        self._steps = list(steps)

    async def enter(self, member: int, life: int, news: News) -> Reply:
        """A learner's news; what comes again is left out. A learner that has been replaced is told to stop."""
        known_life, expected = self._heard.get(member, (life, 0))
        if life < known_life:
            return Reply(min(self._steps), REPLACED)
        if life > known_life or news.number >= expected:
            self._heard[member] = life, news.number + 1
            self._steps[member] = max(self._steps[member], news.steps)  # made is made, whatever of its learning is lost
            self._lines += news.lines
            if news.state is not None:
                self._states[member] = bytes(news.state)
            async with self._changed:
                self._changed.notify_all()
        return Reply(min(self._steps), self._reason, self._orders.get(member))

    async def collect(self, timeout_s: float) -> Collected:
        """All that is new for the supervisor, which waits so long for a row or a state."""
        await self._until(lambda: bool(self._lines or self._states), timeout_s)
        collected = Collected(self._lines, list(self._steps), self._states)
        self._lines, self._states = [], {}
        return collected

    async def order(self, member: int, order: Mapping[str, Any]) -> None:
        """What a member is to do; it hears the newest order with every reply, and knows by its number whether it has obeyed."""
        self._orders[member] = order
