"""What a user imports: one agent, and a sweep of several that learn from each other."""

from laser_rl.api.agent import LASER
from laser_rl.api.callbacks import EvaluateEvery, SaveEvery, StopAtReturn, StopWithoutImprovement
from laser_rl.api.sweep import Sweep, SweepResult
from laser_rl.training.evaluate import MemberResult as SweepMember

__all__ = [
    "LASER", "EvaluateEvery", "SaveEvery", "StopAtReturn", "StopWithoutImprovement", "Sweep", "SweepMember", "SweepResult",
]  # fmt: skip
