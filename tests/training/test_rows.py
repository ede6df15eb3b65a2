"""What rows of metrics hold and when they come; what takes time away from learning."""

import itertools
from types import SimpleNamespace

import pytest

from laser_rl.metrics.log import read
from laser_rl.training.budget import DutyCycle
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare
from laser_rl.training.member_process import ProcessTrainer, SharedStateStore
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import _within as within
from tests.training.small import run_one, small
from tests.training.test_sweeps import small_sweep


def rows_of(path, config, change=lambda training: None):
    directory = RunDirectory(path, config)
    try:
        trainer = prepare(config, directory, sinks=[directory.log])
        change(trainer.trainings[0])
        run_one(trainer)
    finally:
        directory.close()
    return read(path, ["train"])


def test_others_add_numbers_to_each_row(tmp_path):
    asked = []

    def busy():
        asked.append(len(asked))
        return {"learner_busy": 0.5 + len(asked)}

    rows = rows_of(
        tmp_path,
        small(),
        lambda training: training.extra.update(busy=busy, nothing=lambda: {"nothing": float("nan")}),
    )
    assert [row["learner_busy"] for row in rows] == [1.5 + number for number in asked]
    assert len(rows) > 5
    assert not any("nothing" in row for row in rows)


def test_learned_steps_are_those_of_all_batches(tmp_path):
    for row in rows_of(tmp_path, small(batch_unrolls=4, fraction=0.5)):
        assert row["learned_steps_per_second"] == pytest.approx(row["updates_per_second"] * 4 * 5)


def test_slow_updates_have_rows_by_the_clock(tmp_path):
    """Only where two runs are not equal anyway."""
    settings = {"log_every_updates": 10**6, "log_every_s": 1e-6}
    assert len(rows_of(tmp_path / "exact", small(**settings))) == 1

    def by_clock(training):
        training.by_clock = True

    rows = rows_of(tmp_path / "quick", small(**settings), by_clock)
    assert len(rows) == rows[-1]["update"] > 50
    rows = rows_of(tmp_path / "both", small(log_every_updates=10, log_every_s=1e6), by_clock)
    assert [row["update"] for row in rows][:3] == [10, 20, 30]


def share_of(board):
    crew = build_group(small_sweep())
    training = ProcessTrainer(small_sweep(), crew, board=board, orders=SharedStateStore(members=3, size=100))
    crew.begin()
    return training


def test_large_states_are_published_more_seldom(monkeypatch):
    """A publication that takes three seconds is made every five minutes, if a hundredth of the time is allowed."""
    now, published = [0.0], []
    board = SharedStateStore(members=3, size=1 << 20)
    put = board.put

    def slow(number, data):
        now[0] += 1.0
        published.append(now[0])
        put(number, data)

    board.put = slow
    training = share_of(board)
    monkeypatch.setattr("laser_rl.training.budget.time", SimpleNamespace(monotonic=lambda: now[0]))
    training._publishing = DutyCycle(1.0, share=0.01, most_s=1e9)
    try:
        for _ in range(1000):
            training.between()
            now[0] += 1.0
    finally:
        training.group.close()
    begun = [moment - 1.0 for moment in published[::3]]
    assert begun[0] == 1.0
    assert [later - earlier for earlier, later in itertools.pairwise(begun)] == [300.0, 300.0, 300.0]
    assert training.trainings[0].by_clock


def test_small_states_are_published_every_second(monkeypatch):
    now, times = [0.0], []
    monkeypatch.setattr("laser_rl.training.budget.time", SimpleNamespace(monotonic=lambda: now[0]))
    sparing = DutyCycle(1.0, share=0.01, most_s=60.0)
    while now[0] < 10.0:
        now[0] += 0.25
        if sparing.due():
            with sparing.measured():
                times.append(now[0])
                now[0] += 0.001
    assert 8 <= len(times) <= 10
    assert all(1.0 <= later - earlier < 1.5 for earlier, later in itertools.pairwise(times))
    with sparing.measured():
        now[0] += 100.0  # seldom has an end
    now[0] += 61.0 - 100.0
    assert sparing.due()


def test_processes_share_the_cores():
    base = small("ALE/Pong-v5", slots=3)
    sweep = SweepConfig(base=base, grid={"learning_rate": [1e-3, 2e-3]})
    assert within(sweep, 4).configs[1].environment.atari.threads == 4
    assert within(sweep, 4).base.environment.workers == 3
    chosen = base.environment.model_copy(update={"atari": base.environment.atari.model_copy(update={"threads": 7})})
    given = sweep.model_copy(update={"base": base.model_copy(update={"environment": chosen})})
    assert within(given, 4).base.environment.atari.threads == 7
    assert within(sweep, 4).settings == sweep.settings
