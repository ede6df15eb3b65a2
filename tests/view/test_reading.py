"""The log is read on, in pieces, each byte once; what is kept of it is bounded, and says what a report says."""

import contextlib
import json
import math
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.checkpoint import RunLock
from laser_rl.metrics import log as log_module
from laser_rl.metrics.history import CurveLine, History, Table, aligned
from laser_rl.metrics.log import MetricsLog, Tail, last_row, read
from laser_rl.metrics.rows import rows_in
from laser_rl.view.facts import details
from laser_rl.view.panels import PANELS, Asked
from laser_rl.view.runs import Files, Runs, Subject, ViewedRun, distinct
from laser_rl.view.server import encoded, live_summary
from tests.view.logs import level, write_run, write_sweep


def rows_of(tail, piece_bytes=1 << 20):
    found = []
    with mock.patch.object(log_module, "PIECE_BYTES", piece_bytes):
        while rows := tail.read():
            found += rows
    return found


@given(st.integers(1, 400), st.integers(0, 3))
def test_pieces_of_any_size_give_the_rows_of_the_reader(tmp_path_factory, piece, torn):
    path = tmp_path_factory.mktemp("run")
    with contextlib.closing(MetricsLog(path)) as log:
        for n in range(12):
            log.write("train", n, n, {"kl": [0.5, math.inf, math.nan][n % 3], "note": "ü{},"})
    log.path.write_bytes(log.path.read_bytes() + b'{"kind": "train", "step": 99'[: 9 * torn])
    expected, found = read(path), rows_of(Tail(log.path), piece)
    assert json.dumps(found) == json.dumps(expected)
    assert len(found) == 12


def test_half_a_line_waits_for_its_end_and_broken_ones_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "train", "step": 1, "update": 1}\n{"kind": "tra')
    tail = Tail(path)
    assert [row["step"] for row in tail.read()] == [1]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b'in", "step": 2, "update": 2}\n{"kind": "train", "st\n\xff\xfe\n[1]\n3\n{"step": 4}\n')
        file.write(b'{"kind": "train", "step": "4", "update": 2}\n{"kind": "train", "step": 5, "update": 5}\n')
    assert [row["step"] for row in tail.read()] == [2, 5]
    assert last_row(path)["step"] == 5


def test_a_broken_line_never_borrows_from_its_neighbour():
    lines = b'{"kind": "train", "step": 1, "update": 1, "x": "}\n{"kind": "sweep", "step": 2, "update": 2, "y": "z"}\n'
    assert [row["kind"] for row in rows_in(lines)] == ["sweep"]


def test_no_byte_is_read_twice(tmp_path, monkeypatch):
    write_run(tmp_path, 500)
    tail, size = Tail(tmp_path / "metrics.jsonl"), (tmp_path / "metrics.jsonl").stat().st_size
    monkeypatch.setattr(log_module, "PIECE_BYTES", 10_000)
    offsets = []
    while tail.read():
        offsets.append(tail.offset)
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == size
    write_run(tmp_path, 3, begin=500)
    assert [row["update"] for row in tail.read()] == [500, 501, 502]


def test_a_fresh_log_begins_again(tmp_path):
    run = ViewedRun(0, write_run(tmp_path, 50))
    run.look()
    while run.read_on():
        pass
    assert run.history.rows == 50
    (tmp_path / "metrics.jsonl").unlink()
    write_run(tmp_path, 3)
    while run.read_on():
        pass
    assert run.history.rows == 3
    assert len(run.history.line("train", 0, "return_mean").x) == 3


@given(
    st.lists(st.one_of(st.none(), st.floats(-100, 100)), min_size=70, max_size=200),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
)
def test_a_table_of_any_length_keeps_extremes_and_means(values, cuts):
    table, numbers = Table(buckets=16), np.array([math.nan if v is None else v for v in values])
    x, begin = np.arange(float(len(numbers))), 0
    for cut in [*cuts, len(numbers)]:
        part = slice(begin, begin + cut)
        table.append(x[part], x[part], x[part], {"kl": numbers[part]} if len(x[part]) else {})
        begin += cut
    line, known = table.line("kl"), np.isfinite(numbers)
    assert len(line.x) <= 16
    assert len(table) <= 16
    if not known.any():
        assert not len(line.x)
        return
    assert line.low.min() == numbers[known].min()
    assert line.high.max() == numbers[known].max()
    assert (np.diff(line.x) > 0).all()
    assert line.x[-1] <= x[-1]
    for at, before, mean, low, high in zip(line.x, [-1.0, *line.x[:-1]], line.mean, line.low, line.high, strict=True):
        inside = numbers[(x <= at) & (x > at - table.rows_a_bucket) & (x > before)]
        inside = inside[np.isfinite(inside)]
        assert mean == pytest.approx(inside.mean(), abs=1e-9)
        assert (low, high) == (inside.min(), inside.max())


