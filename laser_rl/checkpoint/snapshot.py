"""Checkpoints, `checkpoints/step-…/`: tensors, state, manifest. The latest is the highest step that verifies; nothing points at it."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from laser_rl.checkpoint import CHECKPOINTS, REPLAY, atomic, guarded, manifest
from laser_rl.checkpoint.folders import (
    FOLDER,
    REPLACED,
    STATE,
    candidates,
    discard,
    prune,
    retire,
    verified,
)
from laser_rl.checkpoint.guarded import JSON_LIMIT_BYTES, Damaged, OtherFormat
from laser_rl.checkpoint.segments import SegmentEntry, verify_segment
from laser_rl.errors import DamagedRun
from laser_rl.types import Array

_TENSORS = ".safetensors"
# What is asked of the segments: that every byte verifies; only to be named if one does not; nothing, where no replay is needed.
ReplayCheck = Literal["whole", "salvage", "unread"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """What is to be written: groups of named tensors, everything else as JSON, and the replay's segments, which are on disk already."""

    step: int
    tensors: Mapping[str, Mapping[str, Array | Tensor]]
    state: Mapping[str, Any]
    segments: Sequence[SegmentEntry] = ()


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that verified. Tensors are on the CPU and own their memory."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    segments: tuple[SegmentEntry, ...]
    damaged: tuple[Damaged, ...] = ()  # segments of which not every byte verifies, if that was allowed


