"""A replay to begin with: the unrolls of an earlier run or sweep. The trust region decides what of it is worth learning from."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, read_segment
from laser_rl.checkpoint.guarded import fitting
from laser_rl.config import Config
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError
from laser_rl.replay.mixer import UnrollStore
from laser_rl.training.files import read_sweep

log = logging.getLogger("laser_rl.training")
STORE_IDS = 1 << 40  # numbers of unrolls on disk that each of several stores has to itself


def earlier_members(config: Config) -> int:
    """How many members elsewhere have written into the replay that this one begins with."""
    start = config.replay.start_from
    return 0 if start is None else _members_of(Path(start))


def _members_of(run_dir: Path) -> int:
    sweep = read_sweep(run_dir, used=False)
    return len(sweep.settings) + earlier_members(sweep.base)


def warm_start(replay: UnrollStore, config: Config, members: int) -> None:
    """Fill an empty store with the newest unrolls of the run that the configuration names, if it names one.

    The members there get the numbers after the `members` that are here. Versions are moved to be at most 0: everything is older than the
    first parameters here.
    """
    if config.replay.start_from is None:
        return
    run_dir = Path(config.replay.start_from)
    loaded = checkpoint.latest(run_dir)
    if loaded is None or not loaded.segments:
        raise ConfigError(f"{run_dir} has no replay to start from: no checkpoint is there, or nothing was replayed")
    _check_tasks(run_dir, config)
    with fitting(loaded.path):
        _fill(replay, run_dir, loaded, members)
    log.info("the replay begins with %s unrolls of %s", f"{len(replay):,}", run_dir)


def _fill(replay: UnrollStore, run_dir: Path, loaded: Loaded, members: int) -> None:
    newest, oldest = _newest(loaded.state), _oldest(loaded.state)
    for entry in loaded.segments:
        first = oldest[entry.first_id // STORE_IDS]
        try:
            for _, block in read_segment(run_dir / checkpoint.REPLAY, entry, replay.layout, first_id=first):
                older, numbers = (
                    np.asarray(block.version) - newest,
                    (block.member.astype(np.int64) + members).astype(np.int32),
                )
                replay.insert(block._replace(version=older, member=numbers))
        except ConfigError as error:
            raise ConfigError(
                f"the replay of {run_dir} does not fit this agent: its unrolls have another shape. Use the same environment, frame_stack "
                f"and unroll_steps as there ({error})"
            ) from None


def _check_tasks(run_dir: Path, config: Config) -> None:
    """Unrolls say by number which task they are of: the numbers must mean the same there."""
    there = read_sweep(run_dir, used=False).base
    before, now = (list(tasks_of(one.environment.id)) for one in (there, config))
    if before != now and max(len(before), len(now)) > 1:
        raise ConfigError(
            f"the replay of {run_dir} is of the tasks {', '.join(before)}, this agent learns {', '.join(now)}; "
            "use the same tasks in the same order"
        )


def _newest(state: Mapping[str, Any]) -> int:
    """The highest version in use when the checkpoint was written: no unroll is newer."""
    return max(int(member["learner"]["version"]) for member in state["members"])


def _oldest(state: Mapping[str, Any]) -> list[int]:
    """The number on disk of the oldest unroll of each store; what precedes it in its file had left already."""
    return [number * STORE_IDS + int(ids["first_id"]) for number, ids in enumerate(state["replays"])]
