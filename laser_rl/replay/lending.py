"""A shared store for processes that its owner did not start: its file is opened by way of the owner's process.

A descriptor can be handed to children only. Others of the same machine and user open the same file under /proc. A number of a process or
of a descriptor may mean something else there, in a container or once the owner is gone: the inode says whether it is the right file.
"""

import os
from typing import NamedTuple

from laser_rl.errors import ConfigError
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from laser_rl.types import UnrollLayout


class LentBlock(NamedTuple):
    """Where the memory of a store is, for `borrow`."""

    process: int
    device: int
    inode: int  # of the file, as long as somebody has it open
    handle: Handle


def lend(store: Replay) -> LentBlock:
    """For `borrow` in any process of this machine and user, as long as this one lives; the store must be shared."""
    handle = store.handle()
    found = os.fstat(handle.file)
    return LentBlock(os.getpid(), found.st_dev, found.st_ino, handle)


def borrow(layout: UnrollLayout, lent: LentBlock) -> Replay:
    """The same store, nothing copied; it stays readable if its owner dies. ConfigError if it cannot be reached from here.

    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> store = Replay(layout, capacity_steps=10, shared=True)
    >>> other = borrow(layout, lend(store))
    >>> ids = store.insert(empty_unrolls(layout, 3))
    >>> len(other)
    3
    """
    path = f"/proc/{lent.process}/fd/{lent.handle.file}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"expected the memory of a replay at {path}, got: {error}; attach only from processes of the same machine and user"
        ) from error
    try:
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != (lent.device, lent.inode):
            raise ConfigError(
                f"expected the memory of a replay at {path}, found another file; its process is gone, or is in another container"
            )
        return Replay.attach(layout, lent.handle._replace(file=file))
    finally:
        os.close(file)
