"""The members of a run as they act and learn in one process, one after the other; `vectorized` has those that are computed together."""

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from laser_rl.agent.actor import Actor
from laser_rl.agent.parameters import FlatParameters
from laser_rl.gpu_streams import on, own_stream
from laser_rl.training.build import Member, learn
from laser_rl.training.exchange import PinnedBatch, ThreadMailbox
from laser_rl.types import Episode, Unrolls

if TYPE_CHECKING:
    from laser_rl.training.shared_state import GpuSemaphore


class MemberSteps(NamedTuple):
    """What one member did in one turn."""

    place: int  # in the group, not its number in the sweep
    steps: int
    episodes: list[Episode]
    unrolls: Unrolls | None


class ParameterFollower:
    """The parameters of a member's `acting` network, which is not its learner's own: the newest that a GPU has finished."""

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


class MemberGroup:
    """Some members of a run, all in this process. Each has environments of its own and takes its turn.

    On a GPU updates go on while others, or the same member, act.

    Args:
        members: all on one device.
        permits: for updates, where other processes use the same card.
        threaded: whether the only member acts in a thread of its own, see `threads`; then nothing here acts or learns.
    """

    def __init__(
        self, members: Sequence[Member], permits: "GpuSemaphore | None" = None, *, threaded: bool = False
    ) -> None:
        self.members, self._permits, self.threaded = members, permits, threaded
        self._following: list[ParameterFollower | None] = [None] * len(members)
        self._acting = own_stream(members[0].learner.device, "acting")

    @functools.cached_property
    def _batches(self) -> dict[int, deque[PinnedBatch]]:
        """For each size of a batch: in a larger one, columns of another member would be left over and learned from.

        On a GPU a second one is filled and uploaded while the update from the first is under way.
        """
        stream = own_stream(self.members[0].learner.device, "uploading")
        count = 1 if stream is None else 2
        sizes = {member.config.loss.batch_unrolls: member for member in self.members}
        return {size: deque(PinnedBatch.of(member, stream) for _ in range(count)) for size, member in sizes.items()}

    def begin(self, *, recorded: bool = False) -> None:
        """Reset all environments; `recorded` where these members have written into the replay before (see `Actor.begin`)."""
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
        """One turn of the members that are `among` those that may act, in order."""
        for place, (member, following) in enumerate(zip(self.members, self._following, strict=True)):
            if among[place]:
                with on(None if following is None else self._acting):  # with the learner's own network, on its stream
                    member.actor.version = member.learner.version if following is None else following.collect()
                    taken = member.actor.step()
                yield MemberSteps(place, taken.steps, taken.episodes, taken.unrolls)

    def ready(self) -> list[int]:
        """Which members are to be updated now: those that have enough new unrolls."""
        return [place for place, member in enumerate(self.members) if member.mixer.ready()]

    def learn(self, places: Sequence[int], progress: Sequence[float]) -> None:
        """One update of each of these, one after the other."""
        for place, done in zip(places, progress, strict=True):
            member = self.members[place]
            batches = self._batches[member.config.loss.batch_unrolls]
            pinned = batches[0]
            batches.rotate()
            pinned.fill(member.mixer.fill)
            permit = nullcontext() if self._permits is None else self._permits.one(member.learner.device)
            with permit, pinned.read() as batch:
                learn(member, batch, progress=done)
            following = self._following[place]
            if following is not None:
                following.publish()

    def actor_state(self) -> dict[str, dict[str, Any]]:
        """Groups of tensors for a checkpoint: two a member."""
        return {
            f"{group}-{place:02d}": arrays
            for place, member in enumerate(self.members)
            for group, arrays in member.actor.state_dict().items()
        }

    def load_actors(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> int:
        """Go on there; returns how many open episodes were lost."""
        self._follow()
        return sum(load_actor(member.actor, tensors, f"-{place:02d}") for place, member in enumerate(self.members))

    def close(self) -> None:
        """End the environments of all members."""
        for member in self.members:
            member.close()


def load_actor(actor: Actor, tensors: Mapping[str, Mapping[str, Tensor]], ending: str) -> int:
    """Go on with the groups of an actor whose names have this ending; returns how many open episodes were lost."""
    groups = {group: tensors.get(group + ending, {}) for group in ("actor", "environments")}
    if not groups["actor"]:  # a checkpoint of processes that were not stopped for it, or of a group of the other kind
        actor.begin(recorded=True)
        return actor.environments.slots
    return actor.load_state_dict({group: {name: t.numpy() for name, t in own.items()} for group, own in groups.items()})
