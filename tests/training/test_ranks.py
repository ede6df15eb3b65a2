"""A member that several processes learn: what it becomes, who waits for whom, and what happens to one that is killed."""

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from laser_rl import LASER
from laser_rl.config import override
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import read_from
from laser_rl.training import ranks as module
from laser_rl.training import stall
from laser_rl.training.build import RankLost, threads_of
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare, run, train
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.ranks import devices_of
from laser_rl.training.settings import sweep_from
from tests.agent.teams import flat_state, largest_difference, learner, network
from tests.training import one_rank
from tests.training.small import build_member, finish, small

CPU = {"run.device": "cpu", "run.threads": 1}


def on(devices, **settings):
    return small(**{**CPU, "run.devices": devices, **settings})


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, within_s=10.0):
    limit = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.05)
    return not any(map(alive, pids))


def pids_of(ranks):
    return [one.pid for one in ranks._processes.values()]


def when(holds, then, within_s=60.0):
    """A thread that does something once something holds."""

    def wait():
        limit = time.monotonic() + within_s
        while not holds() and time.monotonic() < limit:
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def two_processes_learn(tmp_path, device):
    address = f"file://{tmp_path}/meeting"
    program = [sys.executable, "-m", "tests.training.one_rank", "1", "2", address, device]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as other:
        one, digest = one_rank.learned(0, 2, address, device)
        said = other.communicate(timeout=60)[0].strip()
    assert said == digest
    return one


def one_device_learns(device="cpu"):
    net = network(**one_rank.KIND).to(device)
    alone = learner(net, one_rank.LOSS, one_rank.RATES)
    for batch in one_rank.batches(net):
        alone.update(batch, progress=0.0)
    return alone


@pytest.mark.slow
def test_two_processes_are_one_learner(tmp_path):
    """Over gloo, without anybody who supervises them: the same bits in both, and one device's numbers."""
    found, expected = two_processes_learn(tmp_path, "cpu"), one_device_learns()
    states = (flat_state(one, without={"sums", "tally"}) for one in (found, expected))
    assert largest_difference(*states) < 1e-12


def test_a_run_on_two_devices_is_that_of_one_and_leaves_nobody_behind():
    config = {"run.steps": 250, "clip_gradient_norm": 0.5}
    expected, _ = finish(on(1, **config))
    found, training = finish(on(2, **config))
    pids = pids_of(found.member.ranks)
    assert len(pids) == 1
    assert all(map(alive, pids))
    found.member.close()
    found.member.close()
    assert gone(pids)
    assert (found.steps, found.updates) == (expected.steps, expected.updates)
    torch.testing.assert_close(
        found.member.learner.flat.value, expected.member.learner.flat.value, rtol=1e-4, atol=1e-5
    )
    assert not torch.distributed.is_initialized()
    assert training.member.learner.report().keys() == expected.member.learner.report().keys()


