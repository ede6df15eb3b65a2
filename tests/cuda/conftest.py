"""Without a GPU the kernels run in Triton's interpreter, in float32: it knows no products of bfloat16."""

import importlib.metadata
import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        major, minor = importlib.metadata.version("triton").split(".")[:2]
        old = (int(major), int(minor)) < (3, 7)  # its loops do not understand NumPy 2.4
    except importlib.metadata.PackageNotFoundError:
        old = True
    collect_ignore = ["test_kernels.py"] if old else []
