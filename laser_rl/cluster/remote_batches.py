"""What a learner gets from runners elsewhere, and what stands in place of the actor that it does not have."""

import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from laser_rl.cluster.channels import RayInbox
from laser_rl.cluster.coordinator_client import CoordinatorClient
from laser_rl.cluster.sharded import Emptied
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.replay.prefetcher import Exhausted
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.stall import Gate, StallWarning
from laser_rl.types import Batch

TAKE_S = 0.1
PACED_S = 0.005  # between two looks at the others' steps


class FarEnvironments:
    """Those that the runners of a member step: only what a learner asks of them."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self.faults: Counter[str] = Counter()

    def counters(self, slots: NDArray[np.int64] | None = None) -> Mapping[str, int]:
        """What all of them survived, since this learner began; of the slots of one member, which are all."""
        return dict(self.faults)


class FarActor:
    """In place of an `Actor` of a member whose runners are elsewhere."""

    def __init__(self, spec: EnvironmentSpec, member: int) -> None:
        self.environments, self.member = FarEnvironments(spec), np.array([member])


class RemoteBatchSource:
    """A `Supply` of batches from the deliveries of runners elsewhere, in the thread that gathers ahead.

    What is delivered has been put into the replay by its runner already. A member that is further ahead of the slowest than `slack` steps
    takes nothing; so its desk fills, and its runners wait.

    Args:
        training: of the member.
        inbox: of the member.
        far: counts what environments survived.
        link: knows the steps of the others.
        slack: steps that it may be ahead by.
    """

    def __init__(
        self, training: MemberTraining, inbox: RayInbox, far: FarEnvironments, link: CoordinatorClient, slack: int
    ) -> None:
        self._training, self._inbox, self._far, self._link, self._slack = training, inbox, far, link, slack
        self._lock = Gate("the batch that is being filled")
        self._waiting: StallWarning | None = None

    def ready(self, timeout_s: float) -> bool:
        """Whether a batch can be filled, after waiting so long for unrolls at most."""
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
        if self._waiting is not None:
            self._waiting.over()
        self._waiting = None
        with self._lock:
            return mixer.ready()

    def take(self, timeout_s: float) -> bool:
        """One delivery; False if none came in time."""
        taken = self._inbox.take_packed(timeout_s)
        if taken is None:
            time.sleep(min(timeout_s, PACED_S))  # a desk that is gone answers at once
            return False
        with self._lock:
            self._training.acted(taken.steps, taken.episodes)
            self._training.member.mixer.queue(taken.packed)
            self._far.faults.update(taken.faults)
        self._link.move(self._training.steps)
        return True

    def fill(self, batch: Batch) -> None:
        """One batch. If every shard is lost meanwhile, one of unrolls that come later."""
        while True:
            try:
                with self._lock:
                    self._training.member.mixer.fill(batch)
            except Emptied:
                # Its online unrolls are used up. Runners wait for us to take some, and the replay for the runners.
                while not self.ready(TAKE_S):
                    pass
            else:
                return

    def _wait(self, whom: str) -> bool:
        number = self._training.member.number
        self._waiting = self._waiting or StallWarning(f"the learner of member {number}", whom)
        self._waiting.whom = whom
        self._waiting.again()
        return False
