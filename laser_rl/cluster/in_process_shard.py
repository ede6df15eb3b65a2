"""A shard in this process: what a shard elsewhere is to others, without Ray. For one process, and for tests."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from laser_rl.cluster.client import ShardLost
from laser_rl.cluster.shard import Gathered, Receipt, Shard, ShardReport
from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.replay.shared import Ids

Result = TypeVar("Result")


class NearShard:
    """Calls are carried out by threads: one for inserts, some for gathers, as in a cluster.

    >>> from laser_rl.cluster.shard import ShardPlan
    >>> from laser_rl.types import UnrollLayout
    >>> shard = NearShard(Shard(ShardPlan(UnrollLayout(2, 0, (4,), "float32", (), "int64", 2), 100, number=3)))
    >>> shard.report().result(timeout=5.0).span
    (0, 0)
    """

    def __init__(self, shard: Shard, gathering: int = 2) -> None:
        self.shard, self.number, self.where = shard, shard.plan.number, "this node"
        self.capacity = shard.plan.capacity
        self._inserts = ThreadPoolExecutor(1, f"shard-{self.number}-insert")
        self._gathers = ThreadPoolExecutor(gathering, f"shard-{self.number}-gather")
        self._gone = False

    def lose(self) -> None:
        """As if its process had died: no call is answered any more."""
        self._gone = True

    def open(self, stream: str, number: int) -> "Future[int]":
        """See `Shard`, as for all of them."""
        return self._inserts.submit(self._alive, lambda: self.shard.open(stream, number))

    def insert(self, stream: str, number: int, parcel: EncodedUnrolls) -> "Future[Receipt]":
        """Deliver."""
        return self._inserts.submit(self._alive, lambda: self.shard.insert(stream, number, parcel))

    def gather(self, ids: Ids) -> "Future[Gathered]":
        """Copies."""
        return self._gathers.submit(self._alive, lambda: self.shard.gather(ids))

    def report(self) -> "Future[ShardReport]":
        """About itself."""
        return self._gathers.submit(self._alive, self.shard.report)

    def _alive(self, call: Callable[[], Result]) -> Result:
        if self._gone:
            raise ShardLost(f"shard {self.number} is gone")
        result = call()
        if self._gone:  # it was carried out, and nobody will know
            raise ShardLost(f"shard {self.number} is gone")
        return result
