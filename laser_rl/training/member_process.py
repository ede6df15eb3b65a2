"""One process of a run: some of its members, the shared replay, the shared states, and the orders of its parent, with which it dies."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from laser_rl.metrics.log import MetricsLog
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget, DutyCycle
from laser_rl.training.build_group import build_group
from laser_rl.training.launch import run
from laser_rl.training.member_training import Locks, MemberTraining, held
from laser_rl.training.pbt import Exploit, exploit_of
from laser_rl.training.saving import load_learner, parsed, published
from laser_rl.training.settings import settings_from
from laser_rl.training.shared_state import PUBLISH_S, GpuSemaphore, SharedStateStore
from laser_rl.training.trainer import Trainer
from laser_rl.types import UnrollLayout

LOOK_S = 0.05
# Large networks are published more seldom, so that it takes no more of the time than this.
PUBLISH_SHARE, PUBLISH_MOST_S = 0.01, 60.0


class ProcessTrainer(Trainer):
    """The members of this process on their way; checkpoints, decisions and rows about all members are the parent's.

    The `board` has the newest states of all members, `orders` the newest copy that each member is told to make.
    """

    def __init__(self, *arguments: Any, board: SharedStateStore, orders: SharedStateStore, **named: Any) -> None:
        super().__init__(*arguments, steps=board.steps, **named)
        self.board, self._orders, self._looked = board, orders, 0.0
        self.stop.listen = self._listen
        self._publishing = DutyCycle(PUBLISH_S, share=PUBLISH_SHARE, most_s=PUBLISH_MOST_S)
        for training in self.trainings:
            training.by_clock = True  # processes are not deterministic anyway

    def between(self, locks: Locks = (), settle: Callable[[], None] = lambda: None) -> None:
        """Evaluate, obey, publish."""
        for training in self.trainings:
            training.between(locks)
        self._listen()
        copies = self._copies_due()
        if copies or self._publishing.due():
            with held(locks):
                settle()
                for training, exploit, donor in copies:
                    training.become(exploit, parsed(donor).tensors)
                    training.notes["applied"] = exploit.number
                self.save()

    def _listen(self) -> None:
        """Also called within an evaluation, which ends if the process is to stop."""
        if self.board.stop[0]:
            self.stop.interrupt("the parent asks for it")

    def _copies_due(self) -> list[tuple[MemberTraining, Exploit, bytes]]:
        """The copies that were ordered and not made yet, with the donors' states."""
        if time.monotonic() - self._looked < LOOK_S:
            return []
        self._looked, found = time.monotonic(), []
        for training in self.trainings:
            order = self._orders.get(training.member.number)
            exploit = None if order is None else exploit_of(json.loads(order))
            if exploit is not None and exploit.number > training.notes.get("applied", -1):
                donor = self.board.get(exploit.donor)
                found += [] if donor is None else [(training, exploit, donor)]
        return found

    def save(self, *, last: bool = True) -> None:
        """Publish the state of every member here: the parent writes it to disk."""
        with self._publishing.measured():
            for training in self.trainings:
                self.board.put(training.member.number, published(training))

    def go_on(self) -> None:
        """Load the newest states of the members here; steps that were made are made, whatever of their learning was lost.

        All environments are reset, also after a process that died: nothing of its open episodes is known.
        """
        for place, training in enumerate(self.trainings):
            data = self.board.get(training.member.number)
            if data is None:
                continue
            load_learner(training, *parsed(data))
            training.steps = max(training.steps, int(self.board.steps[training.member.number]))
            if training.steps or training.update:
                training.announce("resumed")
            self.pace.move(place, training.steps)
        stores = [member.replay for member in self.group.members]
        written = {number for store in stores if store is not None for number in store.composition()}
        self.group.begin(recorded=any(member.number in written for member in self.group.members))


def main(start: Mapping[str, Any]) -> int:
    """Build, run to the end, publish; see `process_handle.run_child`."""
    sweep = settings_from(start["sweep"])
    numbers: Sequence[int] = start["numbers"]
    handles = {number: Handle(*handle) for number, handle in start["stores"].items()}
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in start["layout"].items()}
    attached = {handle.file: Replay.attach(UnrollLayout(**fields), handle) for handle in set(handles.values())}
    stores = [attached[handles[str(number)].file] for number in numbers] if handles else None
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
