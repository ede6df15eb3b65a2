"""Agents with a memory through both runtimes: lanes that go on, exact resume, batches that were filled ahead of a checkpoint."""

import itertools
import json
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch

from laser_rl import LASER, checkpoint
from laser_rl.agent.memory_state import Recurrent
from laser_rl.errors import ConfigError
from laser_rl.training.build import batch_of
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.trainer import Trainer
from laser_rl.types import Inputs
from tests.agent.unroll_witness import UnrollWitness
from tests.envs.samples import Telltale
from tests.training.small import fingerprint, finish, small

TILES = {"options": {"tiles": True}, "torso": "tiles", "channels": 4}
KINDS = {
    "lstm": {},
    "gru": {"memory": "gru"},
    "preco": {"memory": "preco"},
    "stored": {"state": "stored"},
    "zero": {"state": "zero"},
    "burn-in": {"state": "stored", "burn_in_steps": 2},
    "prioritised unrolls": {"sampling": "prioritised", "state": "stored"},
    "popart": {"popart": True, "popart_step": 0.1},
    "pixel control": {**TILES, "pixel_control_cost": 0.1},
    "all of it": {**TILES, "memory": "preco", "pixel_control_cost": 0.1, "popart": True},
}
OFTEN = ("lstm", "stored", "prioritised unrolls", "all of it")


class Killed(Exception):
    pass


class Seen(NamedTuple):
    """What the learner's memory was given, and what may be learned from it."""

    learner: int
    batch: object
    is_transition: torch.Tensor
    policy: torch.Tensor


def recurrent(environment="laser/TMaze-3", **settings):
    tiny = {
        "slots": 4,
        "hidden": (8,),
        "memory": "lstm",
        "memory_size": 8,
        "run.steps": 340,
        "checkpoint_every_steps": 100,
    }
    return small(environment, **{**tiny, **settings})  # fmt: skip


@pytest.fixture
def unrolled(monkeypatch):
    """Every batch that a learner's memory went over, in order. What was stored for a column that goes on is made useless."""
    seen, unroll = [], Recurrent.unroll

    def listening(self, batch):
        copy = type(batch)(*(field.clone() for field in batch))
        output, masked = unroll(self, batch._replace(state=torch.where(batch.carried[:, None], 7.0, batch.state)))
        seen.append(Seen(id(self), copy, masked.is_transition.clone(), output.policy.detach().clone()))
        return output, masked

    monkeypatch.setattr(Recurrent, "unroll", listening)
    return seen


def carried_columns(seen):
    """Checks that each column which is said to go on does, row for row; returns how many did."""
    for before, now in itertools.pairwise(one.batch for one in seen):
        going = now.carried
        assert torch.equal(now.observation[0, going], before.observation[-1, going])
        assert torch.equal(now.is_first[0, going], before.is_first[-1, going])
        for name in ("member", "slot", "online"):
            assert torch.equal(getattr(now, name)[going], getattr(before, name)[going])
        assert torch.equal(now.last_action[0, going], before.action[-1, going] * ~now.is_first[0, going])
    return sum(int(one.batch.carried.sum()) for one in seen)


def lanes_kept(path):
    """Unrolls that the lanes of the newest checkpoint would have shown next; -1: drawn anew."""
    return checkpoint.latest(path).tensors["member-00"]["mixer/sampler.next"]


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_half_then_resume_is_the_whole_run_bit_for_bit(kind, tmp_path):
    whole, half, config = tmp_path / "whole", tmp_path / "half", recurrent(**KINDS[kind])
    result, _ = finish(config, whole)
    assert result.member.learner.recovery.counts.skipped == 0

    def kill(progress):
        if progress.step > 240:  # after the second checkpoint, before the third
            raise Killed

    with pytest.raises(Killed):
        finish(config, half, callbacks=[kill])
    loaded = checkpoint.latest(half)
    assert loaded.step == pytest.approx(200, abs=3)
    if config.replay.state == "refresh":  # in the middle of episodes, or it would be no test
        going = lanes_kept(half) >= 0
        assert going.any()
        assert loaded.tensors["member-00"]["learner/carried"][1:][going].abs().sum(-1).min() > 0  # column 0 is online
    finish(config, half)
    assert fingerprint(half) == fingerprint(whole)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["lstm", "gru", "preco"])
