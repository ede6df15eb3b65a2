import sys

import gymnasium
import numpy as np
import pytest

from laser_rl.envs.construct import constructor
from laser_rl.envs.grid import COLOURS, OBJECTS, draw, tile, tile_number
from laser_rl.envs.instructions import word_numbers
from laser_rl.envs.make import make_environments, make_renderable
from laser_rl.envs.scores import SUITES
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.envs.tasks import TaskEnv, TMaze
from laser_rl.errors import EnvironmentRefused, MissingExtra
from tests.envs.samples import words_in

CARRIED = ("key", "ball", "box")
FORWARD, PICKUP, TOGGLE = 2, 3, 5
TASKS = [task.id for task in SUITES["grid"] if task.id.startswith("MiniGrid-")]
OTHERS = [
    "MiniGrid-Dynamic-Obstacles-6x6-v0",  # looks through walls
    "MiniGrid-KeyCorridorS4R3-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",  # boxes with something in them
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-Fetch-6x6-N2-v0",
    "MiniGrid-MultiRoom-N6-v0",
]


def cells():
    """Every cell that can occur: object, colour, state, whether it is carried."""
    yield from (("unseen", "red", 0, False), ("empty", "red", 0, False), ("agent", "red", 0, False))
    for colour in COLOURS:
        yield from ((kind, colour, 0, False) for kind in ("wall", "floor", "key", "ball", "box", "goal", "lava"))
        yield from (("door", colour, state, False) for state in range(3))
        yield from ((kind, colour, 0, True) for kind in CARRIED)


def test_every_cell_looks_different():
    looks = {tile(kind, colour, state, carried=carried).tobytes() for kind, colour, state, carried in cells()}
    assert len(looks) == len(list(cells())) == 3 + 6 * 13


def test_a_picture_is_its_tiles_side_by_side():
    numbers = [tile_number(kind, colour, state, carried=carried) for kind, colour, state, carried in list(cells())[:49]]
    picture = draw(numbers)
    assert picture.dtype == np.uint8
    for place, (kind, colour, state, carried) in enumerate(list(cells())[:49]):
        row, column = divmod(place, 7)
        here = picture[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        np.testing.assert_array_equal(here, tile(kind, colour, state, carried=carried))


def naive_picture(bare):
    """MiniGrid's own view, drawn cell by cell."""
    from minigrid.minigrid_env import MiniGridEnv  # noqa: PLC0415  (an extra)

    image = MiniGridEnv.gen_obs(bare)["image"]
    picture = np.zeros((3, 28, 28), np.uint8)
    for column in range(7):
        for row in range(7):
            kind, colour, state = (
                OBJECTS[image[column, row, 0]],
                list(COLOURS)[image[column, row, 1]],
                image[column, row, 2],
            )
            if (column, row) == (3, 6):
                here = tile("agent") if kind == "empty" else tile(kind, colour, carried=True)
            else:
                here = tile(kind, colour, int(state))
            picture[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = here
    return picture


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "MiniGrid-RedBlueDoors-6x6-v0" else pytest.mark.slow)
        for name in TASKS + OTHERS
    ],
)
def test_the_view_is_minigrids_own(name):
    env, rng = constructor(name, {})(), np.random.default_rng(0)
    bare, carried, opened = env.unwrapped, 0, 0
    for seed in range(12):
        observation, _ = env.reset(seed=seed)
        for _ in range(60):
            np.testing.assert_array_equal(observation[:, :28], naive_picture(bare))
            in_front = bare.grid.get(*bare.front_pos)
            useful = {"key": PICKUP, "box": TOGGLE, "ball": PICKUP, "door": TOGGLE}.get(getattr(in_front, "type", None))
            action = useful if useful is not None and rng.random() < 0.7 else rng.choice([0, 1, 2, 2, 2, 3, 4, 5])
            observation, _, terminated, truncated, _ = env.step(int(action))
            carried += bare.carrying is not None
            opened += any(getattr(thing, "is_open", False) for thing in bare.grid.grid)
            if terminated or truncated:
                break
        np.testing.assert_array_equal(observation[:, :28], naive_picture(bare))
    if "Key" in name:
        assert carried > 5
    if any(kind in name for kind in ("DoorKey", "RedBlue", "MultiRoom")):
        assert opened > 0


def test_the_numbers_are_minigrids():
    constructor("MiniGrid-DoorKey-5x5-v0", {})
    from minigrid.core import constants  # noqa: PLC0415  (an extra)

    assert [constants.OBJECT_TO_IDX[kind] for kind in OBJECTS] == list(range(len(OBJECTS)))
    assert [constants.COLOR_TO_IDX[colour] for colour in COLOURS] == list(range(len(COLOURS)))


@pytest.mark.parametrize("name", ["MiniGrid-MemoryS7-v0", "MiniGrid-Dynamic-Obstacles-6x6-v0", "MiniGrid-Unlock-v0"])
def test_an_episode_is_a_function_of_its_seed_and_its_actions(name):
    one, rng = make_environments(name, slots=3, seed=5), np.random.default_rng(0)
    here = one.reset()
    assert here.observation.shape == (3, 3, 28, 28)
    for _ in range(70):
        here = one.step(np.arange(3), rng.integers(3, size=3))
    other = make_environments(name, slots=3, seed=5)
    there = other.load_state_dict(one.state_dict())
    assert other.counters()["lost_episodes"] == 0
    for _ in range(50):
        for left, right in zip(here, there, strict=True):
            np.testing.assert_array_equal(left, right)
        action = rng.integers(3, size=3)
        here, there = one.step(np.arange(3), action), other.step(np.arange(3), action)


