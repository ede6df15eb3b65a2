"""Worker processes for whole runs: a run that fails does not end the others, and workers die with whoever started them."""

import contextlib
import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from laser_rl.envs.worker import die_with
from laser_rl.errors import UserError

log = logging.getLogger("laser_rl.research")
Job = Mapping[str, Any]
PATIENCE_S = 600.0  # without an end of any run, before it is said for whom we wait
END_S = 10.0
IDLE_S = 3600.0


class Ended(NamedTuple):
    """How a job ended: what it returned, or why it failed."""

    place: int
    result: Any
    error: str | None


def spread(work: Callable[[Job], Any], jobs: Sequence[Job], workers: int) -> Iterator[Ended]:
    """Do all jobs, some at a time; yields them as they end. `work` has to be importable. With one worker, in this process.

    >>> [ended.result for ended in spread(dict, [{"a": 1}], workers=1)]
    [{'a': 1}]
    """
    if workers <= 1 or len(jobs) <= 1:
        for place, job in enumerate(jobs):
            yield Ended(place, *_attempt(work, job))
        return
    waiting = list(enumerate(jobs))
    crew = [_Worker(work) for _ in range(min(workers, len(jobs)))]
    try:
        for worker in crew:
            worker.begin(*waiting.pop(0))
        while busy := [worker for worker in crew if worker.place is not None]:
            for worker in _ready(busy, [str(job.get("label", "")) for job in jobs]):
                yield worker.ended()
                if waiting:
                    worker.begin(*waiting.pop(0))
    finally:
        for worker in crew:
            worker.kill()


def _ready(busy: Sequence["_Worker"], labels: Sequence[str]) -> list["_Worker"]:
    while not (ready := wait([worker.connection for worker in busy], PATIENCE_S)):
        log.info("still waiting for %s", "; ".join(labels[worker.place or 0] for worker in busy))
    return [worker for worker in busy if worker.connection in ready]


class _Worker:
    """One process, started again if it dies."""

    def __init__(self, work: Callable[[Job], Any]) -> None:
        self._work, self.place = work, None
        self._start()

    place: int | None
    connection: "Connection[Any, Any]"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # torch in a process that was forked is not safe
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._work, os.getpid()))
        self._process.start()
        theirs.close()  # so that its death is the end of the pipe

    def begin(self, place: int, job: Job) -> None:
        self.place = place
        with contextlib.suppress(BrokenPipeError):  # it died while idle: `ended` finds that out
            self.connection.send(job)

    def ended(self) -> Ended:
        place, self.place = self.place, None
        assert place is not None  # noqa: S101
        try:
            return Ended(place, *self.connection.recv())
        except (EOFError, ConnectionResetError):
            self._process.join(END_S)
            status = self._process.exitcode
            self.kill()
            self._start()
            return Ended(place, None, f"its process died with status {status}; was there enough memory?")

    def kill(self) -> None:
        """A busy one has written nothing that counts, an idle one has nothing to do."""
        self._process.kill()
        self._process.join(END_S)
        self.connection.close()


def _serve(connection: "Connection[Any, Any]", work: Callable[[Job], Any], parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    while True:
        if not connection.poll(IDLE_S):
            continue
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(work, job))


def _attempt(work: Callable[[Job], Any], job: Job) -> tuple[Any, str | None]:
    try:
        return work(job), None
    except UserError as error:
        return None, str(error)
    except Exception:  # whatever a run met: the others go on, and all is told at the end
        return None, traceback.format_exc()
