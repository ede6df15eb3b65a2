"""A team of processes over torch.distributed: NCCL between GPUs, gloo elsewhere.

Nothing here knows who started the processes. The runtimes of one machine do it with `runtime.ranks`; actors of a cluster call `join`
with an address that all of them can reach, build a learner with the team, and update it with their own columns.
"""

import contextlib
import datetime as dt
import os
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from laser_rl.errors import ConfigError
from laser_rl.training.stall import GIVE_UP_S

Backend = Literal["nccl", "gloo"]
INTERFACE = "GLOO_SOCKET_IFNAME"


class RankPlace(NamedTuple):
    """Who one is among the ranks, and where they meet. A list of it is JSON.

    >>> RankPlace(1, 2, "tcp://10.0.0.1:29500").rank
    1
    """

    rank: int
    size: int
    address: str  # of rank 0's machine, "tcp://host:port"; on one machine a file that all can open, "file:///path"


class ProcessTeam:
    """One process of a team; see `laser_rl.agent.parallel.Team`.

    torch has one default group a process, and this is it: a process is in one team at a time.

    >>> team = join(RankPlace(0, 1, meeting(os.memfd_create("example"))), torch.device("cpu"))
    >>> team.sum(torch.ones(2)), team.columns(torch.tensor([True]))
    (tensor([1., 1.]), tensor([True]))
    >>> team.close()
    """

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
        """In good order; all ranks do it."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def abort(self) -> None:
        """At once, from any thread: whoever waits for a rank that is gone gets an error. NCCL would wait for minutes, gloo sees it."""
        group = dist.group.WORLD
        if group is not None and dist.get_backend() == "nccl":
            group.abort()


def join(
    place: RankPlace, device: torch.device, *, backend: Backend | None = None, timeout_s: float = GIVE_UP_S
) -> ProcessTeam:
    """Meet the other ranks; returns when all are there.

    Args:
        place: who one is; a TimeoutError names the address if not all come in time.
        device: of this rank's learner; with NCCL each rank has one of its own.
        backend: None: NCCL for GPUs, gloo for CPUs. gloo also works where two ranks share a GPU, slowly.
        timeout_s: for the meeting and for each operation.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process is in a group of torch.distributed already, and run.devices needs it for its own; close the other agent, "
            "start the run in a process of its own, or use --run.devices 1"
        )
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    # A file is a meeting on one machine: nobody elsewhere needs to reach the sockets.
    local = _loopback() if place.address.startswith("file:") else contextlib.nullcontext()
    with local:
        try:
            dist.init_process_group(
                backend,
                init_method=place.address,
                rank=place.rank,
                world_size=place.size,
                timeout=dt.timedelta(seconds=timeout_s),
                device_id=device if backend == "nccl" else None,
            )
        except dist.DistError as error:
            raise TimeoutError(
                f"rank {place.rank} could not meet the other {place.size - 1} at {place.address} within {timeout_s:.0f} s: {error}"
            ) from error
    return ProcessTeam(place.rank, place.size)


def meeting(file: int) -> str:
    """The address of an open file that all ranks have inherited from who started them; it must stay open for ever.

    >>> meeting(5)
    'file:///proc/self/fd/5'
    """
    return f"file:///proc/self/fd/{file}"


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
