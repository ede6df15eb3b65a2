"""How good an agent is: playing episodes, their statistics, and videos; the paper's protocol, its tables, and what became of its claims."""

from laser_rl.evaluation.aggregate import (
    Aggregate,
    Improvement,
    Profile,
    performance_profile,
    probability_of_improvement,
    stratified_iqm,
)
from laser_rl.evaluation.claims import Claim, Verdict, verdict
from laser_rl.evaluation.rollout import rollout
from laser_rl.evaluation.statistics import EvalResult, summarise, summarise_episodes
from laser_rl.evaluation.video import film, record

__all__ = [
    "Aggregate",
    "Claim",
    "EvalResult",
    "Improvement",
    "Profile",
    "Verdict",
    "film",
    "performance_profile",
    "probability_of_improvement",
    "record",
    "rollout",
    "stratified_iqm",
    "summarise",
    "summarise_episodes",
    "verdict",
]
