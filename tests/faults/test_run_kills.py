"""Whole runs are killed at random moments, again and again, and reach their end. SIGKILL, to the process group."""

import random
import time

import pytest

from laser_rl.metrics.log import FILE, read, read_from
from tests.faults.families import Family
from tests.faults.progress import Point, saved, written
from tests.faults.test_run_faults import finish, start, wait_until
from tests.training.small import fingerprint

INTERVAL = 500
SMALL = (
    "--env laser/Catch --network.hidden 16 --environment.slots 3 --loss.unroll-steps 5 --replay.capacity-steps 3000 "
    f"--run.checkpoint-every-steps {INTERVAL} --run.evaluate-episodes 2 --plain"
)
SWEEP = f"sweep {SMALL} --grid learning_rate=5e-4,1e-3,2e-3 --pbt"
WAYS = {  # the command, its steps, and by how many steps rows may be ahead of a checkpoint of their moment
    "serial": (f"train {SMALL} --runtime serial", 12_000, 3),
    "local": (f"train {SMALL} --runtime local", 12_000, 100),
    "sweep": (SWEEP, 12_000, 9),
    "sweep of 2 processes": (f"{SWEEP} --processes 2", 12_000, INTERVAL),  # nobody stops for a checkpoint
}


def played(log, offset):
    """The newest step of an episode that has ended since the file was so long; 0 if none has."""
    return max((row["step"] for row in read_from(log, offset)[0] if row["kind"] == "episode"), default=0)


def kill_at_random(words, path, kills, seed):
    """Half of the kills hit the start, half the training. Returns where it is then, and the most that one of them cost."""
    dice, before, lost, log = random.Random(seed), Point(), [], path / FILE  # noqa: S311
    for kill in range(kills):
        offset = log.stat().st_size if log.exists() else 0
        family = Family(*words, "--out", path)
        # By steps, not by the clock: a fast machine would be at the end before the last kill.
        some, deadline = before.step + dice.uniform(1, 1.3 * INTERVAL), time.monotonic() + dice.uniform(0.2, 4.0)
        begun = [lambda: played(log, offset) >= some, lambda: time.monotonic() > deadline or played(log, offset) > 0]  # noqa: B023
        wait_until(begun[(kill + 1) % 2], family.process)
        family.kill()
        family.seconds_until_gone()
        reached, kept = written(path), saved(path)
        assert kept.step >= before.step  # never back behind a complete checkpoint
        before = kept
        lost.append(Point(max(0, reached.step - kept.step), max(0, reached.updates - kept.updates)))
    return before, max(one.step for one in lost), max(one.updates for one in lost)


def assert_in_order(path):
    """What a killed run had written and another wrote again counts once."""
    rows = read(path, ("train",))
    for member in {row.get("member") for row in rows}:
        updates = [row["update"] for row in rows if row.get("member") == member]
        assert updates == sorted(set(updates))


@pytest.mark.slow
@pytest.mark.fault(6)
@pytest.mark.parametrize("way", WAYS)
def test_killed_at_twenty_random_moments_it_loses_no_more_than_an_interval(way, tmp_path, figure):
    command, steps, ahead = WAYS[way]
    words, path = [*command.split(), "--steps", str(steps)], tmp_path / "run"
    last, lost_steps, lost_updates = kill_at_random(words, path, 20, seed=11)
    assert 0 < lost_steps <= INTERVAL + 2 * ahead
    status, out, err = finish(start(*words, "--out", path))
    assert status == 0, err
    assert last.step == 0 or f"resumed at step {last.step:,}" in out
    assert saved(path).step >= steps
    assert_in_order(path)
    same = ""
    if way in {"serial", "sweep"}:
        status, _, err = finish(start(*words, "--out", tmp_path / "whole"))
        assert status == 0, err
        assert fingerprint(path) == fingerprint(tmp_path / "whole")
        same = ", the same bits as uninterrupted"
    figure(
        f"{way}: 20 kills, {lost_steps} steps ({lost_updates} updates) lost at most with a checkpoint every {INTERVAL}, "
        f"{saved(path).step:,} of {steps:,} steps done{same}"
    )


@pytest.mark.slow
@pytest.mark.fault(6)
@pytest.mark.parametrize("way", ["serial", "sweep of 2 processes"])
def test_rows_of_a_start_that_was_killed_before_its_first_checkpoint_are_void(way, tmp_path):
    path, log = tmp_path / "run", tmp_path / "run" / FILE
    words = [*WAYS[way][0].replace(f"-steps {INTERVAL}", "-steps 10M").split(), "--steps", "10M"]
    for _ in range(2):
        offset = log.stat().st_size if log.exists() else 0
        family = Family(*words, "--out", path)
        wait_until(lambda: played(log, offset) > 150, family.process)  # noqa: B023
        family.kill()
        family.seconds_until_gone()
    assert saved(path) == Point()
    rows = read(path, ("episode",))
    for member in {row.get("member") for row in rows}:
        steps = [row["step"] for row in rows if row.get("member") == member]
        assert steps == sorted(steps)
