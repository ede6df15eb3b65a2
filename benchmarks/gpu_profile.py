"""Where the time of a step goes: kernels by time, and grouped by what they do."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

# The first that fits; names of CUDA's kernels, and on a CPU those of operators.
KINDS = {
    "pool": r"pool",
    "convolution": r"conv|wgrad|dgrad|fprop|xmma|implicit|cudnn|cutlass.*(nhwc|tensorop_.*nhwc)",
    "matrix product": r"gemm|gemv|\bmm\b|addmm|matmul|cublas|nvjet|cutlass",
    "layout and cast": r"nchw|nhwc|transpose|permute|copy|to_copy|contiguous|cast",
    "optimiser": r"optimi|rmsprop|adam|foreach|multi_tensor",
    "softmax": r"softmax|logsumexp",
    "reduction": r"reduce|\bsum\b|norm|mean|cumsum|scan",
    "memory": r"memcpy|memset|fill",
    "element by element": r"elementwise|relu|threshold|\badd|\bmul|where|clamp|exp|sqrt|pow|neg|\bsub|\bdiv",
}
TOP, TOP_SHORT = 40, 12


class Kernel(NamedTuple):
    """One name, over a step."""

    name: str
    ms: float
    calls: float


class Summary(NamedTuple):
    """For a file, and for the screen."""

    whole: str
    short: str


def kind_of(name: str) -> str:
    """What a kernel does, by its name.

    >>> [kind_of(name) for name in ("sm90_xmma_wgrad_implicit_gemm", "max_pool_backward_nhwc", "triton_pool_backward", "nvjet_hsh")]
    ['convolution', 'pool', 'pool', 'matrix product']
    """
    found = (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))
    return next(found, "other")


def profile(step: Callable[[], Any], device: torch.device, *, steps: int) -> list[Kernel]:
    """Milliseconds a step of every kernel (of every operator, on a CPU), the longest first."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profiler(activities=activities) as found:
        for _ in range(steps):
            step()
        if cuda:
            torch.cuda.synchronize(device)
    kernels = []
    for event in found.key_averages():
        # An operator is charged with its kernels' time as well: on a GPU only what ran there counts, and no annotation around it.
        if cuda != (event.device_type == DeviceType.CUDA) or getattr(event, "is_user_annotation", False):
            continue
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        kernels.append(Kernel(event.key, spent / 1e3 / steps, event.count / steps))
    return sorted(kernels, key=lambda kernel: -kernel.ms)


def summary(kernels: Sequence[Kernel], title: str) -> Summary:
    """Kinds, then single kernels.

    >>> print(summary([Kernel("sm90_xmma_wgrad", 3.0, 2), Kernel("max_pool", 1.0, 1)], "two").short)
    two: 4.00 ms of kernels a step
          ms  share  calls
        3.00  75.0%      2  convolution
        1.00  25.0%      1  pool
    <BLANKLINE>
        3.00  75.0%      2  convolution         sm90_xmma_wgrad
        1.00  25.0%      1  pool                max_pool
    """
    total = sum(kernel.ms for kernel in kernels)
    kinds: dict[str, Kernel] = {}
    for kernel in kernels:
        kind = kind_of(kernel.name)
        before = kinds.get(kind, Kernel(kind, 0.0, 0.0))
        kinds[kind] = Kernel(kind, before.ms + kernel.ms, before.calls + kernel.calls)
    head = [f"{title}: {total:.2f} ms of kernels a step", "      ms  share  calls"]
    head += [f"{_line(kind, total)}{kind.name}" for kind in sorted(kinds.values(), key=lambda kind: -kind.ms)]
    lines = [f"{_line(kernel, total)}{kind_of(kernel.name):20}{kernel.name[:160]}" for kernel in kernels[:TOP]]
    short = [line[:110] for line in lines[:TOP_SHORT]]
    return Summary("\n".join([*head, "", *lines, ""]), "\n".join([*head, "", *short]))


def _line(kernel: Kernel, total: float) -> str:
    return f"{kernel.ms:8.2f} {kernel.ms / max(total, 1e-9):6.1%} {kernel.calls:6.0f}  "
