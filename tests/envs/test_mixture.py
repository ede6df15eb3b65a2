import functools
import itertools
import os
import signal
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from laser_rl.envs.make import MixedEnvironments, make_environments, make_renderable
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.records import BoxActions, DiscreteActions
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.envs.tasks import Catch, TaskEnvironments
from laser_rl.envs.vector import VectorAdapter
from laser_rl.errors import ConfigError, EnvironmentFailed, EnvironmentRefused
from tests.envs.samples import Telltale, Witness, drive, processes

NAMES = ("first", "second", "third")


class Marked(gymnasium.Env):
    """Tells which task it is and what it was told to do."""

    observation_space = spaces.Box(0, 100, (2,), np.float32)
    made: list = []  # noqa: RUF012

    def __init__(self, mark=1, actions=2):
        self._mark, self.closed, self.action_space = mark, False, spaces.Discrete(actions)
        Marked.made.append(self)

    def reset(self, *, seed=None, options=None):
        return np.array([self._mark, 99], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.array([self._mark, action], np.float32), 0.0, False, False, {}

    def close(self):
        self.closed = True


class Failing(Marked):
    def __init__(self):
        raise EnvironmentRefused("not today")


def serial(*names, slots=2, seed=4, make=Telltale):
    return [SerialEnvironments(make, slots=slots, seed=seed + i, name=name) for i, name in enumerate(names)]


def marked(*actions, slots=2):
    return [
        SerialEnvironments(functools.partial(Marked, mark, count), slots=slots, seed=1, name=f"task {mark}")
        for mark, count in enumerate(actions)
    ]


def pool(name, *, slots=2, seed=7, workers=1, patience_s=0.1, lockstep=False, **options):
    make = functools.partial(Telltale, **options)
    return PoolEnvironments(
        make, slots=slots, seed=seed, workers=workers, name=name, patience_s=patience_s, lockstep=lockstep
    )


def assert_same(here, there):
    for left, right in zip(here, there, strict=True):
        np.testing.assert_array_equal(left, right)


def test_every_row_is_the_one_its_slot_owes():
    envs, witness = MixedEnvironments(serial(*NAMES)), Witness(6)
    drive(envs, witness, 200, np.random.default_rng(0))
    assert witness.rows == 6 * 201
    assert witness.episodes > 40
    assert witness.restarts == 0


def test_slots_may_act_alone_and_in_any_order():
    envs, witness, rng = MixedEnvironments(serial(*NAMES)), Witness(6), np.random.default_rng(0)
    actions = np.zeros(6, np.int64)
    witness.hear(envs.reset(), actions)
    for _ in range(200):
        slots = rng.permutation(6)[: rng.integers(1, 7)]
        actions[slots] = rng.integers(3, size=slots.size)
        rows = envs.step(slots, actions[slots])
        assert rows.slots.tolist() == sorted(slots.tolist())
        witness.hear(rows, actions)


def test_slots_take_turns_and_unknown_actions_are_action_zero():
    envs, rng = MixedEnvironments(marked(2, 5, 3, slots=4)), np.random.default_rng(0)
    assert envs.spec.action == DiscreteActions(5)
    assert envs.slots == 12
    assert envs.spec.tasks == ("task 0", "task 1", "task 2")
    rows, known = envs.reset(), np.array([2, 5, 3])
    task = np.array([envs.spec.task_of(slot) for slot in range(12)])
    assert task.tolist() == [0, 1, 2] * 4
    for _ in range(30):
        np.testing.assert_array_equal(rows.observation[:, 0], task)
        action = rng.integers(5, size=12)
        rows = envs.step(np.arange(12), action)
        np.testing.assert_array_equal(rows.observation[:, 1], np.where(action < known[task], action, 0))


def test_actions_that_are_not_discrete_have_to_agree():
    pendulum = [
        SerialEnvironments(functools.partial(gymnasium.make, "Pendulum-v1", g=g), slots=1, seed=1, name=f"gravity {g}")
        for g in (5.0, 10.0)
    ]
    envs = MixedEnvironments(pendulum)
    assert isinstance(envs.spec.action, BoxActions)
    first = envs.reset()
    rows = envs.step(np.arange(2), np.array([[-2.0], [1.5]], np.float32))
    for slot, torque in enumerate((-2.0, 1.5)):
        twin = gymnasium.make("Pendulum-v1", g=(5.0, 10.0)[slot])
        twin.reset(seed=int(first.seed[slot]))
        np.testing.assert_array_equal(twin.step(np.array([torque], np.float32))[0], rows.observation[slot])
    three = SerialEnvironments(functools.partial(Marked3, 1), slots=1, seed=1, name="three numbers")
    with pytest.raises(EnvironmentRefused, match=r"BoxActions.*in gravity 5\.0 and DiscreteActions.*in three numbers"):
        MixedEnvironments([pendulum[0], three])
    with pytest.raises(EnvironmentRefused, match=r"DiscreteActions.*in three numbers and BoxActions.*in gravity 5\.0"):
        MixedEnvironments([three, pendulum[0]])


class Marked3(Marked):
    observation_space = gymnasium.make("Pendulum-v1").observation_space


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda: serial("first", "second", "first"), "first twice"),
        (lambda: [*serial("first"), *marked(2)], r"in first and ObservationSpec.*in task 0"),
    ],
)
def test_what_cannot_be_mixed_is_refused(parts, message):
    with pytest.raises((EnvironmentRefused, ConfigError), match=message):
        MixedEnvironments(parts())


