"""How a run ended."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laser_rl.config import Config
from laser_rl.evaluation.statistics import EvalResult
from laser_rl.training.evaluate import Trained
from laser_rl.training.pbt import Exploit


@dataclass(frozen=True)
class MemberResult:
    """How one member ended."""

    number: int
    settings: dict[str, Any]  # what it was started with, as far as members differ
    config: Config  # all of it, with what population based training made of it
    steps: int
    updates: int
    return_mean: float | None  # of its last 100 episodes; of a mixture, the median of its tasks' normalised scores
    evaluation: EvalResult | None
    trained: Trained  # its network, to play with


@dataclass(frozen=True)
class Result:
    """How a run of one agent, or a sweep, ended."""

    members: tuple[MemberResult, ...]
    exploits: tuple[Exploit, ...]
    interrupted: str | None  # the signal or reason, None if all steps were done
    checkpoint: Path | None

    @property
    def steps(self) -> int:
        """Of the slowest member."""
        return min(member.steps for member in self.members)

    @property
    def updates(self) -> int:
        """Of all members together."""
        return sum(member.updates for member in self.members)

    def best(self) -> MemberResult:
        """The member with the best evaluation; of equal ones, and without any, the one with the best returns."""

        def merit(member: MemberResult) -> tuple[float, float]:
            trained = -math.inf if member.return_mean is None else member.return_mean
            return (trained if member.evaluation is None else member.evaluation.score, trained)

        return max(self.members, key=merit)
