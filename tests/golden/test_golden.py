"""What earlier releases wrote is loaded, and says what it said then, to the last bit."""

import json
import shutil
import struct

import pytest
import torch

from laser_rl import LASER, checkpoint, cli
from laser_rl.checkpoint import manifest, segments
from laser_rl.config import override
from laser_rl.errors import ConfigError, DamagedRun, UserError
from laser_rl.metrics.log import read
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import load_trained
from laser_rl.training.files import read_sweep
from laser_rl.training.launch import train
from tests.fuzz.checkpoints import signed
from tests.golden import FOLDER, RUNS, answer, expected, folder_of_now, folders

FOLDERS = pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
MOST_BYTES = 300_000  # of all formats together


@pytest.mark.fault(24)
@FOLDERS
@pytest.mark.parametrize("run", RUNS)
def test_a_golden_checkpoint_gives_the_stored_logits(folder, run, figure):
    members = RUNS[run]
    numbers = 0
    for member, stored in zip([None] if members is None else range(members), expected(folder / run), strict=True):
        trained = load_trained(folder / run, member)
        assert trained.steps == stored["step"]
        for name, tensor in answer(trained.network, stored["rows"]).items():
            assert torch.equal(tensor, torch.tensor(stored[name])), name
            numbers += tensor.numel()
        for name, tensor in answer(trained.network, stored["rows"], rounded=False).items():
            torch.testing.assert_close(tensor, torch.tensor(stored[name]), rtol=1e-4, atol=1e-5, msg=name)
    figure(f"{folder.name}, {run}: {numbers} numbers equal to the last bit")


@pytest.mark.fault(24)
@FOLDERS
def test_a_golden_file_of_an_agent_gives_the_stored_logits(folder):
    [stored] = expected(folder / "mlp")
    agent = LASER.load(folder / "agent.safetensors")
    try:
        said = answer(agent.member.learner.network, stored["rows"])
    finally:
        agent.close()
    assert torch.equal(said["logits"], torch.tensor(stored["logits"]))


@pytest.mark.fault(24)
@FOLDERS
@pytest.mark.parametrize("run", ["mlp", "lstm"])
def test_a_golden_run_goes_on(folder, run, tmp_path):
    shutil.copytree(folder / run, tmp_path / run)
    directory = RunDirectory(tmp_path / run)
    try:
        before = checkpoint.latest(directory.path)
        longer = override(directory.settings.base, {"run.steps": before.step + 40, "run.evaluate_episodes": 1})
        result = train(longer, directory, sinks=[directory.log])
    finally:
        directory.close()
    assert result.steps >= before.step + 40
    assert result.updates > before.state["members"][0]["learner"]["version"]
    rows = read(tmp_path / run)
    assert [row["step"] for row in rows if row.get("event") == "resumed"] == [before.step]  # the old rows still count
    assert checkpoint.latest(tmp_path / run).step == result.steps


@pytest.mark.fault(24)
@FOLDERS
def test_a_golden_sweep_goes_on(folder, tmp_path):
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    directory = RunDirectory(tmp_path / "sweep")
    try:
        before = checkpoint.latest(directory.path)
        base = override(directory.settings.base, {"run.steps": before.step + 40, "run.evaluate_episodes": 1})
        end = train(directory.settings.model_copy(update={"base": base}), directory, sinks=[directory.log])
    finally:
        directory.close()
    assert all(member.steps >= before.step + 40 for member in end.members)
    assert len(end.exploits) >= len(before.state["trainer"]["pbt"]["history"]) > 0


def test_there_are_golden_files_of_the_present_formats():
    assert folder_of_now() in folders(), "a format was raised: python -m tests.golden.make, and commit what it makes"
    assert sum(path.stat().st_size for path in FOLDER.rglob("format-*/**/*") if path.is_file()) < MOST_BYTES


