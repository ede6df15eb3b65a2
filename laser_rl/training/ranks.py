"""The other ranks of a learner, seen from rank 0: processes of this machine that learn from their columns of every batch.

Rank 0 is the process with the loop. It fills batches in shared memory, tells the others which of them is next, and updates its own learner
at the same time; within the update they meet (`ProcessTeam`). Orders are lines of JSON on the standard input of a rank; how many of them it
has carried out stands in shared memory. A rank ends with its input, and dies with the process that started it.
"""

import contextlib
import itertools
import json
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import safetensors.torch
import torch

from laser_rl.agent.learner import Learner
from laser_rl.agent.relevance import require_splittable
from laser_rl.checkpoint.snapshot import flat
from laser_rl.config import Config
from laser_rl.envs.records import EnvironmentSpec, write_spec
from laser_rl.errors import ConfigError
from laser_rl.networks.build import TorsoSource, family_of
from laser_rl.training.build import RankLost
from laser_rl.training.process_handle import kill_tree, start_child
from laser_rl.training.rank_process import BATCHES, ProcessTeam, SharedBatches, join, lost_contact
from laser_rl.training.stall import GIVE_UP_S, PATIENCE_S, SAY_AFTER_S, StallWarning
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")
END_S = 5.0
NOTICE_S = 5.0  # within which the end of a process is seen after a meeting has failed
PAUSE_S = 2e-4  # between two looks at what the ranks have done


