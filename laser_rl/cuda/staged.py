"""A function of arrays, computed on a GPU with little to wait for."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.cuda.graphs import capture, turn
from laser_rl.gpu_streams import wait_for
from laser_rl.types import Array

OFTEN = 16  # calls with as many rows, before they are worth a graph
MOST_GRAPHS = 8
ALIGNMENT = 16
WHO = "the actor"
Kind = tuple["np.dtype[np.generic]", tuple[int, ...]]  # of an array's rows
# Of one of the function's results: type, shape and bytes of a row.
StagedResult = tuple[torch.dtype, tuple[int, ...], int]


class Staged:
    """Arrays [n, ...] in, arrays [n, ...] out, through memory that stays where it is.

    What goes in is uploaded from pinned memory; results come back in one transfer. All is launched on the current stream, so it comes
    after what that stream was given before. A number of rows that comes often is captured as a CUDA graph: one launch instead of a hundred.

    `function` draws from `generator` only, and for `graphs` it must not look at values. `addresses` says where the memory lies that it
    reads besides: graphs are void when that has moved.
    """

    def __init__(
        self,
        function: Callable[[list[Tensor]], Sequence[Tensor]],
        device: torch.device,
        *,
        generator: torch.Generator | None = None,
        graphs: bool = False,
        addresses: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self._function, self._device, self._addresses = function, device, addresses
        self._generators = [] if generator is None else [generator]
        self._on_card = device.type == "cuda"
        self._captures = graphs and self._on_card
        self._done = torch.cuda.Event() if self._on_card else None  # type: ignore[no-untyped-call]
        self._room, self._kinds = 0, list[Kind]()
        self._host: list[Tensor] = []
        self._there: list[Tensor] = []
        self._results: list[StagedResult] = []
        self._packed = self._back = torch.zeros(0, dtype=torch.uint8)
        self._met: Counter[int] = Counter()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._where = addresses()

    @torch.no_grad()  # not inference mode: see `capture`
    def __call__(self, arrays: Sequence[Array]) -> list[NDArray[Any]]:
        rows = len(arrays[0])
        self._make_room(arrays, rows)
        for host, there, array in zip(self._host, self._there, arrays, strict=True):
            # The call before has waited for its results, so nothing reads the pinned memory any more.
            host[:rows].numpy()[...] = array
            there[:rows].copy_(host[:rows], non_blocking=True)
        self._run(rows)
        used = self._size(rows)
        self._back[:used].copy_(self._packed[:used], non_blocking=True)
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self._device))
            wait_for(self._done, WHO, "its policy's network")
        return [view.numpy().copy() for view in self._views(self._back, rows)]

    def _make_room(self, arrays: Sequence[Array], rows: int) -> None:
        kinds: list[Kind] = [(array.dtype, array.shape[1:]) for array in arrays]
        if rows <= self._room and kinds == self._kinds:
            return
        self._room, self._kinds = max(rows, 1), kinds
        self._host = [
            torch.zeros(self._room, *shape, dtype=torch.from_numpy(np.zeros(0, dtype)).dtype, pin_memory=self._on_card)
            for dtype, shape in kinds
        ]
        self._there = [torch.zeros_like(host, device=self._device) for host in self._host]
        self._forget()
        self._results = []

    def _forget(self) -> None:
        self._graphs.clear()
        self._met.clear()

    def _run(self, rows: int) -> None:
        where = self._addresses()
        if where != self._where:
            self._forget()
            self._where = where
        self._met[rows] += 1
        if self._met[rows] == 1 and self._on_card:
            with turn(WHO):  # kernels may be compiled and tuned on first sight
                self._compute(rows)
        elif rows in self._graphs:
            self._graphs[rows].replay()
        elif self._captures and self._met[rows] > OFTEN and len(self._graphs) < MOST_GRAPHS:
            # One pool: graphs follow one another on one stream, and what they leave is in `_packed`, which is not of the pool.
            pool = next((graph.pool() for graph in self._graphs.values()), None)
            self._graphs[rows] = capture(
                lambda: self._compute(rows), self._device, who=WHO, generators=self._generators, pool=pool
            )
            self._graphs[rows].replay()
        else:
            self._compute(rows)

    def _compute(self, rows: int) -> None:
        results = self._function([there[:rows] for there in self._there])
        if not self._results:  # the first call; never within a capture
            shapes = [tuple(result.shape[1:]) for result in results]
            self._results = [(one.dtype, to, prod(to) * one.itemsize) for one, to in zip(results, shapes, strict=True)]
            size = self._size(self._room)
            self._packed = torch.zeros(size, dtype=torch.uint8, device=self._device)
            self._back = torch.zeros(size, dtype=torch.uint8, pin_memory=self._on_card)
        for view, result in zip(self._views(self._packed, rows), results, strict=True):
            view.copy_(result)

    def _size(self, rows: int) -> int:
        return sum(_up(rows * nbytes) for _, _, nbytes in self._results)

    def _views(self, packed: Tensor, rows: int) -> list[Tensor]:
        views, at = [], 0
        for dtype, shape, nbytes in self._results:
            views.append(packed[at : at + rows * nbytes].view(dtype).view(rows, *shape))
            at += _up(rows * nbytes)
        return views


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
