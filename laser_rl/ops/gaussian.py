"""Diagonal Gaussian policies; bounded actions go through a tanh.

The stored action is the latent u ~ N(mean, scale²), never the bounded one: in float32 tanh(u) is 1 from about u = 9 on, and
u cannot be recovered from it. `log_prob` is nevertheless the density of the action in the environment; in a ratio π/μ the Jacobian cancels.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from laser_rl.ops import checks
from laser_rl.ops.distributions import Actions, Family, Parameters, Rows

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
# Nodes of the trapezoid rule under a standard normal: for a function analytic in a strip its error falls exponentially in the spacing.
_NODES = tuple(0.5 * k for k in range(-12, 13))


@dataclass(frozen=True)
class DiagonalGaussian(Family):
    """Independent normal variates, one for each action dimension; the parameters are all means, then all raw scales.

    The scale is `min_scale` + softplus(raw). A dimension with two finite bounds is squashed into them, one without bounds is left alone.

    >>> family = DiagonalGaussian(low=(-2.0,), high=(2.0,))
    >>> family.to_environment(torch.tensor([[-1e4], [0.0], [1e4]])).squeeze(1)
    tensor([-2.,  0.,  2.])
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    min_scale: float = 1e-4

    def __post_init__(self) -> None:
        for low, high in zip(self.low, self.high, strict=True):
            bounded = math.isfinite(low) and math.isfinite(high) and low < high
            free = low == -math.inf and high == math.inf
            checks.require(
                bounded or free,
                f"bounds ({low}, {high}) are neither two finite numbers in order nor (-inf, inf); "
                "give a dimension with one bound a second one",
            )

    @property
    def parameter_size(self) -> int:
        """A mean and a raw scale for each dimension."""
        return 2 * len(self.low)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """One number for each dimension."""
        return (len(self.low),)

    def log_prob(self, parameters: Parameters, action: Actions) -> Rows:
        """Log-density of `to_environment(action)`: log N(u) − Σ log |da/du|."""
        if checks.active():
            self._check(parameters, action)
            checks.numbers(action=action)
        mean, scale = self._mean_and_scale(parameters)
        normal = -0.5 * ((action - mean) / scale) ** 2 - scale.log() - _LOG_ROOT_TWO_PI
        return (normal - self._log_stretch(action)).sum(-1)

    def entropy(self, parameters: Parameters) -> Rows:
        """The normal's entropy plus E[log |da/du|].

        That expectation has no closed form. 25 nodes give it to 1e-6 for scales up to 1 and to 2e-3 up to 3; beyond,
        where nearly every action lies at a bound, the entropy is right to 3 %.
        """
        mean, scale = self._mean_and_scale(parameters)
        nodes = parameters.new_tensor(_NODES)
        weights = (-0.5 * nodes**2).softmax(0)
        stretch = self._log_stretch(mean.unsqueeze(-2) + scale.unsqueeze(-2) * nodes.unsqueeze(-1))
        expected_stretch = (weights.unsqueeze(-1) * stretch).sum(-2)
        return (scale.log() + _LOG_ROOT_TWO_PI + 0.5 + expected_stretch).sum(-1)

    def kl(self, parameters: Parameters, other: Parameters) -> Rows:
        """KL of the two normals. The squashing is a bijection, which leaves a KL unchanged."""
        mean, scale = self._mean_and_scale(parameters)
        other_mean, other_scale = self._mean_and_scale(other)
        ratio = scale / other_scale
        distance = (mean - other_mean) / other_scale
        return (0.5 * (ratio**2 + distance**2 - 1) - ratio.log()).sum(-1)

    def sample(self, parameters: Parameters, generator: torch.Generator | None = None) -> Actions:
        """A latent action."""
        mean, scale = self._mean_and_scale(parameters)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + scale * noise

    def mode(self, parameters: Parameters) -> Actions:
        """The latent mean."""
        return self._mean_and_scale(parameters)[0]

    def to_environment(self, action: Actions) -> Actions:
        """Squash the bounded dimensions into their bounds."""
        if checks.active():
            got, size = tuple(action.shape), len(self.low)
            checks.require(got[-1:] == (size,), f"action has shape {got}, expected a last dimension of {size}")
        bounded, middle, half = self._bounds(action)
        return torch.where(bounded, middle + half * action.tanh(), action)

    def _mean_and_scale(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        if checks.active():
            self._check(parameters)
        mean, raw = parameters.chunk(2, -1)
        repeated = raw.ndim > 1 and raw.stride(0) == 0  # for many draws: one scale is broadcast to all of them
        return mean, self.min_scale + F.softplus(raw[:1] if repeated else raw)

    def _log_stretch(self, latent: Tensor) -> Tensor:
        """Each dimension's log |da/du|; without cancellation log(1 − tanh² u) = 2·(log 2 − u − softplus(−2u))."""
        bounded, _, half = self._bounds(latent)
        squash = 2 * (math.log(2) - latent - F.softplus(-2 * latent))
        return torch.where(bounded, half.log() + squash, torch.zeros_like(latent))

    def _bounds(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # A compiler keeps constants by itself.
        of = _bounds.__wrapped__ if torch.compiler.is_compiling() else _bounds
        return of(self.low, self.high, like.device, like.dtype)


@functools.lru_cache(maxsize=64)
def _bounds(
    low: tuple[float, ...], high: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Which dimensions are bounded, their middles and half widths (0 and 1 where they are not).

    Computed once: a copy from the host makes the device wait, and cannot be part of a CUDA graph.
    """
    both = [(a, b) if math.isfinite(a) else (-1.0, 1.0) for a, b in zip(low, high, strict=True)]
    with torch.inference_mode(False):  # a later call may need gradients through them
        bounded = torch.tensor([math.isfinite(a) for a in low], device=device)
        middle = torch.tensor([0.5 * (a + b) for a, b in both], device=device, dtype=dtype)
        return bounded, middle, torch.tensor([0.5 * (b - a) for a, b in both], device=device, dtype=dtype)
