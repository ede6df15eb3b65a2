"""Acting overlaps learning: an actor's thread, a thread that gathers ahead, and the learner in the caller's thread.

The inbox is bounded: an actor that is too fast waits, so no unroll is older than the updates that fit into inbox and gathered batches.
Emulators, torch and the gather give up the interpreter lock while they work; that is what makes threads enough.

On a GPU each thread has a stream: the learner's is the default one, the actor's goes before it, batches are uploaded on a third.
No thread waits for another's stream, and the learner's waits for the card only to stay near it (`Busy`).
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.parameters import FlatParameters
from laser_rl.gpu_streams import marked, on, own_stream, wait_for
from laser_rl.replay.prefetcher import Exhausted, Prefetcher
from laser_rl.training.build import Member, keep_in_step, learn
from laser_rl.training.member_group import UNDER_WAY, PinnedBatch, ThreadMailbox
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.stall import GIVE_UP_S, PATIENCE_S, Gate, StallWarning, join
from laser_rl.training.stop import FINISHED
from laser_rl.training.trainer import WAIT_S, Trainer
from laser_rl.types import Batch, Delivery, Episode, ParameterMailbox, StopSignal, UnrollOutbox, empty_unrolls


class Busy:
    """Measures a learner; on a GPU also keeps it from running further ahead of the card than `UNDER_WAY` updates.

    The share of time is that of the learner's stream on a GPU, from the moment at which it has its batch, and of its thread on a CPU.
    Nothing here stalls the card: an update is counted when it is over.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._since = device, time.monotonic()
        self._learned_s = self._waited_s = 0.0
        self._under_way: deque[tuple[Any, Any]] = deque()  # where updates begin and end on the card

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        if self._device.type != "cuda":
            begin = time.monotonic()
            yield
            self._learned_s += time.monotonic() - begin
            return
        while len(self._under_way) >= UNDER_WAY:
            wait_for(self._under_way[0][1], "the learner", "an update on the card")
            self._count()
        begun = marked(self._device, timing=True)
        yield
        self._under_way.append((begun, marked(self._device, timing=True)))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._waited_s += time.monotonic() - begin

    def _count(self) -> None:
        begin, end = self._under_way.popleft()
        self._learned_s += 1e-3 * begin.elapsed_time(end)

    def report(self) -> dict[str, float]:
        while self._under_way and self._under_way[0][1].query():
            self._count()
        now = time.monotonic()
        seconds = max(now - self._since, 1e-9)
        shares = {"learner_busy": self._learned_s / seconds, "learner_wait": self._waited_s / seconds}
        self._learned_s, self._waited_s, self._since = 0.0, 0.0, now
        return shares


