"""TensorBoard event files, written record by record with the package's own record writer.

Its `EventFileWriter`, and torch's, put a thread between: a full disk would end that thread, and it would be copied half-dead into forked
workers. They also look for TensorFlow or take 1.4 s to import.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from laser_rl.errors import is_full
from laser_rl.metrics.rows import Kind, Value

log = logging.getLogger("laser_rl.metrics")
MEMBERS = "members"
_FLUSH_SECONDS = 5.0


class TensorBoardLog:
    """The sink that writes the numbers of each row as scalars `kind/name` over steps, to `events.*` in a run directory.

    A member of a sweep has a file of its own under `members/NN/`, so that the curves of members lie over each other as runs.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self._run_dir = Path(run_dir)
        self._files: dict[int | None, BinaryIO] = {}  # by member
        self._next_flush, self._said_full = 0.0, False

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        member = int(values["member"]) if "member" in values else None
        if kind == "event":
            if values.get("event") == "resumed":
                # Makes TensorBoard forget what it has read of later steps.
                start = SessionLog(status=SessionLog.START)
                self._add(member, Event(wall_time=time.time(), step=int(step) + 1, session_log=start))
            return
        scalars = [
            Summary.Value(tag=f"{kind}/{name}", simple_value=float(value))
            for name, value in values.items()
            if name != "member" and not isinstance(value, str)
        ]
        if scalars:
            self._add(member, Event(wall_time=time.time(), step=int(step), summary=Summary(value=scalars)))

    def flush(self) -> None:
        self._next_flush = time.monotonic() + _FLUSH_SECONDS
        for file in self._files.values():
            if not file.closed:
                with self._forgiving(file):
                    file.flush()

    def close(self) -> None:
        for file in self._files.values():
            with self._forgiving(file):
                file.close()

    def _add(self, member: int | None, event: Event) -> None:
        if member not in self._files:
            folder = self._run_dir if member is None else self._run_dir / MEMBERS / f"{member:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files of a folder in the order of their names: the time comes first.
            name = f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}.{os.urandom(4).hex()}"
            self._files[member] = (folder / name).open("xb")
            self._add(member, Event(wall_time=time.time(), file_version="brain.Event:2"))
        file = self._files[member]
        with self._forgiving(file):
            RecordWriter(file).write(event.SerializeToString())
        if time.monotonic() >= self._next_flush:
            self.flush()

    @contextlib.contextmanager
    def _forgiving(self, file: BinaryIO) -> Iterator[None]:
        """On a full disk rows are missing here, `metrics.jsonl` gets them later. What is in the buffer stays there until there is space."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            if not self._said_full:
                log.warning("no space for TensorBoard's rows in %s: some will be missing there", file.name)
            self._said_full = True
