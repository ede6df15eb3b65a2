"""The members of a run as they act and learn in one process: one after the other, or side by side in one computation."""

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.agent.actor import Actor
from laser_rl.agent.parameters import FlatParameters
from laser_rl.gpu_streams import on, own_stream
from laser_rl.replay.records import allocate
from laser_rl.training.batch_source import PinnedBatch
from laser_rl.training.build import Member, learn, on_device
from laser_rl.training.gpu_semaphore import GpuSemaphore
from laser_rl.training.mailbox import ThreadMailbox
from laser_rl.training.vectorized import VectorizedLearners
from laser_rl.types import Batch, Episode, Unrolls

Tensors = Mapping[str, Mapping[str, Tensor]]


class MemberSteps(NamedTuple):
    """What one member did in one turn."""

    place: int  # in the crew, not its number in the sweep
    steps: int
    episodes: list[Episode]
    unrolls: Unrolls | None


class MemberGroup(Protocol):
    """Some members of a run, all in this process."""

    members: Sequence[Member]
    threaded: bool  # whether the only member here acts in a thread of its own while it learns, see `local`

    def begin(self, *, recorded: bool = False) -> None:
        """Reset all environments; `recorded` where these members have written into the replay before (see `Actor.begin`)."""

    def act(self, among: Sequence[bool]) -> Iterable[MemberSteps]:
        """One turn of the members that are `among` those who may."""

    def ready(self) -> list[int]:
        """Who is to be updated now."""

    def learn(self, places: Sequence[int], progress: Sequence[float]) -> None:
        """One update of each of these."""

    def actor_state(self) -> dict[str, dict[str, Any]]:
        """Groups of tensors for a checkpoint."""

    def load_actors(self, tensors: Tensors) -> int:
        """Go on there; returns how many open episodes were lost."""

    def close(self) -> None:
        """End the environments."""


class ParameterFollower:
    """The parameters of a network that acts beside its learner: the newest that a GPU has finished.

    Args:
        member: whose `acting` is not its learner's own network.
    """

    def __init__(self, member: Member) -> None:
        self._learner, self._flat = member.learner, FlatParameters(member.acting)
        self._version = self._learner.version - 1
        self._mailbox = ThreadMailbox(self._learner.flat.value, self._learner.version)

    def collect(self) -> int:
        """On the stream that acts: take what is there, without waiting; the version of what is taken."""
        self._version = self._mailbox.collect(self._flat.value, self._version)
        return self._version

    def publish(self) -> None:
        """On the learner's stream, after each update."""
        self._mailbox.publish(self._learner.flat.value, self._learner.version)


class SequentialGroup:
    """Each member has environments of its own and takes its turn. On a GPU updates go on while others, or the same member, act.

    Args:
        members: all on one device.
        permits: for updates, where other processes use the same card.
        threaded: whether the only member acts in a thread of its own; then nothing here acts or learns.
    """

    def __init__(
        self, members: Sequence[Member], permits: GpuSemaphore | None = None, *, threaded: bool = False
    ) -> None:
        self.members, self._permits, self.threaded = members, permits, threaded
        self._following: list[ParameterFollower | None] = [None] * len(members)
        self._acting = own_stream(members[0].learner.device, "acting")

    @functools.cached_property
    def _crates(self) -> dict[int, deque[PinnedBatch]]:
        """For each size of a batch: in a larger one, columns of another member would be left over and learned from.

        On a GPU a second one is filled and uploaded while the update from the first is under way.
        """
        stream = own_stream(self.members[0].learner.device, "uploading")
        count = 1 if stream is None else 2
        sizes = {member.config.loss.batch_unrolls: member for member in self.members}
        return {size: deque(PinnedBatch.of(member, stream) for _ in range(count)) for size, member in sizes.items()}

    def begin(self, *, recorded: bool = False) -> None:
        """Reset all environments."""
        self._follow()
        for member in self.members:
            member.actor.begin(recorded=recorded)

    def _follow(self) -> None:
        """From the parameters that learners have now, which may have been loaded."""
        for place, member in enumerate(self.members):
            if member.acting is not member.learner.network:
                member.acting.load_state_dict(member.learner.network.state_dict())
                self._following[place] = None if self.threaded else ParameterFollower(member)

    def act(self, among: Sequence[bool]) -> Iterator[MemberSteps]:
        """In order."""
        for place, (member, following) in enumerate(zip(self.members, self._following, strict=True)):
            if among[place]:
                with on(None if following is None else self._acting):  # with the learner's own network, on its stream
                    member.actor.version = member.learner.version if following is None else following.collect()
                    taken = member.actor.step()
                yield MemberSteps(place, taken.steps, taken.episodes, taken.unrolls)

    def ready(self) -> list[int]:
        """Whoever has enough new unrolls."""
        return [place for place, member in enumerate(self.members) if member.mixer.ready()]

    def learn(self, places: Sequence[int], progress: Sequence[float]) -> None:
        """One after the other."""
        for place, done in zip(places, progress, strict=True):
            member = self.members[place]
            crates = self._crates[member.config.loss.batch_unrolls]
            crate = crates[0]
            crates.rotate()
            crate.fill(member.mixer.fill)
            permit = nullcontext() if self._permits is None else self._permits.one(member.learner.device)
            with permit, crate.read() as batch:
                learn(member, batch, progress=done)
            following = self._following[place]
            if following is not None:
                following.publish()

    def actor_state(self) -> dict[str, dict[str, Any]]:
        """Two groups a member."""
        return {
            f"{group}-{place:02d}": arrays
            for place, member in enumerate(self.members)
            for group, arrays in member.actor.state_dict().items()
        }

    def load_actors(self, tensors: Tensors) -> int:
        """Of all members."""
        self._follow()
        return sum(_load(member.actor, tensors, f"-{place:02d}") for place, member in enumerate(self.members))

    def close(self) -> None:
        """End the environments of all."""
        for member in self.members:
            member.close()


