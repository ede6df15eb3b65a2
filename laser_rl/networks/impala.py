"""The three sections of IMPALA's deep network on a GPU, forward and backward by hand, from bytes to the last rectified pictures.

What autograd and a compiler would do is right but moves several times the bytes (benchmarks/kernels.md). Pictures lie channels last,
[N, H, W, C] in bfloat16; biases and everything summed over positions are float32. Two ways, by the number of channels:

- wide: convolutions are the library's, at the rate of the matrix units; all that stands between them is one pass each.
- narrow (`NARROW` channels at most): convolutions are limited by memory, so they are ours, with all that stands around them inside.

One section is a convolution, a max-pooling and two residual blocks x + w2 ∗ relu(w1 ∗ relu(x) + b1) + b2: ten parameters.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laser_rl.cuda import convolution as own
from laser_rl.cuda.first import first, first_gradient, frame
from laser_rl.cuda.max_pool import pool, pool_gradient
from laser_rl.cuda.pointwise import add_bias_rectify, channel_sums, masked

log = logging.getLogger("laser_rl.networks")
NARROW = 32
TRIED = 16  # pictures; a multiple of 16, so that what is compiled for them is compiled for batches
PER_SECTION = 10
KERNEL = 4  # dimensions of a convolution's weight
DTYPE = torch.bfloat16
Kept = list[Tensor]


class Section(NamedTuple):
    """The parameters of one section."""

    weight: Tensor
    bias: Tensor
    blocks: tuple[Sequence[Tensor], Sequence[Tensor]]  # w1, b1, w2, b2 of each


class Sections(torch.autograd.Function):
    """Bytes [N, planes, H, W] → the rectified end of the last section, [N, h, w, C]; all else is `parameters`, in order."""

    @staticmethod
    def forward(ctx: Any, pictures: Tensor, scale: float, *parameters: Tensor) -> Tensor:
        """Keeps what the backward pass reads, no more."""
        kept: Kept = []
        framed, low = frame(pictures), lowered(parameters)
        out = _forward(framed, scale, parameters, low, kept)
        ctx.save_for_backward(framed, out, *low, *kept)
        ctx.scale, ctx.count = scale, len(parameters)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        framed, out, *rest = ctx.saved_tensors
        low, kept = _sections(rest[: ctx.count]), list(rest[ctx.count :])
        back = _narrow_back if _are_narrow(low) else _wide_back
        return None, None, *back(framed, ctx.scale, low, kept, out, gradient.contiguous())


def act(pictures: Tensor, scale: float, *parameters: Tensor) -> Tensor:
    """The output of `Sections`, bit for bit, without a backward pass: nothing is kept, and what only a gradient reads is not written."""
    return _forward(frame(pictures), scale, parameters, lowered(parameters), None)


def kernels_work(parameters: Sequence[Tensor], picture: Sequence[int]) -> bool:
    """Whether all of this runs here for pictures [planes, H, W]; tried once, since nothing else can tell (no compiler, a card too old)."""
    pictures = torch.zeros(TRIED, *picture, dtype=torch.uint8, device=parameters[0].device)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            out: Tensor = Sections.apply(pictures, 1.0, *parameters)  # type: ignore[no-untyped-call]
            torch.autograd.grad(out, list(parameters), torch.zeros_like(out))
        torch.cuda.current_stream(pictures.device).synchronize()
    except Exception as error:  # of Triton, of its compiler, of the driver
        log.warning(
            "our kernels do not run on this GPU (%s: %s); the network uses torch's own instead, which is slower",
            type(error).__name__,
            str(error).partition("\n")[0],
        )
        return False
    return True


def _sections(parameters: Sequence[Tensor]) -> list[Section]:
    parts = [parameters[at : at + PER_SECTION] for at in range(0, len(parameters), PER_SECTION)]
    return [Section(part[0], part[1], (part[2:6], part[6:10])) for part in parts]


def lowered(parameters: Sequence[Tensor]) -> list[Tensor]:
    """All of them in the type of the products, at once: one by one, so many small copies take longer than a convolution."""
    layouts = [torch.channels_last if p.ndim == KERNEL else torch.contiguous_format for p in parameters]
    low = [torch.empty_like(p, dtype=DTYPE, memory_format=way) for p, way in zip(parameters, layouts, strict=True)]
    torch._foreach_copy_(low, list(parameters))
    return low


def _are_narrow(sections: Sequence[Section]) -> bool:
    return all(len(section.weight) <= NARROW for section in sections)


def _forward(
    framed: Tensor, scale: float, parameters: Sequence[Tensor], low: Sequence[Tensor], kept: Kept | None
) -> Tensor:
    """The rectified end. What a backward pass reads goes into `kept`; None if there will be none."""
    sections = _sections(parameters)
    forward = _narrow if _are_narrow(sections) else _wide
    return forward(framed, scale, list(zip(sections, _sections(low), strict=True)), kept)


def _wide(framed: Tensor, scale: float, sections: Sequence[tuple[Section, Section]], kept: Kept | None) -> Tensor:
    learns = kept is not None
    x = r = framed
    for number, (section, low) in enumerate(sections):
        if number == 0:
            x, positive, index = first(
                framed, section.weight, section.bias, scale, rectified=True, choice=learns, dtype=DTYPE
            )
        else:
            _keep(kept, x)
            x, positive, index = pool(_convolve(x, low.weight), section.bias, rectified=True, choice=learns)
        assert positive is not None  # noqa: S101 - it was asked for
        r = positive
        _keep(kept, index)
        for place, (w1, b1, w2, _) in enumerate(low.blocks):
            y = _convolve_rectify(r, w1, b1)
            _keep(kept, r, y)
            ends, last = place == 1, number == len(sections) - 1
            # The next section reads x alone, the next block both, and whatever follows the last section only what is positive.
            total, positive = add_bias_rectify(
                x, _convolve(y, w2), section.blocks[place][3], total=not (ends and last), rectified=not ends or last
            )
            x, r = x if total is None else total, r if positive is None else positive
    return r


def _wide_back(
    framed: Tensor, scale: float, sections: Sequence[Section], kept: list[Tensor], out: Tensor, gradient: Tensor
) -> list[Tensor]:
    found: list[Tensor] = []  # from the last parameter to the first
    dx, sums = masked(gradient, out)
    for number in reversed(range(len(sections))):
        section = sections[number]
        for w1, _, w2, _ in reversed(section.blocks):
            y, r = kept.pop(), kept.pop()
            dy, dw2 = _convolve_back(dx, y, w2)
            found += [sums, dw2]
            dy, sums = masked(dy, y)
            dr, dw1 = _convolve_back(dy, r, w1)
            found += [sums, dw1]
            dx, sums = masked(dr, r, dx)
        index = kept.pop()
        found.append(sums)
        if number == 0:
            found.append(first_gradient(framed, dx, index, scale))
        else:
            x = kept.pop()
            dx, dw = _convolve_back(pool_gradient(dx, index, *x.shape[1:3]), x, section.weight)
            found.append(dw)
            sums = channel_sums(dx)
    return found[::-1]


def _narrow(framed: Tensor, scale: float, sections: Sequence[tuple[Section, Section]], kept: Kept | None) -> Tensor:
    learns = kept is not None
    x = framed
    for number, (part, low) in enumerate(sections):
        if number == 0:
            x, _, index = first(framed, part.weight, part.bias, scale, rectified=False, choice=learns, dtype=DTYPE)
        else:
            _keep(kept, x)
            x, _, index = pool(own.convolve(x, own.taps(low.weight)), part.bias, rectified=False, choice=learns)
        _keep(kept, index)
        for (w1, _, w2, _), (_, b1, _, b2) in zip(low.blocks, part.blocks, strict=True):
            y = own.convolve(x, own.taps(w1), b1, rectify=True, rectified=True)
            _keep(kept, x, y)
            x = own.convolve(y, own.taps(w2), b2, residual=x)
    return x.clamp(min=0)


def _narrow_back(
    framed: Tensor, scale: float, sections: Sequence[Section], kept: list[Tensor], out: Tensor, gradient: Tensor
) -> list[Tensor]:
    found: list[Tensor] = []  # from the last parameter to the first
    dx = torch.where(out > 0, gradient, 0)
    for number in reversed(range(len(sections))):
        section = sections[number]
        for w1, _, w2, _ in reversed(section.blocks):
            y, x = kept.pop(), kept.pop()
            found += own.weight_gradient(y, dx)[::-1]
            dy = own.convolve(dx, own.taps_back(w2), positive=y)
            found += own.weight_gradient(x, dy, rectify=True)[::-1]
            dx = own.convolve(dy, own.taps_back(w1), positive=x, residual=dx)
        index = kept.pop()
        if number == 0:
            found += [channel_sums(dx), first_gradient(framed, dx, index, scale)]
        else:
            x = kept.pop()
            full = pool_gradient(dx, index, *x.shape[1:3])
            found += own.weight_gradient(x, full)[::-1]
            dx = own.convolve(full, own.taps_back(section.weight))
    return found[::-1]


def nchw(x: Tensor) -> Tensor:
    """[N, H, W, C] as torch's convolutions see it, without moving anything."""
    return x.permute(0, 3, 1, 2)


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(nchw(x), weight, padding=1).permute(0, 2, 3, 1)


def _convolve_rectify(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """With bias and rectified, in the library's own last step where it has one."""
    if not x.is_cuda:
        return (_convolve(x, weight) + bias).clamp(min=0)
    out: Tensor = torch.ops.aten.cudnn_convolution_relu(nchw(x), weight, bias, [1, 1], [1, 1], [1, 1], 1)
    return out.permute(0, 2, 3, 1)


def _convolve_back(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dx, dw, _ = torch.ops.aten.convolution_backward(
        nchw(gradient), nchw(x), weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return dx.permute(0, 2, 3, 1), dw.float()


def _keep(kept: Kept | None, *tensors: Tensor | None) -> None:
    if kept is not None:
        kept.extend(tensor for tensor in tensors if tensor is not None)
