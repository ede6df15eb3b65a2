"""One side of the ring stands still: the other waits, says for whom, and nothing piles up meanwhile.

A single thread cannot be stopped by a signal. A learner is stopped in a callback, which its own thread runs; an actor in its environment.
"""

import contextlib
import logging
import os
import random
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from laser_rl.agent.learner import Learner
from laser_rl.replay import shared
from laser_rl.replay.store import Replay
from laser_rl.training import stall as waiting
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare, run
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stall import Gate, StallWarning, StepBarrier
from laser_rl.training.supervisor import ProcessSupervisor
from laser_rl.training.trainer import PERCENTILES, ages, composition
from tests.envs.samples import Telltale, processes
from tests.faults.measure import held
from tests.replay.inputs import VECTOR, numbered
from tests.replay.test_shared import wait_until
from tests.training.small import small

BATCHES = "LASER_TEST_BATCHES"  # a file for the sizes of all batches, in processes of a sweep
ONLINE, COLUMNS = 2, 8
MOST_GROWTH = 8 << 20  # while somebody waits: allocators, not queues
WORKERS = {"environment.placement": "process", "workers": 3, "slots": 6}


@pytest.fixture
def batches(monkeypatch):
    """Online and all columns of every batch that is learned from."""
    seen, update = [], Learner.update

    def listening(self, batch, *, progress):
        seen.append((int(batch.online.sum()), len(batch.online)))
        return update(self, batch, progress=progress)

    monkeypatch.setattr(Learner, "update", listening)
    return seen


@pytest.fixture
def soon(monkeypatch):
    """Who waits says so after 0.3 s; then a pause of 1 s is enough."""
    monkeypatch.setattr(waiting, "SAY_AFTER_S", 0.3)
    monkeypatch.setattr(shared, "SAY_AFTER_S", 0.3)


class Stopped:
    """Somebody stands still once, after so many calls, for so long; what this process holds is looked at meanwhile."""

    def __init__(self, seconds, after):
        self._seconds, self._left = seconds, after
        self.began = self.growth = None

    def __call__(self, *_):
        self._left -= 1
        if self._left:
            return
        self.began, before = time.time(), held()
        while time.time() < self.began + self._seconds:
            time.sleep(self._seconds / 20)
            now = held()
            self.growth = max(self.growth or 0, now.memory + now.shared - before.memory - before.shared)

    def went_on(self, caplog):
        """Whether who had waited said that it goes on; or has not for too long."""
        late = self.began is not None and time.time() > self.began + self._seconds + 20
        return late or "goes on: it had waited" in caplog.text

    def said_after(self, caplog, text):
        """Seconds from the stop to the first message with this text."""
        times = [record.created for record in caplog.records if text in record.getMessage()]
        assert times, f"nobody said {text!r}: {caplog.text}"
        return min(times) - self.began


class Slow(Telltale):
    """Calls `pause` at every step."""

    def __init__(self, pause):
        super().__init__()
        self._pause = pause

    def step(self, action):
        self._pause()
        return super().step(action)


def learn(source, *, callback=lambda progress: None, until=None, **settings):
    """Train; until an event is set, if there is one."""
    defaults = {
        "batch_unrolls": COLUMNS,
        "fraction": 1 - ONLINE / COLUMNS,
        "log_every_s": 0.05,
        "log_every_updates": 5,
        "checkpoint_every_steps": 0,
    }
    ended = [callback, lambda progress: until is None or not until.is_set()]
    trainer = prepare(small("Telltale", **{**defaults, **settings}), source=source, callbacks=ended)
    [member] = trainer.group.members
    try:
        run(trainer, evaluate_at_end=False)
    finally:
        member.actor.environments.close()
    return member, trainer.trainings[0]


def assert_exact(batches, training):
    assert set(batches) == {(ONLINE, COLUMNS)}
    assert len(batches) == training.update


