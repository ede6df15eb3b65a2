"""The ports of the core on Ray: what runners and learners hold of a `MemberCoordinator`.

A question waits with the coordinator until there is something to say (`LongPoll`), and to look whether the answer has come costs no call.
With `in_step` a mailbox calls at every look instead, which is as new as can be: for lock-step, where runs are compared bit by bit.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laser_rl.cluster.calls import CALL_S, Answer, AnswerLost, LongPoll, call, ray
from laser_rl.cluster.coordinator import GONE, PARAMETERS, SHARDS, STOP, RemoteDelivery
from laser_rl.cluster.shard import ShardClient
from laser_rl.replay.encoded_unrolls import unseal
from laser_rl.replay.records import Packed
from laser_rl.types import UnrollLayout

STAY_S = 10.0  # how long a question stays with the coordinator
SENT_BYTES = 64 << 10  # of parameters that go along with calls; a reference costs calls of its own, of all who hold it
AT_ONCE = 16  # deliveries that a learner takes with one call
WHO = "a process of the run"
NO_LIFE = -1  # of a learner: nothing was collected yet


class RayInbox:
    """The learner's end of its runners' deliveries: bounded, first in first out for each runner, each delivery once."""

    def __init__(self, coordinator: Any, layout: UnrollLayout) -> None:
        self._layout = layout
        self._poll: LongPoll[list[RemoteDelivery]] = LongPoll(lambda: Answer(coordinator.take.remote(AT_ONCE, STAY_S)))
        self._taken: deque[RemoteDelivery] = deque()

    def take(self, timeout_s: float) -> tuple[Packed, RemoteDelivery] | None:
        """A delivery and its unrolls for `Mixer.queue`; None if none came in time.

        A call that is not answered by then goes on: it brings the next deliveries.
        """
        if not self._taken:
            self._taken.extend(self._poll.poll(timeout_s) or ())
        if not self._taken:
            return None
        taken = self._taken.popleft()
        return unseal(self._layout, taken.encoded), taken


_Published = tuple[tuple[int, int], Any]  # life of the learner and version; the parameters, or a list of one reference


class RayMailbox:
    """A `ParameterMailbox`: each version is put once into the object store of the learner's node, and runners map it.

    Small ones travel with the calls. Every process makes a mailbox of its own.

    Args:
        coordinator: of the member.
        in_step: publish and collect wait for the coordinator.
        life: of a learner that publishes; its versions replace those of earlier lives, also newer ones.
    """

    def __init__(self, coordinator: Any, *, in_step: bool = False, life: int = 0) -> None:
        self._coordinator, self._in_step, self._life = coordinator, in_step, life
        self._publishing: Any = None
        self._known = (NO_LIFE, -1)  # life of the learner whose parameters were collected last, and version asked for
        self._poll: LongPoll[_Published] = LongPoll(
            lambda: Answer(coordinator.newer.remote(PARAMETERS, self._known, STAY_S))
        )

    def publish(self, parameters: Tensor, version: int) -> None:
        """Replace what is there. Copies once; waits only if the one before has not arrived yet."""
        self._await_published()
        # What was sent or put is never written again: a reader sees all of one version, whatever is published meanwhile.
        values = parameters.detach().to("cpu").numpy()
        # A reference is sent in a list, so that Ray does not look into it.
        sent = values.copy() if values.nbytes <= SENT_BYTES else [ray().put(values)]
        self._publishing = self._coordinator.post.remote(PARAMETERS, (self._life, version), sent)
        if self._in_step:
            self._await_published()

    def _await_published(self) -> None:
        if self._publishing is not None:
            call(self._publishing, WHO, "the coordinator to take parameters")

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy into `into` if there is a newer version, or a learner that has begun again; returns the version that is now there."""
        found = self._newer(newer_than)
        if found is None:
            return newer_than
        (_, version), parameters = found
        if isinstance(parameters, list):
            try:
                parameters = call(parameters[0], WHO, "parameters from its learner")
            except (AnswerLost, TimeoutError):  # its learner has died, and took it along; its successor will publish
                return newer_than
        # Into memory on a CPU without a copy in between, and without torch's warning of a read-only array.
        with torch.no_grad():
            if into.device.type == "cpu" and into.is_contiguous():
                into.detach().numpy()[...] = parameters
            else:
                into.copy_(torch.tensor(parameters))
        return version

    def _newer(self, newer_than: int) -> _Published | None:
        """What is to be collected, if that is known already."""
        known, _ = self._known
        self._known = known, newer_than
        found: _Published | None
        if self._in_step:
            asked = self._coordinator.newer.remote(PARAMETERS, self._known, 0.0)
            found = call(asked, WHO, "the coordinator to say whether there are newer parameters")
        else:
            found = self._poll.poll()
        if found is None:
            return None
        (life, version), _ = found
        self._known = life, newer_than
        return found if known not in {NO_LIFE, life} or version > newer_than else None


class RayStop:
    """A `StopSignal`: the first reason stays, whichever process had it. A coordinator that is gone is a reason, too."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._reason: str | None = None
        self._poll: LongPoll[tuple[int, str]] = LongPoll(lambda: Answer(coordinator.newer.remote(STOP, -1, STAY_S)))

    def request(self, reason: str) -> None:
        """Ask all to end; returns when the coordinator knows it."""
        try:
            asked = self._coordinator.post.remote(STOP, 0, reason)
            self._reason = call(asked, WHO, "the coordinator to hear a reason to stop")
        except (AnswerLost, TimeoutError):
            self._reason = self._reason or reason

    @property
    def reason(self) -> str | None:
        """None while the run goes on."""
        if self._reason is None:
            _, self._reason = self._poll.poll() or (0, GONE if self._poll.gone else None)
        return self._reason


class RayShards:
    """Which shards there are, as the coordinator last heard; only the first look waits."""

    def __init__(self, coordinator: Any) -> None:
        self._number = 0
        self._shards: Sequence[ShardClient] = ()
        self._poll: LongPoll[tuple[int, Sequence[ShardClient]]] = LongPoll(
            lambda: Answer(coordinator.newer.remote(SHARDS, self._number, STAY_S))
        )
        self._look(CALL_S)

    def __call__(self) -> Sequence[ShardClient]:
        """For a `ShardedReplay`."""
        self._look(0.0)
        return self._shards

    def at(self, place: int) -> ShardClient | None:
        """The shard for one of many streams, in turn; None if there is none. For a `ReplayWriter`.

        Not that of the stream's own node: actors are not spread evenly, and a shard to which few streams lead keeps what it has for longer
        than the others, so that the members of these streams would have more than their part of the replay.
        """
        shards = self()
        return shards[place % len(shards)] if shards else None

    def _look(self, timeout_s: float) -> None:
        self._number, self._shards = self._poll.poll(timeout_s) or (self._number, self._shards)