@settings(max_examples=20)
@given(st.integers(0, 60), st.integers(0, 2**31))
def test_a_restored_mixture_goes_on_as_if_nothing_had_happened(steps, seed):
    one, rng = MixedEnvironments(serial(*NAMES, seed=seed)), np.random.default_rng(seed)
    here = drive(one, Witness(6), steps, rng)
    state = {name: value.copy() for name, value in one.state_dict().items()}
    other = MixedEnvironments(serial(*NAMES, seed=seed))
    there = other.load_state_dict(state)
    for _ in range(30):
        assert_same(here, there)
        action = rng.integers(3, size=6)
        here, there = one.step(np.arange(6), action), other.step(np.arange(6), action)
    assert other.counters()["lost_episodes"] == 0
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])


def test_a_state_of_other_tasks_is_refused():
    mixture = MixedEnvironments(serial("first", "second"))
    mixture.reset()
    for names in (NAMES, ("first",), ("first", "other")):
        with pytest.raises(ConfigError, match="got that of first, second; resume with the tasks"):
            MixedEnvironments(serial(*names)).load_state_dict(mixture.state_dict())


def test_a_part_without_state_leaves_the_whole_without():
    vector = gymnasium.vector.SyncVectorEnv([Telltale, Telltale])
    envs = MixedEnvironments([*serial("first"), VectorAdapter(vector, seed=1, name="vector")])
    envs.reset()
    assert envs.state_dict() is None


def test_counters_are_summed():
    parts = serial("first", "second", make=functools.partial(Telltale, raise_with=0.05))
    envs, witness = MixedEnvironments(parts), Witness(4)
    drive(envs, witness, 200, np.random.default_rng(0))
    each = [part.counters()["errors"] for part in parts]
    assert min(each) > 0
    assert envs.counters()["errors"] == sum(each) == witness.restarts


class StuckDoor(TaskEnvironments):
    def close(self):
        raise OSError("the door is stuck")


def test_all_are_closed_also_when_one_fails_to():
    Marked.made.clear()
    parts = marked(2, 2)
    stuck = StuckDoor(Catch(rows=2, columns=1), slots=2, seed=1)
    envs = MixedEnvironments([parts[0], stuck, parts[1]])
    with pytest.raises(OSError, match="stuck"):
        envs.close()
    assert [env.closed for env in Marked.made] == [True] * 4
    Marked.made.clear()


