"""Whole families of processes: who was started by whom, found by a word in their environment that nobody else has."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

from tests.faults.figures import VARIABLE as FIGURES_TO
from tests.faults.test_run_faults import LASER

VARIABLE = "LASER_TEST_FAMILY"


def within(seconds):
    """So many on a machine that has nothing else to do, and in `make faults`; in proportion more where several others want each core."""
    if FIGURES_TO in os.environ:
        return seconds
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


class Family:
    """A command and everything that it starts, directly or not."""

    def __init__(self, *arguments, environment=None, launcher=LASER, out=subprocess.PIPE):
        self.word = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*launcher, *(str(word) for word in arguments)],
            stdout=out,
            stderr=out,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {}), VARIABLE: self.word},
        )

    def pids(self):
        """Of all that live; the command's own is the first."""
        return living(self.word)

    def share_processes(self):
        """Of a sweep: those that have members."""
        return [pid for pid in self.pids() if "member_process" in command_line(pid)]

    def workers(self):
        """Those that have environments."""
        return [pid for pid in self.pids() if "laser_rl.envs.worker import main" in command_line(pid)]

    def kill(self):
        """The process group, as the kernel would for want of memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=30)

    def seconds_until_gone(self, limit_s=10.0):
        """How long the last of them lives from now on."""
        begin = time.monotonic()
        while self.pids():
            assert time.monotonic() - begin < limit_s, [command_line(pid) for pid in self.pids()]
            time.sleep(0.01)
        return time.monotonic() - begin

    def end(self, number, timeout_s=60):
        """Ask it to end; its status, what it said, and how long it took."""
        begin = time.monotonic()
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err, time.monotonic() - begin


def living(word):
    """Processes whose environment has the word, without those that are dead and not yet reaped."""
    found, mark = [], f"{VARIABLE}={word}".encode()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it ends while we look
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return sorted(found)


def command_line(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def shared_memory_of(pid):
    """Files that a process has mapped: without a name (memfd), and by name in /dev/shm."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        names = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") > 5 and "/" in line}
        return {name for name in names if name.startswith(("/memfd:", "/dev/shm/"))}  # noqa: S108
    return set()


def age_s(pid):
    """How long a process has lived; 0 if it does no longer."""
    with contextlib.suppress(OSError):
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    return 0.0
