"""What of a member, and of a replay, goes into a checkpoint, and how it comes back; also into the replay of another run (warm start)."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, Mended, SegmentEntry, Streams, read_segment, write_segment
from laser_rl.checkpoint.guarded import fitting
from laser_rl.checkpoint.salvage import salvage
from laser_rl.checkpoint.segments import follow
from laser_rl.checkpoint.snapshot import flat, grouped
from laser_rl.config import Config
from laser_rl.envs.records import write_spec
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError, UserError
from laser_rl.replay.store import ATTEMPTS, Evicted, Replay, outrun
from laser_rl.training.build import keep_in_step
from laser_rl.training.files import command_for, read_sweep
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.stall import StallWarning, join
from laser_rl.types import UnrollLayout, Unrolls

log = logging.getLogger("laser_rl.training")
SEGMENT_UNROLLS = 1024  # held uncompressed while it is written; copied under the replay's lock, for which a learner waits milliseconds
KEEP_S = 0.001
STORE_IDS = 1 << 40  # numbers of unrolls on disk that each of several stores has to itself
MENDED = "replay_mended"  # the event that says what is lost of a damaged replay
Arrays = Mapping[str, Mapping[str, Any]]
Tensors = Mapping[str, Mapping[str, Tensor]]


class MemberState(NamedTuple):
    """A member: learner, mixer and counters. The actor is saved by its group, which knows with whom it is shared."""

    tensors: dict[str, dict[str, Any]]  # by group; tensors, or arrays of the mixer
    numbers: dict[str, Any]  # everything else, as JSON


def member_state(training: MemberTraining) -> MemberState:
    member, mixer = training.member, training.member.mixer.state_dict()
    tensors, learner = member.learner.state_dict()
    # Here and not in the thread that writes: a copy from a GPU while the learner captures a graph would spoil that.
    tensors = {group: {name: one.cpu() for name, one in own.items()} for group, own in tensors.items()}
    arrays = {name: value for name, value in mixer.items() if isinstance(value, np.ndarray)}
    numbers = {
        "learner": learner,
        "training": training.state_dict(),
        "mixer": {name: value for name, value in mixer.items() if name not in arrays},
        "spec": write_spec(member.spec).decode(),  # a text: its bounds may be infinite, which JSON does not know
    }
    return MemberState({**tensors, "mixer": arrays}, numbers)


def load_member(training: MemberTraining, tensors: Tensors, numbers: Mapping[str, Any]) -> None:
    load_learner(training, tensors, numbers)
    arrays = {name: tensor.numpy() for name, tensor in tensors.get("mixer", {}).items()}
    training.member.mixer.load_state_dict({**arrays, **numbers["mixer"]})
    keep_in_step(training.member)


def load_learner(training: MemberTraining, tensors: Tensors, numbers: Mapping[str, Any]) -> None:
    """Learner and counters go on there; the mixer keeps its own random numbers and unrolls."""
    training.member.learner.load_state_dict(tensors, numbers["learner"])
    training.load_state_dict(numbers["training"])


def published(training: MemberTraining) -> bytes:
    return packed(member_state(training))


def load_published(training: MemberTraining, data: bytes, made: int) -> None:
    """Go on from a published state. Steps that were `made` since are made, whatever of their learning was lost."""
    load_learner(training, *parsed(data))
    training.steps = max(training.steps, made)
    if training.steps or training.update:
        training.announce("resumed")


def packed(state: MemberState) -> bytes:
    """A member's state for other processes: all but its actor and the unrolls that wait for an update."""
    tensors = {**state.tensors, "mixer": {name: array[:0] for name, array in state.tensors["mixer"].items()}}
    dense = {name: torch.as_tensor(value).detach().cpu().contiguous() for name, value in flat(tensors).items()}
    return safetensors.torch.save(dense, metadata={"numbers": json.dumps(state.numbers)})


def parsed(data: bytes) -> MemberState:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return MemberState(grouped(safetensors.torch.load(data)), json.loads(header["__metadata__"]["numbers"]))


