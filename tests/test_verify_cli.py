"""`laser verify` says of every file whether it is what was written."""

import json
import shutil

import pytest

from laser_rl import checkpoint
from laser_rl.cli import main
from laser_rl.training.directory import RunDirectory
from tests.faults.test_checkpoint_faults import flipped, truncated
from tests.training.small import finish, small
from tests.training.test_sweeps import in_directory, small_sweep


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    finish(small(steps=300, checkpoint_every_steps=100), folder / "run")
    in_directory(small_sweep(steps=100), folder / "sweep")
    return folder


@pytest.fixture(params=["run", "sweep"])
def run_dir(request, originals, tmp_path):
    return shutil.copytree(originals / request.param, tmp_path / "copy")


def verified(capsys, *paths):
    status = main(["verify", *map(str, paths), "--json"])
    found = json.loads(capsys.readouterr().out)
    return status, [{one["file"]: one["state"] for one in run["files"]} for run in found]


def test_every_file_of_a_whole_run_is_named_and_whole(run_dir, capsys):
    status, [files] = verified(capsys, run_dir)
    assert status == 0
    assert set(files.values()) == {"whole"}
    settings = "sweep.json" if (run_dir / "sweep.json").exists() else "config.json"
    expected = {settings, "metrics.jsonl", "machine.json"}
    expected |= {f"checkpoints/{path.name}" for path in (run_dir / "checkpoints").iterdir()}
    expected |= {f"replay/{path.name}" for path in (run_dir / "replay").iterdir()}
    assert set(files) == expected
    assert main(["verify", str(run_dir)]) == 0
    assert f"all {len(files)} files are in order" in capsys.readouterr().out


def spoiled(path):
    path.write_bytes(path.read_bytes()[:40] + b"\x00" * 30 + path.read_bytes()[70:])


@pytest.mark.parametrize("damage", [flipped, truncated, spoiled], ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", ["settings", "machine.json", "manifest.json", "state.json", "tensors", "segment"])
def test_what_is_damaged_is_named(run_dir, capsys, name, damage):
    newest = checkpoint.latest(run_dir)
    path = {
        "settings": next(run_dir.glob("[cs]*.json")),
        "machine.json": run_dir / "machine.json",
        "tensors": next(newest.path.glob("*.safetensors")),
        "segment": run_dir / "replay" / newest.segments[0].name,
    }.get(name, newest.path / name)
    if path.parent == run_dir:
        path.write_text(path.read_text()[:-3])  # what is no JSON any more; a flipped letter of a name cannot be known
    else:
        damage(path)
    status, [files] = verified(capsys, run_dir)
    assert status == 3
    blamed = (
        path.relative_to(run_dir).as_posix()
        if path.parent in (run_dir, run_dir / "replay")
        else f"checkpoints/{newest.path.name}"
    )
    assert {file for file, state in files.items() if state == "damaged"} == {blamed}


def test_a_row_that_was_cut_off_is_no_damage_but_foreign_bytes_are(run_dir, capsys):
    log = run_dir / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:60])
    assert verified(capsys, run_dir)[0] == 0
    log.write_bytes(whole[:100] + b"\n" + whole)
    assert verified(capsys, run_dir)[0] == 0
    assert main(["verify", str(run_dir)]) == 0
    assert "1 cut off" in capsys.readouterr().out
    log.write_bytes(whole + bytes(4096))
    status, [files] = verified(capsys, run_dir)
    assert (status, files["metrics.jsonl"]) == (3, "damaged")


def test_what_a_dead_writer_left_is_named_and_no_damage(run_dir, capsys):
    left = {
        ".config.json.1-00000000.tmp",
        "checkpoints/.step-000000000999.1-00000000.tmp",
        "replay/segment-000000090000-000000090001.zst",
    }
    for name in left:
        (run_dir / name).write_bytes(b"half")
    status, [files] = verified(capsys, run_dir)
    assert status == 0
    assert {file for file, state in files.items() if state == "left over"} == left


def test_several_at_once_and_what_is_no_run(run_dir, originals, tmp_path, capsys):
    spoiled(next((run_dir / "replay").iterdir()))
    status, [bad, good] = verified(capsys, run_dir, originals / "run")
    assert status == 3
    assert "damaged" in bad.values()
    assert "damaged" not in good.values()
    assert main(["verify", str(tmp_path)]) == 2
    assert "is no run directory" in capsys.readouterr().err
    assert main(["verify"]) == 2


def test_how_much_of_a_segment_can_be_read_is_said(originals, tmp_path, capsys):
    run_dir = shutil.copytree(originals / "run", tmp_path / "copy")
    entry = checkpoint.latest(run_dir).segments[0]
    truncated(run_dir / "replay" / entry.name)
    assert main(["verify", str(run_dir)]) == 3
    assert f"{entry.count - 1:,} of {entry.count:,} unrolls can be read" in capsys.readouterr().out


def test_reading_changes_nothing(originals, tmp_path):
    run_dir = shutil.copytree(originals / "run", tmp_path / "copy")
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    directory = RunDirectory(originals / "run")  # also while somebody holds it
    try:
        assert main(["verify", str(originals / "run")]) == 0
    finally:
        directory.close()
    assert main(["verify", str(run_dir)]) == 0
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
