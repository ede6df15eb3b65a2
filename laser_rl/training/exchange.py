"""Between acting and learning in one process: batches that lie where the learner reads them, parameters on their way back."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, cuda

from laser_rl.agent.parallel import ALONE
from laser_rl.gpu_streams import Handover, on
from laser_rl.replay.prefetcher import Exhausted
from laser_rl.replay.records import DeviceBatch
from laser_rl.training.build import Member, batch_of
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.stall import Gate, StallWarning
from laser_rl.types import Batch, Delivery, UnrollInbox, UnrollLayout

if TYPE_CHECKING:
    from laser_rl.training.ranks import Ranks

UNDER_WAY = 2  # updates that a card may have before it: one at work, one that it finds when that is done


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
        """Fill one batch."""
        with self._lock:
            self._training.member.mixer.fill(batch)


class PinnedBatch:
    """A batch on its way to the learner: filled on the host and, for a GPU, uploaded and stacked at once, on a stream of its own.

    So stacking costs the learner's stream nothing, and only single frames travel. The host's memory is filled again when its upload is
    over, the card's is written again when the learner's stream has read it.

    Args:
        layout: of the unrolls.
        host: is filled; pinned, if it is uploaded.
        device: of the learner.
        stream: that uploads; None: the learner reads the host's memory.
        ranks: with which the learner shares the batch of this `number`, of which `host` is rank 0's part.
        number: of the shared batch.
    """

    def __init__(
        self,
        layout: UnrollLayout,
        host: Batch,
        device: torch.device,
        stream: "cuda.Stream | None" = None,
        ranks: "Ranks | None" = None,
        number: int = 0,
    ) -> None:
        self._host, self._stream, self._ranks, self._number = host, stream, ranks, number
        self._whole = host if ranks is None else ranks.batches.part(number, ALONE)
        self.handover = Handover(device)  # between the stream that uploads and the one that learns
        self._there: DeviceBatch | None = None
        if stream is not None:
            self._there = DeviceBatch(layout, host, device)
            self._there.record_stream(stream)

    @classmethod
    def of(cls, member: Member, stream: "cuda.Stream | None") -> "PinnedBatch":
        """For the batches of a member."""
        ranks, device = member.ranks, member.learner.device
        if ranks is None:
            return cls(member.layout, batch_of(member), device, stream)
        number = ranks.next_batch()
        return cls(member.layout, ranks.batches.part(number, ranks.team), device, stream, ranks, number)

    def fill(self, fill: Callable[[Batch], None]) -> None:
        """Fill the host's memory and upload it, in the thread that gathers."""
        self.handover.await_written("the thread that gathers", "the upload of a batch")
        if self._ranks is not None:
            self._ranks.await_read(self._number)
        fill(self._whole)
        if self._there is not None:
            with on(self._stream), self.handover.write():
                self._there.copy_from(self._host)

    @contextmanager
    def read(self) -> Iterator[Batch]:
        """Around an update, in the learner's thread; the host does not wait for the upload."""
        if self._ranks is not None:
            self._ranks.chosen = self._number
        with self.handover.read():
            yield self._host if self._there is None else self._there.batch


@dataclass
class _Copy:
    """Parameters that were published."""

    parameters: Tensor
    version: int
    handover: Handover


class ThreadMailbox:
    """The newest parameters, behind a lock.

    A learner publishes when an update has been launched, which a GPU may do two updates later. An actor whose stream waited for that
    would act once an update. So several copies go round, and the actor takes the newest that is there already.

    `collect` writes into memory that stays where it is, which is what a captured graph reads.
    """

    def __init__(self, parameters: Tensor, version: int) -> None:
        self._lock, self._version = threading.Lock(), version
        # Those under way, one that is there, and the one that is written next.
        copies = UNDER_WAY + 2 if parameters.device.type == "cuda" else 1
        self._copies = deque(
            _Copy(torch.empty_like(parameters, requires_grad=False), version - 1, Handover(parameters.device))
            for _ in range(copies)
        )
        self.publish(parameters, version)
        # The first ones are there from the beginning: an actor that goes on with a run must not act with others before.
        self._copies[-1].handover.await_written("the actor", "the parameters to begin with")

    def publish(self, parameters: Tensor, version: int) -> None:
        """Replace the oldest."""
        with self._lock, torch.no_grad():
            copy = self._copies.popleft()
            with copy.handover.write():
                copy.parameters.copy_(parameters)
            copy.version = self._version = version
            self._copies.append(copy)

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy the newest that is there, if it is newer."""
        if self._version <= newer_than:  # a stale look costs one step with older parameters
            return newer_than
        with self._lock, torch.no_grad():
            for copy in reversed(self._copies):
                if copy.version <= newer_than:
                    break
                if copy.handover.written():
                    with copy.handover.read():
                        into.copy_(copy.parameters)
                    return copy.version
        return newer_than
