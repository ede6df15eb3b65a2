"""Which runs there are, and the one thread that reads their logs, however many look at them."""

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl.checkpoint.lock import owner
from laser_rl.errors import ConfigError
from laser_rl.metrics import machine
from laser_rl.metrics.history import History
from laser_rl.metrics.log import FILE
from laser_rl.metrics.standing import SWEEP, state_of
from laser_rl.metrics.stream import Tail, last_row
from laser_rl.metrics.videos import FOLDER, Film, films
from laser_rl.view.facts import details, summary
from laser_rl.view.panels import Data
from laser_rl.view.subject import CONFIG, Files, Subject, distinct

MOST_RUNS, MOST_READ = 500, 6
WANTED_S = 60.0
_LOOK_S, _SCAN_S = 0.5, 5.0
_DEPTH = 3
_MOST_VIDEOS = 100
_SETTLED_S = 1.0  # a folder that changed later than this may change again at what its clock calls the same time
_log = logging.getLogger(__name__)


class Made(NamedTuple):
    """An answer that was made of a version of a run."""

    version: int
    good_until: float
    body: bytes


class ViewedRun:
    """One directory; its log is read only while somebody looks at it."""

    def __init__(self, number: int, path: Path) -> None:
        self.number, self.path, self.name = number, path, path.name
        self.lock = threading.Lock()
        """Held while rows go in and while a panel is made of them."""
        self.version = 0
        """Grows whenever there is something new to show."""
        self.tail = Tail(path / FILE)
        self.history = History()
        self.files = Files({}, {}, [])
        self.wanted = 0.0
        self.running = False
        self.state = "not begun"
        self._seen: tuple[object, ...] = ()
        self.cache: dict[object, Made] = {}
        self._films: list[Film] = []
        self._filmed_at = -1.0

    def want(self) -> None:
        """Somebody looks at it."""
        self.wanted = time.monotonic()

    @property
    def known(self) -> float:
        """How much of the log has been read, from 0 to 1."""
        return 1.0 if self.tail.size <= 0 else min(1.0, self.tail.offset / self.tail.size)

    def look(self) -> None:
        """Read what is small: settings, machine, who writes, the last row; and see whether there is a new video."""
        self.running = owner(self.path) is not None
        found = []
        for name in (CONFIG, SWEEP, machine.FILE, FILE, FOLDER):
            try:
                stat = (self.path / name).stat()
                found.append((stat.st_mtime_ns, stat.st_size))
            except OSError:
                found.append((0, 0))
        seen = (self.running, *found)
        if seen == self._seen:
            return
        files, state = Files.read(self.path), state_of(last_row(self.path / FILE), running=self.running)
        with self.lock:
            self.files, self.state, self._seen = files, state, seen
            self.version += 1

    def read_on(self) -> bool:
        """Take the next piece of the log; false if there was nothing new."""
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

    def forget(self) -> None:
        """Give the memory back; it is read again when somebody looks."""
        with self.lock:
            self.tail, self.history, self.cache = Tail(self.path / FILE), History(), {}
            self.version += 1

    def subject(self) -> Subject:
        """What panels are made of; with the lock held."""
        return Subject(self.path, self.name, self.history, self.files, self.running, time.time())

    def summary(self) -> Data:
        """How it stands; with the lock held."""
        told = summary(self.subject(), known=self.known, videos=len(self.videos()))
        return {**told, "run": self.number, "version": self.version, "state": self.state}

    def details(self) -> Data:
        """What changes seldom; with the lock held."""
        return details(self.subject(), self.videos())

    def videos(self) -> list[Film]:
        """The newest of `videos/`: plain files only, no links, so that nothing outside the directory can be asked for."""
        try:
            changed = (self.path / FOLDER).stat().st_mtime
        except OSError:
            return []
        if changed != self._filmed_at or time.time() - changed < _SETTLED_S:
            self._films, self._filmed_at = films(self.path)[:_MOST_VIDEOS], changed
        return self._films


class Runs:
    """All runs below the given directories; a new one appears, one that was deleted stays in the list until the end."""

    def __init__(self, places: Sequence[Path], *, hurried: bool = False) -> None:
        self._places = [Path(place).resolve() for place in places]
        self._runs: dict[Path, ViewedRun] = {}
        self._stop = threading.Event()
        self._broken: set[int] = set()
        self._look_s = _LOOK_S / 10 if hurried else _LOOK_S
        self._thread = threading.Thread(target=self._work, name="reader of logs", daemon=True)
        self.scan()

    def every(self) -> list[ViewedRun]:
        """In the order in which they were found."""
        return list(self._runs.values())

    def listed(self) -> list[Data]:
        """Those to choose from."""
        return [{"run": run.number, "name": run.name, "state": run.state} for run in self.every()]

    def get(self, number: int) -> ViewedRun | None:
        """The run of that number."""
        every = self.every()
        return every[number] if 0 <= number < len(every) else None

    def scan(self) -> None:
        """Look for new ones, and at those that are known."""
        for place in self._places:
            for path in _below(place, _DEPTH):
                if path not in self._runs and len(self._runs) < MOST_RUNS:
                    self._runs[path] = ViewedRun(len(self._runs), path)
        for run, name in zip(self.every(), distinct(list(self._runs)) if self._runs else [], strict=True):
            run.name = name

    def start(self) -> None:
        """Begin to read, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
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
            more = [self._try(run, run.look) or self._try(run, run.read_on) for run in self._watched()]
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

    def _watched(self) -> list[ViewedRun]:
        """Those that somebody looks at; of others, what they hold is forgotten if it is too much."""
        read = sorted((run for run in self.every() if run.wanted), key=lambda run: -run.wanted)
        for run in read[MOST_READ:]:
            run.wanted = 0.0
            run.forget()
        return [run for run in read[:MOST_READ] if time.monotonic() - run.wanted < WANTED_S]


def places_of(run_dirs: Sequence[Path]) -> list[Path]:
    """Directories that exist; refused if there is none."""
    if not run_dirs:
        raise ConfigError("a dashboard of what? name one or more run directories: laser dashboard runs")
    missing = [str(path) for path in run_dirs if not path.is_dir()]
    if missing:
        raise ConfigError(
            f"expected directories of runs, got {', '.join(missing)}, which is none; see 'laser dashboard --help'"
        )
    return list(run_dirs)


def encoded(value: Any) -> bytes:
    """JSON as it goes to a page."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _below(place: Path, depth: int) -> list[Path]:
    """The runs in a folder: itself, or those in its folders. Links are not followed, and hidden folders are left out."""
    try:
        if any((place / name).exists() for name in (CONFIG, SWEEP, FILE)):
            return [place]
        inside = sorted(one for one in place.iterdir() if one.is_dir() and not one.is_symlink()) if depth else []
    except OSError:
        return []
    return [found for one in inside if not one.name.startswith(".") for found in _below(one, depth - 1)]
