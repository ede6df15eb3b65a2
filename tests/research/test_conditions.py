"""What the experiments run: every condition is a sweep that can be built, and differs in what its name says."""

import pytest

from laser_rl.errors import ConfigError
from laser_rl.replay.mixer import Counts
from laser_rl.research.experiment import EXPERIMENTS, SUITES, changed, planned, shrunk, suite_of
from laser_rl.research.run_experiments import part_of


def sweeps(name, task="catch", suite="small"):
    found = suite_of(suite).task(task)
    return EXPERIMENTS[name].conditions(found)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_condition_can_be_built_and_every_claim_is_about_conditions(name, suite):
    experiment = EXPERIMENTS[name]
    tasks = suite_of(suite).of(experiment)
    for task in tasks if suite == "small" else tasks[:1]:
        for made in (task, shrunk(task)):
            conditions = experiment.conditions(made)
            assert len(conditions) == len(experiment.variants)
            for sweep in conditions.values():
                for config in sweep.configs:
                    Counts.of(config.loss.batch_unrolls, config.replay.fraction)
            for claim in experiment.claims:
                assert {claim.better, claim.worse} <= set(conditions)


def test_every_task_of_the_small_suite_is_used():
    suite = suite_of("small")
    used = {task.name for experiment in EXPERIMENTS.values() for task in suite.of(experiment)}
    assert used == {task.name for task in suite.tasks}
    for task in suite.tasks:
        assert task.returns.best > task.returns.random
        assert task.sweep.base.run.runtime == "serial"  # or the same seed would not give the same table
        assert task.sweep.base.run.steps % task.bucket_steps == 0


def test_atari_has_the_papers_members_and_humans():
    task = suite_of("atari").task("ms_pacman")
    assert task.sweep.base.environment.id == "ALE/MsPacman-v5"
    assert len(task.sweep.settings) == 9
    assert (task.returns.random, task.returns.best) == (307.3, 6951.6)
    assert sweeps("sharing", "ms_pacman", "atari")["no replay"].configs[0].loss.batch_unrolls == 32


def test_sharing_compares_as_much_replay_and_as_many_updates():
    found = sweeps("sharing")
    members = len(found["shared"].settings)
    assert members == 9
    assert found["shared"].base.replay.capacity_steps == members * found["separate"].base.replay.capacity_steps
    online = {
        name: Counts.of(sweep.configs[0].loss.batch_unrolls, sweep.configs[0].replay.fraction).online
        for name, sweep in found.items()
    }
    assert set(online.values()) == {2}
    assert found["no replay"].configs[0].loss.bound == float("inf")


def new_unrolls(sweep):
    config = sweep.configs[0]
    counts = Counts.of(config.loss.batch_unrolls, config.replay.fraction)
    return config.loss.new_unrolls_per_update or counts.online


def test_ratio_has_both_controls():
    found = sweeps("ratio")
    fractions = {name: sweep.configs[0].replay.fraction for name, sweep in found.items()}
    assert list(fractions.values()) == [0, 0.5, 0.75, 0.875, 1.0, 0, 0.5, 0.75]
    same_updates = [name for name in found if "same batch" not in name]
    assert {new_unrolls(found[name]) for name in same_updates} == {2}
    same_batch = [name for name in found if "same batch" in name or name in {"7/8", "pure replay"}]
    assert {found[name].configs[0].loss.batch_unrolls for name in same_batch} == {16}
    assert {sweep.base.run.steps for sweep in found.values()} == {20_000}


def test_a_condition_that_two_experiments_have_is_run_once(tmp_path):
    task = [suite_of("small").task("catch")]
    parts = {
        (name, run.condition): part_of(tmp_path, run)
        for name in ("sharing", "naive", "rho", "relevance", "comparison")
        for run in planned(EXPERIMENTS[name], task, [3])
    }
    same = [("sharing", "shared"), ("naive", "shared"), ("relevance", "KL to implied")]
    assert len({parts[place] for place in same}) == 1
    assert parts["sharing", "no replay"] == parts["rho", "no replay"] != parts["sharing", "separate"]
    assert parts["naive", "naive"] != parts["rho", "naive, ρ̄ = 2"]


def test_seed_and_device_decide_a_part(tmp_path):
    task = [suite_of("small").task("catch")]
    runs = [
        planned(EXPERIMENTS["pbt"], task, [seed], device)[0]
        for seed, device in ((0, "cpu"), (1, "cpu"), (0, "cuda"), (0, "cpu"))
    ]
    first, *others, again = (part_of(tmp_path, run) for run in runs)
    assert len({first, *others}) == 3
    assert first == again
    assert [run.sweep.configs[0].run.seed != runs[0].sweep.configs[0].run.seed for run in runs] == [0, 1, 0, 0]
    assert [run.sweep.base.run.device for run in runs] == ["cpu", "cpu", "cuda", "cpu"]


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="no suite 'tiny'"):
        suite_of("tiny")
    with pytest.raises(ConfigError, match="no task 'pong'"):
        suite_of("small").task("pong")
    with pytest.raises(ConfigError, match=r"members differ in optimiser\.learning_rate"):
        changed(suite_of("small").task("catch").sweep, {"learning_rate": 1.0})