def test_a_table_takes_a_number_that_comes_late():
    table, one = Table(buckets=4), np.ones(1)
    for n in range(40):
        table.append(n * one, n * one, n * one, {"a": one} | ({"b": 2 * one} if n >= 30 else {}))
    assert set(table.line("b").mean) == {2.0}
    assert len(table.line("c").x) == 0
    assert table.line("b").x[0] > 29 - table.rows_a_bucket


def test_what_is_later_by_its_step_or_by_its_update_is_void():
    for step, update in ((4.0, 99.0), (99.0, 4.0)):
        table, x = Table(), np.arange(10.0)
        table.append(x, x, x, {"kl": x})
        table.void(step, update)
        assert table.line("kl").mean.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_mean_counts_every_row_the_same():
    table = Table(buckets=1)
    for n in range(7):
        table.append(*[np.full(1, float(n))] * 3, {"kl": np.full(1, float(n))})
    assert table.line("kl").mean.tolist() == [3.0]


def test_lines_on_one_axis_have_at_most_so_many_points():
    lines = [CurveLine(x, x, x, x) for x in (np.arange(0.0, 5000.0), np.arange(0.5, 7000.0, 3.0))]
    x, found = aligned(lines, 1000)
    assert len(x) == 1000
    assert x[-1] == pytest.approx(6999.5)
    assert np.nanmin(found[0].low) == 0.0
    assert np.nanmax(found[1].high) == lines[1].x[-1]
    assert np.isnan(found[0].mean[-1])


def test_a_resume_voids_what_a_report_leaves_out(tmp_path):
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        for member in (0, 1):
            for n in range(1, 8):
                log.write("train", 10 * n, n, {"member": member, "return_mean": float(n)})
                log.write("sweep", 10 * n, n, {"share_of_0": 0.5})
        log.resumed(30, 3, member=1)
        log.write("train", 40, 4, {"member": 1, "return_mean": -1.0})
    history = History()
    history.add(rows_of(Tail(log.path)))
    for member in (0, 1):
        own = [row for row in read(tmp_path) if row.get("member") == member]
        assert history.line("train", member, "return_mean").mean.tolist() == [
            row["return_mean"] for row in own if row["kind"] == "train"
        ]
    assert len(history.line("sweep", -1, "share_of_0").x) == 14
    assert all(row["step"] <= 40 for row in history.newest("train", 1))


def test_counts_add_up_over_sessions():
    history = History()
    counts = [0, 2, 2, 0, 1]
    history.add({"kind": "train", "step": n, "update": n, "skipped_updates": count} for n, count in enumerate(counts))
    history.add([{"kind": "train", "step": 9, "update": 9, "skipped_updates": 4}])
    assert history.count(0, "skipped_updates") == 2 + 4


def test_memory_does_not_grow_with_the_log():
    history = History()
    for begin in range(0, 30_000, 1000):
        history.add(
            {"kind": "train", "step": n, "update": n, "time": n, "return_mean": level(n, 0)}
            for n in range(begin, begin + 1000)
        )
        history.add({"kind": "event", "step": n, "update": n, "event": "resumed", "member": 7} for n in range(50))
    assert history.rows == 31_500
    table = history._tables["train", -1]
    assert len(table) <= 2000
    assert table._numbers.nbytes < 400_000
    assert len(history.marks) <= 200


