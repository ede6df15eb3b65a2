"""One process of a run: some of its members, the shared replay, and the shared states.

Started by `process_handle`. It obeys lines of JSON on its standard input, and dies with its parent.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from laser_rl.metrics.log import MetricsLog
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget, DutyCycle
from laser_rl.training.build_group import build_group
from laser_rl.training.launch import act_and_learn
from laser_rl.training.member_training import Locks, evaluate_last, held, steps_told
from laser_rl.training.pbt import exploit_of
from laser_rl.training.process_handle import run_child
from laser_rl.training.saving import load_learner
from laser_rl.training.settings import settings_from
from laser_rl.training.shared_state import PUBLISH_S, GpuSemaphore, SharedStateStore, parsed, published
from laser_rl.training.stop import FINISHED
from laser_rl.training.trainer import Trainer
from laser_rl.types import UnrollLayout

LOOK_S = 0.05
# Large networks are published more seldom, so that it takes no more of the time than this.
PUBLISH_SHARE, PUBLISH_MOST_S = 0.01, 60.0


class ProcessTrainer(Trainer):
    """The members of this process on their way; checkpoints, decisions and rows about all members are the parent's."""

    def __init__(self, *arguments: Any, board: SharedStateStore, orders: int, **named: Any) -> None:
        super().__init__(*arguments, steps=board.steps, **named)
        self.board, self._orders, self._heard = board, orders, b""
        self._looked, self._waiting = 0.0, list[Mapping[str, Any]]()  # orders that have been heard
        self.stop.listen = self.listen
        self._publishing = DutyCycle(PUBLISH_S, share=PUBLISH_SHARE, most_s=PUBLISH_MOST_S)
        for training in self.trainings:
            training.by_clock = True  # processes are not deterministic anyway

    def between(self, locks: Locks = (), settle: Callable[[], None] = lambda: None) -> None:
        """Evaluate, obey, publish."""
        for training in self.trainings:
            training.between(locks)
        self.listen()
        if self._waiting or self._publishing.due():
            with held(locks):
                settle()
                while self._waiting:
                    self._obey(self._waiting.pop(0))
                self.publish()

    def _survey_if_due(self) -> None:
        """The parent sees all members, and does it."""

    def publish(self) -> None:
        """The state of every member here."""
        with self._publishing.measured():
            for training in self.trainings:
                self.board.put(training.member.number, published(training))

    def listen(self) -> None:
        """Hear orders, now and then; also within an evaluation, which ends if the process is to stop."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        while select.select([self._orders], [], [], 0)[0]:
            data = os.read(self._orders, 1 << 16)
            if not data:
                self.stop.request("its parent is gone")
                return
            *lines, self._heard = (self._heard + data).split(b"\n")
            for order in map(json.loads, lines):
                if "stop" in order:
                    self.stop.interrupt(order["stop"])
                else:
                    self._waiting.append(order)

    def _obey(self, order: Mapping[str, Any]) -> None:
        """Become a copy of another member."""
        exploit = exploit_of(order["exploit"])
        [training] = [one for one in self.trainings if one.member.number == exploit.member]
        state = self.board.get(exploit.donor)
        if exploit.number > training.notes.get("applied", -1) and state is not None:
            training.become(exploit, parsed(state).tensors)
            training.notes["applied"] = exploit.number

    def go_on(self) -> None:
        """Load the newest states of the members here; steps that were made are made, whatever of their learning was lost.

        All environments are reset, also after a process that died: nothing of its open episodes is known.
        """
        for place, training in enumerate(self.trainings):
            data = self.board.get(training.member.number)
            if data is None:
                continue
            state = parsed(data)
            load_learner(training, state.tensors, state.numbers)
            training.steps = max(training.steps, int(self.board.steps[training.member.number]))
            if training.steps or training.update:
                training.announce("resumed")
            self.pace.move(place, training.steps)
        stores = [member.replay for member in self.group.members]
        written = {number for store in stores if store is not None for number in store.composition()}
        self.group.begin(recorded=any(member.number in written for member in self.group.members))


def run(start: Mapping[str, Any], orders: int) -> None:
    """Build, run to the end, publish."""
    sweep = settings_from(start["sweep"])
    numbers: Sequence[int] = start["numbers"]
    handles = {number: Handle(*handle) for number, handle in start["stores"].items()}
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in start["layout"].items()}
    attached = {handle.file: Replay.attach(UnrollLayout(**fields), handle) for handle in set(handles.values())}
    stores = [attached[handles[str(number)].file] for number in numbers] if handles else None
    permits = None if start["permits"] is None else GpuSemaphore(*start["permits"])
    board = SharedStateStore(len(sweep.settings), start["size"], start["board"])
    begun = int(board.steps[numbers].sum())
    group = build_group(sweep, numbers=numbers, stores=stores, permits=permits, begun=begun)
    torch.set_num_threads(min(torch.get_num_threads(), start["threads"]))  # fewer where the network is small
    rows, budget = MetricsLog(Path(start["run_dir"])), Budget(**start["budget"])
    trainer = ProcessTrainer(sweep, group, sinks=[rows], board=board, orders=orders, budget=budget)
    try:
        trainer.go_on()
        with steps_told(trainer.trainings):
            act_and_learn(trainer)
            trainer.stop.request(FINISHED)
            for training in trainer.trainings:
                training.report()
            evaluate_last(trainer.trainings, trainer.stop, trainer.publish)
            for training in trainer.trainings:
                training.announce("finished" if trainer.stop.interrupted is None else "stopped")
        trainer.publish()
        board.ended[numbers] = 1
    finally:
        group.close()
        rows.close()


def main(start: int) -> NoReturn:
    """Entry, see `process_handle.start_child`: what to do is in a file of memory, orders come on the standard input."""
    what = os.pread(start, os.fstat(start).st_size, 0)
    os.close(start)

    def whole() -> int:
        run(json.loads(what), sys.stdin.fileno())
        return 0

    run_child(whole)
