"""A disk that is full when a test says so: by a limit of the kernel on the size of files, or a small file system of its own."""

import contextlib
import resource
import subprocess

from laser_rl import checkpoint
from laser_rl.checkpoint import manifest


class Disk:
    """No file grows beyond some bytes while it is full: the kernel writes what fits, then refuses with EFBIG."""

    def __init__(self):
        self.usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.full = False

    def fill(self, most_bytes=700):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, self.usual[1]))
        self.full = True

    def free(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.usual)
        self.full = False

    @contextlib.contextmanager
    def filled(self, most_bytes=700):
        self.fill(most_bytes)
        try:
            yield
        finally:
            self.free()


def mounted(path, size="1m"):
    """Mount a small file system in memory; False where that is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except FileNotFoundError:
        return False


def unmount(path):
    subprocess.run(["umount", "-l", path], timeout=10, check=False)


def assert_in_order(run_dir):
    """Every checkpoint is whole, and nothing else lies there: no half one, no segment that none of them names."""
    named = set()
    for folder in (run_dir / checkpoint.CHECKPOINTS).iterdir():
        assert not folder.name.startswith("."), folder
        checkpoint.load_snapshot(folder)
        named |= {entry.name for entry in manifest.read(folder).segments}
    assert {path.name for path in (run_dir / checkpoint.REPLAY).iterdir()} == named
    assert not list(run_dir.glob(".*.tmp"))
