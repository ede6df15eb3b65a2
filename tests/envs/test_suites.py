import csv
import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest

from laser_rl.envs.construct import constructor
from laser_rl.envs.make import make_environments
from laser_rl.envs.puzzles import task_of
from laser_rl.envs.scores import SUITES, Reference, reference_of, suite_of
from laser_rl.errors import EnvironmentRefused

HERE = Path(__file__).parents[2]
GRID = SUITES["grid"]


@pytest.fixture(scope="module")
def references():
    spec = importlib.util.spec_from_file_location("references", HERE / "benchmarks" / "references.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_scores_are_those_that_were_measured():
    with (HERE / "docs" / "results" / "references.csv").open() as file:
        rows = list(csv.DictReader(file))
    measured = [(row["task"], float(row["random"]), float(row["best"])) for row in rows]
    assert measured == [(task.id, task.random, task.best) for task in GRID]
    for row in rows:
        if row["task"].startswith("MiniGrid-"):
            assert int(row["random_episodes"]) >= 1000
            assert int(row["best_episodes"]) >= 100
            assert float(row["random"]) + 20 * float(row["random_se"]) < float(row["best"]) - 20 * float(row["best_se"])


def test_the_suite_of_grids_is_one_set_of_environments():
    tasks = len(GRID)
    envs = make_environments("suite:grid", slots=2 * tasks, seed=1)
    assert envs.spec.name == "suite:grid"
    assert envs.spec.tasks == tuple(task.id for task in GRID)
    assert tasks >= 10
    rows, rng = envs.reset(), np.random.default_rng(0)
    ended = 0
    for _ in range(100):
        assert rows.slots.tolist() == list(range(2 * tasks))
        rows = envs.step(rows.slots, rng.integers(7, size=rows.slots.size))
        ended += int((rows.terminated | rows.truncated).sum())
    assert ended > 5
    envs.close()


@pytest.mark.parametrize("task", GRID, ids=lambda task: task.id)
def test_every_task_can_be_played_alone(task):
    envs = make_environments(task.id, slots=1, seed=1, options=task.options)
    assert envs.spec.name == task.id
    assert envs.spec.observation.shape == (3, 28, 28)
    assert reference_of(envs.spec.name) == Reference(task.random, task.best)


def test_scores_of_tasks_outside_suites():
    known = task_of("laser/DeepSea-7", {})
    assert reference_of("laser/DeepSea-7") == Reference(known.random_return, known.optimal_return)
    assert reference_of("dmlab/rooms_collect_good_objects_test") == Reference(0.073, 10.0)
    for unknown in ("laser/Nothing-3", "dmlab/lt_chasm", "rooms_watermaze", "CartPole-v1", "ALE/pong"):
        assert reference_of(unknown) is None


def test_a_normalised_score_is_zero_at_random_and_one_at_best():
    reference = Reference(-2.0, 6.0)
    assert [reference.normalised(score) for score in (-2.0, 0.0, 6.0, 8.0)] == [0.0, 0.25, 1.0, 1.25]


def test_suites_go_by_their_names():
    assert suite_of("grid") is suite_of("suite:grid") is SUITES["grid"]
    assert [task.id for task in suite_of("dmlab-30")][:1] == ["dmlab/rooms_collect_good_objects_train"]
    assert len(suite_of("dmlab-30")) == 30
    with pytest.raises(EnvironmentRefused, match="one of grid, dmlab-30, doom, got 'atari'"):
        suite_of("suite:atari")


@pytest.mark.parametrize("seed", range(4))
def test_no_shorter_way_earns_anything(references, seed):
    env = constructor("MiniGrid-LavaGapS5-v0", {})()
    env.reset(seed=seed)
    plan = references.shortest_plan(env.unwrapped)
    for actions in itertools.product(range(3), repeat=len(plan) - 1):
        env.reset(seed=seed)
        earned = 0.0
        for action in actions:
            _, reward, terminated, _, _ = env.step(action)
            earned += reward
            if terminated:
                break
        assert earned == 0


@pytest.mark.parametrize("task", [2, 3, 6], ids=lambda index: GRID[index].id)
def test_the_best_way_opens_the_doors_and_is_worth_its_length(references, task):
    env = references.open_task(GRID[task])
    for seed, earned in enumerate(
        references.best_returns(env, 5)
    ):  # which walks each way from the start of its episode
        env.reset(seed=seed)
        plan = references.shortest_plan(env.unwrapped)
        assert earned == pytest.approx(1 - 0.9 * len(plan) / env.unwrapped.max_steps)
        assert 5 in plan  # toggle
        if "Key" in GRID[task].id:
            assert plan.index(3) < plan.index(5)  # pick up, then toggle


def test_random_play_repeats(references):
    env = references.open_task(GRID[0])
    assert list(references.random_returns(env, 20)) == list(references.random_returns(env, 20))
