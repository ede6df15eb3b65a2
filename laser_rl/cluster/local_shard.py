"""A shard of this node, read where it lies: no call, no copy by others, no process but the reader at work.

A call costs both sides about a millisecond, and what it brings is copied into Ray's object store and out of it. On one machine a learner
can look at the shard's memory instead, as the members of a sweep on one machine do. Only reading: what is written has to be numbered.
"""

import logging
import threading
from collections.abc import Callable

from laser_rl.cluster.client import Answer, AnswerLost
from laser_rl.cluster.shard import Gathered, gathered
from laser_rl.errors import ConfigError
from laser_rl.replay.lending import LentBlock, borrow
from laser_rl.replay.shared import Ids
from laser_rl.replay.store import Replay
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")


class Read:
    """An `Answer` that is read when it is asked for, by whoever asks.

    >>> import numpy as np
    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> store = Replay(layout, capacity_steps=10)
    >>> _ = store.insert(empty_unrolls(layout, 3))
    >>> Read(store, np.array([2, 7])).result(timeout=1.0).held
    array([ True, False])
    """

    def __init__(self, store: Replay, ids: Ids) -> None:
        self._store, self._ids = store, ids

    def done(self) -> bool:
        """Nobody has to be waited for."""
        return True

    def result(self, timeout: float) -> Gathered:
        """See `Shard.gather`. TimeoutError if somebody who has stopped holds the lock of the store, whatever the timeout."""
        return gathered(self._store, self._ids)


class LocalShardReader:
    """The memory of one shard, as soon as that has said where it is; thread safe.

    Args:
        layout: of the unrolls.
        whom: for messages.
        ask: the shard where its memory is.
    """

    def __init__(self, layout: UnrollLayout, whom: str, ask: Callable[[], Answer[LentBlock]]) -> None:
        self._layout, self._whom, self._ask = layout, whom, ask
        self._asked: Answer[LentBlock] | None = None
        self._closed = False  # it cannot be reached from here
        self._store: Replay | None = None
        self._lock = threading.Lock()

    def gather(self, ids: Ids) -> Read | None:
        """None as long as, or if, this has to be asked of the shard."""
        if self._store is None and not self._closed:
            with self._lock:
                self._look()
        return None if self._store is None else Read(self._store, ids)

    def _look(self) -> None:
        self._asked = self._asked or self._ask()
        if self._store is not None or self._closed or not self._asked.done():
            return
        try:
            self._store = borrow(self._layout, self._asked.result(timeout=0.0))
        except AnswerLost:
            self._closed = True  # whoever asks it for unrolls will hear the same
        except (ConfigError, OSError) as error:  # in another container, or no room for it here
            self._closed = True
            log.info("%s is asked for every batch: %s", self._whom, error)