# In worker processes


def test_tasks_in_processes_in_lockstep_give_the_rows_of_threads():
    kinds = {"placement": "process", "workers": 2, "lockstep": True}
    ids = "tests.envs.samples:Telltale,tests.envs.test_mixture:Twin"
    there = make_environments(ids, slots=4, seed=3, **kinds)
    here = make_environments(ids, slots=4, seed=3)
    rng = np.random.default_rng(0)
    assert_same(here.reset(), there.reset())
    for _ in range(40):
        action = rng.integers(3, size=4)
        assert_same(here.step(np.arange(4), action), there.step(np.arange(4), action))
    state = there.state_dict()
    there.close()
    again = make_environments(ids, slots=4, seed=3, **kinds)
    again.load_state_dict(state)
    for _ in range(20):
        action = rng.integers(3, size=4)
        assert_same(here.step(np.arange(4), action), again.step(np.arange(4), action))
    assert again.counters()["lost_episodes"] == 0
    again.close()


class Twin(Telltale):
    """The same rules by another name."""


def test_a_late_task_is_left_behind_and_its_rows_come_later(tmp_path):
    marker = tmp_path / "hang"
    slow = pool("slow", hang_in_step=str(marker), hang_s=1.5)
    envs, witness = MixedEnvironments([*serial("quick"), slow, pool("other")]), Witness(6)
    rng, heard, states = np.random.default_rng(0), [], []

    def before_step(number):
        if number == 5:
            marker.touch()

    rows = envs.reset()
    witness.hear(rows, witness.sent)
    began = time.monotonic()
    for number in itertools.count():
        before_step(number)
        rows = drive(envs, witness, 1, rng, rows=rows)
        heard.append({slot % 3 for slot in rows.slots.tolist()})
        states.append(envs.state_dict() is None)
        if number > 20 and {0, 1, 2} == heard[-1] == heard[-2]:
            break
        assert time.monotonic() < began + 30
    without = [number for number, tasks in enumerate(heard) if tasks == {0, 2}]
    assert len(without) > 5  # the others went on, and not at the pace of the slow one's patience
    assert not any(states)  # a state is as of the rows that were handed out
    assert witness.restarts == 0
    assert envs.counters()["restarts"] == 0
    envs.close()


@pytest.mark.parametrize("own", [True, False])
def test_in_lockstep_everybody_waits_for_the_last(tmp_path, own):
    marker = tmp_path / "hang"
    slow = pool("slow", workers=2, hang_in_step=str(marker), hang_s=0.7, lockstep=own)
    envs, witness = MixedEnvironments([*serial("quick"), slow], lockstep=True), Witness(4)
    rng = np.random.default_rng(0)
    rows = drive(envs, witness, 3, rng)
    marker.touch()
    for _ in range(3):
        rows = drive(envs, witness, 1, rng, rows=rows)
        assert rows.slots.tolist() == [0, 1, 2, 3]
        assert envs.state_dict() is not None
    assert not marker.exists()
    envs.close()


def test_half_a_task_may_be_late_and_acts_again_when_it_is_there(tmp_path):
    marker = tmp_path / "hang"
    half = pool("half", slots=2, workers=2, hang_in_step=str(marker), hang_s=1.0)
    envs, witness = MixedEnvironments([*serial("quick"), half]), Witness(4)
    rng, sizes = np.random.default_rng(0), []
    rows = drive(envs, witness, 5, rng)
    marker.touch()
    deadline = time.monotonic() + 30
    while len(sizes) < 40 or rows.slots.size < 4:
        rows = drive(envs, witness, 1, rng, rows=rows)
        sizes.append(rows.slots.size)
        time.sleep(0.02)
        assert time.monotonic() < deadline
    assert 3 in sizes  # all but the one that hangs
    assert witness.restarts == 0
    envs.close()


