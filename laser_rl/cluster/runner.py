"""An environment runner: some slots of one member, on any node. It acts with the newest parameters and hands over what it makes."""

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.parameters import FlatParameters
from laser_rl.agent.policy import Policy
from laser_rl.cluster.calls import Answer, LongPoll
from laser_rl.cluster.channels import STAY_S, RemoteDelivery, RemoteLearner
from laser_rl.cluster.shard import ShardClient
from laser_rl.envs.make import make_environments
from laser_rl.errors import UserError
from laser_rl.networks.build import family_of
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.memory_estimate import resolve_codec
from laser_rl.replay.memory_layout import Codec, Packed, pack
from laser_rl.training.build import derive, seeded_network, threads_of
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stall import PATIENCE_S, Gate, StallWarning
from laser_rl.training.threads import run_actor
from laser_rl.types import Delivery, UnrollLayout, Unrolls, empty_unrolls

AT_ONCE = 16  # unrolls, at most, that wait for others to travel with
KEPT_S = 0.1  # and how long they wait
FOR_EVER = 1 << 62  # steps
NO_SHARD_S = 0.1  # between two looks for one
STEP_S = 600.0


@dataclass(frozen=True)
class ActorStart:
    """What a learner or a runner begins with: first what all actors of the run have in common."""

    sweep: SweepConfig
    layout: UnrollLayout
    runners: int  # of each member
    slack: int  # steps that a member may be ahead of others by
    in_step: bool
    member: int = 0
    steps: int = 0  # of the member before; may be more than its state knows of
    state: bytes = b""  # of the member, as it was last published; for a learner
    spent_s: float = 0.0  # of the budget
    shards: tuple[int, Sequence[ShardClient]] | None = None  # and which list this is; None: nothing is replayed
    learner: Any = None  # of the member; for a runner
    runner: int = 0  # which of the member's runners
    life: int = 0  # of this actor; part of the names of its streams and seeds
    threads: int = 1  # for its computations

    @property
    def stream(self) -> str:
        """A name that no other runner has, and no earlier life of this one."""
        return f"{self.member}/runner-{self.runner}/{self.steps}/life-{self.life}"

    @property
    def slots(self) -> range:
        slots = self.sweep.base.environment.slots
        own = np.array_split(np.arange(slots), self.runners)[self.runner].tolist()
        return range(own[0], own[-1] + 1)


class ActorEnded(NamedTuple):
    """How an actor of the run ended."""

    status: int = 0  # of an exit
    error: str = ""


def ended(work: Callable[[], None]) -> ActorEnded:
    """Do all the work of an actor; the supervisor logs its error, and starts another."""
    try:
        work()
    except UserError as error:
        return ActorEnded(error.exit_status, str(error))
    except Exception:
        return ActorEnded(1, traceback.format_exc())
    return ActorEnded()


class ReplayWriter:
    """Sends one delivery after the other to a shard: again if the answer is lost, and to another shard if the shard is lost.

    So nothing is lost but what a shard had acknowledged and took with it, and what the runner itself had not had acknowledged when it died.
    The name of a stream is its own, also among earlier lives of the same runner. Streams lead to the shards in turn, by their `place` among
    all. Not to the shard of their own node: actors are not spread evenly, and a shard to which few streams lead keeps what it has for
    longer, so that their members would have more than their part.
    """

    def __init__(self, shards: Callable[[], Sequence[ShardClient]], stream: str, place: int = 0) -> None:
        self._shards, self._stream, self._place = shards, stream, place
        self._shard: ShardClient | None = None
        self._lost: set[int] = set()
        self._number = 0  # of the delivery
        self._poll: LongPoll[bool] | None = None

    def send(self, encoded: Packed, timeout_s: float) -> bool:
        """True if a shard has acknowledged the delivery in time; otherwise the same one has to be sent again."""
        if self._poll is None:
            if self._shard is None and (shards := self._shards()):
                shard = shards[self._place % len(shards)]
                self._shard = None if shard.number in self._lost else shard
            if self._shard is None:
                time.sleep(min(timeout_s, NO_SHARD_S))
                return False
            self._poll = LongPoll(partial(self._shard.insert, self._stream, self._number, encoded))
        taken = self._poll.poll(timeout_s)
        if self._poll.gone and self._shard is not None:
            self._lost.add(self._shard.number)
            self._shard = self._poll = None
        if taken:
            self._number, self._poll = self._number + 1, None
        return bool(taken)


