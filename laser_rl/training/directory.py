"""`RunDirectory`: lock a run directory, write and restore checkpoints there, refuse or clear what an earlier run left."""

import contextlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, Mended, RunLock, Snapshot, guarded, lock, manifest
from laser_rl.checkpoint.guarded import Damaged, fitting
from laser_rl.checkpoint.segments import row_bytes
from laser_rl.checkpoint.snapshot import flat, grouped, member_name
from laser_rl.config import Config
from laser_rl.disk import is_temporary, write_json
from laser_rl.errors import ConfigError, is_full, shortened
from laser_rl.metrics import machine, videos
from laser_rl.metrics.log import FILE, MetricsLog
from laser_rl.replay.store import Replay
from laser_rl.training import saving
from laser_rl.training.files import CONFIG, LIMIT_BYTES, SETTINGS, SWEEP, described, is_sweep, read_sweep, require_same
from laser_rl.training.saving import Arrays, MemberState, Writer
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stall import join
from laser_rl.training.trainer import Run, Trainer

log = logging.getLogger("laser_rl.training")
_MARKS = {CONFIG: {"environment", "network", "replay", "loss", "run"}, SWEEP: {"format", "base", "settings"}}
_EVENTS = re.compile(r"events\.out\.tfevents\.\d{10}\.\d+\.[0-9a-f]{8}")  # as `TensorBoardLog` names them
_STEP = re.compile(r"step-\d{12,18}.*")
_MOST_NAMED = 3
ASIDE_BYTES = 16 << 20  # of new unrolls and parameters, from which on a thread writes them: less takes milliseconds


class RunDirectory:
    """The files of one run, held by a lock: a second run in the same place is refused.

    `settings`, of one agent or of a sweep, are written there; without them those that are there count. `fresh` throws away what an earlier
    run left; `accept_changes` goes on also if the settings' file was edited.
    """

    def __init__(
        self,
        path: Path,
        settings: Config | SweepConfig | None = None,
        *,
        fresh: bool = False,
        accept_changes: bool = False,
    ) -> None:
        self.path = path
        given = SweepConfig(base=settings) if isinstance(settings, Config) else settings
        file, other = (SWEEP, CONFIG) if given is not None and not given.single else (CONFIG, SWEEP)
        _require_usable(path, None if given is None else file, fresh=fresh)
        path.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(path)
        try:
            (_throw_away if fresh else _remove_leftovers)(path)
            if _steps_in(path / checkpoint.CHECKPOINTS):
                require_same(path, given, accept_changes=accept_changes)
            if given is not None:
                write_json(path / file, described(given))
                if fresh:  # it has thrown away a run of the other kind
                    (path / other).unlink(missing_ok=True)
            self.settings = read_sweep(path, used=given is None)
            self.log = MetricsLog(path)
            machine.record(path, (path / (SWEEP if is_sweep(path) else CONFIG)).read_bytes())
        except BaseException:
            self._lock.release()
            raise
        # By store; those of a cluster's shards are put here from outside.
        self.segments: dict[int, saving.Segments] = {}
        self._writer = Writer(Path, lambda: None)  # the newest

    def save(self, trainer: Trainer, *, aside: bool = True) -> Writer:
        """A checkpoint of all members as they are now. Learning goes on while a thread writes, if there is much to write."""
        states = [saving.member_state(training) for training in trainer.trainings]
        return self.write(trainer, states, trainer.group.actor_state(), aside=aside)

    def write(self, run: Run, states: Sequence[MemberState], actors: Arrays, *, aside: bool = False) -> Writer:
        """New unrolls become segments, everything else one folder: whole or not at all. The result raises `NoSpace` if the disk is full.

        If a thread writes `aside`, a replay waits before it would replace an unroll that is not copied yet.
        """
        step, tensors = run.steps, {member_name(number): flat(state.tensors) for number, state in enumerate(states)}
        numbers = {"members": [state.numbers for state in states], "trainer": run.state_dict()}
        stores, files, keep = run.stores, self._files(run.stores), self.settings.base.run.keep_checkpoints
        new = [own.begin(store) * row_bytes(store.layout) for own, store in zip(files, stores, strict=True)]
        self.log.flush()

        def write() -> Path:
            try:
                replays = [own.write(store) for own, store in zip(files, stores, strict=True)]
                state = {**numbers, "replays": replays, SETTINGS: described(self.settings)}
                segments = [entry for own in self.segments.values() for entry in own.entries]
                snapshot = Snapshot(step=step, tensors={**actors, **tensors}, state=state, segments=segments)
                return checkpoint.write(self.path, snapshot, keep=keep)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    checkpoint.remove_unnamed(self.path)
                for own in self.segments.values():
                    own.revert()
                if isinstance(error, OSError) and is_full(error):
                    raise saving.NoSpace(self.path, step, error) from error
                raise

        self._writer = Writer(write, lambda: [own.copied for own in files])
        if aside and sum(new) + sum(one.nbytes for own in tensors.values() for one in own.values()) >= ASIDE_BYTES:
            for own, store in zip(files, stores, strict=True):
                store.keep = own.keep
            self._writer.start()
        else:
            self._writer.run()
        return self._writer

    def restore(self, trainer: Trainer) -> bool:
        """Load the newest checkpoint that verifies, with what is left of a damaged replay; False if none was ever written."""
        loaded = checkpoint.latest(self.path, replay="salvage")
        if loaded is None:
            if self.log.path.stat().st_size:  # an earlier start left rows, but no checkpoint: they are void
                trainer.announce("resumed")
            return False
        with fitting(loaded.path):
            mended = self.fill(trainer.stores, loaded)
            for number, member in enumerate(trainer.trainings):
                tensors = grouped(loaded.tensors[member_name(number)])
                saving.load_member(member, tensors, loaded.state["members"][number])
            lost = trainer.group.load_actors(loaded.tensors)
            trainer.load_state_dict(loaded.state["trainer"])
        if lost:
            log.warning("%d open episodes could not be rebuilt; the run goes on with new ones, not bit for bit", lost)
        trainer.announce("resumed")
        if mended is not None:
            trainer.write("event", {"event": saving.MENDED, **mended.values})
        return True

    def fill(self, stores: Sequence[Replay], loaded: Loaded) -> Mended | None:
        """Load the replays of a checkpoint; of damaged ones what can be read, with a warning that names what is lost."""
        names, ids = {problem.path.name for problem in loaded.damaged}, loaded.state["replays"]
        each = zip(self._files(stores), stores, ids, strict=True)
        found = [files.fill(store, loaded.segments, own, names) for files, store, own in each]
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

    def close(self) -> None:
        """Nothing writes there any more; a checkpoint under way is given up."""
        for files in self.segments.values():
            files.closed = True
        join(self._writer, "the run directory", "the checkpoint's writer to end")
        self.log.close()
        self._lock.release()

    def _files(self, stores: Sequence[Replay]) -> list[saving.Segments]:
        each = enumerate(stores)
        return [self.segments.setdefault(at, saving.Segments(self.path, store.layout, at)) for at, store in each]


