"""An environment runner: some slots of one member, on whichever node. It acts with the newest parameters and hands over what it makes."""

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.parameters import FlatParameters
from laser_rl.agent.policy import Policy
from laser_rl.cluster.actors import RayAnswer
from laser_rl.cluster.channels import RayInbox, RayMailbox, RayRoster, RayStop
from laser_rl.cluster.member_coordinator import RemoteDelivery
from laser_rl.cluster.replay_writer import ReplayWriter
from laser_rl.errors import UserError
from laser_rl.networks.build import family_of
from laser_rl.ports import Delivery
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.memory_estimate import Codec, resolve_codec
from laser_rl.replay.records import pack
from laser_rl.training.build import derive, open_environments, seeded_network, threads_of
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stall import PATIENCE_S, Gate, StallWarning
from laser_rl.training.threads import run_actor
from laser_rl.types import UnrollLayout, Unrolls, empty_unrolls

AT_ONCE = 16  # unrolls, at most, that wait for others to travel with
KEPT_S = 0.1  # and how long they wait
FOR_EVER = 1 << 62  # steps
STEP_S = 600.0


class ActorEnded(NamedTuple):
    """How an actor of the run ended."""

    status: int = 0  # of an exit
    error: str = ""


@dataclass(frozen=True)
class RunnerStart:
    """What a runner begins with; `life` is that of this runner, and part of the names of its streams and seeds."""

    sweep: SweepConfig
    layout: UnrollLayout
    member: int
    runner: int
    runners: int  # of this member
    life: int
    begun: int  # steps of the member before
    desk: Any  # of the member
    roster: Any  # the desk that knows the shards; None where nothing is replayed
    in_step: bool = False
    cpus: int = 1

    @property
    def stream(self) -> str:
        """A name that nobody else has, and no earlier life."""
        return f"{self.member}/runner-{self.runner}/{self.begun}/life-{self.life}"

    @property
    def slots(self) -> range:
        """Those of the member's that are played here.

        >>> from laser_rl.config import Config, override
        >>> sweep = SweepConfig(base=override(Config(), {"slots": 8}), grid={"learning_rate": (1e-3,)})
        >>> [RunnerStart(sweep, None, 0, runner, 3, 0, 0, None, None).slots for runner in range(3)]
        [range(0, 3), range(3, 6), range(6, 8)]
        """
        own = np.array_split(np.arange(self.sweep.base.environment.slots), self.runners)[self.runner].tolist()
        return range(own[0], own[-1] + 1)


