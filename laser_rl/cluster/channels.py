"""The ports of the core on Ray: what runners and learners hold of a `Desk`.

One call to an actor takes about a millisecond, and an actor's step often less. So nobody here calls in order to look: a question is left
with the desk until there is something to say, and to look whether the answer has come costs nothing. With `in_step` every look is a call
instead, which is as new as can be: for lock-step, where runs are compared bit by bit.
"""

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from laser_rl.cluster.actors import RayAnswer, RayShard
from laser_rl.cluster.client import Answer, AnswerLost, ShardLost, awaited
from laser_rl.cluster.member_coordinator import Published, RemoteDelivery
from laser_rl.cluster.ray_import import ray
from laser_rl.ports import Delivery
from laser_rl.replay.encoded_unrolls import EncodedUnrolls, seal, unseal
from laser_rl.replay.memory_estimate import Codec, resolve_codec
from laser_rl.replay.records import Packed, pack, unpack
from laser_rl.types import Episode, UnrollLayout

CALL_S = 120.0  # of a desk that lives: milliseconds; of one that is being started on a busy machine: half a minute
STAY_S = 10.0  # how long a question stays with the desk
Result = TypeVar("Result")
SENT_BYTES = (
    64 << 10
)  # of parameters that go along with calls; references cost calls of their own, of all who hold them
AT_ONCE = 16  # deliveries that a learner takes with one call
GONE = "the desk of this run is gone"


class RemoteUnrolls(NamedTuple):
    """A `RemoteDelivery` that was unsealed."""

    packed: Packed
    episodes: list[Episode]
    steps: int
    faults: dict[str, int]


class RayInbox:
    """An `UnrollInbox`: bounded, first in, first out for each sender, each delivery once. One object for each sender, one for the taker.

    Args:
        desk: of the member.
        layout: of the unrolls.
        stream: a name that no other sender has, and no earlier life of this one; None for the taker.
        codec: how frames travel.
    """

    def __init__(
        self, desk: Any, layout: UnrollLayout, stream: str | None = None, *, codec: Codec | None = None
    ) -> None:
        self._desk, self._layout, self._stream = desk, layout, stream
        self._codec = codec or resolve_codec(layout, "auto")
        self._number = 0  # of the next delivery
        self._asked: RayAnswer[list[RemoteDelivery]] | None = None
        self._taken: deque[RemoteDelivery] = deque()

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        """False if there was no room in time, or no answer: then ask again with the same delivery."""
        parcel = seal(pack(self._layout, delivery.unrolls), self._codec)
        return self.put_sealed(parcel, delivery.episodes, delivery.steps, timeout_s)

    def put_sealed(self, parcel: EncodedUnrolls, episodes: Sequence[Episode], steps: int, timeout_s: float) -> bool:
        """The same for unrolls that were sealed already, for a shard."""
        return self.settled(self.ask(RemoteDelivery(parcel, list(episodes), steps), timeout_s), CALL_S + timeout_s)

    def ask(self, sent: RemoteDelivery, stay_s: float = STAY_S) -> RayAnswer[bool]:
        """Ask the desk to take a delivery, which may wait so long for room; `settled` is to be asked next, with the answer."""
        if self._stream is None:
            raise ValueError("put() into an inbox without a stream; give it the name of the sender")
        return RayAnswer(self._desk.put.remote(self._stream, self._number, sent, stay_s))

    def settled(self, answer: RayAnswer[bool], timeout_s: float) -> bool:
        """Whether the delivery was taken. If not, and the answer is `done`, ask again with the same delivery."""
        try:
            there = awaited(answer, "a runner", "the desk to take unrolls", timeout_s)
        except (AnswerLost, TimeoutError):
            return False  # if it has come in, the desk says so when it comes again under the same number
        self._number += there
        return there

    def take(self, timeout_s: float) -> Delivery | None:
        """None if nothing came in time."""
        taken = self.take_sealed(timeout_s)
        if taken is None:
            return None
        return Delivery(unpack(self._layout, unseal(self._layout, taken.parcel)), taken.episodes, taken.steps)

    def take_packed(self, timeout_s: float) -> "RemoteUnrolls | None":
        """The same for `Mixer.queue`."""
        taken = self.take_sealed(timeout_s)
        return None if taken is None else RemoteUnrolls(unseal(self._layout, taken.parcel), *taken[1:])

    def take_sealed(self, timeout_s: float) -> RemoteDelivery | None:
        """The same as it came. A call that is not answered in time is kept: its deliveries are the next ones."""
        deadline = time.monotonic() + timeout_s
        while not self._taken:
            if self._asked is None:
                self._asked = RayAnswer(self._desk.take.remote(AT_ONCE, max(STAY_S, timeout_s)))
            try:
                self._taken.extend(self._asked.result(max(0.0, deadline - time.monotonic())))
            except TimeoutError:
                return None
            except AnswerLost:
                self._asked = None
                return None
            self._asked = None
            if time.monotonic() >= deadline:
                break
        return self._taken.popleft() if self._taken else None


