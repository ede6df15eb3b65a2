"""Checkpoints survive a SIGKILL at any moment, and every damaged byte is found, named and survived."""

import hashlib
import json
import logging
import os
import random
import select
import shutil
import signal
import time

import pytest

from laser_rl.checkpoint import (
    CHECKPOINTS,
    REPLAY,
    Snapshot,
    latest,
    load_snapshot,
    manifest,
    remove_leftovers,
    segments,
    write,
)
from laser_rl.disk import write_bytes
from laser_rl.errors import DamagedRun, UserError
from tests.checkpoint.inputs import LAYOUT, assert_is, forked, kill_at, outcome, snapshot, unrolls, write_segment


def assert_clean(run_dir, steps):
    """Nothing but whole checkpoints and the segments that they name."""
    remove_leftovers(run_dir)
    folders = sorted(path.name for path in (run_dir / CHECKPOINTS).iterdir())
    assert folders == sorted(f"step-{step:012d}" for step in steps)
    named = {entry.name for name in folders for entry in manifest.read(run_dir / CHECKPOINTS / name).segments}
    assert {path.name for path in (run_dir / REPLAY).iterdir()} == named


def write_and_die(run_dir, step, number):
    """Write checkpoint `step` in a child that is killed at its call `number` that touches the disk; whether it died of that."""

    def action():
        kill_at(number)
        write(run_dir, snapshot(step, run_dir, segments=2))

    status = outcome(forked(action))
    assert status in (0, -signal.SIGKILL)
    return status != 0


@pytest.mark.fault(7)
@pytest.mark.parametrize("step", [30, 20])  # a new one; the newest one once more
def test_killed_at_every_point_of_the_writer(tmp_path, caplog, step, figure):
    template = tmp_path / "template"
    known = {old: snapshot(old, template, segments=2) for old in (10, 20)}
    for old in known.values():
        write(template, old)
    known[step] = snapshot(step, tmp_path / "elsewhere", segments=2)
    points = removed = 0
    for number in range(1000):
        run_dir = tmp_path / str(number)
        shutil.copytree(template, run_dir)
        died = write_and_die(run_dir, step, number)
        loaded = latest(run_dir)
        assert loaded.step >= 20
        assert_is(loaded, known[loaded.step])
        assert not caplog.records
        for path in (run_dir / CHECKPOINTS).glob("step-*"):
            load_snapshot(path)  # not even an older one is half there
        removed += len(remove_leftovers(run_dir))
        kept = sorted(int(path.name[5:]) for path in (run_dir / CHECKPOINTS).glob("step-????????????"))
        assert_is(latest(run_dir), known[loaded.step])
        assert not list(run_dir.rglob("*.tmp"))
        write(run_dir, snapshot(40, run_dir, segments=2))  # the next start goes on
        assert_clean(run_dir, [kept[-1], 40])
        if not died:
            break
        points += 1
    assert points > 40  # the writer has that many points at least: opens, writes, syncs, renames, removals
    what = "the newest step once more" if step == 20 else "a new checkpoint"
    figure(f"{what}: killed at {points} points, {points} loadable, {removed} leftovers removed")


@pytest.mark.fault(7)
@pytest.mark.parametrize("old", [None, b"old" * 1000])
def test_a_file_is_the_old_one_or_the_new_one(tmp_path, old):
    new, died, number = b"new" * 2000, True, -1
    while died:
        number += 1
        path = tmp_path / str(number)
        if old is not None:
            path.write_bytes(old)

        def action(path=path, number=number):
            kill_at(number)
            write_bytes(path, new)

        died = outcome(forked(action)) != 0
        assert (path.read_bytes() if path.exists() else None) in (old, new)
    assert path.read_bytes() == new
    assert number > 5


def keep_writing(run_dir, start, report):
    for step in range(start, start + 10_000):
        write(run_dir, snapshot(step, run_dir, segments=2))
        os.write(report, f"{step}\n".encode())


def random_kills(run_dir, count):
    dice, complete, hits = random.Random(7), 0, 0  # noqa: S311
    for _ in range(count):
        reader, writer = os.pipe()
        child = forked(lambda start=complete + 1, end=writer: keep_writing(run_dir, start, end))
        os.close(writer)
        if dice.random() < 0.9:  # else perhaps before the first one is written
            assert select.select([reader], [], [], 30)[0], "the child wrote no checkpoint within 30 s"
        time.sleep(dice.uniform(0.0, 0.04))
        os.kill(child, signal.SIGKILL)
        assert outcome(child) == -signal.SIGKILL
        with os.fdopen(reader) as lines:
            reported = [int(line) for line in lines]
        hits += bool(list((run_dir / CHECKPOINTS).glob(".*.tmp")))
        complete = max([complete, *reported])
        loaded = latest(run_dir)
        if loaded is None:
            assert complete == 0
            continue
        assert loaded.step in (complete, complete + 1)
        complete = loaded.step
        assert_is(loaded, snapshot(loaded.step, run_dir.parent / "elsewhere", segments=2))
        remove_leftovers(run_dir)
        assert not list(run_dir.rglob("*.tmp"))
    return complete, hits


