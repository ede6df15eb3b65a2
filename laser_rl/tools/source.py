"""From a run directory to what is exported: one agent, or a copy of the run that is small enough to carry."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from laser_rl import checkpoint
from laser_rl.checkpoint import CHECKPOINTS, REPLAY, SegmentEntry, Snapshot
from laser_rl.envs.records import ActionSpec, BoxActions, DiscreteActions
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import FILE
from laser_rl.training.evaluate import Trained, chosen_member, load_trained, newest
from laser_rl.training.files import CONFIG, SWEEP, read_sweep
from laser_rl.training.saving import STORE_IDS


@dataclass(frozen=True)
class Source:
    """One agent of a run directory: the only one, or a member of a sweep."""

    run_dir: Path
    member: int | None
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
    return Source(run_dir, number, load_trained(run_dir, number))


def starts_in(action: ActionSpec) -> tuple[int, ...]:
    """Where an environment begins to count each of its choices; empty if all begin at 0."""
    if isinstance(action, DiscreteActions):
        return (action.start,) if action.start else ()
    return () if isinstance(action, BoxActions) else action.starts


def require_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty, expected a new folder; choose another")


def copy_run(run_dir: Path, folder: Path, replay_steps: int) -> tuple[int, int]:
    """A run directory with the newest checkpoint and the newest segments of each replay, which hold `replay_steps` or a little more.

    Log and settings come along; older segments, films, and the copy of parameters that a roll-back would restore do not. Returns the
    steps of replay that it holds and the bytes of all files.
    """
    unroll_steps, loaded = read_sweep(run_dir).base.loss.unroll_steps, newest(run_dir, replay="whole")
    require_new(folder)
    segments: list[SegmentEntry] = []
    replays = [dict(ids) for ids in loaded.state["replays"]]
    for store, ids in enumerate(replays):
        own = [one for one in loaded.segments if one.first_id // STORE_IDS == store]
        while own and (own[-1].last_id - own[0].last_id) * unroll_steps >= replay_steps:
            own.pop(0)
        first = own[0].first_id - store * STORE_IDS if own else ids["next_id"]
        ids["first_id"], segments = max(ids["first_id"], first), segments + own
    (folder / REPLAY).mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, SWEEP, FILE, *(f"{REPLAY}/{one.name}" for one in segments)):
        if (run_dir / name).exists():
            shutil.copyfile(run_dir / name, folder / name)
    tensors = {
        group: {name: value for name, value in values.items() if not name.startswith("good/")}
        for group, values in loaded.tensors.items()
    }
    checkpoint.write(folder, Snapshot(loaded.step, tensors, {**loaded.state, "replays": replays}, segments))
    checkpoint.latest(folder)  # what was copied verifies
    held = unroll_steps * sum(ids["next_id"] - ids["first_id"] for ids in replays)
    return held, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
