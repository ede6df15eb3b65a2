"""Whole sweeps on three Ray nodes of this machine: the same returns as on one machine, the same bits in lock-step, and back again."""

import numpy as np
import pytest

from laser_rl import Sweep, checkpoint
from laser_rl.cluster.supervisor import LockStep
from laser_rl.metrics.log import read
from laser_rl.training.launch import train
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.search import SearchConfig
from laser_rl.training.settings import LogUniform, SweepConfig
from tests.cluster.raylets import needs_ray, three_raylets
from tests.cluster.sweeps import finished, hashes, on_cluster, small_sweep
from tests.learning.test_learning import SPARSE

pytestmark = [needs_ray, pytest.mark.slow]
PBT = PbtConfig(burn_in_steps=200, every_episodes=10, margin=0.01)
QUICK = {
    "batch_unrolls": 8,
    "replay.fraction": 0.875,
    "schedule": "linear",
}  # learns sooner than the recipe, and may dip
IN_STEP = {"run.steps": 300, "checkpoint_every_steps": 0, "capacity_steps": 400}


@pytest.fixture(scope="module")
def raylets():
    return three_raylets()


@pytest.mark.parametrize("pbt", [None, PbtConfig(burn_in_steps=50, every_episodes=5, margin=0.0)])
def test_in_lock_step_three_members_end_with_the_parameters_of_one_machine(raylets, tmp_path, pbt):
    config = small_sweep(runtime="serial", pbt=pbt, **IN_STEP)
    one = train(config)
    there = on_cluster(config, tmp_path)
    assert [member.updates for member in there.members] == [member.updates for member in one.members]
    assert min(member.updates for member in one.members) > 20
    assert hashes(there) == hashes(one)
    assert len(set(hashes(one))) == 3
    assert [member.evaluation.mean for member in there.members] == [member.evaluation.mean for member in one.members]
    assert there.exploits == one.exploits
    assert bool(one.exploits) == (pbt is not None)


def test_in_lock_step_a_search_tries_there_what_it_tries_here(raylets, tmp_path):
    base = small_sweep(runtime="serial", **IN_STEP).base
    space = {"learning_rate": LogUniform(low=1e-4, high=1e-1)}
    search = SearchConfig(trials=7, trial_steps=100, looks=4)
    config = SweepConfig(base=base, random=space, draws=3, search=search, stack="off")
    one, there = train(config), on_cluster(config, tmp_path)
    assert [exploit.trial for exploit in one.exploits] == list(range(3, 3 + len(one.exploits)))
    assert len(one.exploits) >= 2
    assert there.exploits == one.exploits
    assert hashes(there) == hashes(one)


def test_lock_step_can_fail(raylets, tmp_path, monkeypatch):
    """Members that act in another order draw other unrolls, and end elsewhere."""
    config = small_sweep(runtime="serial", rates=(5e-4, 4e-3), **IN_STEP)
    call = LockStep._call

    def swapped(self, member, who, method, *arguments):
        return call(self, 1 - member if method in {"step", "take"} else member, who, method, *arguments)

    monkeypatch.setattr(LockStep, "_call", swapped)
    assert hashes(on_cluster(config, tmp_path)) != hashes(train(config))


# Targets of tests/learning for one agent on one machine, which a sweep's best member has to reach as well.
@pytest.mark.parametrize(
    ("environment", "steps", "target", "settings"),
    [("laser/Catch", 60_000, 0.95, {**SPARSE, **QUICK}), ("CartPole-v1", 25_000, 450, {**QUICK, "entropy_cost": 0.0})],
)
def test_a_shared_sweep_reaches_what_one_machine_reaches(raylets, tmp_path, environment, steps, target, settings):
    rates = {"learning_rate": [1e-3, 2e-3, 3e-3]}
    sweep = Sweep(environment, grid=rates, cluster="auto", cluster_runners=2, run_dir=tmp_path, seed=3, **settings)
    result = sweep.run(steps)
    best, rows = result.best().evaluation.mean, read(tmp_path)
    seconds = float(np.ptp([row["time"] for row in rows]))
    print(
        f"{environment}: best of 3 after {steps:,} steps on a cluster: {best:.2f}, target {target}, in {seconds:.0f} s"
    )
    assert best >= target
    assert all(steps <= member.steps < 1.1 * steps for member in result.members)
    shares = [row for row in rows if row["kind"] == "sweep"][-1]
    assert [shares[f"share_of_{member}"] for member in range(3)] == pytest.approx([1 / 3] * 3, abs=0.1)


def test_a_sweep_goes_on_there_and_here_again(raylets, tmp_path):
    shorter, longer, longest = (
        small_sweep(**{"run.steps": steps, "checkpoint_every_steps": 400}) for steps in (800, 1_600, 2_400)
    )
    finished(shorter, tmp_path)
    before = checkpoint.latest(tmp_path)
    there = on_cluster(longer, tmp_path)
    between = checkpoint.latest(tmp_path)
    here = finished(longest, tmp_path)
    after = checkpoint.latest(tmp_path)
    updates = [[one["learner"]["version"] for one in loaded.state["members"]] for loaded in (before, between, after)]
    assert all(b > a for a, b in zip(updates[0], updates[1], strict=True))
    assert all(b > a for a, b in zip(updates[1], updates[2], strict=True))
    assert [member.updates for member in here.members] == updates[2]
    assert all(member.steps >= 1_600 for member in there.members)
    held = [
        loaded.state["replays"][0]["next_id"] - loaded.state["replays"][0]["first_id"]
        for loaded in (before, between, after)
    ]
    assert held[0] < held[1] < held[2]  # nothing of what was replayed is gone
    assert held[1] >= held[0] + 3 * 700 // 5


def test_members_copy_each_other_on_a_cluster(raylets, tmp_path):
    config = small_sweep(rates=(1e-9, 2e-3, 4e-3), pbt=PBT, **{"run.steps": 8_000, **SPARSE})
    end = on_cluster(config, tmp_path)
    rows = [row for row in read(tmp_path, ("event",)) if row["event"] == "exploit"]
    assert end.exploits
    assert len(rows) >= len(end.exploits)
    for exploit in end.exploits:
        assert any(row["member"] == exploit.member and row["donor"] == exploit.donor for row in rows)
    assert all(member.steps >= 8_000 for member in end.members)


def test_members_with_a_replay_each_and_without_any(raylets, tmp_path):
    for share in ("separate", "none"):
        config = small_sweep(share=share, rates=(5e-4, 4e-3), **{"run.steps": 800, "checkpoint_every_steps": 400})
        end = on_cluster(config, tmp_path / share)
        assert all(member.steps >= 800 and member.updates > 20 for member in end.members)
        again = finished(config.model_copy(update={"base": small_sweep(**{"run.steps": 1_000}).base}), tmp_path / share)
        assert all(member.steps >= 1_000 for member in again.members)
    loaded = checkpoint.latest(tmp_path / "separate")
    assert len(loaded.state["replays"]) == 2
