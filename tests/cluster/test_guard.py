"""What a cluster of this machine leaves behind is killed."""

import subprocess

from laser_rl.cluster.guard import ProcessGuard


def test_the_guard_kills_what_still_lives_when_it_is_closed():
    with subprocess.Popen(["sleep", "60"]) as forgotten:
        ProcessGuard([forgotten.pid]).close()
    assert forgotten.returncode == -9
