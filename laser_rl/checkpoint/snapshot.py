"""Checkpoints, `checkpoints/step-…/`: tensors, state, manifest. The latest is the highest step that verifies; nothing points at it."""

import json
import logging
import re
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
from laser_rl.checkpoint.guarded import JSON_LIMIT_BYTES, Damaged, Newer
from laser_rl.checkpoint.segments import SegmentEntry, verify_segment
from laser_rl.errors import DamagedRun
from laser_rl.types import Array

_STATE, _TENSORS = "state.json", ".safetensors"
_REPLACED, _ASIDE = ".replaced", ".set-aside"
_FOLDER = re.compile(rf"step-(\d{{12,18}})({re.escape(_REPLACED)})?")
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
    _retire(folder, snapshot.step, keep)
    _prune(Path(run_dir), before=max((entry.last_id for entry in snapshot.segments), default=-1) + 1)
    return final


def latest(run_dir: str | Path, *, replay: ReplayCheck = "whole") -> Loaded | None:
    """The newest checkpoint of which every byte verifies; None if none was ever written.

    Each newer one that does not is named in a warning. Raises `DamagedRun` if there are some and none verifies. The replay's segments
    have to be "whole", too; or damage there is no reason to go back to an older checkpoint: "salvage" names them in `Loaded.damaged`,
    "unread" does not look at them.
    """
    problems: list[Damaged] = []
    for path in _candidates(Path(run_dir) / CHECKPOINTS):
        try:
            return load_snapshot(path, replay=replay)
        except Damaged as problem:
            problems.append(problem)
            _log.warning("checkpoint %s is not used, trying the one before it: %s", path.name, problem)
    if not problems:
        return None
    for found in problems:
        if isinstance(found, Newer):  # starting afresh would be the wrong advice
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
    match = _FOLDER.fullmatch(path.name)
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


def _damaged(folder: Path, segments: Sequence[SegmentEntry]) -> tuple[Damaged, ...]:
    found = []
    for entry in segments:
        try:
            verify_segment(folder, entry)
        except Newer:  # whole, and not ours to take apart
            raise
        except Damaged as problem:
            found.append(problem)
    return tuple(found)


def remove_leftovers(run_dir: str | Path) -> list[Path]:
    """Remove what dead writers left unfinished, and segments that no checkpoint names; returns what was removed.

    Only for the holder of the run's lock, before it starts to write: a living writer's files look the same.

    >>> import tempfile
    >>> run_dir = Path(tempfile.mkdtemp())
    >>> (run_dir / ".config.json.123-00000000.tmp").touch()
    >>> [path.name for path in remove_leftovers(run_dir)]
    ['.config.json.123-00000000.tmp']
    """
    run_dir, removed = Path(run_dir), []
    for folder in (run_dir, run_dir / CHECKPOINTS, run_dir / REPLAY):
        for path in sorted(folder.glob(f".*{atomic.TEMPORARY}")):
            _remove(path)
            removed.append(path)
    for path in (run_dir / CHECKPOINTS).glob(f"step-*{_REPLACED}"):
        final = path.with_name(path.name.removesuffix(_REPLACED))
        if final.exists():
            _discard(path)
            removed.append(path)
        else:  # its replacement never came
            path.rename(final)
    return removed + _prune(run_dir, before=None)


def remove_unnamed(run_dir: str | Path) -> list[Path]:
    """Remove segments that no checkpoint names, after an attempt to write one has failed; only for the holder of the run's lock."""
    return _prune(Path(run_dir), before=None)


def newest_step(run_dir: str | Path) -> int | None:
    """The step of the newest checkpoint by its name, None if there is none; it may be damaged.

    >>> import tempfile
    >>> run_dir = tempfile.mkdtemp()
    >>> path = write(run_dir, Snapshot(640, {}, {}))
    >>> newest_step(run_dir)
    640
    """
    return max(map(_step_of, _candidates(Path(run_dir) / CHECKPOINTS)), default=None)


def clear(run_dir: str | Path) -> None:
    """Remove all checkpoints and the replay on disk, for a run that starts again (`--fresh`); only for the holder of the run's lock.

    >>> import tempfile
    >>> run_dir = tempfile.mkdtemp()
    >>> path = write(run_dir, Snapshot(1, {}, {}))
    >>> clear(run_dir)
    >>> latest(run_dir) is None
    True
    """
    for folder in (Path(run_dir) / CHECKPOINTS, Path(run_dir) / REPLAY):
        if folder.exists():
            _discard(folder)


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
    yield _STATE, state


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
    replaced = final.with_name(final.name + _REPLACED)
    if final.exists():
        # A folder cannot be renamed onto a full one. Under its other name the old one is still found by `latest`.
        if replaced.exists():
            _discard(replaced)
        final.rename(replaced)
    temporary.replace(final)
    atomic.sync_folder(final.parent)
    if replaced.exists():
        _discard(replaced)


def _retire(folder: Path, step: int, keep: int) -> None:
    older = []
    for path in _candidates(folder):
        if _step_of(path) <= step:
            older.append(path)
            continue
        aside = path.with_name(path.name.removesuffix(_REPLACED) + _ASIDE)
        if aside.exists():
            _discard(aside)
        path.rename(aside)
        _log.warning("checkpoint %s is newer than the run, which went on from before it; it is kept as %s", path, aside)
    for path in older[keep:]:
        _discard(path)


def _prune(run_dir: Path, before: int | None) -> list[Path]:
    """Remove segments that no checkpoint names; those from number `before` on may belong to the next one."""
    named: set[str] = set()
    for path in _candidates(run_dir / CHECKPOINTS):
        try:
            named |= {entry.name for entry in manifest.read(path).segments}
        except Newer:
            return []  # what it names cannot be known here
        except Damaged:
            continue  # it cannot be loaded, so it needs no segments
    removed = []
    for path in sorted((run_dir / REPLAY).glob("segment-*.zst")):
        first = path.name.split("-")[1]
        if path.name not in named and (before is None or (first.isdigit() and int(first) < before)):
            path.unlink()
            removed.append(path)
    return removed


def _candidates(folder: Path) -> list[Path]:
    """Checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if _FOLDER.fullmatch(path.name)]
    return sorted(paths, key=lambda path: (_step_of(path), not path.name.endswith(_REPLACED)), reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removesuffix(_REPLACED).removeprefix("step-"))


def _verified(path: Path, entry: manifest.FileEntry) -> bytes:
    data = guarded.read_bytes(path, limit=JSON_LIMIT_BYTES if path.name == _STATE else entry.bytes)
    if manifest.entry_of(data) != entry:
        found = manifest.entry_of(data)
        raise Damaged(
            path, f"has {found.bytes:,} bytes and SHA-256 {found.sha256}, expected {entry.bytes:,} and {entry.sha256}"
        )
    return data


def _tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    if not path.name.endswith(_TENSORS):
        raise Damaged(path, f"is neither {_STATE} nor a {_TENSORS} file")
    try:
        loaded: dict[str, Tensor] = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise Damaged(path, f"is not a safetensors file: {error}") from None
    return loaded


def _discard(path: Path) -> None:
    """Remove a checkpoint: under a name that is never loaded, so that a crash half-way leaves no half checkpoint."""
    doomed = atomic.temporary_beside(path)
    path.rename(doomed)
    _remove(doomed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
