"""A run directory: settings, metrics, checkpoints of all members at once, replay. Everything of a run, in files that anybody can read."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, Mended, SegmentEntry, Snapshot
from laser_rl.checkpoint.guarded import fitting
from laser_rl.checkpoint.snapshot import flat, grouped, member_name
from laser_rl.config import Config
from laser_rl.disk import write_json
from laser_rl.metrics import machine
from laser_rl.metrics.log import MetricsLog
from laser_rl.replay.store import Replay
from laser_rl.training.disk_space import all_or_nothing
from laser_rl.training.files import SETTINGS, begun_with, described, read_sweep, require_same, settings_file
from laser_rl.training.run_lock import has_checkpoints, hold
from laser_rl.training.saving import (
    MENDED,
    Segments,
    fill_stores,
    load_member,
    member_groups,
    member_numbers,
    warn_of_lost,
)
from laser_rl.training.settings import SweepConfig
from laser_rl.training.trainer import Trainer
from laser_rl.types import UnrollLayout

Written = tuple[list[dict[str, int]], tuple[SegmentEntry, ...]]  # ids that each store holds, and the segments with them


class Contents(NamedTuple):
    """A checkpoint but for the replay."""

    step: int
    tensors: Mapping[str, Mapping[str, Any]]  # by file
    members: Sequence[Mapping[str, Any]]  # numbers of each, see `member_numbers`
    trainer: Mapping[str, Any]


class RunDirectory:
    """The files of one run, held by a lock: a second run in the same place is refused.

    Args:
        path: created if it is not there.
        settings: written there, of one agent or of a sweep; None: those that are there count.
        fresh: throw away what an earlier run left.
        accept_changes: go on also if the settings' file was edited.
    """

    def __init__(
        self,
        path: Path,
        settings: Config | SweepConfig | None = None,
        *,
        fresh: bool = False,
        accept_changes: bool = False,
    ) -> None:
        self.path = path
        given = SweepConfig(base=settings) if isinstance(settings, Config) else settings
        settle = partial(self._settle, given, accept_changes=accept_changes)
        self._lock = hold(path, settings=None if given is None else settings_file(given), fresh=fresh, settle=settle)
        try:
            self.settings = read_sweep(path, used=given is None)
            self.log = MetricsLog(path)
            machine.record(path)
        except BaseException:
            self._lock.release()
            raise
        self._segments: dict[int, Segments] = {}

    def _settle(self, given: SweepConfig | None, *, accept_changes: bool) -> None:
        path = self.path
        if has_checkpoints(path):
            there = read_sweep(path, used=False)
            begun = None if accept_changes else begun_with(path)
            require_same(given or there, begun or there)
        if given is not None:
            write_json(path / settings_file(given), described(given))

    @property
    def config(self) -> Config:
        """The configuration of the agent, or what all members of a sweep have in common."""
        return self.settings.base

    def save(self, trainer: Trainer) -> Path:
        """A checkpoint of all members: new unrolls become segments, everything else one folder. `NoSpace` if the disk is full."""
        tensors: dict[str, Mapping[str, Any]] = dict(trainer.group.actor_state())
        for number, member in enumerate(trainer.trainings):
            tensors[member_name(number)] = flat(member_groups(member))
        numbers = [member_numbers(member) for member in trainer.trainings]
        layout = trainer.group.members[0].layout
        contents = Contents(trainer.steps, tensors, numbers, trainer.state_dict())
        return self.write(contents, lambda: self.write_stores(trainer.stores(), layout))

    def write(self, contents: Contents, write_replays: Callable[[], Written]) -> Path:
        """A checkpoint; it is there whole or not at all."""
        with all_or_nothing(self.path, contents.step, self._segments.values):
            replays, segments = write_replays()
            snapshot = Snapshot(
                step=contents.step,
                tensors=contents.tensors,
                state={
                    "members": contents.members,
                    "trainer": contents.trainer,
                    "replays": replays,
                    SETTINGS: described(self.settings),
                },
                segments=segments,
            )
            self.log.flush()
            return checkpoint.write(self.path, snapshot, keep=self.config.run.keep_checkpoints)

    def restore(self, trainer: Trainer) -> bool:
        """Load the newest checkpoint that verifies, with what is left of a damaged replay; False if none was ever written."""
        loaded = checkpoint.latest(self.path, replay="salvage")
        if loaded is None:
            if self.log.path.stat().st_size:  # an earlier start left rows, but no checkpoint: they are void
                trainer.announce("resumed")
            return False
        with fitting(loaded.path):
            mended = self.fill(trainer.stores(), trainer.group.members[0].layout, loaded)
            for number, member in enumerate(trainer.trainings):
                load_member(member, grouped(loaded.tensors[member_name(number)]), loaded.state["members"][number])
            warn_of_lost(trainer.group.load_actors(loaded.tensors))
            trainer.load_state_dict(loaded.state["trainer"])
        trainer.announce("resumed")
        if mended is not None:
            trainer.write("event", {"event": MENDED, **mended.values})
        return True

    def write_stores(self, stores: Sequence[Replay], layout: UnrollLayout) -> Written:
        """Write what is new in each store."""
        ids = [self._files_of(number, layout).write(store) for number, store in enumerate(stores)]
        return ids, self.segments()

    def segments(self) -> tuple[SegmentEntry, ...]:
        """All that a checkpoint needs of the replay on disk."""
        return tuple(entry for files in self._segments.values() for entry in files.entries)

    def fill(self, stores: Sequence[Replay], layout: UnrollLayout, loaded: Loaded) -> Mended | None:
        """Load the replay of a checkpoint; says what is lost of a damaged one."""
        numbered = enumerate(stores)
        return fill_stores(
            loaded,
            [(self._files_of(number, layout), store, loaded.state["replays"][number]) for number, store in numbered],
        )

    def close(self) -> None:
        """Let go of the lock and the files."""
        self.log.close()
        self._lock.release()

    def keep(self, store: int, files: Segments) -> None:
        """Put files of a store that another process writes into every checkpoint from now on; they go back with one that fails."""
        self._segments[store] = files

    def _files_of(self, store: int, layout: UnrollLayout) -> Segments:
        return self._segments.setdefault(store, Segments(self.path, layout, store))
