"""Rows on their way to W&B, trackio or MLflow: by a queue that may overflow and a thread of its own, so that training never waits.

Which trackers a run has, and under which id each knows it, is in `tracker-NAME.json` of the run directory: a resumed run goes on there.
All of them keep to this machine unless the user's own environment variables say otherwise: `WANDB_MODE`, `TRACKIO_SPACE_ID` or
`TRACKIO_SERVER_URL`, `MLFLOW_TRACKING_URI`. What the libraries report about themselves is off as well. See docs/guides/tracking.md.
"""

import atexit
import contextlib
import contextvars
import importlib
import logging
import math
import os
import posixpath
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from laser_rl.disk import read_json, write_json
from laser_rl.errors import ConfigError, suggestion
from laser_rl.metrics.display import flat_settings
from laser_rl.metrics.rows import Kind, Value

log = logging.getLogger("laser_rl.metrics")
PROJECT = "laser-rl"
# Not episodes: there may be hundreds a second, and rows of training have their mean.
_SENT = frozenset({"train", "evaluation", "sweep"})
_MOST_WAITING = 1000  # rows, some hundred bytes each
_LAST_ROWS_S = 30.0
_LOOK_S, _PATIENCE_S = 0.05, 2.0
ALL = -1  # rows of no member
_MOST_PARAMETERS, _LONGEST_PARAMETER = 100, 500  # of one call, and of one value: what every store of MLflow takes


class TrackedRun(NamedTuple):
    """What a tracker is told of a run before its first row."""

    name: str
    settings: dict[str, Any]  # by full name
    folder: Path | None = None  # of the run; None if nothing is kept
    group: str | None = None  # the sweep, of a member


