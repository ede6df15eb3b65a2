"""One agent on several devices: each rank has a copy of the learner, and learns from its own columns of every batch.

Rank 0 is the process with the loop. It fills batches in shared memory, tells the others which of them is next, and updates its own learner
at the same time; within the update all ranks meet (`ProcessTeam`: NCCL between GPUs, gloo elsewhere). The others have no environments, no
replay and no files. Orders are lines of JSON on the standard input of a rank; how many of them it has carried out stands in shared memory.
A rank ends with its input, and dies with the process that started it.
"""

import contextlib
import datetime as dt
import itertools
import json
import logging
import mmap
import os
import pkgutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from laser_rl.agent.learner import Learner
from laser_rl.agent.loss import require_splittable
from laser_rl.agent.parallel import Team, own_columns
from laser_rl.checkpoint.snapshot import flat, grouped
from laser_rl.config import Config, override, validated
from laser_rl.envs.construct import stored_name
from laser_rl.envs.records import EnvironmentSpec, read_spec, shared_arrays, write_spec
from laser_rl.envs.worker import end_group
from laser_rl.errors import ConfigError
from laser_rl.gpu_streams import own_stream
from laser_rl.networks.build import TorsoSource, family_of
from laser_rl.replay.memory_layout import Parts, shape_of, views
from laser_rl.training.build import RankLost, build_learner, layout_of, threads_of
from laser_rl.training.member_group import PinnedBatch
from laser_rl.training.process_handle import start_child
from laser_rl.training.stall import GIVE_UP_S, PATIENCE_S, SAY_AFTER_S, StallWarning
from laser_rl.types import Batch, UnrollLayout

log = logging.getLogger("laser_rl.training")
INTERFACE = "GLOO_SOCKET_IFNAME"
BATCHES = 3  # the most that a runtime has going round
LOST = 5  # exit status: another rank is gone
END_S = 5.0
NOTICE_S = 5.0  # within which the end of a process is seen after a meeting has failed
PAUSE_S = 2e-4  # between two looks at what the ranks have done


class ProcessTeam(Team):
    """One rank of a team; see `laser_rl.agent.parallel.Team`. torch has one default group a process, and this is it."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.waiting_since: float | None = None  # for the other ranks; with NCCL the device waits, not the host

    def sum(self, part: Tensor) -> Tensor:
        """In place, over all ranks; the same bits everywhere, since every element is added up in one place and sent to all."""
        dense = part.contiguous()
        with self._waiting():
            dist.all_reduce(dense)
        return part if dense.data_ptr() == part.data_ptr() else part.copy_(dense)

    def columns(self, part: Tensor) -> Tensor:
        dense = part.contiguous()
        dense = dense.view(torch.uint8) if part.dtype == torch.bool else dense
        every = dense.new_empty(self.size * len(dense), *dense.shape[1:])
        if len(every):
            with self._waiting():
                dist.all_gather(list(every.chunk(self.size)), dense)
        return every.view(torch.bool) if part.dtype == torch.bool else every

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waiting_since = time.monotonic()
        yield
        self.waiting_since = None

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def abort(self) -> None:
        """Leave at once, from any thread: a wait for a rank that is gone ends in an error. NCCL would wait for minutes, gloo sees it."""
        if dist.group.WORLD is not None and dist.get_backend() == "nccl":
            dist.group.WORLD.abort()


def join(
    rank: int, size: int, address: str, device: torch.device, *, timeout_s: float, nccl: bool | None = None
) -> ProcessTeam:
    """Meet the other ranks at a file that all can open, "file:///path"; TimeoutError if they do not come.

    GPUs meet over `nccl`, CPUs over gloo, which also works where two ranks share a GPU, slowly.
    """
    nccl = device.type == "cuda" if nccl is None else nccl
    if dist.is_initialized():
        raise ConfigError(
            "this process is in a group of torch.distributed already, and run.devices needs it for its own; close the other agent, "
            "start the run in a process of its own, or use --run.devices 1"
        )
    given = os.environ.get(INTERFACE)
    os.environ.setdefault(INTERFACE, "lo")  # no other machine needs to reach the sockets
    try:
        limit, card = dt.timedelta(seconds=timeout_s), device if nccl else None
        meeting: dict[str, Any] = {"init_method": address, "rank": rank, "world_size": size}
        dist.init_process_group("nccl" if nccl else "gloo", timeout=limit, device_id=card, **meeting)
    except dist.DistError as error:
        raise TimeoutError(
            f"rank {rank} could not meet the other {size - 1} at {address} within {timeout_s:.0f} s: {error}"
        ) from error
    finally:
        if given is None:
            del os.environ[INTERFACE]
    return ProcessTeam(rank, size)


def _lost_contact(error: BaseException) -> bool:
    """Whether an error says that another rank is gone or does not answer, and not that something is wrong here."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