def test_the_kinds_of_memory_and_of_states_are_different_runs(memory):
    """Else the test above would compare the same run with itself."""
    ends = {
        (state, burn_in): finish(recurrent(memory=memory, state=state, burn_in_steps=burn_in, steps=200))[0]
        for state, burn_in in (("refresh", 0), ("stored", 0), ("zero", 0), ("zero", 2))
    }
    assert len({end.member.learner.flat.value.numpy().tobytes() for end in ends.values()}) == 4


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_lanes_go_on_where_the_batch_before_ended(runtime, unrolled):
    config = recurrent("Telltale", runtime=runtime, steps=800, capacity_steps=300)
    result, _ = finish(config, source=Telltale)
    assert carried_columns(unrolled) > len(unrolled) > 50
    assert result.member.learner.recovery.counts.skipped == 0
    for one in unrolled:  # nothing that goes on is left out, since nothing was lost
        assert torch.equal(one.is_transition, one.batch.is_transition)
    online = torch.stack([one.batch.state[one.batch.online] for one in unrolled])
    assert (online != 0).any()  # the actor's own


@pytest.mark.parametrize("state", ["stored", "zero"])
def test_unrolls_drawn_at_random_begin_with_the_stored_state_or_with_none(state, unrolled):
    finish(recurrent("Telltale", state=state), source=Telltale)
    assert not any(one.batch.carried.any() for one in unrolled)
    replayed = torch.stack([one.batch.state[~one.batch.online] for one in unrolled])
    assert bool((replayed != 0).any()) == (state == "stored")


def off_policy(seen):
    """How far the learner's policy is from the one that acted, over all rows that are learned from."""
    return max(float((one.policy[:-1] - one.batch.behaviour).abs()[one.is_transition].max()) for one in seen)


@pytest.mark.parametrize("runtime", ["serial", "local"])
@pytest.mark.parametrize("memory", ["lstm", "gru", "preco"])
def test_with_parameters_that_stand_still_lanes_see_what_the_actor_saw(runtime, memory, unrolled):
    config = recurrent("laser/TMaze-8", runtime=runtime, memory=memory, learning_rate=1e-30)
    finish(config)
    assert sum(int(one.is_transition[:, one.batch.carried].sum()) for one in unrolled) > 500
    assert off_policy(unrolled) < 1e-6


def test_so_do_stored_states_but_not_a_memory_without_one(unrolled):
    far = {}
    for state in ("stored", "zero"):
        unrolled.clear()
        finish(recurrent("laser/TMaze-8", state=state, learning_rate=1e-30))
        far[state] = off_policy(unrolled)
    assert far["stored"] < 1e-6
    assert far["zero"] > 1e-4


def test_rows_that_warm_the_memory_up_are_not_learned_from(unrolled):
    finish(recurrent("laser/TMaze-8", state="stored", burn_in_steps=2))
    for one in unrolled:
        replayed = ~one.batch.online
        assert not one.is_transition[:2, replayed].any()
        assert torch.equal(one.is_transition[2:], one.batch.is_transition[2:])
        assert torch.equal(one.is_transition[:, ~replayed], one.batch.is_transition[:, ~replayed])


def test_the_state_that_is_stored_is_that_before_the_first_row():
    """The network that acted, over the stored rows from the stored state, gives the distributions that were acted from."""
    result, _ = finish(recurrent("laser/Convention", learning_rate=1e-30))
    member, store = result.member, result.member.replay
    kept = store.export(np.arange(store.first_id, store.next_id))
    fields = (kept.observation, kept.is_first, kept.last_action, kept.last_reward)
    inputs = Inputs(*(torch.from_numpy(field).transpose(0, 1) for field in fields))
    behaviour = torch.from_numpy(kept.behaviour).transpose(0, 1)

    def error(state):
        with torch.no_grad():
            return (member.learner.network(inputs, state)[0].policy[:-1] - behaviour).abs().max()

    state = torch.from_numpy(kept.state)
    assert error(state) < 1e-6
    assert error(torch.zeros_like(state)) > 1e-4
    assert error(state.roll(1, 0)) > 1e-4


def filling_ahead(monkeypatch, patience_s=0.5):
    """The learner waits until another batch is filled; it dies after its first checkpoint."""
    unroll, save, members = Recurrent.unroll, Trainer.save, []

    def late(self, batch):
        deadline = time.monotonic() + patience_s
        while members[0].mixer.filled < members[0].learner.version + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        return unroll(self, batch)

    def last(self, **more):
        save(self, **more)
        raise Killed

    def remember(self, member, **more):
        members.append(member)
        return begin(self, member, **more)

    begin = MemberTraining.__init__
    monkeypatch.setattr(MemberTraining, "__init__", remember)
    monkeypatch.setattr(Trainer, "save", last)
    monkeypatch.setattr(Recurrent, "unroll", late)


