"""Random inputs that straddle every clip and mask, and how results are compared."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from laser_rl.ops.vtrace import vtrace

TOLERANCE = 1e-10
importance_sampled = functools.partial(vtrace, clip_rho=math.inf, clip_c=math.inf)


class Rows(NamedTuple):
    """One batch of unrolls in float64, as the returns take it."""

    log_ratio: Tensor
    learnable: Tensor
    reward: Tensor
    discount: Tensor
    value: Tensor  # [T+1, B]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.log_ratio, self.learnable, self.reward, self.discount, self.value[:-1], self.value[1:]


def make_rows(steps: int, batch: int, seed: int, *, kept: float = 0.7) -> Rows:
    """Ratios from e⁻² to e², some exactly 1; discounts of 0 (terminated), 1 and between; a share `kept` of rows learnable."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    def chance(share: float) -> Tensor:
        return torch.rand(steps, batch, dtype=torch.float64, generator=rng) < share

    log_ratio = torch.where(
        chance(0.15), torch.zeros(steps, batch, dtype=torch.float64), normal(steps, batch).clamp(-2, 2)
    )
    discount = (~chance(0.2)).double() * torch.where(chance(0.2), 1.0, 0.9).double().round(decimals=1)
    return Rows(log_ratio, chance(kept), normal(steps, batch), discount, normal(steps + 1, batch))


@st.composite
def rows(draw: st.DrawFn, most_steps: int = 13, most_batch: int = 3) -> Rows:
    kept = draw(st.sampled_from([0.0, 0.5, 0.8, 1.0]))
    return make_rows(
        draw(st.integers(1, most_steps)), draw(st.integers(1, most_batch)), draw(st.integers(0, 2**31)), kept=kept
    )


@st.composite
def clips(draw: st.DrawFn) -> tuple[float, float]:
    """ρ̄ ≥ c̄ on both sides of the ratios."""
    clip_rho = draw(st.sampled_from([0.5, 1.0, 1.5, 4.0, math.inf]))
    clip_c = draw(st.sampled_from([0.3, 1.0, 1.2, 3.0]))
    return clip_rho, min(clip_rho, clip_c)


def examples(count: int) -> settings:
    """As many examples as asked for, in the same proportion to the profile's own number."""
    return settings(max_examples=count * settings.default.max_examples // 60)


seeds = st.integers(0, 2**31)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def assert_same(ours: Tensor, twin: Any, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), np.asarray(twin), rtol=tolerance, atol=tolerance)
