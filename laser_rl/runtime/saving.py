"""What of a member, and of a replay, goes into a checkpoint, and how it comes back."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from laser_rl import checkpoint
from laser_rl.checkpoint import SegmentEntry, read_segment, write_segment
from laser_rl.errors import ConfigError
from laser_rl.replay.store import Replay
from laser_rl.runtime.build import keep_in_step
from laser_rl.runtime.training import Training
from laser_rl.runtime.warm_start import STORE_IDS
from laser_rl.types import Array, UnrollLayout, Unrolls

log = logging.getLogger("laser_rl.runtime")
SEGMENT_UNROLLS = 4096
Groups = dict[str, Mapping[str, Array | Tensor]]


def member_groups(training: Training) -> Groups:
    """Tensors of the learner and of the mixer; the actor is saved by whoever knows with whom it is shared."""
    member = training.member
    arrays = {name: value for name, value in member.mixer.state_dict().items() if isinstance(value, np.ndarray)}
    return {**member.learner.state().tensors, "mixer": arrays}


def member_numbers(training: Training) -> dict[str, Any]:
    """Everything else of a member, as JSON."""
    member = training.member
    mixer = {name: value for name, value in member.mixer.state_dict().items() if not isinstance(value, np.ndarray)}
    return {"learner": member.learner.state().numbers, "training": training.state(), "mixer": mixer}


def load_member(training: Training, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]) -> None:
    """Learner, mixer and counters go on exactly there."""
    member = training.member
    member.learner.load(tensors, numbers["learner"])
    arrays = {name: tensor.numpy() for name, tensor in tensors.get("mixer", {}).items()}
    member.mixer.load_state_dict({**arrays, **numbers["mixer"]})
    keep_in_step(member)
    training.load(numbers["training"])


def load_learner(training: Training, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]) -> None:
    """Learner and counters go on there; the mixer keeps its own random numbers and unrolls."""
    training.member.learner.load(tensors, numbers["learner"])
    training.load(numbers["training"])


def warn_of_lost(episodes: int) -> None:
    """An environment could not go on where it was."""
    if episodes:
        log.warning(
            "%d open episodes could not be rebuilt and start anew; the run goes on, but not bit for bit", episodes
        )


class Segments:
    """The files of one replay store.

    Args:
        run_dir: of the run.
        layout: of the unrolls.
        store: which one, where a run has several; each has numbers of its own.
    """

    def __init__(self, run_dir: Path, layout: UnrollLayout, store: int = 0) -> None:
        self._folder, self._layout, self._base = run_dir / checkpoint.REPLAY, layout, store * STORE_IDS
        self.entries: list[SegmentEntry] = []

    def write(self, replay: Replay) -> dict[str, int]:
        """Write what is new; returns what `fill` needs to know."""
        first, last = replay.first_id, replay.next_id
        self.entries = [entry for entry in self.entries if entry.last_id - self._base >= first]
        start = max(first, self.entries[-1].last_id + 1 - self._base if self.entries else 0)
        for begin in range(start, last, SEGMENT_UNROLLS):
            ids = np.arange(begin, min(begin + SEGMENT_UNROLLS, last))
            self.entries.append(write_segment(self._folder, self._layout, self._base + begin, replay.export(ids)))
        return {"first_id": first, "next_id": last}

    def fill(self, replay: Replay, entries: tuple[SegmentEntry, ...], ids: Mapping[str, int]) -> None:
        """Load an empty store from disk; the ids of its unrolls stay what they were."""
        own = range(self._base, self._base + STORE_IDS)
        self.entries = [entry for entry in entries if entry.first_id in own]
        replay.load(ids["first_id"])
        for block in self._unrolls(ids["first_id"]):
            replay.insert(block)
        if (replay.first_id, replay.next_id) != (ids["first_id"], ids["next_id"]):
            raise ConfigError(
                f"the replay on disk holds unrolls {ids['first_id']} to {ids['next_id'] - 1}, but only "
                f"{replay.first_id} to {replay.next_id - 1} fit; resume with the capacity the run was started with"
            )

    def _unrolls(self, first_id: int) -> Iterator[Unrolls]:
        for entry in self.entries:
            for _, block in read_segment(self._folder, entry, self._layout, first_id=self._base + first_id):
                yield block
