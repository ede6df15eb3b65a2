"""Kernels in Triton for the network that costs most, each with a twin in plain PyTorch; used on a GPU, where they win."""

import functools
import importlib.util


@functools.cache
def available() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None