def write(run_dir: str | Path, snapshot: Snapshot, keep: int = 2) -> Path:
    """Write a checkpoint, then remove all but the newest `keep` and the segments that no kept one names.

    A crash at any moment leaves the previous checkpoint or this one. Whatever has a higher step is no longer part of the run (it was
    damaged, and the run went on from an earlier one): it is set aside.

    >>> import tempfile
    >>> run_dir = tempfile.mkdtemp()
    >>> write(run_dir, Snapshot(640, {"learner": {"weight": torch.ones(2)}}, {"update": 4})).name
    'step-000000000640'
    >>> loaded = latest(run_dir)
    >>> loaded.step, loaded.state, loaded.tensors["learner"]["weight"]
    (640, {'update': 4}, tensor([1., 1.]))
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}, expected at least 1: the newest checkpoint is never removed")
    folder = Path(run_dir) / CHECKPOINTS
    atomic.make_folder(folder)
    final = folder / f"step-{snapshot.step:012d}"
    temporary = atomic.temporary_beside(final)
    try:
        with atomic.needing(_bytes_of(snapshot)):
            _write_files(temporary, snapshot)
        _into_place(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    retire(folder, snapshot.step, keep)
    prune(Path(run_dir), before=max((entry.last_id for entry in snapshot.segments), default=-1) + 1)
    return final


def latest(run_dir: str | Path, *, replay: ReplayCheck = "whole") -> Loaded | None:
    """The newest checkpoint of which every byte verifies; None if none was ever written.

    Each newer one that does not is named in a warning. Raises `DamagedRun` if there are some and none verifies, and `Unreadable` if
    something cannot be read: the run would go on from before what it holds. The replay's segments have to be "whole", too; or damage
    there is no reason to go back to an older checkpoint: "salvage" names them in `Loaded.damaged`, "unread" does not look at them.
    """
    problems: list[Damaged] = []
    for path in candidates(Path(run_dir) / CHECKPOINTS):
        try:
            return load_snapshot(path, replay=replay)
        except Damaged as problem:
            problems.append(problem)
            _log.warning("checkpoint %s is not used, trying the one before it: %s", path.name, problem)
    if not problems:
        return None
    for found in problems:
        if isinstance(found, OtherFormat):  # starting afresh would be the wrong advice
            raise found
    listed = "\n".join(f"  {found}" for found in problems)
    raise DamagedRun(
        f"{run_dir}: expected a checkpoint that verifies, got {len(problems)} damaged:\n{listed}\n"
        "restore them from a copy, or use --fresh to start again"
    )


def load_snapshot(path: str | Path, *, replay: ReplayCheck = "whole") -> Loaded:
    """Read one checkpoint, `RUN_DIR/checkpoints/step-…`, and verify it; raises `DamagedRun` with the file and the reason.

    `replay`: see `latest`.
    """
    path = Path(path)
    if path.is_symlink():
        raise Damaged(path, "is a symbolic link, expected a folder of its own")
    contents = manifest.read(path)
    match = FOLDER.fullmatch(path.name)
    if match and int(match[1]) != contents.step:
        raise Damaged(path / manifest.NAME, f"is of step {contents.step}, expected {int(match[1])}")
    files = {name: verified(path / name, entry) for name, entry in contents.files.items()}
    if STATE not in files:
        raise Damaged(path / manifest.NAME, f"does not name {STATE}")
    state = guarded.parse_json(path / STATE, files.pop(STATE))
    tensors = {name.removesuffix(_TENSORS): _tensors(path / name, data) for name, data in files.items()}
    damaged = () if replay == "unread" else _damaged(path.parent.parent / REPLAY, contents.segments)
    if damaged and replay == "whole":
        raise damaged[0]
    return Loaded(path, contents.step, tensors, state, contents.segments, damaged)


def _damaged(folder: Path, segments: Sequence[SegmentEntry]) -> tuple[Damaged, ...]:
    found = []
    for entry in segments:
        try:
            verify_segment(folder, entry)
        except OtherFormat:  # whole, and not ours to take apart
            raise
        except Damaged as problem:
            found.append(problem)
    return tuple(found)


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    folder.mkdir()
    files = {}
    for name, data in _encoded(snapshot):
        atomic.write_through(folder / name, data)
        files[name] = manifest.entry_of(data)
    contents = manifest.Manifest(snapshot.step, files, tuple(snapshot.segments))
    atomic.write_through(folder / manifest.NAME, manifest.encode(contents))
    atomic.sync_folder(folder)


def _bytes_of(snapshot: Snapshot) -> int:
    """About; the state is small."""
    return sum(value.nbytes for tensors in snapshot.tensors.values() for value in tensors.values())


def _encoded(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    for group, tensors in snapshot.tensors.items():
        if not guarded.plain_name(group):
            raise ValueError(f"{group!r} cannot be the name of a file; use letters, digits, '.', '_' and '-'")
        yield group + _TENSORS, safetensors.torch.save({name: _owned(value) for name, value in tensors.items()})
    _check_keys(snapshot.state)
    state = json.dumps(snapshot.state, indent=1).encode()
    if len(state) > JSON_LIMIT_BYTES:
        raise ValueError(
            f"the state is {len(state):,} bytes of JSON, expected at most {JSON_LIMIT_BYTES:,}; use tensors"
        )
    yield STATE, state


def _owned(value: Array | Tensor) -> Tensor:
    """A dense copy on the CPU: tensors that share memory, as tied weights do, are refused by the format."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))
    return value.detach().to("cpu", copy=True).contiguous()


def _check_keys(value: object) -> None:
    """JSON would turn the key 0 into "0" without a word, and a resumed run would not find it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the state has the key {key!r}, expected strings only")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def _into_place(temporary: Path, final: Path) -> None:
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        # A folder cannot be renamed onto a full one. Under its other name the old one is still found by `latest`.
        if replaced.exists():
            discard(replaced)
        final.rename(replaced)
    temporary.replace(final)
    atomic.sync_folder(final.parent)
    if replaced.exists():
        discard(replaced)


def _tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    if not path.name.endswith(_TENSORS):
        raise Damaged(path, f"is neither {STATE} nor a {_TENSORS} file")
    try:
        loaded: dict[str, Tensor] = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise Damaged(path, f"is not a safetensors file: {error}") from None
    return loaded


def member_name(number: int) -> str:
    """The file of one member in a checkpoint.

    >>> member_name(1)
    'member-01'
    """
    return f"member-{number:02d}"


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
