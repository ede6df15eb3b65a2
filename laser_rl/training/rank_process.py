"""One of the ranks of a learner: what all of them share, and what the others than rank 0 do.

They share a process group of torch.distributed (NCCL between GPUs, gloo elsewhere), and batches in memory that rank 0 fills.
The other ranks have no environments, no replay and no files: each obeys rank 0 (`ranks`), and dies with it.
"""

import contextlib
import datetime as dt
import json
import logging
import mmap
import os
import pkgutil
import sys
import time
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from laser_rl.agent.parallel import Team, own_columns
from laser_rl.checkpoint.snapshot import grouped
from laser_rl.config import override, validated
from laser_rl.envs.records import read_spec
from laser_rl.errors import ConfigError
from laser_rl.gpu_streams import own_stream
from laser_rl.networks.build import family_of
from laser_rl.replay.records import Parts, shape_of, views
from laser_rl.training.build import build_learner, layout_of, threads_of
from laser_rl.training.member_group import PinnedBatch
from laser_rl.training.stall import GIVE_UP_S
from laser_rl.types import Batch, UnrollLayout

log = logging.getLogger("laser_rl.training")
Backend = Literal["nccl", "gloo"]
INTERFACE = "GLOO_SOCKET_IFNAME"
PAGE = 4096
BATCHES = 3  # the most that a runtime has going round
LOST = 5  # exit status: another rank is gone


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
        """One rank's after the other's."""
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
        """Leave the group in good order; all ranks do it."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def abort(self) -> None:
        """Leave at once, from any thread: a wait for a rank that is gone ends in an error. NCCL would wait for minutes, gloo sees it."""
        group = dist.group.WORLD
        if group is not None and dist.get_backend() == "nccl":
            group.abort()


def join(
    rank: int,
    size: int,
    address: str,
    device: torch.device,
    *,
    backend: Backend | None = None,
    timeout_s: float = GIVE_UP_S,
) -> ProcessTeam:
    """Meet the other ranks at a file that all can open, "file:///path"; returns when all are there.

    Args:
        rank: of this process.
        size: how many there are.
        address: of the file.
        device: of this rank's learner; with NCCL each rank has one of its own.
        backend: None: NCCL for GPUs, gloo for CPUs. gloo also works where two ranks share a GPU, slowly.
        timeout_s: for the meeting (then a TimeoutError names the address) and for each operation.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process is in a group of torch.distributed already, and run.devices needs it for its own; close the other agent, "
            "start the run in a process of its own, or use --run.devices 1"
        )
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    with _loopback():  # no other machine needs to reach the sockets
        try:
            dist.init_process_group(
                backend,
                init_method=address,
                rank=rank,
                world_size=size,
                timeout=dt.timedelta(seconds=timeout_s),
                device_id=device if backend == "nccl" else None,
            )
        except dist.DistError as error:
            raise TimeoutError(
                f"rank {rank} could not meet the other {size - 1} at {address} within {timeout_s:.0f} s: {error}"
            ) from error
    return ProcessTeam(rank, size)


def lost_contact(error: BaseException) -> bool:
    """Whether an error says that another rank is gone or does not answer, and not that something is wrong here."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Gloo listens where this variable says, otherwise wherever the host's name leads."""
    given = os.environ.get(INTERFACE)
    os.environ.setdefault(INTERFACE, "lo")
    try:
        yield
    finally:
        if given is None:
            del os.environ[INTERFACE]