@pytest.mark.parametrize("bad", [
    {"kind": "train", "step": 1, "update": 1, "return_mean": "?", "acceptance": None, "time": "now", "member": "x"},
    {"kind": "train", "step": 1, "update": 1, "return_mean": [1], "acceptance_from_0": {}, "member": -3},
    {"kind": "train", "step": 10**400, "update": 1, "return_mean": 1.0, "time": 10**400},
    {"kind": "unheard of", "step": 1, "update": 1},
    {"kind": "event", "event": "resumed", "step": 1, "update": 1, "evaluated": "x", "member": 0},
    {"kind": "event", "event": "exploit", "step": 1, "update": 1, "member": 0, "donor": "x"},
        {"kind": "event", "event": "exploit", "step": 1, "update": 1, "member": 0, "donor": 1, "score": "x"},
        {"kind": "event", "event": "exploit", "step": 1, "update": 1, "member": 0, "donor": 10**6},
        {"kind": "evaluation", "step": 1, "update": 1, "member": 0, "mean": "x", "ci95_low": "y"},
        {"kind": "train", "step": -5, "update": 1, "member": True, "time": float("1e300"), "skipped_updates": 1e308},
        {"kind": "episode", "step": 1, "update": 1, "return": 10**400},
    {"kind": "event", "event": ["x"], "step": 1, "update": 1, "member": 10**9},
])  # fmt: skip
def test_strange_rows_hurt_nobody(tmp_path, bad):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(bad) + "\n")
    write_sweep(tmp_path, 2, 5)
    run = ViewedRun(0, tmp_path)
    run.look()
    while run.read_on():
        pass
    assert len(run.history.line("train", 1, "return_mean").x) == 5
    for axis in ("step", "time"):
        for panel in PANELS.values():
            encoded(panel(run.subject(), Asked(axis)))
    encoded([live_summary(run), details(run.subject(), run.videos())])


@pytest.mark.parametrize(("members", "lines"), [(1, 2), (3, 6), (5, 5)])
def test_queues_are_told_by_member_and_of_many_the_batches_only(tmp_path, members, lines):
    run = ViewedRun(0, write_run(tmp_path, 7) if members == 1 else write_sweep(tmp_path, members, 7))
    run.look()
    while run.read_on():
        pass
    found = PANELS["queues"](run.subject(), Asked())["lines"]
    assert len(found) == lines
    by_name = {one["name"]: one["y"] for one in found}
    who = "" if members == 1 else "2: "
    assert by_name[f"{who}batches gathered ahead"] == [n % 2 for n in range(7)]
    if members <= 4:
        assert by_name[f"{who}deliveries of the environments"] == [n % 5 for n in range(7)]
    assert not any("batches" in one["name"] for one in PANELS["waiting"](run.subject(), Asked())["lines"])


def test_a_folder_counts_as_all_runs_in_it(tmp_path):
    write_run(tmp_path / "a", 1)
    write_sweep(tmp_path / "group" / "b", 2, 1)
    (tmp_path / "group" / "b" / "members" / "00").mkdir(parents=True)
    write_run(tmp_path / ".hidden", 1)
    (tmp_path / "link").symlink_to(tmp_path / "group")
    runs = Runs([tmp_path])
    assert [run.name for run in runs.every()] == ["a", "b"]
    write_run(tmp_path / "0", 1)
    runs.scan()
    assert [(run.number, run.name) for run in runs.every()] == [(0, "a"), (1, "b"), (2, "0")]


def test_a_run_that_falls_silent_is_news(tmp_path, monkeypatch):
    run = ViewedRun(0, tmp_path)
    with contextlib.closing(MetricsLog(tmp_path)) as log, RunLock(tmp_path):
        log.write("train", 1, 1, {"kl": 0.5})
        run.look()
        run.read_on()
        before = run.version
        run.look()
        assert (run.version, live_summary(run)["silent"]) == (before, False)
        later = time.time() + 61
        monkeypatch.setattr("laser_rl.view.runs.time.time", lambda: later)
        run.look()
        assert run.version > before
        assert live_summary(run)["silent"]


def test_a_run_that_never_reports_means_shows_its_episodes(tmp_path):
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        for n in range(5):
            log.write("episode", n, n, {"return": float(n), "length": 3, "slot": 0})
    run = ViewedRun(0, tmp_path)
    run.read_on()
    assert PANELS["returns"](run.subject(), Asked())["lines"][0]["y"] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_exploit_that_is_the_last_row_counts_once(tmp_path):
    history = History()
    told = {"event": "exploit", "member": 1, "donor": 0, "score": 1.0, "donor_score": 2.0}
    history.add([{"kind": "event", "step": 10, "update": 1, "time": 1.0, **told}])
    subject = Subject(tmp_path, "run", history, Files({}, {}, []), now=2.0)
    assert [one.exploits for one in subject.members] == [0, 1]


def test_directories_of_one_name_are_told_apart_by_those_above_them():
    assert distinct([Path("runs/a/x"), Path("runs/b/x")]) == ["a/x", "b/x"]
    assert distinct([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
