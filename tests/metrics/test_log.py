"""metrics.jsonl: nothing is lost but half a line, void rows go, and equal runs have equal hashes."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.metrics.log import FILE, MetricsLog, read, read_from
from tests.row_hash import rows_hash

VALUES = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name not in {"kind", "step", "update", "time", "member", "donor", "task"}),
    st.floats(width=64) | st.integers(-(2**53), 2**53) | st.text().filter(lambda text: text not in {"nan", "inf", "-inf"}),
    max_size=4,
)  # fmt: skip


def same(a, b):
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@given(rows=st.lists(VALUES, max_size=5))
def test_every_value_comes_back(tmp_path_factory, rows):
    run_dir = tmp_path_factory.mktemp("run")
    with contextlib.closing(MetricsLog(run_dir)) as log:
        for number, values in enumerate(rows):
            log.write("train", 10 * number, number, values)
    found = read(run_dir)
    assert [(row["step"], row["update"]) for row in found] == [(10 * n, n) for n in range(len(rows))]
    for row, values in zip(found, rows, strict=True):
        assert row.keys() - {"kind", "step", "update", "time"} == values.keys()
        assert all(same(row[name], value) for name, value in values.items())


def test_each_line_is_strict_json_also_for_what_json_does_not_know(tmp_path):
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        values = {"a": math.nan, "b": -math.inf, "c": np.float32(0.5), "d": torch.tensor(2.0), "e": np.int32(3)}
        log.write("train", np.int64(1), 1, values)

    def refuse(name):
        raise AssertionError(name)

    row = json.loads((tmp_path / FILE).read_text(), parse_constant=refuse)
    assert (row["a"], row["b"], row["c"], row["d"], row["e"]) == ("nan", "-inf", 0.5, 2.0, 3)


def test_a_torn_last_line_is_left_out_and_spoils_no_later_one(tmp_path):
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        for number in range(3):
            log.write("train", number, number, {"x": number})
    whole = (tmp_path / FILE).read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        (tmp_path / FILE).write_bytes(whole[:cut])
        assert [row["x"] for row in read(tmp_path)] == [0, 1]
        with contextlib.closing(MetricsLog(tmp_path)) as log:
            log.write("train", 9, 9, {"x": 9})
        found = [row["x"] for row in read(tmp_path)]
        assert found == ([0, 1, 2, 9] if cut == len(whole) - 1 else [0, 1, 9])


def test_a_row_that_was_cut_off_by_a_full_disk_comes_later_and_whole(tmp_path, monkeypatch, caplog):
    log, write = MetricsLog(tmp_path), os.write
    log.write("train", 1, 1, {})
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:9]))
    log.write("train", 2, 2, {})
    monkeypatch.undo()
    assert [row["step"] for row in read(tmp_path)] == [1]
    log.write("train", 3, 3, {})
    log.close()
    assert [row["step"] for row in read(tmp_path)] == [1, 2, 3]
    assert [("no space" in message, "0 rows are lost" in message) for message in caplog.messages] == [
        (True, False),
        (False, True),
    ]


def test_a_reader_beside_a_writer_sees_each_row_once_and_whole(tmp_path):
    code = """
import contextlib, sys
from laser_rl.metrics.log import MetricsLog
with contextlib.closing(MetricsLog(sys.argv[1])) as log:
    for n in range(3000):
        log.write("train", n, n, {"text": "x" * (n % 700)})
"""
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    rows, offset, deadline = [], 0, time.monotonic() + 60
    while len(rows) < 3000:
        assert time.monotonic() < deadline
        new, offset = read_from(tmp_path / FILE, offset)
        rows += new
    assert writer.wait(timeout=30) == 0
    assert [row["step"] for row in rows] == list(range(3000))
    assert all(len(row["text"]) == row["step"] % 700 for row in rows)


def test_a_killed_writer_loses_no_row_that_it_has_written(tmp_path):
    code = """
import sys
from laser_rl.metrics.log import MetricsLog
log = MetricsLog(sys.argv[1])
for n in range(10**9):
    log.write("train", n, n, {})
    print(n, flush=True)
