"""A learner as an actor: the loop of one machine over the ports of a cluster; or one update at a time, in lock-step."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl.agent.actor import Actor
from laser_rl.cluster.calls import Answer, awaited
from laser_rl.cluster.channels import RUNNERS, SUPERVISOR, News, RemoteDelivery, RunnerInbox, SupervisorLink, Told
from laser_rl.cluster.runner import ActorEnded, ActorStart, ended
from laser_rl.cluster.shard import ShardClient
from laser_rl.cluster.sharded import AHEAD, Emptied, ShardedReplay
from laser_rl.metrics.standing import Exploit
from laser_rl.replay.prefetcher import Exhausted
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget, DutyCycle
from laser_rl.training.build_group import build_members
from laser_rl.training.member_group import MemberGroup
from laser_rl.training.member_process import PUBLISH_S
from laser_rl.training.member_training import MemberTraining, evaluate_last
from laser_rl.training.pbt import Standing
from laser_rl.training.saving import load_published, parsed, published
from laser_rl.training.stall import Gate, StallWarning
from laser_rl.training.stop import FINISHED, Stop
from laser_rl.training.threads import gathered, learn_ahead
from laser_rl.types import Batch

# Large networks are published more seldom, so that it takes no more of the time than this. On their way to the supervisor states are
# copied four times more by other processes, which may have the same cores.
PUBLISH_SHARE, PUBLISH_MOST_S = 0.002, 60.0
# Parameters likewise: a version costs object store and runners as much again. IMPALA's actors fetch once an unroll; an unroll
# of Pong takes half a second, one of CartPole less than PARAMETERS_S: its runners act with older parameters. V-trace corrects that.
PARAMETERS_S, PARAMETERS_SHARE, PARAMETERS_MOST_S = 0.1, 0.015, 0.5
IN_STEP_S = 600.0  # for the delivery of a step in lock-step
PACED_S = 0.005  # between two looks at the others' steps
EMPTY_S = 5.0  # with every shard lost; then new unrolls have to be taken, so that runners make more


class RemoteActor:
    """In place of the `Actor` of a member whose runners are elsewhere, and of its environments: only what a learner asks of them."""

    def __init__(self, member: int) -> None:
        self.member, self.environments = np.array([member]), self
        self.faults: Counter[str] = Counter()  # that the environments survived, since this learner began

    def counters(self, slots: NDArray[np.int64] | None = None) -> Mapping[str, int]:
        return dict(self.faults)


class RemoteBatchSource:
    """Batches from the deliveries of runners elsewhere, used by the thread that fills batches ahead.

    The runner has put what it delivers into the replay already. A member that is further ahead of the slowest than `slack` steps takes
    nothing; so its inbox fills, and its runners wait. The link knows the steps of the others.
    """

    def __init__(
        self, training: MemberTraining, inbox: RunnerInbox, actor: RemoteActor, link: SupervisorLink, slack: int
    ) -> None:
        self._training, self._inbox, self._actor, self._link, self._slack = training, inbox, actor, link, slack
        self._lock = Gate("the batch that is being filled")
        self._waiting = StallWarning(f"the learner of member {training.member.number}", "")

    def ready(self, timeout_s: float) -> bool:
        mixer = self._training.member.mixer
        with self._lock:
            if mixer.ready():
                return True
        if self._training.stop.reason or self._training.done:
            raise Exhausted
        if self._training.steps > self._link.slowest + self._slack:
            self._link.hurry()
            time.sleep(min(timeout_s, PACED_S))
            return self._wait("members that are behind")
        if not self.take(timeout_s):
            return self._wait("unrolls from its runners")
        self._waiting.over()
        with self._lock:
            return mixer.ready()

    def take(self, timeout_s: float) -> bool:
        taken = self._inbox.take(timeout_s)
        if taken is None:
            return False
        packed, delivery = taken
        with self._lock:
            self._training.acted(delivery.steps, delivery.episodes)
            self._training.member.mixer.queue(packed)
            self._actor.faults.update(delivery.faults)
        self._link.move(self._training.steps)
        return True

    def fill(self, batch: Batch) -> None:
        """Fill one batch. If every shard is lost meanwhile, one of unrolls that come later."""
        while True:
            try:
                with self._lock:
                    self._training.member.mixer.fill(batch)
            except Emptied:
                # Its online unrolls are used up. Runners wait for us to take some, and the replay for the runners.
                while not self.ready(0.1):
                    pass
            else:
                return

    def _wait(self, whom: str) -> bool:
        self._waiting.whom = whom
        self._waiting.again()
        return False


class LearnerActor:
    """The actor's class: all of its work is one call of `run`, or many small ones in lock-step.

    Runners and the supervisor call it meanwhile, in threads of their own: see `threads`.
    """

    def __init__(self, start: ActorStart) -> None:
        self._start, self._stop, members = start, Stop(), len(start.sweep.settings)
        room = max(2, start.runners, start.sweep.configs[start.member].run.queued_updates)
        self._inbox = RunnerInbox(room, start.layout)
        self._link = SupervisorLink(self._stop, members, start.steps, start.slack // 4, start.shards or (0, ()))

    @staticmethod
    def threads(runners: int) -> dict[str, int]:
        """Concurrency groups of the actor: two calls of every runner may wait, and one of the supervisor."""
        return {RUNNERS: 2 * runners + 1, SUPERVISOR: 1}

    def put(self, stream: str, number: int, delivery: RemoteDelivery, timeout_s: float) -> bool:
        return self._inbox.put(stream, number, delivery, timeout_s)

    def newer(self, number: int, timeout_s: float) -> tuple[str | None, Any]:
        return self._inbox.newer(number, timeout_s)

    def shards(self) -> Sequence[ShardClient]:
        return self._link.shards[1]

    def exchange(self, number: int, told: Told) -> News:
        return self._link.exchange(number, told)

    def run(self) -> ActorEnded:
        return ended(self._run)

    def _run(self) -> None:
        self.prepare()
        try:
            self._learn_ahead()
            self._finish()
        finally:
            self._link.close()

    def prepare(self) -> None:
        start, store = self._start, None
        if start.shards is not None:
            ahead = 0 if start.in_step else AHEAD
            store = ShardedReplay(start.layout, self.shards, ahead=ahead, empty_s=EMPTY_S)
        stores = None if store is None else [cast("Replay", store)]
        [member] = build_members(start.sweep, numbers=[start.member], stores=stores)
        if not start.in_step:
            torch.set_num_threads(max(1, min(torch.get_num_threads(), start.threads)))
        actor = RemoteActor(start.member)
        member.actor = cast("Actor", actor)
        self.training = MemberTraining(
            member,
            sinks=[self._link],
            numbered=not start.sweep.single,
            stop=self._stop,
            budget=Budget(member.config.run.budget_minutes, spent_s=start.spent_s),
        )
        self.training.by_clock = self.training.by_clock or not start.in_step
        load_published(self.training, start.state, start.steps)
        self._link.move(self.training.steps)
        self._source = RemoteBatchSource(self.training, self._inbox, actor, self._link, start.slack)
        self._publish_parameters()
        self._publishing = DutyCycle(PUBLISH_S, share=PUBLISH_SHARE, most_s=PUBLISH_MOST_S)
        self._group = MemberGroup([member])  # for lock-step

    def _publish_parameters(self) -> None:
        learner = self.training.member.learner
        self._inbox.publish(learner.flat.value, learner.version)

    def _learn_ahead(self) -> None:
        ahead = gathered(self.training.member, self._source.fill, self._source.ready)
        cycle = DutyCycle(PARAMETERS_S, share=PARAMETERS_SHARE, most_s=PARAMETERS_MOST_S)

        def publish() -> None:  # leaves out versions where publishing takes long: the next one is newer anyway
            if cycle.due():
                with cycle.measured():
                    self._publish_parameters()

        try:
            learn_ahead(self.training, ahead, publish, self._between)
        finally:
            self.training.stop.request(FINISHED)
            ahead.close()

    def _between(self) -> None:
        self.training.between()
        if self._link.order is not None:
            exploit, [state] = self._link.order
            if not self.training.has_applied(exploit):
                who, whom = f"member {self._start.member}", f"the state of member {exploit.donor}"
                self.copy(exploit, awaited(Answer(state), who, whom))
        if self._publishing.due():
            self.publish()

    def copy(self, exploit: Exploit, donor: bytes) -> None:
        self.training.become(exploit, parsed(donor).tensors)
        self._publish_parameters()
        self.publish()

    def publish(self) -> bytes:
        with self._publishing.measured():
            state = published(self.training)
            self._link.publish(state)
        return state

    def _finish(self) -> None:
        """After the last update: the last rows, an evaluation, the last state; then the runners may end."""
        training = self.training
        training.stop.request(FINISHED)
        training.report()
        evaluate_last([training], training.stop, self.publish)
        training.announce("finished" if training.stop.interrupted is None else "stopped")
        self.publish()
        self._inbox.stop(FINISHED)

    # In lock-step, where the supervisor says whose turn it is.

    def take(self) -> int:
        if not self._source.take(IN_STEP_S):
            raise TimeoutError(f"the learner of member {self._start.member} waited {IN_STEP_S:.0f} s for its runner")
        return self.training.steps

    def learn(self) -> None:
        while places := self._group.ready():
            self._group.learn(places, [self.training.progress])
            self._publish_parameters()
            self.training.learned()

    def look(self) -> tuple[Standing, dict[str, float]]:
        """After a turn: evaluates if that is due; where the member is, and the present values of what PBT or a search moves."""
        self.training.between()
        learner = self.training.member.learner
        return self.training.standing(), {name: learner.setting(name) for name in self._start.sweep.moved}

    def end(self) -> None:
        self._finish()
        self._link.close()
