"""Acting overlaps learning: an actor's thread, a thread that gathers ahead, and the learner in the caller's thread.

The inbox is bounded: an actor that is too fast waits, so no unroll is older than the updates that fit into inbox and gathered batches.
Emulators, torch and the gather give up the interpreter lock while they work; that is what makes threads enough.
"""

import logging
import queue
import threading
import time
from collections import deque

import torch
from torch import Tensor

from laser_rl.agent.actor import Actor
from laser_rl.agent.parameters import FlatParameters
from laser_rl.ports import Delivery, ParameterMailbox, StopSignal, UnrollInbox
from laser_rl.replay.ahead import Ahead, Exhausted
from laser_rl.runtime.build import batch_of, keep_in_step, learn
from laser_rl.runtime.stop import FINISHED
from laser_rl.runtime.training import Training
from laser_rl.types import Batch, Episode, empty_unrolls

log = logging.getLogger("laser_rl.runtime")
PATIENCE_S = 0.2  # how long a thread sleeps before it looks for a stop again
SAY_AFTER_S = 5.0
GIVE_UP_S = 600.0


class ThreadInbox:
    """A bounded queue."""

    def __init__(self, room: int) -> None:
        self._queue: queue.Queue[Delivery] = queue.Queue(room)

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        """False if there was no room in time."""
        try:
            self._queue.put(delivery, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def take(self, timeout_s: float) -> Delivery | None:
        """None if nothing came in time."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None


class ThreadMailbox:
    """The newest parameters, behind a lock."""

    def __init__(self, parameters: Tensor, version: int) -> None:
        self._lock = threading.Lock()
        self._parameters, self._version = parameters.detach().clone(), version

    def publish(self, parameters: Tensor, version: int) -> None:
        """Replace what is there."""
        with self._lock, torch.no_grad():
            self._parameters.copy_(parameters)
            self._version = version

    def collect(self, into: Tensor, newer_than: int) -> int:
        """Copy if newer."""
        if self._version <= newer_than:  # a stale look costs one step with older parameters
            return newer_than
        with self._lock, torch.no_grad():
            into.copy_(self._parameters)
            return self._version


class Waiting:
    """Says for whom it waits after `SAY_AFTER_S`, and gives up after `GIVE_UP_S`."""

    def __init__(self, who: str, whom: str) -> None:
        self._who, self._whom, self._since, self._said = who, whom, time.monotonic(), False

    def again(self) -> None:
        """Another wait was in vain."""
        waited = time.monotonic() - self._since
        if waited > SAY_AFTER_S and not self._said:
            log.warning("%s has waited %.0f s for %s", self._who, waited, self._whom)
            self._said = True
        if waited > GIVE_UP_S:
            raise TimeoutError(f"{self._who} has waited {waited:.0f} s for {self._whom} and gives up")


def run_actor(
    actor: Actor,
    flat: FlatParameters,
    inbox: UnrollInbox,
    mailbox: ParameterMailbox,
    stop: StopSignal,
    lock: threading.Lock,
    steps: int,
    sent: deque[Delivery] | None = None,
) -> None:
    """Act until `steps` more steps are done or somebody asks to stop.

    The lock is held while the actor's state moves. What it hands over is in `sent` before the lock is let go: a checkpoint that had the
    actor's new state but not the unrolls before it would leave a hole in its streams, and lanes would carry a state over it.
    """
    done, episodes, unreported = 0, list[Episode](), 0
    while done < steps and stop.reason is None:
        with lock:
            actor.version = mailbox.collect(flat.value, actor.version)
            taken = actor.step()
            done, unreported = done + taken.steps, unreported + taken.steps
            episodes += taken.episodes
            ended = done >= steps or stop.reason is not None
            if taken.unrolls is None and not ended:
                continue
            unrolls = empty_unrolls(actor.layout, 0) if taken.unrolls is None else taken.unrolls
            delivery = Delivery(unrolls, episodes, unreported)
            if sent is not None:
                sent.append(delivery)
        waiting = Waiting("the actor", "the learner to take unrolls")
        while not inbox.put(delivery, PATIENCE_S):
            if stop.reason is not None:
                return
            waiting.again()
        episodes, unreported = [], 0


class Feed:
    """Fills batches from the inbox, in the thread that gathers ahead; ends after the actor has ended and nothing is left."""

    def __init__(self, training: Training, inbox: UnrollInbox, acting: threading.Event, lock: threading.Lock) -> None:
        self._training, self._inbox, self._acting, self._lock = training, inbox, acting, lock
        self.sent: deque[Delivery] = deque()  # what the actor has handed over and the mixer has not got yet
        self._waiting: Waiting | None = None

    def ready(self, timeout_s: float) -> bool:
        """Whether a batch can be filled, after waiting so long for unrolls at most."""
        mixer = self._training.member.mixer
        with self._lock:
            if mixer.ready():
                return True
        ended = not self._acting.is_set()
        delivery = None if self._training.stop.reason else self._inbox.take(0.0 if ended else timeout_s)
        if delivery is not None:
            self._waiting = None
            with self._lock:
                self.settle()
                return mixer.ready()
        if ended or self._training.stop.reason:
            raise Exhausted
        self._waiting = self._waiting or Waiting("the learner", "unrolls from the actor")
        self._waiting.again()
        return False

    def settle(self) -> None:
        """Everything on its way, to the mixer; with the lock held. What then comes out of the inbox is known already."""
        while self.sent:
            delivery = self.sent.popleft()
            self._training.acted(delivery.steps, delivery.episodes)
            self._training.member.mixer.offer(delivery.unrolls)

    def fill(self, batch: Batch) -> None:
        """One batch."""
        with self._lock:
            self._training.member.mixer.fill(batch)


def run_local(training: Training) -> None:
    """The learner's loop, with the other two threads around it."""
    keep_in_step(training.member)  # what an earlier call had filled ahead is gone
    member, learner, stop = training.member, training.member.learner, training.stop
    flat = FlatParameters(member.acting)
    inbox = ThreadInbox(_room(training))
    mailbox = ThreadMailbox(learner.flat.value, learner.version)
    acting, locks = threading.Event(), (threading.Lock(), threading.Lock())
    acting.set()
    feed = Feed(training, inbox, acting, locks[1])
    threads = torch.get_num_threads()

    def act() -> None:
        torch.set_num_threads(threads)  # a new thread begins with one for each core, whatever was set elsewhere
        try:
            run_actor(member.actor, flat, inbox, mailbox, stop, locks[0], training.steps_left, feed.sent)
        except BaseException as error:
            training.failed(error)
        finally:
            acting.clear()

    thread = threading.Thread(target=act, name="actor", daemon=True)
    batches = [batch_of(member) for _ in range(2)]
    ahead = Ahead(feed.fill, batches, ready=feed.ready)
    thread.start()
    try:
        while (batch := ahead.next(GIVE_UP_S)) is not None:
            learn(member, batch, progress=training.progress)
            mailbox.publish(learner.flat.value, learner.version)
            ahead.give_back(batch)
            training.learned()
            training.between(locks, settle=feed.settle)
    finally:
        stop.request(FINISHED)
        ahead.close()
        thread.join(GIVE_UP_S)
        feed.settle()


def _room(training: Training) -> int:
    """Deliveries in the inbox. One holds at least one unroll."""
    config = training.member.config
    return max(1, config.run.queued_updates * max(1, training.member.counts.online))
