"""Policies as stored parameters.

A family is a frozen description (how many actions, which bounds); the numbers are one raw tensor [..., P] that comes from a network or from
the replay. So the behaviour of a stored step is the tensor that was stored, whole, and every function below is a function of tensors.
Parameters are logits, not probabilities; all is finite for parameters up to ±1e4.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Integer, Num
from torch import Tensor

from laser_rl.ops import checks


class Evaluation(NamedTuple):
    """What a loss asks of a policy at one action."""

    log_prob: Float[Tensor, "*rows"]
    entropy: Float[Tensor, "*rows"]


@runtime_checkable
class Family(Protocol):
    """What an agent needs of a distribution over actions; bring your own by writing these methods.

    >>> family: Family = Categorical(3)
    >>> family.parameter_size, family.action_shape, family.joint_size
    (3, (), 3)
    """

    @property
    def parameter_size(self) -> int:
        """P, how many numbers describe the distribution at one state."""

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action as stored."""

    @property
    def joint_size(self) -> int | None:
        """How many different actions there are; None if they cannot be counted."""

    def log_prob(
        self, parameters: Float[Tensor, "*rows P"], action: Num[Tensor, "*rows_and_shape"]
    ) -> Float[Tensor, "*rows"]:
        """Log-probability, or log-density, of a stored action."""

    def entropy(self, parameters: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows"]:
        """Entropy of what the environment receives."""

    def evaluate(self, parameters: Float[Tensor, "*rows P"], action: Num[Tensor, "*rows_and_shape"]) -> "Evaluation":
        """`log_prob` and `entropy` at once: a loss needs both, and they share most of their work."""

    def kl(self, parameters: Float[Tensor, "*rows P"], other: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows"]:
        """KL(parameters ‖ other)."""

    def sample(
        self, parameters: Float[Tensor, "*rows P"], generator: torch.Generator | None = None
    ) -> Num[Tensor, "*rows_and_shape"]:
        """One action for each row, to be stored as it is."""

    def mode(self, parameters: Float[Tensor, "*rows P"]) -> Num[Tensor, "*rows_and_shape"]:
        """The action of the deterministic policy."""

    def joint_log_probs(self, parameters: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows A"]:
        """Log-probabilities of all `joint_size` actions."""

    def to_environment(self, action: Num[Tensor, "*rows_and_shape"]) -> Num[Tensor, "*rows_and_shape"]:
        """The environment's form of a stored action."""


@dataclass(frozen=True)
class Categorical:
    """One choice among `actions`; the parameters are its logits, the action an integer.

    >>> family = Categorical(3)
    >>> logits = torch.tensor([[0.0, 0.0, 1e4]])
    >>> family.log_prob(logits, torch.tensor([2])), family.entropy(logits)
    (tensor([0.]), tensor([0.]))
    """

    actions: int

    def __post_init__(self) -> None:
        checks.require(self.actions > 0, f"actions is {self.actions}, expected at least 1")

    @property
    def parameter_size(self) -> int:
        """One logit an action."""
        return self.actions

    @property
    def action_shape(self) -> tuple[int, ...]:
        """A scalar."""
        return ()

    @property
    def joint_size(self) -> int:
        """All actions."""
        return self.actions

    def log_prob(
        self, parameters: Float[Tensor, "*rows P"], action: Integer[Tensor, "*rows"]
    ) -> Float[Tensor, "*rows"]:
        """Log π(action)."""
        self._check(parameters, action)
        return _log_prob(parameters.log_softmax(-1), action)

    def entropy(self, parameters: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows"]:
        """−Σ π log π."""
        return _entropy(self.joint_log_probs(parameters))

    def evaluate(self, parameters: Float[Tensor, "*rows P"], action: Integer[Tensor, "*rows"]) -> Evaluation:
        """Both from one normalisation."""
        self._check(parameters, action)
        log_p = parameters.log_softmax(-1)
        return Evaluation(_log_prob(log_p, action), _entropy(log_p))

    def kl(self, parameters: Float[Tensor, "*rows P"], other: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows"]:
        """Σ π·(log π − log other)."""
        if checks.active():
            check_parameters(self, parameters=parameters, other=other)
        return _kl(parameters.log_softmax(-1), other.log_softmax(-1))

    def sample(
        self, parameters: Float[Tensor, "*rows P"], generator: torch.Generator | None = None
    ) -> Integer[Tensor, "*rows"]:
        """One draw; needs no normalisation and no look at the values."""
        if checks.active():
            check_parameters(self, parameters=parameters)
        return _sample(parameters, generator)

    def mode(self, parameters: Float[Tensor, "*rows P"]) -> Integer[Tensor, "*rows"]:
        """The most probable action."""
        return parameters.argmax(-1)

    def joint_log_probs(self, parameters: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows A"]:
        """Normalised logits."""
        if checks.active():
            check_parameters(self, parameters=parameters)
        return parameters.log_softmax(-1)

    def to_environment(self, action: Integer[Tensor, "*rows"]) -> Integer[Tensor, "*rows"]:
        """As it is."""
        return action

    def _check(self, parameters: Tensor, action: Tensor) -> None:
        if checks.active():
            check_parameters(self, parameters=parameters)
            check_action(self, parameters, action)
            checks.indices(self.actions, action=action)


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, one for each entry of `actions`; the parameters are all logits side by side, the action a vector of integers.

    >>> family = MultiCategorical((2, 3))
    >>> family.parameter_size, family.joint_size
    (5, 6)
    >>> family.log_prob(torch.zeros(5), torch.tensor([1, 2])).exp()
    tensor(0.1667)
    """

    actions: tuple[int, ...]

    def __post_init__(self) -> None:
        valid = len(self.actions) > 0 and min(self.actions) > 0
        checks.require(valid, f"actions is {self.actions}, expected at least one factor with at least one action each")

    @property
    def parameter_size(self) -> int:
        """All logits."""
        return sum(self.actions)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """One integer a factor."""
        return (len(self.actions),)

    @property
    def joint_size(self) -> int:
        """The product of the factors' sizes."""
        return math.prod(self.actions)

    def log_prob(
        self, parameters: Float[Tensor, "*rows P"], action: Integer[Tensor, "*rows factors"]
    ) -> Float[Tensor, "*rows"]:
        """Σ over factors of log π_i(action_i)."""
        factors = zip(self._log_probs(parameters), self._chosen(parameters, action), strict=True)
        return torch.stack([_log_prob(log_p, chosen) for log_p, chosen in factors]).sum(0)

    def entropy(self, parameters: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows"]:
        """The factors are independent: their entropies add up."""
        return torch.stack([_entropy(log_p) for log_p in self._log_probs(parameters)]).sum(0)

    def evaluate(self, parameters: Float[Tensor, "*rows P"], action: Integer[Tensor, "*rows factors"]) -> Evaluation:
        """Both from one normalisation."""
        factors = list(zip(self._log_probs(parameters), self._chosen(parameters, action), strict=True))
        log_prob = torch.stack([_log_prob(log_p, chosen) for log_p, chosen in factors]).sum(0)
        return Evaluation(log_prob, torch.stack([_entropy(log_p) for log_p, _ in factors]).sum(0))

    def kl(self, parameters: Float[Tensor, "*rows P"], other: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows"]:
        """The factors are independent: their divergences add up (those to the implied policy do not)."""
        factors = zip(self._log_probs(parameters), self._log_probs(other), strict=True)
        return torch.stack([_kl(log_p, log_q) for log_p, log_q in factors]).sum(0)

    def sample(
        self, parameters: Float[Tensor, "*rows P"], generator: torch.Generator | None = None
    ) -> Integer[Tensor, "*rows factors"]:
        """One draw a factor."""
        return torch.stack([_sample(logits, generator) for logits in self._split(parameters)], -1)

    def mode(self, parameters: Float[Tensor, "*rows P"]) -> Integer[Tensor, "*rows factors"]:
        """The most probable action of each factor."""
        return torch.stack([logits.argmax(-1) for logits in self._split(parameters)], -1)

    def joint_log_probs(self, parameters: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows A"]:
        """All combinations, the last factor fastest."""
        joint, *others = self._log_probs(parameters)
        for log_p in others:
            joint = (joint.unsqueeze(-1) + log_p.unsqueeze(-2)).flatten(-2)
        return joint

    def to_environment(self, action: Integer[Tensor, "*rows factors"]) -> Integer[Tensor, "*rows factors"]:
        """As it is."""
        return action

    def _chosen(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        if checks.active():
            check_action(self, parameters, action)
            for chosen, size in zip(action.unbind(-1), self.actions, strict=True):
                checks.indices(size, action=chosen)
        return action.unbind(-1)

    def _log_probs(self, parameters: Tensor) -> list[Tensor]:
        return [logits.log_softmax(-1) for logits in self._split(parameters)]

    def _split(self, parameters: Tensor) -> tuple[Tensor, ...]:
        if checks.active():
            check_parameters(self, parameters=parameters)
        return torch.split(parameters, list(self.actions), -1)


# From normalised log-probabilities.


def _log_prob(log_p: Tensor, action: Tensor) -> Tensor:
    return log_p.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def _entropy(log_p: Tensor) -> Tensor:
    return (log_p.exp() * -log_p).sum(-1)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _sample(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gumbel's trick: the largest logit after noise."""
    noise = torch.empty_like(logits).exponential_(generator=generator)
    # An exponential variate of exactly 0 would make its action win against any logit.
    return (logits - noise.clamp(min=torch.finfo(noise.dtype).tiny).log()).argmax(-1)


def check_parameters(family: Family, **tensors: Tensor) -> None:
    """Refuse parameters of the wrong size or type, or that are not finite."""
    checks.last_dimension(family.parameter_size, **tensors)
    checks.floating(**tensors)
    for name, tensor in tensors.items():
        checks.require(
            bool(tensor.isfinite().all()),
            f"{name} of {family} are not all finite; to forbid an action give it a logit of -1e4, not minus infinity",
        )


def check_action(family: Family, parameters: Tensor, action: Tensor) -> None:
    """Refuse actions that do not answer the rows of `parameters`."""
    expected = (*parameters.shape[:-1], *family.action_shape)
    got = tuple(action.shape)
    checks.require(
        got == expected, f"action has shape {got}, expected {expected} for parameters {tuple(parameters.shape)}"
    )
