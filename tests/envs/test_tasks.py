"""Each task against its own rules, played by hand, and against the returns that it claims."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from laser_rl.envs.puzzles import task_of
from laser_rl.envs.records import seed_of
from laser_rl.envs.tasks import Catch, DeepSea, TaskEnv, TaskEnvironments, TMaze
from laser_rl.errors import ConfigError, EnvironmentRefused

TASKS = [Catch(), Catch(7, 3, image=True), DeepSea(4), DeepSea(6, image=True), TMaze(1), TMaze(7)]


def returns(envs, policy, episodes):
    """Finished episodes' returns; a policy sees rows and a slot's memory of its episode's first row."""
    rows, total, done = envs.reset(), np.zeros(envs.slots), []
    memory = rows.observation.copy()
    while len(done) < episodes:
        memory[rows.is_first] = rows.observation[rows.is_first]
        rows = envs.step(np.arange(envs.slots), policy(rows.observation, memory))
        total = np.where(rows.is_first, 0, total + rows.reward)
        done.extend(total[rows.terminated | rows.truncated].tolist())
    return np.array(done)


def catch_policy(observation, memory):
    board = observation.reshape(-1, 10, 5)
    paddle = board[:, 9].argmax(1)
    ball = board[:, :9].max(1).argmax(1)
    return 1 + np.sign(ball - paddle)


