"""How `gpu_train.py` measures: times by events, the card's own rates, operations and bytes counted from the layers, where it all ran."""

import datetime as dt
import itertools
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.gpu_baseline import Network

BACKWARD = 2  # the gradients of inputs and of weights each cost as much as the forward pass
BYTES_16, BYTES_32 = 2, 4


class Times(NamedTuple):
    """Milliseconds of one call."""

    median: float
    mean: float
    slowest: float


def times_of(step: Callable[[], Any], device: torch.device, *, repeats: int, warm_ups: int) -> Times:
    """The time from the end of one call to the end of the next; on a GPU by events, so that nobody waits for a clock.

    >>> times_of(lambda: time.sleep(0.002), torch.device("cpu"), repeats=3, warm_ups=0).median >= 2
    True
    """
    for _ in range(warm_ups):
        step()
    if device.type != "cuda":
        clock = [time.perf_counter()]
        for _ in range(repeats):
            step()
            clock.append(time.perf_counter())
        spans = [1e3 * (end - begin) for begin, end in itertools.pairwise(clock)]
    else:
        torch.cuda.synchronize(device)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize(device)
        spans = [begin.elapsed_time(end) for begin, end in itertools.pairwise(events)]
    return Times(statistics.median(spans), statistics.fmean(spans), max(spans))


def sustained(step: Callable[[], Any], device: torch.device, *, seconds: float, warm_ups: int) -> float:
    """Mean milliseconds of a call over so many seconds, after a third of that: a card that is at work for long is slower than in a burst.

    >>> sustained(lambda: time.sleep(0.002), torch.device("cpu"), seconds=0.02, warm_ups=0) >= 2
    True
    """
    times_of(step, device, repeats=1, warm_ups=warm_ups)
    means: list[tuple[float, Times]] = []
    begin = time.monotonic()
    while not means or time.monotonic() - begin < seconds:
        means.append((time.monotonic() - begin, times_of(step, device, repeats=10, warm_ups=0)))
    return statistics.fmean(times.mean for at, times in means if at >= seconds / 3 or at == means[-1][0])


@dataclass(frozen=True)
class Card:
    """What the device does at best, measured in the same run."""

    matrix_tflops: float  # bf16 product of two square matrices
    copy_gb_s: float  # bytes read plus bytes written of a large copy


def card_of(device: torch.device, *, smoke: bool) -> Card:
    """Rates of this device."""
    side, block = (256, 1 << 20) if smoke else (8192, 1 << 30)
    one, two = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(one)
    matrix = times_of(lambda: torch.mm(one, two, out=product), device, repeats=20, warm_ups=5)
    source = torch.ones(block, dtype=torch.uint8, device=device)
    copied = torch.empty_like(source)
    copy = times_of(lambda: copied.copy_(source), device, repeats=20, warm_ups=5)
    return Card(2 * side**3 / (1e9 * matrix.median), 2 * block / (1e6 * copy.median))


class Work(NamedTuple):
    """What one observation costs at least, forward and backward."""

    operations: int  # of convolutions and linear layers: 3 × forward
    activation_numbers: int  # read and written by convolutions, linear layers and pools, each number once a pass
    parameters: int


def work_of(width: int, actions: int) -> Work:
    """Counted from the shapes of IMPALA-deep's layers.

    Numbers moved: forward reads a layer's input and writes its output; backward reads the output's gradient for each of the two
    gradients (once where there are no weights), reads the input again and writes the input's gradient. What stands between the layers
    (ReLU, sums, casts) can be fused into them and is not counted, so this is a floor and not what a program moves.

    >>> round(work_of(width=4, actions=4).operations / 3e9, 2)  # GFLOP forward
    1.61
    """
    with torch.device("meta"):
        network = Network(width, actions)
    counted = {"operations": 0, "numbers": 0}

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        read, written = inputs[0].numel(), output.numel()
        if isinstance(layer, nn.MaxPool2d):
            counted["numbers"] += read + written + (written + read + read)
            return
        weights = layer.weight.numel() // layer.weight.shape[0]  # type: ignore[operator,index,union-attr]
        counted["operations"] += 2 * written * weights
        counted["numbers"] += read + written + (2 * written + read + read)

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.MaxPool2d):
            layer.register_forward_hook(count)
    network(torch.zeros(1, 1, 4, 84, 84, dtype=torch.uint8, device="meta"))
    parameters = sum(math.prod(parameter.shape) for parameter in network.parameters())
    return Work((1 + BACKWARD) * counted["operations"], counted["numbers"], parameters)


def least_bytes(work: Work, observations: int, *, bf16: bool) -> int:
    """Bytes that a step moves at least: activations of all observations, and parameters for the optimiser.

    The optimiser reads parameter, gradient and mean square and writes parameter and mean square, in fp32.
    """
    return observations * work.activation_numbers * (BYTES_16 if bf16 else BYTES_32) + 5 * BYTES_32 * work.parameters


class Memory(NamedTuple):
    """Of the GPU, in bytes; None on a CPU."""

    allocated: int | None
    reserved: int | None


def forget_memory(device: torch.device) -> None:
    """Give back what nobody uses, and let the peaks begin again."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> Memory:
    """Since `forget_memory`; what graphs keep for themselves is in `reserved` only."""
    if device.type != "cuda":
        return Memory(None, None)
    return Memory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))


def where(device: torch.device) -> dict[str, Any]:
    """Date, hardware and versions, for a file of results."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "device": name,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
