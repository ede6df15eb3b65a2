"""Directories that are not ours, and what `--fresh` may remove: only what has a name that a run writes."""

import json
import shutil

import pytest

from laser_rl import LASER, cli
from laser_rl.errors import ConfigError
from tests.faults.test_unreadable import tree
from tests.training.small import finish, small

TRAIN = ["--env", "CartPole-v1", "--steps", "60", "--environment.slots", "2", "--run.evaluate-episodes", "1", "--plain"]
THEIRS = {
    "config.json": json.dumps({"model_type": "bert"}),
    "notes.tmp": "mine",
    ".editor.tmp": "mine",
    "events.csv": "mine",
    "checkpoints/model.pt": "mine",
    "checkpoints/step-5/weights": "mine",
    "replay/segment-1.zst": "mine",
    "replay/segment-notes.zst": "mine",
    "members/anna/events.txt": "mine",
    "videos/holiday.mp4": "mine",
}


@pytest.fixture
def theirs(tmp_path):
    folder = tmp_path / "theirs"
    for name, text in THEIRS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.fault(28)
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_strangers_directory_is_refused_and_not_touched(theirs, capsys, command, figure):
    before = tree(theirs)
    grid = ["--grid", "learning_rate=1e-3,2e-3"] if command == "sweep" else []
    (theirs / "config.json").unlink() if command == "sweep" else None
    before = tree(theirs)
    assert cli.main([command, *TRAIN, *grid, "--out", str(theirs)]) == 2
    said = capsys.readouterr().err
    assert "was not made by laser-rl" in said
    assert "--fresh" in said
    assert tree(theirs) == before
    assert not (theirs / "run.lock").exists()
    figure(f"laser {command}: refused, {len(before)} files as before")


@pytest.mark.fault(28)
def test_python_is_refused_too(theirs):
    before = tree(theirs)
    with pytest.raises(ConfigError, match="was not made by laser-rl"):
        LASER("CartPole-v1", run_dir=theirs).learn(10)
    assert tree(theirs) == before


@pytest.mark.fault(28)
def test_fresh_removes_only_what_a_run_writes(theirs, figure):
    before = tree(theirs)
    assert cli.main(["train", *TRAIN, "--out", str(theirs), "--fresh"]) == 0
    after = tree(theirs)
    gone = {name for name in before if after.get(name) != before[name]}
    assert gone == {"config.json"}  # a name that a run writes
    assert (
        cli.main(["train", *TRAIN, "--out", str(theirs), "--fresh"]) == 0
    )  # ours by now, and the rest is still theirs
    assert {name for name in before if tree(theirs).get(name) != before[name]} == {"config.json"}
    figure(f"--fresh: {len(before) - 1} of {len(before)} foreign files as before, config.json overwritten")


@pytest.mark.fault(28)
def test_links_to_other_disks_stay_links(tmp_path):
    run_dir, disk = tmp_path / "run", tmp_path / "disk"
    finish(small(steps=60), run_dir)
    for name in ("checkpoints", "replay"):
        (disk / name).mkdir(parents=True)
        shutil.rmtree(run_dir / name)
        (run_dir / name).symlink_to(disk / name)
    (disk / "checkpoints" / "mine").write_text("mine")
    finish(small(steps=60), run_dir)
    assert len(list((disk / "checkpoints").glob("step-*"))) == 1
    (disk / "elsewhere").mkdir()
    (disk / "elsewhere" / "manifest.json").write_text("mine")
    (disk / "checkpoints" / "step-000000000001").symlink_to(disk / "elsewhere")
    assert cli.main(["train", *TRAIN, "--out", str(run_dir), "--fresh"]) == 0
    assert (run_dir / "checkpoints").readlink() == disk / "checkpoints"
    assert (run_dir / "replay").readlink() == disk / "replay"
    assert (disk / "checkpoints" / "mine").read_text() == "mine"
    assert (disk / "elsewhere" / "manifest.json").read_text() == "mine"
    names = {path.name for path in (disk / "checkpoints").iterdir()}
    assert names == {"mine", next(iter(names - {"mine"}))}  # the old checkpoint is gone, the new one is there


def test_what_a_killed_start_left_is_ours(tmp_path):
    """Killed after the lock was taken, before the settings were written."""
    (tmp_path / "run.lock").write_text("")
    (tmp_path / ".config.json.123-0123abcd.tmp").write_text("{")
    assert cli.main(["train", *TRAIN, "--out", str(tmp_path)]) == 0
    assert not list(tmp_path.glob(".*.tmp"))
