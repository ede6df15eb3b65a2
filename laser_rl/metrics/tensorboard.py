"""TensorBoard event files, written record by record: torch's own writer takes 1.4 s to import and puts a thread between."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from laser_rl.errors import is_full
from laser_rl.metrics.sink import Kind, Value

log = logging.getLogger("laser_rl.metrics")
MEMBERS = "members"
_FLUSH_SECONDS = 5.0


class TensorBoardLog:
    """The sink that writes the numbers of each row as scalars `kind/name` over steps, to `events.*` in a run directory.

    >>> import tempfile
    >>> run_dir = tempfile.mkdtemp()
    >>> log = TensorBoardLog(run_dir)
    >>> log.write("train", 640, 4, {"entropy": 0.6})
    >>> log.close()
    >>> [path.name.split(".")[:3] for path in Path(run_dir).iterdir()]
    [['events', 'out', 'tfevents']]
    """

    def __init__(self, run_dir: str | Path) -> None:
        folder = Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names: the time comes first.
        name = f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}.{os.urandom(4).hex()}"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._next_flush, self._said_full = 0.0, False
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Write the numbers of a row; text is left to `metrics.jsonl`."""
        if kind == "event":
            if values.get("event") == "resumed":
                # Makes TensorBoard forget what it has read of later steps.
                start = SessionLog(status=SessionLog.START)
                self._add(Event(wall_time=time.time(), step=int(step) + 1, session_log=start))
            return
        scalars = [
            Summary.Value(tag=f"{kind}/{name}", simple_value=float(value))
            for name, value in values.items()
            if not isinstance(value, str)
        ]
        if scalars:
            self._add(Event(wall_time=time.time(), step=int(step), summary=Summary(value=scalars)))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if not self._file.closed:
            self._next_flush = time.monotonic() + _FLUSH_SECONDS
            with self._forgiving():
                self._file.flush()

    def close(self) -> None:
        """Flush and close the file; may be called twice."""
        with self._forgiving():
            self._file.close()

    def _add(self, event: Event) -> None:
        with self._forgiving():
            self._records.write(event.SerializeToString())
        if time.monotonic() >= self._next_flush:
            self.flush()

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """On a full disk rows are missing here, `metrics.jsonl` gets them later. What is in the buffer stays there until there is space."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            if not self._said_full:
                log.warning("no space for TensorBoard's rows in %s: some will be missing there", self._file.name)
            self._said_full = True


class MemberBoards:
    """The sink of a sweep: an event file a member under `members/NN/`, so that the curves of members lie over each other as runs.

    Rows that are of no member go to the top directory.

    >>> import tempfile
    >>> run_dir = Path(tempfile.mkdtemp())
    >>> boards = MemberBoards(run_dir)
    >>> boards.write("train", 640, 4, {"member": 3, "entropy": 0.6})
    >>> boards.write("sweep", 640, 4, {"replay_fill": 0.5})
    >>> boards.close()
    >>> sorted(path.parent.relative_to(run_dir).as_posix() for path in run_dir.rglob("events.*"))
    ['.', 'members/03']
    """

    def __init__(self, run_dir: str | Path) -> None:
        self._run_dir = Path(run_dir)
        self._boards: dict[int | None, TensorBoardLog] = {}

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Hand a row to its member's file, which its first row opens."""
        member = int(values["member"]) if "member" in values else None
        if member not in self._boards:
            folder = self._run_dir if member is None else self._run_dir / MEMBERS / f"{member:02d}"
            self._boards[member] = TensorBoardLog(folder)
        own = {name: value for name, value in values.items() if name != "member"}
        self._boards[member].write(kind, step, update, own)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for board in self._boards.values():
            board.flush()

    def close(self) -> None:
        """Flush and close all files; may be called twice."""
        for board in self._boards.values():
            board.close()
