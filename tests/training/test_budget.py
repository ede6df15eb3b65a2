"""A run that is fitted to a time: it ends finished, counts all its sessions, and its schedules end with it."""

import json
import os
import signal
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from laser_rl import LASER, Sweep, checkpoint, cli
from laser_rl.metrics.log import read
from laser_rl.training.budget import Budget
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare, run
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from tests.training.small import finish, run_one, small
from tests.training.test_sweeps import in_directory, prepared, small_sweep

FOREVER = 10**9


class Clock:
    """A second passes every time that it is asked."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        self.now += 1.0
        return self.now


def by(clock):
    return mock.patch("laser_rl.training.budget.time", SimpleNamespace(monotonic=clock))


def timed(path, minutes, **settings):
    """A run whose every tick is a second."""
    config = small(**{"steps": FOREVER, "budget_minutes": minutes, "schedule": "linear", **settings})
    directory = RunDirectory(path, config)
    try:
        trainer = prepare(config, directory, sinks=[directory.log])
        with_budget(trainer, Budget(minutes, spent_s=trainer.budget.spent_s))
        with by(Clock()):
            return run_one(trainer)
    finally:
        directory.close()


def with_budget(trainer, budget):
    for one in (trainer, *trainer.trainings):
        one.budget = budget


def stored(path):
    return json.loads((checkpoint.latest(path).path / "state.json").read_text())["members"][0]["training"]


def events(path):
    return [row["event"] for row in read(path, ["event"])]


def test_a_run_whose_time_is_over_is_finished(tmp_path):
    result, training = timed(tmp_path, 10.0)
    assert result.interrupted is None
    assert training.stop.reason == "finished"
    assert result.evaluation is not None
    assert 100 < result.steps < 10_000
    assert events(tmp_path) == ["finished"]
    assert checkpoint.latest(tmp_path).step == result.steps
    assert stored(tmp_path)["spent_seconds"] == training.budget.spent_s == pytest.approx(600, abs=3)
    rows = read(tmp_path, ["train"])
    assert rows[-1]["update"] == result.updates
    rates, left = ([row[name] for row in rows] for name in ("learning_rate", "budget_left_seconds"))
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.9 * 2e-3
    assert rates[-1] == left[-1] == 0.0


def test_the_steps_may_be_done_before_the_time_is_over(tmp_path):
    result, training = timed(tmp_path, 1000.0, steps=300)
    assert 300 <= result.steps < 310
    assert training.stop.reason == "finished"
    assert training.progress == 1.0


def test_all_sessions_count_together(tmp_path):
    first, _ = timed(tmp_path, 5.0)
    again, _ = timed(tmp_path, 5.0)
    assert (again.steps, again.updates, again.evaluation) == (first.steps, first.updates, first.evaluation)
    assert len(read(tmp_path, ["evaluation"])) == 1
    longer, training = timed(tmp_path, 7.5)
    assert training.budget.spent_s == pytest.approx(450, abs=5)
    more = (longer.steps - first.steps) / first.steps
    assert more == pytest.approx(0.5, abs=0.1)
    assert events(tmp_path) == ["finished", "resumed", "finished", "resumed", "finished"]


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_real_minutes(tmp_path, runtime):
    config = small(steps=FOREVER, budget_minutes=0.02, runtime=runtime, log_every_s=0.1, evaluate_every_steps=500)
    result, training = finish(config, tmp_path)
    assert result.interrupted is None
    assert result.updates > 10
    assert 1.2 <= training.budget.spent_s < 10
    again, _ = finish(config, tmp_path)
    assert again.steps == result.steps


def test_a_warm_up_that_never_ends_is_over_in_time_too(tmp_path):
    room = {"warmup_steps": 10**7, "capacity_steps": 10**7}
    config = small(steps=FOREVER, budget_minutes=0.01, runtime="local", **room)
    result, _ = finish(config)
    assert (result.interrupted, result.updates) == (None, 0)


def test_nothing_is_counted_without_a_budget(tmp_path):
    _, training = finish(small(), tmp_path)
    assert "spent_seconds" not in stored(tmp_path)
    assert not any("budget_left_seconds" in row for row in read(tmp_path))
    assert training.budget.spent_s == 0.0
    # A budget that comes later counts from then on: what was before is not known.
    result, later = timed(tmp_path, 1.0)
    assert result.steps > 600
    assert later.budget.spent_s == pytest.approx(60, abs=3)


def test_time_between_two_calls_is_not_counted():
    clock = Clock()
    agent = LASER("laser/Catch", budget_minutes=10.0, seed=1, slots=2)
    training = agent._prepared()
    with_budget(training, Budget(10.0))
    with by(clock):
        agent.learn(100)
        spent = training.budget.spent_s
        clock.now += 10_000
        agent.learn(100)
        assert training.budget.spent_s == pytest.approx(2 * spent, abs=10)
        assert agent.steps >= 200
        agent.learn(FOREVER)
        after = agent.steps
        agent.learn(FOREVER)
    agent.close()
    assert agent.steps == after < 10_000


def test_a_saved_state_counts_nothing_twice_in_the_session_that_saved_it():
    now = [100.0]
    with by(lambda: now[0]):
        parent = Budget(1.0, spent_s=20.0)
        parent.tick()
        now[0] += 25.0
        child = Budget(**parent.handle())
        child.go_on(45.0)
        child.tick()
        assert child.spent_s == 45.0
        now[0] += 15.0
        late = Budget(**json.loads(json.dumps(parent.handle())))
        assert late.over
        assert Budget(None, spent_s=1e9).tick() is False


@pytest.mark.parametrize("stack", ["on", "off"])
def test_all_members_of_a_sweep_share_the_time(stack, tmp_path):
    config = small_sweep(stack=stack, steps=FOREVER, schedule="linear", budget_minutes=20.0)
    directory = RunDirectory(tmp_path, config)
    training = prepared(config, sinks=[directory.log], save=directory.save)
    budget = Budget(20.0)
    with_budget(training, budget)
    with by(Clock()):
        end = run(training)
    training.group.close()
    directory.close()
    assert end.interrupted is None
    assert all(member.evaluation is not None for member in end.members)
    assert [member.progress for member in training.trainings] == [1.0] * 3
    steps = [member.steps for member in end.members]
    assert max(steps) - min(steps) <= 5
    assert 100 < min(steps) < 10_000
    assert events(tmp_path) == ["finished"] * 4
    assert budget.spent_s == pytest.approx(1200, abs=20)  # members tick in turn: at most one more turn of each
    # On with a larger one: what was spent is known, and counted once, not once a member.
    minutes = (budget.spent_s + 1.0) / 60
    longer = config.model_copy(update={"base": small(steps=FOREVER, schedule="linear", budget_minutes=minutes)})
    more = in_directory(longer, tmp_path)
    assert more.interrupted is None
    assert min(member.steps for member in more.members) > max(steps)
    saved = json.loads((checkpoint.latest(tmp_path).path / "state.json").read_text())
    spent = [member["training"]["spent_seconds"] for member in saved["members"]]
    assert max(spent) - min(spent) < 1e-6
    assert spent[0] == pytest.approx(60 * minutes, abs=20.0)  # by the real clock; three times would be an hour


@pytest.mark.slow
def test_processes_have_one_clock(tmp_path):
    base = small("laser/Catch", steps=FOREVER, budget_minutes=0.2, capacity_steps=6_000, checkpoint_every_steps=0)
    config = SweepConfig(base=base, grid={"learning_rate": [5e-4, 1e-3]}, processes=2)
    directory = RunDirectory(tmp_path, config)
    begun, killed = time.monotonic(), []
    supervisor = ProcessSupervisor(config, directory, 2)
    look = supervisor._look

    def watched():
        if not killed and supervisor.board.steps.min() > 300:
            killed.append(supervisor.processes[1].pid)
            os.kill(killed[0], signal.SIGKILL)
        return look()

    supervisor._look = watched
    try:
        end = supervisor.run()
    finally:
        directory.close()
    assert killed
    assert end.interrupted is None
    assert time.monotonic() - begun < 60
    # Every row of every process, also of the one that was started anew, knows of the same end.
    rows = [row for row in read(tmp_path, ["train"]) if row["budget_left_seconds"] > 0]
    ends = [row["time"] + row["budget_left_seconds"] for row in rows]
    assert max(ends) - min(ends) < 1.5
    moment = next(row["step"] for row in read(tmp_path, ["event"]) if row["event"] == "resumed" and row["step"] > 0)
    assert any(row["step"] > moment and row["member"] == 1 for row in rows)
    assert all(member.evaluation is not None for member in end.members)
    assert events(tmp_path).count("finished") == 3
    saved = json.loads((checkpoint.latest(tmp_path).path / "state.json").read_text())
    assert all(12 <= member["training"]["spent_seconds"] < 40 for member in saved["members"])
    # Started again there is nothing left to do, in processes and in one.
    again = RunDirectory(tmp_path)
    try:
        rest = ProcessSupervisor(config, again, 2).run()
    finally:
        again.close()
    assert [member.steps for member in rest.members] == [member.steps for member in end.members]


def test_the_command_line(tmp_path, capsys):
    path = tmp_path / "run"
    small_run = ["--environment.slots", "2", "--run.evaluate-episodes", "2", "--plain", "--run.runtime", "local"]
    train = ["train", "--env", "laser/Catch", "--out", str(path), "--steps", "1G", *small_run]
    assert cli.main([*train, "--budget-minutes", "0.02", "--run.log-every-s", "0.2"]) == 0
    out = capsys.readouterr().out
    assert "done: " in out
    assert "| left 0:00:0" in out
    first = checkpoint.latest(path).step
    assert cli.main(["resume", str(path), "--budget-minutes", "0.04", "--plain"]) == 0
    assert json.loads((path / "config.json").read_text())["run"]["budget_minutes"] == 0.04
    assert checkpoint.latest(path).step > first
    capsys.readouterr()
    assert cli.main(["status", str(path)]) == 0
    assert "finished, checkpoint at step" in (out := capsys.readouterr().out)
    assert "left of its budget" in out
    assert cli.main([*train, "--budget-minutes", "0"]) == 2
    assert "run.budget_minutes is 0: input should be greater than 0" in capsys.readouterr().err


def test_the_command_line_of_a_sweep(tmp_path, capsys):
    arguments = ["--env", "laser/Catch", "--grid", "learning_rate=1e-3,2e-3", "--steps", "1G", "--out", str(tmp_path)]
    more = ["--environment.slots", "2", "--run.evaluate-episodes", "2", "--plain", "--run.budget-minutes", "0.02"]
    assert cli.main(["sweep", "--recipe", "cartpole", *arguments, *more]) == 0
    assert "done: 2 members" in capsys.readouterr().out
    assert cli.main(["resume", str(tmp_path), "--budget-minutes", "0.03", "--plain"]) == 0
    assert json.loads((tmp_path / "sweep.json").read_text())["base"]["run"]["budget_minutes"] == 0.03


def test_a_sweep_in_python():
    result = Sweep(
        "laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, slots=2, evaluate_episodes=2, budget_minutes=0.01
    ).run(FOREVER)
    assert result.interrupted is None
    assert all(member.evaluation is not None for member in result.members)
