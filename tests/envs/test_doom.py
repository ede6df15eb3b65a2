"""ViZDoom itself, where it is installed: `pip install 'laser-rl[doom]'`."""

import importlib.util
import os
import sys
import time

import numpy as np
import pytest

from laser_rl.envs.construct import constructor
from laser_rl.envs.doom import NAMES, PRESSED, SCENARIOS, DoomEnv
from laser_rl.envs.instructions import WORDS, word_number
from laser_rl.envs.make import make_environments, make_renderable
from laser_rl.envs.records import DiscreteActions, ObservationSpec
from laser_rl.envs.scores import SUITES
from laser_rl.errors import EnvironmentRefused, MissingExtra
from tests.envs.samples import words_in
from tests.faults.environment_runs import alive, children

installed = pytest.mark.skipif(importlib.util.find_spec("vizdoom") is None, reason="needs the extra doom")


def play(env, seed, steps=60):
    """An episode's beginning under random actions: pictures, rewards, and how it ended."""
    rng, seen = np.random.default_rng(seed), [env.reset(seed=seed)[0]]
    rewards, ended = [], (False, False)
    while len(rewards) < steps and not any(ended):
        observation, reward, *ended, _ = env.step(rng.integers(9))
        seen.append(observation)
        rewards.append(reward)
    return np.stack(seen), rewards, tuple(ended)


@installed
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_seed_gives_the_same_episode_in_any_copy(name):
    first, second = constructor(f"doom/{name}", {})(), constructor(f"doom/{name}", {})()
    once = play(first, 3)
    other, again = play(first, 4), play(second, 3)
    np.testing.assert_array_equal(once[0], again[0])
    assert once[1:] == again[1:]
    assert once[0].shape != other[0].shape or (once[0] != other[0]).any()
    assert all(env.observation_space.contains(once[0][0]) for env in (first, second))
    first.close()
    second.close()


@installed
def test_a_time_limit_truncates_and_a_death_terminates():
    env = constructor("doom/basic", {})()
    env.reset(seed=1)
    ends = [env.step(0)[2:4] for _ in range(75)]  # 300 tics, of which the engine skips none after the start
    assert ends == [*[(False, False)] * 74, (False, True)] or (False, True) in ends
    env.close()
    env = constructor("doom/health_gathering", {})()
    *_, ended = play(env, 1, steps=600)  # the floor kills who does not gather
    assert ended == (True, False)
    env.close()


@installed
def test_rewards_are_the_scenarios_own_summed_over_the_tics():
    env = constructor("doom/basic", {"action_repeat": 7})()
    env.reset(seed=1)
    assert env.step(0)[1] == -7
    env.close()


@installed
def test_the_game_variables_are_the_instruction():
    envs = make_environments("doom/defend_the_center", slots=1, seed=1)
    assert envs.spec.observation == ObservationSpec((3, 73, 96), "uint8", 1 / 255, words=WORDS)
    assert envs.spec.action == DiscreteActions(9)
    words, _ = words_in(envs.reset().observation[0])
    assert list(words[:5]) == [word_number(word) for word in ("AMMO2", "26", "HEALTH", "100")] + [0]
    for _ in range(8):
        rows = envs.step(np.arange(1), np.array([8]))
    fired, _ = words_in(rows.observation[0])
    assert fired[0] == words[0]
    assert fired[1] != words[1]
    envs.close()
    bare = constructor("doom/basic", {"instructions": False, "width": 48, "height": 36})()
    assert bare.reset(seed=1)[0].shape == (3, 36, 48)
    bare.close()


@installed
def test_turning_left_moves_the_picture_right():
    env = constructor("doom/my_way_home", {"instructions": False})()
    for action, sign in ((4, 1), (5, -1)):
        env.reset(seed=5)
        angle = env.game.get_game_variable(env.vizdoom.GameVariable.ANGLE)
        for _ in range(5):
            env.step(action)
        turned = env.game.get_game_variable(env.vizdoom.GameVariable.ANGLE) - angle
        assert 5 < sign * ((turned + 180) % 360 - 180) < 120
    env.close()


