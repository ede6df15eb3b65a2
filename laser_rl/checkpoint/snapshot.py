"""Checkpoints, `checkpoints/step-…/`: tensors, state, manifest. The latest is the highest step that verifies; nothing points at it.

Checkpoints and segments are removed here only. Only what has a name that we give is removed, and nothing because something else
could not be read.
"""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from laser_rl import disk
from laser_rl.checkpoint import guarded, manifest
from laser_rl.checkpoint.guarded import (
    CHECKPOINTS,
    FOLDER,
    JSON_LIMIT_BYTES,
    REPLACED,
    REPLAY,
    Damaged,
    OtherFormat,
    Unreadable,
    newest_first,
    step_of,
)
from laser_rl.checkpoint.segments import SEGMENT, SegmentEntry, verify_segment
from laser_rl.errors import DamagedRun
from laser_rl.types import Array

if TYPE_CHECKING:
    from torch import Tensor

_STATE, _TENSORS = "state.json", ".safetensors"
_ASIDE = ".set-aside"
_KEPT_ASIDE = re.compile(rf"step-\d{{12,18}}{re.escape(_ASIDE)}")
# What is asked of the segments: that every byte verifies; that damaged ones are named in `Loaded.damaged`, which is no reason to go back
# to an older checkpoint; nothing, where no replay is needed.
ReplayCheck = Literal["whole", "salvage", "unread"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """What is to be written: groups of named tensors, everything else as JSON, and the replay's segments, which are on disk already."""

    step: int
    tensors: Mapping[str, Mapping[str, "Array | Tensor"]]
    state: Mapping[str, Any]
    segments: Sequence[SegmentEntry] = ()


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that verified. Tensors are on the CPU and own their memory."""

    path: Path
    step: int
    tensors: dict[str, dict[str, "Tensor"]]
    state: dict[str, Any]
    segments: tuple[SegmentEntry, ...]
    damaged: tuple[Damaged, ...] = ()  # segments of which not every byte verifies, if that was allowed


def write(run_dir: Path, snapshot: Snapshot, keep: int = 2) -> Path:
    """Write a checkpoint, then remove all but the newest `keep` and the segments that no kept one names.

    A crash at any moment leaves the previous checkpoint or this one. Whatever has a higher step is no longer part of the run (it was
    damaged, and the run went on from an earlier one): it is set aside.
    """
    folder = run_dir / CHECKPOINTS
    disk.make_folder(folder)
    final = folder / f"step-{snapshot.step:012d}"
    temporary = disk.temporary_beside(final)
    try:
        _write_files(temporary, snapshot)
        _into_place(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _retire(folder, snapshot.step, keep)
    remove_unnamed(run_dir, before=max((entry.last_id for entry in snapshot.segments), default=-1) + 1)
    return final


def latest(run_dir: Path, *, replay: ReplayCheck = "whole") -> Loaded | None:
    """The newest checkpoint of which every byte verifies; None if none was ever written.

    Each newer one that does not is named in a warning. Raises `DamagedRun` if there are some and none verifies, and `Unreadable` if
    something cannot be read: the run would go on from before what it holds.
    """
    problems: list[Damaged] = []
    for path in newest_first(run_dir):
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


def load_snapshot(path: Path, *, replay: ReplayCheck = "whole") -> Loaded:
    """Read one checkpoint, `RUN_DIR/checkpoints/step-…`, and verify it; raises `DamagedRun`. `replay`: see `latest`."""
    if path.is_symlink():
        raise Damaged(path, "is a symbolic link, expected a folder of its own")
    contents = manifest.read(path)
    match = FOLDER.fullmatch(path.name)
    if match and int(match[1]) != contents.step:
        raise Damaged(path / manifest.NAME, f"is of step {contents.step}, expected {int(match[1])}")
    files = {name: _verified(path / name, entry) for name, entry in contents.files.items()}
    if _STATE not in files:
        raise Damaged(path / manifest.NAME, f"does not name {_STATE}")
    state = guarded.parse_json(path / _STATE, files.pop(_STATE))
    tensors = {name.removesuffix(_TENSORS): _tensors(path / name, data) for name, data in files.items()}
    damaged = () if replay == "unread" else _damaged(path.parent.parent / REPLAY, contents.segments)
    if damaged and replay == "whole":
        raise damaged[0]
    return Loaded(path, contents.step, tensors, state, contents.segments, damaged)


def newest_state(run_dir: Path) -> dict[str, Any] | None:
    """The state in the newest checkpoint of which it verifies, without its tensors; None if there is none."""
    for path in newest_first(run_dir):
        try:
            files = manifest.read(path).files
            if _STATE in files:
                return guarded.parse_json(path / _STATE, _verified(path / _STATE, files[_STATE]))
        except Damaged:  # `latest` says so
            continue
    return None


def remove_leftovers(run_dir: Path) -> list[Path]:
    """Remove what dead writers left unfinished, and segments that no checkpoint names; returns what was removed.

    Only for the holder of the run's lock, before it starts to write: a living writer's files look the same. `Unreadable` if not all
    manifests can be read, and then nothing is removed.
    """
    unnamed, removed = _unnamed(run_dir, before=None), unfinished(run_dir)
    for path in removed:
        _remove(path)
    for path in newest_first(run_dir):
        final = path.with_name(path.name.removesuffix(REPLACED))
        if final == path:
            continue
        if final.exists():
            _discard(path)
            removed.append(path)
        else:  # its replacement never came
            path.rename(final)
    for path in unnamed:
        path.unlink(missing_ok=True)
    return removed + unnamed


def remove_unnamed(run_dir: Path, before: int | None = None) -> None:
    """For the holder of the run's lock: remove segments that no checkpoint names, but those from unroll `before` on."""
    try:
        for path in _unnamed(run_dir, before):
            path.unlink(missing_ok=True)
    except Unreadable as problem:
        _log.warning("old replay segments are kept, since it is not known which ones are needed: %s", problem)


def clear(run_dir: Path) -> None:
    """Remove all checkpoints and the replay on disk, for a run that starts again (`--fresh`); only for the holder of the run's lock.

    A link to a folder on another disk stays a link; one in place of a checkpoint or a segment is removed, never what it leads to.
    """
    for path in unfinished(run_dir):
        _remove(path)
    for folder, patterns in ((run_dir / CHECKPOINTS, (FOLDER, _KEPT_ASIDE)), (run_dir / REPLAY, (SEGMENT,))):
        for name in guarded.names_in(folder):  # the newest last: it is whole until the others are gone
            if any(pattern.fullmatch(name) for pattern in patterns):
                _discard(folder / name)
        if not folder.is_symlink():
            with contextlib.suppress(OSError):  # it is not there, or holds what is not ours
                folder.rmdir()


def unfinished(run_dir: Path) -> list[Path]:
    folders = (run_dir, run_dir / CHECKPOINTS, run_dir / REPLAY)
    return [folder / name for folder in folders for name in guarded.names_in(folder) if disk.is_temporary(name)]


def member_name(number: int) -> str:
    return f"member-{number:02d}"


def flat(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Groups of tensors as one: a file has one level of names."""
    return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}


def grouped(tensors: Mapping[str, "Tensor"]) -> dict[str, dict[str, "Tensor"]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, own = name.partition("/")
        groups.setdefault(group, {})[own] = tensor
    return groups


def _verified(path: Path, entry: manifest.FileEntry) -> bytes:
    data = guarded.read_bytes(path, limit=JSON_LIMIT_BYTES if path.name == _STATE else entry.bytes)
    found = manifest.entry_of(data)
    if found != entry:
        told = f"has {found.bytes:,} bytes and SHA-256 {found.sha256}, expected {entry.bytes:,} and {entry.sha256}"
        raise Damaged(path, told)
    return data


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
        disk.write_through(folder / name, data)
        files[name] = manifest.entry_of(data)
    contents = manifest.Manifest(snapshot.step, files, tuple(snapshot.segments))
    disk.write_through(folder / manifest.NAME, manifest.encode(contents))
    disk.sync_path(folder)


def _encoded(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    import safetensors.torch  # noqa: PLC0415 - loads torch

    for group, tensors in snapshot.tensors.items():
        yield group + _TENSORS, safetensors.torch.save({name: _owned(value) for name, value in tensors.items()})
    state = json.dumps(snapshot.state, indent=1).encode()
    if len(state) > JSON_LIMIT_BYTES:  # it could not be loaded
        raise ValueError(f"the state is {len(state):,} bytes of JSON, expected at most {JSON_LIMIT_BYTES:,}")
    yield _STATE, state


def _owned(value: "Array | Tensor") -> "Tensor":
    """A dense copy on the CPU: tensors that share memory, as tied weights do, are refused by the format."""
    import torch  # noqa: PLC0415 - loads torch

    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))
    return value.detach().to("cpu", copy=True).contiguous()


def _tensors(path: Path, data: bytes) -> dict[str, "Tensor"]:
    import safetensors.torch  # noqa: PLC0415 - loads torch

    if not path.name.endswith(_TENSORS):
        raise Damaged(path, f"is neither {_STATE} nor a {_TENSORS} file")
    try:
        loaded: dict[str, Tensor] = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise Damaged(path, f"is not a safetensors file: {error}") from None
    return loaded


def _into_place(temporary: Path, final: Path) -> None:
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        # A folder cannot be renamed onto a full one. Under its other name the old one is still found by `latest`.
        _discard(replaced)
        final.rename(replaced)
    temporary.replace(final)
    disk.sync_path(final.parent)
    _discard(replaced)


def _retire(folder: Path, step: int, keep: int) -> None:
    older = []
    for path in newest_first(folder.parent):
        if step_of(path) <= step:
            older.append(path)
            continue
        aside = path.with_name(path.name.removesuffix(REPLACED) + _ASIDE)
        _discard(aside)
        path.rename(aside)
        _log.warning("checkpoint %s is newer than the run, which went on from before it; it is kept as %s", path, aside)
    for path in older[keep:]:
        _discard(path)


def _unnamed(run_dir: Path, before: int | None) -> list[Path]:
    named: set[str] = set()
    for path in newest_first(run_dir):
        try:
            named |= {entry.name for entry in manifest.read(path).segments}
        except Damaged:
            return []  # what it names cannot be known here; all stay until that checkpoint is retired
    found = []
    for name in guarded.names_in(run_dir / REPLAY):
        match = SEGMENT.fullmatch(name)
        if match and name not in named and (before is None or int(match[1]) < before):
            found.append(run_dir / REPLAY / name)
    return found


def _discard(path: Path) -> None:
    """Remove a checkpoint, if it is there: under a name that is never loaded, so that a crash half-way leaves no half checkpoint."""
    doomed = disk.temporary_beside(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(doomed)
        _remove(doomed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
