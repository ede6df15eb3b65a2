"""What cannot be read is not damaged: nothing is removed for it, the run stops and names the file."""

import errno
import os
import shutil

import pytest

from laser_rl import checkpoint, cli
from laser_rl.checkpoint import Snapshot, segments
from laser_rl.metrics import machine
from laser_rl.training.directory import RunDirectory
from tests.checkpoint.inputs import LAYOUT, forked, outcome, snapshot, unrolls, write_segment
from tests.training.small import finish, small
from tests.training.test_sweeps import in_directory, small_sweep

ERRORS = [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE]
NOBODY = 65534
UNREADABLE = 6


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unreadable")
    finish(small(steps=200, checkpoint_every_steps=100), folder / "run")
    in_directory(small_sweep(steps=60), folder / "sweep")
    return folder


@pytest.fixture(params=["run", "sweep"])
def run_dir(request, originals, tmp_path):
    return shutil.copytree(originals / request.param, tmp_path / "copy")


def tree(folder):
    """Every file with its bytes; not the lock, which says who came last."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in {"run.lock", "run.turn"}]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def failing(monkeypatch):
    """Make the system's `open` fail for one file, until it is told to stop."""
    broken = {}
    real = os.open

    def opened(path, flags, *more, **options):
        if str(path) in broken and not flags & os.O_CREAT:
            raise OSError(broken[str(path)], os.strerror(broken[str(path)]), str(path))
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", opened)
    return broken


def files_of(run_dir):
    newest = checkpoint.latest(run_dir)
    settings = next(name for name in ("config.json", "sweep.json") if (run_dir / name).exists())
    return {
        "manifest": newest.path / "manifest.json",
        "state": newest.path / "state.json",
        "tensors": next(newest.path.glob("*.safetensors")),
        "segment": run_dir / "replay" / newest.segments[-1].name,
        "settings": run_dir / settings,
        "machine": run_dir / "machine.json",
        "metrics": run_dir / "metrics.jsonl",
    }


@pytest.mark.fault(27)
def test_each_file_of_a_run_at_resume(run_dir, failing, capsys, figure):
    before, cases = tree(run_dir), 0
    for name, path in files_of(run_dir).items():
        for number in ERRORS if name == "manifest" else [errno.EIO]:
            failing[str(path)] = number
            status = cli.main(["resume", str(run_dir)])
            said = capsys.readouterr().err
            failing.clear()
            assert status == UNREADABLE, name
            after = tree(run_dir)
            if name == "segment":  # read last: by then this session has been added to the record of sessions
                assert len(machine.sessions(run_dir)) == 2
                (run_dir / machine.FILE).write_bytes(before[machine.FILE])
                after[machine.FILE] = before[machine.FILE]
            assert {file: after.get(file) for file in before} == before, name
            assert str(path) in said
            assert errno.errorcode[number] in said
            assert "Traceback" not in said
            cases += 1
    figure(f"{cases} files and errors at resume: {cases} refused by name, every byte as before")


@pytest.mark.fault(27)
def test_a_manifest_that_others_may_not_read(originals, tmp_path, tmp_path_factory):
    """As another user, for whom `chmod 000` counts: at the start, and for those who only read."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    run_dir = shutil.copytree(originals / "run", tmp_path / "run")
    base = tmp_path_factory.getbasetemp()
    within = [one for one in tmp_path.parents if "pytest" in str(one)]
    for path in (base.parent, base, *within, tmp_path):
        path.chmod(0o755)  # pytest keeps its folders to itself
    manifest = checkpoint.latest(run_dir).path / "manifest.json"
    before = tree(run_dir)
    for path in [run_dir, *run_dir.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    manifest.chmod(0)
    said = tmp_path / "said"
    said.touch()
    said.chmod(0o666)

    def start():
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        statuses = []
        for action in (lambda: RunDirectory(run_dir), lambda: checkpoint.latest(run_dir)):
            try:
                action()
            except checkpoint.guarded.Unreadable as error:
                statuses.append(str(error))
        said.write_text("\n".join(statuses))

    assert outcome(forked(start)) == 0
    lines = said.read_text().splitlines()
    assert len(lines) == 2
    assert all(str(manifest) in line and "EACCES" in line for line in lines)
    manifest.chmod(0o644)
    assert tree(run_dir) == before


@pytest.mark.fault(27)
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_pruning_waits_until_all_manifests_can_be_read(tmp_path, failing, caplog, number):
    """Three checkpoints with a segment each; the middle one's manifest cannot be read while the third is written."""
    for step in (1, 2):
        checkpoint.write(tmp_path, snapshot(step, tmp_path, segments=1))
    names = {path.name for path in (tmp_path / "replay").iterdir()}
    failing[str(tmp_path / "checkpoints" / "step-000000000002" / "manifest.json")] = number
    checkpoint.write(tmp_path, snapshot(3, tmp_path, segments=1))
    assert names < {path.name for path in (tmp_path / "replay").iterdir()}
    assert errno.errorcode[number] in caplog.text
    failing.clear()
    checkpoint.write(tmp_path, snapshot(4, tmp_path, segments=1))  # now it is known what is needed
    assert len(list((tmp_path / "replay").iterdir())) == 2