@pytest.fixture
def run_dir(tmp_path):
    return shutil.copytree(folders()[-1] / "mlp", tmp_path / "run")


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("learning_rat",), "there is no setting 'learning_rat'; did you mean 'optimiser.learning_rate'?"),
        (("loss", "discont"), "there is no setting 'loss.discont'; did you mean 'loss.discount'?"),
        (("environment", "atari", "noops"), "there is no setting 'environment.atari.noops'; did you mean 'environment.atari.most_noops'?"),
    ],
)  # fmt: skip
def test_an_unknown_key_of_a_configuration_names_the_nearest(run_dir, place, message, capsys):
    path = run_dir / "config.json"
    fields = json.loads(path.read_text())
    *sections, last = place
    inner = fields
    for section in sections:
        inner = inner[section]
    inner[last] = 1
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError) as caught:
        read_sweep(run_dir)
    assert str(caught.value) == f"{path}: {message}"
    assert cli.main(["evaluate", str(run_dir)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        (None, "shares", "there is no setting 'shares' of a sweep; did you mean 'share'?"),
        ("base", "recipes", "there is no setting 'recipes'; did you mean 'recipe'?"),
        ("pbt", "margins", "there is no setting 'pbt.margins' of a sweep; did you mean 'margin'?"),
    ],
)
def test_an_unknown_key_of_a_sweep_names_the_nearest(tmp_path, section, key, message):
    shutil.copytree(folders()[-1] / "sweep", tmp_path / "sweep")
    path = tmp_path / "sweep" / "sweep.json"
    fields = json.loads(path.read_text())
    (fields if section is None else fields[section])[key] = 1
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError) as caught:
        read_sweep(path.parent)
    assert message in str(caught.value)


def newer_manifest(run_dir):
    [path] = run_dir.glob("checkpoints/*/manifest.json")
    path.write_bytes(signed(json.dumps(json.loads(path.read_text()) | {"format": 99, "a_new_field": 1}).encode()))


def newer_segment(run_dir):
    [path] = run_dir.glob("replay/*.zst")
    [folder] = run_dir.glob("checkpoints/*")
    data, old = path.read_bytes(), manifest.read(folder)
    magic, length = struct.unpack_from("<II", data)
    header = json.dumps(json.loads(data[8 : 8 + length]) | {"format": 99}).encode()
    data = struct.pack("<II", magic, len(header)) + header + data[8 + length :]
    path.write_bytes(data)
    exact, entry = manifest.entry_of(data), old.segments[0]
    newer = segments.SegmentEntry(entry.name, entry.first_id, entry.count, exact.bytes, exact.sha256)
    (folder / manifest.NAME).write_bytes(manifest.encode(manifest.Manifest(old.step, old.files, (newer,))))


@pytest.mark.fault(24)
@pytest.mark.parametrize("newer", [newer_manifest, newer_segment], ids=lambda function: function.__name__)
def test_a_newer_checkpoint_asks_for_an_upgrade(run_dir, newer, capsys, figure):
    newer(run_dir)
    with pytest.raises(UserError, match=r"has format 99, .* please upgrade laser-rl"):
        checkpoint.latest(run_dir)
    assert cli.main(["resume", str(run_dir)]) == 2
    assert "please upgrade laser-rl" in capsys.readouterr().err
    figure("newer manifest and segment: status 2, please upgrade")


@pytest.mark.fault(24)
def test_a_newer_sweep_and_a_newer_agent_ask_for_an_upgrade(tmp_path):
    shutil.copytree(folders()[-1] / "sweep", tmp_path / "sweep")
    path = tmp_path / "sweep" / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(ConfigError, match="please upgrade laser-rl"):
        read_sweep(path.parent)
    data = (folders()[-1] / "agent.safetensors").read_bytes().replace(b'"format":"1"', b'"format":"9"')
    (tmp_path / "agent.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match="has format 9, expected 1; please upgrade laser-rl"):
        LASER.load(tmp_path / "agent.safetensors")


def test_a_changed_bit_of_a_golden_file_is_seen(run_dir):
    """Otherwise the tests above could compare anything."""
    [path] = run_dir.glob("checkpoints/*/member-00.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedRun, match=r"member-00\.safetensors"):
        load_trained(run_dir)