class Ranks:
    """All other ranks of a configuration's learner, ready to learn. ConfigError where the update cannot be split.

    `device` is that of rank 0; the others have the next ones, on a CPU the same. `sources` members write into the replay. No process
    waits longer than `timeout_s` for another.
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
        self.batches = SharedBatches(layout, config.loss.batch_unrolls, stacked=device.type != "cuda")
        self._state, meeting = os.memfd_create("laser-state"), os.memfd_create("laser-meeting")
        address = f"file:///proc/self/fd/{meeting}"
        start = {
            "config": config.model_dump(mode="json"),
            "spec": write_spec(spec).decode(),
            "torso": None if torso is None else reference_of(torso),
            "sources": sources,
            "size": size,
            "timeout_s": timeout_s,
            "batches": self.batches.handle,
            "state": self._state,
            "address": address,
        }
        self._timeout_s, self._closing, self._lost = timeout_s, False, dict[int, str]()
        self._orders = 1  # that were given; the start is the first
        self._told: tuple[int, int] | None = None  # which learner, and its edition
        self._numbers, self.chosen = itertools.cycle(range(BATCHES)), -1
        self._last_update = [0] * BATCHES  # the order for the last update from each batch
        self.team = ProcessTeam(0, size)
        self._processes = {
            rank: start_child(
                "rank_process",
                {**start, "device": str(devices[rank]), "rank": rank},
                files=[self.batches.handle, self._state, meeting],
                stdin=subprocess.PIPE,
                bufsize=0,
            )
            for rank in range(1, size)
        }
        self._watching = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watching.start()
        try:
            self._wait(self._orders, "to start")
            self.team = join(0, size, address, device, timeout_s=timeout_s)
        except BaseException:
            self.close()
            raise
        if device.type == "cuda":
            self.batches.pin()

    @property
    def pids(self) -> list[int]:
        """Of the other ranks' processes."""
        return [process.pid for process in self._processes.values()]

    def next_batch(self) -> int:
        """The number of a shared batch to fill and read over and over; a runtime has at most `BATCHES` going round."""
        return next(self._numbers)

    def await_read(self, batch: int) -> None:
        """Wait until every rank has read what it was told to learn from this batch."""
        self._wait(self._last_update[batch], "to learn from a batch")

    @contextlib.contextmanager
    def updating(self, learner: Learner, progress: float) -> Iterator[None]:
        """Around rank 0's own update: the others do the same with their columns of the batch that was `chosen`."""
        self._require_all()
        if self._told != (edition := (id(learner), learner.edition)):
            self._tell(learner)
            self._told = edition
        self._last_update[self.chosen] = self._order({"update": self.chosen, "progress": progress})
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
        mmap.mmap(self._state, len(data))[:] = data
        self._wait(self._order({"numbers": numbers}), "to take the learner's state")

    def _order(self, order: dict[str, Any]) -> int:
        """To all; returns the number of the order."""
        line = json.dumps(order).encode() + b"\n"
        for process in self._processes.values():
            assert process.stdin is not None  # noqa: S101
            with contextlib.suppress(OSError):  # the thread that watches sees that it is gone
                process.stdin.write(line)
        self._orders += 1
        return self._orders

    def _require_all(self) -> None:
        """`RankLost` if one is gone."""
        for rank, status in self._lost.items():
            raise RankLost(
                f"rank {rank} of {self.team.size}, which learns from a part of every batch, has ended with status {status}; what it said "
                "is above. 'laser resume' goes on from the last checkpoint, and so does 'laser train' with the same --out and "
                "--run.devices 1"
            )

    def _explained(self, error: BaseException) -> RankLost:
        """Why the ranks could not meet."""
        deadline = time.monotonic() + NOTICE_S
        while not self._lost and time.monotonic() < deadline:
            time.sleep(PATIENCE_S)
        try:
            self._require_all()
        except RankLost as lost:
            return lost
        return RankLost(
            f"rank 0 has waited up to {self._timeout_s:.0f} s for rank {self._late(self._orders) or 'all'} in an update and gives up "
            f"({str(error).partition('. ')[0]}); 'laser resume' goes on from the last checkpoint"
        )

    def _late(self, order: int) -> str:
        return ", ".join(str(rank) for rank in self._processes if self.batches.done[rank] < order)

    def _wait(self, order: int, whom: str) -> None:
        """Until all ranks have carried out an order; warns with the names of those that have not, and raises `RankLost` in the end."""
        waiting = StallWarning("rank 0", whom)
        while late := self._late(order):
            self._require_all()
            waiting.whom = f"rank {late} {whom}"
            if waiting.look() > self._timeout_s:
                raise RankLost(f"rank 0 has waited {self._timeout_s:.0f} s for rank {late} {whom} and gives up")
            waiting.again()
            time.sleep(PAUSE_S)
        waiting.over()

    def _watch(self) -> None:
        """A thread: sees which ranks are gone, and says for whom an update waits."""
        said = None
        while not self._closing:
            for rank, process in self._processes.items():
                if rank not in self._lost and process.poll() is not None and not self._closing:
                    self._lost[rank] = str(process.returncode)
                    self.team.abort()  # of this process alone: a thread that waits in a meeting gets an error now
            since = self.team.waiting_since
            if since is not None and since != said and time.monotonic() - since > SAY_AFTER_S:
                said = since
                log.warning("rank 0 has waited %.0f s for rank %s in an update", SAY_AFTER_S, self._late(self._orders))
            time.sleep(PATIENCE_S)

    def close(self) -> None:
        """End all ranks; may be called twice."""
        if self._closing:
            return
        self._closing = True
        if self._lost:
            self.team.abort()
        for process in self._processes.values():
            assert process.stdin is not None  # noqa: S101
            process.stdin.close()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1 if self._lost else END_S)  # the others wait for one that will not come
            kill_tree(process)
        self.team.close()
        self._watching.join(END_S)
        # Not the meeting's: torch opens it by its number once more when the last trace of the group is gone, whenever that is. With
        # another file under that number it would not come back.
        for file in (self.batches.handle, self._state):
            os.close(file)


def devices_of(first: torch.device, count: int) -> list[torch.device]:
    """From the first on; on a CPU all have the same."""
    if first.type != "cuda":
        return [first] * count
    begin, there = first.index or 0, torch.cuda.device_count()
    if begin + count > there:
        raise ConfigError(
            f"run.devices is {count}, from cuda:{begin} on, but torch sees {there} GPUs here; use --run.devices {max(1, there - begin)}"
        )
    return [torch.device("cuda", number) for number in range(begin, begin + count)]


def reference_of(torso: TorsoSource) -> str:
    """What a user's torso is called where another process can import it, "module:name"; ConfigError where it cannot."""
    module, name = getattr(torso, "__module__", ""), getattr(torso, "__qualname__", "")
    found: object = None if isinstance(torso, torch.nn.Module) or module == "__main__" else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not torso:
        raise ConfigError(
            f"with run.devices other processes build the network as well, and cannot import {torso!r}; hand in a class or a "
            "function of a module (not of the script itself, no lambda, no instance), or use run.devices 1"
        )
    return f"{module}:{name}"