class ThreadInbox:
    """A bounded queue; `depth` tells how many deliveries wait."""

    def __init__(self, room: int) -> None:
        self._queue: queue.Queue[Delivery] = queue.Queue(room)
        self.depth = self._queue.qsize

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        try:
            self._queue.put(delivery, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def take(self, timeout_s: float) -> Delivery | None:
        with contextlib.suppress(queue.Empty):
            return self._queue.get(timeout=timeout_s)
        return None


class BatchSource:
    """Fills batches from the inbox, in the thread that gathers ahead; ends after the actor has ended and nothing is left."""

    def __init__(self, training: MemberTraining, inbox: ThreadInbox) -> None:
        self._training, self._inbox, self.ended = training, inbox, threading.Event()  # the actor has ended
        self.stepping, self._lock = Gate("the actor to finish its step"), Gate("the batch that is being filled")
        self.sent: deque[Delivery] = deque()  # what the actor has handed over and the mixer has not got yet
        self._waiting = StallWarning("the learner", "unrolls from the actor")

    def ready(self, timeout_s: float) -> bool:
        mixer = self._training.member.mixer
        with self._lock:
            if mixer.ready():
                return True
        ended = self.ended.is_set()
        delivery = None if self._training.stop.reason else self._inbox.take(0.0 if ended else timeout_s)
        if delivery is not None:
            self._waiting.over()
            with self._lock:
                self.settle()
                return mixer.ready()
        if ended or self._training.stop.reason:
            raise Exhausted
        self._waiting.again()
        return False

    def settle(self) -> None:
        """Everything on its way, to the mixer; with the lock held. What then comes out of the inbox is known already."""
        while self.sent:
            delivery = self.sent.popleft()
            self._training.acted(delivery.steps, delivery.episodes)
            self._training.member.mixer.offer(delivery.unrolls)

    def fill(self, batch: Batch) -> None:
        with self._lock:
            self._training.member.mixer.fill(batch)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within it the actor does not step, no batch is filled, and nothing is on its way."""
        with self.stepping, self._lock:
            self.settle()
            yield


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
            time.sleep(WAIT_S)
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
    [training] = trainer.trainings
    keep_in_step(training.member)  # what an earlier call had filled ahead is gone
    member, learner, stop, config = training.member, training.member.learner, training.stop, training.member.config
    flat, mailbox = FlatParameters(member.acting), ThreadMailbox(learner.flat.value, learner.version)
    # Slots are shifted against each other, so a step of all of them ends this many unrolls.
    at_once = max(1, config.environment.slots // config.loss.unroll_steps)
    inbox = ThreadInbox(max(1, config.run.queued_updates * max(1, member.mixer.counts.online) // at_once))
    feed = BatchSource(training, inbox)
    threads, stream = torch.get_num_threads(), own_stream(learner.device, "acting")

    def act() -> None:
        torch.set_num_threads(threads)  # a new thread begins with one for each core, whatever was set elsewhere
        try:
            with on(stream):
                steps, turn = 0 if training.done else training.target - training.steps, _turns(trainer)
                run_actor(member.actor, flat, inbox, mailbox, stop, feed.stepping, steps, feed.sent, turn)
        except BaseException as error:
            training.failed(error)
        finally:
            feed.ended.set()

    def publish() -> None:
        mailbox.publish(learner.flat.value, learner.version)

    thread = threading.Thread(target=act, name="actor", daemon=True)
    ahead = gathered(member, feed.fill, feed.ready)
    training.extra["queues"] = lambda: {"queue_inbox": inbox.depth(), "queue_batches": ahead.depth()}
    thread.start()
    try:
        learn_ahead(training, ahead, publish, lambda: trainer.between(feed.paused))
    finally:
        del training.extra["queues"]  # batches may be large
        stop.request(FINISHED)
        ahead.close()
        join(thread, "the learner", "the actor to end its last step")
        feed.settle()
        trainer.pace.move(0, training.steps)  # `_turns` told it before the last steps


def _turns(trainer: Trainer) -> Callable[[int], bool]:
    """Whether the member may act that has done so many steps more than now: members of other processes may be behind."""
    # Its steps are told to them as they are made. Told when their unrolls reach the learner, two members that have delivered none yet
    # would wait for each other for ever.
    [training] = trainer.trainings
    begun, pace = training.steps, trainer.pace
    training.moved = lambda steps: None

    def may_act(done: int) -> bool:
        if pace.steps[training.member.number] != begun + done:
            pace.move(0, begun + done)
        if pace.allows(begun + done):
            return True
        pace.wait()
        return False

    return may_act


def learn_ahead(
    training: MemberTraining, ahead: Prefetcher[PinnedBatch], publish: Callable[[], None], between: Callable[[], None]
) -> None:
    """The learner's loop: an update from each batch, until there are no more; then its parameters are published, as part of the update."""
    busy = Busy(training.member.learner.device)
    training.extra["busy"] = busy.report
    while True:
        with busy.waiting():
            pinned = ahead.next(GIVE_UP_S)
        if pinned is None:
            return
        with pinned.read() as batch, busy.learning():
            learn(training.member, batch, progress=training.progress)
            publish()
        ahead.give_back(pinned)
        training.learned()
        between()


def gathered(member: Member, fill: Callable[[Batch], None], ready: Callable[[float], bool]) -> Prefetcher[PinnedBatch]:
    """Filled ahead by a thread. On a GPU one more: the learner's thread gives a batch back when the card has yet to read it."""
    stream = own_stream(member.learner.device, "uploading")
    batches = [PinnedBatch.of(member, stream) for _ in range(2 if stream is None else 3)]
    return Prefetcher(lambda pinned: pinned.fill(fill), batches, ready=ready)
