"""CUDA streams and events, for memory that several streams of one GPU and the host use. On a CPU all of it does nothing."""

import functools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import cuda

# Between two looks at an event: the scheduler makes it about 0.1 ms, and the core stays free for emulators.
PAUSE_S = 2e-5
GIVE_UP_S = 600.0
Purpose = Literal["acting", "uploading", "capturing", "recording"]


def wait_for(event: "cuda.Event", who: str, whom: str, timeout_s: float = GIVE_UP_S) -> None:
    """Wait on the host until the device has reached `event`; a TimeoutError names the waiting and the blocking side."""
    begin = time.monotonic()
    while not event.query():  # type: ignore[no-untyped-call]
        if time.monotonic() - begin > timeout_s:
            raise TimeoutError(f"{who} has waited {timeout_s:.0f} s for {whom} and gives up")
        time.sleep(PAUSE_S)


def marked(device: torch.device, *, timing: bool = False) -> "cuda.Event":
    """An event at the end of all that the current stream was given."""
    event = cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
    event.record(cuda.current_stream(device))
    return event


def own_stream(device: torch.device, purpose: Purpose) -> "cuda.Stream | None":
    """The stream of this process for a purpose, after all that the current one was given; None on a CPU."""
    if device.type != "cuda":
        return None
    stream = stream_for(device, purpose)
    stream.wait_stream(cuda.current_stream(device))
    return stream


@functools.cache
def stream_for(device: torch.device, purpose: Purpose) -> "cuda.Stream":
    """One for each purpose, for ever.

    Torch has 32 streams and then hands out the same ones again, and a capture on a stream that another thread uses would swallow what
    that thread launches. Kernels of the acting stream begin before those of others that wait.
    """
    return cuda.Stream(device, priority=-1 if purpose == "acting" else 0)  # type: ignore[no-untyped-call]


def on(stream: "cuda.Stream | None") -> AbstractContextManager[object]:
    """Launch what this thread does within on that stream."""
    return nullcontext() if stream is None else cuda.stream(stream)


class Handover:
    """One piece of memory that one stream writes and another reads, in turn.

    Each side's stream waits on the device for what the other side had asked before; the host never waits. Both sides agree on the order
    among themselves (a lock, a queue): an event must have been recorded before the other side looks for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on_card = device.type == "cuda"
        self._written = cuda.Event() if on_card else None  # type: ignore[no-untyped-call]
        self._read = cuda.Event() if on_card else None  # type: ignore[no-untyped-call]

    def write(self) -> AbstractContextManager[None]:
        """Around what the current stream is given to write."""
        return self._between(self._read, self._written)

    def read(self) -> AbstractContextManager[None]:
        """Around what the current stream is given to read."""
        return self._between(self._written, self._read)

    @contextmanager
    def _between(self, after: "cuda.Event | None", before: "cuda.Event | None") -> Iterator[None]:
        if after is None or before is None:
            yield
            return
        stream = cuda.current_stream(self._device)
        stream.wait_event(after)  # one that was never recorded is over
        yield
        before.record(stream)

    def written(self) -> bool:
        """Whether the last write is done, so that a read now would not wait."""
        return self._written is None or bool(self._written.query())  # type: ignore[no-untyped-call]

    def await_written(self, who: str, whom: str) -> None:
        """Wait on the host until the last write is done: what it was copied from is free."""
        if self._written is not None:
            wait_for(self._written, who, whom)
