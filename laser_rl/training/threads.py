"""Acting overlaps learning: an actor's thread, a thread that gathers ahead, and the learner in the caller's thread.

The inbox is bounded: an actor that is too fast waits, so no unroll is older than the updates that fit into inbox and gathered batches.
Emulators, torch and the gather give up the interpreter lock while they work; that is what makes threads enough.

On a GPU each thread has a stream: the learner's is the default one, the actor's goes before it, batches are uploaded on a third.
No thread waits for another's stream, and the learner's waits for the card only to stay near it (`Busy`).
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.parameters import FlatParameters
from laser_rl.gpu_streams import on, own_stream
from laser_rl.ports import Delivery, ParameterMailbox, StopSignal, UnrollOutbox
from laser_rl.replay.prefetcher import Prefetcher
from laser_rl.training.batch_source import BatchSource, PinnedBatch
from laser_rl.training.build import Member, keep_in_step, learn
from laser_rl.training.busy import Busy
from laser_rl.training.depths import queues
from laser_rl.training.mailbox import ThreadMailbox
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.stall import GIVE_UP_S, PATIENCE_S, Gate, StallWarning, join
from laser_rl.training.stop import FINISHED
from laser_rl.training.trainer import Trainer
from laser_rl.types import Batch, Episode, empty_unrolls

PACED_S = 0.0005  # between two looks at the steps of others


class Supply(Protocol):
    """Where a learner's batches come from: a `BatchSource`, or what other machines send."""

    def ready(self, timeout_s: float) -> bool:
        """Whether a batch can be filled, after waiting so long at most; `Exhausted` when nothing will ever come again."""

    def fill(self, batch: Batch) -> None:
        """One batch."""


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

    def depth(self) -> int:
        """Deliveries that wait."""
        return self._queue.qsize()


def run_actor(
    actor: Actor,
    flat: FlatParameters,
    inbox: UnrollOutbox,
    mailbox: ParameterMailbox,
    stop: StopSignal,
    lock: Gate,
    steps: int,
    sent: deque[Delivery] | None = None,
    may_act: Callable[[int], bool] = lambda done: True,
) -> None:
    """Act until `steps` more steps are done or a stop is requested; wait while this member is ahead of others, as `may_act` says.

    The lock is held while the actor's state moves. What it hands over is in `sent` before the lock is let go: a checkpoint that had the
    actor's new state but not the unrolls before it would leave a hole in its streams, and lanes would carry a state over it.
    """
    done, episodes, unreported = 0, list[Episode](), 0
    while done < steps and stop.reason is None:
        if not may_act(done):
            time.sleep(PACED_S)
            continue
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
        waiting = StallWarning("the actor", "the learner to take unrolls")
        while not inbox.put(delivery, PATIENCE_S):
            if stop.reason is not None:
                return
            waiting.again()
        waiting.over()
        episodes, unreported = [], 0


def run_local(trainer: Trainer) -> None:
    """The learner's loop of the only member here, with the other two threads around it."""
    [training] = trainer.trainings
    keep_in_step(training.member)  # what an earlier call had filled ahead is gone
    member, learner, stop = training.member, training.member.learner, training.stop
    flat = FlatParameters(member.acting)
    inbox = ThreadInbox(_room(training))
    mailbox = ThreadMailbox(learner.flat.value, learner.version)
    acting = threading.Event()
    locks = Gate("the actor to finish its step"), Gate("the batch that is being filled")
    acting.set()
    feed = BatchSource(training, inbox, acting, locks[1])
    threads, stream = torch.get_num_threads(), own_stream(learner.device, "acting")

    def act() -> None:
        torch.set_num_threads(threads)  # a new thread begins with one for each core, whatever was set elsewhere
        try:
            with on(stream):
                steps, turn = training.steps_left, _turns(trainer)
                run_actor(member.actor, flat, inbox, mailbox, stop, locks[0], steps, feed.sent, turn)
        except BaseException as error:
            training.failed(error)
        finally:
            acting.clear()

    thread = threading.Thread(target=act, name="actor", daemon=True)
    ahead = gathered(member, feed)
    learning = Learning(training, ahead, mailbox, lambda: trainer.between(locks, settle=feed.settle))
    thread.start()
    try:
        with queues(training, inbox=inbox.depth, batches=ahead.depth):
            learning.run()
    finally:
        stop.request(FINISHED)
        ahead.close()
        join(thread, "the learner", "the actor to end its last step")
        feed.settle()


def _turns(trainer: Trainer) -> Callable[[int], bool]:
    """Whether the member may act that has done so many steps more than now: members of other processes may be behind.

    Its steps are told to them as they are made. Told when their unrolls reach the learner, two members that have delivered none yet would
    wait for each other for ever.
    """
    [training] = trainer.trainings
    begun, pace = training.steps, trainer.pace
    if len(pace.steps) == 1:
        return lambda done: True
    training.moved = lambda steps: None

    def may_act(done: int) -> bool:
        if pace.own_steps(0) != begun + done:
            pace.move(0, begun + done)
        if pace.allows(begun + done):
            return True
        pace.wait()
        return False

    return may_act


class Learning:
    """The learner's loop: an update from each batch, until there are no more.

    Args:
        training: of the member.
        ahead: batches.
        mailbox: gets the parameters of each update.
        between: called after each update.
    """

    def __init__(
        self,
        training: MemberTraining,
        ahead: Prefetcher[PinnedBatch],
        mailbox: ParameterMailbox,
        between: Callable[[], None],
    ) -> None:
        self._training, self._ahead, self._mailbox, self._between = training, ahead, mailbox, between
        self._busy = _measured(training)

    def run(self) -> None:
        """Until the batches end."""
        training, ahead, busy = self._training, self._ahead, self._busy
        member, learner = training.member, training.member.learner
        while (crate := _next(ahead, busy)) is not None:
            with crate.read() as batch, busy.learning():
                learn(member, batch, progress=training.progress)
                self._mailbox.publish(learner.flat.value, learner.version)
            ahead.give_back(crate)
            training.learned()
            self._between()


def gathered(member: Member, feed: Supply) -> Prefetcher[PinnedBatch]:
    """On a GPU one more: the learner's thread gives a batch back when the card has yet to read it."""
    stream = own_stream(member.learner.device, "uploading")
    crates = [PinnedBatch.of(member, stream) for _ in range(2 if stream is None else 3)]
    return Prefetcher(lambda crate: crate.fill(feed.fill), crates, ready=feed.ready)


def _measured(training: MemberTraining) -> Busy:
    """In every row of metrics from now on, instead of what measured an earlier call."""
    busy = Busy(training.member.learner.device)
    training.extra[:] = [more for more in training.extra if not isinstance(getattr(more, "__self__", None), Busy)]
    training.extra.append(busy.report)
    return busy


def _next(ahead: Prefetcher[PinnedBatch], busy: Busy) -> PinnedBatch | None:
    with busy.waiting():
        return ahead.next(GIVE_UP_S)


def _room(training: MemberTraining) -> int:
    """Deliveries in the inbox. Slots are shifted against each other, so a step of all of them ends this many unrolls."""
    config = training.member.config
    at_once = max(1, config.environment.slots // config.loss.unroll_steps)
    return max(1, config.run.queued_updates * max(1, training.member.counts.online) // at_once)
