"""Every file of the newest checkpoint of a run and of a sweep, damaged in every way: the one before is used, and the file is named."""

import os
import shutil

import pytest

from laser_rl import checkpoint, cli
from laser_rl.checkpoint import manifest
from laser_rl.config import override
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import load_trained
from laser_rl.training.files import CONFIG, read_sweep
from laser_rl.training.launch import train
from tests.faults.test_checkpoint_faults import emptied, exchanged, flipped, make_newer, truncated
from tests.golden import folders

DAMAGE = [truncated, flipped, os.unlink, emptied, exchanged]
KINDS = {"single agent": "mlp", "agent with a memory": "lstm", "sweep with PBT": "sweep"}


@pytest.fixture(scope="module", params=KINDS)
def two_checkpoints(request, tmp_path_factory):
    """A golden run that went on for a few steps: two checkpoints, an old replay segment and a new one."""
    run_dir = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(folders()[-1] / KINDS[request.param], run_dir)
    longer = {"run.steps": 200, "run.keep_checkpoints": 2, "run.evaluate_episodes": 1}
    config = read_sweep(run_dir)
    config = config.model_copy(update={"base": override(config.base, longer)})
    directory = RunDirectory(run_dir, config)
    train(config, directory, sinks=[directory.log])
    directory.close()
    return request.param, run_dir


def steps_of(run_dir):
    return sorted(int(path.name.removeprefix("step-")) for path in (run_dir / checkpoint.CHECKPOINTS).iterdir())


def load(run_dir):
    """As `laser evaluate` does: of a sweep, the first member."""
    return load_trained(run_dir, None if (run_dir / CONFIG).exists() else 0)


@pytest.mark.fault(8)
def test_every_file_of_the_newest_damaged_in_every_way(two_checkpoints, tmp_path, caplog, figure):
    kind, run_dir = two_checkpoints
    older, newer = steps_of(run_dir)
    files = [path.name for path in (run_dir / checkpoint.CHECKPOINTS / f"step-{newer:012d}").iterdir()]
    cases = 0
    for name in sorted(files):
        for damage in DAMAGE:
            copy = shutil.copytree(run_dir, tmp_path / f"{name}-{damage.__name__}")
            damage(copy / checkpoint.CHECKPOINTS / f"step-{newer:012d}" / name)
            caplog.clear()
            assert load(copy).steps == older, (name, damage.__name__)
            blamed = "state.json" if (name, damage) == (manifest.NAME, exchanged) else name
            assert blamed in caplog.text
            shutil.rmtree(copy)
            cases += 1
    figure(f"{kind}: {len(files)} files, {cases} ways of damage, {cases} fell back and named the file")


@pytest.mark.fault(8)
def test_a_newer_version_falls_back(two_checkpoints, tmp_path, caplog):
    _, run_dir = two_checkpoints
    older, newer = steps_of(run_dir)
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    make_newer(copy, newer)
    assert load(copy).steps == older
    assert "please upgrade laser-rl" in caplog.text


@pytest.mark.fault(8)
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda function: function.__name__)
def test_all_damaged_is_status_3_and_says_what_to_do(two_checkpoints, tmp_path, capsys, damage):
    _, run_dir = two_checkpoints
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    for step in steps_of(copy):
        damage(copy / checkpoint.CHECKPOINTS / f"step-{step:012d}" / "state.json")
    assert cli.main(["resume", str(copy)]) == 3
    error = capsys.readouterr().err
    assert "use --fresh to start again" in error
    assert error.count("state.json") >= 2
    assert "Traceback" not in error
    assert any((copy / "checkpoints").glob("step-*"))  # nothing was thrown away