class Segments:
    """The files of one replay store in a run directory: of number `store`, where a run has several; each has numbers of its own."""

    def __init__(self, run_dir: Path, layout: UnrollLayout, store: int = 0) -> None:
        self._folder, self._layout, self._base = run_dir / checkpoint.REPLAY, layout, store * STORE_IDS
        self.entries: list[SegmentEntry] = []
        self._streams = Streams()
        self._first = self._next = 0  # numbers on disk of a store in shards, without those of other stores
        self._until: dict[int, int] = {}  # by shard: before which id its unrolls have been written
        self._before = self._written()
        # What a checkpoint holds, and before which id of that the store may let go; nothing more is to be written.
        self._held, self.copied, self.closed = (0, 0), 0, False

    def _written(self) -> tuple[Any, ...]:
        return list(self.entries), self._streams.copy(), self._first, self._next, dict(self._until)

    def begin(self, replay: Replay) -> int:
        """The next `write` is of what the store holds now; returns how many unrolls of that are not on disk."""
        # `next_id` is read before `first_id`: other processes may insert in between, and both have to fit into the store together.
        last = replay.next_id
        first = min(last, replay.first_id)
        self._held, self.copied, self._before = (first, last), first, self._written()
        if self.entries:
            self.copied = max(first, self.entries[-1].last_id + 1 - self._base)
        return last - self.copied

    def write(self, replay: Replay) -> dict[str, int]:
        """Write what is new; returns what `fill` needs to know."""
        first, last = self._held
        self.entries = [entry for entry in self.entries if entry.last_id - self._base >= first]
        while self.copied < last:
            begin, unrolls = _exported(replay, self.copied, min(self.copied + SEGMENT_UNROLLS, last))
            if begin > self.copied:  # writers in other processes have replaced what is missing, and all before it
                first, self.entries = begin, []
            self.copied = begin + len(unrolls.member)
            self._append(begin, unrolls, oldest=first)
        return {"first_id": first, "next_id": last}

    def _append(self, number: int, unrolls: Unrolls, oldest: int) -> None:
        if self.closed:
            raise RuntimeError("the run directory was closed while a checkpoint was being written")
        previous = follow(self._streams, self._base + number, unrolls, oldest=self._base + oldest)
        if len(unrolls.member):
            self.entries.append(write_segment(self._folder, self._layout, self._base + number, unrolls, previous))

    def keep(self, first: Callable[[], int]) -> None:
        """Before the replay lets go of all before `first`: wait until the checkpoint's writer has copied what it needs of them."""
        waiting = StallWarning("the learner", "the checkpoint's writer to copy the oldest unrolls of the replay")
        while self.copied < self._held[1] and self.copied < first():
            waiting.again()
            time.sleep(KEEP_S)
        waiting.over()

    def revert(self) -> None:
        """The checkpoint was not written, and what `write` has added is removed; all is written anew if a file of before is gone."""
        self.copied = self._held[1]
        if all((self._folder / entry.name).exists() for entry in self._before[0]):
            self.entries, self._streams, self._first, self._next, self._until = self._before
        else:  # of shards under numbers that were never given
            self.entries, self._streams, self._first, self._until = [], Streams(), self._next, {}

    def fill(
        self, replay: Replay, entries: tuple[SegmentEntry, ...], ids: Mapping[str, int], damaged: Collection[str] = ()
    ) -> Mended | None:
        """Load an empty store from disk under the same ids.

        What can be read of `damaged` segments gets new ids: the samplers' states mean none of these, so lanes and priorities begin anew.
        """
        own, (first, end) = range(self._base, self._base + STORE_IDS), (ids["first_id"], ids["next_id"])
        self.entries = [entry for entry in entries if entry.first_id in own]
        broken, mended = {entry.name for entry in self.entries} & set(damaged), None
        if broken:
            bounds = {"first_id": self._base + first, "next_id": self._base + end}
            mended, left = salvage(self._folder, self.entries, broken, self._layout, **bounds)
            # New numbers, after all that were ever given: files of older checkpoints keep theirs.
            self.entries = []
            replay.begin_at(end)
            for block in left:
                replay.insert(block)
            first, end = end, end + mended.kept
        else:
            replay.begin_at(first)
            for entry in self.entries:
                for number, block in read_segment(self._folder, entry, self._layout, first_id=self._base + first):
                    replay.insert(block)
                    follow(self._streams, number, block)
        if (replay.first_id, replay.next_id) != (first, end):
            raise ConfigError(
                f"the replay on disk holds unrolls {first} to {end - 1}, but only "
                f"{replay.first_id} to {replay.next_id - 1} fit; resume with the capacity the run was started with"
            )
        return mended