@pytest.mark.fault(27)
def test_segments_stay_while_a_manifest_is_damaged(tmp_path):
    """What a damaged manifest named cannot be known: its segments go when its checkpoint is retired, not at the next start."""
    for step in (1, 2):
        checkpoint.write(tmp_path, snapshot(step, tmp_path, segments=1))
    names = {path.name for path in (tmp_path / "replay").iterdir()}
    manifest = tmp_path / "checkpoints" / "step-000000000002" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    checkpoint.remove_leftovers(tmp_path)
    assert {path.name for path in (tmp_path / "replay").iterdir()} == names
    checkpoint.write(tmp_path, snapshot(3, tmp_path, segments=1))
    assert names < {path.name for path in (tmp_path / "replay").iterdir()}
    checkpoint.write(tmp_path, snapshot(4, tmp_path, segments=1))  # retires the damaged one
    assert len(list((tmp_path / "replay").iterdir())) == 2


@pytest.mark.fault(27)
def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path, monkeypatch):
    checkpoint.write(tmp_path, snapshot(1, tmp_path, segments=2))
    before, folder = tree(tmp_path), tmp_path / "checkpoints"
    real = os.listdir

    def listed(path="."):
        if str(path) == str(folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listed)
    for action in (checkpoint.remove_leftovers, checkpoint.latest, checkpoint.newest_step):
        with pytest.raises(checkpoint.guarded.Unreadable, match=f"{folder} cannot be read .EIO"):
            action(tmp_path)
    monkeypatch.undo()
    assert tree(tmp_path) == before


@pytest.mark.fault(27)
def test_a_link_to_a_disk_that_is_not_there(tmp_path):
    checkpoint.write(tmp_path, snapshot(1, tmp_path, segments=2))
    before = tree(tmp_path / "replay")
    shutil.move(tmp_path / "checkpoints", tmp_path / "other disk")
    (tmp_path / "checkpoints").symlink_to(tmp_path / "not mounted")
    with pytest.raises(checkpoint.guarded.Unreadable, match="checkpoints cannot be read"):
        checkpoint.remove_leftovers(tmp_path)
    assert tree(tmp_path / "replay") == before
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "other disk")
    checkpoint.remove_leftovers(tmp_path)
    assert checkpoint.latest(tmp_path).step == 1


@pytest.mark.fault(27)
def test_a_bad_sector_of_a_segment_is_not_salvaged_around(tmp_path, monkeypatch):
    """It may be readable tomorrow: a replay without its unrolls would be the new truth by then."""
    entry = write_segment(tmp_path / "replay", LAYOUT, 0, unrolls(4))
    checkpoint.write(tmp_path, Snapshot(1, {}, {}, [entry]))

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(segments.hashlib, "file_digest", broken)
    with pytest.raises(checkpoint.guarded.Unreadable, match="EIO"):
        checkpoint.latest(tmp_path, replay="salvage")


def test_verify_tells_unreadable_from_damaged(originals, tmp_path, failing, capsys):
    run_dir = shutil.copytree(originals / "run", tmp_path / "run")
    failing[str(checkpoint.latest(run_dir).path / "state.json")] = errno.EIO
    assert cli.main(["verify", str(run_dir)]) == UNREADABLE
    assert "unreadable  checkpoints/step-" in capsys.readouterr().out
