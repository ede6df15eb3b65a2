"""From the actor's inbox to batches that lie where the learner reads them."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from torch import cuda

from laser_rl.gpu_streams import Handover, on
from laser_rl.ports import Delivery, UnrollInbox
from laser_rl.replay.prefetcher import Exhausted
from laser_rl.replay.records import DeviceBatch
from laser_rl.training.build import Member, batch_of
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.ranks import RankBatch
from laser_rl.training.stall import Gate, StallWarning
from laser_rl.types import Batch


class BatchSource:
    """Fills batches from the inbox, in the thread that gathers ahead; ends after the actor has ended and nothing is left."""

    def __init__(self, training: MemberTraining, inbox: UnrollInbox, acting: threading.Event, lock: Gate) -> None:
        self._training, self._inbox, self._acting, self._lock = training, inbox, acting, lock
        self.sent: deque[Delivery] = deque()  # what the actor has handed over and the mixer has not got yet
        self._waiting: StallWarning | None = None

    def ready(self, timeout_s: float) -> bool:
        """Whether a batch can be filled, after waiting so long for unrolls at most."""
        mixer = self._training.member.mixer
        with self._lock:
            if mixer.ready():
                return True
        ended = not self._acting.is_set()
        delivery = None if self._training.stop.reason else self._inbox.take(0.0 if ended else timeout_s)
        if delivery is not None:
            if self._waiting is not None:
                self._waiting.over()
            self._waiting = None
            with self._lock:
                self.settle()
                return mixer.ready()
        if ended or self._training.stop.reason:
            raise Exhausted
        self._waiting = self._waiting or StallWarning("the learner", "unrolls from the actor")
        self._waiting.again()
        return False

    def settle(self) -> None:
        """Everything on its way, to the mixer; with the lock held. What then comes out of the inbox is known already."""
        while self.sent:
            delivery = self.sent.popleft()
            self._training.acted(delivery.steps, delivery.episodes)
            self._training.member.mixer.offer(delivery.unrolls)

    def fill(self, batch: Batch) -> None:
        """One batch."""
        with self._lock:
            self._training.member.mixer.fill(batch)


class PinnedBatch:
    """A batch on its way to the learner: filled on the host and, for a GPU, uploaded and stacked at once, on a stream of its own.

    So stacking costs the learner's stream nothing, and only single frames travel. The host's memory is filled again when its upload is
    over, the card's is written again when the learner's stream has read it.

    Args:
        host: is filled; pinned, if it is uploaded.
        there: where it goes; None if the learner reads the host's memory.
        handover: between the stream that uploads and the one that learns.
        stream: that uploads.
        lent: where `host` is rank 0's part of a batch that several ranks learn from.
    """

    def __init__(
        self,
        host: Batch,
        there: DeviceBatch | None,
        handover: Handover,
        stream: "cuda.Stream | None" = None,
        lent: RankBatch | None = None,
    ) -> None:
        self._host, self._there, self._handover, self._stream, self._lent = host, there, handover, stream, lent

    @classmethod
    def of(cls, member: Member, stream: "cuda.Stream | None") -> "PinnedBatch":
        """For the batches of a member; `stream` is None on a CPU."""
        lent, device = None if member.ranks is None else member.ranks.lend(), member.learner.device
        host = batch_of(member) if lent is None else lent.own
        if stream is None:
            return cls(host, None, Handover(device), lent=lent)
        there = DeviceBatch(member.layout, host, device)
        there.record_stream(stream)
        return cls(host, there, Handover(device), stream, lent)

    def fill(self, fill: Callable[[Batch], None]) -> None:
        """In the thread that gathers."""
        self._handover.await_written("the thread that gathers", "the upload of a batch")
        with nullcontext(self._host) if self._lent is None else self._lent.filling() as whole:
            fill(whole)
        if self._there is not None:
            with on(self._stream), self._handover.write():
                self._there.copy_from(self._host)

    @contextmanager
    def read(self) -> Iterator[Batch]:
        """Around an update, in the learner's thread; the host does not wait for the upload."""
        if self._lent is not None:
            self._lent.choose()
        with self._handover.read():
            yield self._host if self._there is None else self._there.batch
