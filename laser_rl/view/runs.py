"""Run directories as the page shows them: read as a whole for a report, or read on by one thread while they grow.

A run is told as a sweep of one member.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl.checkpoint.lock import owner
from laser_rl.disk import read_json
from laser_rl.errors import ConfigError
from laser_rl.metrics import display, machine
from laser_rl.metrics.history import History
from laser_rl.metrics.log import FILE, Tail, last_row
from laser_rl.metrics.standing import SWEEP, MemberStanding, best, standing_of, state_of
from laser_rl.metrics.videos import FOLDER, Film, films

CONFIG = "config.json"
SILENT_S = 60.0
MOST_RUNS = 500
MOST_COMPARED = 20
WANTED_S = 60.0
_LOOK_S, _SCAN_S = 0.5, 5.0
_DEPTH = 3
_MOST_VIDEOS = 100
_log = logging.getLogger(__name__)


class Files(NamedTuple):
    """What a run directory says besides its rows; empty where a file is missing or damaged."""

    config: dict[str, Any]
    sweep: dict[str, Any]
    sessions: list[dict[str, Any]]

    @classmethod
    def read(cls, run_dir: Path) -> "Files":
        return cls(read_json(run_dir / CONFIG), read_json(run_dir / SWEEP), machine.sessions(run_dir))


@dataclass(frozen=True, eq=False)
class Subject:
    """One directory of a run or sweep at a time."""

    run_dir: Path
    name: str
    history: History
    files: Files
    running: bool = False
    now: float = 0.0

    @cached_property
    def is_sweep(self) -> bool:
        return bool(self.files.sweep) or self.history.has_members

    @cached_property
    def members(self) -> list[MemberStanding]:
        return standing_of(self.history, self.files.sweep if self.is_sweep else {"settings": [{}]}, self.now)

    @cached_property
    def best(self) -> MemberStanding | None:
        return best(self.members)

    @cached_property
    def mixed(self) -> bool:
        """Whether several tasks were learned, so that returns are normalised scores."""
        rows = (row for one in self.members for row in self.history.newest(None, one.member))
        return any("task" in row or display.is_mixture(row) for row in rows)

    @property
    def score_label(self) -> str:
        return "Median over tasks of the normalised score" if self.mixed else "Mean return of the last 100 episodes"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its full name; of a sweep, those of its base and of the sweep itself."""
        if not self.files.sweep:
            return display.flat_settings(self.files.config)
        base = self.files.sweep.get("base")
        others = {name: value for name, value in self.files.sweep.items() if name not in {"base", "settings", "format"}}
        return display.flat_settings({**(base if isinstance(base, dict) else {}), "sweep": others})

    @property
    def environment(self) -> str:
        return str(self.settings.get("environment.id", "unknown environment"))

    @property
    def state(self) -> str:
        return state_of(self.history.last, running=self.running)


def subject_of(run_dir: Path, name: str | None = None) -> Subject:
    if not _is_run(run_dir):
        inside = run_dir.is_dir() and any((one / FILE).exists() for one in run_dir.iterdir())
        hint = f"; its folders are: laser report {run_dir}/*" if inside else "; is this a run directory?"
        raise ConfigError(f"expected {run_dir} to have {CONFIG}, {SWEEP} or {FILE}, got none of them{hint}")
    history, files, running = History.read(run_dir / FILE), Files.read(run_dir), owner(run_dir) is not None
    return Subject(run_dir, name or run_dir.resolve().name, history, files, running, time.time())


def distinct(names: Sequence[Path]) -> list[str]:
    """Short names of directories that differ: the last part, and as many before it as are needed."""
    paths, count = [path.resolve() for path in names], 1
    while True:
        shortened = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(shortened)) == len(set(paths)):
            return shortened
        count += 1


