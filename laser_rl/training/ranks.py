"""The other ranks of a learner, seen from rank 0: processes of this machine that learn from their columns of every batch.

Rank 0 is the process with the loop. It fills batches in shared memory, tells the others which of them is next, and updates its own learner
at the same time; within the update they meet (`runtime.team`). Orders and answers are short messages over a socket, and its end says that
a process is gone. Whoever starts a rank also outlives it: a rank dies with the process that started it.
"""

import contextlib
import gc
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from socket import socketpair
from typing import Any

import safetensors.torch
import torch

from laser_rl.agent.learner import Learner
from laser_rl.agent.parallel import Alone
from laser_rl.config import Config
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.envs.worker import Channel, write_spec
from laser_rl.errors import UserError
from laser_rl.training.process_group import ProcessTeam, RankPlace, join, lost_contact, meeting
from laser_rl.training.shared_batches import BatchPlan, SharedBatches
from laser_rl.training.stall import GIVE_UP_S, PATIENCE_S, SAY_AFTER_S, StallWarning
from laser_rl.types import Batch

log = logging.getLogger("laser_rl.training")
END_S, KILL_S = 5.0, 30.0
NOTICE_S = 5.0  # within which the end of a process is seen after a meeting has failed
# It has to die with us from the first moment on, not only after the seconds that torch takes to be imported.
ENTRY = (
    "import sys; from laser_rl.envs.worker import die_with; die_with(int(sys.argv[1])); "
    "from laser_rl.training.rank_process import main; main(int(sys.argv[2]))"
)


class RankLost(UserError):
    """A process that had a part of every batch is gone, or does not answer."""

    exit_status = 4


class _Rank:
    """One other process."""

    def __init__(self, number: int, start: dict[str, Any], files: Sequence[int]) -> None:
        self.number = number
        self.socket, theirs = socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
                [sys.executable, "-c", ENTRY, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *files],
                process_group=0,  # Ctrl-C is for rank 0 to handle
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            )
        self.channel = Channel(self.socket.fileno())
        self.order(start)

    def order(self, order: dict[str, Any]) -> None:
        """Say something; that a process is gone is seen by whoever listens to it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(json.dumps(order).encode())

    def end(self, timeout_s: float) -> None:
        """Wait until it has ended, or end it and all that it started."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(KILL_S)
        self.socket.close()


class RankBatch:
    """One of the shared batches, in the hands of whoever fills and reads it."""

    def __init__(self, ranks: "Ranks", number: int) -> None:
        self._ranks, self.number = ranks, number
        self.own: Batch = ranks.batches.part(number, ranks.team)
        self._whole: Batch = ranks.batches.part(number, Alone())

    @contextlib.contextmanager
    def filling(self) -> Iterator[Batch]:
        """All columns, once every rank has read the last ones."""
        self._ranks.await_read(self.number)
        yield self._whole
        self._ranks.order({"filled": self.number})

    def choose(self) -> None:
        """The next update is from this one."""
        self._ranks.chosen = self.number


