"""A run directory that is being written to: ours, held by a lock, and clear of what a dead writer left."""

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from laser_rl import checkpoint
from laser_rl.checkpoint import RunLock, guarded, lock, manifest
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.disk import is_temporary
from laser_rl.errors import ConfigError, shortened
from laser_rl.metrics import machine, videos
from laser_rl.metrics.log import FILE
from laser_rl.training.files import CONFIG, LIMIT_BYTES, SWEEP

_MARKS = {CONFIG: {"environment", "network", "replay", "loss", "run"}, SWEEP: {"format", "base", "settings"}}
_EVENTS = re.compile(r"events\.out\.tfevents\.\d{10}\.\d+\.[0-9a-f]{8}")  # as `TensorBoardLog` names them
_STEP = re.compile(r"step-\d{12,18}.*")
_MOST_NAMED = 3


def hold(path: Path, *, settings: str | None, fresh: bool, settle: Callable[[], None]) -> RunLock:
    """Lock a directory, which is created if it is not there, and bring it into order; a second run in the same place is refused.

    Args:
        path: of the run.
        settings: the file that `settle` will write; None: the one that is there counts.
        fresh: throw away what an earlier run left.
        settle: called under the lock; if it fails, the lock is let go.
    """
    if settings is None and not any((path / name).exists() for name in (CONFIG, SWEEP)):
        raise ConfigError(f"{path} is no run directory: it has no {CONFIG}; 'laser train --out {path}' makes one")
    if settings is not None and not fresh:
        _require_kind(path, settings)
    require_free(path, fresh=fresh)
    path.mkdir(parents=True, exist_ok=True)
    held = RunLock(path)
    try:
        if fresh:
            throw_away(path)
        else:
            require_readable(path)
            checkpoint.remove_leftovers(path)
        settle()
        if fresh and settings is not None:  # of the other kind of run, that --fresh has thrown away
            (path / (SWEEP if settings == CONFIG else CONFIG)).unlink(missing_ok=True)
    except BaseException:
        held.release()
        raise
    return held


def _require_kind(path: Path, settings: str) -> None:
    """ConfigError if a sweep would be mixed with the run of one agent."""
    if settings == CONFIG and (path / SWEEP).exists():
        raise ConfigError(f"{path} holds a sweep; use --fresh to throw it away, or choose another --out")
    if settings == SWEEP and (path / CONFIG).exists() and not (path / SWEEP).exists():
        raise ConfigError(
            f"{path} holds the run of one agent, expected a sweep or nothing; choose another directory, or use --fresh"
        )


def require_free(path: Path, *, fresh: bool) -> None:
    """ConfigError for a directory that something else than a run of ours has filled, unless it is to be used all the same."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, expected a directory for the run; choose another --out")
    names = guarded.names_in(path)
    if fresh or not names or is_ours(path, names):
        return
    listed = ", ".join(map(shortened, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")
    raise ConfigError(
        f"{path} holds {listed}, expected nothing or a run: it was not made by laser-rl, and a run would overwrite files there; "
        "choose another --out, or use --fresh to start there, which removes files of the names that a run writes, and no others"
    )


def is_ours(path: Path, names: list[str]) -> bool:
    """Whether a run of ours was begun in a directory that holds these names."""
    if all(
        name == lock.NAME or is_temporary(name) for name in names
    ):  # it was killed before it had written its settings
        return True
    for name in _MARKS.keys() & set(names):
        with contextlib.suppress(Damaged, ValueError, RecursionError):
            values = json.loads(guarded.read_bytes(path / name, limit=LIMIT_BYTES))
            if isinstance(values, dict) and values.keys() >= _MARKS[name]:
                return True
    folder = path / checkpoint.CHECKPOINTS
    return any(manifest.NAME in guarded.names_in(folder / name) for name in _steps_in(folder))


def require_readable(path: Path) -> None:
    """`Unreadable` if one of the small files cannot be read that a start would write anew, or cannot be appended to."""
    for name in (CONFIG, SWEEP, machine.FILE):
        with contextlib.suppress(Damaged):
            guarded.read_bytes(path / name, limit=LIMIT_BYTES)
    with contextlib.suppress(Damaged):
        guarded.open_plain(path / FILE).close()


def throw_away(path: Path) -> None:
    """All that an earlier run left and a new one would go on from: what has a name that a run writes, and nothing else."""
    checkpoint.clear(path)
    videos.clear(path)
    for old in (path / FILE, path / machine.FILE):
        old.unlink(missing_ok=True)
    members = path / "members"
    for folder in (path, *(members / name for name in guarded.names_in(members) if name.isdecimal())):
        for name in guarded.names_in(folder):
            if _EVENTS.fullmatch(name):
                (folder / name).unlink(missing_ok=True)


def has_checkpoints(path: Path) -> bool:
    """Whether there is something to go on from, damaged or not."""
    return bool(_steps_in(path / checkpoint.CHECKPOINTS))


def _steps_in(folder: Path) -> list[str]:
    return [name for name in guarded.names_in(folder) if _STEP.fullmatch(name)]
