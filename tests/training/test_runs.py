import math
import os

import gymnasium
import numpy as np
import pytest
import torch

from laser_rl import checkpoint, recipes
from laser_rl.agent.learner import Learner
from laser_rl.config import override
from laser_rl.errors import ConfigError, UserError
from laser_rl.metrics.log import read
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare
from laser_rl.training.member_training import MemberTraining
from tests.agent.unroll_witness import UnrollWitness
from tests.envs.samples import Telltale
from tests.training.small import fingerprint, finish, run_one, small

RUNTIMES = ("serial", "local")


@pytest.fixture
def batches(monkeypatch):
    """Every batch that is learned from."""
    seen, update = [], Learner.update

    def listening(self, batch, *, progress):
        seen.append((int(batch.online.sum()), len(batch.online), batch.version.clone(), self.version, progress))
        return update(self, batch, progress=progress)

    monkeypatch.setattr(Learner, "update", listening)
    return seen


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("fraction", "batch", "online"), [(0.0, 4, 4), (0.75, 8, 2), (0.875, 8, 1), (1.0, 4, 0)])
def test_every_batch_has_the_exact_online_share(batches, runtime, fraction, batch, online):
    result, training = finish(small(runtime=runtime, fraction=fraction, batch_unrolls=batch))
    assert len(batches) == result.updates > 0
    assert {(one[0], one[1]) for one in batches} == {(online, batch)}
    # One update for every `max(1, online)` new unrolls of 5 rows; a few rows are not yet in a whole unroll.
    rows = sum(len(one) for one in (batches,)) * max(1, online) * 5
    assert result.steps + training.member.actor.environments.slots * 5 * 2 + result.steps // 9 - rows >= 0


def test_online_unrolls_are_the_newest_and_each_is_used_once(batches):
    finish(small(fraction=0.5, batch_unrolls=4))
    ages = [version - stored[:2].max().item() for _, _, stored, version, _ in batches]
    assert max(ages[5:]) <= 5  # an unroll of 5 steps in 3 staggered slots is that old when it is whole


@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1", "laser/Catch", "laser/DeepSea-5"])
def test_the_same_seed_gives_the_same_bits(environment):
    config = small(environment)
    (one, _), (two, _), (other, _) = finish(config), finish(config), finish(small(environment, seed=1))
    assert one.member.learner.flat.value.numpy().tobytes() == two.member.learner.flat.value.numpy().tobytes()
    assert one.evaluation == two.evaluation
    assert one.member.learner.flat.value.numpy().tobytes() != other.member.learner.flat.value.numpy().tobytes()


def test_processes_in_lockstep_learn_what_a_thread_learns():
    (one, _), (two, _) = finish(small()), finish(small(placement="process", workers=2))
    assert one.member.learner.flat.value.numpy().tobytes() == two.member.learner.flat.value.numpy().tobytes()