class Viewed:
    """What a page can ask a server for by its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()  # held while rows go in and while a panel is made of them
        self.version = 0  # grows whenever there is something new to show
        # Answers of the server: of which version, good until when.
        self.cache: dict[object, tuple[int, float, bytes]] = {}


class ViewedRun(Viewed):
    """One directory that a server shows; its log is read only while a page looks at it."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(number)
        self.path, self.name = path, path.name
        self.tail, self.history, self.files = Tail(path / FILE), History(), Files({}, {}, [])
        self.wanted = float("-inf")  # when a page last asked for it
        self.changed = 0.0  # when its log was written last
        self.running, self.state = False, "not begun"
        self._seen: tuple[object, ...] = ()
        self._subject: tuple[int, Subject] | None = None

    @property
    def known(self) -> float:
        return 1.0 if self.tail.size <= 0 else min(1.0, self.tail.offset / self.tail.size)

    def look(self) -> None:
        """Read what is small: settings, machine, who writes, the last row; and see whether there is a new video, or silence."""
        self.running = owner(self.path) is not None
        found = {}
        for name in (CONFIG, SWEEP, machine.FILE, FILE, FOLDER):
            with contextlib.suppress(OSError):
                stat = (self.path / name).stat()
                found[name] = (stat.st_mtime, stat.st_size)
        self.changed = found.get(FILE, (0.0, 0))[0]
        silent = self.running and time.time() - self.changed > SILENT_S
        seen = (self.running, silent, *found.items())
        if seen == self._seen:
            return
        files, state = Files.read(self.path), state_of(last_row(self.path / FILE), running=self.running)
        with self.lock:
            self.files, self.state, self._seen = files, state, seen
            self.version += 1

    def read_on(self) -> bool:
        fresh = self.tail.restarted()
        rows = self.tail.read() if self.tail.size > self.tail.offset else []
        if not rows and not fresh:
            return False
        with self.lock:
            if fresh:
                self.history = History()
            self.history.add(rows)
            self.version += 1
        return bool(rows)

    def subject(self) -> Subject:
        """What panels are made of, the same for all of a version; with the lock held."""
        if self._subject is None or self._subject[0] != self.version:
            made = Subject(self.path, self.name, self.history, self.files, self.running, time.time())
            self._subject = (self.version, made)
        return self._subject[1]

    def videos(self) -> list[Film]:
        """The newest of `videos/`: plain files only, no links, so that nothing outside the directory can be asked for."""
        return films(self.path)[:_MOST_VIDEOS]


class ViewedComparison(Viewed):
    """The directories whose logs were written last, side by side."""

    def __init__(self) -> None:
        super().__init__(MOST_RUNS)  # a number that no run has
        self.runs: list[ViewedRun] = []

    def look(self, every: Sequence[ViewedRun]) -> None:
        """Choose directories, and ask for their logs to be read."""
        newest = sorted(every, key=lambda run: run.changed)[-MOST_COMPARED:]
        self.runs = [run for run in every if run in newest]
        self.version = len(every) + sum(run.version for run in every)
        for run in self.runs:
            run.wanted = time.monotonic()

    @contextlib.contextmanager
    def subjects(self) -> Iterator[list[Subject]]:
        """With the locks of all of them."""
        with contextlib.ExitStack() as stack:
            chosen = list(self.runs)
            for run in chosen:
                stack.enter_context(run.lock)
            yield [run.subject() for run in chosen]


class Runs:
    """All runs below the given directories; a new one appears, one that was deleted stays in the list until the end."""

    def __init__(self, places: Sequence[Path], *, look_s: float = _LOOK_S) -> None:
        self._places = [Path(place).resolve() for place in places]
        self._runs: dict[Path, ViewedRun] = {}
        self._stop = threading.Event()
        self._broken: set[int] = set()
        self._look_s = look_s
        self._thread = threading.Thread(target=self._work, name="reader of logs", daemon=True)
        self.scan()

    def every(self) -> list[ViewedRun]:
        return list(self._runs.values())

    def scan(self) -> None:
        for place in self._places:
            for path in _below(place, _DEPTH):
                if path not in self._runs and len(self._runs) < MOST_RUNS:
                    self._runs[path] = ViewedRun(len(self._runs), path)
        for run, name in zip(self.every(), distinct(list(self._runs)), strict=True):
            run.name = name

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _work(self) -> None:
        scanned = -_SCAN_S
        while not self._stop.is_set():
            now = time.monotonic()
            if now - scanned >= _SCAN_S:
                self.scan()
                scanned = now
                for run in self.every():
                    self._try(run, run.look)
            watched = [run for run in self.every() if now - run.wanted < WANTED_S]
            more = [self._try(run, run.look) or self._try(run, run.read_on) for run in watched]
            self._stop.wait(0.001 if any(more) else self._look_s)

    def _try(self, run: ViewedRun, work: Callable[[], bool | None]) -> bool:
        """Whatever a run directory holds, the pages of the other runs go on."""
        try:
            return bool(work())
        except Exception:
            if run.number not in self._broken:  # once: it is tried again twice a second
                _log.exception("%s could not be read; its page may be out of date", run.path)
                self._broken.add(run.number)
            return False


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in (CONFIG, SWEEP, FILE))


def _below(place: Path, depth: int) -> list[Path]:
    """The runs in a folder: itself, or those in its folders. Links are not followed, and hidden folders are left out."""
    try:
        if _is_run(place):
            return [place]
        inside = sorted(one for one in place.iterdir() if one.is_dir() and not one.is_symlink()) if depth else []
    except OSError:
        return []
    return [found for one in inside if not one.name.startswith(".") for found in _below(one, depth - 1)]