def stop_the_learner(seconds, batches, caplog):
    stopped, over = Stopped(seconds, after=5), threading.Event()

    def callback(progress):
        if stopped.went_on(caplog):
            over.set()
        stopped()

    _, training = learn(Telltale, callback=callback, until=over, runtime="local", steps=10**7)
    assert_exact(batches, training)
    assert stopped.growth < MOST_GROWTH
    return stopped, stopped.said_after(caplog, "the actor has waited")


def stop_the_actor(seconds, batches, caplog):
    stopped, over = Stopped(seconds, after=1000), threading.Event()

    def callback(progress):
        if stopped.went_on(caplog):
            over.set()

    source = partial(Slow, stopped)
    _, training = learn(source, callback=callback, until=over, runtime="local", steps=10**7, evaluate_episodes=1)
    assert_exact(batches, training)
    assert stopped.growth < MOST_GROWTH
    return stopped, stopped.said_after(caplog, "the learner has waited")


@pytest.mark.fault(13)
@pytest.mark.parametrize("stop", [stop_the_learner, stop_the_actor])
def test_who_is_stopped_is_waited_for_and_named(stop, soon, batches, caplog):
    stop(1.0, batches, caplog)
    assert "goes on: it had waited" in caplog.text


@pytest.mark.slow
@pytest.mark.fault(13)
@pytest.mark.parametrize(("stop", "name"), [(stop_the_learner, "learner"), (stop_the_actor, "actor")])
def test_who_is_stopped_for_ten_seconds_is_waited_for_and_named(stop, name, batches, caplog, figure):
    stopped, said_s = stop(10.0, batches, caplog)
    assert said_s <= 5
    figure(
        f"{name} stopped 10 s: said after {said_s:.1f} s, {stopped.growth / 1e6:.1f} MB more meanwhile, "
        f"{len(batches):,} batches of {ONLINE} : {COLUMNS - ONLINE}"
    )


def pausing(times, pids, over, *, longest_s=0.03):
    """Stop one of these processes at a time, each time for a random while."""
    dice = random.Random(6)  # noqa: S311
    for _ in range(times):
        victim = dice.choice(pids())
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP)
            time.sleep(dice.uniform(0, longest_s))
            os.kill(victim, signal.SIGCONT)
        time.sleep(dice.uniform(0, longest_s))
    over.set()


