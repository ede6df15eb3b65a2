import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.records import shared_arrays
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.envs.worker import NICENESS
from laser_rl.errors import EnvironmentRefused
from tests.envs.samples import Scripted, Telltale, Witness, drive, processes
from tests.envs.test_serial import Drifting


@pytest.mark.parametrize(
    ("make", "actions"),
    [
        (Telltale, 3),
        (functools.partial(gymnasium.make, "CartPole-v1"), 2),
        (functools.partial(Telltale, raise_with=0.05), 3),
    ],
)
def test_a_pool_in_lockstep_gives_the_rows_of_the_serial_one(make, actions):
    serial, pool = (
        SerialEnvironments(make, slots=5, seed=7),
        PoolEnvironments(make, slots=5, seed=7, workers=2, lockstep=True),
    )
    rng, everywhere = np.random.default_rng(1), np.arange(5)
    left, right = serial.reset(), pool.reset()
    for _ in range(150):
        for name, one, other in zip(left._fields, left, right, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
            assert one.dtype == other.dtype
        action = rng.integers(actions, size=5)
        left, right = serial.step(everywhere, action), pool.step(everywhere, action)
    for name, value in serial.state_dict().items():
        np.testing.assert_array_equal(value, pool.state_dict()[name])
    assert serial.counters() == pool.counters()
    pool.close()


def test_a_state_may_move_between_serial_and_pools():
    pool, rng = PoolEnvironments(Telltale, slots=4, seed=3, workers=2, lockstep=True), np.random.default_rng(1)
    witness = Witness(4)
    drive(pool, witness, 37, rng)
    state = pool.state_dict()
    pool.close()
    serial, other = (
        SerialEnvironments(Telltale, slots=4, seed=3),
        PoolEnvironments(Telltale, slots=4, seed=3, workers=3, lockstep=True),
    )
    left, right = serial.load_state_dict(state), other.load_state_dict(state)
    for _ in range(30):
        for one, another in zip(left, right, strict=True):
            np.testing.assert_array_equal(one, another)
        action = rng.integers(3, size=4)
        left, right = serial.step(np.arange(4), action), other.step(np.arange(4), action)
        witness.hear(left, action)
    assert other.counters()["lost_episodes"] == 0
    other.close()


class Torn(Telltale):
    """Stops its worker, once, in the middle of a message to the pool."""

    def __init__(self, marker):
        super().__init__()
        self.marker = Path(marker)

    def step(self, action):
        with contextlib.suppress(FileNotFoundError):
            self.marker.unlink()  # one of both copies gets it
            os.write(int(sys.argv[1]), b"\0\0\1\0torn")
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().step(action)


def test_a_worker_that_is_stopped_within_a_message_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("laser_rl.envs.worker.MESSAGE_LIMIT_S", 1)
    marker = tmp_path / "torn"
    pool = PoolEnvironments(functools.partial(Torn, str(marker)), slots=2, seed=3, workers=2, lockstep=True)
    pool.reset()
    marker.touch()
    rows = pool.step(np.arange(2), np.zeros(2, np.int64))
    assert sorted(rows.restarted.tolist()) == [False, True]
    pool.close()


def test_a_slow_worker_is_left_behind_and_its_row_comes_later(tmp_path):
    marker = tmp_path / "hang"
    make = functools.partial(Telltale, hang_in_step=str(marker), hang_s=1.0)
    pool, witness = PoolEnvironments(make, slots=2, seed=3, workers=2, patience_s=0.05), Witness(2)
    rng = np.random.default_rng(0)
    rows = drive(pool, witness, 3, rng)
    marker.touch()
    while rows.slots.size == 2:
        rows = drive(pool, witness, 1, rng, rows=rows)
    alone, late, began = 0, 1 - rows.slots[0], time.monotonic()
    while late not in rows.slots:
        rows, alone = drive(pool, witness, 1, rng, rows=rows), alone + 1
        assert time.monotonic() < began + 10
    assert alone > 40  # in one second: it is waited for once, not at every step
    assert pool.counters()["restarts"] == 0
    pool.close()


def test_workers_give_way_to_acting_and_learning():
    pool = PoolEnvironments(Telltale, slots=1, seed=3, workers=1)
    [worker] = pool.workers
    own, theirs = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, worker.process.pid))
    assert theirs == min(19, own + NICENESS)
    pool.close()


def test_slots_may_act_in_two_groups():
    pool, witness, rng = (
        PoolEnvironments(Telltale, slots=4, seed=3, workers=2, lockstep=True),
        Witness(4),
        np.random.default_rng(0),
    )
    actions = np.zeros(4, np.int64)
    witness.hear(pool.reset(), actions)
    for turn in range(60):
        slots = np.array([0, 2]) if turn % 2 else np.array([1, 3])
        actions[slots] = rng.integers(3, size=2)
        rows = pool.step(slots, actions[slots])
        assert rows.slots.tolist() == slots.tolist()
        witness.hear(rows, actions)
    pool.close()


