"""Capturing CUDA graphs while other threads launch work of their own.

A graph replays kernels on the addresses they were captured with. So what is captured reads and writes tensors that stay where they are,
never looks at a value, and draws random numbers only from generators that the graph knows.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from laser_rl.agent.cuda_streams import own_stream

#: Held around every capture in this process, and around whatever waits for the whole device meanwhile (compilers and autotuners do): to
#: synchronise a device one of whose streams is capturing is an error, whichever thread asks. Replays need no lock.
CAPTURE = threading.Lock()
WARM_UPS = 3  # libraries choose algorithms and allocate workspaces in the first calls, which a capture must not
TURN_S = 900.0  # somebody else may be compiling


@contextmanager
def turn(who: str, timeout_s: float = TURN_S) -> Iterator[None]:
    """Holds `CAPTURE`; TimeoutError says who has waited.

    >>> with turn("the actor"):
    ...     CAPTURE.locked()
    True
    """
    if not CAPTURE.acquire(timeout=timeout_s):
        raise TimeoutError(f"{who} has waited {timeout_s:.0f} s for another thread to capture or compile, and gives up")
    try:
        yield
    finally:
        CAPTURE.release()


def graphed(
    work: Callable[[], object],
    device: torch.device,
    *,
    who: str,
    generators: Sequence[torch.Generator] = (),
    pool: Any = None,
) -> torch.cuda.CUDAGraph:
    """A graph of `work`, which is run a few times before; the current stream is as if it had not been.

    Args:
        work: reads and writes tensors that stay.
        device: a GPU.
        who: captures, for messages.
        generators: that `work` draws from; they go on afterwards as if nothing had been drawn.
        pool: memory shared with other graphs, where they are replayed one after the other and nobody needs their intermediate results.
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