class RunnerOutbox:
    """An `UnrollOutbox` for `run_actor`: collects some deliveries, and hands them to a shard of the replay and to the learner.

    There is no `writer` to a shard where nothing is replayed. `at_once` unrolls travel together, fewer if they would wait too long.
    """

    def __init__(
        self,
        writer: ReplayWriter | None,
        learner: RemoteLearner,
        stream: str,
        layout: UnrollLayout,
        codec: Codec,
        *,
        first_slot: int = 0,
        at_once: int = AT_ONCE,
        faults: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._writer, self._layout, self._codec = writer, layout, codec
        self._first_slot, self._at_once, self._faults = first_slot, at_once, faults
        self._kept: list[Delivery] = []
        self._since = 0.0
        self._number = 0  # of the next delivery
        self._sent: RemoteDelivery | None = None  # on its way
        self._at_shard = self._at_learner = True
        # If an answer is lost, the learner is asked again: it knows the number of a delivery that it has taken.
        self._put: LongPoll[bool] = LongPoll(
            lambda: Answer(learner.method("put").remote(stream, self._number, self._sent, STAY_S))
        )
        self._told: Counter[str] = Counter()

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        """Does not wait, unless what was taken before is still on its way and enough for another time is there already."""
        if self._is_full() and not self._hand_over(timeout_s):
            return False
        self._since = self._since if self._kept else time.monotonic()
        self._kept.append(delivery)
        if self._is_full() or time.monotonic() - self._since >= KEPT_S:
            self._hand_over(0.0)
        return True

    def flush(self, timeout_s: float) -> bool:
        return self._hand_over(timeout_s) and self._has_arrived(timeout_s)

    def _is_full(self) -> bool:
        return sum(len(kept.unrolls.member) for kept in self._kept) >= self._at_once

    def _hand_over(self, timeout_s: float) -> bool:
        if not self._has_arrived(timeout_s):
            return False
        if self._kept:
            self._sent, self._kept = self._encoded(), []
            self._at_shard, self._at_learner = self._writer is None or not self._sent.encoded.unrolls, False
            self._has_arrived(0.0)
        return True

    def _has_arrived(self, timeout_s: float) -> bool:
        if self._sent is None:
            return True
        deadline = time.monotonic() + timeout_s
        self._at_learner = self._at_learner or bool(self._put.poll())  # without waiting: both are called at once
        if self._writer is not None and not self._at_shard:
            self._at_shard = self._writer.send(self._sent.encoded, timeout_s)
        if timeout_s and not self._at_learner:
            self._at_learner = bool(self._put.poll(max(0.0, deadline - time.monotonic())))
        if not (self._at_shard and self._at_learner):
            return False
        self._number, self._sent = self._number + 1, None
        return True

    def _encoded(self) -> RemoteDelivery:
        unrolls = Unrolls(*map(np.concatenate, zip(*(kept.unrolls for kept in self._kept), strict=True)))
        unrolls = unrolls._replace(slot=(unrolls.slot + self._first_slot).astype(unrolls.slot.dtype))
        episodes = [one._replace(slot=one.slot + self._first_slot) for kept in self._kept for one in kept.episodes]
        counted = Counter(self._faults())
        faults, self._told = dict(counted - self._told), counted
        steps = sum(kept.steps for kept in self._kept)
        return RemoteDelivery(seal(pack(self._layout, unrolls), self._codec), episodes, steps, faults)


class Runner:
    """The actor's class; all of its work is one call of `run`, or many of `step` in lock-step."""

    def __init__(self, start: ActorStart) -> None:
        self._start = start

    def run(self) -> ActorEnded:
        return ended(self._run)

    def _run(self) -> None:
        self.prepare()
        learner, gate = self._learner, Gate("the runner to finish its step")
        try:
            self._await_parameters()
            run_actor(self._actor, self._flat, self._outbox, learner, learner, gate, FOR_EVER)
        finally:
            self._actor.environments.close()

    def prepare(self) -> None:
        start, own = self._start, self._start.slots
        config = start.sweep.configs[start.member]
        seed, begun = config.run.seed, bool(start.steps or start.life)
        first = start.in_step and start.runners == 1 and not begun  # with the seeds of a run in one process
        after = "" if first else f"/{start.steps}/runner-{start.runner}/life-{start.life}"
        name, drawn = config.environment.id, derive(seed, f"environments{after}")
        environments = make_environments(name, config.environment, seed=drawn, lockstep=start.in_step, slots=len(own))
        network = seeded_network(config, environments.spec, None)
        torch.set_num_threads(threads_of(config, network) if start.in_step else start.threads)
        policy = Policy(network, family_of(environments.spec.action), seed=derive(seed, f"actions{after}"))
        self._actor = Actor(environments, policy, start.layout, member=start.member)
        self._actor.version = -1
        self._flat = FlatParameters(network)
        self._learner = RemoteLearner(start.learner, in_step=start.in_step)
        place = start.member * start.runners + start.runner
        self._outbox = RunnerOutbox(
            None if start.shards is None else ReplayWriter(self._learner.shards, start.stream, place),
            self._learner,
            start.stream,
            start.layout,
            resolve_codec(start.layout, config.replay.codec),
            first_slot=own[0],
            at_once=1 if start.in_step else min(AT_ONCE, len(own)),
            faults=environments.counters,
        )
        self._actor.begin(recorded=begun)

    def step(self) -> int:
        """In lock-step: one step with the newest parameters, which is over when shard and learner have what it brought."""
        self._actor.version = self._learner.collect(self._flat.value, self._actor.version)
        taken = self._actor.step()
        unrolls = empty_unrolls(self._start.layout, 0) if taken.unrolls is None else taken.unrolls
        delivery = Delivery(unrolls, taken.episodes, taken.steps)
        if not (self._outbox.put(delivery, STEP_S) and self._outbox.flush(STEP_S)):
            raise TimeoutError(f"runner {self._start.stream} could not hand over its unrolls in {STEP_S:.0f} s")
        return taken.steps

    def _await_parameters(self) -> None:
        """Wait for the first parameters of the member: a runner never acts with others."""
        waiting = StallWarning(f"runner {self._start.stream}", "the first parameters of its learner")
        while self._actor.version < 0 and self._learner.reason is None:
            self._actor.version = self._learner.collect(self._flat.value, self._actor.version)
            if self._actor.version < 0:
                waiting.again()
                time.sleep(PATIENCE_S / 10)
        waiting.over()
