"""Runs and sweeps whose replay on disk is damaged go on from their newest checkpoint, with what can be read of it."""

import logging

import numpy as np
import pytest

from laser_rl import checkpoint
from laser_rl.checkpoint import REPLAY
from laser_rl.config import override
from laser_rl.metrics.log import read
from laser_rl.replay.lanes import EpisodeIndex
from laser_rl.replay.store import Replay
from laser_rl.training import saving
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import load_trained
from laser_rl.training.saving import MENDED
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from tests.faults.disk import assert_in_order
from tests.replay.inputs import RECURRENT, assert_same, numbered
from tests.training.small import finish, small
from tests.training.test_recurrent import recurrent
from tests.training.test_sweeps import in_directory, small_sweep

KINDS = {
    "feed-forward": lambda: small(steps=300, capacity_steps=1000, checkpoint_every_steps=100),
    "prioritised": lambda: small(steps=300, capacity_steps=1000, checkpoint_every_steps=100, sampling="prioritised"),
    "lanes": lambda: recurrent(**{"run.steps": 300}),
}


def zeroed(run_dir, which=0):
    """A page of the oldest, or another, segment of the newest checkpoint is full of zeros; returns its name."""
    entry = sorted(checkpoint.latest(run_dir).segments, key=lambda entry: entry.first_id)[which]
    path = run_dir / REPLAY / entry.name
    data = bytearray(path.read_bytes())
    begin = len(data) // 3
    data[begin : begin + 600] = bytes(len(data[begin : begin + 600]))
    path.write_bytes(data)
    return entry.name


def mended_rows(run_dir):
    return [row for row in read(run_dir, ("event",)) if row["event"] == MENDED]


FAST = {("feed-forward", "serial"), ("lanes", "serial"), ("lanes", "local")}


@pytest.mark.fault(11)
@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        pytest.param(kind, runtime, marks=() if (kind, runtime) in FAST else pytest.mark.slow)
        for kind in KINDS
        for runtime in ("serial", "local")
    ],
)
def test_a_run_goes_on_with_the_rest_of_its_replay(tmp_path, caplog, figure, kind, runtime):
    config = override(KINDS[kind](), {"runtime": runtime})
    before = finish(config, tmp_path)[0].updates
    at, name = checkpoint.latest(tmp_path).step, zeroed(tmp_path)
    longer = override(config, {"run.steps": at + 200})
    result, training = finish(longer, tmp_path)
    assert result.steps >= at + 200
    [row] = mended_rows(tmp_path)
    assert row["step"] == at  # the newest checkpoint was used, not the one before
    assert row["unrolls_lost"] > 0
    assert row["unrolls_kept"] > row["unrolls_lost"]
    assert any(name in message and f"{row['unrolls_lost']} unrolls are lost" in message for message in caplog.messages)
    assert any("not bit for bit" in message for message in caplog.messages)
    assert_in_order(tmp_path)  # the next checkpoints no longer name what is damaged
    assert np.isfinite(
        training.member.replay.export(np.arange(training.member.replay.first_id, training.member.replay.next_id)).reward
    ).all()
    assert training.update > before
    figure(
        f"{kind}, {runtime}: {row['unrolls_lost']} of {row['unrolls_kept'] + row['unrolls_lost']} unrolls lost, the run went on"
    )


@pytest.mark.fault(11)
@pytest.mark.parametrize("share", ["shared", pytest.param("separate", marks=pytest.mark.slow)])
def test_a_sweep_goes_on_with_the_rest_of_its_replay(tmp_path, caplog, share):
    config = small_sweep(share=share, steps=200)
    in_directory(config, tmp_path)
    at = checkpoint.latest(tmp_path).step
    zeroed(tmp_path, which=-1)
    base = override(config.base, {"run.steps": at + 100})
    end = in_directory(config.model_copy(update={"base": base}), tmp_path)
    assert all(member.steps >= at + 100 for member in end.members)
    [row] = mended_rows(tmp_path)
    assert row["unrolls_lost"] > 0
    assert_in_order(tmp_path)
    assert checkpoint.latest(tmp_path).step >= at + 100


@pytest.mark.slow
@pytest.mark.fault(11)
def test_a_sweep_over_processes_goes_on_with_the_rest_of_its_replay(tmp_path, figure):
    def run(steps):
        base = small("laser/Catch", steps=steps, checkpoint_every_steps=500, capacity_steps=6_000)
        config = SweepConfig(base=base, grid={"learning_rate": [5e-4, 1e-3, 2e-3, 4e-3]}, processes=2)
        directory = RunDirectory(tmp_path, config)
        try:
            supervisor = ProcessSupervisor(config, directory, 2)
            return supervisor.run(), supervisor
        finally:
            directory.close()

    run(1_000)
    at = checkpoint.latest(tmp_path).step
    zeroed(tmp_path, which=-1)
    end, supervisor = run(at + 1_000)
    assert all(member.steps >= at + 1_000 for member in end.members)
    [row] = mended_rows(tmp_path)
    assert row["step"] == at
    assert row["unrolls_lost"] > 0
    index = EpisodeIndex(supervisor.members[0].replay)
    index.refresh()
    assert len(index) > 0
    assert_in_order(tmp_path)
    figure(f"sweep over 2 processes: {row['unrolls_lost']} unrolls lost, the sweep went on")


def test_playing_does_not_look_at_the_replay(tmp_path, caplog):
    finish(small(steps=200), tmp_path)
    step = checkpoint.latest(tmp_path).step
    for path in (tmp_path / REPLAY).iterdir():
        path.unlink()
    assert load_trained(tmp_path).steps == step
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_damage_elsewhere_still_falls_back_to_the_checkpoint_before(tmp_path, caplog):
    finish(small(steps=400), tmp_path)
    newest = checkpoint.latest(tmp_path)
    older = min((tmp_path / checkpoint.CHECKPOINTS).iterdir())
    zeroed(tmp_path)
    (newest.path / "state.json").write_text("{}")
    loaded = checkpoint.latest(tmp_path, replay="salvage")
    assert loaded.path == older
    assert "state.json" in caplog.text


def test_writers_that_replace_the_oldest_meanwhile_do_not_end_a_checkpoint(tmp_path, monkeypatch):
    """In a sweep over processes the others go on while the parent writes what the replay holds."""
    store = Replay(RECURRENT, 20 * RECURRENT.steps)
    store.insert(numbered(RECURRENT, range(20)))
    files, export, late = saving.Segments(tmp_path, RECURRENT), store.export, iter([3, 0, 2])

    def outrun(ids):
        if count := next(late, 0):
            store.insert(numbered(RECURRENT, range(100, 100 + count)))
        return export(ids)

    monkeypatch.setattr(saving, "SEGMENT_UNROLLS", 8)
    monkeypatch.setattr(store, "export", outrun)
    files.begin(store)
    ids = files.write(store)
    monkeypatch.undo()
    assert ids == {"first_id": 3, "next_id": 20}
    again = Replay(RECURRENT, 20 * RECURRENT.steps)
    saving.Segments(tmp_path, RECURRENT).fill(again, tuple(files.entries), ids)
    assert_same(again.export(np.arange(3, 20)), numbered(RECURRENT, range(3, 20)))