class VectorizedGroup:
    """All members share one actor, whose slots are theirs in turn, and are updated in one computation.

    A member that is ready waits for the others, until one has twice as many new unrolls as an update takes: members whose episodes are
    short have more rows for the same steps, and get their additional updates alone.
    """

    threaded = False

    def __init__(self, members: Sequence[Member], stack: VectorizedLearners) -> None:
        self.members, self._stack = members, stack
        self.actor, first = members[0].actor, members[0]
        self._slots = first.config.environment.slots
        self._columns = first.config.loss.batch_unrolls
        gpu = stack.value.device.type == "cuda"
        self._batch = allocate(first.layout, self._columns * len(members), pin=gpu, stacked=not gpu)

    def begin(self, *, recorded: bool = False) -> None:
        """Reset all environments."""
        self.actor.begin(recorded=recorded)

    def act(self, among: Sequence[bool]) -> Iterator[MemberSteps]:
        """All at once."""
        versions = [member.learner.version for member in self.members]
        self.actor.versions[:] = np.repeat(versions, self._slots)
        taken = self.actor.step(np.repeat(np.asarray(among), self._slots))
        steps = np.bincount(taken.moved // self._slots, minlength=len(self.members))
        finished: list[list[Episode]] = [[] for _ in self.members]
        for episode in taken.episodes:
            place, slot = divmod(episode.slot, self._slots)
            finished[place].append(episode._replace(slot=slot))
        whose = self._places_of(taken.unrolls)
        for place, member_steps in enumerate(steps.tolist()):
            own = np.flatnonzero(whose == place)
            unrolls = taken.unrolls
            part = Unrolls(*(field[own] for field in unrolls)) if unrolls is not None and len(own) else None
            if among[place]:
                yield MemberSteps(place, member_steps, finished[place], part)

    def _places_of(self, unrolls: Unrolls | None) -> NDArray[np.int64]:
        if unrolls is None:
            return np.zeros(0, np.int64)
        return np.searchsorted(self.actor.member[:: self._slots], unrolls.member).astype(np.int64)

    def ready(self) -> list[int]:
        """All together, or those that are ready as soon as one would fall behind."""
        mixers = [member.mixer for member in self.members]
        ready = [place for place, mixer in enumerate(mixers) if mixer.ready()]
        late = any(mixers[place].pending >= 2 * mixers[place].new_unrolls_per_update for place in ready)
        return ready if len(ready) == len(mixers) or late else []

    def learn(self, places: Sequence[int], progress: Sequence[float]) -> None:
        """In one computation."""
        for number, place in enumerate(places):
            self.members[place].mixer.fill(self._batch, number * self._columns)
        batch = on_device(self.members[0], self._batch)
        self._stack.update(places, _narrowed(batch, len(places) * self._columns), progress=progress)

    def actor_state(self) -> dict[str, dict[str, Any]]:
        """Of the one actor."""
        return dict(self.actor.state_dict())

    def load_actors(self, tensors: Tensors) -> int:
        """The one actor."""
        return _load(self.actor, tensors, "")

    def close(self) -> None:
        """End the environments."""
        self.actor.environments.close()


def _load(actor: Actor, tensors: Tensors, ending: str) -> int:
    groups = {group: tensors.get(group + ending, {}) for group in ("actor", "environments")}
    if not groups["actor"]:  # a checkpoint of processes that were not stopped for it, or of a crew of the other kind
        actor.begin(recorded=True)
        return actor.environments.slots
    return actor.load_state_dict({group: {name: t.numpy() for name, t in own.items()} for group, own in groups.items()})


def _narrowed(batch: Batch, columns: int) -> Batch:
    if columns == batch.online.shape[0]:
        return batch
    of_rows = Batch._fields.index("member")  # the fields before it have rows [T, B, ...], the others are one a column
    cut = [field[:, :columns] if at < of_rows else field[:columns] for at, field in enumerate(batch)]
    return Batch(*cut)
