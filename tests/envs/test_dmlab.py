"""The adapter against a stand-in with the interface of `deepmind_lab`: the original is not to be had here."""

import csv
import logging
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from laser_rl.envs.dmlab import ACTIONS, HELD_OUT_SEEDS, LEVELS, DmlabEnv, LevelCache, lab_level
from laser_rl.envs.instructions import WORDS, with_instruction, word_numbers
from laser_rl.envs.make import make_environments, make_renderable
from laser_rl.envs.records import DiscreteActions, ObservationSpec, seed_of
from laser_rl.envs.scores import SUITES
from laser_rl.errors import EnvironmentRefused
from tests import references
from tests.envs import standin_lab
from tests.envs.samples import words_in

SMALL = {"width": 16, "height": 12}
DOCUMENTS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def lab(monkeypatch, tmp_path):
    """In this process, and on the path for worker processes."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "deepmind_lab.py").write_text("from tests.envs.standin_lab import Lab\n")
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setitem(sys.modules, "deepmind_lab", standin_lab)
    standin_lab.made.clear()
    return standin_lab


def twin(level, **config):
    """A Lab of our own, driven by hand."""
    config = {"width": "16", "height": "12", **config}
    return standin_lab.Lab(f"contributed/dmlab30/{level}", ["RGB_INTERLEAVED", "INSTR"], config=config)


def seen(lab):
    values = lab.observations()
    return with_instruction(values["RGB_INTERLEAVED"].transpose(2, 0, 1), values["INSTR"])


@pytest.mark.parametrize("level", ["rooms_watermaze", "language_select_described_object"])
@pytest.mark.parametrize("count", [9, 15])
@pytest.mark.parametrize("repeat", [4, 3])
def test_rows_are_what_lab_shows_from_the_first_to_the_last(level, count, repeat):
    options = {**SMALL, "actions": count, "action_repeat": repeat}
    envs = make_environments(f"dmlab/{level}", slots=2, seed=3, options=options)
    labs, rng, last, episodes = [twin(level), twin(level)], np.random.default_rng(0), [None, None], 0
    assert envs.spec.action == DiscreteActions(count)
    assert envs.spec.observation == ObservationSpec((3, 13, 16), "uint8", 1 / 255, words=WORDS)
    rows, action = envs.reset(), None
    for _ in range(120):
        for slot, own in enumerate(labs):
            if rows.is_first[slot]:
                assert rows.seed[slot] == seed_of(3, np.array(slot), rows.episode[slot])
                own.reset(episode=0, seed=int(rows.seed[slot]))
                assert rows.reward[slot] == 0
                last[slot] = seen(own)
            else:
                controls = np.array(ACTIONS[count][action[slot]], np.intc)
                assert rows.reward[slot] == own.step(controls, num_steps=repeat)
                last[slot] = seen(own) if own.is_running() else last[slot]
            np.testing.assert_array_equal(rows.observation[slot], last[slot])
            assert rows.terminated[slot] == (not own.is_running())
            episodes += int(rows.terminated[slot])
        assert not rows.truncated.any()
        action = rng.integers(count, size=2)
        rows = envs.step(np.arange(2), action)
    assert episodes >= 4
    assert envs.counters() == dict.fromkeys(envs.counters(), 0)
    envs.close()
    assert not any(own._status for own in standin_lab.made[:2])


def test_worker_processes_give_the_rows_of_this_thread():
    name, options = "dmlab/language_execute_random_task", SMALL
    serial = make_environments(name, slots=2, seed=7, options=options)
    pool = make_environments(name, slots=2, seed=7, options=options, placement="process", workers=2, lockstep=True)
    assert serial.spec == pool.spec
    assert pool.spec.observation.words == WORDS
    rng, left, right = np.random.default_rng(1), serial.reset(), pool.reset()
    for _ in range(70):
        for field, one, other in zip(left._fields, left, right, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=field)
        action = rng.integers(9, size=2)
        left, right = serial.step(np.arange(2), action), pool.step(np.arange(2), action)
    assert left.episode.min() >= 1
    for field, value in serial.state_dict().items():
        np.testing.assert_array_equal(value, pool.state_dict()[field])
    pool.close()
    serial.close()


@pytest.mark.parametrize("steps", [0, 17, 75])
def test_a_restored_run_goes_on_as_if_nothing_had_happened(steps):
    def make():
        return make_environments("dmlab/rooms_keys_doors_puzzle", slots=2, seed=5, options=SMALL)

    one, rng = make(), np.random.default_rng(steps)
    here = one.reset()
    for _ in range(steps):
        here = one.step(np.arange(2), rng.integers(9, size=2))
    other = make()
    there = other.load_state_dict({field: value.copy() for field, value in one.state_dict().items()})
    for _ in range(40):
        for left, right in zip(here, there, strict=True):
            np.testing.assert_array_equal(left, right)
        action = rng.integers(9, size=2)
        here, there = one.step(np.arange(2), action), other.step(np.arange(2), action)
    assert other.counters()["lost_episodes"] == 0


def test_the_action_sets_are_the_published_ones():
    look, pitch, strafe, walk, fire = range(5)

    def moves(count):
        return {tuple((axis, value) for axis, value in enumerate(action) if value) for action in ACTIONS[count]}

    common = {((walk, 1),), ((walk, -1),), ((strafe, 1),), ((strafe, -1),), ((fire, 1),)}
    turns = {((look, value),) for value in (-20, 20)} | {((look, value), (walk, 1)) for value in (-20, 20)}
    assert moves(9) == common | turns
    turns = {((look, value),) for value in (-10, 10, -60, 60)}
    turns |= {((look, value), (walk, 1)) for value in (-10, 10, -60, 60)}
    assert moves(15) == common | turns | {((pitch, 10),), ((pitch, -10),)}
    assert all(len(ACTIONS[count]) == count == len(moves(count)) for count in ACTIONS)


def test_lab_gets_what_it_is_asked_for():
    DmlabEnv("rooms_collect_good_objects_train", renderer="hardware", **SMALL)
    trained = standin_lab.made[-1]
    assert (trained.level, trained.renderer) == ("contributed/dmlab30/rooms_collect_good_objects_train", "hardware")
    assert trained.config == {"width": "16", "height": "12", "logLevel": "WARN"}
    assert trained.names == ["RGB_INTERLEAVED", "INSTR"]


@pytest.mark.parametrize(
    ("name", "played"),
    [
        ("rooms_collect_good_objects_train", "rooms_collect_good_objects_test"),
        ("rooms_exploit_deferred_effects_test", "rooms_exploit_deferred_effects_test"),
        ("rooms_watermaze", "rooms_watermaze"),
    ],
)
def test_a_test_plays_the_level_and_the_seeds_that_are_held_out(name, played):
    env, trained = DmlabEnv(name, test=True, **SMALL), DmlabEnv("rooms_watermaze", **SMALL)
    tested = standin_lab.made[0]
    assert tested.level == f"contributed/dmlab30/{played}"
    assert tested.config["allowHoldOutLevels"] == "true"
    assert tested.config["mixerSeed"] == str(HELD_OUT_SEEDS) == "1611489005"
    assert "mixerSeed" not in standin_lab.made[1].config
    assert (env.reset(seed=1)[0] != trained.reset(seed=1)[0]).any()


def test_the_instruction_is_in_the_last_row_and_changes_with_the_level():
    env = DmlabEnv("language_select_located_object", **SMALL)
    rows = [env.reset(seed=4)[0]]
    while len(rows) < 20:
        rows.append(env.step(0)[0])
    texts = [standin_lab.instruction(env._lab._seed, 4 * step) for step in range(20)]
    assert len(set(texts)) == 2
    assert [words_in(row)[0] for row in rows] == [word_numbers(text) for text in texts]
    silent = DmlabEnv("rooms_watermaze", **SMALL).reset(seed=4)[0]
    assert not any(words_in(silent)[0])


def test_without_instructions_a_picture_is_a_picture():
    envs = make_environments("dmlab/rooms_watermaze", slots=1, seed=1, options={**SMALL, "instructions": False})
    assert envs.spec.observation == ObservationSpec((3, 12, 16), "uint8", 1 / 255)
    rows, own = envs.reset(), twin("rooms_watermaze")
    own.reset(episode=0, seed=int(rows.seed[0]))
    np.testing.assert_array_equal(rows.observation[0], own.observations()["RGB_INTERLEAVED"].transpose(2, 0, 1))
    assert standin_lab.made[0].names == ["RGB_INTERLEAVED"]


def test_the_default_picture_is_impalas():
    env = DmlabEnv("rooms_watermaze")
    assert env.observation_space.shape == (3, 72 + 1, 96)
    assert (env.action_space.n, env.metadata["render_fps"]) == (9, 15)


def test_an_episode_is_a_function_of_its_seed_and_its_actions():
    env, late = DmlabEnv("rooms_watermaze", **SMALL), DmlabEnv("rooms_watermaze", **SMALL)
    for seed in range(3):
        late.reset(seed=seed)
    np.testing.assert_array_equal(env.reset(seed=9)[0], late.reset(seed=9)[0])
    np.testing.assert_array_equal(env.step(3)[0], late.step(3)[0])
    assert (env.reset(seed=9)[0] != env.reset(seed=10)[0]).any()
    assert (env.reset()[0] != env.reset()[0]).any()
    env.reset(seed=2**40 + 5)  # the stand-in refuses what does not fit into a C int


def test_the_end_of_an_episode_shows_the_last_picture_that_there_was():
    env = DmlabEnv("rooms_watermaze", **SMALL)
    before, ended = env.reset(seed=2)[0], False
    while not ended:
        after, reward, ended, truncated, _ = env.step(8)
        assert not truncated
        assert reward < 0
        if not ended:
            assert (after != before).any()
            before = after
    np.testing.assert_array_equal(after, before)
    frames = standin_lab.episode_frames(env._lab._seed)
    assert env._lab.num_steps() == frames
    assert frames % 4  # it ended while an action was held


def test_there_is_something_to_look_at():
    env = make_renderable("dmlab/language_select_described_object", options=SMALL)
    observation = env.reset(seed=1)[0]
    frame = env.render()
    np.testing.assert_array_equal(frame, observation[:, :-1].transpose(1, 2, 0))
    env.step(0)
    assert (env.render() != frame).any()
    assert env.metadata["render_fps"] == 15


def test_any_other_level_of_lab_is_named_by_its_path():
    env = DmlabEnv("tests/empty_room_test", **SMALL)
    assert standin_lab.made[0].level == "tests/empty_room_test"
    assert env.reset(seed=1)[0].shape == (3, 13, 16)


@pytest.mark.parametrize(
    ("level", "options", "message"),
    [
        ("rooms_watermase", {}, "the name of a level of DMLab-30, got 'rooms_watermase'; did you mean rooms_watermaze"),
        ("rooms_collect_good_objects_test", {}, "held out for tests; train on rooms_collect_good_objects_train"),
        ("rooms_watermaze", {"wide": 3, "action": 1}, "options among width, .*got action, wide; check the spelling"),
        ("rooms_watermaze", {"level": "rooms_watermaze"}, "got level; check the spelling"),
        ("rooms_watermaze", {"actions": 12}, "the option actions to be one of 9, 15, got 12"),
        ("rooms_watermaze", {"width": 8}, "rows hold 32 bytes.*make it 11 wide"),
        ("psychlab_continuous_recognition", {}, "option dataset_path with the pictures 0001.png to 2400.png .*got None; data/brady"),
        ("psychlab_continuous_recognition", {"dataset_path": "/nowhere"}, "got '/nowhere'; data/brady"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused(level, options, message):
    with pytest.raises(EnvironmentRefused, match=rf"^(dmlab/{level}: )?expected.*{message}"):
        make_environments(f"dmlab/{level}", slots=1, seed=1, options=options)


def test_pictures_reach_the_levels_that_need_them(tmp_path):
    (tmp_path / "0001.png").touch()
    for level in LEVELS:  # the stand-in refuses those that need some and get none
        DmlabEnv(level, dataset_path=tmp_path, **SMALL)
    given = [own.level.removeprefix(standin_lab.FOLDER) for own in standin_lab.made if "datasetPath" in own.config]
    assert given == list(standin_lab.SHOWS_PHOTOGRAPHS)
    assert standin_lab.made[18].config["datasetPath"] == str(tmp_path)


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_without_deepmind_lab_one_sentence_says_where_to_get_it(monkeypatch, placement):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(
        EnvironmentRefused, match=r"no package registry has it: clone .* with bazel .*docs/dmlab.md"
    ) as caught:
        make_environments("dmlab/rooms_watermaze", slots=1, seed=1, placement=placement)
    assert "\n" not in str(caught.value)


def test_a_worker_without_it_is_refused_too(monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / "deepmind_lab.py").is_file()])
    with pytest.raises(EnvironmentRefused, match=r"ModuleNotFoundError.*with bazel"):
        make_environments("dmlab/rooms_watermaze", slots=1, seed=1, placement="process", workers=1)


def test_maps_are_compiled_once_for_everybody(tmp_path):
    options = {**SMALL, "level_cache": str(tmp_path / "maps" / "compiled")}
    envs = [DmlabEnv("explore_goal_locations_small", **options) for _ in range(2)]
    for env in envs:
        for seed in range(10):  # two maps in all
            env.reset(seed=seed)
        env.close()
    assert [own.compiled for own in standin_lab.made] == [2, 0]
    assert len(list((tmp_path / "maps" / "compiled").iterdir())) == 2


def test_a_cached_map_appears_whole_or_not_at_all(tmp_path, monkeypatch, caplog):
    source, target, content = tmp_path / "new.pk3", tmp_path / "got.pk3", b"map" * 100_000
    source.write_bytes(content)
    cache, looked = LevelCache(tmp_path / "cache"), []
    copy = shutil.copyfileobj

    def broken(file, partial):
        partial.write(file.read(1000))
        partial.flush()
        looked.append(cache.fetch("maze", str(target)))
        if len(looked) == 1:
            raise OSError(28, "No space left on device")
        copy(file, partial)

    monkeypatch.setattr("laser_rl.envs.dmlab.shutil.copyfileobj", broken)
    with caplog.at_level(logging.WARNING, "laser_rl.envs"):
        cache.write("maze", str(source))
    assert "maze could not be kept" in caplog.text
    assert not list((tmp_path / "cache").iterdir())
    cache.write("maze", str(source))
    assert looked == [False, False]
    assert cache.fetch("maze", str(target))
    assert target.read_bytes() == content
    source.write_bytes(b"other")
    cache.write("maze", str(source))  # a key holds a hash of the map: what is there is right
    assert cache.fetch("maze", str(target))
    assert target.read_bytes() == content
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["maze"]


def test_many_may_write_the_same_map_at_once(tmp_path):
    (tmp_path / "new.pk3").write_bytes(b"map" * 10_000)
    with ThreadPoolExecutor(8) as pool:
        caches = [LevelCache(tmp_path / "cache") for _ in range(32)]
        list(pool.map(lambda cache: cache.write("maze", str(tmp_path / "new.pk3")), caches, timeout=30))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["maze"]
    assert (tmp_path / "cache" / "maze").read_bytes() == b"map" * 10_000


def test_a_cache_stays_in_its_directory_and_says_when_there_is_none(tmp_path):
    (tmp_path / "secret").write_bytes(b"not a map")
    assert not LevelCache(tmp_path / "cache").fetch("../secret", str(tmp_path / "out"))
    with pytest.raises(EnvironmentRefused, match="directory for compiled maps in the option level_cache"):
        LevelCache(tmp_path / "secret")


def test_there_are_thirty_levels_with_their_scores():
    levels = SUITES["dmlab-30"]
    assert len({level.id for level in levels}) == 30
    assert all(level.random < level.best for level in levels)
    # Sums over the published table.
    assert sum(level.random for level in levels) == pytest.approx(72.617)
    assert sum(level.best for level in levels) == pytest.approx(3110.15)
    for level in LEVELS:
        if not level.startswith("psychlab"):
            assert lab_level(level) in standin_lab.KNOWN


def test_the_documents_have_the_same_levels_and_actions():
    with (DOCUMENTS / "dmlab-levels.csv").open(newline="") as file:
        rows = [
            (name, test or name, float(random), float(human))
            for name, test, random, human in list(csv.reader(file))[1:]
        ]
    assert rows == [
        (name, name.replace("_train", "_test"), level.random, level.best)
        for name, level in zip(LEVELS, SUITES["dmlab-30"], strict=True)
    ]
    with (DOCUMENTS / "dmlab-actions.csv").open(newline="") as file:
        found = [(int(count), int(index), *map(int, sent)) for count, index, _, *sent in list(csv.reader(file))[1:]]
    assert found == [(count, index, *action) for count in (9, 15) for index, action in enumerate(ACTIONS[count])]


def test_the_levels_of_dmlab_have_the_scores_of_the_table():
    with (Path(references.__file__).parent / "dmlab30_scores.csv").open(newline="") as file:
        table = {line["game"]: (float(line["random"]), float(line["human"])) for line in csv.DictReader(file)}
    assert {
        level.id.removeprefix("dmlab/").replace("_train", "_test"): (level.random, level.best)
        for level in SUITES["dmlab-30"]
    } == table