class SharedBatches:
    """`BATCHES` batches in one file without a name: it goes with the last process that has it. Each rank reads its own columns.

    For a CPU frames are `stacked` on the host. `handle` is the file of another process, to attach to.
    """

    def __init__(self, layout: UnrollLayout, columns: int, *, stacked: bool, handle: int | None = None) -> None:
        self.layout, self._columns = layout, columns
        sizes, steps = shape_of(layout), layout.steps
        frames = (steps + 1, sizes.stack * sizes.frame_bytes) if stacked else (sizes.frame_rows, sizes.frame_bytes)
        self._shapes = ((sizes.record_bytes,), frames)  # of the two blocks of a batch, for one column
        self._bytes = [-(-columns * prod(shape) // PAGE) * PAGE for shape in self._shapes]
        size = PAGE + BATCHES * sum(self._bytes)
        self.handle = os.memfd_create("laser-batches") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, size)
        self._memory = mmap.mmap(self.handle, size)
        self.done = np.frombuffer(self._memory, np.int64, PAGE // 8)  # orders that each rank has carried out

    def part(self, number: int, team: Team) -> Batch:
        """The columns of one rank, or all of them with a team of one; memory as `replay.allocate` makes it."""
        own = own_columns(self._columns, team)
        at, parts = PAGE + number * sum(self._bytes), list[Tensor]()
        for shape, size in zip(self._shapes, self._bytes, strict=True):
            column = prod(shape)
            block = torch.frombuffer(
                self._memory, dtype=torch.uint8, count=(own.stop - own.start) * column, offset=at + own.start * column
            )
            parts.append(block.view(-1, *shape))
            at += size
        return views(self.layout, Parts(*parts))

    def pin(self) -> None:
        """For this process's GPU: uploads from here need no copy in between, and the host does not wait for them."""
        memory = torch.frombuffer(self._memory, dtype=torch.uint8)
        status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), len(memory), 0)  # type: ignore[no-untyped-call]
        if int(status) != 0:
            log.warning("batches could not be pinned for the GPU (status %d): their uploads are slower", int(status))


class Follower:
    """A rank that is told what to do: first by `start`, then by lines on its standard input."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._rank, self._state, self._device = start["rank"], start["state"], torch.device(start["device"])
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        config = override(validated(start["config"]), {"run.device": str(self._device)})
        spec, stream = read_spec(start["spec"].encode()), own_stream(self._device, "uploading")
        layout = layout_of(spec, family_of(spec.action), config)
        batches = SharedBatches(layout, config.loss.batch_unrolls, stacked=stream is None, handle=start["batches"])
        self._done = batches.done
        self._done[self._rank] += 1
        self.team = join(self._rank, start["size"], start["address"], self._device, timeout_s=start["timeout_s"])
        torso = None if start["torso"] is None else pkgutil.resolve_name(start["torso"])
        self.learner = build_learner(config, spec, torso, sources=start["sources"], team=self.team)
        torch.set_num_threads(threads_of(config, self.learner.network))  # as many as rank 0: sums of as many parts
        if stream is not None:
            batches.pin()
        parts = [batches.part(number, self.team) for number in range(BATCHES)]
        self._pinned = [PinnedBatch(layout, part, self._device, stream) for part in parts]

    def obey(self, order: Mapping[str, Any]) -> None:
        """Take the state of rank 0's learner, or update from the own columns of a batch."""
        if "numbers" in order:
            data = mmap.mmap(self._state, 0, access=mmap.ACCESS_READ)[:]
            self.learner.load_state_dict(grouped(safetensors.torch.load(data)), order["numbers"])
            self._done[self._rank] += 1
            return
        pinned, on_card = self._pinned[order["update"]], self._device.type == "cuda"
        pinned.fill(lambda _: None)  # rank 0 has filled it; uploaded where there is somewhere to
        if on_card:
            pinned.handover.await_written(f"rank {self._rank}", "the upload of a batch")
            self._done[self._rank] += 1
        with pinned.read() as batch:
            self.learner.update(batch, progress=order["progress"])
        if not on_card:
            self._done[self._rank] += 1


def main(start: Mapping[str, Any]) -> int:
    """Obey until the input ends; see `process_handle.run_child`.

    There is no limit for the next order: rank 0 may evaluate, and if it dies so does this process.
    """
    try:
        follower = Follower(start)
        for line in sys.stdin.buffer:
            follower.obey(json.loads(line))
        follower.team.close()
    except RuntimeError as error:
        if not lost_contact(error):
            raise
        return LOST  # rank 0 finds out which rank is gone, and says so
    return 0
