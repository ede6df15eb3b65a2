"""The other ranks of a learner, seen from rank 0: processes of this machine that learn from their columns of every batch.

Rank 0 is the process with the loop. It fills batches in shared memory, tells the others which of them is next, and updates its own learner
at the same time; within the update they meet (`ProcessTeam`). Orders and answers are short messages over a socket, and its end says that
a process is gone. A rank dies with the process that started it.
"""

import contextlib
import gc
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from socket import socketpair
from typing import Any

import safetensors.torch
import torch

from laser_rl.agent.learner import Learner
from laser_rl.agent.parallel import ALONE
from laser_rl.agent.relevance import require_splittable
from laser_rl.checkpoint.snapshot import flat
from laser_rl.config import Config
from laser_rl.envs.records import EnvironmentSpec, write_spec
from laser_rl.envs.worker import Channel
from laser_rl.errors import ConfigError
from laser_rl.networks.build import TorsoSource, family_of
from laser_rl.training.build import RankLost
from laser_rl.training.process_handle import kill_tree, start_child
from laser_rl.training.rank_process import ProcessTeam, SharedBatches, join, lost_contact
from laser_rl.training.stall import GIVE_UP_S, PATIENCE_S, SAY_AFTER_S, StallWarning
from laser_rl.types import Batch, UnrollLayout

log = logging.getLogger("laser_rl.training")
BATCHES = 3  # the most that a runtime has going round
END_S = 5.0
NOTICE_S = 5.0  # within which the end of a process is seen after a meeting has failed


