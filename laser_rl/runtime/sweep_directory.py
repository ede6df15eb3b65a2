"""The run directory of a sweep: `sweep.json`, one log, one checkpoint of all members at once, one replay (or one each)."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, Mended, SegmentEntry, Snapshot
from laser_rl.checkpoint.atomic import write_json
from laser_rl.checkpoint.guarded import fitting
from laser_rl.metrics import machine
from laser_rl.metrics.log import MetricsLog
from laser_rl.replay.store import Replay
from laser_rl.runtime.files import SETTINGS, SWEEP, begun_with, described, read_sweep, require_same_sweep
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
from laser_rl.runtime.sweep import SweepTraining
from laser_rl.sweep.settings import SweepConfig
from laser_rl.types import UnrollLayout


class SweepDirectory:
    """The files of one sweep, held by a lock.

    Args:
        path: created if it is not there.
        sweep: written there; None: the one that is there counts.
        fresh: throw away what an earlier sweep left.
        accept_changes: go on also if `sweep.json` was edited.
    """

    def __init__(
        self, path: Path, sweep: SweepConfig | None = None, *, fresh: bool = False, accept_changes: bool = False
    ) -> None:
        self.path = path
        settle = partial(self._settle, sweep, accept_changes=accept_changes)
        self._lock = hold(path, SWEEP, "laser sweep", given=sweep is not None, fresh=fresh, settle=settle)
        try:
            self.sweep = read_sweep(path, used=sweep is None)
            self.log = MetricsLog(path)
            machine.record(path)
        except BaseException:
            self._lock.release()
            raise
        self._segments: dict[int, Segments] = {}

    def _settle(self, sweep: SweepConfig | None, *, accept_changes: bool) -> None:
        path = self.path
        if has_checkpoints(path):
            there = read_sweep(path, used=False)
            begun = there if accept_changes else begun_with(path)
            require_same_sweep(sweep or there, begun if isinstance(begun, SweepConfig) else there)
        if sweep is not None:
            write_json(path / SWEEP, described(sweep))

    def save(self, training: SweepTraining) -> Path:
        """A checkpoint of all members; it is there whole or not at all."""
        with self.all_or_nothing(training.steps):
            ids = self.write_stores(stores_of(training), training.crew.members[0].layout)
            tensors: dict[str, Mapping[str, Any]] = dict(training.crew.actor_state())
            for number, member in enumerate(training.trainings):
                tensors[f"member-{number:02d}"] = flat(member_groups(member))
            snapshot = Snapshot(
                step=training.steps,
                tensors=tensors,
                state={
                    "members": [member_numbers(member) for member in training.trainings],
                    "sweep": training.state(),
                    "replays": ids,
                    SETTINGS: described(self.sweep),
                },
                segments=self.segments(),
            )
            self.log.flush()
            return checkpoint.write(self.path, snapshot, keep=self.sweep.base.run.keep_checkpoints)

    def all_or_nothing(self, step: int) -> AbstractContextManager[None]:
        """Around writing a checkpoint: `NoSpace` if the disk is full, and nothing stays of one that was not finished."""
        return all_or_nothing(self.path, step, self._segments.values)

    def restore(self, training: SweepTraining) -> bool:
        """Load the newest checkpoint that verifies, with what is left of a damaged replay; False if none was ever written."""
        loaded = checkpoint.latest(self.path, replay="salvage")
        if loaded is None:
            if self.log.path.stat().st_size:  # an earlier start left rows, but no checkpoint: they are void
                training.announce("resumed")
            return False
        with fitting(loaded.path):
            mended = self.fill(stores_of(training), training.crew.members[0].layout, loaded)
            for number, member in enumerate(training.trainings):
                load_member(member, grouped(loaded.tensors[f"member-{number:02d}"]), loaded.state["members"][number])
            warn_of_lost(training.crew.load_actors(loaded.tensors))
            training.load(loaded.state["sweep"])
        training.announce("resumed")
        if mended is not None:
            for sink in training.sinks:
                sink.write("event", training.steps, training.updates, {"event": MENDED, **mended.values})
        return True

    def write_stores(self, stores: Sequence[Replay], layout: UnrollLayout) -> list[dict[str, int]]:
        """Write what is new in each store."""
        return [self._files_of(number, layout).write(store) for number, store in enumerate(stores)]

    def segments(self) -> tuple[SegmentEntry, ...]:
        """All that a checkpoint needs of the replay on disk."""
        return tuple(entry for files in self._segments.values() for entry in files.entries)

    def fill(self, stores: list[Replay], layout: UnrollLayout, loaded: Loaded) -> Mended | None:
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
        """The files of a store that somebody else writes: they are in every checkpoint from now on, and go back with one that fails."""
        self._segments[store] = files

    def _files_of(self, store: int, layout: UnrollLayout) -> Segments:
        return self._segments.setdefault(store, Segments(self.path, layout, store))


def stores_of(training: SweepTraining) -> list[Replay]:
    """The stores of a sweep, each once, in the order of the members."""
    stores: list[Replay] = []
    for member in training.crew.members:
        own = member.store
        if own is not None and not any(own is store for store in stores):
            stores.append(own)
    return stores


def flat(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Groups as one file.

    >>> flat({"network": {"weight": 1}, "learner": {"bound": 2}})
    {'network/weight': 1, 'learner/bound': 2}
    """
    return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The inverse of `flat`."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, own = name.partition("/")
        groups.setdefault(group, {})[own] = tensor
    return groups