def test_what_cannot_be_split_is_refused_before_anything_starts(monkeypatch):
    with pytest.raises(ConfigError, match=r"loss.batch_unrolls is 8; use a multiple of it"):
        on(3, batch_unrolls=8)
    with pytest.raises(ConfigError, match="members of a sweep have a device each"):
        sweep_from({"base": on(2).model_dump(), "grid": {"learning_rate": [1e-3, 2e-3]}})
    with pytest.raises(ConfigError, match="hand in a class or a function of a module"):
        build_member(on(2), torso=lambda shape: torch.nn.Linear(shape[0], 8))
    with pytest.raises(ConfigError, match=r"--loss\.trust behaviour"):
        build_member(on(2), "Pendulum-v1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError, match=r"from cuda:1 on, but torch sees 3 GPUs here; use --run\.devices 2"):
        devices_of(torch.device("cuda:1"), 4)
    assert devices_of(torch.device("cuda"), 3) == [torch.device("cuda", number) for number in range(3)]


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    large = network(memory="lstm")
    monkeypatch.setattr("laser_rl.training.build.SMALL_NETWORK", 1)
    assert [threads_of(on(devices, **{"run.threads": 0}), large) for devices in (1, 2, 4, 8)] == [8, 4, 2, 1]


@pytest.mark.slow
def test_a_rank_that_is_killed_costs_the_updates_since_the_last_checkpoint(tmp_path, caplog, monkeypatch):
    """Twice in a run: all is built again and goes on; nobody is left behind."""
    config, pids = on(2, **{"run.steps": 2_000, "run.runtime": "local"}), []
    directory = RunDirectory(tmp_path, config)
    started = module.Ranks.__init__

    def start(self, *arguments, **named):
        started(self, *arguments, **named)
        pids.extend(pids_of(self))
        if len(pids) < 3:
            after = 500 * len(pids)
            when(lambda: steps["now"] > after, lambda: os.kill(pids_of(self)[0], signal.SIGKILL))

    steps = {"now": 0}
    monkeypatch.setattr(module.Ranks, "__init__", start)
    before = MemberTraining.acted

    def count(self, number, episodes):
        before(self, number, episodes)
        steps["now"] = self.steps
        time.sleep(0.01)  # so that a run of these few steps is not over before anybody is killed

    monkeypatch.setattr(MemberTraining, "acted", count)
    with caplog.at_level(logging.WARNING):
        result = train(config, directory, sinks=[directory.log])
    directory.close()
    assert result.steps >= 2_000
    assert result.interrupted is None
    assert len(pids) == 3
    assert gone(pids)
    assert "rank 1 of 2, which learns from a part of every batch, has ended with status -9" in caplog.text
    rows, _ = read_from(tmp_path / "metrics.jsonl")
    events = [row["event"] for row in rows if row["kind"] == "event"]
    assert events.count("resumed") == 2
    assert events[-1] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_without_a_directory_a_killed_rank_ends_the_run_with_a_clear_error(runtime):
    trainer = prepare(on(2, **{"run.steps": 100_000, "run.runtime": runtime}))
    [member] = trainer.group.members
    try:
        when(lambda: trainer.updates > 20, lambda: os.kill(pids_of(member.ranks)[0], signal.SIGKILL))
        begin = time.monotonic()
        with pytest.raises(RankLost, match=r"rank 1 of 2.* has ended with status -9.*laser resume"):
            run(trainer)
        assert time.monotonic() - begin < 45
    finally:
        member.close()
    assert gone(pids_of(member.ranks))


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_waited_for_by_name_and_not_for_ever(monkeypatch, caplog):
    for waits in (module, stall):  # in the update, or before the next batch is filled
        monkeypatch.setattr(waits, "SAY_AFTER_S", 1.0)
    monkeypatch.setattr(module, "GIVE_UP_S", 20.0)
    trainer = prepare(on(2, **{"run.steps": 100_000}))
    [member] = trainer.group.members
    try:
        when(lambda: trainer.updates > 20, lambda: os.kill(pids_of(member.ranks)[0], signal.SIGSTOP))
        with caplog.at_level(logging.WARNING), pytest.raises(RankLost, match=r"waited .*20 s for rank 1"):
            run(trainer)
        assert "rank 0 has waited 1 s for rank 1 " in caplog.text
    finally:
        member.close()
    assert gone(pids_of(member.ranks))


@pytest.mark.slow
def test_ranks_die_with_rank_0(tmp_path):
    program = (
        "import time; from tests.training.small import build_member; from tests.training.test_ranks import on, pids_of\n"
        "member = build_member(on(3, batch_unrolls=6)); print(*pids_of(member.ranks), flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    process.kill()
    process.communicate(timeout=30)
    assert gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 4), (4, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, first, second):
    """A memory, PopArt and a moving bound: what the ranks carry is in the checkpoint as one device would have it."""
    settings = {"memory": "lstm", "memory_size": 8, "popart": True, "target_acceptance": 0.7}
    found = []
    for path, numbers in (("one", (1, 1)), ("several", (first, second))):
        for devices, steps in zip(numbers, (200, 400), strict=True):
            result, _ = finish(on(devices, **settings, **{"run.steps": steps}), tmp_path / path)
            result.member.close()
        found.append(result)
    assert (found[0].steps, found[0].updates) == (found[1].steps, found[1].updates)
    mine, theirs = (flat_state(one.member.learner, {"sums", "tally"}) for one in found)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ("laser/Catch", {"memory": "preco", "memory_size": 8}),
        ("CartPole-v1", {"sampling": "prioritised"}),
        ("Pendulum-v1", {"trust": "behaviour"}),
    ],
)
def test_all_kinds_of_agents_learn_alike_on_two_devices(environment, settings):
    """Checked every 200 updates, and here at the end: a rank that drifted would end the run."""
    found = []
    for devices in (1, 2):
        config = override(on(devices), {"environment.id": environment, "run.steps": 300, **settings})
        result, _ = finish(config)
        found.append(result.member.learner.flat.value.clone())
        result.member.close()
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_second_call_of_learn_uses_the_same_ranks():
    agent = LASER("CartPole-v1", config=on(2, **{"run.runtime": "local"}))
    agent.learn(200)
    pids = pids_of(agent.member.ranks)
    for _ in range(4):
        agent.learn(100)
    agent.member.learner.tune({"learning_rate": 1e-4})  # the others are told
    agent.learn(100)
    assert pids_of(agent.member.ranks) == pids
    agent.close()
    assert gone(pids)


@pytest.mark.slow
def test_an_error_in_a_rank_is_said_and_ends_the_run(monkeypatch, capfd, tmp_path):
    """A user's torso that only other processes fail to build."""
    (tmp_path / "odd_torso.py").write_text(
        "import os\nfrom torch import nn\n"
        "def torso(shape):\n"
        "    if os.environ.get('LASER_ODD') != str(os.getpid()):\n"
        "        raise RuntimeError('no torso here')\n"
        "    return nn.Linear(shape[0], 8)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LASER_ODD", str(os.getpid()))
    trainer = prepare(on(2), torso=importlib.import_module("odd_torso").torso)
    try:
        with pytest.raises(RankLost, match="what it said is above"):
            run(trainer)
    finally:
        trainer.group.close()
    assert "no torso here" in capfd.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_ranks_on_one_gpu(tmp_path):
    """NCCL refuses two ranks on one device; gloo adds up in the host's memory. The order of all launches is that of two GPUs."""
    found, expected = two_processes_learn(tmp_path, "cuda"), one_device_learns("cuda")
    torch.testing.assert_close(found.flat.value, expected.flat.value, rtol=1e-9, atol=1e-9)