def deep_sea_policy(task):
    def policy(observation, memory):
        place = observation.argmax(1)
        return task.mask[place // task.size, place % task.size]

    return policy


def t_maze_policy(observation, memory):
    return np.where(observation[:, 2] > 0, np.where(memory[:, 1] > 0, 2, 1), 0)


@pytest.mark.parametrize(
    ("task", "policy"),
    [
        (Catch(), catch_policy),
        (DeepSea(5), deep_sea_policy(DeepSea(5))),
        (DeepSea(12), deep_sea_policy(DeepSea(12))),
        (TMaze(1), t_maze_policy),
        (TMaze(9), t_maze_policy),
        (TMaze(9, one_cue=True), t_maze_policy),
    ],
)
def test_the_best_policy_has_the_return_that_is_claimed(task, policy):
    done = returns(TaskEnvironments(task, slots=16, seed=1), policy, 200)
    np.testing.assert_allclose(done, task.optimal_return, rtol=1e-5)


@pytest.mark.parametrize("task", [Catch(), Catch(6, 3), DeepSea(2), DeepSea(4), TMaze(2)])
def test_random_play_has_the_return_that_is_claimed(task):
    rng, count = np.random.default_rng(3), task.spec.action.count
    done = returns(
        TaskEnvironments(task, slots=256, seed=1), lambda seen, _: rng.integers(count, size=len(seen)), 40_000
    )
    assert abs(done.mean() - task.random_return) < 4 * done.std() / np.sqrt(done.size)


def test_without_memory_half_of_the_turns_are_wrong():
    done = returns(TaskEnvironments(TMaze(3), slots=64, seed=1), lambda seen, _: np.where(seen[:, 2] > 0, 1, 0), 4000)
    assert abs(done.mean()) < 0.06


def test_the_deep_sea_is_that_of_bsuite():
    """Its step, transcribed, cell by cell."""
    task, rng = DeepSea(5), np.random.default_rng(0)
    envs = TaskEnvironments(task, slots=1, seed=1)
    rows, row, column = envs.reset(), 0, 0
    for _ in range(300):
        expected = np.zeros((5, 5), np.float32)
        if row < 5:
            expected[row, column] = 1
        np.testing.assert_array_equal(rows.observation[0].reshape(5, 5), expected)
        action = rng.integers(2, size=1)
        if row == 5:
            row = column = 0
            rows = envs.step(np.array([0]), action)
            assert rows.is_first[0]
            continue
        right, reward = action[0] == task.mask[row, column], 0.0
        if column == 4 and right:
            reward += 1
        if right:
            column = min(column + 1, 4)
            reward -= 0.01 / 5
        else:
            column = max(column - 1, 0)
        row += 1
        rows = envs.step(np.array([0]), action)
        assert rows.reward[0] == np.float32(reward)
        assert rows.terminated[0] == (row == 5)


def test_the_mask_is_mixed_and_fixed():
    cells = np.indices((8, 8)).reshape(2, -1)
    mask = DeepSea(8).mask[*cells]
    assert 0.2 < mask.mean() < 0.8
    np.testing.assert_array_equal(mask, DeepSea(8).mask[*cells])


def test_a_t_maze_is_cut_off_with_nothing():
    envs = TaskEnvironments(TMaze(2), slots=1, seed=1)
    envs.reset()
    rows = [envs.step(np.array([0]), np.array([0])) for _ in range(10)]
    assert [bool(row.truncated[0]) for row in rows] == [False] * 8 + [True, False]
    assert not any(row.terminated[0] for row in rows)
    assert rows[9].is_first[0]
    assert sum(row.reward[0] for row in rows) == 0


def test_the_cue_shows_once():
    envs = TaskEnvironments(TMaze(3), slots=8, seed=1)
    first, then = envs.reset().observation, envs.step(np.arange(8), np.full(8, 1)).observation
    assert (first[:, :2].sum(1) == 1).all()
    assert 0 < first[:, 0].sum() < 8
    np.testing.assert_array_equal(then[:, :2], 0)
    np.testing.assert_array_equal(then[:, 2], 0)


def test_one_cue_shows_the_right_turn_only_and_it_is_the_commoner():
    always_right = lambda seen, _: np.where(seen[:, 2] > 0, 2, 0)  # noqa: E731
    done = returns(TaskEnvironments(TMaze(3, one_cue=True), slots=64, seed=1), always_right, 4000)
    assert abs(done.mean() - 0.4) < 0.06  # seven of ten: what is to be had without memory
    first = TaskEnvironments(TMaze(3, one_cue=True), slots=200, seed=1).reset().observation
    assert (first[:, 0] == 0).all()
    assert 0.6 < first[:, 1].mean() < 0.8


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_restored_run_is_the_same_run(task):
    one, rng = TaskEnvironments(task, slots=5, seed=2), np.random.default_rng(0)
    count = task.spec.action.count
    here = one.reset()
    for _ in range(23):
        here = one.step(np.arange(5), rng.integers(count, size=5))
    other = TaskEnvironments(task, slots=5, seed=2)
    there = other.load_state_dict({name: value.copy() for name, value in one.state_dict().items()})
    for _ in range(50):
        for left, right in zip(here, there, strict=True):
            np.testing.assert_array_equal(left, right)
        action = rng.integers(count, size=5)
        here, there = one.step(np.arange(5), action), other.step(np.arange(5), action)
    with pytest.raises(ConfigError, match="4 environment slots, got 5"):
        TaskEnvironments(task, slots=4, seed=2).load_state_dict(one.state_dict())


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_an_episode_is_a_function_of_its_seed_and_a_slot_of_nobody_else(task):
    """Every slot of the vector against one environment alone, also when slots act in turn."""
    envs, rng = TaskEnvironments(task, slots=4, seed=6), np.random.default_rng(0)
    alone = [TaskEnv(task) for _ in range(4)]
    rows, count = envs.reset(), task.spec.action.count
    expected = [env.reset(seed=int(seed_of(6, np.array(slot), np.array(0))))[0] for slot, env in enumerate(alone)]
    np.testing.assert_array_equal(rows.observation, expected)
    assert rows.observation.dtype == task.spec.observation.dtype
    assert rows.observation.shape[1:] == task.spec.observation.shape
    ended = np.zeros(4, bool)
    for _ in range(120):
        slots = rng.permutation(4)[: rng.integers(1, 5)]
        action = rng.integers(count, size=slots.size)
        rows = envs.step(slots, action)
        assert rows.slots.tolist() == slots.tolist()
        for index, slot in enumerate(slots):
            if ended[slot]:
                wanted = (alone[slot].reset(seed=int(rows.seed[index]))[0], 0.0, False, False)
            else:
                wanted = alone[slot].step(action[index])[:4]
            assert rows.is_first[index] == ended[slot]
            np.testing.assert_array_equal(rows.observation[index], wanted[0])
            assert (rows.reward[index], rows.terminated[index], rows.truncated[index]) == tuple(
                np.float32(wanted[1:2])
            ) + wanted[2:]
            ended[slot] = wanted[2] or wanted[3]
    np.testing.assert_array_equal(rows.seed, seed_of(6, rows.slots, rows.episode))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_as_a_gymnasium_environment_it_passes_gymnasiums_own_check(task):
    env = TaskEnv(task)
    check_env(env, skip_render_check=True)
    env.reset(seed=1)
    frame = env.render()
    assert frame.dtype == np.uint8
    env.step(0)
    assert env.render().shape == frame.shape
    assert (env.render() != frame).any()


def test_a_film_shows_what_the_agent_sees():
    board, picture, maze = TaskEnv(Catch(4, 3)), TaskEnv(Catch(4, 3, image=True)), TaskEnv(TMaze(2, tiles=True))
    seen, _ = board.reset(seed=1)
    picture.reset(seed=1)
    bright = (board.render()[::16, ::16] == (250, 200, 60)).all(2)
    np.testing.assert_array_equal(bright, seen.reshape(4, 3))
    np.testing.assert_array_equal(picture.render(), board.render())
    seen, _ = maze.reset(seed=1)
    np.testing.assert_array_equal(maze.render()[::16, ::16], seen.transpose(1, 2, 0))


@pytest.mark.parametrize("name", ["laser/Catch-5", "laser/DeepSea-x", "laser/Cach"])
def test_an_unknown_task_is_refused(name):
    with pytest.raises(EnvironmentRefused, match="laser/DeepSea-10"):
        task_of(name, {})


def test_options_reach_the_task():
    assert task_of("laser/Catch", {"columns": 7}) == Catch(columns=7)
    with pytest.raises(ConfigError, match="colums"):
        task_of("laser/Catch", {"colums": 7})
    with pytest.raises(ConfigError, match=r"laser/DeepSea-0: size is 0: .* greater than or equal to 1"):
        task_of("laser/DeepSea-0", {})
