"""Each puzzle against its own rules, played by hand, and against the returns that it claims."""

import json
from itertools import pairwise, product

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from laser_rl.envs.make import make_environments
from laser_rl.envs.puzzles import DOWN, LEFT, RIGHT, UP, Convention, KeyDoor, SparseGrid, task_of
from laser_rl.envs.records import seed_of
from laser_rl.envs.tasks import TaskEnv, TaskEnvironments
from laser_rl.errors import ConfigError, EnvironmentRefused

DISCOUNTS_DIFFER = Convention(bonus=(0.3, 0, 0), late_bonus=(0, 1.5, 0))
TASKS = [
    Convention(),
    Convention(2, 3, [0.5, -1], [0, 0.25]),
    KeyDoor(2),
    KeyDoor(6, 3),
    SparseGrid(2),
    SparseGrid(5, 1),
]


def episode(task, seed, policy):
    """Observations, rewards, and whether it was terminated or truncated, of one episode alone."""
    positions, seen, rewards = task.begin(np.array([seed])), [], []
    while True:
        seen.append(task.observe(positions)[0])
        positions, reward, terminated, truncated = task.advance(positions, np.array([policy(len(rewards), seen[-1])]))
        rewards.append(float(reward[0]))
        if terminated[0] or truncated[0]:
            return [*seen, task.observe(positions)[0]], rewards, (bool(terminated[0]), bool(truncated[0]))


