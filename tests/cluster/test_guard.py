"""What a cluster of this machine leaves behind is killed."""

import subprocess

from laser_rl.cluster.guard import ProcessGuard


def test_the_guard_kills_what_still_writes_into_the_clusters_folder(tmp_path):
    with (
        (tmp_path / "of_the_cluster").open("w") as inside,
        (tmp_path / "of_the_cluster").open() as log,
        subprocess.Popen(["sleep", "60"], stdout=inside) as forgotten,
        subprocess.Popen(["sleep", "60"], stdin=log) as reader,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        ProcessGuard(tmp_path).close()  # this process has the file open, too, and lives on: it is the driver
        assert forgotten.wait(10) == -9
        for alive in (reader, other):
            assert alive.poll() is None
            alive.kill()
