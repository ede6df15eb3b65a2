"""`laser export --run` makes a run directory that is small enough to carry, and goes on elsewhere."""

import hashlib
import shutil

import pytest

from laser_rl import checkpoint
from laser_rl.cli import main

SMALL = [
    "laser/Catch",
    "--plain",
    "--slots",
    "4",
    "--steps",
    "4k",
    "--run.checkpoint-every-steps",
    "1000",
    "--batch-unrolls",
    "8",
]
MEMBERS = [
    "--grid",
    "learning_rate=1e-3,2e-3",
    "--share",
    "separate",
    "--network.memory",
    "gru",
    "--network.memory-size",
    "8",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert main(["train", *SMALL, "--out", str(folder / "run")]) == 0
    assert main(["sweep", *SMALL, *MEMBERS, "--out", str(folder / "sweep")]) == 0
    return folder


def hash_after(run_dir, steps):
    """Go on to so many steps, and hash the parameters of the first member there."""
    assert main(["resume", str(run_dir), "--steps", str(steps), "--plain"]) == 0
    tensors = checkpoint.latest(run_dir).tensors["member-00"]
    digest = hashlib.sha256()
    for name in sorted(name for name in tensors if name.startswith("network/")):
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_with_the_whole_replay_the_copy_goes_on_bit_for_bit(kind, runs, tmp_path, capsys):
    assert main(["export", str(runs / kind), "--run", str(tmp_path / "copy"), "--replay-steps", "1M"]) == 0
    assert f"laser resume {tmp_path / 'copy'}" in capsys.readouterr().out
    original = shutil.copytree(runs / kind, tmp_path / "original")
    assert hash_after(tmp_path / "copy", 5000) == hash_after(original, 5000)


@pytest.mark.parametrize("kind", ["run", "sweep"])
@pytest.mark.parametrize(("asked", "least", "most"), [(0, 0, 0), (1500, 1500, 2600)])
def test_a_part_of_the_replay_is_enough_to_go_on(kind, asked, least, most, runs, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert main(["export", str(runs / kind), "--run", str(copy), "--replay-steps", str(asked)]) == 0
    for ids in checkpoint.latest(copy).state["replays"]:
        assert least <= 20 * (ids["next_id"] - ids["first_id"]) <= most
    assert main(["verify", str(copy)]) == 0
    sizes = [sum(file.stat().st_size for file in folder.rglob("*.*")) for folder in (runs / kind, copy)]
    assert sizes[1] < sizes[0]
    hash_after(copy, 5000)


def test_the_copy_has_no_state_for_a_roll_back_and_makes_its_own_when_it_goes_on(runs, tmp_path):
    main(["export", str(runs / "run"), "--run", str(tmp_path / "copy")])
    names = checkpoint.latest(tmp_path / "copy").tensors["member-00"]
    assert not [name for name in names if name.startswith("good/")]
    hash_after(tmp_path / "copy", 4200)
    found = checkpoint.latest(tmp_path / "copy").tensors["member-00"]
    assert found["good/value"].isfinite().all()
    assert len(found["good/value"]) == sum(found[name].numel() for name in found if name.startswith("network/"))


def test_what_is_there_is_never_overwritten(runs, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    assert main(["export", str(runs / "run"), "--run", str(tmp_path / "mine")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["diary.txt"]
    assert main(["export", str(runs / "run"), "--replay-steps", "5"]) == 2
