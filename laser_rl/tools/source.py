"""From a run directory to the agent that is exported."""

from dataclasses import dataclass
from pathlib import Path

from laser_rl.checkpoint import CHECKPOINTS
from laser_rl.config import Config
from laser_rl.envs.records import ActionSpec, BoxActions, DiscreteActions
from laser_rl.training.evaluate import Trained, chosen_member, load_trained
from laser_rl.training.files import read_sweep


@dataclass(frozen=True)
class Source:
    """One agent of a run directory: the only one, or a member of a sweep."""

    run_dir: Path
    member: int | None
    config: Config
    trained: Trained

    @property
    def checkpoint(self) -> Path:
        return self.run_dir / CHECKPOINTS / f"step-{self.trained.steps:012d}"

    def __str__(self) -> str:
        whose = "" if self.member is None else f"member {self.member} of "
        return f"{whose}{self.trained.environment.id} after {self.trained.steps:,} steps"


def load_source(run_dir: Path, member: str | int | None = None) -> Source:
    """The newest checkpoint of a run, or of a sweep's member (the best one if none is named)."""
    number = chosen_member(run_dir, member)
    return Source(run_dir, number, read_sweep(run_dir).configs[number or 0], load_trained(run_dir, number))


def starts_in(action: ActionSpec) -> tuple[int, ...]:
    """Where an environment begins to count each of its choices; empty if all begin at 0."""
    if isinstance(action, DiscreteActions):
        return (action.start,) if action.start else ()
    return () if isinstance(action, BoxActions) else action.starts
