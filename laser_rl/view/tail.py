"""`metrics.jsonl` read on from where it was, in pieces: a log of gigabytes is never in memory as a whole, and never read twice."""

import os
import stat
from pathlib import Path

from laser_rl.metrics.page import open_regular
from laser_rl.metrics.rows import rows_in
from laser_rl.metrics.sink import Row
from laser_rl.metrics.stream import LONGEST_LINE_BYTES, PIECE_BYTES


class Tail:
    """The rows of a log, each once; `restarted` says that another file is there now, or a shorter one, and all begins anew.

    >>> import tempfile
    >>> from laser_rl.metrics import MetricsLog
    >>> log = MetricsLog(tempfile.mkdtemp())
    >>> tail = Tail(log.path)
    >>> log.write("train", 1, 1, {})
    >>> [row["step"] for row in tail.read()], tail.read()
    ([1], [])
    >>> log.close()
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: tuple[int, int] | None = None
        self.offset = 0
        self.size = 0
        """Of the file when it was last looked at: `offset / size` is how much of it is known."""

    def restarted(self) -> bool:
        """Look at the file; true, once, if what was read before is not what is there now (`--fresh`)."""
        try:
            found = self._path.lstat()
        except OSError:
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):  # a pipe would be waited for for ever
            self.size = 0
            return self._begin_again(None)
        self.size = found.st_size
        same = self._file in {None, (found.st_dev, found.st_ino)} and found.st_size >= self.offset
        if same:
            self._file = (found.st_dev, found.st_ino)
            return False
        return self._begin_again((found.st_dev, found.st_ino))

    def read(self, most_bytes: int = PIECE_BYTES) -> list[Row]:
        """The rows of the next piece, void ones included; half a line is left for later."""
        try:
            with open_regular(self._path) as file:
                file.seek(self.offset)
                data = file.read(most_bytes)
                while data and b"\n" not in data and len(data) < LONGEST_LINE_BYTES:
                    more = file.read(most_bytes)
                    if not more:
                        break
                    data += more
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) >= LONGEST_LINE_BYTES:
            whole = len(data)  # no row of ours is that long: skip it, or we would read it for ever
        self.offset += whole
        return rows_in(data[:whole])

    def _begin_again(self, file: tuple[int, int] | None) -> bool:
        known = self.offset > 0
        self._file, self.offset = file, 0
        return known


def last_row(path: Path, most_bytes: int = 8192) -> Row | None:
    """The last whole row of a log, without reading the rest of it."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            data = file.read(most_bytes)
    except OSError:
        return None
    rows = rows_in(data[: data.rfind(b"\n") + 1])
    return rows[-1] if rows else None