class SharedBatches:
    """`BATCHES` batches in one file without a name: it goes with the last process that has it. Each rank reads its own columns.

    For a CPU frames are `stacked` on the host. `handle` is the file of another process, to attach to.
    """

    def __init__(
        self, layout: UnrollLayout, columns: int, ranks: int, *, stacked: bool, handle: int | None = None
    ) -> None:
        self._layout, self._columns, sizes = layout, columns, shape_of(layout)
        rows, frame = (layout.steps + 1, sizes.stack) if stacked else (sizes.frame_rows, 1)
        fields: dict[str, tuple[tuple[int, ...], str]] = {"done": ((ranks,), "int64")}
        for number in range(BATCHES):
            fields[f"records{number}"] = ((columns, sizes.record_bytes), "uint8")
            fields[f"frames{number}"] = ((columns, rows, frame * sizes.frame_bytes), "uint8")
        self.handle, self._memory, self._arrays = shared_arrays("laser-batches", fields, handle)
        self.done = self._arrays["done"]  # orders that each rank has carried out

    def part(self, number: int, team: Team) -> Batch:
        """The columns of one rank, or all of them with a team of one; memory as `memory_layout.allocate` makes it."""
        own = own_columns(self._columns, team)
        records, frames = (torch.from_numpy(self._arrays[f"{name}{number}"][own]) for name in ("records", "frames"))
        return views(self._layout, Parts(records, frames))

    def pin(self) -> None:
        """For this process's GPU: uploads from here need no copy in between, and the host does not wait for them."""
        memory = torch.frombuffer(self._memory, dtype=torch.uint8)
        status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), len(memory), 0)  # type: ignore[no-untyped-call]
        if int(status) != 0:
            log.warning("batches could not be pinned for the GPU (status %d): their uploads are slower", int(status))


