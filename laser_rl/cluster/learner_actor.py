"""A learner as an actor: the same loop as `local`, over the ports of a cluster; or one update at a time, in lock-step."""

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.cuda_streams import own_stream
from laser_rl.cluster.actors import RayAnswer
from laser_rl.cluster.channels import CALL_S, GONE, RayInbox, RayMailbox, RayRoster, RayStop
from laser_rl.cluster.client import awaited
from laser_rl.cluster.coordinator_client import CoordinatorClient
from laser_rl.cluster.remote_batches import FarActor, RemoteBatchSource
from laser_rl.cluster.runner import ActorEnded
from laser_rl.cluster.sharded import AHEAD, ShardedReplay
from laser_rl.errors import UserError
from laser_rl.replay.memory_estimate import resolve_codec
from laser_rl.training.batch_source import PinnedBatch
from laser_rl.training.budget import Budget
from laser_rl.training.build import learn
from laser_rl.training.build_group import GroupParts, build_parts
from laser_rl.training.duty_cycle import DutyCycle, ThrottledMailbox
from laser_rl.training.member_training import MemberTraining, evaluate_last
from laser_rl.training.pbt import Exploit, Standing
from laser_rl.training.saving import load_learner
from laser_rl.training.settings import SweepConfig
from laser_rl.training.shared_state import PUBLISH_S, parsed, published
from laser_rl.training.stop import FINISHED, Stop
from laser_rl.training.supervisor import exploit_of
from laser_rl.training.threads import Learning, gathered
from laser_rl.training.trainer import become, sinks_of, standing_of, tuned_of
from laser_rl.types import UnrollLayout

# Large networks are published more seldom, so that it takes no more of the time than this. On their way to the supervisor states are
# copied four times more by others, who may have the same cores.
PUBLISH_SHARE, PUBLISH_MOST_S = 0.002, 60.0
# Parameters likewise: a version costs desk, object store and runners as much again. IMPALA's actors fetch once an unroll; an unroll of
# Pong takes half a second, one of CartPole less than PARAMETERS_S: its runners act with older parameters. V-trace corrects that.
PARAMETERS_S, PARAMETERS_SHARE, PARAMETERS_MOST_S = 0.1, 0.015, 0.5
TAKE_S = 600.0
EMPTY_S = 5.0  # with every shard lost; then new unrolls have to be taken, so that runners make more


@dataclass(frozen=True)
class MemberStart:
    """What a learner begins with; `life` is that of this learner."""

    sweep: SweepConfig
    layout: UnrollLayout
    member: int
    life: int
    state: bytes  # as it was last published
    steps: int  # may be more than the state knows of
    spent_s: float  # of the budget
    slack: int  # steps that it may be ahead of others by
    ledger: Any  # desk of the run
    desk: Any  # of the member
    roster: Any  # the desk that knows the shards; None where nothing is replayed
    in_step: bool = False
    cpus: int = 1