class _Rank:
    """One other process."""

    def __init__(self, number: int, start: dict[str, Any], files: Sequence[int]) -> None:
        self.number = number
        self.socket, theirs = socketpair()
        with theirs:
            self.process = start_child(
                "rank_process", theirs.fileno(), files=[theirs.fileno(), *files], stdin=subprocess.DEVNULL
            )
        self.channel = Channel(self.socket.fileno())
        self.order(start)

    def order(self, order: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the thread that listens sees that it is gone
            self.channel.send(json.dumps(order).encode())

    def end(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        kill_tree(self.process)


class RankBatch:
    """One of the shared batches, lent to the thread that fills it and the one that reads it."""

    def __init__(self, ranks: "Ranks", number: int) -> None:
        self._ranks, self.number = ranks, number
        self.own: Batch = ranks.batches.part(number, ranks.team)
        self._whole: Batch = ranks.batches.part(number, ALONE)

    @contextlib.contextmanager
    def filling(self) -> Iterator[Batch]:
        """All columns, once every rank has read the last ones."""
        self._ranks.await_answers(f"batch {self.number}", "to learn from a batch")
        yield self._whole
        self._ranks.order({"filled": self.number})

    def choose(self) -> None:
        """The next update is from this one."""
        self._ranks.chosen = self.number


class Ranks:
    """All other ranks of a configuration's learner, ready to learn. ConfigError where the update cannot be split.

    Args:
        config: as rank 0 has it.
        spec: of its environments; the others have none.
        layout: of the unrolls.
        device: of rank 0; the others have the next ones, on a CPU the same.
        torso: a user's torso, if there is one.
        sources: how many members write into the replay.
        timeout_s: how long any process waits for another.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        layout: UnrollLayout,
        device: torch.device,
        *,
        torso: TorsoSource | None = None,
        sources: int = 1,
        timeout_s: float = GIVE_UP_S,
    ) -> None:
        size = config.run.devices
        devices = devices_of(device, size)
        require_splittable(family_of(spec.action), config.loss, size)
        plan: dict[str, Any] = {
            "columns": config.loss.batch_unrolls,
            "count": BATCHES,
            "stacked": device.type != "cuda",
        }
        start = {
            "config": config.model_dump(mode="json"),
            "spec": write_spec(spec).decode(),
            "torso": None if torso is None else _required_reference(torso, size),
            "sources": sources,
            "size": size,
            "timeout_s": timeout_s,
        }
        self.batches, self._timeout_s = SharedBatches(layout, **plan), timeout_s
        self._state, meeting = os.memfd_create("laser-state"), os.memfd_create("laser-meeting")
        start |= {"batches": {**plan, "handle": self.batches.handle}, "state": self._state}
        start |= {"address": (address := f"file:///proc/self/fd/{meeting}")}
        self.chosen = -1
        self._told: tuple[int, int] | None = None  # which learner, and its edition
        self._free = list(range(BATCHES))
        self._changed, self._sending, self._closing = threading.Condition(), threading.Lock(), False
        self._owed: dict[str, set[int]] = {}  # which ranks have yet to answer what
        self._lost: dict[int, str] = {}
        self.team = ProcessTeam(0, size)
        files = [self.batches.handle, self._state, meeting]
        self._ranks = [
            _Rank(number, {**start, "device": str(devices[number]), "rank": number}, files) for number in range(1, size)
        ]
        self._owe("start")
        self._watching = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watching.start()
        try:
            self.await_answers("start", "to start")
            self.team = join(0, size, address, device, timeout_s=timeout_s)
        except BaseException:
            self.close()
            raise
        if device.type == "cuda":
            self.batches.pin()

    @property
    def pids(self) -> list[int]:
        """Of the other ranks' processes."""
        return [rank.process.pid for rank in self._ranks]

    def lend(self) -> RankBatch:
        """A batch to fill and read over and over; it comes back by itself when nothing holds it any more."""
        if not self._free:
            gc.collect()
        if not self._free:
            raise ValueError(f"all {BATCHES} shared batches are in use")
        lent = RankBatch(self, self._free.pop())
        weakref.finalize(lent, self._free.append, lent.number)
        return lent

    @contextlib.contextmanager
    def updating(self, learner: Learner, progress: float) -> Iterator[None]:
        """Around rank 0's own update: the others do the same with their columns of the batch that was chosen."""
        self._require_all()
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
        data = safetensors.torch.save({n: tensor.detach().cpu().contiguous() for n, tensor in flat(tensors).items()})
        os.ftruncate(self._state, len(data))
        done = 0
        while done < len(data):
            done += os.pwrite(self._state, memoryview(data)[done:], done)
        self._owe("state")
        self.order({"state": len(data), "numbers": numbers})
        self.await_answers("state", "to take the learner's state")

    def order(self, order: dict[str, Any]) -> None:
        """To all, in one order for all."""
        with self._sending:
            for rank in self._ranks:
                rank.order(order)

    def _require_all(self) -> None:
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
            self._require_all()
        except RankLost as lost:
            return lost
        return RankLost(
            f"rank 0 has waited up to {self._timeout_s:.0f} s for rank {self._silent() or 'all'} in an update and gives up "
            f"({str(error).partition('. ')[0]}); 'laser resume' goes on from the last checkpoint"
        )

    def _silent(self) -> str:
        return ", ".join(map(str, sorted(self._owed.get(f"batch {self.chosen}", ()))))

    def _owe(self, what: str) -> None:
        with self._changed:
            self._owed[what] = {rank.number for rank in self._ranks}

    def await_answers(self, what: str, whom: str) -> None:
        """Until all have answered; says for whom it waits, and gives up in the end."""
        waiting: StallWarning | None = None
        begin = time.monotonic()
        with self._changed:
            while owing := self._owed.get(what):
                self._require_all()
                names = f"rank {', '.join(map(str, sorted(owing)))} {whom}"
                if time.monotonic() - begin > self._timeout_s:
                    raise RankLost(f"rank 0 has waited {self._timeout_s:.0f} s for {names} and gives up")
                waiting = waiting or StallWarning("rank 0", names)
                if not self._changed.wait(PATIENCE_S):
                    waiting.again()
        if waiting is not None:
            waiting.over()

    def _watch(self) -> None:
        """A thread: hears answers, sees which ranks are gone, and says for whom an update waits."""
        of_socket, said = {rank.socket: rank for rank in self._ranks}, None
        while of_socket and not self._closing:
            ready, _, _ = select.select(list(of_socket), [], [], PATIENCE_S)
            for sock in ready:
                if not self._hear(of_socket[sock]):
                    del of_socket[sock]
            since = self.team.waiting_since
            if since is not None and since != said and time.monotonic() - since > SAY_AFTER_S:
                said = since
                log.warning("rank 0 has waited %.0f s for rank %s in an update", SAY_AFTER_S, self._silent())

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
        self.team.abort()  # of this process alone: a thread that waits in a meeting gets an error now

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
        for rank in self._ranks:  # not before: the thread may be about to read from it
            rank.socket.close()
        # Not the meeting's: torch opens it by its number once more when the last trace of the group is gone, whenever that is. With
        # another file under that number it would not come back.
        for file in (self.batches.handle, self._state):
            os.close(file)


def devices_of(first: torch.device, count: int) -> list[torch.device]:
    """From the first on; on a CPU all have the same.

    >>> devices_of(torch.device("cpu"), 2)
    [device(type='cpu'), device(type='cpu')]
    """
    if first.type != "cuda":
        return [first] * count
    begin, there = first.index or 0, torch.cuda.device_count()
    if begin + count > there:
        raise ConfigError(
            f"run.devices is {count}, from cuda:{begin} on, but torch sees {there} GPUs here; use --run.devices {max(1, there - begin)}"
        )
    return [torch.device("cuda", number) for number in range(begin, begin + count)]


def reference_of(torso: Callable[..., object] | torch.nn.Module) -> str | None:
    """What a user's torso is called where another process can import it, "module:name"; None where it cannot.

    >>> reference_of(torch.nn.Linear)
    'torch.nn.modules.linear:Linear'
    >>> reference_of(lambda shape: None)
    """
    module, name = getattr(torso, "__module__", ""), getattr(torso, "__qualname__", "")
    found: object = sys.modules.get(module)
    if isinstance(torso, torch.nn.Module) or module == "__main__" or found is None:
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is torso else None


def _required_reference(torso: TorsoSource, count: int) -> str:
    reference = reference_of(torso)
    if reference is None:
        raise ConfigError(
            f"run.devices is {count}, so other processes build the network as well, and cannot import {torso!r}; hand in a class or a "
            "function of a module (not of the script itself, no lambda, no instance), or use run.devices 1"
        )
    return reference