class _WandbRun:
    """Offline unless `WANDB_MODE` is set.

    Steps are a number of their own: W&B's may never go back, which those of a resumed run do, also where an offline run cannot ask how far
    it had come. W&B's are milliseconds since 1970.
    """

    def __init__(self, about: TrackedRun, known: str | None) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else also an offline run reports its errors to W&B
        wandb: Any = importlib.import_module("wandb")
        wanted = {"project": ("WANDB_PROJECT", PROJECT), "dir": ("WANDB_DIR", about.folder)}
        given = {key: str(value) for key, (variable, value) in wanted.items() if value and variable not in os.environ}
        self._run = wandb.init(
            **given,
            id=known,
            resume="allow" if known else None,
            name=about.name,
            group=about.group,
            config=about.settings,
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # a sweep has a run for each member at the same time
            settings=wandb.Settings(console="off", silent=True),  # the terminal is ours
        )
        self._run.define_metric("*", step_metric="step")
        self.id, self._last = str(self._run.id), -1

    def log(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        self._last = max(self._last + 1, int(1e3 * time_s))
        self._run.log({"step": step, "_timestamp": time_s, **numbers}, step=self._last)

    def end(self, how: str) -> None:  # W&B knows finished and failed only
        self._run.finish(exit_code=0 if how == "finished" else 1)


class _TrackioRun:
    """In trackio's own folder, where `trackio show` looks. A run is known by its name, so that has to be like no other."""

    def __init__(self, about: TrackedRun, known: str | None) -> None:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        trackio: Any = importlib.import_module("trackio")
        self.id = known or f"{about.name}-{os.urandom(3).hex()}"
        context = contextvars.Context()  # `init` would end the run that its context knows, which is another member's
        with contextlib.suppress(AttributeError):  # for a project that it knows it prints five lines less, each time
            context.run(trackio.context_vars.current_project.set, PROJECT)
        settings: dict[str, Any] = {"project": PROJECT, "name": self.id, "group": about.group, "config": about.settings}
        settings |= {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = context.run(trackio.init, **settings)

    def log(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def end(self, how: str) -> None:
        self._run.finish()


class _MlflowRun:
    """Files in `mlruns` of the run directory unless `MLFLOW_TRACKING_URI` is set."""

    def __init__(self, about: TrackedRun, known: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            # A database instead, as MLflow would like, needs SQLAlchemy and more: these files are for one run and one writer.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = ((about.folder or Path()) / "mlruns").resolve().as_uri()
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client: Any = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=address)
        if known:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        tags = {"group": about.group} if about.group else {}
        self.id = str(self._client.create_run(number, run_name=about.name, tags=tags).info.run_id)
        texts = {name: str(value)[:_LONGEST_PARAMETER] for name, value in about.settings.items()}
        settings = [self._entities.Param(name, text) for name, text in texts.items()]
        for start in range(0, len(settings), _MOST_PARAMETERS):
            self._client.log_batch(self.id, params=settings[start : start + _MOST_PARAMETERS])

    def log(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        # MLflow makes paths of names, and takes no other letters.
        names = [posixpath.normpath(re.sub(r"[^\w\-. /:]", "_", name)) for name in numbers]
        pairs = zip(names, numbers.values(), strict=True)
        metrics = [self._entities.Metric(name, value, int(1e3 * time_s), step) for name, value in pairs]
        self._client.log_batch(self.id, metrics=metrics)

    def end(self, how: str) -> None:
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[how]
        self._client.set_terminated(self.id, status=status)


_Run = _WandbRun | _TrackioRun | _MlflowRun
_TRACKERS: dict[str, Callable[[TrackedRun, str | None], _Run]] = {
    "wandb": _WandbRun,
    "trackio": _TrackioRun,
    "mlflow": _MlflowRun,
}


class Tracking:
    """The sink that feeds one tracker. What goes wrong there is one warning; the run goes on.

    `runs` are those of the members, by number; that of `ALL` is the only one, or of a sweep all together. The ids are kept in `folder`.
    Rows that find the queue full are dropped and counted.
    """

    def __init__(self, tracker: str, runs: Mapping[int, TrackedRun], folder: Path | None = None) -> None:
        self.tracker, self.dropped, self._about = tracker, 0, runs
        self._book = None if folder is None else book_path(folder, tracker)
        ids = {} if self._book is None else read_json(self._book).get("ids")
        self._ids: dict[str, str] = dict(ids) if isinstance(ids, dict) else {}
        self._runs: dict[int, _Run] = {}
        # Of a row: member, step, time and numbers.
        self._queue: queue.Queue[tuple[int, int, float, dict[str, float]]] = queue.Queue(_MOST_WAITING)
        self._closing, self._failed = threading.Event(), False
        self._end = "failed"  # or what the last event of the run was
        self._thread = threading.Thread(target=self._run, name=f"rows for {tracker}", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # for a program that does not close its agent

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Put the finite numbers of a row into the queue, or count it as dropped; never waits."""
        if kind == "event" and "member" not in values:
            self._end = str(values.get("event"))
        if kind not in _SENT or self._failed or self._closing.is_set():
            return
        # Finite ones: a library that cannot take NaN would be given up for it; metrics.jsonl has it.
        numbers = {
            f"{kind}/{name}": number
            for name, value in values.items()
            if name != "member" and not isinstance(value, str) and math.isfinite(number := float(value))
        }
        numbers[f"{kind}/update"] = update
        try:
            self._queue.put_nowait((int(values.get("member", ALL)), int(step), time.time(), numbers))
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Nothing: a checkpoint does not wait for a tracker."""

    def close(self) -> None:
        """Wait a while for the last rows, and say how many did not get there; may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        atexit.unregister(self.close)
        self._thread.join(min(_PATIENCE_S, _LAST_ROWS_S))
        if self._thread.is_alive():
            log.info("waiting for %s to take its last rows, %.0f s at most", self.tracker, _LAST_ROWS_S)
            self._thread.join(_LAST_ROWS_S)
        late = self._thread.is_alive()
        left = self.dropped + (self._queue.qsize() if late else 0)
        if (left or late) and not self._failed:
            log.warning("%s was too slow: %d rows did not get there; metrics.jsonl has all of them", self.tracker, left)

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() and self._queue.empty()):
                with contextlib.suppress(queue.Empty):
                    member, step, time_s, numbers = self._queue.get(timeout=_LOOK_S)
                    self._run_of(member).log(step, time_s, numbers)
            for run in self._runs.values():
                run.end(self._end if self._end in {"finished", "stopped"} else "failed")
        except (Exception, SystemExit) as error:  # whatever a library does, training goes on
            self._failed = True
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            install = f"; pip install 'laser-rl[{self.tracker}]'" if isinstance(error, ModuleNotFoundError) else ""
            log.warning("%s fails and gets no more rows (%s%s); the run goes on", self.tracker, said, install)

    def _run_of(self, member: int) -> _Run:
        if member not in self._runs:
            key = str(member)
            self._runs[member] = _TRACKERS[self.tracker](self._about[member], self._ids.get(key))
            self._ids[key] = self._runs[member].id
            if self._book is not None:
                write_json(self._book, {"ids": self._ids})
        return self._runs[member]


def trackers(
    names: Iterable[str], name: str, configs: Sequence[BaseModel], folder: Path | None = None, *, fresh: bool = False
) -> list[Tracking]:
    """A sink for each tracker that is asked for or that the run had before; `fresh` forgets the ids of an earlier run in `folder`.

    `configs` are that of the run, or of each member; without a `folder` nothing is kept.
    """
    wanted = named(names)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = tuple(dict.fromkeys([*wanted, *(() if fresh else tracked(folder))]))
        for tracker in _TRACKERS if fresh else ():
            book_path(folder, tracker).unlink(missing_ok=True)
        for tracker in wanted:
            if not book_path(folder, tracker).exists():
                write_json(book_path(folder, tracker), {"ids": {}})
    settings = [flat_settings(config.model_dump(mode="json")) for config in configs]
    common = {key: value for key, value in settings[0].items() if all(one.get(key) == value for one in settings)}
    runs = {k: TrackedRun(f"{name}-member-{k:02d}", own, folder, group=name) for k, own in enumerate(settings)}
    single, every = TrackedRun(name, common, folder), TrackedRun(f"{name}-all", common, folder, group=name)
    runs[ALL] = single if len(configs) == 1 else every
    return [Tracking(tracker, runs, folder) for tracker in wanted]


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Names as a user writes them, one or several with commas; ConfigError for one that is none."""
    words = (names if isinstance(names, str) else ",".join(names)).split(",")
    found = dict.fromkeys(word.strip() for word in words if word.strip())
    known = [*_TRACKERS, "tensorboard"]  # which is there anyway
    for word in found:
        if word not in known:
            raise ConfigError(f"there is no tracker {word!r}; {suggestion(word, known)}")
    return tuple(word for word in found if word in _TRACKERS)


def book_path(folder: Path, tracker: str) -> Path:
    """The file with the ids under which a tracker knows a run and its members."""
    return folder / f"tracker-{tracker}.json"


def tracked(folder: Path) -> tuple[str, ...]:
    """The trackers that a run directory's run was started with."""
    return tuple(tracker for tracker in _TRACKERS if book_path(folder, tracker).exists())
