"""One process of a run: some of its members, and what it shares with the others and with its parent, with which it dies.

They share the replay, how many steps every member has done, its newest state or order, and places for updates on one card.
"""

import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from laser_rl.envs.records import shared_arrays
from laser_rl.gpu_streams import marked, wait_for
from laser_rl.metrics.log import MetricsLog
from laser_rl.metrics.standing import Exploit
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget, DutyCycle
from laser_rl.training.build_group import build_group
from laser_rl.training.launch import run
from laser_rl.training.member_training import MemberTraining, Pause
from laser_rl.training.pbt import exploit_of
from laser_rl.training.saving import load_published, parsed, published
from laser_rl.training.settings import settings_from
from laser_rl.training.stall import StallWarning
from laser_rl.training.trainer import Trainer
from laser_rl.types import UnrollLayout

LOOK_S = 0.05
TAKE_S = 1e-4  # between two looks for a place
PUBLISH_S = 1.0  # so much of a member's learning is lost if its process is killed; with large networks more:
# these are published more seldom, so that it takes no more of the time than this.
PUBLISH_SHARE, PUBLISH_MOST_S = 0.01, 60.0


class States:
    """Every member as it was last published: its steps, and its state as bytes."""

    def __init__(self, members: int) -> None:
        self.members, self.steps = members, np.zeros(members, np.int64)
        self._newest: dict[int, bytes] = {}

    def get(self, member: int) -> bytes:
        """Nothing, if none was published."""
        return self._newest.get(member, b"")

    def put(self, member: int, data: bytes) -> None:
        self._newest[member] = data


class SharedStateStore(States):
    """Shared by the processes of a run: states of at most `size` bytes; `handle` is the file of another process's store, to attach to.

    A state has two places. Its owner writes into the one that is not current, then makes it current: a reader sees a whole state, whenever
    the owner is killed, and the state outlives its owner.
    """

    def __init__(self, members: int, size: int, handle: int | None = None) -> None:
        super().__init__(members)
        self.size = size
        fields = {
            "steps": ((members,), "int64"),
            "ended": ((members,), "int64"),  # 1 once the member's process has done all that was asked of it
            "stop": ((1,), "int64"),  # 1 once all processes are to end
            "current": ((members,), "int64"),  # how many states were put; the newest is in place `current % 2`
            "length": ((members, 2), "int64"),
            "checksum": ((members, 2), "int64"),
            "boxes": ((members, 2, size), "uint8"),
        }
        self.handle, _, arrays = shared_arrays("laser-board", fields, handle)
        self.steps, self.ended, self.stop, self._current, self._length, self._checksum, self._boxes = arrays.values()

    def put(self, member: int, data: bytes) -> None:
        if len(data) > self.size:
            raise ValueError(f"a state of {len(data):,} bytes for a store of {self.size:,}; make the store larger")
        place = int(self._current[member] + 1) % 2
        self._boxes[member, place, : len(data)] = np.frombuffer(data, np.uint8)
        self._length[member, place], self._checksum[member, place] = len(data), zlib.crc32(data)
        self._current[member] += 1  # last: until here the old one counts

    def get(self, member: int) -> bytes:
        for _ in range(100):
            current = int(self._current[member])
            if not current:
                return b""
            place = current % 2
            data = self._boxes[member, place, : int(self._length[member, place])].tobytes()
            # Two newer ones while we read would have gone over this one.
            if zlib.crc32(data) == self._checksum[member, place] and int(self._current[member]) - current < 2:  # noqa: PLR2004
                return data
        raise RuntimeError(f"member {member} publishes faster than it can be read; this should not happen")


