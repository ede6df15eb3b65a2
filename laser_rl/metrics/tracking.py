"""Rows on their way to a tracker (`metrics.trackers`): by a queue that may overflow and a thread of its own, so that training never waits.

Which trackers a run has, and under which id each knows it, is in `tracker-NAME.json` of the run directory: a resumed run goes on there.
"""

import atexit
import contextlib
import difflib
import importlib.util
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl.errors import ConfigError
from laser_rl.metrics.page import read_json, write_json
from laser_rl.metrics.sink import Kind, Value
from laser_rl.metrics.trackers import MLRUNS, PROJECT, TRACKERS, Begin, End, TrackedRun, TrackerRun

log = logging.getLogger("laser_rl.metrics")
ALWAYS = "tensorboard"  # may be named with the others, and is there anyway
# Not episodes: there may be hundreds a second, and rows of training have their mean.
SENT: Collection[Kind] = frozenset({"train", "evaluation", "sweep"})
MOST_WAITING = 1000  # rows, some hundred bytes each
LAST_ROWS_S = 30.0
_LOOK_S, _PATIENCE_S = 0.5, 2.0
_ALL = -1  # rows of no member


class _Waiting(NamedTuple):
    member: int
    step: int
    time_s: float
    numbers: dict[str, float]


class Tracking:
    """The sink that feeds one tracker. What goes wrong there is one warning; the run goes on.

    Args:
        tracker: its name.
        about: what a run is, by the number of the member; None: the only one, or all of a sweep together.
        folder: of the run, where its ids are kept; None: nowhere.
        begin: starts a run of the tracker, or goes on with one; None: that of the library.
        most_waiting: rows; more are dropped and counted.
        last_rows_s: how long `close` waits.
    """

    def __init__(
        self,
        tracker: str,
        about: Callable[[int | None], TrackedRun],
        folder: Path | None = None,
        *,
        begin: Begin | None = None,
        most_waiting: int = MOST_WAITING,
        last_rows_s: float = LAST_ROWS_S,
    ) -> None:
        self.tracker, self.dropped = tracker, 0
        self._about, self._begin = about, TRACKERS[tracker] if begin is None else begin
        self._book = None if folder is None else book_path(folder, tracker)
        self._began_s, self._ids = _known_in(self._book)
        self._runs: dict[int, TrackerRun] = {}
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(most_waiting)
        self._last_rows_s, self._end = last_rows_s, "failed"
        self._closing, self._failed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"rows for {tracker}", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # for a program that does not close its agent

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Put the finite numbers of a row into the queue, or count it as dropped; never waits."""
        if kind == "event" and "member" not in values:
            self._end = str(values.get("event"))
        if kind not in SENT or self._failed or self._closing.is_set():
            return
        numbers = {f"{kind}/{name}": value for name, value in _finite(values) if name != "member"}
        numbers[f"{kind}/update"] = update
        try:
            self._queue.put_nowait(_Waiting(int(values.get("member", _ALL)), int(step), time.time(), numbers))
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Nothing: a checkpoint does not wait for a tracker."""

    def close(self) -> None:
        """Wait a while for the last rows, and say how many did not get there; may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)  # wakes the thread
        atexit.unregister(self.close)
        self._thread.join(min(_PATIENCE_S, self._last_rows_s))
        if self._thread.is_alive():
            log.info(
                "the run is over; waiting for %s to take its last rows, %.0f s at most", self.tracker, self._last_rows_s
            )
            self._thread.join(self._last_rows_s)
        if self._failed:
            return
        left = self.dropped + (self._queue.qsize() if self._thread.is_alive() else 0)
        if left or self._thread.is_alive():
            log.warning("%s was too slow: %d rows did not get there; metrics.jsonl has all of them", self.tracker, left)

    def _run(self) -> None:
        try:
            for row in self._rows():
                self._run_of(row.member).log(row.step, row.time_s, row.numbers)
            for run in self._runs.values():
                run.end(_how(self._end))
        except (Exception, SystemExit) as error:  # whatever a library does, training goes on
            self._failed = True
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            log.warning("%s fails and gets no more rows (%s); the run goes on without it", self.tracker, said)

    def _rows(self) -> Iterator[_Waiting]:
        while not (self._closing.is_set() and self._queue.empty()):
            with contextlib.suppress(queue.Empty):
                row = self._queue.get(timeout=_LOOK_S)
                if row is not None:
                    yield row

    def _run_of(self, member: int) -> TrackerRun:
        if member not in self._runs:
            key = str(member)
            about = replace(self._about(None if member == _ALL else member), began_s=self._began_s)
            self._runs[member] = self._begin(about, self._ids.get(key))
            self._ids[key] = self._runs[member].id
            if self._book is not None:
                write_json(self._book, {"began": self._began_s, "ids": self._ids})
        return self._runs[member]


def trackers(
    names: Iterable[str],
    name: str,
    configs: Sequence[Mapping[str, Any]],
    folder: Path | None = None,
    *,
    fresh: bool = False,
) -> list[Tracking]:
    """A sink for each tracker that is asked for or that the run had before; a library that is missing is one line of warning.

    Args:
        names: some of wandb, trackio, mlflow; tensorboard is there anyway.
        name: of the run or sweep.
        configs: of the run, or of each member.
        folder: of the run; None if nothing is kept.
        fresh: forget under which ids trackers knew an earlier run here.
    """
    wanted = named(names)
    if folder is not None:
        wanted = tuple(dict.fromkeys([*wanted, *(() if fresh else tracked(folder))]))
        for tracker in TRACKERS if fresh else ():
            book_path(folder, tracker).unlink(missing_ok=True)
        for tracker in wanted:
            if not book_path(folder, tracker).exists():
                write_json(book_path(folder, tracker), {"began": time.time(), "ids": {}})

    def about(member: int | None) -> TrackedRun:
        if len(configs) == 1 and member is None:
            return TrackedRun(name, configs[0], folder)
        if member is None:
            return TrackedRun(f"{name}-all", _common(configs), folder, group=name)
        return TrackedRun(f"{name}-member-{member:02d}", configs[member], folder, group=name)

    return [Tracking(tracker, about, folder) for tracker in wanted if _installed(tracker)]


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Names as a user writes them, one or several with commas; ConfigError for one that is none.

    >>> named(["wandb,mlflow"]), named(["tensorboard"])
    (('wandb', 'mlflow'), ())
    >>> named(["wandbb"])
    Traceback (most recent call last):
    laser_rl.errors.ConfigError: there is no tracker 'wandbb'; did you mean 'wandb'?
    """
    words = [names] if isinstance(names, str) else names
    found = [word.strip() for several in words for word in several.split(",") if word.strip()]
    known = [*TRACKERS, ALWAYS]
    for word in found:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise ConfigError(f"there is no tracker {word!r}; {hint}")
    return tuple(dict.fromkeys(word for word in found if word != ALWAYS))