@pytest.mark.slow
@pytest.mark.fault(7)
def test_fifty_random_kills(tmp_path, caplog, figure):
    complete, hits = random_kills(tmp_path / "run", 50)
    assert complete > 25
    assert hits > 0  # kills that struck in the middle of a checkpoint
    assert not caplog.records
    figure(
        f"50 random kills, {hits} within a checkpoint: 50 loadable, none older than the last of {complete} complete ones"
    )


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def emptied(path):
    path.write_bytes(b"")


def lengthened(path):
    path.write_bytes(path.read_bytes() + b" ")


def exchanged(path):
    """Well-formed, of the right length, and not what the manifest has the hash of."""
    data = path.read_bytes()
    if path.name == manifest.NAME:
        text = json.loads(data)
        text["files"]["state.json"]["sha256"] = "0" * 63 + "1"
        contents = manifest.Manifest(
            text["step"],
            {name: manifest.FileEntry(**entry) for name, entry in text["files"].items()},
            tuple(segments.SegmentEntry(**entry) for entry in text["segments"]),
        )
        path.write_bytes(manifest.encode(contents))  # the manifest itself is in order; the blame falls on state.json
    else:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def linked(path):
    copy = path.with_name("copy")
    path.rename(copy)
    path.symlink_to(copy)


