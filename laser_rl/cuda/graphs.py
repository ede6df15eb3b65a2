"""CUDA graphs: work recorded once, then one launch each, however many operations it is made of.

A graph is a list of kernels with the addresses and the numbers that they had when it was recorded. So the work that is recorded must not
look at a tensor, must draw random numbers only from generators that the graph knows, everything that changes between two replays must lie
in a tensor that stays where it is, and what replaces such a tensor, or changes a number that the work has read, has to `forget` what was
recorded. Other threads launch work of their own meanwhile.
"""

import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from laser_rl.gpu_streams import own_stream, stream_for
from laser_rl.types import Batch

log = logging.getLogger("laser_rl.agent")
MOST_GRAPHS = 4  # shapes of batches
_ALIVE: dict[torch.device, weakref.WeakSet[torch.cuda.CUDAGraph]] = {}
_FAILED: list[torch.cuda.CUDAGraph] = []  # kept: allocators hold their addresses
Result = TypeVar("Result")
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]
#: Held around every capture in this process, and around whatever waits for the whole device meanwhile (compilers and autotuners do): to
#: synchronise a device one of whose streams is capturing is an error, whichever thread asks. Replays need no lock.
CAPTURE = threading.Lock()
WARM_UPS = 3  # libraries choose algorithms and allocate workspaces in the first calls, which a capture must not
TURN_S = 900.0  # another thread may be compiling


@contextlib.contextmanager
def turn(who: str, timeout_s: float = TURN_S) -> Iterator[None]:
    """Hold `CAPTURE`; a TimeoutError names the waiting side."""
    if not CAPTURE.acquire(timeout=timeout_s):
        raise TimeoutError(f"{who} has waited {timeout_s:.0f} s for another thread to capture or compile, and gives up")
    try:
        yield
    finally:
        CAPTURE.release()


def capture(
    work: Callable[[], object],
    device: torch.device,
    *,
    who: str,
    generators: Sequence[torch.Generator] = (),
    pool: Any = None,
) -> torch.cuda.CUDAGraph:
    """A graph of `work`, which is run a few times before; current stream and `generators` are as if it had not been.

    Graphs that share a `pool` of memory must be replayed one after the other, and their intermediate results not be read later.
    """
    if torch.is_inference_mode_enabled():
        # The first capture makes tensors for the generators, the default one's included. Made in inference mode, no capture outside of
        # it could write them.
        raise RuntimeError("expected a capture outside of torch.inference_mode, got one inside; use torch.no_grad")
    states = [generator.get_state() for generator in generators]
    with turn(who), torch.cuda.device(device):
        here, graph = torch.cuda.current_stream(device), torch.cuda.CUDAGraph()
        side = own_stream(device, "capturing")
        assert side is not None  # noqa: S101
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                work()
        for generator in generators:
            graph.register_generator_state(generator)
        # Other threads launch and allocate meanwhile: only this one is watched for calls that a capture cannot hold.
        try:
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(here)  # a capture that failed leaves its own as the current one
        here.wait_stream(side)
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    return graph