class MemberHost:
    """The actor's class: all of its work is one call of `run`, or many small ones in lock-step.

    Args:
        start: see there.
    """

    def __init__(self, start: MemberStart) -> None:
        self._start = start

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()

    def run(self) -> ActorEnded:
        """Learn until the member's steps are done, the time is over or somebody asks to stop."""
        try:
            self.prepare()
            try:
                self._learn_ahead()
                self.finish()
            finally:
                self._link.close()
        except UserError as error:
            return ActorEnded(error.exit_status, str(error))
        except Exception:  # said by the supervisor, which starts another
            return ActorEnded(1, traceback.format_exc())
        return ActorEnded(1, GONE) if self._link.gone else ActorEnded()

    def prepare(self) -> None:
        """Build all parts, go on from the state, and publish the first parameters."""
        start, stop = self._start, Stop()
        self._parts = self._build()
        config, far = self._parts.configs[0], FarActor(self._parts.spec, start.member)
        members, often = len(start.sweep.settings), start.slack // 4
        self._link = CoordinatorClient(start.ledger, start.member, start.life, stop, members, start.steps, often)
        self.training = MemberTraining(
            self._parts.member(0, cast("Actor", far)),
            sinks=sinks_of(start.sweep, [self._link], start.member),
            stop=stop,
            budget=Budget(config.run.budget_minutes, spent_s=start.spent_s),
        )
        self.training.by_clock = self.training.by_clock or not start.in_step
        self._go_on()
        self.training.extra.append(self._numbers)
        inbox = RayInbox(start.desk, start.layout, codec=resolve_codec(start.layout, config.replay.codec))
        self._intake = RemoteBatchSource(self.training, inbox, far.environments, self._link, start.slack)
        self._mailbox = RayMailbox(start.desk, in_step=start.in_step)
        self._mailbox.begin()
        self._publish_parameters()
        self._publishing = DutyCycle(PUBLISH_S, share=PUBLISH_SHARE, most_s=PUBLISH_MOST_S)
        self._crate: PinnedBatch | None = None

    def _build(self) -> GroupParts:
        start, stores = self._start, None
        if start.roster is not None:
            self._store = ShardedReplay(
                start.layout,
                RayRoster(start.roster),
                ahead=0 if start.in_step else AHEAD,
                stream=f"{start.member}/learner/life-{start.life}",
                codec=resolve_codec(start.layout, start.sweep.base.replay.codec),
                empty_s=EMPTY_S,
            )
            stores = [self._store]
        parts = build_parts(start.sweep, numbers=[start.member], stores=stores)
        if not start.in_step:
            torch.set_num_threads(max(1, min(torch.get_num_threads(), start.cpus)))
        return parts

    def _go_on(self) -> None:
        """Where the member was last published; steps that were made are made, whatever of their learning was lost."""
        state, training = parsed(self._start.state), self.training
        load_learner(training, state.tensors, state.numbers)
        training.steps = max(training.steps, self._start.steps)
        self._applied: int = training.notes.get("applied", -1)
        if training.steps or training.update:
            training.announce("resumed")
        self._link.move(training.steps)

    def _numbers(self) -> dict[str, float]:
        return self._store.counters() if self._start.roster is not None else {}

    def _publish_parameters(self) -> None:
        learner = self.training.member.learner
        self._mailbox.publish(learner.flat.value, learner.version)

    def _learn_ahead(self) -> None:
        ahead = gathered(self.training.member, self._intake)
        try:
            sparing = DutyCycle(PARAMETERS_S, share=PARAMETERS_SHARE, most_s=PARAMETERS_MOST_S)
            Learning(self.training, ahead, ThrottledMailbox(self._mailbox, sparing), self.between).run()
        finally:
            self.training.stop.request(FINISHED)
            ahead.close()

    def between(self) -> None:
        """Evaluate, obey and publish, if due; decisions and checkpoints are made elsewhere."""
        self.training.between()
        self._obey(self._link.order)
        if self._publishing.due():
            self.publish()

    def _obey(self, order: Mapping[str, Any] | None) -> None:
        if order is None:
            return
        exploit = exploit_of(order["exploit"])
        if exploit.number > self._applied:
            donor: RayAnswer[bytes] = RayAnswer(order["state"][0])
            self.copy(
                exploit, awaited(donor, f"member {self._start.member}", f"the state of member {exploit.donor}", CALL_S)
            )

    def copy(self, exploit: Exploit, donor: bytes) -> None:
        """Become a changed copy of the member whose state this is."""
        become(self.training, exploit, parsed(donor).tensors)
        self._applied = exploit.number
        self._publish_parameters()
        self.publish()

    def publish(self) -> bytes:
        """Its state, for the supervisor."""
        with self._publishing.measured():
            self.training.notes["applied"] = self._applied
            state = published(self.training)
            self._link.publish(state)
        return state

    def finish(self) -> None:
        """After the last update: the last rows, an evaluation, the last state; and the runners may end."""
        training = self.training
        training.stop.request(FINISHED)
        training.report()
        evaluate_last([training], training.stop, self.publish)
        training.announce("finished" if training.stop.interrupted is None else "stopped")
        self.publish()
        RayStop(self._start.desk).request(FINISHED)

    # In lock-step, where somebody else says whose turn it is.

    def take(self) -> int:
        """What its runner has just handed over; the member's steps."""
        if not self._intake.take(TAKE_S):
            raise TimeoutError(f"the learner of member {self._start.member} has waited {TAKE_S:.0f} s for its runner")
        return self.training.steps

    def ready(self) -> bool:
        """Whether there is enough for an update."""
        return self.training.member.mixer.ready()

    def learn(self) -> int:
        """One update; how many there were."""
        member = self.training.member
        self._crate = self._crate or PinnedBatch.of(member, own_stream(member.learner.device, "uploading"))
        self._crate.fill(member.mixer.fill)
        with self._crate.read() as batch:
            learn(member, batch, progress=self.training.progress)
        self._publish_parameters()
        self.training.learned()
        return self.training.update

    def look(self) -> tuple[Standing, dict[str, float]]:
        """After a turn: evaluates if that is due, and says where the member is, and the present values of what PBT moves."""
        self.training.between()
        return standing_of(self._start.member, self.training), tuned_of(self.training, self._start.sweep)

    def end(self) -> None:
        """The last calls of a learner in lock-step."""
        self.finish()
        self._link.close()