def piped(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = [truncated, flipped, os.unlink, emptied, lengthened, exchanged, linked, piped]
FILES = ["manifest.json", "state.json", "learner.safetensors", "random.safetensors", "first segment", "last segment"]


def file_of(run_dir, step, name):
    folder = run_dir / CHECKPOINTS / f"step-{step:012d}"
    if "segment" not in name:
        return folder / name
    own = sorted(entry.name for entry in manifest.read(folder).segments)
    return run_dir / REPLAY / own[0 if name.startswith("first") else -1]


def two_checkpoints(run_dir):
    written = [snapshot(step, run_dir, segments=2) for step in (10, 20)]
    for one in written:
        write(run_dir, one)
    return written


@pytest.mark.fault(8)
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", FILES)
def test_any_damage_to_any_file_falls_back_and_names_it(tmp_path, caplog, name, damage):
    older, _ = two_checkpoints(tmp_path)
    path = file_of(tmp_path, 20, name)
    damage(path)
    assert_is(latest(tmp_path), older)
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    blamed = path.with_name("state.json") if (damage, name) == (exchanged, "manifest.json") else path
    assert str(blamed) in warning.getMessage()
    with pytest.raises(DamagedRun, match=blamed.name):
        load_snapshot(tmp_path / CHECKPOINTS / "step-000000000020")


@pytest.mark.fault(8)
def test_every_single_bit_of_a_manifest_counts(tmp_path, figure):
    write(tmp_path, snapshot(1, tmp_path, segments=1))
    path = file_of(tmp_path, 1, manifest.NAME)
    original = path.read_bytes()
    for position in range(len(original)):
        data = bytearray(original)
        data[position] ^= 1 << (position % 8)
        with pytest.raises(DamagedRun, match="manifest"):
            manifest.decode(path, bytes(data))
    figure(f"{len(original)} flipped bytes of a manifest, {len(original)} found")


@pytest.mark.fault(8)
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", FILES)
def test_all_damaged_says_use_fresh_and_exits_with_3(tmp_path, name, damage):
    two_checkpoints(tmp_path)
    for path in [file_of(tmp_path, step, name) for step in (10, 20)]:
        damage(path)
    with pytest.raises(DamagedRun, match=r"use --fresh to start again$") as caught:
        latest(tmp_path)
    assert caught.value.exit_status == 3
    assert "step-000000000010" in str(caught.value) or "segment" in name


def make_newer(run_dir, step):
    path = file_of(run_dir, step, manifest.NAME)
    fields = json.loads(path.read_text()) | {"format": 3, "a_new_field": [1], "sha256": "0" * 64}
    blank = json.dumps(fields).encode()
    digest = hashlib.sha256(blank).hexdigest()
    path.write_bytes(blank.replace(b"0" * 64, digest.encode()))


@pytest.mark.fault(8)
def test_a_newer_manifest_falls_back_and_alone_asks_for_an_upgrade(tmp_path, caplog):
    older, newer = two_checkpoints(tmp_path)
    make_newer(tmp_path, 20)
    assert_is(latest(tmp_path), older)
    assert "manifest.json has format 3" in caplog.text
    assert "please upgrade laser-rl" in caplog.text
    remove_leftovers(tmp_path)  # must not take the newer checkpoint's segments for rubbish
    assert all((tmp_path / REPLAY / entry.name).exists() for entry in newer.segments)
    make_newer(tmp_path, 10)
    with pytest.raises(UserError, match="please upgrade laser-rl") as caught:
        latest(tmp_path)
    assert caught.value.exit_status == 2


@pytest.mark.fault(8)
def test_a_newer_segment_falls_back(tmp_path, caplog, monkeypatch):
    older = snapshot(10, tmp_path, segments=1)
    write(tmp_path, older)
    with monkeypatch.context() as patch:
        patch.setattr(segments, "FORMAT", segments.FORMAT + 1)
        entry = write_segment(tmp_path / REPLAY, LAYOUT, 100, unrolls(2))
        write(tmp_path, Snapshot(20, {}, {}, [entry]))
    assert_is(latest(tmp_path), older)
    assert entry.name in caplog.text
    assert "please upgrade" in caplog.text


def test_a_segment_deleted_under_two_checkpoints_damages_both(tmp_path):
    first, _ = two_checkpoints(tmp_path)
    write(tmp_path, Snapshot(30, {}, {}, first.segments))
    for name in [entry.name for entry in first.segments][:1]:
        (tmp_path / REPLAY / name).unlink()
    assert latest(tmp_path).step == 20


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "..", "", ".hidden", "a\x00b"])
def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path, name):
    """Even where the file is there and has the right hash."""
    write(tmp_path, snapshot(1))
    path = file_of(tmp_path, 1, manifest.NAME)
    (tmp_path / CHECKPOINTS / "secret").write_bytes(b"secret")
    (tmp_path / "secret").write_bytes(b"secret")
    old = manifest.read(path.parent)
    files = {**old.files, name: manifest.entry_of(b"secret")}
    path.write_bytes(manifest.encode(manifest.Manifest(1, files)))
    with pytest.raises(DamagedRun, match="expected the name of a file in the run directory"):
        load_snapshot(path.parent)
    entry = segments.SegmentEntry(name, 0, 1, 6, manifest.entry_of(b"secret").sha256)
    path.write_bytes(manifest.encode(manifest.Manifest(1, old.files, (entry,))))
    with pytest.raises(DamagedRun, match="expected the name of a file in the run directory"):
        load_snapshot(path.parent)


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_giant_json_is_refused_unread(tmp_path, name, caplog):
    older, _ = two_checkpoints(tmp_path)
    with file_of(tmp_path, 20, name).open("r+b") as file:
        file.truncate(100 << 20)
    start = time.monotonic()
    assert_is(latest(tmp_path), older)
    assert time.monotonic() - start < 1
    assert "expected at most 67,108,864" in caplog.text


@pytest.mark.fault(14)
@pytest.mark.parametrize("text", [b"[" * 100_000, b"[1]", b"null", b'{"format": 1}', b"\xff", b"1" * 5000,
                                  b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x95"])  # fmt: skip
@pytest.mark.parametrize("name", ["manifest.json", "state.json", "learner.safetensors"])
def test_foreign_contents_with_a_right_hash_are_refused(tmp_path, name, text):
    older, _ = two_checkpoints(tmp_path)
    path = file_of(tmp_path, 20, name)
    old = manifest.read(path.parent)
    path.write_bytes(text)
    if name != manifest.NAME:
        files = {**old.files, name: manifest.entry_of(text)}
        path.with_name(manifest.NAME).write_bytes(manifest.encode(manifest.Manifest(20, files, old.segments)))
    if name == "state.json" and text == b'{"format": 1}':
        assert latest(tmp_path).step == 20  # an object is a state
    else:
        assert_is(latest(tmp_path), older)


def test_a_folder_under_another_step_is_refused(tmp_path):
    older, _ = two_checkpoints(tmp_path)
    (tmp_path / CHECKPOINTS / "step-000000000020").rename(tmp_path / CHECKPOINTS / "step-000000000099")
    assert_is(latest(tmp_path), older)


@pytest.mark.fault(14)
def test_a_linked_folder_is_refused(tmp_path):
    older, _ = two_checkpoints(tmp_path)
    (tmp_path / CHECKPOINTS / "step-000000000020").rename(tmp_path / "elsewhere")
    (tmp_path / CHECKPOINTS / "step-000000000020").symlink_to(tmp_path / "elsewhere")
    assert_is(latest(tmp_path), older)