class Sender:
    """An `UnrollOutbox` for `run_actor`: gathers some deliveries, and hands them to a shard of the replay and to the learner.

    Args:
        courier: to a shard; None where nothing is replayed.
        inbox: of the member.
        layout: of the unrolls.
        codec: of the shards.
        first_slot: of the member's slots, the first that is played here.
        at_once: unrolls that travel together; fewer if they would wait too long.
        faults: of the environments, counted from the beginning.
    """

    def __init__(
        self,
        courier: ReplayWriter | None,
        inbox: RayInbox,
        layout: UnrollLayout,
        codec: Codec,
        *,
        first_slot: int = 0,
        at_once: int = AT_ONCE,
        faults: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._courier, self._inbox, self._layout, self._codec = courier, inbox, layout, codec
        self._first_slot, self._at_once, self._faults = first_slot, at_once, faults
        self._kept: list[Delivery] = []
        self._since = 0.0
        self._sealed: RemoteDelivery | None = None  # on its way
        self._at_shard = False  # whether the courier has it
        self._asked: RayAnswer[bool] | None = None  # whether the desk has it
        self._told: Counter[str] = Counter()

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        """Does not wait, unless what was taken before is still on its way and enough for another time is there already."""
        if self._unrolls() >= self._at_once and not self.hand_over(timeout_s):
            return False
        self._since = self._since if self._kept else time.monotonic()
        self._kept.append(delivery)
        if self._unrolls() >= self._at_once or time.monotonic() - self._since >= KEPT_S:
            self.hand_over(0.0)
        return True

    def hand_over(self, timeout_s: float) -> bool:
        """Whether all that was taken is on its way at least, and what was on its way before is with the courier and the desk."""
        if not self._through(timeout_s):
            return False
        if self._kept:
            self._sealed, self._at_shard, self._kept = self._seal(), False, []
            self._through(0.0)
        return True

    def _through(self, timeout_s: float) -> bool:
        """Whether nothing is on its way any more."""
        if self._sealed is None:
            return True
        deadline = time.monotonic() + timeout_s
        if self._courier is not None and self._sealed.parcel.unrolls and not self._at_shard:
            self._at_shard = self._courier.send(self._sealed.parcel, timeout_s)
            if not self._at_shard:
                return False
        self._asked = self._asked or self._inbox.ask(self._sealed)
        if timeout_s == 0.0 and not self._asked.done():
            return False
        there = self._inbox.settled(self._asked, max(0.0, deadline - time.monotonic()))
        self._asked = None if self._asked.done() else self._asked
        self._sealed = None if there else self._sealed
        return there

    def flush(self, timeout_s: float) -> bool:
        """Whether everything has arrived, and the shard has acknowledged it."""
        arrived = self.hand_over(timeout_s) and self._through(timeout_s)
        return arrived and (self._courier is None or self._courier.flush(timeout_s))

    def _unrolls(self) -> int:
        return sum(len(kept.unrolls.member) for kept in self._kept)

    def _seal(self) -> RemoteDelivery:
        unrolls = Unrolls(*map(np.concatenate, zip(*(kept.unrolls for kept in self._kept), strict=True)))
        unrolls = unrolls._replace(slot=(unrolls.slot + self._first_slot).astype(unrolls.slot.dtype))
        episodes = [one._replace(slot=one.slot + self._first_slot) for kept in self._kept for one in kept.episodes]
        counted = self._faults()
        faults = {name: count - self._told[name] for name, count in counted.items() if count != self._told[name]}
        self._told = Counter(counted)
        steps = sum(kept.steps for kept in self._kept)
        return RemoteDelivery(seal(pack(self._layout, unrolls), self._codec), episodes, steps, faults)


class Runner:
    """The actor's class; all of its work is one call of `run`, or many of `step` in lock-step.

    Args:
        start: see there.
    """

    def __init__(self, start: RunnerStart) -> None:
        self._start = start

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()

    def run(self) -> ActorEnded:
        """Act until the member's desk says that it is over."""
        try:
            self.prepare()
            stop, gate = RayStop(self._start.desk), Gate("the runner to finish its step")
            try:
                self._first_parameters(stop)
                run_actor(self._actor, self._flat, self._sender, self._mailbox, stop, gate, FOR_EVER)
            finally:
                self._actor.environments.close()
        except UserError as error:
            return ActorEnded(error.exit_status, str(error))
        except Exception:  # said by the supervisor, which starts another
            return ActorEnded(1, traceback.format_exc())
        return ActorEnded()

    def prepare(self) -> None:
        """Environments, network, actor; the environments are reset."""
        start, config = self._start, self._start.sweep.configs[self._start.member]
        own, seed = start.slots, config.run.seed
        alone = start.in_step and start.runners == 1 and not start.begun and not start.life
        after = "" if alone else f"/{start.begun}/runner-{start.runner}/life-{start.life}"
        environments = open_environments(
            config.environment.id,
            config.environment,
            seed=derive(seed, f"environments{after}"),
            lockstep=start.in_step,
            slots=len(own),
        )
        family = family_of(environments.spec.action)
        network = seeded_network(config, environments.spec, None)
        torch.set_num_threads(threads_of(config, network) if start.in_step else start.cpus)
        policy = Policy(network, family, seed=derive(seed, f"actions{after}"))
        self._actor, self._flat = (
            Actor(environments, policy, start.layout, member=start.member),
            FlatParameters(network),
        )
        self._actor.version = -1
        self._mailbox = RayMailbox(start.desk, in_step=start.in_step)
        codec = resolve_codec(start.layout, config.replay.codec)
        courier = None
        if start.roster is not None:
            place = start.member * start.runners + start.runner
            courier = ReplayWriter(partial(RayRoster(start.roster).at, place), start.stream)
        inbox = RayInbox(start.desk, start.layout, start.stream, codec=codec)
        at_once = 1 if start.in_step else min(AT_ONCE, len(own))
        self._sender = Sender(
            courier, inbox, start.layout, codec, first_slot=own[0], at_once=at_once, faults=environments.counters
        )
        self._actor.begin(recorded=bool(start.begun or start.life))

    def step(self) -> int:
        """In lock-step: one step with the newest parameters, which is over when shard and desk have what it brought."""
        self._actor.version = self._mailbox.collect(self._flat.value, self._actor.version)
        taken = self._actor.step()
        unrolls = empty_unrolls(self._start.layout, 0) if taken.unrolls is None else taken.unrolls
        whole = self._sender.put(Delivery(unrolls, taken.episodes, taken.steps), STEP_S) and self._sender.flush(STEP_S)
        if not whole:
            raise TimeoutError(f"runner {self._start.stream} could not hand over its unrolls in {STEP_S:.0f} s")
        return taken.steps

    def _first_parameters(self, stop: RayStop) -> None:
        """Nobody acts with other parameters than its member's."""
        waiting = StallWarning(f"runner {self._start.stream}", "the first parameters of its learner")
        while self._actor.version < 0 and stop.reason is None:
            self._actor.version = self._mailbox.collect(self._flat.value, self._actor.version)
            if self._actor.version < 0:
                waiting.again()
                time.sleep(PATIENCE_S / 10)
        waiting.over()