def test_what_cannot_be_sent_to_a_worker_is_refused():
    with pytest.raises(EnvironmentRefused, match=r"placement='thread'"):
        PoolEnvironments(lambda: Telltale(), slots=1, seed=1, workers=1)  # noqa: PLW0108


def _modules_in_worker(env):
    return np.array(["torch" in sys.modules, "ale_py" in sys.modules], np.float32), {}


def test_a_worker_imports_neither_torch_nor_an_emulator():
    assert "torch" in sys.modules  # here, because of the other tests
    pool = PoolEnvironments(functools.partial(Scripted, reset=_modules_in_worker), slots=1, seed=1, workers=1)
    assert pool.reset().observation.tolist() == [[0.0, 0.0]]
    pool.close()


def _is_running(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_close_leaves_no_process_and_no_handle_and_may_be_called_twice():
    gc.collect()
    handles = set(Path("/proc/self/fd").iterdir())
    pool = PoolEnvironments(Telltale, slots=2, seed=1, workers=2)
    pool.reset()
    pids = processes(pool)
    assert all(map(_is_running, pids))
    pool.close()
    pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    del pool
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) == handles


def test_a_forgotten_pool_is_closed():
    pool = PoolEnvironments(Telltale, slots=1, seed=1, workers=1)
    pids = processes(pool)
    del pool
    gc.collect()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


PROGRAM = """
import sys, time
from laser_rl.envs.pool import PoolEnvironments
from tests.envs.samples import Telltale, processes
import functools
make = functools.partial(Telltale, hang_in_step=sys.argv[1])
pool = PoolEnvironments(make, slots=2, seed=1, workers=2)
pool.reset()
print(*processes(pool), flush=True)
if sys.argv[2] == "busy":
    import numpy as np
    pool.step(np.arange(2), np.zeros(2, np.int64))
    pool.step(np.arange(2), np.zeros(2, np.int64))
time.sleep(60 if sys.argv[2] != "exit" else 0)
"""


@pytest.mark.fault(18)
@pytest.mark.parametrize("manner", ["idle", "busy", "exit"])
def test_workers_die_with_the_program(manner, tmp_path):
    marker = tmp_path / "hang"
    if manner == "busy":
        marker.touch()
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(marker), manner]
    errors = tmp_path / "errors"  # a file: a pipe would stay open as long as a worker lives
    with (
        errors.open("w") as sink,
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=sink, text=True) as program,
    ):
        processes = [int(pid) for pid in program.stdout.readline().split()]
        assert len(processes) == 2
        if manner != "exit":
            time.sleep(0.3)
            program.send_signal(signal.SIGKILL)
        program.wait(20)
    deadline = time.monotonic() + 3
    while any(map(_is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [pid for pid in processes if _is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert errors.read_text() == ""  # nothing from a resource tracker either
    assert not list(Path("/dev/shm").glob("*laser-*"))  # noqa: S108


MAIN = """
from laser_rl.envs.pool import PoolEnvironments
import gymnasium, sys

def make():
    assert __name__ == "__mp_main__", __name__
    return gymnasium.make("CartPole-v1")

if __name__ == "__main__":
    pool = PoolEnvironments(make, slots=1, seed=1, workers=1)
    print(pool.reset().observation.shape)
    pool.close()
"""


def test_a_constructor_in_the_main_program_reaches_the_worker(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(MAIN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("(1, 4)\n", "")


def test_copies_with_different_spaces_are_refused(tmp_path):
    with pytest.raises(EnvironmentRefused, match="same spaces"):
        PoolEnvironments(functools.partial(_differing, str(tmp_path / "first")), slots=2, seed=1, workers=2).reset()


def _differing(marker):
    try:
        Path(marker).touch(exist_ok=False)
        return Scripted(gymnasium.spaces.Box(-1, 1, (2,), np.float32))
    except FileExistsError:
        return Scripted(gymnasium.spaces.Box(-1, 1, (3,), np.float32))


def test_a_pool_forgets_the_actions_of_episodes_that_it_cannot_rebuild(monkeypatch):
    monkeypatch.setattr(Drifting, "born", 10)  # in a worker it begins with 0
    one = SerialEnvironments(Drifting, slots=2, seed=1)
    one.reset()
    one.step(np.array([1]), np.array([0]))
    pool = PoolEnvironments(Drifting, slots=2, seed=1, workers=1)
    assert pool.load_state_dict(one.state_dict()).restarted.all()
    assert pool.counters()["lost_episodes"] == 2
    assert pool.state_dict()["length"].tolist() == [0, 0]
    pool.close()


def test_memory_that_another_process_has_mapped_never_shrinks():
    """A worker whose environment has smaller observations maps the same file; the pool would die where it reads beyond its end."""
    file, _, arrays = shared_arrays("test", {"rows": ((2000,), "int64")})
    *_, fewer = shared_arrays("test", {"rows": ((2,), "int64")}, file)
    assert os.fstat(file).st_size >= arrays["rows"].nbytes
    arrays["rows"][:] = 7
    assert fewer["rows"].tolist() == [7, 7]
    os.close(file)