def test_a_checkpoint_with_batches_ahead_goes_on_with_lanes_drawn_anew(tmp_path, monkeypatch, unrolled):
    config = recurrent("Telltale", runtime="local", steps=900, capacity_steps=600, checkpoint_every_steps=400)
    with monkeypatch.context() as patch:
        filling_ahead(patch)
        with pytest.raises(Killed):
            finish(config, tmp_path, source=Telltale)
    [state] = checkpoint.latest(tmp_path).state["members"]
    filled, version = state["mixer"]["filled"], state["learner"]["version"]
    assert filled > version > 0
    assert (lanes_kept(tmp_path) >= 0).any()  # lanes that are elsewhere than the states which the learner carries
    unrolled.clear()
    result, _ = finish(config, tmp_path, source=Telltale)
    assert result.steps >= 900
    assert not unrolled[0].batch.carried.any()
    assert carried_columns(unrolled) > 10
    assert unrolled[0].is_transition.any()


def test_a_stop_leaves_no_hole_in_the_streams(tmp_path, unrolled):
    """Whatever was on its way from the actor is kept: lanes of the next start go over the place without a gap."""

    def stop(progress):
        if progress.step < 300:
            return True
        time.sleep(0.3)  # the actor goes on until nobody takes its unrolls any more
        return False

    tiny = {"steps": 900, "capacity_steps": 900, "log_every_s": 0.01, "checkpoint_every_steps": 0}
    config = recurrent("Telltale", runtime="local", **tiny)
    stopped, _ = finish(config, tmp_path, source=Telltale, callbacks=[stop])
    assert stopped.interrupted == "a callback"
    assert stopped.steps < 900
    result, _ = finish(config, tmp_path, source=Telltale)
    assert result.steps >= 900
    assert carried_columns(unrolled) > 100
    store, witness = result.member.replay, UnrollWitness()
    witness.hear(store.export(np.arange(store.first_id, store.next_id)))
    assert witness.unrolls == len(store)


def test_lanes_are_drawn_anew_once_for_a_checkpoint_with_batches_ahead(tmp_path):
    """What is saved after such a resume is whole again, and the next resume goes on exactly there."""
    config = recurrent(steps=300, checkpoint_every_steps=0)
    finish(config, tmp_path)
    directory = RunDirectory(tmp_path, None)
    try:
        for ahead in (0, 1):
            trainer = prepare(config, directory)
            [member] = trainer.group.members
            member.actor.environments.close()
            assert (member.mixer.state_dict()["sampler.next"] >= 0).any() == (not ahead)
            assert member.mixer.filled == member.learner.version
            member.mixer.filled += 1  # as if a batch were on its way
            directory.save(trainer).result()
    finally:
        directory.close()


def test_a_second_call_does_not_go_on_from_batches_that_nobody_learned_from(unrolled):
    agent = LASER("laser/TMaze-3", config=recurrent(runtime="local")).learn(300)
    member, batch = agent.member, batch_of(agent.member)
    while not member.mixer.ready():
        taken = member.actor.step()
        if taken.unrolls is not None:
            member.mixer.offer(taken.unrolls)
    member.mixer.fill(batch)  # as one that was filled ahead when the first call ended
    agent.learn(300)
    agent.close()
    assert carried_columns(unrolled) > 50


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_replay_in_which_no_episode_fits_is_refused(runtime):
    config = recurrent("laser/TMaze-20", runtime=runtime, capacity_steps=40, steps=2_000)
    with pytest.raises(ConfigError, match=r"raise --replay\.capacity-steps or use --replay\.state stored"):
        finish(config)
    result, _ = finish(recurrent("laser/TMaze-20", runtime=runtime, capacity_steps=40, state="stored"))
    assert result.updates > 10


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_mixture_is_learned_with_a_memory_and_units_of_its_tasks(runtime, tmp_path, unrolled):
    config = recurrent(
        "laser/TMaze-3,laser/TMaze-5", runtime=runtime, popart=True, popart_step=0.1, steps=600, log_every_s=0.05
    )
    result, _ = finish(config, tmp_path)
    mean = result.member.learner.network.popart.mean
    assert mean.shape == (2,)
    assert mean[0] != mean[1]
    for one in unrolled:
        assert torch.equal(one.batch.task, one.batch.slot % 2)
    kept = json.loads((checkpoint.latest(tmp_path).path / "state.json").read_text())
    assert list(kept["members"][0]["training"]["window"]["tasks"]) == ["laser/TMaze-3", "laser/TMaze-5"]
