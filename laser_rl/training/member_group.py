"""The members of a run as they act and learn in one process, one after the other; `vectorized` has those that are computed together.

Also here: batches on the learner's device (`PinnedBatch`), and copies of its parameters for the actor (`ThreadMailbox`).
"""

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, cuda

from laser_rl.agent.actor import ActorStep
from laser_rl.agent.parallel import ALONE
from laser_rl.agent.parameters import FlatParameters
from laser_rl.gpu_streams import Handover, on, own_stream
from laser_rl.replay.memory_layout import DeviceBatch
from laser_rl.training.build import Member, batch_of, learn
from laser_rl.types import Batch, UnrollLayout

if TYPE_CHECKING:
    from laser_rl.training.member_process import GpuSemaphore
    from laser_rl.training.ranks import Ranks

UNDER_WAY = 2  # updates that a card may have before it: one at work, one that it finds when that is done


class PinnedBatch:
    """A batch on its way to the learner: filled on the host and, for a GPU, uploaded and stacked at once, on a stream of its own.

    So stacking costs the learner's stream nothing, and only single frames travel. The host's memory is filled again when its upload is
    over, the card's is written again when the learner's stream has read it. Without a `stream` the learner reads the `host`'s memory.
    Where `ranks` share the batch of this `number`, `host` is rank 0's part of it.
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
        ranks, device = member.ranks, member.learner.device
        if ranks is None:
            return cls(member.layout, batch_of(member), device, stream)
        number = next(ranks.numbers)
        return cls(member.layout, ranks.batches.part(number, ranks.team), device, stream, ranks, number)

    def fill(self, fill: Callable[[Batch], None]) -> None:
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
    parameters: Tensor
    version: int
    handover: Handover


class ThreadMailbox:
    """The newest parameters, behind a lock.

    A learner publishes when an update has been launched, which a GPU may do two updates later. An actor whose stream waited for that
    would act once an update. So several copies go round, and the actor takes the newest that is there already.
    """

    def __init__(self, parameters: Tensor, version: int) -> None:
        self._lock, self._version = threading.Lock(), version
        # Copies: UNDER_WAY that the card still computes, one that is complete, and one that is written next.
        copies = UNDER_WAY + 2 if parameters.device.type == "cuda" else 1
        self._copies = deque(
            _Copy(torch.empty_like(parameters, requires_grad=False), version - 1, Handover(parameters.device))
            for _ in range(copies)
        )
        self.publish(parameters, version)
        # The first ones are there from the beginning: an actor that goes on with a run must not act with others before.
        self._copies[-1].handover.await_written("the actor", "the parameters to begin with")

    def publish(self, parameters: Tensor, version: int) -> None:
        with self._lock, torch.no_grad():
            copy = self._copies.popleft()
            with copy.handover.write():
                copy.parameters.copy_(parameters)
            copy.version = self._version = version
            self._copies.append(copy)

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy the newest that is there, if it is newer, into memory that stays where it is: a captured graph reads it."""
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


class MemberGroup:
    """Some members of a run, all in this process and on one device. Each has environments of its own and takes its turn.

    On a GPU updates go on while others, or the same member, act; each needs one of the `permits` where other processes use the same card.
    If the only member acts in a thread of its own (`threaded`), `threads` acts and learns instead.
    """

    def __init__(
        self, members: Sequence[Member], permits: "GpuSemaphore | None" = None, *, threaded: bool = False
    ) -> None:
        self.members, self._permits, self.threaded = members, permits, threaded
        self.actors = {f"-{place:02d}": one.actor for place, one in enumerate(members)}  # by what ends their names
        # Of members whose `acting` network is not the learner's own: its parameters, and the newest that a GPU has finished.
        self._following: dict[int, tuple[FlatParameters, ThreadMailbox]] = {}
        self._acting = own_stream(members[0].learner.device, "acting")

    @functools.cached_property
    def _batches(self) -> dict[int, deque[PinnedBatch]]:
        """For each size of a batch: in a larger one, columns of another member would be left over and learned from."""
        stream = own_stream(self.members[0].learner.device, "uploading")
        count = 1 if stream is None else 2
        sizes = {member.config.loss.batch_unrolls: member for member in self.members}
        return {size: deque(PinnedBatch.of(member, stream) for _ in range(count)) for size, member in sizes.items()}

    def begin(self, *, recorded: bool = False) -> None:
        """Reset all environments; `recorded` where these members have written into the replay before (see `Actor.begin`)."""
        self._follow()
        for actor in self.actors.values():
            actor.begin(recorded=recorded)

    def _follow(self) -> None:
        for place, member in enumerate(self.members):
            if member.acting is not member.learner.network:
                member.acting.load_state_dict(member.learner.network.state_dict())
                if not self.threaded:
                    mailbox = ThreadMailbox(member.learner.flat.value, member.learner.version)
                    self._following[place] = FlatParameters(member.acting), mailbox

    def act(self, among: Sequence[bool]) -> Iterator[tuple[int, ActorStep]]:
        """What each member did that may act, with its place in the group."""
        for place, member in enumerate(self.members):
            if not among[place]:
                continue
            following = self._following.get(place)
            with on(None if following is None else self._acting):  # with the learner's own network, on its stream
                if following is None:
                    member.actor.version = member.learner.version
                else:
                    member.actor.version = following[1].collect(following[0].value, member.actor.version)
                taken = member.actor.step()
            yield place, taken

    def ready(self) -> list[int]:
        return [place for place, member in enumerate(self.members) if member.mixer.ready()]

    def learn(self, places: Sequence[int], progress: Sequence[float]) -> None:
        for place, done in zip(places, progress, strict=True):
            member = self.members[place]
            batches = self._batches[member.config.loss.batch_unrolls]
            batches.rotate()
            pinned = batches[0]
            pinned.fill(member.mixer.fill)
            permit = nullcontext() if self._permits is None else self._permits.one(member.learner.device)
            with permit, pinned.read() as batch:
                learn(member, batch, progress=done)
            if place in self._following:
                self._following[place][1].publish(member.learner.flat.value, member.learner.version)

    def actor_state(self) -> dict[str, dict[str, Any]]:
        own = {name: actor.state_dict() for name, actor in self.actors.items()}
        return {group + name: arrays for name, groups in own.items() for group, arrays in groups.items()}

    def load_actors(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> int:
        """Go on there; returns how many open episodes were lost."""
        self._follow()
        lost = 0
        for name, actor in self.actors.items():
            groups = {group: tensors.get(group + name, {}) for group in ("actor", "environments")}
            if groups["actor"]:
                arrays = {group: {part: t.numpy() for part, t in own.items()} for group, own in groups.items()}
                lost += actor.load_state_dict(arrays)
            else:  # a checkpoint of processes that were not stopped for it, or of a group of the other kind
                actor.begin(recorded=True)
                lost += actor.environments.slots
        return lost

    def close(self) -> None:
        for member in {id(one.actor): one for one in self.members}.values():
            member.close()
