"""Films of a run directory: which are seen, what is believed of them, which are kept."""

import json
import os
import subprocess
import sys

import pytest

from laser_rl.metrics.videos import (
    BY_ENJOY,
    BY_TRAINING,
    best,
    films,
    prune,
    remove_unfinished,
)


def a_film(run_dir, name, when=1.0, **facts):
    folder = run_dir / "videos"
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_bytes(b"film")
    path.with_suffix(".json").write_text(json.dumps(facts))
    os.utime(path, (when, when))
    return path


def trained(run_dir, step, total, **more):
    return a_film(run_dir, f"step-{step:012d}.mp4", step, **{"by": BY_TRAINING, "step": step, "return": total, **more})


def test_only_plain_films_are_seen_and_only_numbers_are_believed(tmp_path):
    good = a_film(
        tmp_path, "step-1.mp4", 2.0, **{"return": 2.5, "step": 640, "member": 1, "length": 9, "task": "x" * 999}
    )
    a_film(tmp_path, ".hidden.mp4")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (tmp_path / "videos" / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (tmp_path / "videos" / "folder.mp4").mkdir()
    forged = {
        "return": "<b>",
        "step": -1,
        "member": True,
        "length": 1e300,
        "by": ["training"],
    }
    a_film(tmp_path, "forged.gif", 1.0, **forged)
    first, second = films(tmp_path)
    assert (first.path, first.total, first.step, first.member, first.length) == (good, 2.5, 640, 1, 9)
    assert len(first.task) == 200
    assert second[4:] == (None,) * 6
    assert second.media == "image/gif"


@pytest.mark.parametrize(
    "text", ['{"return": NaN, "step": 1}', '{"return": Infinity}', "[", "[1]", '{"return": 1e999}', ""]
)
def test_facts_that_are_none_leave_the_film(tmp_path, text):
    path = a_film(tmp_path, "a.mp4")
    path.with_suffix(".json").write_text(text)
    [found] = films(tmp_path)
    assert found.total is None


def test_the_last_ones_and_the_best_of_each_task_stay(tmp_path):
    for step in range(1, 9):
        trained(tmp_path, step, 100.0 if step == 2 else float(step), task="a" if step != 3 else "b")
    mine = a_film(tmp_path, "mine.mp4", by=BY_ENJOY, step=1)
    strange = a_film(tmp_path, "strange.mp4")
    prune(tmp_path, 3)
    kept = {one.step for one in films(tmp_path) if one.by == BY_TRAINING}
    assert kept == {2, 3, 6, 7, 8}
    assert mine.exists()
    assert strange.exists()
    names = {path.stem for path in (tmp_path / "videos").glob("*.mp4")}
    assert {path.stem for path in (tmp_path / "videos").glob("*.json")} == names
    assert best(films(tmp_path)).step == 2
    prune(tmp_path, 0)
    assert {one.path for one in films(tmp_path)} == {mine, strange}


def test_what_a_dead_writer_left_is_removed_and_a_living_ones_stays(tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True, timeout=60
    )
    dead, living = int(child.stdout), os.getpid()
    folder = tmp_path / "videos"
    folder.mkdir()
    names = [
        f".step-1.mp4.{dead}-00112233.tmp",
        f".step-1.mp4.{living}-00112233.tmp",
        f".step-1.json.{dead}-0011ff33.tmp",
        "step-1.mp4",
        ".keep",
    ]
    for name in names:
        (folder / name).touch()
    remove_unfinished(tmp_path)
    assert {path.name for path in folder.iterdir()} == {names[1], names[3], names[4]}