class CudaGraphs:
    """Records on a stream for that purpose; a replay goes to the stream that is current then.

    All learners of a process belong into one thread: they share that stream, what libraries keep for each stream (a workspace of cuBLAS,
    say, which a graph goes on using), and the memory for what is computed on the way. One after the other they cannot meet there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, stream_for(device, "recording")

    def rehearse(self, work: Callable[[], Result]) -> Result:
        """Do the work on the stream on which it will be recorded: what libraries do at a first time, they do for each stream apart."""
        here = torch.cuda.current_stream(self._device)
        # With `turn`, because kernels are compiled and tuned in the first runs, which waits for the whole device.
        with turn("the learner"), torch.cuda.device(self._device):
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                result = work()
            # Results are memory of the other stream; it is not used again before that stream has waited for this one, above.
            here.wait_stream(self._stream)
        return result

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Record the work without doing it; each call of what is returned does it, with its result in the same memory every time."""
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        alive = next(iter(_ALIVE.setdefault(self._device, weakref.WeakSet())), None)
        # A pool lives as long as one of its graphs: none alive, a new one.
        pool = torch.cuda.graph_pool_handle() if alive is None else alive.pool()
        with turn("the learner"), torch.cuda.device(self._device), _no_garbage_collection():
            try:
                with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                    result = work()
            except BaseException:
                torch.cuda.set_stream(here)  # still that of the capture
                self._clear_away(graph, pool)
                _ALIVE[self._device].clear()  # pinned memory's allocator still records to this pool: take another
                raise
        _ALIVE[self._device].add(graph)

        def replay() -> Result:
            graph.replay()
            return result

        return replay

    def _clear_away(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """After a capture that failed: torch leaves its allocators as if it were still under way, and they go on asking it."""
        _FAILED.append(graph)
        with contextlib.suppress(RuntimeError):  # it was ended in good order
            torch._C._cuda_endAllocateToPool(self._device.index, pool)  # noqa: SLF001
            torch._C._cuda_releasePool(self._device.index, pool)  # noqa: SLF001


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A graph of another learner that is collected during a capture would be destroyed there, and the capture would fail."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Graphed(Generic[Result]):
    """Work on a batch, recorded for each shape of batch after a few eager runs. If recording fails, it stays eager, with a warning.

    Batches that are replayed lie on the `device`; those handed in may come from elsewhere. At `most` so many shapes are recorded.
    """

    def __init__(
        self, work: Callable[[Batch], Result], recorder: CudaGraphs, device: torch.device, *, most: int = MOST_GRAPHS
    ) -> None:
        self._work, self._recorder, self._device, self._most = work, recorder, device, most
        self._runs: dict[Shapes, int] = {}
        self._replays: dict[Shapes, tuple[Batch, Callable[[], Result]]] = {}

    def forget(self) -> None:
        """What was recorded is out of date: run eagerly a few times, and record anew. Waits for replays that are under way."""
        if self._replays and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self._replays.clear()
        self._runs.clear()

    def __call__(self, batch: Batch) -> Result:
        """The work on this batch, which may be overwritten as soon as the current stream is done with it."""
        shapes = tuple((field.shape, field.dtype) for field in batch)
        if shapes not in self._replays:
            runs = self._runs[shapes] = self._runs.get(shapes, 0) + 1
            if runs <= WARM_UPS:
                return self._recorder.rehearse(lambda: self._work(batch))
            if len(self._replays) >= self._most or not self._record(shapes, batch):
                return self._work(batch)
        fixed, replay = self._replays[shapes]
        _copy(batch, fixed)
        return replay()

    def _record(self, shapes: Shapes, batch: Batch) -> bool:
        fixed = Batch(*(field.to(self._device, copy=True) for field in batch))
        try:
            self._replays[shapes] = fixed, self._recorder.record(lambda: self._work(fixed))
        except Exception as error:  # whatever a user's own network does in there
            reason = error.__context__ or error  # the end of a broken capture hides what broke it
            log.warning(
                "an update cannot be captured as a CUDA graph, so its operations are launched one by one, which is slower (%s: %s). "
                "A network must not look at the values of tensors (.item(), `if tensor`) nor copy from the host; run.graphs=false does "
                "without graphs and without this message",
                type(reason).__name__,
                str(reason).partition("\n")[0],
            )
            self._most = 0
            return False
        return True


def _copy(batch: Batch, fixed: Batch) -> None:
    """All fields of one type in one launch: most are small, and a launch costs more than their bytes."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for field, place in zip(batch, fixed, strict=True):
        places, fields = groups.setdefault(field.dtype, ([], []))
        places.append(place)
        fields.append(field)
    for places, fields in groups.values():
        torch._foreach_copy_(places, fields, non_blocking=True)