class Ranks:
    """All other ranks of a configuration's learner, ready to learn. ConfigError where the update cannot be split.

    `device` is that of rank 0; the others have the next ones, on a CPU the same. `sources` members write into the replay.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        layout: UnrollLayout,
        device: torch.device,
        *,
        torso: TorsoSource | None,
        sources: int,
    ) -> None:
        size, devices = config.run.devices, devices_of(device, config.run.devices)
        require_splittable(family_of(spec.action), config.loss, size)
        self.batches = SharedBatches(layout, config.loss.batch_unrolls, size, stacked=device.type != "cuda")
        self._state, meeting = os.memfd_create("laser-state"), os.memfd_create("laser-meeting")
        address = f"file:///proc/self/fd/{meeting}"
        start = {
            "config": config.model_dump(mode="json"),
            "spec": write_spec(spec).decode(),
            "torso": None if torso is None else reference_of(torso),
            "sources": sources,
            "timeout_s": GIVE_UP_S,
            "batches": self.batches.handle,
            "state": self._state,
            "address": address,
        }
        self._closing, self._lost = False, dict[int, int]()  # exit statuses by rank
        self._orders = 1  # that were given; the start is the first
        self._told: tuple[int, int] | None = None  # which learner, and its edition
        self.numbers, self.chosen = itertools.cycle(range(BATCHES)), -1  # of the shared batches
        self._last_update = [0] * BATCHES  # the order for the last update from each batch
        self.team = ProcessTeam(0, size)
        self._processes = {
            rank: start_child(
                "training.ranks",
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
            self.team = join(0, size, address, device, timeout_s=GIVE_UP_S)
        except BaseException:
            self.close()
            raise
        if device.type == "cuda":
            self.batches.pin()

    def await_read(self, batch: int) -> None:
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
            if not _lost_contact(error) and not self._lost:
                raise
            deadline = time.monotonic() + NOTICE_S
            while not self._lost and time.monotonic() < deadline:
                time.sleep(PATIENCE_S)
            self._require_all()
            raise RankLost(
                f"rank 0 has waited up to {GIVE_UP_S:.0f} s for rank {self._late(self._orders) or 'all'} in an update and gives up "
                f"({str(error).partition('. ')[0]}); 'laser resume' goes on from the last checkpoint"
            ) from error

    def _tell(self, learner: Learner) -> None:
        tensors, numbers = learner.state_dict()
        data = safetensors.torch.save({n: tensor.detach().cpu().contiguous() for n, tensor in flat(tensors).items()})
        os.ftruncate(self._state, len(data))
        mmap.mmap(self._state, len(data))[:] = data
        self._wait(self._order({"numbers": numbers}), "to take the learner's state")

    def _order(self, order: dict[str, Any]) -> int:
        line = json.dumps(order).encode() + b"\n"
        for process in self._processes.values():
            assert process.stdin is not None  # noqa: S101
            with contextlib.suppress(OSError):  # the thread that watches sees that it is gone
                process.stdin.write(line)
        self._orders += 1
        return self._orders

    def _require_all(self) -> None:
        for rank, status in self._lost.items():
            raise RankLost(
                f"rank {rank} of {self.team.size}, which learns from a part of every batch, has ended with status {status}; what it said "
                "is above. 'laser resume' goes on from the last checkpoint, and so does 'laser train' with the same --out and "
                "--run.devices 1"
            )

    def _late(self, order: int) -> str:
        return ", ".join(str(rank) for rank in self._processes if self.batches.done[rank] < order)

    def _wait(self, order: int, whom: str) -> None:
        """Until all ranks have carried out an order; warns with the names of those that have not, and raises `RankLost` in the end."""
        waiting = StallWarning("rank 0", whom)
        while late := self._late(order):
            self._require_all()
            waiting.whom = f"rank {late} {whom}"
            if waiting.look() > GIVE_UP_S:
                raise RankLost(f"rank 0 has waited {GIVE_UP_S:.0f} s for rank {late} {whom} and gives up")
            waiting.again()
            time.sleep(PAUSE_S)
        waiting.over()

    def _watch(self) -> None:
        said = None
        while not self._closing:
            for rank, process in self._processes.items():
                status = process.poll()
                if rank not in self._lost and status is not None and not self._closing:
                    self._lost[rank] = status
                    self.team.abort()  # of this process alone: a thread that waits in a meeting gets an error now
            since = self.team.waiting_since
            if since is not None and since != said and time.monotonic() - since > SAY_AFTER_S:
                said = since
                log.warning("rank 0 has waited %.0f s for rank %s in an update", SAY_AFTER_S, self._late(self._orders))
            time.sleep(PATIENCE_S)

    def close(self) -> None:
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
            end_group(process)
        self.team.close()
        self._watching.join(END_S)
        # Not the meeting's: torch opens it by its number once more when the last trace of the group is gone, whenever that is. With
        # another file under that number it would not come back.
        for file in (self.batches.handle, self._state):
            os.close(file)


def devices_of(first: torch.device, count: int) -> list[torch.device]:
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
    name, _ = stored_name(torso)
    if name.startswith("<"):
        raise ConfigError(
            f"with run.devices other processes build the network as well, and cannot import {torso!r}; hand in a class or a "
            "function of a module (not of the script itself, no lambda, no instance), or use run.devices 1"
        )
    return name


def main(start: Mapping[str, Any]) -> int:
    """Another rank: obey until the input ends, however long rank 0 evaluates; if that dies so does this process."""
    try:
        _obey(start)
    except RuntimeError as error:
        if not _lost_contact(error):
            raise
        return LOST  # rank 0 finds out which rank is gone, and says so
    return 0


def _obey(start: Mapping[str, Any]) -> None:
    rank, device = start["rank"], torch.device(start["device"])
    on_card = device.type == "cuda"
    if on_card:
        torch.cuda.set_device(device)
    config = override(validated(start["config"]), {"run.device": str(device)})
    spec, stream = read_spec(start["spec"].encode()), own_stream(device, "uploading")
    layout = layout_of(spec, family_of(spec.action), config)
    size, columns = config.run.devices, config.loss.batch_unrolls
    batches = SharedBatches(layout, columns, size, stacked=not on_card, handle=start["batches"])
    batches.done[rank] += 1
    team = join(rank, size, start["address"], device, timeout_s=start["timeout_s"])
    torso = None if start["torso"] is None else pkgutil.resolve_name(start["torso"])
    learner = build_learner(config, spec, torso, sources=start["sources"], team=team)
    torch.set_num_threads(threads_of(config, learner.network))  # as many as rank 0: sums of as many parts
    if on_card:
        batches.pin()
    pinned = [PinnedBatch(layout, batches.part(number, team), device, stream) for number in range(BATCHES)]
    for order in map(json.loads, sys.stdin.buffer):
        if "numbers" in order:  # take the state of rank 0's learner
            data = mmap.mmap(start["state"], 0, access=mmap.ACCESS_READ)[:]
            learner.load_state_dict(grouped(safetensors.torch.load(data)), order["numbers"])
            batches.done[rank] += 1
            continue
        own = pinned[order["update"]]
        own.fill(lambda _: None)  # rank 0 has filled it; uploaded where there is somewhere to
        if on_card:  # as soon as the upload is over rank 0 may fill it again
            own.handover.await_written(f"rank {rank}", "the upload of a batch")
            batches.done[rank] += 1
        with own.read() as batch:
            learner.update(batch, progress=order["progress"])
        if not on_card:
            batches.done[rank] += 1
    team.close()
