"""Who reads checkpoints: manifest, state, tensors, replay. Where a hash would refuse everything, it is made to fit, as a forger would."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from laser_rl import checkpoint
from laser_rl.checkpoint import SegmentEntry, manifest, segments
from laser_rl.checkpoint.guarded import fitting
from laser_rl.checkpoint.snapshot import grouped, member_name
from laser_rl.replay.memory_layout import pack
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import load_trained
from laser_rl.training.files import read_sweep
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.saving import load_member
from laser_rl.training.trainer import Trainer
from laser_rl.types import Unrolls
from tests.checkpoint.inputs import write_segment
from tests.fuzz.mutate import Dice
from tests.fuzz.target import OFTEN_ENOUGH, Feed, Segment, Target, Tensors
from tests.training.small import build_member


def checkpoint_files(copied: Callable[[str, str], Path]) -> dict[str, Target]:
    """A target for each."""
    found = {}
    for name, pattern, is_json in (
        ("manifest", "manifest.json", True),
        ("state", "state.json", True),
        ("tensors", "*.safetensors", False),
    ):
        for run in ("mlp", "lstm"):
            reader = Reader(copied(f"{name} {run}", run))
            paths = sorted(reader.newest.glob(pattern))
            kind = Tensors if name == "tensors" else Target
            seeds = {path.name: path.read_bytes() for path in paths}
            found[f"{name}, {run}"] = kind(list(seeds.values()), reader.of(seeds), is_json=is_json)
    found["state, sweep"] = _of_a_sweep(copied("state sweep", "sweep"))
    run_dir = copied("segment", "mlp")
    found["replay segment"] = _of_a_segment(run_dir)
    return found


class Files:
    """A checkpoint of which one file is exchanged."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        [self.newest] = (run_dir / checkpoint.CHECKPOINTS).iterdir()
        self.manifest = manifest.read(self.newest)

    def put(self, name: str, data: bytes, *, fits: bool) -> None:
        """Write a file of the checkpoint; if it is to fit, with a manifest that says so."""
        (self.newest / name).write_bytes(signed(data) if fits and name == manifest.NAME else data)
        if fits and name != manifest.NAME:
            self.sign({**self.manifest.files, name: manifest.entry_of(data)}, self.manifest.segments)

    def sign(self, files: dict[str, manifest.FileEntry], entries: tuple[SegmentEntry, ...]) -> None:
        """Write a manifest that names these."""
        text = manifest.encode(manifest.Manifest(self.manifest.step, files, entries))
        (self.newest / manifest.NAME).write_bytes(text)


class Reader(Files):
    """Restores a training from a checkpoint of which one file is exchanged."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir)
        self.training = MemberTraining(build_member(read_sweep(run_dir).base))

    def of(self, seeds: dict[str, bytes]) -> Feed:
        """Feeds the files in turn, as `Target.input` makes them."""
        names = list(seeds)

        def feed(data: bytes, number: int) -> None:
            name = names[number % len(names)]
            self.put(name, data, fits=number // len(names) % 4 > 0)
            try:
                self.read(number)
            finally:
                self.put(name, seeds[name], fits=True)

        return feed

    def read(self, number: int) -> None:
        """As a resumed run does, and now and then all of it."""
        loaded = checkpoint.load_snapshot(self.newest)
        with fitting(self.newest):
            load_member(self.training, grouped(loaded.tensors[member_name(0)]), loaded.state["members"][0])
        if number % OFTEN_ENOUGH == 0:
            load_trained(self.run_dir)
            self.restore()

    def restore(self) -> None:
        """All of a run, replay and episodes included."""
        restore(self.run_dir)


def restore(run_dir: Path) -> None:
    """All of a run or a sweep, replay and episodes included."""
    with (
        contextlib.closing(RunDirectory(run_dir)) as directory,
        contextlib.closing(build_group(directory.settings)) as crew,
    ):
        directory.restore(Trainer(directory.settings, crew))


def _of_a_sweep(run_dir: Path) -> Target:
    files = Files(run_dir)

    def feed(data: bytes, _: int) -> None:
        files.put("state.json", data, fits=True)
        restore(run_dir)

    return Target([(files.newest / "state.json").read_bytes()], feed, is_json=True, share=0.1)


def _of_a_segment(run_dir: Path) -> Target:
    reader = Reader(run_dir)
    [entry] = reader.manifest.segments
    folder, layout = run_dir / checkpoint.REPLAY, reader.training.member.layout
    [(_, unrolls)] = checkpoint.read_segment(folder, entry, layout)

    def rewritten(dice: Dice) -> bytes:
        """Unrolls with wrong bytes, as a writer would write them."""
        arrays = [np.array(array) for array in unrolls]
        for array in dice.sample([array for array in arrays if array.size], 2):
            flat = array.reshape(-1).view(np.uint8)
            flat[dice.randrange(len(flat))] = dice.choice([0, 1, 127, 128, 255])
        made = write_segment(run_dir / "rewritten", layout, entry.first_id, Unrolls(*arrays))
        return (run_dir / "rewritten" / made.name).read_bytes()

    def feed(data: bytes, number: int) -> None:
        (folder / entry.name).write_bytes(data)
        exact = manifest.entry_of(data)
        claimed = SegmentEntry(entry.name, entry.first_id, entry.count, exact.bytes, exact.sha256)
        if number % 10 == 0:  # the long way, half of the time as damage that the manifest does not know of
            reader.sign(reader.manifest.files, (entry if number % 20 else claimed,))
            reader.restore()
        segments.verify_segment(folder, claimed)
        with fitting(folder / entry.name):
            for _, block in checkpoint.read_segment(folder, claimed, layout):
                pack(layout, block)

    return Segment([(folder / entry.name).read_bytes()], feed, rewritten=rewritten)


def signed(data: bytes) -> bytes:
    """A manifest with the SHA-256 that it should have, if it is one."""
    with contextlib.suppress(ValueError, RecursionError):
        fields = json.loads(data)
        if isinstance(fields, dict):
            blank = json.dumps(fields | {"sha256": "0" * 64}).encode(errors="replace")
            return blank.replace(b"0" * 64, manifest.entry_of(blank).sha256.encode())
    return data