def test_rows_that_are_owed_come_without_anybody_acting(tmp_path):
    marker = tmp_path / "hang"
    slow = pool("slow", hang_in_step=str(marker), hang_s=1.0)
    envs, witness = MixedEnvironments([*serial("quick"), slow]), Witness(4)
    rows = drive(envs, witness, 3, np.random.default_rng(0))
    marker.touch()
    rows = drive(envs, witness, 1, np.random.default_rng(1), rows=rows)
    assert rows.slots.tolist() == [0, 2]
    late = envs.step(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert late.slots.tolist() == [1, 3]
    witness.hear(late, witness.sent)
    envs.close()


def test_half_a_task_comes_later_though_nobody_acts_in_the_other_half(tmp_path):
    marker = tmp_path / "hang"
    half = pool("half", workers=2, hang_in_step=str(marker), hang_s=1.0, patience_s=0.5)
    envs, witness = MixedEnvironments([*serial("quick"), half]), Witness(4)
    rows = drive(envs, witness, 3, np.random.default_rng(0))
    marker.touch()
    rows = drive(envs, witness, 1, np.random.default_rng(1), rows=rows)
    assert rows.slots.size == 3
    (late,) = {1, 3} - set(rows.slots.tolist())
    seen, deadline = set(), time.monotonic() + 20
    while late not in seen:
        witness.sent[[0, 2]] = 1
        rows = envs.step(np.array([0, 2]), np.array([1, 1]))
        witness.hear(rows, witness.sent)
        seen |= set(rows.slots.tolist())
        assert time.monotonic() < deadline
    assert seen == {0, 2, late}
    envs.close()


def test_a_slot_that_acts_while_its_task_is_busy_waits_its_turn(tmp_path):
    marker = tmp_path / "hang"
    slow = pool("slow", hang_in_step=str(marker), hang_s=1.0)
    envs, witness = MixedEnvironments([*serial("quick"), slow]), Witness(4)
    witness.hear(envs.reset(), witness.sent)
    marker.touch()

    def act(*slots):
        witness.sent[list(slots)] = 2
        rows = envs.step(np.array(slots, np.int64), np.full(len(slots), 2))
        witness.hear(rows, witness.sent)
        return set(rows.slots.tolist())

    assert act(0, 1) == {0}  # slot 1 hangs
    seen = act(0, 3)  # the same task's other slot
    while not {1, 3} <= seen:
        seen |= act(0)
    envs.close()


def test_a_killed_worker_of_one_task_does_not_touch_the_others():
    frail = pool("frail", slots=2, workers=1)
    envs, witness = MixedEnvironments([*serial("sound"), frail]), Witness(4)
    rng = np.random.default_rng(0)
    rows = drive(envs, witness, 5, rng)
    os.kill(processes(frail)[0], signal.SIGKILL)
    restarted = set()
    deadline = time.monotonic() + 30
    while len(restarted) < 2:
        rows = drive(envs, witness, 1, rng, rows=rows)
        restarted |= set(rows.slots[rows.restarted].tolist())
        assert time.monotonic() < deadline
    assert restarted == {1, 3}
    assert envs.counters()["restarts"] == 1
    envs.close()


def test_a_task_that_keeps_failing_ends_the_run():
    envs = MixedEnvironments([*serial("sound"), pool("broken", raise_with=1.0)])
    with pytest.raises(EnvironmentFailed, match=r"(?s)broken.*the telltale stumbled"):
        drive(envs, Witness(4), 1000, np.random.default_rng(0), before_step=lambda number: time.sleep(0.01))
    envs.close()


# By name


def test_a_list_of_ids_is_a_mixture():
    envs = make_environments("CartPole-v1, tests.envs.test_mixture:Pole", slots=4, seed=1)
    assert isinstance(envs, MixedEnvironments)
    assert envs.spec.tasks == ("CartPole-v1", "tests.envs.test_mixture:Pole")
    assert envs.spec.name == "CartPole-v1, tests.envs.test_mixture:Pole"
    assert envs.reset().observation.shape == (4, 4)
    envs.close()


class Pole(gymnasium.Wrapper):
    """A pole by another name."""

    def __init__(self, **options):
        super().__init__(gymnasium.make("CartPole-v1", **options))


@pytest.mark.parametrize(("slots", "advice"), [(1, "got 1; use 2$"), (5, "got 5; use 4 or 6$"), (3, "use 2 or 4$")])
def test_slots_that_do_not_divide_are_refused_with_those_that_do(slots, advice):
    with pytest.raises(ConfigError, match=advice):
        make_environments("laser/DeepSea-5,laser/SparseGrid-5", slots=slots, seed=1)


def test_a_task_plays_the_same_episodes_in_every_company():
    def seeds(ids, run_seed=1):
        envs = make_environments(ids, slots=2 * len(ids.split(",")), seed=run_seed)
        rows = envs.reset()
        return {task: rows.seed[index :: len(envs.spec.tasks)].tolist() for index, task in enumerate(envs.spec.tasks)}

    two, three = (seeds(ids) for ids in ("laser/DeepSea-5,laser/SparseGrid-5", "laser/SparseGrid-5,laser/DeepSea-5"))
    assert two == three
    assert two["laser/DeepSea-5"] != two["laser/SparseGrid-5"]
    assert len({seed for own in two.values() for seed in own}) == 4
    assert seeds("laser/DeepSea-5,laser/SparseGrid-5", run_seed=2) != two


def test_options_reach_every_task():
    ids, options = "CartPole-v1,tests.envs.test_mixture:Pole", {"sutton_barto_reward": True}
    for given_options, reward in (({}, 1.0), (options, 0.0)):
        envs = make_environments(ids, slots=2, seed=1, options=given_options)
        envs.reset()
        assert envs.step(np.arange(2), np.zeros(2, np.int64)).reward.tolist() == [reward, reward]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("laser/Catch,laser/Catch", "laser/Catch twice"),
        ("laser/Catch,", "leave out what is empty"),
        ("suite:grid,laser/Catch", "name a suite alone"),
        ("laser/Catch,suite:grid", "name a suite alone"),
        ("suite:nothing", "one of grid, dmlab-30, doom, got 'nothing'"),
        ("laser/Catch,laser/TMaze-4", r"in laser/Catch and ObservationSpec\(shape=\(3,\).*in laser/TMaze-4"),
        ("laser/Catch,CartPol-v1", "did you mean CartPole-v1"),
    ],
)
def test_a_name_that_is_no_mixture_is_refused(name, message):
    with pytest.raises(EnvironmentRefused, match=message):
        make_environments(name, slots=24, seed=1)


def test_what_was_built_is_closed_when_a_later_task_is_refused():
    Marked.made.clear()
    with pytest.raises(EnvironmentRefused, match="not today"):
        make_environments("tests.envs.test_mixture:Marked,tests.envs.test_mixture:Failing", slots=4, seed=1)
    with pytest.raises(EnvironmentRefused, match="seen alike"):
        make_environments("tests.envs.test_mixture:Marked,laser/Catch", slots=4, seed=1)
    assert [env.closed for env in Marked.made] == [True] * 4
    Marked.made.clear()


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("suite:grid", "MiniGrid-MemoryS7-v0"),
        ("suite:grid#laser/TMaze-20", "MiniGrid-MemoryS7-v0"),
        ("laser/Catch,laser/DeepSea-5", "laser/Catch"),
    ],
)
def test_only_one_task_can_be_looked_at(name, task):
    with pytest.raises(EnvironmentRefused, match=f"name one of them, e.g. {task}"):
        make_renderable(name)