def pause_workers(runtime, times, batches):
    over, dice, grown = threading.Event(), random.Random(7), []  # noqa: S311
    source, helpers = partial(Telltale, pause_s=0.0005), []

    def callback(progress):
        grown.append(held().memory)
        if not helpers and len(grown) > 5:
            helpers.append(
                threading.Thread(target=pausing, args=(times, partial(processes, environments), over), daemon=True)
            )
            helpers[0].start()
        time.sleep(dice.uniform(0, 0.02))  # the learner pauses, too

    settings = {**WORKERS, "runtime": runtime, "steps": 10**7, "capacity_steps": 3000}
    config = small("Telltale", **settings, batch_unrolls=COLUMNS, fraction=1 - ONLINE / COLUMNS, log_every_s=0.1)
    trainer = prepare(config, source=source, callbacks=[callback, lambda progress: not over.is_set()])
    [training], environments = trainer.trainings, trainer.group.members[0].actor.environments
    try:
        run(trainer, evaluate_at_end=False)
    finally:
        environments.close()
    helpers[0].join(30)
    assert_exact(batches, training)
    assert environments.counters()["restarts"] == 0
    return training, grown[-1] - grown[len(grown) // 4]


@pytest.mark.fault(13)
def test_random_pauses_of_workers_and_learner(batches):
    pause_workers("local", 15, batches)


@pytest.mark.slow
@pytest.mark.fault(13)
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_two_hundred_random_pauses_of_workers_and_learner(runtime, batches, figure):
    _, growth = pause_workers(runtime, 200, batches)
    assert growth < MOST_GROWTH
    figure(
        f"{runtime}, 200 pauses of workers and learner: {len(batches):,} batches, all {ONLINE} : {COLUMNS - ONLINE}, "
        f"{growth / 1e6:+.1f} MB"
    )


# Sweeps


def counted():
    """An environment for processes of a sweep: what is learned from there is written down."""
    if not hasattr(Learner.update, "counted"):
        update, file = Learner.update, os.open(os.environ[BATCHES], os.O_WRONLY | os.O_APPEND)

        def counting(self, batch, *, progress):
            os.write(file, f"{int(batch.online.sum())} {len(batch.online)}\n".encode())
            return update(self, batch, progress=progress)

        counting.counted = True
        Learner.update = counting
    return gymnasium.make("CartPole-v1")


def sweep_with(path, disturb, monkeypatch):
    """A sweep of two processes without an end; `disturb` runs beside it once it learns. The sizes of all batches, and the sweep."""
    file, over = path / "batches", threading.Event()
    file.touch()
    monkeypatch.setenv(BATCHES, str(file))
    base = small(
        f"{__name__}:counted",
        steps=10**7,
        checkpoint_every_steps=0,
        evaluate_episodes=1,
        batch_unrolls=COLUMNS,
        fraction=1 - ONLINE / COLUMNS,
        log_every_s=0.2,
    )
    config = SweepConfig(base=base, grid={"learning_rate": [5e-4, 1e-3]}, stack="off", processes=2)
    directory = RunDirectory(path / "sweep", config)
    supervisor = ProcessSupervisor(config, directory, 2, callbacks=[lambda progress: not over.is_set()])
    failures = []

    def beside():
        try:
            wait_until(lambda: file.stat().st_size > 1000)
            disturb(supervisor)
        except BaseException as error:
            failures.append(error)
        finally:
            over.set()

    helper = threading.Thread(target=beside, daemon=True)
    helper.start()
    try:
        end = supervisor.run()
    finally:
        directory.close()
    helper.join(30)
    if failures:
        raise failures[0]
    assert all(process.restarts == 0 for process in supervisor.processes)
    sizes = [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
    assert set(sizes) == {(ONLINE, COLUMNS)}
    assert len(sizes) >= sum(
        member.updates for member in end.members
    )  # those after the last word to the parent are not in it
    return sizes


def processes_of(supervisor):
    return [process.pid for process in supervisor.processes]


@pytest.mark.slow
@pytest.mark.fault(13)
def test_a_process_of_a_sweep_stopped_for_ten_seconds(tmp_path, monkeypatch, capfd, figure):
    growth, said_s = [], []

    def stop_one(supervisor):
        pid, other = processes_of(supervisor)
        before, steps, said = held(other), supervisor.board.steps.copy(), ""
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        while time.monotonic() < begin + 10:
            time.sleep(0.05)
            said += capfd.readouterr().err
            if not said_s and "the process of members [1] has waited 4 s for member 0, which is behind" in said:
                said_s.append(time.monotonic() - begin)
        growth.append(held(other).memory - before.memory)
        assert supervisor.board.steps[1] - steps[1] < 100  # it waits
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: supervisor.board.steps.min() > steps.max() + 300)

    sizes = sweep_with(tmp_path, stop_one, monkeypatch)
    assert said_s[0] <= 5
    assert growth[0] < MOST_GROWTH
    figure(
        f"a sweep's process stopped 10 s: said after {said_s[0]:.1f} s, {growth[0] / 1e6:+.1f} MB, {len(sizes):,} batches, all exact"
    )


@pytest.mark.slow
@pytest.mark.fault(13)
def test_two_hundred_random_pauses_of_a_sweeps_processes(tmp_path, monkeypatch, figure):
    growth = []

    def pause(supervisor):
        before = [held(pid).memory for pid in processes_of(supervisor)]
        pausing(200, lambda: processes_of(supervisor), threading.Event())
        growth.extend(held(pid).memory - b for pid, b in zip(processes_of(supervisor), before, strict=True))

    sizes = sweep_with(tmp_path, pause, monkeypatch)
    assert max(growth) < MOST_GROWTH
    figure(
        f"200 pauses of a sweep's processes: {len(sizes):,} batches, all {ONLINE} : {COLUMNS - ONLINE}, {max(growth) / 1e6:+.1f} MB"
    )


class Crowded:
    """A lock that others have been waiting for: whenever it is let go, one of them gets in."""

    def __init__(self, lock, other):
        self._lock, self._other = lock, other

    def __enter__(self):
        self._lock.__enter__()

    def __exit__(self, *error):
        self._lock.__exit__(*error)
        self._other()


@pytest.mark.fault(13)
def test_writers_do_not_disturb_who_looks_at_the_replay():
    """The parent of a sweep looks at unrolls that its processes replace at any moment."""
    store, random = Replay(VECTOR, 3 * VECTOR.steps, shared=True), np.random.default_rng(0)
    writer, block = Replay.attach(VECTOR, store.handle()), numbered(VECTOR, range(3))
    store.insert(block)
    store.lock = Crowded(store.lock, lambda: writer.insert(block))
    assert sum(composition([store]).values()) > 1
    assert len(ages([SimpleNamespace(version=10)], store, random)) == len(PERCENTILES)
    assert store.first_id >= 6


# Who waits for whom


@pytest.mark.fault(13)
def test_who_waits_at_a_gate_says_for_whom(soon, caplog):
    gate, inside, leave = Gate("the actor to finish its step"), threading.Event(), threading.Event()

    def hold():
        with gate:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold, name="actor")
    thread.start()
    assert inside.wait(10)
    threading.Timer(1.0, leave.set).start()
    with gate:
        pass
    thread.join(10)
    assert "thread MainThread has waited" in caplog.text
    assert "for the actor to finish its step (thread actor)" in caplog.text
    assert gate.holder is None