def returns(envs, policy, episodes):
    """Finished episodes' returns and lengths, the same number from each slot: short episodes are not favoured."""
    rows, total, length = envs.reset(), np.zeros(envs.slots), np.zeros(envs.slots, int)
    done = [[] for _ in range(envs.slots)]
    while min(map(len, done)) < episodes // envs.slots:
        rows = envs.step(np.arange(envs.slots), policy(rows.observation))
        total, length = np.where(rows.is_first, 0, total + rows.reward), np.where(rows.is_first, 0, length + 1)
        for slot in np.flatnonzero(rows.terminated | rows.truncated):
            done[slot].append((total[slot], length[slot]))
    return np.array([pair for each in done for pair in each[: episodes // envs.slots]])


def convention_policy(mode, modes=3):
    return lambda seen: np.where(seen[:, 0] > 0, mode, (seen[:, 1:].argmax(1) + mode) % modes)


def towards(row, column, to_row, to_column):
    vertical = np.where(to_row > row, DOWN, UP)
    return np.where(to_row != row, vertical, np.where(to_column > column, RIGHT, LEFT))


def key_door_policy(task):
    def policy(seen):
        place = np.divmod(seen[:, :-1].argmax(1), task.size)
        has_key = seen[:, -1] > 0
        target = (np.where(has_key, door, key) for key, door in zip(task.key, task.door, strict=True))
        return towards(*place, *target)

    return policy


def sparse_grid_policy(task):
    def policy(seen):
        row, column = np.divmod(seen.argmax(1), task.size)
        gap = np.array(task.gaps)[row]
        return np.where(column == gap, DOWN, np.where(gap > column, RIGHT, LEFT))

    return policy


def fewest_steps(task):
    """Breadth first, through the task's own steps."""
    positions, steps = {"place": np.array([0]), "step": np.array([0])}, 0
    while True:
        steps, count = steps + 1, len(positions["place"])
        spread = {name: np.repeat(values, 4) for name, values in positions.items()}
        after, _, terminated, _ = task.advance(spread, np.tile(np.arange(4), count))
        if terminated.any():
            return steps
        places = np.unique(after["place"])
        positions = {"place": places, "step": np.zeros_like(places)}


@pytest.mark.parametrize(
    ("task", "policy", "length"),
    [
        *((Convention(), convention_policy(mode), 9) for mode in range(3)),
        (Convention(5, 2, [0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0.25]), convention_policy(4, 5), 3),
        (DISCOUNTS_DIFFER, convention_policy(1), 9),
        *((task, key_door_policy(task), fewest_steps(task)) for task in (KeyDoor(2), KeyDoor(6), KeyDoor(9, 7))),
        *(
            (task, sparse_grid_policy(task), fewest_steps(task))
            for task in (SparseGrid(2), SparseGrid(5), SparseGrid(12, 4))
        ),
    ],
)
def test_the_best_policy_has_the_return_that_is_claimed(task, policy, length):
    done = returns(TaskEnvironments(task, slots=16, seed=1), policy, 160)
    np.testing.assert_allclose(done[:, 0], task.optimal_return, rtol=1e-5)
    np.testing.assert_array_equal(done[:, 1], length)


@pytest.mark.parametrize(
    "task",
    [
        Convention(),
        Convention(2, 3, [0.5, -1], [0, 0.25]),
        DISCOUNTS_DIFFER,
        KeyDoor(3),
        KeyDoor(6),
        SparseGrid(4),
        SparseGrid(6, 2),
    ],
)
def test_random_play_has_the_return_that_is_claimed(task):
    rng, count = np.random.default_rng(3), task.spec.action.count
    envs = TaskEnvironments(task, slots=512, seed=1)
    done = returns(envs, lambda seen: rng.integers(count, size=len(seen)), 10_240)[:, 0]
    assert abs(done.mean() - task.random_return) < 4 * done.std() / np.sqrt(done.size)


def cut_off(task, steps):
    """So early that every sequence of actions can be played."""
    task.most_steps = steps
    return task


@pytest.mark.parametrize(
    "task",
    [
        Convention(3, 3, [0.3, 0, 0.1], [0, 1.5, -0.5]),
        Convention(2, 5),
        cut_off(KeyDoor(2, 1), 6),
        cut_off(KeyDoor(2, 0), 5),
        cut_off(SparseGrid(2), 6),
    ],
)
def test_the_claims_are_those_of_every_sequence_of_actions(task):
    """All of them, one by one: their mean is the return at random, their maximum the best, for each seed alone."""
    seeded = isinstance(task, Convention)
    steps = task.steps + 1 if seeded else task.most_steps
    for seed in range(3) if seeded else [0]:
        every = [
            sum(episode(task, seed, lambda step, _, actions=actions: actions[step])[1])
            for actions in product(range(task.spec.action.count), repeat=steps)
        ]
        assert np.mean(every) == pytest.approx(task.random_return, rel=1e-5)
        assert np.max(every) == pytest.approx(task.optimal_return, rel=1e-5)


def test_another_ones_convention_is_wrong_everywhere():
    """One observation means different things: a rule for the wrong mode earns nothing at all."""
    for chosen, rule in ((0, 1), (1, 2), (2, 0)):
        envs = TaskEnvironments(Convention(), slots=8, seed=1)
        answer = convention_policy(rule)
        done = returns(envs, lambda seen, c=chosen, a=answer: np.where(seen[:, 0] > 0, c, a(seen)), 40)
        np.testing.assert_array_equal(done[:, 0], 0)


def test_the_mode_is_never_shown():
    plays = [episode(Convention(), 11, lambda step, _, m=m: m if step == 0 else 1) for m in range(3)]
    for seen, _, _ in plays:
        np.testing.assert_array_equal(seen, plays[0][0])
    seen = np.array(plays[0][0])
    assert seen.shape == (10, 4)
    np.testing.assert_array_equal(seen[:, 0], [1] + [0] * 9)
    np.testing.assert_array_equal(seen.sum(1), [1] * 9 + [0])


def test_the_boni_are_paid_at_their_time():
    task = Convention(3, 4, [0.5, 2, 3], [5, 6, 7])
    for mode in range(3):
        answer = convention_policy(mode)
        _, rewards, ends = episode(task, 5, lambda _, seen, answer=answer: int(answer(seen[np.newaxis])[0]))
        expected = [task.bonus[mode], 0.25, 0.25, 0.25, 0.25 + task.late_bonus[mode]]
        np.testing.assert_allclose(rewards, expected, rtol=1e-6)
        assert ends == (True, False)


def test_the_discount_decides_which_mode_is_the_best():
    def worth(mode, discount):
        answer = convention_policy(mode)
        rewards = episode(DISCOUNTS_DIFFER, 3, lambda _, seen: int(answer(seen[np.newaxis])[0]))[1]
        return sum(reward * discount**step for step, reward in enumerate(rewards))

    assert np.argmax([worth(mode, 0.8) for mode in range(3)]) == 0
    assert np.argmax([worth(mode, 0.99) for mode in range(3)]) == 1


def test_cues_are_even_and_tell_nothing_of_the_next_one():
    task = Convention(steps=3)
    positions, cues = task.begin(np.arange(30_000)), []
    for _ in range(3):
        positions = task.advance(positions, np.zeros(30_000, int))[0]
        cues.append(task.observe(positions)[:, 1:].argmax(1))
    expected, spread = 30_000 / 9, 4 * np.sqrt(30_000 * (1 / 9) * (8 / 9))
    for left, right in [*pairwise(cues), (cues[0], cues[2]), (cues[0], np.roll(cues[0], 1))]:
        assert (np.abs(np.bincount(3 * left + right, minlength=9) - expected) < spread).all()


@pytest.mark.parametrize("size", [2, 3, 5, 6, 10])
def test_key_and_door_are_far_apart_and_in_reach(size):
    layouts = [KeyDoor(size, seed) for seed in range(60)]
    for task in layouts:
        (row, column), (door_row, door_column) = task.key, task.door
        assert all(0 <= place < size for place in (*task.key, *task.door))
        assert task.door != (0, 0)
        assert row + column >= size / 2
        assert abs(row - door_row) + abs(column - door_column) >= size - 1
        assert fewest_steps(task) <= task.most_steps == 6 * size
    assert len({(task.key, task.door) for task in layouts}) > min(size, 4)
    assert (layouts[7].key, layouts[7].door) == (KeyDoor(size, 7).key, KeyDoor(size, 7).door)
    assert (KeyDoor(6).key, KeyDoor(6).door, fewest_steps(KeyDoor(6))) == ((2, 4), (3, 0), 11)  # a layout never changes


@pytest.mark.parametrize(
    "task", [*(KeyDoor(6, s) for s in range(8)), *(SparseGrid(n, 2) for n in (2, 3, 7, 12))], ids=str
)
def test_no_way_is_shorter_than_that_of_the_best_policy(task):
    policy = (key_door_policy if isinstance(task, KeyDoor) else sparse_grid_policy)(task)
    _, rewards, _ = episode(task, 0, lambda _, seen: int(policy(seen[np.newaxis])[0]))
    assert len(rewards) == fewest_steps(task)


def test_the_door_is_shut_without_the_key():
    task = KeyDoor(4, 0)
    assert (task.key, task.door) == ((0, 3), (1, 0))
    seen, rewards, ends = episode(task, 0, lambda step, _: DOWN if step % 2 == 0 else UP)
    assert (sum(rewards), len(rewards), ends) == (0, 24, (False, True))
    assert {tuple(np.flatnonzero(each)) for each in seen} == {(0,), (4,)}  # the start and the door, never the key
    walk = [RIGHT] * 4 + [LEFT] * 3 + [DOWN]
    seen, rewards, ends = episode(task, 0, lambda step, _: walk[step])
    assert rewards == [0] * 7 + [1]
    assert ends == (True, False)
    assert [tuple(np.flatnonzero(each)) for each in seen[2:6]] == [(2,), (3, 16), (3, 16), (2, 16)]


def test_the_goal_on_the_last_step_ends_and_does_not_cut_off():
    task = cut_off(SparseGrid(4), fewest_steps(SparseGrid(4)))
    policy = sparse_grid_policy(task)
    _, rewards, ends = episode(task, 0, lambda _, seen: int(policy(seen[np.newaxis])[0]))
    assert (len(rewards), ends) == (task.most_steps, (True, False))


def test_walls_have_one_gap_each_and_stop_from_both_sides():
    task, size = SparseGrid(12), 12
    cells = np.arange(size**2)
    row, column = np.divmod(cells, size)
    for action, on, gap in ((DOWN, 1, row), (UP, -1, row - 1)):
        after = task.advance({"place": cells, "step": np.zeros_like(cells)}, np.full(size**2, action))[0]
        may = (row + on >= 0) & (row + on < size) & (column == np.array(task.gaps)[gap])
        np.testing.assert_array_equal(after["place"], np.where(may, cells + on * size, cells))
        assert may.sum() == size - 1


def test_all_layouts_of_the_sparse_grid_are_about_equally_hard():
    tasks = [SparseGrid(12, seed) for seed in range(20)]
    assert len({task.gaps for task in tasks}) > 15
    assert {fewest_steps(task) for task in tasks} == {47}
    assert tasks[0].random_return == pytest.approx(0.0031, abs=5e-5)  # a layout never changes
    assert all(0.002 < task.random_return < 0.006 for task in tasks)
    assert all(0 <= gap < size for size in (2, 3, 4, 9) for seed in range(20) for gap in SparseGrid(size, seed).gaps)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_restored_run_is_the_same_run(task):
    one, rng = TaskEnvironments(task, slots=5, seed=2), np.random.default_rng(0)
    count = task.spec.action.count
    here = one.reset()
    for _ in range(23):
        here = one.step(np.arange(5), rng.integers(count, size=5))
    other = TaskEnvironments(task, slots=5, seed=2)
    there = other.load_state_dict({name: value.copy() for name, value in one.state_dict().items()})
    for _ in range(200):
        for left, right in zip(here, there, strict=True):
            np.testing.assert_array_equal(left, right)
        action = rng.integers(count, size=5)
        here, there = one.step(np.arange(5), action), other.step(np.arange(5), action)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_an_episode_is_a_function_of_its_seed_and_a_slot_of_nobody_else(task):
    """Every slot of the vector against one environment alone, also when slots act in turn."""
    envs, rng = TaskEnvironments(task, slots=4, seed=6), np.random.default_rng(0)
    alone, count = [TaskEnv(task) for _ in range(4)], task.spec.action.count
    rows, ended = envs.reset(), np.zeros(4, bool)
    expected = [env.reset(seed=int(seed))[0] for env, seed in zip(alone, rows.seed, strict=True)]
    np.testing.assert_array_equal(rows.observation, expected)
    assert rows.observation.dtype == np.dtype(task.spec.observation.dtype) == np.dtype(np.float32)
    assert rows.observation.shape[1:] == task.spec.observation.shape
    for _ in range(200):
        slots = rng.permutation(4)[: rng.integers(1, 5)]
        action = rng.integers(count, size=slots.size)
        rows = envs.step(slots, action)
        for index, slot in enumerate(slots):
            if ended[slot]:
                wanted = (alone[slot].reset(seed=int(rows.seed[index]))[0], 0.0, False, False)
            else:
                wanted = alone[slot].step(action[index])[:4]
            assert rows.is_first[index] == ended[slot]
            np.testing.assert_array_equal(rows.observation[index], wanted[0])
            assert (rows.reward[index], rows.terminated[index], rows.truncated[index]) == wanted[1:]
            ended[slot] = wanted[2] or wanted[3]
    np.testing.assert_array_equal(rows.seed, seed_of(6, rows.slots, rows.episode))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_as_a_gymnasium_environment_it_passes_gymnasiums_own_check_and_can_be_looked_at(task):
    env = TaskEnv(task)
    check_env(env, skip_render_check=True)
    seen, _ = env.reset(seed=1)
    shape, frames = env.render().shape, set()
    for action in (0, 1) if isinstance(task, Convention) else (RIGHT, DOWN):
        frames.add(env.render().tobytes())
        frame = env.render()
        assert (frame.shape, frame.dtype) == (shape, np.uint8)
        cells = frame[8::16, 8::16].reshape(-1, 3).tolist()
        assert cells[: seen.size] == [[250, 200, 60] if number else [24, 28, 48] for number in seen]
        assert cells[seen.size :] == [[24, 28, 48]] * (len(cells) - seen.size)
        seen, *_ = env.step(action)
    assert len(frames) == 2


def test_a_film_of_a_grid_shows_the_agent_and_below_it_whether_it_has_the_key():
    env, task = TaskEnv(KeyDoor(4, 0)), KeyDoor(4, 0)
    env.reset(seed=1)
    for action in [RIGHT] * task.key[1] + [DOWN] * task.key[0]:
        env.step(action)
    bright = (env.render()[::16, ::16] == (250, 200, 60)).all(2)
    assert np.argwhere(bright).tolist() == [list(task.key), [4, 0]]
    assert env.render().shape == (5 * 16, 4 * 16, 3)


def test_options_come_as_files_hold_them():
    """JSON has lists and whole numbers; each member may have a bonus of its own."""
    options = json.loads('{"bonus": [0, 0.25, 0], "late_bonus": [1, 0, 0], "steps": 4}')
    task = task_of("laser/Convention", options)
    assert task == Convention(3, 4, (0.0, 0.25, 0.0), (1.0, 0.0, 0.0))
    assert task_of("laser/KeyDoor-5", {"layout_seed": 3}) == KeyDoor(5, 3)
    assert task_of("laser/SparseGrid-7", {"layout_seed": 9}) == SparseGrid(7, 9)
    assert task_of("laser/KeyDoor", {}) == task_of("laser/KeyDoor-6", {})
    for mode in range(3):
        bonus = [0.25 * (each == mode) for each in range(3)]
        envs = make_environments("laser/Convention", slots=3, seed=1, options={"bonus": bonus})
        envs.reset()
        assert envs.step(np.arange(3), np.arange(3)).reward.tolist() == bonus


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("laser/Convention", {"bonus": [0.2, 0]}, r"bonus \(0.2, 0.0\) .* need 3 numbers"),
        ("laser/Convention", {"bonus": 0.2}, "bonus is 0.2: .* tuple"),
        ("laser/Convention", {"late_bonus": [0, "1e-1", 0]}, "late_bonus.1 is '1e-1': .* number"),
        ("laser/Convention", {"bonus": [0, float("nan"), 0]}, "bonus.1 is nan: .* finite"),
        ("laser/Convention", {"modes": 1}, "modes is 1: .* greater than or equal to 2"),
        ("laser/Convention", {"modes": True}, "modes is True: .* integer"),
        ("laser/Convention", {"steps": 2.5}, "steps is 2.5: .* integer"),
        ("laser/Convention", {"bonuses": [0, 0, 0]}, "no option bonuses"),
        ("laser/KeyDoor-1", {}, "laser/KeyDoor-1: size is 1: .* greater than or equal to 2"),
        ("laser/KeyDoor-6", {"layout_seed": -1}, "layout_seed is -1: .* greater than or equal to 0"),
        ("laser/KeyDoor-6", {"key": [0, 1]}, "no option key"),
        ("laser/SparseGrid-12", {"layout_seed": "a"}, "layout_seed is 'a': .* integer"),
        ("laser/SparseGrid-12", {"size": 3}, "size"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        task_of(name, options)


@pytest.mark.parametrize("name", ["laser/Convention-3", "laser/KeyDoor-x", "laser/SparseGrid-²", "laser/Sparse"])
def test_an_unknown_task_is_refused_with_the_known_ones(name):
    with pytest.raises(EnvironmentRefused, match=r"laser/Convention, .*laser/KeyDoor-<size>, laser/SparseGrid-<size>"):
        task_of(name, {})
