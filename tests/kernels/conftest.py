"""Without a GPU the kernels run in Triton's interpreter, in float32: it knows no products of bfloat16."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