class Choices(gymnasium.Env):
    """Two choices at once, a Dict to see, and the sum of what was chosen as the reward."""

    observation_space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Box(-1, 1, (2,), np.float32), "mode": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.MultiDiscrete([2, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 7
        return self._look(), {}

    def step(self, action):
        self.left -= 1
        return self._look(), float(action.sum()), False, self.left == 0, {}

    def _look(self):
        return {"place": self.np_random.uniform(-1, 1, 2).astype(np.float32), "mode": self.np_random.integers(3)}


@pytest.mark.parametrize("runtime", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_several_choices_and_mixed_observations(runtime):
    config = small("Choices", runtime=runtime, steps=4000, learning_rate=0.01)
    result, _ = finish(config, source=Choices)
    assert result.member.layout.action_shape == (2,)
    assert result.member.layout.observation_shape == (5,)
    assert result.evaluation.mean > 20  # 28 is the best, 14 is chance


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_pictures_with_a_stack(codec):
    config = small("laser/Catch", options={"image": True}, frame_stack=3, codec=codec)
    result, _ = finish(config)
    assert result.member.learner.network.torso.convolution.in_channels == 3
    assert result.updates > 50


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_replay_holds_whole_streams_only(runtime):
    config = small("Telltale", runtime=runtime, steps=2000, capacity_steps=1000)
    result, _ = finish(config, source=Telltale)
    replay, witness = result.member.replay, UnrollWitness()
    assert len(replay) == 200  # full, and the oldest have left
    witness.hear(replay.export(np.arange(replay.first_id, replay.next_id)))
    assert witness.unrolls == 200


@pytest.mark.fault(9)
def test_half_then_resume_is_the_whole_run_bit_for_bit(tmp_path):
    longer = {"run.steps": 800}  # a checkpoint is due between the resume and the end, and must come
    evaluated, rmsprop = {"evaluate_every_steps": 150}, {"kind": "rmsprop", "schedule": "linear"}
    for number, settings in enumerate((evaluated, rmsprop, {"environment.placement": "process"})):
        whole, half = tmp_path / f"whole{number}", tmp_path / f"half{number}"
        finish(small(**settings, **longer), whole)

        class Killed(Exception):
            pass

        def kill(progress):
            if progress.step > 430:  # after the second checkpoint, before the third
                raise Killed

        with pytest.raises(Killed):
            finish(small(**settings, **longer), half, callbacks=[kill])
        assert checkpoint.latest(half).step == pytest.approx(400, abs=3)
        _, training = finish(small(**settings, **longer), half)
        assert training.steps >= 800
        assert fingerprint(half) == fingerprint(whole)


def test_a_start_that_died_before_its_first_checkpoint_leaves_no_rows(tmp_path):
    whole, twice = tmp_path / "whole", tmp_path / "twice"
    finish(small(), whole)

    def die(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(small(), twice, callbacks=[die])
    assert checkpoint.latest(twice) is None
    assert read(twice)
    finish(small(), twice)
    assert fingerprint(twice) == fingerprint(whole)


def test_killed_between_the_last_row_and_the_last_checkpoint_writes_no_row_twice(tmp_path, monkeypatch):
    whole, twice = tmp_path / "whole", tmp_path / "twice"
    finish(small(), whole)

    def die(self, event):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MemberTraining, "announce", die)  # the last row is written, the last checkpoint is not
        with pytest.raises(KeyboardInterrupt):
            finish(small(), twice)
    for _ in range(2):  # and a finished run that is started again adds nothing
        finish(small(), twice)
        assert fingerprint(twice) == fingerprint(whole)


def test_metrics_say_what_happened(tmp_path):
    finish(small(evaluate_every_steps=200), tmp_path)
    rows = read(tmp_path)
    train = [row for row in rows if row["kind"] == "train"]
    assert [row["update"] for row in train][:3] == [10, 20, 30]
    last = train[-1]
    wanted = "acceptance kl rho_clipped c_clipped entropy lag_updates replay_fill replay_age_updates memory_bytes steps_per_second"
    assert set(wanted.split()) <= last.keys()
    assert (last["online_unrolls"], last["replayed_unrolls"]) == (1, 7)
    assert 0 <= last["acceptance"] <= 1
    assert last["replay_fill"] == 1.0
    episodes = [row for row in rows if row["kind"] == "episode"]
    assert len(episodes) == last["episodes"]
    assert all(row["return"] == row["length"] for row in episodes)  # CartPole pays 1 a step
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    assert len(evaluations) == 3
    assert all(row["ci95_low"] <= row["mean"] <= row["ci95_high"] for row in evaluations)


def test_without_replay_nothing_is_said_about_it(tmp_path):
    finish(small(fraction=0.0, batch_unrolls=4, trust="off"), tmp_path)
    last = read(tmp_path, ["train"])[-1]
    assert not {"acceptance", "kl", "replay_fill", "replay_age_updates"} & last.keys()
    assert not any(isinstance(value, float) and math.isnan(value) for value in last.values())


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_callback_can_end_a_run(runtime):
    seen = []

    def callback(progress):
        seen.append(progress)
        return progress.step < 200

    result, _ = finish(small(steps=50_000, runtime=runtime, log_every_s=0.05), callbacks=[callback])
    assert result.interrupted == "a callback"
    assert result.steps < 20_000
    assert {"acceptance", "return_mean"} <= seen[-1].values.keys()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_error_in_the_environment_ends_the_run_with_it(runtime):
    class Broken(Telltale):
        def step(self, action):
            raise RuntimeError("the gears are jammed")

    with pytest.raises(UserError, match="the gears are jammed"):
        finish(small("Broken", runtime=runtime), source=Broken)


@pytest.mark.fault(23)
def test_two_runs_in_one_directory_are_refused(tmp_path):
    directory = RunDirectory(tmp_path, small())
    try:
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            RunDirectory(tmp_path, small())
    finally:
        directory.close()
    RunDirectory(tmp_path).close()


def test_what_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"is no run directory: it has no config\.json"):
        RunDirectory(tmp_path / "nothing")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_game_is_learned_from_through_the_native_environment(runtime, tmp_path):
    settings = {
        "width": 1, "codec": "zstd", "slots": 4, "atari.threads": 1, "unroll_steps": 4, "batch_unrolls": 4, "replay.fraction": 0.5,
        "capacity_steps": 2000, "run.steps": 120, "runtime": runtime, "checkpoint_every_steps": 0,
    }  # fmt: skip
    settings["environment.atari.threads"] = settings.pop("atari.threads")
    config = override(recipes.atari("ALE/Pong-v5"), settings)
    trainer = prepare(config)
    [member] = trainer.group.members
    before = member.learner.flat.value.clone()
    run_one(trainer, evaluate_at_end=False)
    assert trainer.updates >= 8
    assert member.learner.recovery.counts.skipped == 0
    assert not torch.equal(before, member.learner.flat.value)
    assert member.replay.codec == "zstd"
    stored = member.replay.export(np.arange(member.replay.first_id, member.replay.next_id))
    assert stored.observation.shape[1:] == (3 + 5, 1, 84, 84)
    assert stored.observation.max() > 100
