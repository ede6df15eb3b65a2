"""What only a GPU needs: Triton kernels, CUDA graphs, staged transfers. A run on a CPU never imports this package."""

import functools
import importlib.util


@functools.cache
def available() -> bool:
    return importlib.util.find_spec("triton") is not None
