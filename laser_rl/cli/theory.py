"""`laser theory`: the five propositions as tables of numbers."""

from dataclasses import dataclass

import tyro

from laser_rl.research.propositions import show


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


def theory_command(arguments: list[str]) -> int:
    """`laser theory`."""
    show(**vars(tyro.cli(Theory, prog="laser theory", args=arguments)))
    return 0