def tracked(folder: Path) -> tuple[str, ...]:
    """The trackers that a run directory's run was started with."""
    return tuple(tracker for tracker in TRACKERS if book_path(folder, tracker).exists())


def book_path(folder: Path, tracker: str) -> Path:
    """Where the ids of a tracker are."""
    return folder / f"tracker-{tracker}.json"


def reached(folder: Path) -> tuple[str, ...]:
    """Those of them that have got something: a library may have been missing."""
    return tuple(tracker for tracker in tracked(folder) if _known_in(book_path(folder, tracker))[1])


def hint(tracker: str, folder: str) -> str:
    """The command that shows what a tracker has got; `folder` as a shell takes it.

    >>> hint("mlflow", "runs/a")
    'MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri runs/a/mlruns'
    """
    online = {
        "wandb": os.environ.get("WANDB_MODE", "offline") != "offline",
        "mlflow": "MLFLOW_TRACKING_URI" in os.environ,
    }
    if online.get(tracker):
        return f"{tracker}, as its environment variables say"
    return {
        "wandb": f"wandb sync {folder}/wandb/offline-run-*",
        "trackio": f"trackio show --project {PROJECT}",
        "mlflow": f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder}/{MLRUNS}",
    }[tracker]


def _installed(tracker: str) -> bool:
    with contextlib.suppress(ValueError):  # a module without a specification, as tests have them
        if tracker in sys.modules or importlib.util.find_spec(tracker) is not None:
            return True
    log.warning(
        "nothing goes to %s, which is not installed: pip install 'laser-rl[%s]'; the run goes on", tracker, tracker
    )
    return False


def _known_in(book: Path | None) -> tuple[float, dict[str, str]]:
    """Since when a run is tracked, and under which ids."""
    found = {} if book is None else read_json(book)
    began, ids = found.get("began"), found.get("ids")
    known = {str(key): str(value) for key, value in ids.items()} if isinstance(ids, dict) else {}
    return (float(began) if isinstance(began, int | float) else time.time()), known


def _finite(values: Mapping[str, Value]) -> Iterator[tuple[str, float]]:
    """A library that cannot take NaN would be given up for it; metrics.jsonl has it."""
    for name, value in values.items():
        if not isinstance(value, str) and math.isfinite(number := float(value)):
            yield name, number


def _common(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all members have in common: a section is looked into."""
    first, *others = configs
    found: dict[str, Any] = {}
    for name, value in first.items():
        if isinstance(value, dict) and all(isinstance(other.get(name), dict) for other in others):
            found[name] = _common([config[name] for config in configs])
        elif all(other.get(name) == value for other in others):
            found[name] = value
    return found


def _how(event: str) -> End:
    return "finished" if event == "finished" else "stopped" if event == "stopped" else "failed"
