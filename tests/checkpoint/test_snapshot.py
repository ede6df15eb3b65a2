"""Checkpoints come back as they were written; what is kept, what is removed, and in which order things reach the disk."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.checkpoint import CHECKPOINTS, REPLAY, Snapshot, latest, load_snapshot, remove_leftovers, write
from laser_rl.checkpoint.guarded import plain_name
from tests.checkpoint.inputs import assert_is, snapshot


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_no_name_leads_out_of_its_folder():
    names = ("state.json", "../state.json", "/etc/passwd", "a/b", ".hidden", "")
    assert [name for name in names if plain_name(name)] == ["state.json"]


def test_all_that_was_written_comes_back(tmp_path):
    written = snapshot(12345, tmp_path, segments=2)
    path = write(tmp_path, written)
    assert path == tmp_path / CHECKPOINTS / "step-000000012345"
    assert names(path) == ["learner.safetensors", "manifest.json", "random.safetensors", "state.json"]
    assert_is(latest(tmp_path), written)
    assert_is(load_snapshot(path), written)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_of_every_type_keep_their_bits_and_shape(tmp_path, dtype, shape):
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    write(tmp_path, Snapshot(1, {"group": {"tensor": tensor}}, {}))
    loaded = latest(tmp_path).tensors["group"]["tensor"]
    assert (loaded.dtype, loaded.shape) == (dtype, shape)
    assert torch.equal(loaded, tensor)
    loaded.add_(0) if dtype != torch.bool else loaded.logical_not_()  # is writable


@pytest.mark.parametrize(
    "array", [np.array(3), np.arange(6.0).reshape(2, 3).T, np.arange(8)[::2], np.zeros((0, 3), bool)]
)
def test_arrays_of_any_layout_come_back(tmp_path, array):
    array.flags.writeable = False
    write(tmp_path, Snapshot(1, {"group": {"array": array}}, {}))
    loaded = latest(tmp_path).tensors["group"]["array"].numpy()
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)


def test_tied_weights_and_gradients_can_be_saved(tmp_path):
    weight = torch.ones(3, requires_grad=True)
    write(tmp_path, Snapshot(1, {"group": {"a": weight, "b": weight, "part": weight[1:]}}, {}))
    assert {name: len(tensor) for name, tensor in latest(tmp_path).tensors["group"].items()} == {
        "a": 3,
        "b": 3,
        "part": 2,
    }


def test_random_states_of_python_and_numpy_survive_json(tmp_path):
    python, numpy = random.Random(1), np.random.default_rng(2)  # noqa: S311
    state = {"python": python.getstate(), "numpy": numpy.bit_generator.state}
    write(tmp_path, Snapshot(1, {}, state))
    loaded = latest(tmp_path).state
    copies = random.Random(), np.random.default_rng()  # noqa: S311
    version, inner, gauss = loaded["python"]
    copies[0].setstate((version, tuple(inner), gauss))
    copies[1].bit_generator.state = loaded["numpy"]
    assert copies[0].random() == python.random()
    assert copies[1].random() == numpy.random()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12))  # fmt: skip
def test_any_json_state_comes_back_exactly(tmp_path_factory, value):
    run_dir = tmp_path_factory.mktemp("run")
    write(run_dir, Snapshot(1, {}, {"value": value}))
    assert latest(run_dir).state == {"value": value}


@pytest.mark.parametrize("state", [{"a": np.int64(3)}, {"a": {1, 2}}])
def test_a_state_that_is_no_json_is_refused_and_nothing_is_left(tmp_path, state):
    write(tmp_path, snapshot(1))
    with pytest.raises(TypeError):
        write(tmp_path, Snapshot(2, {}, state))
    assert names(tmp_path / CHECKPOINTS) == ["step-000000000001"]


def test_nothing_ever_written_is_none(tmp_path):
    assert latest(tmp_path / "nowhere") is None
    (tmp_path / CHECKPOINTS / ".step-000000000001.7-00.tmp").mkdir(parents=True)
    assert latest(tmp_path) is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept_with_the_segments_they_name(tmp_path, keep):
    written = {step: write(tmp_path, snapshot(step, tmp_path, segments=2), keep) for step in (3, 1000, 5000)}
    kept = sorted(written)[-keep:]
    assert names(tmp_path / CHECKPOINTS) == [f"step-{step:012d}" for step in kept]
    expected = {entry.name for step in kept for entry in load_snapshot(written[step]).segments}
    assert set(names(tmp_path / REPLAY)) == expected


def test_steps_are_compared_as_numbers(tmp_path):
    for step in (9, 10, 2 * 10**12, 10**13):
        write(tmp_path, snapshot(step), keep=9)
        assert latest(tmp_path).step == step


def test_a_segment_for_the_next_checkpoint_survives_pruning_but_not_the_next_start(tmp_path):
    written = snapshot(5, tmp_path, segments=2)
    ahead = snapshot(100, tmp_path, segments=1).segments[0]
    write(tmp_path, written)
    assert ahead.name in names(tmp_path / REPLAY)
    remove_leftovers(tmp_path)
    assert names(tmp_path / REPLAY) == sorted(entry.name for entry in written.segments)


def test_the_same_step_again_replaces(tmp_path):
    write(tmp_path, snapshot(5))
    write(tmp_path, Snapshot(5, {}, {"second": True}))
    assert latest(tmp_path).state == {"second": True}
    assert names(tmp_path / CHECKPOINTS) == ["step-000000000005"]


def test_a_run_that_went_back_is_not_overtaken_by_its_damaged_future(tmp_path, caplog):
    for step in (10, 20):
        write(tmp_path, snapshot(step))
    (tmp_path / CHECKPOINTS / "step-000000000020" / "state.json").write_text("{}")
    assert latest(tmp_path).step == 10
    write(tmp_path, snapshot(15), keep=1)
    caplog.clear()
    assert latest(tmp_path).step == 15
    assert not caplog.records
    assert names(tmp_path / CHECKPOINTS) == ["step-000000000015", "step-000000000020.set-aside"]


@pytest.mark.fault(10)
def test_a_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(tmp_path, monkeypatch):
    write(tmp_path, snapshot(1))
    fsync, left = os.fsync, iter(range(3))

    def full(handle):
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, snapshot(2))
    monkeypatch.undo()
    assert names(tmp_path / CHECKPOINTS) == ["step-000000000001"]
    write(tmp_path, snapshot(3))
    assert latest(tmp_path).step == 3


def test_everything_is_on_disk_before_its_name_is(tmp_path, monkeypatch):
    """A power failure keeps what was synced, in the order in which it was: file contents, then their folder, then the rename."""
    write(tmp_path, snapshot(1))
    done, fsync, replace = [], os.fsync, os.replace

    def name_of(handle):
        return Path(f"/proc/self/fd/{handle}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(("sync", name_of(handle))), fsync(handle)))
    monkeypatch.setattr(
        os, "replace", lambda old, new, **_: (done.append(("rename", Path(new).name)), replace(old, new))
    )
    final = write(tmp_path, snapshot(2)).name
    renamed = done.index(("rename", final))
    files = [name for what, name in done[:renamed] if what == "sync"]
    assert sorted(files[:-1]) == ["learner.safetensors", "manifest.json", "random.safetensors", "state.json"]
    assert files[-2] == "manifest.json"
    assert files[-1].endswith(".tmp")
    assert done[renamed + 1] == ("sync", CHECKPOINTS)


def test_the_manifest_is_readable_json_with_a_format(tmp_path):
    path = write(tmp_path, snapshot(7, tmp_path, segments=1))
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"]) == (2, 7)
    assert manifest["files"]["state.json"]["bytes"] == (path / "state.json").stat().st_size
    assert manifest["segments"][0]["count"] == 2