class Ranks:
    """All other ranks.

    Args:
        config: as rank 0 has it.
        spec: of its environments; the others have none.
        plan: of the batches.
        devices: of all ranks, rank 0 first.
        torso: "module:name" of a user's torso, if there is one.
        sources: how many members write into the replay.
        timeout_s: how long anybody waits for anybody.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        plan: BatchPlan,
        devices: Sequence[torch.device],
        *,
        torso: str | None = None,
        sources: int = 1,
        timeout_s: float = GIVE_UP_S,
    ) -> None:
        self.batches, self._timeout_s, self._plan = SharedBatches(plan), timeout_s, plan
        self._state, self._meeting = os.memfd_create("laser-state"), os.memfd_create("laser-meeting")
        files = [self.batches.handle, self._state, self._meeting]
        start = {
            "config": config.model_dump(mode="json"),
            "spec": write_spec(spec).decode(),
            "plan": {**plan._asdict(), "layout": asdict(plan.layout)},
            "torso": torso,
            "sources": sources,
            "batches": self.batches.handle,
            "state": self._state,
            "timeout_s": timeout_s,
        }
        self.chosen = -1
        self._told: tuple[int, int] | None = None  # which learner, and its edition
        self._free = list(range(plan.batches))
        self._changed, self._sending, self._closing = threading.Condition(), threading.Lock(), False
        self._owed: dict[str, set[int]] = {}  # which ranks have yet to answer what
        self._lost: dict[int, str] = {}
        self.team = ProcessTeam(0, len(devices))
        self._ranks = [
            _Rank(number, {**start, "device": str(device), "place": self._place(number, len(devices))}, files)
            for number, device in enumerate(devices)
            if number > 0
        ]
        self._owed["start"] = self._numbers
        self._watching = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watching.start()
        try:
            self._await("start", "to start")
            self.team = join(RankPlace(*self._place(0, len(devices))), devices[0], timeout_s=timeout_s)
        except BaseException:
            self.close()
            raise
        if devices[0].type == "cuda":
            self.batches.pin()

    def _place(self, number: int, size: int) -> RankPlace:
        return RankPlace(number, size, meeting(self._meeting))

    @property
    def pids(self) -> list[int]:
        """Of the other ranks' processes."""
        return [rank.process.pid for rank in self._ranks]

    @property
    def _numbers(self) -> set[int]:
        return {rank.number for rank in self._ranks}

    def lend(self) -> RankBatch:
        """A batch to fill and read over and over; it comes back by itself when nobody holds it any more."""
        if not self._free:
            gc.collect()
        if not self._free:
            raise ValueError(f"all {self._plan.batches} shared batches are in use")
        lent = RankBatch(self, self._free.pop())
        weakref.finalize(lent, self._free.append, lent.number)
        return lent

    @contextlib.contextmanager
    def updating(self, learner: Learner, progress: float) -> Iterator[None]:
        """Around rank 0's own update: the others do the same with their columns of the batch that was chosen."""
        self.check()
        if self._told != (edition := (id(learner), learner.edition)):
            self._tell(learner)
            self._told = edition
        self._owe(f"batch {self.chosen}")
        self.order({"update": self.chosen, "progress": progress})
        try:
            yield
        except RuntimeError as error:
            if not lost_contact(error) and not self._lost:
                raise
            raise self._explained(error) from error

    def _tell(self, learner: Learner) -> None:
        """The whole state of rank 0's learner, for all."""
        tensors, numbers = learner.state_dict()
        flat = {f"{group}/{name}": t for group, named in tensors.items() for name, t in named.items()}
        data = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in flat.items()})
        os.ftruncate(self._state, len(data))
        done = 0
        while done < len(data):
            done += os.pwrite(self._state, memoryview(data)[done:], done)
        self._owe("state")
        self.order({"state": len(data), "numbers": numbers})
        self._await("state", "to take the learner's state")

    def order(self, order: dict[str, Any]) -> None:
        """To all, in one order for all."""
        with self._sending:
            for rank in self._ranks:
                rank.order(order)

    def await_read(self, number: int) -> None:
        """Until no rank reads this batch any more."""
        self._await(f"batch {number}", "to learn from a batch")

    def check(self) -> None:
        """`RankLost` if one is gone."""
        if self._lost:
            number, why = next(iter(self._lost.items()))
            raise RankLost(
                f"rank {number} of {self.team.size}, which learns from a part of every batch, {why}; what it said is above. 'laser resume' "
                "goes on from the last checkpoint, and so does 'laser train' with the same --out and --run.devices 1"
            )

    def _explained(self, error: BaseException) -> RankLost:
        """Why the ranks could not meet."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost, NOTICE_S)
        try:
            self.check()
        except RankLost as lost:
            return lost
        silent = sorted(self._owed.get(f"batch {self.chosen}", ())) or sorted(self._numbers)
        return RankLost(
            f"rank 0 has waited up to {self._timeout_s:.0f} s for rank {', '.join(map(str, silent))} in an update and gives up "
            f"({str(error).partition('. ')[0]}); 'laser resume' goes on from the last checkpoint"
        )

    def _owe(self, what: str) -> None:
        with self._changed:
            self._owed[what] = self._numbers

    def _await(self, what: str, whom: str) -> None:
        """Until all have answered; says for whom it waits, and gives up in the end."""
        waiting: StallWarning | None = None
        begin = time.monotonic()
        with self._changed:
            while owing := self._owed.get(what):
                self.check()
                names = f"rank {', '.join(map(str, sorted(owing)))} {whom}"
                if time.monotonic() - begin > self._timeout_s:
                    raise RankLost(f"rank 0 has waited {self._timeout_s:.0f} s for {names} and gives up")
                waiting = waiting or StallWarning("rank 0", names)
                if not self._changed.wait(PATIENCE_S):
                    waiting.again()
        if waiting is not None:
            waiting.over()

    def _watch(self) -> None:
        """A thread: hears answers, sees who is gone, and says for whom an update waits."""
        of_socket, said = {rank.socket: rank for rank in self._ranks}, None
        while of_socket and not self._closing:
            ready, _, _ = select.select(list(of_socket), [], [], PATIENCE_S)
            for sock in ready:
                if not self._hear(of_socket[sock]):
                    del of_socket[sock]
            since = self.team.waiting_since
            if since is not None and since != said and time.monotonic() - since > SAY_AFTER_S:
                said, silent = since, sorted(self._owed.get(f"batch {self.chosen}", ()))
                log.warning(
                    "rank 0 has waited %.0f s for rank %s in an update", SAY_AFTER_S, ", ".join(map(str, silent))
                )

    def _hear(self, rank: _Rank) -> bool:
        """False if it is gone."""
        try:
            answers = rank.channel.receive()
        except (EOFError, ConnectionResetError):
            self._gone(rank)
            return False
        with self._changed:
            for answer in answers:
                self._owed.get(answer.decode(), set()).discard(rank.number)
            self._changed.notify_all()
        return True

    def _gone(self, rank: _Rank) -> None:
        if self._closing:
            return
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = rank.process.wait(END_S)
        with self._changed:
            self._lost.setdefault(rank.number, f"has ended with status {status}")
            self._changed.notify_all()
        self.team.abort()  # of this process alone: whoever waits in a meeting gets an error now

    def close(self) -> None:
        """End all ranks; may be called twice."""
        if self._closing:
            return
        self._closing = True
        self.order({"end": True})
        if self._lost:
            self.team.abort()
        limit = 0.1 if self._lost else END_S  # the others wait for one that will not come
        for rank in self._ranks:
            rank.end(limit)
        self.team.close()
        if threading.current_thread() is not self._watching:
            self._watching.join(END_S)
        # Not the meeting's: torch opens it by its number once more when the last trace of the group is gone, whenever that is. With
        # another file under that number it would not come back.
        for file in (self.batches.handle, self._state):
            os.close(file)
