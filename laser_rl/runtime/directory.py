"""A run directory: configuration, metrics, checkpoints, replay. Everything of a run, in files that anybody can read."""

from functools import partial
from pathlib import Path

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, Mended, Snapshot
from laser_rl.checkpoint.atomic import write_json
from laser_rl.checkpoint.guarded import fitting
from laser_rl.config import Config
from laser_rl.metrics import machine
from laser_rl.metrics.log import MetricsLog
from laser_rl.runtime.files import CONFIG, SETTINGS, begun_with, read_config, require_same
from laser_rl.runtime.held import has_checkpoints, hold
from laser_rl.runtime.saving import (
    MENDED,
    Segments,
    fill_stores,
    load_member,
    member_groups,
    member_numbers,
    warn_of_lost,
)
from laser_rl.runtime.space import all_or_nothing
from laser_rl.runtime.training import Training
from laser_rl.types import UnrollLayout


class RunDirectory:
    """The files of one run, held by a lock: a second run in the same place is refused.

    Args:
        path: created if it is not there.
        config: written there; None: the one that is there counts.
        fresh: throw away what an earlier run left.
        accept_changes: go on also if `config.json` was edited.
    """

    def __init__(
        self, path: Path, config: Config | None = None, *, fresh: bool = False, accept_changes: bool = False
    ) -> None:
        self.path = path
        settle = partial(self._settle, config, accept_changes=accept_changes)
        self._lock = hold(path, CONFIG, "laser train", given=config is not None, fresh=fresh, settle=settle)
        try:
            self.config = read_config(path, used=config is None)
            self.log = MetricsLog(path)
            machine.record(path)
        except BaseException:
            self._lock.release()
            raise
        self._segments: Segments | None = None

    def _settle(self, config: Config | None, *, accept_changes: bool) -> None:
        path = self.path
        if has_checkpoints(path):
            there = read_config(path, used=False)
            begun = there if accept_changes else begun_with(path)
            require_same(config or there, begun if isinstance(begun, Config) else there)
        if config is not None:
            write_json(path / CONFIG, config.model_dump(mode="json"))

    def save(self, training: Training) -> Path:
        """A checkpoint: new unrolls become segments, everything else one folder. `NoSpace` if the disk is full."""
        member, replay = training.member, training.member.store
        segments = self._files_of(member.layout)
        with all_or_nothing(self.path, training.steps, lambda: [segments]):
            ids = None if replay is None else segments.write(replay)
            snapshot = Snapshot(
                step=training.steps,
                tensors={**member_groups(training), **member.actor.state()},
                state={**member_numbers(training), "replay": ids, SETTINGS: self.config.model_dump(mode="json")},
                segments=tuple(segments.entries),
            )
            self.log.flush()
            return checkpoint.write(self.path, snapshot, keep=self.config.run.keep_checkpoints)

    def restore(self, training: Training) -> bool:
        """Load the newest checkpoint that verifies, with what is left of a damaged replay; False if none was ever written."""
        loaded = checkpoint.latest(self.path, replay="salvage")
        if loaded is None:
            if self.log.path.stat().st_size:  # an earlier start left rows, but no checkpoint: they are void
                training.announce("resumed")
            return False
        with fitting(loaded.path):
            mended = self._load(training, loaded)
        training.announce("resumed")
        if mended is not None:
            training.announce(MENDED, mended.values)
        return True

    def _load(self, training: Training, loaded: Loaded) -> Mended | None:
        member, tensors = training.member, loaded.tensors
        mended = None
        if member.store is not None:
            mended = fill_stores(loaded, [(self._files_of(member.layout), member.store, loaded.state["replay"])])
        load_member(training, tensors, loaded.state)
        member.acting.load_state_dict(member.learner.network.state_dict())
        arrays = {
            group: {n: t.numpy() for n, t in tensors.get(group, {}).items()} for group in ("actor", "environments")
        }
        warn_of_lost(member.actor.load(arrays))
        return mended

    def _files_of(self, layout: UnrollLayout) -> Segments:
        if self._segments is None:
            self._segments = Segments(self.path, layout)
        return self._segments

    def close(self) -> None:
        """Let go of the lock and the files."""
        self.log.close()
        self._lock.release()
