"""One process of a sweep: some of its members, the shared replay, and the board.

Started by `runtime.processes`. It obeys lines of JSON on its standard input, and dies with whoever started it.
"""

import contextlib
import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from laser_rl.errors import EnvironmentEnded, UserError
from laser_rl.metrics.log import MetricsLog
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget
from laser_rl.training.build_group import build_group
from laser_rl.training.duty_cycle import DutyCycle
from laser_rl.training.gpu_semaphore import GpuSemaphore
from laser_rl.training.launch import act_and_learn
from laser_rl.training.member_training import evaluate_last, steps_told
from laser_rl.training.process_handle import ENVIRONMENT_ENDED
from laser_rl.training.saving import load_learner
from laser_rl.training.settings import settings_from
from laser_rl.training.shared_state import PUBLISH_S, SharedStateStore, parsed, published
from laser_rl.training.stop import FINISHED, deaf
from laser_rl.training.supervisor import exploit_of
from laser_rl.training.trainer import Locks, Trainer, become, held
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")
LOOK_S = 0.05
# Large networks are published more seldom, so that it takes no more of the time than this.
PUBLISH_SHARE, PUBLISH_MOST_S = 0.01, 60.0


class ProcessTrainer(Trainer):
    """The members of this process on their way."""

    def __init__(self, *arguments: Any, board: SharedStateStore, orders: int, **named: Any) -> None:
        super().__init__(*arguments, steps=board.steps, **named)
        self.board, self._orders, self._heard = board, orders, b""
        self._looked, self._waiting = 0.0, list[Mapping[str, Any]]()  # orders that have been heard
        self.stop.listen = self.listen
        self._publishing = DutyCycle(PUBLISH_S, share=PUBLISH_SHARE, most_s=PUBLISH_MOST_S)
        for training in self.trainings:
            training.by_clock = True  # processes are not deterministic anyway
        self.applied = dict.fromkeys(self.numbers, -1)  # the newest copy that each member has made

    def between(self, locks: Locks = (), settle: Callable[[], None] = lambda: None) -> None:
        """Evaluate, obey, publish; checkpoints and decisions are made elsewhere."""
        for training in self.trainings:
            training.between(locks)
        self.listen()
        if self._waiting or self._publishing.due():
            with held(locks):
                settle()
                self.obey()
                self.publish()

    def _survey_if_due(self) -> None:
        """The parent sees all members, and does it."""

    def publish(self) -> None:
        """Everybody's state onto the board."""
        with self._publishing.measured():
            for number, training in zip(self.numbers, self.trainings, strict=True):
                training.notes["applied"] = self.applied[number]
                self.board.put(number, published(training))

    def listen(self) -> None:
        """Hear orders, now and then; also within an evaluation, which ends if one is to stop."""
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

    def obey(self) -> None:
        """Become a copy of another member, if one was ordered."""
        while self._waiting:
            self._obey(self._waiting.pop(0))

    def _obey(self, order: Mapping[str, Any]) -> None:
        exploit = exploit_of(order["exploit"])
        place = self.numbers.index(exploit.member)
        state = self.board.get(exploit.donor)
        if exploit.number <= self.applied[exploit.member] or state is None:
            return
        become(self.trainings[place], exploit, parsed(state).tensors)
        self.applied[exploit.member] = exploit.number

    def begin(self) -> None:
        """Reset all environments, also after a process that died: nothing of its open episodes is known."""
        stores = [member.replay for member in self.group.members]
        written = {number for store in stores if store is not None for number in store.composition()}
        self.group.begin(recorded=not written.isdisjoint(self.numbers))

    def go_on(self) -> None:
        """Load what the board has of the members here; steps that were made are made, whatever of their learning was lost."""
        for place, (number, training) in enumerate(zip(self.numbers, self.trainings, strict=True)):
            data = self.board.get(number)
            if data is None:
                continue
            state = parsed(data)
            load_learner(training, state.tensors, state.numbers)
            training.steps = max(training.steps, int(self.board.steps[number]))
            self.applied[number] = training.notes.get("applied", -1)
            if training.steps or training.update:
                training.announce("resumed")
            self.pace.move(place, training.steps)


def run(start: Mapping[str, Any], orders: int) -> None:
    """Build, run to the end, publish."""
    sweep = settings_from(start["sweep"])
    numbers: Sequence[int] = start["numbers"]
    handles = {number: Handle(*handle) for number, handle in start["stores"].items()}
    attached = {handle.file: Replay.attach(_layout(start["layout"]), handle) for handle in set(handles.values())}
    stores = [attached[handles[str(number)].file] for number in numbers] if handles else None
    permits = None if start["permits"] is None else GpuSemaphore(*start["permits"])
    board = SharedStateStore(len(sweep.settings), start["size"], start["board"])
    begun = int(board.steps[numbers].sum())
    crew = build_group(sweep, numbers=numbers, stores=stores, permits=permits, begun=begun)
    torch.set_num_threads(min(torch.get_num_threads(), start["threads"]))  # fewer where the network is small
    log_file = MetricsLog(Path(start["run_dir"]))
    budget = Budget(**start["budget"])
    training = ProcessTrainer(sweep, crew, sinks=[log_file], numbers=numbers, board=board, orders=orders, budget=budget)
    try:
        training.go_on()
        training.begin()
        with steps_told(training.trainings):
            act_and_learn(training)
            training.stop.request(FINISHED)
            for member in training.trainings:
                member.report()
            evaluate_last(training.trainings, training.stop, training.publish)
            for member in training.trainings:
                member.announce("finished" if training.stop.interrupted is None else "stopped")
        training.publish()
        board.ended[numbers] = 1
    finally:
        crew.close()
        log_file.close()


def _layout(values: Mapping[str, Any]) -> UnrollLayout:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return UnrollLayout(**fields)


def main() -> NoReturn:
    """Entry, see `child`: what to do is in a file of memory, orders come on the standard input."""
    deaf()
    logging.basicConfig(format="laser: %(message)s", level=logging.WARNING)
    start = int(sys.argv[2])
    what = os.pread(start, os.fstat(start).st_size, 0)
    os.close(start)
    status = 0
    try:
        run(json.loads(what), sys.stdin.fileno())
    except UserError as error:
        print(f"laser: {error}", file=sys.stderr)
        status = ENVIRONMENT_ENDED if isinstance(error, EnvironmentEnded) else error.exit_status
    except TimeoutError as error:  # of a lock or of another member: it says who blocked this one
        print(f"laser: {error}", file=sys.stderr)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody may be left to hear it
            stream.flush()
    # All is closed, and what Python takes apart on its way out takes longer than all else at a sweep's end.
    os._exit(status)
