"""What a cluster of this machine leaves behind is killed."""

import subprocess

from laser_rl.cluster.guard import ProcessGuard


def test_the_guard_kills_what_still_has_a_file_of_the_cluster_open(tmp_path):
    with (
        (tmp_path / "of_the_cluster").open("w") as inside,
        subprocess.Popen(["sleep", "60"], stdout=inside) as forgotten,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        ProcessGuard(tmp_path).close()  # this process has the file open, too, and lives on: it is the driver
        assert forgotten.wait(10) == -9
        assert other.poll() is None
        other.kill()