def _exported(replay: Replay, begin: int, end: int) -> tuple[int, Unrolls]:
    """Unrolls up to `end` - 1, from `begin` on or from the first that is still held when they are copied, and its id."""
    for _ in range(ATTEMPTS):
        begin = min(end, max(begin, replay.first_id))
        with contextlib.suppress(Evicted):  # by another process, since we looked
            return begin, replay.export(np.arange(begin, end))
    raise outrun(replay)


def earlier_members(config: Config) -> int:
    """How many members elsewhere have written into the replay that this one begins with."""
    if config.replay.start_from is None:
        return 0
    sweep = read_sweep(Path(config.replay.start_from), used=False)
    return len(sweep.settings) + earlier_members(sweep.base)


def warm_start(replay: Replay, config: Config, members: int) -> None:
    """Fill an empty store with the newest unrolls of the run that the configuration names, if it names one.

    The trust region decides what of them is worth learning from. The members there get the numbers after the `members` that are here.
    Versions are moved to be at most 0: everything is older than the first parameters here.
    """
    if config.replay.start_from is None:
        return
    run_dir = Path(config.replay.start_from)
    loaded = checkpoint.latest(run_dir)
    if loaded is None or not loaded.segments:
        raise ConfigError(f"{run_dir} has no replay to start from: no checkpoint is there, or nothing was replayed")
    there = read_sweep(run_dir, used=False).base
    # Unrolls say by number which task they are of: the numbers must mean the same there.
    before, now = (list(tasks_of(one.environment.id)) for one in (there, config))
    if before != now and max(len(before), len(now)) > 1:
        raise ConfigError(
            f"the replay of {run_dir} is of the tasks {', '.join(before)}, this agent learns {', '.join(now)}; "
            "use the same tasks in the same order"
        )
    with fitting(loaded.path):
        _fill(replay, run_dir, loaded, members)
    log.info("the replay begins with %s unrolls of %s; trust bound %g", f"{len(replay):,}", run_dir, config.loss.bound)


def _fill(replay: Replay, run_dir: Path, loaded: Loaded, members: int) -> None:
    newest = max(int(member["learner"]["version"]) for member in loaded.state["members"])  # no unroll is newer
    for entry in loaded.segments:
        store = entry.first_id // STORE_IDS
        first = store * STORE_IDS + int(loaded.state["replays"][store]["first_id"])  # those before it had left already
        try:
            for _, block in read_segment(run_dir / checkpoint.REPLAY, entry, replay.layout, first_id=first):
                numbers = (block.member.astype(np.int64) + members).astype(np.int32)
                replay.insert(block._replace(version=np.asarray(block.version) - newest, member=numbers))
        except ConfigError as error:
            raise ConfigError(
                f"the replay of {run_dir} does not fit this agent: its unrolls have another shape. Use the same environment, frame_stack "
                f"and unroll_steps as there ({error})"
            ) from None


class Writer(threading.Thread):
    """Writes one checkpoint: `start` it, and learning goes on meanwhile, or `run` it here; `result` is its path, or raises."""

    def __init__(self, write: Callable[[], Path], progress: Callable[[], object]) -> None:
        super().__init__(name="checkpoint", daemon=True)  # a second Ctrl-C does not wait for it
        self._write, self._progress, self._written = write, progress, Path()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._written = self._write()
        except BaseException as error:
            self._error = error
        del self._write  # it holds a copy of all parameters

    def result(self) -> Path:
        """Wait for it, as long as it gets on."""
        join(self, "the learner", "the checkpoint's writer", self._progress)
        if self._error is not None:
            raise self._error
        return self._written


class NoSpace(UserError):
    """A checkpoint could not be written for lack of space; `said` is the message without what to do."""

    exit_status = 5

    def __init__(self, run_dir: Path, step: int, error: OSError) -> None:
        disk, newest = os.statvfs(run_dir), checkpoint.newest_step(run_dir)
        free = disk.f_bavail * disk.f_frsize
        before = "there is none before it" if newest is None else f"that of step {newest:,} is whole"
        what = f"no space for the checkpoint of step {step:,} in {run_dir}"
        self.said = f"{what}: {error.strerror}, {free / 1e6:,.1f} MB free; {before}"
        again = "start again" if newest is None else f"go on from there with: {command_for('resume', run_dir)}"
        super().__init__(f"{self.said}. Free some space, then {again}")