@installed
@pytest.mark.parametrize("name", ["my_way_home_sparse", "my_way_home_very_sparse"])
def test_sparse_forms_begin_at_their_one_place(name):
    env = constructor(f"doom/{name}", {})()
    for seed in range(5):
        env.reset(seed=seed)
        place = [env.game.get_game_variable(getattr(env.vizdoom.GameVariable, f"POSITION_{axis}")) for axis in "XY"]
        assert np.abs(np.array(place) - [float(place) for place in SCENARIOS[name]["start"].split()]).sum() < 4
    env.close()


@installed
def test_there_are_bots_in_the_deathmatch():
    env = constructor("doom/deathmatch_bots", {})()
    for _ in range(2):
        play(env, 1, steps=20)
        assert env.game.get_game_variable(env.vizdoom.GameVariable.PLAYER_COUNT) == 8
    env.close()


@installed
def test_nothing_is_left_in_the_working_directory_or_after_the_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, shared = children(), set(NAMES.parent.glob("ViZDoom*"))
    env = make_renderable("doom/basic")
    play(env, 1, steps=3)
    assert env.render().shape == (120, 160, 3)
    (engine,) = children() - before
    env.close()
    deadline = time.monotonic() + 10
    while alive(engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(engine)
    assert list(tmp_path.iterdir()) == []
    assert set(NAMES.parent.glob("ViZDoom*")) <= shared


@installed
def test_names_of_engines_killed_at_their_start_are_removed_when_they_are_old(tmp_path, monkeypatch):
    monkeypatch.setattr("laser_rl.envs.doom.NAMES", tmp_path / "ViZDoom")
    old, new, other = (tmp_path / name for name in ("ViZDoomSMold", "ViZDoomSMnew", "Quake"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (time.time() - 61,) * 2)
    DoomEnv("basic").close()
    assert sorted(tmp_path.iterdir()) == [other, new]


@installed
@pytest.mark.slow
def test_the_whole_suite_is_one_mixture_in_worker_processes():
    tasks = len(SUITES["doom"])
    assert tasks >= 10
    envs = make_environments("suite:doom", slots=tasks, seed=1, placement="process", workers=2, lockstep=True)
    assert envs.spec.observation.shape == (3, 73, 96)
    assert envs.spec.action == DiscreteActions(9)
    rows, rng = envs.reset(), np.random.default_rng(0)
    for _ in range(50):
        rows = envs.step(rows.slots, rng.integers(9, size=tasks))
    assert envs.counters() == dict.fromkeys(envs.counters(), 0)
    assert len({picture.tobytes() for picture in rows.observation}) == tasks
    envs.close()


def test_actions_are_dmlabs_nine():
    assert [sorted(pressed) for pressed in PRESSED] == [
        ["MOVE_FORWARD"],
        ["MOVE_BACKWARD"],
        ["MOVE_LEFT"],
        ["MOVE_RIGHT"],
        ["TURN_LEFT"],
        ["TURN_RIGHT"],
        ["MOVE_FORWARD", "TURN_LEFT"],
        ["MOVE_FORWARD", "TURN_RIGHT"],
        ["ATTACK"],
    ]


def test_the_suite_has_every_scenario():
    assert {task.id for task in SUITES["doom"]} == {f"doom/{name}" for name in SCENARIOS}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("doom/deadly_coridor", {}, "did you mean 'deadly_corridor'"),
        ("doom/../secret", {}, "there is no scenario doom/../secret"),
        ("doom/basic", {"size": 1}, "options among .*action_repeat.* got size"),
    ],
)
def test_what_is_not_there_is_refused_in_one_sentence(name, options, said):
    with pytest.raises(EnvironmentRefused, match=said):
        constructor(name, options)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "vizdoom", None)
    with pytest.raises(MissingExtra, match=r"doom/basic needs the extra 'doom': pip install 'laser-rl\[doom\]'"):
        constructor("doom/basic", {})