def test_seeds_make_different_episodes():
    rows = make_environments("MiniGrid-FourRooms-v0", slots=8, seed=5).reset()
    assert len({picture.tobytes() for picture in rows.observation}) > 4


def test_a_worker_process_sees_the_same():
    there = make_environments(TASKS[3], slots=2, seed=1, placement="process", workers=1, lockstep=True)
    here = make_environments(TASKS[3], slots=2, seed=1)
    assert there.spec == here.spec
    np.testing.assert_array_equal(here.reset().observation, there.reset().observation)
    for step in range(20):
        action = np.array([step % 3, 2])
        rows = [envs.step(np.arange(2), action).observation for envs in (here, there)]
        np.testing.assert_array_equal(*rows)
    there.close()


def test_a_mission_that_changes_and_does_not_show_is_an_instruction():
    env = constructor("MiniGrid-GoToDoor-5x5-v0", {})()
    missions = set()
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        assert observation.shape == (3, 29, 28)
        for action in (0, FORWARD):
            assert words_in(observation)[0] == word_numbers(env.unwrapped.mission)
            observation = env.step(action)[0]
        missions.add(env.unwrapped.mission)
    assert len(missions) > 2
    spec = make_environments("MiniGrid-GoToDoor-5x5-v0", slots=1, seed=1).spec.observation
    assert (spec.shape, spec.words) == ((3, 29, 28), 16)


def test_options_reach_minigrid_and_another_view_is_refused():
    envs = make_environments("MiniGrid-Empty-5x5-v0", slots=1, seed=1, options={"max_steps": 3})
    envs.reset()
    assert [bool(envs.step(np.array([0]), np.array([0])).truncated[0]) for _ in range(3)] == [False, False, True]
    with pytest.raises(EnvironmentRefused, match="view of 7 by 7 cells, got 9"):
        make_environments("MiniGrid-Empty-5x5-v0", slots=1, seed=1, options={"agent_view_size": 9})


def test_minigrid_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(MissingExtra, match=r"MiniGrid needs the extra 'minigrid': pip install 'laser-rl\[minigrid\]'"):
        make_environments("MiniGrid-MemoryS7-v0", slots=1, seed=1)


def test_a_mistyped_task_is_refused_with_the_nearest():
    with pytest.raises(EnvironmentRefused, match="did you mean MiniGrid-MemoryS9-v0 or MiniGrid-MemoryS7-v0"):
        make_environments("MiniGrid-MemoryS8-v0", slots=1, seed=1)


def test_people_see_the_whole_grid():
    env = make_renderable("MiniGrid-DoorKey-5x5-v0")
    env.reset(seed=1)
    frame = env.render()
    assert frame.shape == (160, 160, 3)
    assert any((env.step(action), (env.render() != frame).any())[1] for action in (0, FORWARD))


# Our T-maze as pictures


def play(task, seed, actions):
    env = TaskEnv(task)
    rows = [(env.reset(seed=seed)[0], None, False, False)]
    for action in actions:
        rows.append(env.step(action)[:4])
        if rows[-1][2] or rows[-1][3]:
            break
    return rows


@pytest.mark.parametrize("seed", [0, 1])
def test_a_maze_of_tiles_tells_what_the_maze_of_numbers_tells(seed):
    actions = [1, 0, 1, 0, 2, 0, 0, 0, 1]
    plain, tiled = play(TMaze(4), seed, actions), play(TMaze(4, tiles=True), seed, actions)
    assert [row[1:] for row in plain] == [row[1:] for row in tiled]
    looks = {}
    for (features, *_), (picture, *_) in zip(plain, tiled, strict=True):
        assert picture.shape == (3, 28, 28)
        assert looks.setdefault(features.tobytes(), picture.tobytes()) == picture.tobytes()
    assert len(set(looks.values())) == len(looks) == 3  # a cue, the corridor, the junction


def test_the_cue_is_seen_at_the_start_and_in_two_ways():
    first, second = (play(TMaze(4, tiles=True), seed, [0, 0, 0, 0]) for seed in (0, 1))
    assert (first[0][0] != second[0][0]).any()
    for left, right in zip(first[1:], second[1:], strict=True):
        np.testing.assert_array_equal(left[0], right[0])


def test_a_maze_of_tiles_mixes_with_grids():
    maze = make_environments("laser/TMaze-4", slots=1, seed=1, options={"tiles": True})
    assert maze.spec.observation == make_environments(TASKS[0], slots=1, seed=1).spec.observation
    inside = SerialEnvironments(lambda: TaskEnv(TMaze(4, tiles=True)), slots=1, seed=1)  # its space holds what it shows
    inside.reset()
    assert inside.spec.observation == maze.spec.observation
    assert isinstance(TaskEnv(TMaze(4)).observation_space, gymnasium.spaces.Box)
    assert float(TaskEnv(TMaze(4)).observation_space.high.max()) == 1.0
