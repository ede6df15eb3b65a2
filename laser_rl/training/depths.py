"""How deep the queues between acting and learning are: whoever is slower has a full one before it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from laser_rl.training.member_training import MemberTraining


@contextmanager
def queues(training: MemberTraining, **depths: Callable[[], int]) -> Iterator[None]:
    """While the block lasts, every row of metrics has `queue_NAME` for each of them, as it is when the row is written: after an update.

    Afterwards nothing of them is held: batches may be large.
    """

    def report() -> dict[str, float]:
        return {f"queue_{name}": depth() for name, depth in depths.items()}

    training.extra.append(report)
    try:
        yield
    finally:
        training.extra.remove(report)