@pytest.mark.fault(13)
def test_who_waits_says_so_within_five_seconds_and_gives_up_within_ten_minutes(monkeypatch, caplog):
    clock = [1000.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    wait = StallWarning("the learner", "unrolls from the actor")

    def seconds_until(over):
        while not over():
            clock[0] += 0.2  # a wait is looked at so often
            wait.again()
        return clock[0] - 1000.0

    assert 3.0 < seconds_until(lambda: "has waited" in caplog.text) <= 5.0
    with pytest.raises(TimeoutError, match="gives up"):
        seconds_until(lambda: clock[0] > 1601.0)
    assert clock[0] > 1590.0


@pytest.mark.fault(13)
def test_who_waits_gives_up_in_the_end(monkeypatch):
    monkeypatch.setattr(waiting, "GIVE_UP_S", 0.0)
    with pytest.raises(TimeoutError, match="the learner has waited 0 s for unrolls from the actor and gives up"):
        StallWarning("the learner", "unrolls from the actor").again()
    gate, thread = Gate("somebody"), threading.Thread(target=time.sleep, args=(0.5,))
    with gate, pytest.raises(TimeoutError, match="gives up"), gate:
        pass
    thread.start()
    with pytest.raises(TimeoutError, match="for the actor"):
        waiting.join(thread, "the learner", "the actor")
    thread.join(10)


@pytest.mark.fault(13)
def test_a_member_that_waits_names_the_slowest(soon, caplog):
    pace = StepBarrier(np.array([0, 18, 25]), [1, 2], unroll_steps=20, slots=4)
    deadline = time.monotonic() + 5
    while "has waited" not in caplog.text:
        assert time.monotonic() < deadline
        pace.wait()
    assert "the process of members [1, 2] has waited 0 s for member 0, which is behind" in caplog.text
    pace.move(0, 19)
    assert "goes on" in caplog.text


@pytest.mark.fault(13)
def test_who_waits_for_the_lock_of_the_replay_says_for_whom(soon, caplog):
    first = Replay(VECTOR, 100, shared=True)
    second = Replay.attach(VECTOR, first.handle())
    for store in (first, second):  # the lock of the threads, and that of the processes
        caplog.clear()
        held_by, leave = threading.Event(), threading.Event()

        def hold(held_by=held_by, leave=leave):
            with first.lock:
                held_by.set()
                leave.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held_by.wait(10)
        threading.Timer(0.6, leave.set).start()
        with caplog.at_level(logging.WARNING, "laser_rl.replay"):
            store.insert(numbered(VECTOR, [1]))
        thread.join(10)
        assert "for the lock of the replay; a thread of this process has it" in caplog.text