class GpuSemaphore:
    """At most so many updates at a time, over all processes that hold the same file: `handle`, of another process's semaphore.

    A large update fills a card by itself, and nine at once make each other slower; a few at once leave no gap between one and the next. A
    process that is killed gives its place back at once: the system holds these locks for it.
    """

    def __init__(self, most: int, handle: int | None = None) -> None:
        self.most = most
        self.handle = os.memfd_create("laser-permits") if handle is None else handle

    @contextmanager
    def one(self, device: torch.device) -> Iterator[None]:
        """Around the launch of an update; ends when the device has done it."""
        place = self._take()
        try:
            yield
            if device.type == "cuda":
                wait_for(marked(device), "a learner", "its update on the card")
        finally:
            fcntl.lockf(self.handle, fcntl.LOCK_UN, 1, place)

    def _take(self) -> int:
        waiting = StallWarning("a learner", "updates of other processes")
        while True:
            for place in range(self.most):
                try:
                    fcntl.lockf(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                except (BlockingIOError, PermissionError):  # either, says POSIX
                    continue
                waiting.over()
                return place
            waiting.again()
            time.sleep(TAKE_S)


class ProcessTrainer(Trainer):
    """The members of this process. The `board` has the newest states of all members, `orders` the copies that they are told to make."""

    def __init__(self, *arguments: Any, board: SharedStateStore, orders: SharedStateStore, **named: Any) -> None:
        super().__init__(*arguments, steps=board.steps, **named)
        self.board, self._orders, self._looked = board, orders, 0.0
        self.stop.listen = self._listen
        self._publishing = DutyCycle(PUBLISH_S, share=PUBLISH_SHARE, most_s=PUBLISH_MOST_S)
        for training in self.trainings:
            training.by_clock = True  # processes are not deterministic anyway

    def between(self, paused: Pause = nullcontext) -> None:
        for training in self.trainings:
            training.between(paused)
        self._listen()
        copies = self._copies_due()
        if copies or self._publishing.due():
            with paused():
                for training, exploit, donor in copies:
                    training.become(exploit, parsed(donor).tensors)
                self.save()

    def _listen(self) -> None:
        """Also called within an evaluation, which ends if the process is to stop."""
        if self.board.stop[0]:
            self.stop.interrupt("the parent asks for it")

    def _copies_due(self) -> list[tuple[MemberTraining, Exploit, bytes]]:
        if time.monotonic() - self._looked < LOOK_S:
            return []
        self._looked, found = time.monotonic(), []
        for training in self.trainings:
            order = self._orders.get(training.member.number)
            if order and not training.has_applied(exploit := exploit_of(json.loads(order))):
                found.append((training, exploit, self.board.get(exploit.donor)))
        return found

    def save(self, *, last: bool = True) -> None:
        with self._publishing.measured():
            for training in self.trainings:
                self.board.put(training.member.number, published(training))

    def go_on(self) -> None:
        """Load the newest states of the members here, and reset all environments."""
        for place, training in enumerate(self.trainings):
            data, made = self.board.get(training.member.number), int(self.board.steps[training.member.number])
            if data:
                load_published(training, data, made)
                self.pace.move(place, training.steps)
        stores = [member.replay for member in self.group.members]
        written = {number for store in stores if store is not None for number in store.composition()}
        self.group.begin(recorded=any(member.number in written for member in self.group.members))


def main(start: Mapping[str, Any]) -> int:
    sweep = settings_from(start["sweep"])
    numbers: Sequence[int] = start["numbers"]
    handles = {number: Handle(*handle) for number, handle in start["stores"].items()}
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in start["layout"].items()}
    attached = {handle: Replay.attach(UnrollLayout(**fields), handle) for handle in set(handles.values())}
    stores = [attached[handles[str(number)]] for number in numbers] if handles else None
    permits = None if start["permits"] is None else GpuSemaphore(*start["permits"])
    board, orders = (SharedStateStore(len(sweep.settings), *start[name]) for name in ("board", "orders"))
    begun = int(board.steps[numbers].sum())
    group = build_group(sweep, numbers=numbers, stores=stores, permits=permits, begun=begun)
    torch.set_num_threads(min(torch.get_num_threads(), start["threads"]))  # fewer where the network is small
    rows, budget = MetricsLog(Path(start["run_dir"])), Budget(**start["budget"])
    trainer = ProcessTrainer(sweep, group, sinks=[rows], board=board, orders=orders, budget=budget)
    try:
        trainer.go_on()
        run(trainer)
        board.ended[numbers] = 1
    finally:
        group.close()
        rows.close()
    return 0
