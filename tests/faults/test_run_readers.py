"""One run in a directory, and any number of readers."""

import signal
import threading
import time

import pytest

from laser_rl.cli.status import status_of
from laser_rl.view.report import report
from tests.faults.families import Family
from tests.faults.test_run_faults import finish, newest, start, wait_until

SMALL = (
    "--env laser/Catch --network.hidden 8 --environment.slots 3 --replay.capacity-steps 2000 --steps 10M --run.checkpoint-every-steps 200 "
    "--run.evaluate-every-steps 500 --run.evaluate-episodes 2 --plain"
)
WAYS = {
    "local": (f"train {SMALL} --runtime local", report),
    "sweep of 2 processes": (f"sweep {SMALL} --grid learning_rate=1e-3,2e-3 --pbt --processes 2", report),
}


def reading(what, path, over, counted, errors):
    """Again and again, as fast as it goes."""
    try:
        while not over.is_set():
            what(path)
            counted.append(1)
    except Exception as error:
        errors.append(error)


@pytest.mark.slow
@pytest.mark.fault(23)
@pytest.mark.parametrize("way", WAYS)
def test_readers_never_fail_while_it_trains_and_a_second_run_is_refused(way, tmp_path, figure):
    words, write_report = WAYS[way]
    path, over, errors = tmp_path / "run", threading.Event(), []
    family = Family(*words.split(), "--out", path)
    wait_until(lambda: newest(path) >= 200, family.process)
    counts = {status_of: [], write_report: []}
    threads = [
        threading.Thread(target=reading, args=(what, path, over, counted, errors)) for what, counted in counts.items()
    ]
    for thread in threads:
        thread.start()
    commands = 0
    try:
        for command in (["status", path], ["status", path, "--json"], ["report", path]):
            status, out, err = finish(start(*command))
            assert status == 0, err
            assert "running" in out or command[0] == "report"
            commands += 1
        status, out, err = finish(start(*words.split(), "--out", path))
        time.sleep(3.0)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
        ended = family.end(signal.SIGTERM)
    assert (status, out) == (2, "")
    assert f"in use by process {family.process.pid} on" in err
    assert ended[0] == 143, ended[2]  # and the first one has not noticed
    assert errors == []
    reads = sum(map(len, counts.values()))
    assert reads > 20
    figure(
        f"{way}: second run refused with the owner's pid; {len(errors)} errors in {reads} readings of status and report "
        f"and {commands} commands"
    )


@pytest.mark.slow
@pytest.mark.fault(23)
def test_the_lock_of_a_killed_run_is_taken_over(tmp_path, figure):
    path, words = tmp_path / "run", WAYS["sweep of 2 processes"][0].split()
    for _ in range(2):
        family = Family(*words, "--out", path)
        wait_until(lambda: newest(path) >= 0, family.process)
        family.kill()  # at once started again: its processes may still be on their way out
    status = status_of(path)
    assert status["process"] is None
    assert status["state"] == "broken off"
    begin = time.monotonic()
    family = Family(*words, "--out", path)
    wait_until(lambda: status_of(path)["process"] is not None, family.process)
    assert status_of(path)["process"]["pid"] == family.process.pid
    figure(f"stale lock taken over {time.monotonic() - begin:.1f} s after the command, the import of torch included")
    family.kill()
    family.seconds_until_gone()