def _require_usable(path: Path, settings: str | None, *, fresh: bool) -> None:
    """ConfigError for a directory that holds something else than a run of the kind that writes the file `settings`."""
    if settings is None and not any((path / name).exists() for name in (CONFIG, SWEEP)):
        raise ConfigError(f"{path} is no run directory: it has no {CONFIG}; 'laser train --out {path}' makes one")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, expected a directory for the run; choose another --out")
    names = guarded.names_in(path)
    if fresh or not names:
        return
    if settings == CONFIG and SWEEP in names:
        raise ConfigError(f"{path} holds a sweep; use --fresh to throw it away, or choose another --out")
    if settings == SWEEP and CONFIG in names and SWEEP not in names:
        raise ConfigError(
            f"{path} holds the run of one agent, expected a sweep or nothing; choose another directory, or use --fresh"
        )
    if not _is_ours(path, names):
        listed = ", ".join(map(shortened, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")
        raise ConfigError(
            f"{path} holds {listed}, expected nothing or a run: it was not made by laser-rl, and a run would overwrite files there; "
            "choose another --out, or use --fresh to start there, which removes files of the names that a run writes, and no others"
        )


def _is_ours(path: Path, names: list[str]) -> bool:
    # It may have been killed before it had written its settings.
    if all(name == lock.NAME or is_temporary(name) for name in names):
        return True
    for name in _MARKS.keys() & set(names):
        with contextlib.suppress(Damaged):
            values = guarded.parse_json(path / name, guarded.read_bytes(path / name, limit=LIMIT_BYTES))
            if values.keys() >= _MARKS[name]:
                return True
    folder = path / checkpoint.CHECKPOINTS
    return any(manifest.NAME in guarded.names_in(folder / name) for name in _steps_in(folder))


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of a dead writer; raise `Unreadable` if a file that this run must rewrite or append to is unreadable."""
    for name in (CONFIG, SWEEP, machine.FILE):
        with contextlib.suppress(Damaged):
            guarded.read_bytes(path / name, limit=LIMIT_BYTES)
    with contextlib.suppress(Damaged):
        guarded.open_plain(path / FILE).close()
    checkpoint.remove_leftovers(path)


def _throw_away(path: Path) -> None:
    """All that an earlier run left and a new one would go on from: what has a name that a run writes, and nothing else."""
    checkpoint.clear(path)
    videos.prune(path, keep=0)
    for old in (path / FILE, path / machine.FILE):
        old.unlink(missing_ok=True)
    members = path / "members"
    for folder in (path, *(members / name for name in guarded.names_in(members) if name.isdecimal())):
        for name in guarded.names_in(folder):
            if _EVENTS.fullmatch(name):
                (folder / name).unlink(missing_ok=True)


def _steps_in(folder: Path) -> list[str]:
    return [name for name in guarded.names_in(folder) if _STEP.fullmatch(name)]