class RayMailbox:
    """A `ParameterMailbox`: each version is put once into the object store of the learner's node, and whoever collects maps it.

    Small ones travel with the calls.

    Every process makes one of its own; `begin` says that this is the learner's.

    Args:
        desk: of the member.
        in_step: publish and collect wait for the desk.
    """

    def __init__(self, desk: Any, *, in_step: bool = False) -> None:
        self._desk, self._in_step = desk, in_step
        self._life: int | None = None  # as a learner
        self._publishing: RayAnswer[None] | None = None
        self._known_life = 0  # of the learner whose parameters were collected last
        self._asked: RayAnswer[Published | None] | None = None

    def begin(self) -> None:
        """Publish from now on, in place of any learner before, also with older versions."""
        self._life = _from_desk(RayAnswer[int](self._desk.begin.remote()), "know a learner")

    def publish(self, parameters: Tensor, version: int) -> None:
        """Replace what is there. Copies once; waits only if the one before has not arrived yet."""
        if self._life is None:
            self.begin()
        if self._publishing is not None:
            _from_desk(self._publishing, "take parameters")
        # What was sent or put is never written again: a reader sees all of one version, whatever is published meanwhile.
        values = parameters.detach().to("cpu").numpy()
        sent = values.copy() if values.nbytes <= SENT_BYTES else [ray().put(values)]
        self._publishing = RayAnswer(self._desk.publish.remote(self._life, version, sent))
        if self._in_step:
            _from_desk(self._publishing, "take parameters")

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy into `into` if there is a newer version, or a learner that has begun again; returns the version that is now there."""
        found = self._look(newer_than)
        if found is None:
            return newer_than
        parameters: np.ndarray[Any, Any] = found.sent
        if isinstance(found.sent, list):
            try:
                parameters = _from_desk(RayAnswer[Any](found.sent[0]), "lead to parameters")
            except (AnswerLost, TimeoutError):  # its learner has died, and took it along; its successor will publish
                return newer_than
        # Into memory on a CPU without a copy in between, and without torch's warning of an array that nobody may write to.
        with torch.no_grad():
            if into.device.type == "cpu" and into.is_contiguous():
                into.detach().numpy()[...] = parameters
            else:
                into.copy_(torch.tensor(parameters))
        self._known_life = found.life
        return found.version

    def _look(self, newer_than: int) -> Published | None:
        """What is to be collected, if that is known already."""
        if self._asked is None:
            self._asked = RayAnswer(
                self._desk.newer.remote(self._known_life, newer_than, 0.0 if self._in_step else STAY_S)
            )
        if not self._in_step and not self._asked.done():
            return None
        try:
            found = _from_desk(self._asked, "say whether there are newer parameters")
        except AnswerLost:
            found = None
        self._asked = None
        if found is None:
            return None
        begun_again = self._known_life not in {0, found.life}
        self._known_life = found.life
        return found if begun_again or found.version > newer_than else None


class RayStop:
    """A `StopSignal` for a whole run: the first reason stays, whoever had it.

    Args:
        desk: of the run. If it is gone, that is a reason.
        in_step: every look is a call.
    """

    def __init__(self, desk: Any, *, in_step: bool = False) -> None:
        self._desk, self._in_step = desk, in_step
        self._reason: str | None = None
        self._asked: RayAnswer[str | None] | None = None

    def request(self, reason: str) -> None:
        """Ask everybody to end; returns when it is known."""
        try:
            self._reason = _from_desk(RayAnswer[str](self._desk.stop.remote(reason)), "hear a reason to stop")
        except (AnswerLost, TimeoutError):
            self._reason = self._reason or reason

    @property
    def reason(self) -> str | None:
        """None while the run goes on."""
        if self._reason is not None:
            return self._reason
        if self._asked is None:
            self._asked = RayAnswer(self._desk.stopped.remote(0.0 if self._in_step else STAY_S))
        if self._in_step or self._asked.done():
            with contextlib.suppress(AnswerLost):  # it may live, and will be asked again
                try:
                    self._reason = _from_desk(self._asked, "say whether to stop")
                except ShardLost:
                    self._reason = GONE
            self._asked = None
        return self._reason


class RayRoster:
    """Who the shards are, as the desk of the run last heard; calling it does not wait, but for the first roster.

    Args:
        desk: of the run.
    """

    def __init__(self, desk: Any) -> None:
        self._desk, self._number = desk, 0
        self._shards: Sequence[RayShard] = ()
        self._asked: RayAnswer[tuple[int, Sequence[RayShard]] | None] | None = None
        self._look(CALL_S)

    def __call__(self) -> Sequence[RayShard]:
        """For a `ShardedReplay`."""
        self._look(0.0)
        return self._shards

    def at(self, place: int) -> RayShard | None:
        """The shard for one of many streams, in turn; None if there is none. For a `Courier`.

        Not that of the stream's own node: actors are not spread evenly, and a shard to which few streams lead keeps what it has for longer
        than the others, so that the members of these streams would have more than their part of the replay.
        """
        shards = self()
        return shards[place % len(shards)] if shards else None

    def _look(self, timeout_s: float) -> None:
        if self._asked is None:
            self._asked = RayAnswer(self._desk.roster.remote(self._number, STAY_S))
        if timeout_s == 0.0 and not self._asked.done():
            return
        try:
            found = _from_desk(self._asked, "say who the shards are") if timeout_s else self._asked.result(0.0)
        except (AnswerLost, TimeoutError):
            found = None
        self._asked = None
        if found is not None:
            self._number, self._shards = found


def post_roster(desk: Any, shards: Sequence[RayShard]) -> int:
    """Tell everybody who the shards are from now on."""
    return _from_desk(RayAnswer[int](desk.post_roster.remote(list(shards))), "hear who the shards are")


def _from_desk(answer: Answer[Result], to: str, more_s: float = 0.0) -> Result:
    return awaited(answer, "a process of the run", f"the desk to {to}", CALL_S + more_s)
