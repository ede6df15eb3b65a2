"""A run directory: configuration, metrics, checkpoints, replay. Everything of a run, in files that anybody can read."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from laser_rl import checkpoint
from laser_rl.checkpoint import RunLock, SegmentEntry, Snapshot, read_segment, write_segment
from laser_rl.checkpoint.atomic import write_json
from laser_rl.config import Config
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import FILE, MetricsLog
from laser_rl.replay.store import Replay
from laser_rl.runtime.files import CONFIG, read_config, require_same
from laser_rl.runtime.training import Training
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.runtime")
SEGMENT_UNROLLS = 4096


class RunDirectory:
    """The files of one run, held by a lock: a second run in the same place is refused.

    Args:
        path: created if it is not there.
        config: written there; None: the one that is there counts.
        fresh: throw away what an earlier run left.
    """

    def __init__(self, path: Path, config: Config | None = None, *, fresh: bool = False) -> None:
        self.path = path
        if config is None and not (path / CONFIG).exists():
            raise ConfigError(f"{path} is no run directory: it has no {CONFIG}; 'laser train --out {path}' makes one")
        path.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(path)
        try:
            self._settle(config, fresh=fresh)
        except BaseException:
            self._lock.release()
            raise
        self.config = read_config(path)
        self.log = MetricsLog(path)
        self._entries: list[SegmentEntry] = []

    def _settle(self, config: Config | None, *, fresh: bool) -> None:
        path = self.path
        checkpoint.remove_leftovers(path)
        if fresh:
            checkpoint.clear(path)
            for old in [path / FILE, *path.glob("events.*")]:
                old.unlink(missing_ok=True)
        elif config is not None and any(path.glob(f"{checkpoint.CHECKPOINTS}/step-*")):
            require_same(config, read_config(path))
        if config is not None:
            write_json(path / CONFIG, config.model_dump(mode="json"))

    def save(self, training: Training) -> Path:
        """A checkpoint: new unrolls become segments, everything else one folder."""
        member = training.member
        learner, mixer = member.learner.state(), member.mixer.state_dict()
        arrays = {name: value for name, value in mixer.items() if isinstance(value, np.ndarray)}
        numbers = {name: value for name, value in mixer.items() if name not in arrays}
        replay = member.replay
        if replay is not None:
            self._write_segments(replay, member.layout)
        snapshot = Snapshot(
            step=training.steps,
            tensors={**learner.tensors, **member.actor.state(), "mixer": arrays},
            state={
                "learner": learner.numbers,
                "training": training.state(),
                "mixer": numbers,
                "replay": None if replay is None else {"first_id": replay.first_id, "next_id": replay.next_id},
            },
            segments=tuple(self._entries),
        )
        self.log.flush()
        return checkpoint.write(self.path, snapshot, keep=self.config.run.keep_checkpoints)

    def restore(self, training: Training) -> bool:
        """Load the newest checkpoint that verifies; False if none was ever written."""
        loaded = checkpoint.latest(self.path)
        if loaded is None:
            if self.log.path.stat().st_size:  # an earlier start left rows, but no checkpoint: they are void
                training.announce("resumed")
            return False
        member, state = training.member, loaded.state
        if member.replay is not None:
            self._entries = list(loaded.segments)
            _fill(member.replay, self._unrolls(member.layout, state["replay"]), state["replay"])
        tensors = loaded.tensors
        member.learner.load(tensors, state["learner"])
        arrays = {
            group: {n: t.numpy() for n, t in tensors.get(group, {}).items()}
            for group in ("actor", "environments", "mixer")
        }
        member.mixer.load_state_dict({**arrays["mixer"], **state["mixer"]})
        member.actor.policy.network.load_state_dict(member.learner.network.state_dict())
        lost = member.actor.load(arrays)
        if lost:
            log.warning(
                "%d open episodes could not be rebuilt and start anew; the run goes on, but not bit for bit", lost
            )
        training.load(state["training"])
        training.announce("resumed")
        return True

    def close(self) -> None:
        """Let go of the lock and the files."""
        self.log.close()
        self._lock.release()

    def _write_segments(self, replay: Replay, layout: UnrollLayout) -> None:
        self._entries = [entry for entry in self._entries if entry.last_id >= replay.first_id]
        first = max(replay.first_id, self._entries[-1].last_id + 1 if self._entries else 0)
        for start in range(first, replay.next_id, SEGMENT_UNROLLS):
            ids = np.arange(start, min(start + SEGMENT_UNROLLS, replay.next_id))
            self._entries.append(write_segment(self.path / checkpoint.REPLAY, layout, start, replay.export(ids)))

    def _unrolls(self, layout: UnrollLayout, ids: dict[str, int]) -> Iterator[Any]:
        for entry in self._entries:
            for _, block in read_segment(self.path / checkpoint.REPLAY, entry, layout, first_id=ids["first_id"]):
                yield block


def _fill(replay: Replay, blocks: Iterator[Any], ids: dict[str, int]) -> None:
    replay.load(ids["first_id"])
    for block in blocks:
        replay.insert(block)
    if (replay.first_id, replay.next_id) != (ids["first_id"], ids["next_id"]):
        raise ConfigError(
            f"the replay on disk holds unrolls {ids['first_id']} to {ids['next_id'] - 1}, but only "
            f"{replay.first_id} to {replay.next_id - 1} fit; resume with the capacity the run was started with"
        )
