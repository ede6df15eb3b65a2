"""A run is killed with its process group: nobody whom it started outlives it, and nothing is left to be reclaimed. SIGKILL."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laser_rl import checkpoint
from tests.faults.families import VARIABLE, Family, living, shared_memory_of
from tests.faults.test_run_faults import newest, wait_until

SMALL = (
    "--env tests.envs.samples:Telltale --environment.placement process --environment.workers 2 --environment.slots 4 --steps 10M "
    "--network.hidden 8 --replay.capacity-steps 2000 --run.checkpoint-every-steps 400 --run.evaluate-episodes 2 --plain"
)
WAYS = {  # and how many processes it has when all are there
    "serial": (f"train {SMALL} --runtime serial", 3),
    "local": (f"train {SMALL} --runtime local", 3),
    "sweep of 2 processes": (f"sweep {SMALL} --grid learning_rate=1e-3,2e-3 --processes 2", 7),
}
GONE_S = 3.0


class Seen:
    """Of all that were killed."""

    def __init__(self):
        self.most, self.longest_s, self.files = 0, 0.0, set()

    def look(self, family):
        pids = family.pids()
        self.most = max(self.most, len(pids))
        self.files |= set().union(*map(shared_memory_of, pids))
        return len(pids)


def kill_again_and_again(words, path, processes, kills, seed):
    """In the same directory each time: half of the kills hit the start, while torch is being imported everywhere."""
    dice, seen = random.Random(seed), Seen()  # noqa: S311
    for kill in range(kills):
        family = Family(*words.split(), "--out", path)
        last, deadline = kill == kills - 1, time.monotonic() + dice.uniform(0.5, 6.0)
        if kill % 2:
            wait_until(lambda: seen.look(family) >= processes and (not last or newest(path) > 0), family.process)  # noqa: B023
            time.sleep(dice.uniform(0.0, 1.0))
        else:
            wait_until(lambda: seen.look(family) and time.monotonic() > deadline, family.process)  # noqa: B023
        begin = time.monotonic()
        family.kill()
        family.seconds_until_gone()
        seen.longest_s = max(seen.longest_s, time.monotonic() - begin)
    return seen


@pytest.mark.slow
@pytest.mark.fault(18)
@pytest.mark.parametrize("way", WAYS)
def test_nobody_outlives_a_killed_run(way, tmp_path, figure):
    path, (words, processes) = tmp_path / "run", WAYS[way]
    seen = kill_again_and_again(words, path, processes, 20, seed=5)
    assert seen.longest_s < GONE_S
    named = {name for name in seen.files if not name.startswith("/memfd:")}
    unnamed = {name for name in seen.files if name.startswith("/memfd:laser")}
    assert named == set()  # so there is nothing by name that a dead owner could leave
    assert unnamed
    assert not list(Path("/dev/shm").glob("*laser*"))  # noqa: S108
    # The lock of the last dead one is taken over, and what it had saved is gone on from.
    at = checkpoint.latest(path)
    assert at is not None
    family = Family("resume", path, "--steps", at.step + 200, "--plain", "--trust-code")
    out, err = family.process.communicate(timeout=120)
    assert family.process.returncode == 0, err
    assert f"resumed at step {at.step:,}" in out
    assert family.seconds_until_gone() < GONE_S
    figure(
        f"{way}: 20 kills of up to {seen.most} processes, the last gone after {seen.longest_s:.2f} s at most; "
        f"{len(named)} pieces of shared memory with a name"
    )


STARTS_AND_WAITS = """
import time
from laser_rl.training.process_handle import ProcessHandle
share = ProcessHandle([0], {}, [])
time.sleep(60)
"""
SLOW_TORCH = "import time, pathlib; pathlib.Path({marker!r}).touch(); time.sleep(60)"


@pytest.mark.fault(18)
def test_a_process_of_a_sweep_dies_with_its_parent_while_torch_is_imported(tmp_path, figure):
    word, marker = f"import-{os.getpid()}", tmp_path / "imports"
    (tmp_path / "torch.py").write_text(SLOW_TORCH.format(marker=str(marker)))
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_WAITS],
        start_new_session=True,
        env={**os.environ, VARIABLE: word, "PYTHONPATH": path},
    )
    with parent:
        wait_until(marker.exists, parent)
        assert len(living(word)) == 2
        begin = time.monotonic()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        while left := living(word):
            if time.monotonic() - begin > GONE_S:
                os.kill(left[0], signal.SIGKILL)
                pytest.fail("it outlived its parent")
            time.sleep(0.005)
    figure(f"killed while its process of a sweep imports torch: that one gone after {time.monotonic() - begin:.2f} s")
