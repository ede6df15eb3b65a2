"""Policies as stored parameters.

A family is a frozen description (how many actions, which bounds); the numbers are one raw tensor [..., P] that comes from a network or from
the replay. So the behaviour of a stored step is the tensor that was stored, whole, and every function below is a function of tensors.
Parameters are logits, not probabilities; all is finite for parameters up to ±1e4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Num
from torch import Tensor

from laser_rl.ops import checks

FORBIDDEN = -1e4  # the logit of an action that must not be taken: its probability is exactly 0, and all stays finite
Parameters = Float[Tensor, "*rows P"]
Rows = Float[Tensor, "*rows"]
Actions = Num[Tensor, "*rows_and_shape"]


@runtime_checkable
class Family(Protocol):
    """What an agent needs of a distribution over actions; bring your own by writing these methods."""

    @property
    def parameter_size(self) -> int:
        """P, how many numbers describe the distribution at one state."""

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action as stored."""

    @property
    def joint_size(self) -> int | None:
        """How many different actions there are; None if they cannot be counted."""
        return None

    def log_prob(self, parameters: Parameters, action: Actions) -> Rows:
        """Log-probability, or log-density, of a stored action."""

    def entropy(self, parameters: Parameters) -> Rows:
        """Entropy of what the environment receives."""

    def evaluate(self, parameters: Parameters, action: Actions) -> tuple[Rows, Rows]:
        """`log_prob` and `entropy` at once: a loss needs both, and for categories they share most of their work."""
        return self.log_prob(parameters, action), self.entropy(parameters)

    def kl(self, parameters: Parameters, other: Parameters) -> Rows:
        """KL(parameters ‖ other)."""

    def sample(self, parameters: Parameters, generator: torch.Generator | None = None) -> Actions:
        """One action for each row, to be stored as it is."""

    def mode(self, parameters: Parameters) -> Actions:
        """The action of the deterministic policy."""

    def joint_log_probs(self, parameters: Parameters) -> Float[Tensor, "*rows A"]:
        """Log-probabilities of all `joint_size` actions."""
        raise checks.InputError(
            f"the actions of {self} cannot be enumerated; use a sampled estimate, as kl_to_implied does"
        )

    def to_environment(self, action: Actions) -> Actions:
        """The environment's form of a stored action."""
        return action

    def _check(self, parameters: Tensor, action: Tensor | None = None) -> None:
        got, size = tuple(parameters.shape), self.parameter_size
        fits = parameters.ndim > 0 and got[-1] == size
        checks.require(fits, f"parameters has shape {got}, expected a last dimension of {size}")
        checks.floating(parameters=parameters)
        checks.require(
            bool(parameters.isfinite().all()),
            f"parameters of {self} are not all finite; to forbid an action give it a logit of -1e4, not minus infinity",
        )
        if action is not None:
            expected, given = (*got[:-1], *self.action_shape), tuple(action.shape)
            checks.require(given == expected, f"action has shape {given}, expected {expected} for parameters {got}")


@dataclass(frozen=True)
class MultiCategorical(Family):
    """Independent choices, one for each entry of `actions`; the parameters are all logits side by side, the action a vector of integers.

    >>> family = MultiCategorical((2, 3))
    >>> family.parameter_size, family.joint_size
    (5, 6)
    >>> family.log_prob(torch.zeros(5), torch.tensor([1, 2])).exp()
    tensor(0.1667)
    """

    actions: int | tuple[int, ...]  # a number: of one choice, as `Categorical` has it

    @property
    def action_shape(self) -> tuple[int, ...]:
        """A scalar for one choice, else one integer a choice."""
        return () if isinstance(self.actions, int) else (len(self.actions),)

    def _sizes(self) -> tuple[int, ...]:
        return (self.actions,) if isinstance(self.actions, int) else self.actions

    @property
    def parameter_size(self) -> int:
        """One logit for each action of each choice."""
        return sum(self._sizes())

    @property
    def joint_size(self) -> int:
        """The product of the choices' sizes."""
        return math.prod(self._sizes())

    def log_prob(self, parameters: Parameters, action: Actions) -> Rows:
        """Σ over choices of log π_i(action_i)."""
        return self._log_prob(self._log_probs(parameters), parameters, action)

    def entropy(self, parameters: Parameters) -> Rows:
        """−Σ π log π; entropies of independent choices add up."""
        return _sum([_entropy(log_p) for log_p in self._log_probs(parameters)])

    def evaluate(self, parameters: Parameters, action: Actions) -> tuple[Rows, Rows]:
        """Both from one normalisation."""
        log_probs = self._log_probs(parameters)
        return self._log_prob(log_probs, parameters, action), _sum([_entropy(log_p) for log_p in log_probs])

    def kl(self, parameters: Parameters, other: Parameters) -> Rows:
        """Σ π·(log π − log other); divergences of independent choices add up (those to the implied policy do not)."""
        factors = zip(self._log_probs(parameters), self._log_probs(other), strict=True)
        return _sum([(log_p.exp() * (log_p - log_q)).sum(-1) for log_p, log_q in factors])

    def sample(self, parameters: Parameters, generator: torch.Generator | None = None) -> Actions:
        """One draw a choice; needs no normalisation and no look at the values."""
        return self._joined([_sample(logits, generator) for logits in self._split(parameters)])

    def mode(self, parameters: Parameters) -> Actions:
        """The most probable action of each choice."""
        return self._joined([logits.argmax(-1) for logits in self._split(parameters)])

    def joint_log_probs(self, parameters: Parameters) -> Float[Tensor, "*rows A"]:
        """All combinations, the last choice fastest."""
        joint, *others = self._log_probs(parameters)
        for log_p in others:
            joint = (joint.unsqueeze(-1) + log_p.unsqueeze(-2)).flatten(-2)
        return joint

    def _log_prob(self, log_probs: Sequence[Tensor], parameters: Tensor, action: Tensor) -> Tensor:
        if checks.active():
            self._check(parameters, action)
        choices = action.unbind(-1) if self.action_shape else [action]
        if checks.active():
            for choice, size in zip(choices, self._sizes(), strict=True):
                checks.indices(size, action=choice)
        chosen = zip(log_probs, choices, strict=True)
        return _sum([log_p.gather(-1, choice.long().unsqueeze(-1)).squeeze(-1) for log_p, choice in chosen])

    def _joined(self, choices: list[Tensor]) -> Tensor:
        return torch.stack(choices, -1) if self.action_shape else choices[0]

    def _log_probs(self, parameters: Tensor) -> list[Tensor]:
        return [logits.log_softmax(-1) for logits in self._split(parameters)]

    def _split(self, parameters: Tensor) -> Sequence[Tensor]:
        if checks.active():
            self._check(parameters)
        return torch.split(parameters, list(self._sizes()), -1) if self.action_shape else [parameters]


@dataclass(frozen=True)
class Categorical(MultiCategorical):
    """One choice among `actions`; the parameters are its logits, the action an integer.

    >>> family = Categorical(3)
    >>> logits = torch.tensor([[0.0, 0.0, 1e4]])
    >>> family.log_prob(logits, torch.tensor([2])), family.entropy(logits)
    (tensor([0.]), tensor([0.]))
    """

    actions: int


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _entropy(log_p: Tensor) -> Tensor:
    return (log_p.exp() * -log_p).sum(-1)


def _sample(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gumbel's trick: the largest logit after noise."""
    noise = torch.empty_like(logits).exponential_(generator=generator)
    # An exponential variate of exactly 0 would make its action win against any logit.
    return (logits - noise.clamp(min=torch.finfo(noise.dtype).tiny).log()).argmax(-1)
