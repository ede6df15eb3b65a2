"""`laser theory`: the paper's five propositions on a random Markov decision process as tables; `theory` computes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from laser_rl.ops import checks, trust_region
from laser_rl.research import theory

BEHAVIOURS = 4


@dataclass(frozen=True)
class Theory:
    """Compute the paper's five propositions on a random Markov decision process, for one policy and four behaviours."""

    states: int = 4
    """How many states the process has."""
    actions: int = 3
    """How many actions each state offers."""
    discount: float = 0.9
    """gamma."""
    clip_rho: float = 1.0
    """V-trace's clipping constant, rho-bar."""
    bound: float = 0.1
    """The trust region's threshold b on KL(policy || implied policy)."""
    sharpness: float = 2.0
    """How deterministic the random policies are; 1 is uniform on the simplex."""
    seed: int = 0
    """Of the process and the policies."""

    def __call__(self) -> int:
        checks.positive(clip_rho=self.clip_rho, bound=self.bound, sharpness=self.sharpness)
        generator, size = torch.Generator().manual_seed(self.seed), (self.states, self.actions)
        mdp = theory.random_mdp(*size, discount=self.discount, generator=generator)
        policy, *behaviours = [
            theory.random_policy(*size, sharpness=self.sharpness, generator=generator) for _ in range(1 + BEHAVIOURS)
        ]
        console = Console()
        console.print(_bias(mdp, policy, behaviours[0], self.clip_rho))
        console.print(_greed(mdp, policy, behaviours[0], self.clip_rho))
        console.print(_contraction(mdp, policy, behaviours, self.clip_rho, self.bound))
        return 0


def _bias(mdp: theory.MDP, policy: Tensor, behaviour: Tensor, clip_rho: float) -> Table:
    """Proposition 1."""
    everywhere = torch.ones(len(policy), dtype=torch.bool)
    operator = theory.expected_return(mdp, policy, behaviour, everywhere, clip_rho=clip_rho, clip_c=min(clip_rho, 1.0))
    implied = theory.implied_policy(policy, behaviour, clip_rho=clip_rho)
    columns = {
        "V^pi": theory.policy_value(mdp, policy),
        "V-trace": theory.fixed_point(operator),
        "V^implied": theory.policy_value(mdp, implied),
        "KL(pi||implied)": trust_region.implied_kl(policy.log(), behaviour.log(), clip_rho=clip_rho),
        "KL(pi||mu)": (policy * (policy / behaviour).log()).sum(-1),
    }
    return _by_state("Proposition 1: V-trace estimates the implied policy's value", columns)


def _greed(mdp: theory.MDP, policy: Tensor, behaviour: Tensor, clip_rho: float) -> Table:
    """Propositions 2 and 3."""
    start = torch.full_like(policy[:, 0], 1 / len(policy))
    q = theory.action_values(mdp, theory.policy_value(mdp, policy))
    distorted = q * theory.distortion(policy, behaviour, clip_rho=clip_rho)
    visits = [theory.state_distribution(mdp, table, start) for table in (policy, behaviour)]
    columns = {
        "best action": q.argmax(-1),
        "distorted best": distorted.argmax(-1),
        "regret": theory.regret(q, distorted),
        "d^mu/d^pi": visits[1] / visits[0],
        "share needed": theory.alpha_bound(q, distorted, visits[0], visits[1]),
    }
    return _by_state("Propositions 2 and 3: the distortion's cost, and its cure by online data", columns)


def _contraction(mdp: theory.MDP, policy: Tensor, behaviours: Sequence[Tensor], clip_rho: float, bound: float) -> Table:
    """Propositions 4 and 5, from V = 0. The policy's own data is among the behaviours, as online data is in every batch."""
    behaviours = [policy, *behaviours]
    relevance = torch.stack([trust_region.implied_kl(policy.log(), mu.log(), clip_rho=clip_rho) for mu in behaviours])
    weights = torch.full((len(behaviours),), 1 / len(behaviours), dtype=policy.dtype)
    own = theory.policy_value(mdp, policy)
    implied = [theory.policy_value(mdp, theory.implied_policy(policy, mu, clip_rho=clip_rho)) for mu in behaviours]
    table = _table(
        "Propositions 4 and 5: the trusted estimator, applied to V = 0 (maximum norms)",
        ("estimator", "behaviours", "trusted", "distance", "its bound", "bias in the limit"),
    )
    for estimator in get_args(theory.Estimator):
        clipped: dict[str, Any] = {"estimator": estimator, "clip_rho": clip_rho, "clip_c": min(clip_rho, 1.0)}
        points = torch.stack([own] * len(behaviours) if estimator == "importance" else implied)
        for name, trusted in (("all", relevance >= 0), (f"KL < {bound:g}", relevance < bound)):
            operator = theory.trusted_operator(mdp, policy, behaviours, weights, trusted, **clipped)
            shrunk = [
                theory.contraction_rate(theory.expected_return(mdp, policy, mu, mask, **clipped), mask)
                * point.abs().amax()
                for mu, mask, point in zip(behaviours, trusted, points, strict=True)
                if mask.any()
            ]
            average = (theory.conditional_share(weights, trusted) * points).sum(0)
            distance = (operator.offset - average).abs().amax()
            bias = (theory.fixed_point(operator) - own).abs().amax()
            numbers = (distance, torch.stack(shrunk).amax(), bias)
            table.add_row(estimator, name, f"{trusted.double().mean():.0%}", *(f"{number:.4f}" for number in numbers))
    return table


def _by_state(title: str, columns: dict[str, Tensor]) -> Table:
    table = _table(title, ("state", *columns))
    for state, row in enumerate(zip(*columns.values(), strict=True)):
        table.add_row(str(state), *(f"{entry:.4f}" if entry.is_floating_point() else str(int(entry)) for entry in row))
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {"estimator", "behaviours"} else "right", no_wrap=True)
    return table
