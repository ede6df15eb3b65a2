"""Checkpoints where the disk may be full: nothing half written stays, the run goes on, and it is tried again."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from laser_rl import checkpoint
from laser_rl.disk import Full
from laser_rl.errors import UserError, is_full
from laser_rl.training.files import command_for

log = logging.getLogger("laser_rl.training")
FIRST_S, MOST_S = 2.0, 300.0  # between two tries; twice as long each time
_BYTES_A_MB = 1e6


class NoSpace(UserError):
    """A checkpoint could not be written for lack of space.

    >>> error = Full(OSError(28, "No space left on device"), needed=1_500_000)
    >>> print(NoSpace(Path("runs/a"), 640, error, free=400_000, newest=320).said)
    no space for the checkpoint of step 640 in runs/a: No space left on device, 1.5 MB needed, 0.4 MB free; that of step 320 is whole
    """

    exit_status = 5

    def __init__(self, run_dir: Path, step: int, error: OSError, *, free: int, newest: int | None) -> None:
        need = f", {error.needed / _BYTES_A_MB:,.1f} MB needed" if isinstance(error, Full) else ""
        before = "there is none before it" if newest is None else f"that of step {newest:,} is whole"
        self.said = (
            f"no space for the checkpoint of step {step:,} in {run_dir}: {error.strerror}{need}, "
            f"{free / _BYTES_A_MB:,.1f} MB free; {before}"
        )
        again = "start again" if newest is None else f"go on from there with: {command_for('resume', run_dir)}"
        super().__init__(f"{self.said}. Free some space, then {again}")


class Revertible(Protocol):
    """Files that know what they were before the attempt to write a checkpoint."""

    def revert(self) -> None:
        """Back to that."""


@contextlib.contextmanager
def all_or_nothing(run_dir: Path, step: int, files: Callable[[], Iterable[Revertible]]) -> Iterator[None]:
    """Around all that writes one checkpoint: what an attempt that failed has written is removed; `NoSpace` if that was the reason."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            checkpoint.remove_unnamed(run_dir)
        for one in files():
            one.revert()
        if isinstance(error, OSError) and is_full(error):
            raise _no_space(run_dir, step, error) from error
        raise


def _no_space(run_dir: Path, step: int, error: OSError) -> NoSpace:
    disk = os.statvfs(run_dir)
    return NoSpace(run_dir, step, error, free=disk.f_bavail * disk.f_frsize, newest=checkpoint.newest_step(run_dir))


class SaveRetry:
    """Writes checkpoints; one for which there is no space is said once and tried again, more and more seldom.

    >>> now, full = [0.0], [True]
    >>> def write():
    ...     if full[0]:
    ...         raise NoSpace(Path("runs/a"), 640, OSError(28, "No space left on device"), free=0, newest=None)
    ...     return Path("runs/a/checkpoints/step-000000000640")
    >>> tries = SaveRetry(clock=lambda: now[0])
    >>> tries.save(write, last=False), tries.failing, tries.due()
    (None, True, False)
    >>> now[0], full[0] = FIRST_S, False
    >>> tries.due(), tries.save(write, last=False).name, tries.failing
    (True, 'step-000000000640', False)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed, self._since, self._next, self._pause_s = 0, 0.0, 0.0, FIRST_S

    @property
    def failing(self) -> bool:
        """Whether the last try failed."""
        return self._failed > 0

    def due(self) -> bool:
        """Whether it is time to try again."""
        return self.failing and self._clock() >= self._next

    def save(self, write: Callable[[], Path], *, last: bool) -> Path | None:
        """The path of the checkpoint, None if there was no space. At the `last` chance that is an error."""
        try:
            path = write()
        except NoSpace as error:
            if last:
                raise
            self._fail(error)
            return None
        if self.failing:
            seconds = self._clock() - self._since
            log.warning("%s is written: there is space again, after %d tries in %.0f s", path, self._failed, seconds)
            self._failed, self._pause_s = 0, FIRST_S
        return path

    def _fail(self, error: NoSpace) -> None:
        now = self._clock()
        if not self.failing:
            self._since = now
            log.warning(
                "%s. The run goes on and tries again, first in %.0f s, then every %.0f s at the latest; free some space",
                error.said, self._pause_s, MOST_S,
            )  # fmt: skip
        self._failed += 1
        self._next, self._pause_s = now + self._pause_s, min(2 * self._pause_s, MOST_S)
