"""What lies in a run directory by its name: checkpoints, segments, what was not finished. All that removes something of it is here.

Only what has a name that we give is removed, and nothing because something else could not be read.
"""

import contextlib
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from laser_rl.checkpoint import CHECKPOINTS, REPLAY, atomic, guarded, manifest
from laser_rl.checkpoint.guarded import JSON_LIMIT_BYTES, Damaged, Unreadable
from laser_rl.checkpoint.segments import SEGMENT

STATE = "state.json"
REPLACED, _ASIDE = ".replaced", ".set-aside"
FOLDER = re.compile(rf"step-(\d{{12,18}})({re.escape(REPLACED)})?")
_KEPT_ASIDE = re.compile(rf"step-\d{{12,18}}{re.escape(_ASIDE)}")
_log = logging.getLogger(__name__)


def newest_step(run_dir: str | Path) -> int | None:
    """The step of the newest checkpoint by its name, None if there is none; it may be damaged.

    >>> import tempfile
    >>> from laser_rl.checkpoint import snapshot
    >>> run_dir = tempfile.mkdtemp()
    >>> path = snapshot.write(run_dir, snapshot.Snapshot(640, {}, {}))
    >>> newest_step(run_dir)
    640
    """
    return max(map(_step_of, candidates(Path(run_dir) / CHECKPOINTS)), default=None)


def newest_state(run_dir: str | Path) -> dict[str, Any] | None:
    """The state in the newest checkpoint of which it verifies, without its tensors; None if there is none.

    >>> import tempfile
    >>> from laser_rl.checkpoint import snapshot
    >>> run_dir = tempfile.mkdtemp()
    >>> path = snapshot.write(run_dir, snapshot.Snapshot(1, {}, {"update": 4}))
    >>> newest_state(run_dir)
    {'update': 4}
    """
    for path in candidates(Path(run_dir) / CHECKPOINTS):
        try:
            files = manifest.read(path).files
            if STATE in files:
                return guarded.parse_json(path / STATE, verified(path / STATE, files[STATE]))
        except Damaged:  # `latest` says so
            continue
    return None


def remove_leftovers(run_dir: str | Path) -> list[Path]:
    """Remove what dead writers left unfinished, and segments that no checkpoint names; returns what was removed.

    Only for the holder of the run's lock, before it starts to write: a living writer's files look the same. `Unreadable` if not all
    manifests can be read, and then nothing is removed.

    >>> import tempfile
    >>> run_dir = Path(tempfile.mkdtemp())
    >>> (run_dir / ".config.json.123-00000000.tmp").touch()
    >>> [path.name for path in remove_leftovers(run_dir)]
    ['.config.json.123-00000000.tmp']
    """
    run_dir = Path(run_dir)
    unnamed, removed = _unnamed(run_dir, before=None), unfinished(run_dir)
    for path in removed:
        _remove(path)
    for path in candidates(run_dir / CHECKPOINTS):
        final = path.with_name(path.name.removesuffix(REPLACED))
        if final == path:
            continue
        if final.exists():
            discard(path)
            removed.append(path)
        else:  # its replacement never came
            path.rename(final)
    return removed + _unlink(unnamed)


def unfinished(run_dir: Path) -> list[Path]:
    """What writers of ours have begun and not finished, by its name."""
    folders = (run_dir, run_dir / CHECKPOINTS, run_dir / REPLAY)
    return [folder / name for folder in folders for name in guarded.names_in(folder) if atomic.is_temporary(name)]


def remove_unnamed(run_dir: str | Path) -> list[Path]:
    """Remove segments that no checkpoint names, after an attempt to write one has failed; only for the holder of the run's lock."""
    return prune(Path(run_dir), before=None)


def clear(run_dir: str | Path) -> None:
    """Remove all checkpoints and the replay on disk, for a run that starts again (`--fresh`); only for the holder of the run's lock.

    Only what has a name that we give: the folder may be a stranger's. A link to a folder on another disk stays a link; one in place of a
    checkpoint or a segment is removed, never what it leads to.

    >>> import tempfile
    >>> from laser_rl.checkpoint import snapshot
    >>> run_dir = tempfile.mkdtemp()
    >>> path = snapshot.write(run_dir, snapshot.Snapshot(1, {}, {}))
    >>> clear(run_dir)
    >>> snapshot.latest(run_dir) is None
    True
    """
    run_dir = Path(run_dir)
    for path in unfinished(run_dir):
        _remove(path)
    for folder, patterns in ((run_dir / CHECKPOINTS, (FOLDER, _KEPT_ASIDE)), (run_dir / REPLAY, (SEGMENT,))):
        for name in guarded.names_in(folder):  # the newest last: it is whole until the others are gone
            if any(pattern.fullmatch(name) for pattern in patterns):
                discard(folder / name)
        if not folder.is_symlink():
            with contextlib.suppress(OSError):  # it is not there, or holds what is not ours
                folder.rmdir()


def retire(folder: Path, step: int, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints up to `step`, which has just been written; later ones are set aside."""
    older = []
    for path in candidates(folder):
        if _step_of(path) <= step:
            older.append(path)
            continue
        aside = path.with_name(path.name.removesuffix(REPLACED) + _ASIDE)
        if aside.exists():
            discard(aside)
        path.rename(aside)
        _log.warning("checkpoint %s is newer than the run, which went on from before it; it is kept as %s", path, aside)
    for path in older[keep:]:
        discard(path)


def prune(run_dir: Path, before: int | None) -> list[Path]:
    """Remove segments that no checkpoint names. If it cannot be known which these are, all stay until the next time."""
    try:
        return _unlink(_unnamed(run_dir, before))
    except Unreadable as problem:
        _log.warning("old replay segments are kept, since it is not known which ones are needed: %s", problem)
        return []


def _unlink(paths: list[Path]) -> list[Path]:
    for path in paths:
        path.unlink(missing_ok=True)
    return paths


def _unnamed(run_dir: Path, before: int | None) -> list[Path]:
    """Segments that no checkpoint names; those from number `before` on may belong to the next one."""
    named: set[str] = set()
    for path in candidates(run_dir / CHECKPOINTS):
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


def candidates(folder: Path) -> list[Path]:
    """Checkpoints, the newest first."""
    paths = [folder / name for name in guarded.names_in(folder) if FOLDER.fullmatch(name)]
    return sorted(paths, key=lambda path: (_step_of(path), not path.name.endswith(REPLACED)), reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removesuffix(REPLACED).removeprefix("step-"))


def verified(path: Path, entry: manifest.FileEntry) -> bytes:
    """A file of a checkpoint, if it is what the manifest says; `Damaged` if not."""
    data = guarded.read_bytes(path, limit=JSON_LIMIT_BYTES if path.name == STATE else entry.bytes)
    if manifest.entry_of(data) != entry:
        found = manifest.entry_of(data)
        raise Damaged(
            path, f"has {found.bytes:,} bytes and SHA-256 {found.sha256}, expected {entry.bytes:,} and {entry.sha256}"
        )
    return data


def discard(path: Path) -> None:
    """Remove a checkpoint: under a name that is never loaded, so that a crash half-way leaves no half checkpoint."""
    doomed = atomic.temporary_beside(path)
    path.rename(doomed)
    _remove(doomed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
