"""Every setting there is, in one of two members only: the sweep works, or one ConfigError says why not, whichever member comes first."""

import numpy as np
import pytest
import torch

from laser_rl import Sweep
from laser_rl.config import RunConfig, setting_fields
from laser_rl.errors import ConfigError
from laser_rl.training.build_group import build_group
from laser_rl.training.member_group import MemberGroup
from laser_rl.training.pbt import PbtConfig
from tests.training.test_sweeps import prepared, small_sweep, to_the_end

MAY = {
    "environment.options": {"columns": 5},
    "environment.placement": "thread",
    "environment.workers": 1,
    "environment.step_timeout_s": 30.0,
    "environment.reset_timeout_s": 30.0,
    "environment.on_bad_value": "drop",
    "environment.atari.most_noops": 3,
    "environment.atari.sticky_actions": 0.5,
    "environment.atari.most_frames": 400,
    "environment.atari.threads": 1,
    "network.torso": "mlp",
    "network.hidden": (9, 7),
    "network.channels": 3,
    "network.width": 2,
    "network.last_step": False,
    "network.instruction": "embedding",
    "network.memory_span": 9,
    "network.separate_value": True,
    "network.normalise_observation": True,
    "network.normalise_features": True,
    "network.precision": "bf16",
    "loss.discount": 0.5,
    "loss.batch_unrolls": 16,
    "loss.new_unrolls_per_update": 3,
    "loss.trust": "off",
    "loss.trust_bound": 0.5,
    "loss.target_acceptance": 0.5,
    "loss.clip_rho": 2.0,
    "loss.clip_c": 0.5,
    "loss.baseline_cost": 0.1,
    "loss.entropy_cost": 0.1,
    "loss.reduction": "sum",
    "loss.returns": "importance",
    "loss.reward_scale": 3.0,
    "loss.reward_transform": "clip",
    "loss.popart": True,
    "loss.popart_step": 0.1,
    "loss.pixel_control_cell": 2,
    "loss.pixel_control_discount": 0.5,
    "loss.life_loss_ends_discount": True,
    "optimiser.kind": "rmsprop",
    "optimiser.learning_rate": 1e-4,
    "optimiser.schedule": "constant",
    "optimiser.decay": 0.5,
    "optimiser.momentum": 0.5,
    "optimiser.epsilon": 0.1,
    "optimiser.clip_gradient_norm": 0.1,
}
NEVER = {  # and what the one sentence names
    "recipe": "minatar",
    "environment.id": "CartPole-v1",
    "environment.slots": 5,
    "environment.frame_stack": 2,
    "environment.atari.full_action_space": True,
    "network.memory": "lstm",
    "network.memory_size": 9,
    "loss.unroll_steps": 4,
    "loss.pixel_control_cost": 0.1,  # this task has no pictures
    "replay.fraction": 0.5,
    "replay.capacity_steps": 200,
    "replay.codec": "raw",
    "replay.budget_gb": 1.0,
    "replay.warmup_steps": 9,
    "replay.state": "zero",
    "replay.burn_in_steps": 0,
    "replay.sampling": "prioritised",
    "replay.priority_exponent": 0.5,
    "replay.importance_exponent": 0.5,
    "replay.priority_uniform_share": 0.5,
    "replay.start_from": "elsewhere",
    **{f"run.{name}": 1 for name in RunConfig.model_fields},
    "run.runtime": "local",
    "run.device": "cpu",
    "run.graphs": False,
    "run.evaluate_deterministic": True,
}
SMALL = {"slots": 2, "unroll_steps": 5, "hidden": (8,), "capacity_steps": 300, "evaluate_episodes": 1, "device": "cpu"}
PBT = PbtConfig(burn_in_steps=0, every_episodes=1, margin=0.0)


def of_two(own, *, first, **more):
    members = [own, {}] if first else [{}, own]
    return Sweep("laser/Catch", recipe="cartpole", members=members, **{**SMALL, **more})


def test_the_tables_name_every_setting():
    assert sorted([*MAY, *NEVER]) == sorted(setting_fields())


def both_orders(names):
    """The first member decides the shapes of what all share; other settings are tried there in the slow tier only."""
    for name in names:
        shape = name.startswith("network") or name in {"environment.options", "loss.batch_unrolls", "loss.popart"}
        yield pytest.param(name, True, id=f"{name} first", marks=() if shape else pytest.mark.slow)
        yield pytest.param(name, False, id=f"{name} second")


@pytest.mark.parametrize(("name", "first"), both_orders(MAY))
def test_members_may_differ(name, first):
    end = of_two({name: MAY[name]}, first=first).run(60)
    assert [member.steps for member in end.members] == [60, 60]
    assert all(member.updates > 0 for member in end.members)


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("name", NEVER)
def test_members_may_not_differ(name, first):
    with pytest.raises(ConfigError) as refused:
        of_two({name: NEVER[name]}, first=first).run(60)
    assert name.rpartition(".")[2] in str(refused.value)


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("more", [{}, {"share_replay": False}, {"share_replay": "none"}, {"processes": 2}])
def test_options_that_change_what_is_seen_are_refused_before_anything_is_written(more, first, tmp_path):
    with pytest.raises(ConfigError, match=r"one shape: set environment\.options in the base"):
        of_two({"options": {"image": True}}, first=first, torso="mlp", run_dir=tmp_path / "run", **more).run(60)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("name", ["network.hidden", "network.separate_value", "loss.popart", "optimiser.kind"])
def test_members_that_cannot_copy_each_other_are_refused_under_pbt(name, first):
    with pytest.raises(ConfigError, match="population based training"):
        of_two({name: MAY[name]}, first=first, pbt=PBT).run(200)


@pytest.mark.parametrize("sizes", [(8, 16, 8), (16, 8, 8)])
def test_each_member_learns_from_batches_of_its_own_size(sizes):
    training, seen = prepared(small_sweep(grid={"batch_unrolls": sizes}, capacity_steps=1_500, steps=200)), []
    for place, member in enumerate(training.group.members):
        update = member.learner.update

        def spy(batch, *, progress, place=place, update=update):
            seen.append((place, len(batch.online), np.asarray(batch.member[batch.online]).tolist()))
            return update(batch, progress=progress)

        member.learner.update = spy
    to_the_end(training)
    assert {(place, columns) for place, columns, _ in seen} == set(enumerate(sizes))
    # None of the columns is left over from another member's batch.
    assert all(online == [place] * (columns // 8) for place, columns, online in seen)


@pytest.mark.parametrize("precisions", [("fp32", "bf16"), ("bf16", "fp32")])
def test_members_of_different_precision_are_not_computed_as_one(precisions):
    crew = build_group(small_sweep(grid={"precision": precisions}))
    crew.close()
    assert type(crew) is MemberGroup
    assert [member.learner.network.bf16 for member in crew.members] == [kind == "bf16" for kind in precisions]
    assert all(torch.isfinite(member.learner.flat.value).all() for member in crew.members)
