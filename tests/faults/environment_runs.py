"""Agents and sweeps that learn while something happens to their environments, and what is looked at afterwards."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from laser_rl.training.build_group import build_group
from laser_rl.training.launch import prepare, run
from laser_rl.training.settings import SweepConfig
from laser_rl.training.trainer import Trainer, run_in_turns
from tests.agent.unroll_witness import UnrollWitness
from tests.envs.samples import processes
from tests.faults.figures import VARIABLE
from tests.training.small import small

RATES = {"learning_rate": [5e-4, 1e-3, 4e-3]}
DEFAULTS = {
    "environment.placement": "process",
    "workers": 2,
    "slots": 4,
    "steps": 600,
    "capacity_steps": 6000,
    "checkpoint_every_steps": 0,
    "evaluate_episodes": 1,
    "log_every_s": 0.2,
}
USUAL_START_S = 0.3  # of a worker, on a machine that has nothing else to do
GIVE_UP_S = 120.0  # of whoever disturbs a run


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid="self"):
    """Processes that any thread of this one has started and not buried."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def zombies():
    return [pid for pid in children() if not alive(pid)]


def within(seconds, limit_s):
    """Whether something took no longer than its limit.

    Where the machine is too busy to start a worker as fast as usual, the limit is longer; not in `make faults`, whose figures are promises.
    """
    if seconds < limit_s or VARIABLE in os.environ:
        return seconds < limit_s
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import laser_rl.envs.worker"], check=True, timeout=60)
    return seconds < limit_s * (time.monotonic() - began) / USUAL_START_S


class Rhythm:
    """When the rows of each slot come: the longest silence of each, and how often its stream was broken."""

    def __init__(self, environments):
        self.broken, self.silence = 0, np.zeros(environments.slots)
        self.last = np.full(environments.slots, np.nan)  # its newest row, or when its worker was killed after that
        self._step = environments.step
        environments.step = self.step

    def step(self, slots, action):
        rows = self._step(slots, action)
        now = time.monotonic()
        self.broken += int(rows.restarted.sum())
        self.silence[rows.slots] = np.fmax(self.silence[rows.slots], now - self.last[rows.slots])
        self.last[rows.slots] = now
        return rows


class Kept:
    """A sink that keeps the rows of metrics."""

    def __init__(self):
        self.rows = []

    def write(self, kind, step, update, values):
        self.rows.append({"kind": kind, "step": step, "update": update, **values})

    def flush(self):
        pass

    close = flush


class Learned:
    """A run that is over: one member, or several with one replay."""

    def __init__(self, trainings, rhythms):
        self.trainings, self.rhythms = trainings, rhythms
        members = [training.member for training in trainings]
        self.environments = list(
            {id(member.actor.environments): member.actor.environments for member in members}.values()
        )
        self.updates, self.offered = sum(training.update for training in trainings), 0
        self.broken = sum(rhythm.broken for rhythm in rhythms)
        self.silence_s = max(rhythm.silence.max() for rhythm in rhythms)

    def count(self, name):
        return sum(environments.counters()[name] for environments in self.environments)

    def check(self):
        """Every unroll in the replay really happened, all were learned from, all steps made. Returns how many steps were looked at."""
        stores, rows = {id(t.member.replay): t.member.replay for t in self.trainings}, 0
        for replay in stores.values():
            witness = UnrollWitness()
            kept = replay.export(np.arange(replay.first_id, replay.next_id))
            witness.hear(kept, contiguous=False)
            assert witness.unrolls == len(replay) > 0
            rows += kept.reward.size
        unrolls = sum(replay.next_id for replay in stores.values())
        self.offered = unrolls - sum(training.member.mixer.pending for training in self.trainings)
        assert self.offered == self.updates > 0  # one new unroll for each update
        for training in self.trainings:
            slots = training.member.config.environment.slots
            assert training.target <= training.steps < training.target + slots
        assert not zombies()
        return rows


def learn(source, *, disturb=None, sinks=(), begun=None, **settings):
    """An agent learns; `disturb(trainings, pools, over)` runs beside it. What began is in `begun`, also if it ends with an error."""
    trainer = prepare(small("Telltale", **{**DEFAULTS, **settings}), source=source, sinks=sinks)
    environments = trainer.group.members[0].actor.environments
    with _closing(environments):
        rhythm = Rhythm(environments)
        (begun if begun is not None else []).extend(trainer.trainings)
        with _beside(disturb, trainer.trainings, [environments]):
            run(trainer, evaluate_at_end=False)
    return Learned(trainer.trainings, [rhythm])


def learn_in_a_sweep(source, *, disturb=None, sinks=(), begun=None, stack="on", **settings):
    """Three members in this process: side by side with one set of environments, or in turn with one each."""
    base = small("Telltale", **{**DEFAULTS, "slots": 2, **settings})
    config = SweepConfig(base=base, grid=RATES, stack=stack)
    crew = build_group(config, source)
    with _closing(crew):
        pools = list({id(member.actor.environments): member.actor.environments for member in crew.members}.values())
        rhythms, training = [Rhythm(pool) for pool in pools], Trainer(config, crew, sinks=sinks)
        (begun if begun is not None else []).extend(training.trainings)
        crew.begin()
        with _beside(disturb, training.trainings, pools):
            run_in_turns(training)
        training.report()
    assert len(training.stores) == 1
    return Learned(training.trainings, rhythms)


@contextlib.contextmanager
def _closing(what):
    try:
        yield
    finally:
        what.close()


@contextlib.contextmanager
def _beside(disturb, trainings, pools):
    over, errors = threading.Event(), []

    def work():
        try:
            disturb(trainings, pools, over)
        except Exception as error:  # for the test to hear
            errors.append(error)

    thread = threading.Thread(target=work if disturb else over.wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)
    assert not thread.is_alive()
    assert not errors, errors


def wait_for(condition, over, what):
    """False if the run was over before."""
    deadline = time.monotonic() + GIVE_UP_S
    while not condition():
        if over.wait(0.002):
            return False
        assert time.monotonic() < deadline, f"waited {GIVE_UP_S:g} s for {what}"
    return True


class Killing:
    """SIGKILL to workers taken at random, at random numbers of steps spread over the whole run; `times` of them."""

    def __init__(self, times):
        self._times, self.done = times, 0

    def __call__(self, trainings, pools, over):
        dice = random.Random(3)  # noqa: S311
        share = sum(training.target for training in trainings) / (self._times + 1)
        for number in range(self._times):
            at = share * (number + dice.random())
            wait_for(lambda at=at: sum(training.steps for training in trainings) >= at, over, f"step {at:.0f}")
            while self.done == number and not over.is_set():
                pool = dice.choice(pools)
                worker = dice.choice(pool.workers)
                if (process := worker.process) is not None and alive(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
                        self.done += 1
                        # A process that is still dying must not be killed, and counted, again.
                        wait_for(lambda pid=process.pid: not alive(pid), over, "its end")
                        pool.step.__self__.last[list(worker.slots)] = time.monotonic()


class Stopping:
    """SIGSTOP to one worker, a third of the way in; how long until another process has its place."""

    def __init__(self):
        self.replaced_s = float("nan")

    def __call__(self, trainings, pools, over):
        wait_for(lambda: trainings[0].steps >= trainings[0].target / 3, over, "a third of the steps")
        before = processes(pools[0])
        victim = before[0]
        os.kill(victim, signal.SIGSTOP)
        began = time.monotonic()
        wait_for(lambda: victim not in (now := processes(pools[0])) and len(now) == len(before), over, "another worker")
        self.replaced_s = time.monotonic() - began
