"""What of a member, and of a replay, goes into a checkpoint, and how it comes back."""

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, Mended, Salvage, SegmentEntry, Streams, read_segment, write_segment
from laser_rl.envs.worker import write_spec
from laser_rl.errors import ConfigError
from laser_rl.replay.episodes import ATTEMPTS, outrun
from laser_rl.replay.store import Evicted, Replay
from laser_rl.training.build import keep_in_step
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.warm_start import STORE_IDS
from laser_rl.types import Array, UnrollLayout, Unrolls

log = logging.getLogger("laser_rl.training")
SEGMENT_UNROLLS = 4096
MENDED = "replay_mended"  # the event that says what is lost of a damaged replay
Groups = dict[str, Mapping[str, Array | Tensor]]


def member_groups(training: MemberTraining) -> Groups:
    """Tensors of the learner and of the mixer; the actor is saved by whoever knows with whom it is shared."""
    member = training.member
    arrays = {name: value for name, value in member.mixer.state_dict().items() if isinstance(value, np.ndarray)}
    return {**member.learner.state_dict().tensors, "mixer": arrays}


def member_numbers(training: MemberTraining) -> dict[str, Any]:
    """Everything else of a member, as JSON."""
    member = training.member
    mixer = {name: value for name, value in member.mixer.state_dict().items() if not isinstance(value, np.ndarray)}
    spec = write_spec(member.spec).decode()  # a text: its bounds may be infinite, which JSON does not know
    return {
        "learner": member.learner.state_dict().numbers,
        "training": training.state_dict(),
        "mixer": mixer,
        "spec": spec,
    }


def load_member(
    training: MemberTraining, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]
) -> None:
    """Learner, mixer and counters go on exactly there."""
    member = training.member
    member.learner.load_state_dict(tensors, numbers["learner"])
    arrays = {name: tensor.numpy() for name, tensor in tensors.get("mixer", {}).items()}
    member.mixer.load_state_dict({**arrays, **numbers["mixer"]})
    keep_in_step(member)
    training.load_state_dict(numbers["training"])


def load_learner(
    training: MemberTraining, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]
) -> None:
    """Learner and counters go on there; the mixer keeps its own random numbers and unrolls."""
    training.member.learner.load_state_dict(tensors, numbers["learner"])
    training.load_state_dict(numbers["training"])


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
        self._streams = Streams()
        self._before = (self.entries, self._streams)

    def write(self, replay: Replay) -> dict[str, int]:
        """Write what is new; returns what `fill` needs to know."""
        self._before = (list(self.entries), self._streams.copy())
        last = (
            replay.next_id
        )  # before the first: other processes may insert in between, and both have to fit into the store together
        first = min(last, replay.first_id)
        self.entries = [entry for entry in self.entries if entry.last_id - self._base >= first]
        start = max(first, self.entries[-1].last_id + 1 - self._base if self.entries else 0)
        while start < last:
            begin, unrolls = _exported(replay, start, min(start + SEGMENT_UNROLLS, last))
            if begin > start:  # writers in other processes have replaced what is missing, and all before it
                first, self.entries = begin, []
            start = begin + len(unrolls.member)
            number = self._base + begin
            previous = self._streams.follow(number, unrolls, oldest=self._base + first)
            if len(unrolls.member):
                self.entries.append(write_segment(self._folder, self._layout, number, unrolls, previous))
        return {"first_id": first, "next_id": last}

    def revert(self) -> None:
        """The checkpoint was not written, and what `write` has added is removed; without a file of before, all is written anew."""
        self.entries, self._streams = self._before
        if not all((self._folder / entry.name).exists() for entry in self.entries):
            self.entries, self._streams = [], Streams()

    def fill(
        self,
        replay: Replay,
        entries: tuple[SegmentEntry, ...],
        ids: Mapping[str, int],
        damaged: Collection[str] = (),
    ) -> Mended | None:
        """Load an empty store from disk; the ids of its unrolls stay what they were.

        Where some of the own segments are `damaged`, what can be read of them is loaded, under new ids: the samplers' states mean none
        of these, so lanes draw anew and priorities begin anew. The next checkpoint writes all of it anew.
        """
        own = range(self._base, self._base + STORE_IDS)
        self.entries = [entry for entry in entries if entry.first_id in own]
        broken = {entry.name for entry in self.entries} & set(damaged)
        if broken:
            return self._fill_with_the_rest(replay, ids, broken)
        replay.begin_at(ids["first_id"])
        for number, block in self._unrolls(ids["first_id"]):
            replay.insert(block)
            self._streams.follow(number, block)
        self._require_all(replay, ids["first_id"], ids["next_id"])
        return None

    def _fill_with_the_rest(self, replay: Replay, ids: Mapping[str, int], broken: set[str]) -> Mended:
        first, end = ids["first_id"], ids["next_id"]
        salvage = Salvage(
            self._folder, self.entries, broken, self._layout, first_id=self._base + first, next_id=self._base + end
        )
        # New numbers, after all that were ever given: files of older checkpoints keep theirs.
        self.entries = []
        replay.begin_at(end)
        for block in salvage.unrolls():
            replay.insert(block)
        self._require_all(replay, end, end + salvage.mended.kept)
        return salvage.mended

    def _require_all(self, replay: Replay, first_id: int, next_id: int) -> None:
        if (replay.first_id, replay.next_id) != (first_id, next_id):
            raise ConfigError(
                f"the replay on disk holds unrolls {first_id} to {next_id - 1}, but only "
                f"{replay.first_id} to {replay.next_id - 1} fit; resume with the capacity the run was started with"
            )

    def _unrolls(self, first_id: int) -> Iterator[tuple[int, Unrolls]]:
        for entry in self.entries:
            yield from read_segment(self._folder, entry, self._layout, first_id=self._base + first_id)


def _exported(replay: Replay, begin: int, end: int) -> tuple[int, Unrolls]:
    """Unrolls up to `end` - 1, from `begin` on or from the first that is still held when they are copied, and its id."""
    for _ in range(ATTEMPTS):
        begin = min(end, max(begin, replay.first_id))
        with contextlib.suppress(Evicted):  # by another process, since we looked
            return begin, replay.export(np.arange(begin, end))
    raise outrun(replay)


def fill_stores(loaded: Loaded, stores: Sequence[tuple[Segments, Replay, Mapping[str, int]]]) -> Mended | None:
    """Load the replays of a checkpoint. Of damaged ones what can be read; then it is said what is lost."""
    names = {problem.path.name for problem in loaded.damaged}
    found = [files.fill(replay, loaded.segments, ids, names) for files, replay, ids in stores]
    mended = [one for one in found if one is not None]
    if not mended:
        return None
    whole = Mended(*(sum(counts) for counts in zip(*mended, strict=True)))
    log.warning(
        "%d replay segments are damaged (%s): %d unrolls are lost, of %d episodes at least; the other %d are kept. "
        "The run goes on, but not bit for bit: lanes and priorities begin anew",
        len(names), "; ".join(map(str, loaded.damaged[:3])), whole.lost, whole.episodes, whole.kept,
    )  # fmt: skip
    return whole