"""
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    for _ in range(200):
        seen = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    rest = [int(line) for line in writer.stdout.read().split("\n") if line]
    writer.wait(timeout=30)
    writer.stdout.close()
    assert len(read(tmp_path)) >= max([seen, *rest[:-1]]) + 1


def train(log, updates, steps_each=10):
    """A little run: acting, an episode each third update, learning, evaluation each fifth."""
    for update in updates:
        if update % 3 == 0:
            log.write("episode", update * steps_each - 4, update - 1, {"return": update * 0.5, "length": 7})
        log.write("train", update * steps_each, update, {"kl": update / 7, "steps_per_second": time.perf_counter()})
        if update % 5 == 0:
            log.write(
                "evaluation", update * steps_each, update, {"mean": update, "duration_seconds": time.perf_counter()}
            )


@pytest.mark.parametrize("died_after", range(6, 13))
def test_a_resumed_run_has_the_hash_of_an_uninterrupted_one(tmp_path, died_after):
    with contextlib.closing(MetricsLog(tmp_path / "whole")) as log:
        train(log, range(1, 16))
    with contextlib.closing(MetricsLog(tmp_path / "resumed")) as log:
        train(log, range(1, died_after + 1))
        # Acting goes on after the checkpoint: this episode has the update of the checkpoint, and a later step.
        log.write("episode", died_after * 10 + 6, died_after, {"return": 1.5, "length": 7})
    with contextlib.closing(MetricsLog(tmp_path / "resumed")) as log:
        log.resumed(60, 6)
        train(log, range(7, 16))
    assert rows_hash(tmp_path / "whole") == rows_hash(tmp_path / "resumed")
    assert [row["step"] for row in read(tmp_path / "resumed", ["event"])] == [60]


@pytest.mark.parametrize("change", [{"kl": 0.5}, {"step": 31}, {"kind": "episode"}, {"new": 1}])
def test_the_hash_sees_every_number_but_not_the_clock(tmp_path, change):
    row = {"kind": "train", "step": 30, "update": 3, "time": 1.0, "kl": 0.1, "steps_per_second": 5.0, "memory_bytes": 7}
    hashes = []
    for number, fields in enumerate(
        [row, row | {"time": 2.0, "steps_per_second": 6.0, "memory_bytes": 8}, row | change]
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / FILE).write_text(json.dumps(fields) + "\n")
        hashes.append(rows_hash(tmp_path / str(number)))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ((1, 2, 3, "back to 2", 3, 4, "back to 1", 2), [1, "back to 2", "back to 1", 2]),
        ((1, 2, 3, "back to 1", 2, 3, "back to 2", 3), [1, "back to 1", 2, "back to 2", 3]),
    ],
)
def test_resuming_twice_voids_what_each_time_came_after(tmp_path, written, held):
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        for one in written:
            if isinstance(one, str):
                log.resumed(int(one[-1]), int(one[-1]))
            else:
                log.write("train", one, one, {})
    found = [row["step"] if row["kind"] == "train" else f"back to {row['step']}" for row in read(tmp_path)]
    assert found == held


def test_updates_without_a_step_between_are_void_too(tmp_path):
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        for update in (1, 2, 3):
            log.write("train", 10, update, {})
        log.resumed(10, 2)
    assert [row["update"] for row in read(tmp_path)] == [1, 2, 2]


@given(
    events=st.lists(
        st.tuples(st.sampled_from([None, 0, 1]), st.booleans(), st.integers(0, 4), st.integers(0, 4)), max_size=12
    )
)
def test_a_mark_voids_rows_of_its_own_member_only(tmp_path_factory, events):
    def found(member_of, chosen):
        run_dir = tmp_path_factory.mktemp("run")
        with contextlib.closing(MetricsLog(run_dir)) as log:
            for number, (member, mark, step, update) in enumerate(events):
                own = {} if member_of(member) is None else {"member": member_of(member)}
                if member in chosen and mark:
                    log.write("event", step, update, {"event": "resumed", "number": number} | own)
                elif member in chosen:
                    log.write("train", step, update, {"number": number} | own)
        return [row["number"] for row in read(run_dir)]

    # Each one's rows are those of a single run that nobody shared a file with.
    alone = [number for member in (None, 0, 1) for number in found(lambda _: None, [member])]
    assert found(lambda member: member, [None, 0, 1]) == sorted(alone)
