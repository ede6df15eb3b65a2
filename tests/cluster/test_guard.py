"""What a cluster of this machine leaves behind is killed."""

import subprocess

import pytest

from laser_rl.cluster.guard import ProcessGuard


@pytest.mark.parametrize("name", ["session_2026-11-20_00-00-00_1_1", "a_folder_that_is_not_Rays"])
def test_the_guard_kills_what_still_writes_into_the_folder_of_a_ray_session(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    with (
        (folder / "of_the_cluster").open("w") as inside,
        (folder / "of_the_cluster").open() as log,
        subprocess.Popen(["sleep", "60"], stdout=inside) as forgotten,
        subprocess.Popen(["sleep", "60"], stdin=log) as reader,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        ProcessGuard(folder).close()  # this process has the file open, too, and lives on: it is the driver
        spared = [reader, other]
        if name.startswith("session_"):
            assert forgotten.wait(10) == -9
        else:
            spared.append(forgotten)
        for alive in spared:
            assert alive.poll() is None
            alive.kill()
