"""A Minari dataset: equal to the replay byte for byte, real episodes, and never half of it."""

import gymnasium
import numpy as np
import pytest

from laser_rl import checkpoint
from laser_rl.cli import main
from laser_rl.errors import ConfigError
from laser_rl.tools import minari_dataset
from tests.tools import naive
from tests.training.small import finish, small
from tests.training.test_sweeps import in_directory, small_sweep

minari = pytest.importorskip("minari")
NAME = "laser/cartpole/mixed-v0"
FIELDS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "terminations": "terminated",
    "truncations": "truncated",
}


def exported(run_dir, out, **more):
    return minari_dataset.export_minari(run_dir, NAME, out=out, **more)


def loaded(out, monkeypatch, name=NAME):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(out))
    return minari.load_dataset(name)


def in_bytes(episode):
    return b"".join(np.ascontiguousarray(getattr(episode, name)).tobytes() for name in FIELDS)


def test_its_episodes_equal_the_replays_byte_for_byte(run, tmp_path, monkeypatch):
    path, layout = run
    export = exported(path, tmp_path)
    dataset, expected = loaded(tmp_path, monkeypatch), naive.episodes(path, layout)
    assert dataset.total_episodes == len(expected) == export.episodes
    assert export.mean_return == pytest.approx(np.mean([episode.rewards.sum() for episode in dataset]))
    assert dataset.total_steps == sum(len(one["reward"]) for one in expected)
    by_bytes = {
        b"".join(np.ascontiguousarray(one[name]).tobytes() for name in FIELDS.values()): one for one in expected
    }
    assert len(by_bytes) == len(expected)
    for episode in dataset:
        same = by_bytes[in_bytes(episode)]
        for name, ours in FIELDS.items():
            assert getattr(episode, name).dtype == same[ours].dtype
        assert episode.infos["behaviour"][:-1].tobytes() == same["behaviour"].tobytes()
        assert np.isnan(episode.infos["behaviour"][-1]).all()
        assert {len(info) for info in episode.infos.values()} == {len(episode) + 1}


def test_the_environment_that_it_names_plays_them_again(run, tmp_path, monkeypatch):
    exported(run[0], tmp_path)
    dataset = loaded(tmp_path, monkeypatch)
    env, played = gymnasium.make(dataset.storage.metadata["laser_rl"]["environment"]), 0
    for episode, about in zip(dataset, dataset.storage.get_episode_metadata(range(len(dataset))), strict=True):
        if "seed" not in about:
            continue
        observation, _ = env.reset(seed=about["seed"])
        rows = [observation]
        for action, reward, ended in zip(episode.actions, episode.rewards, episode.terminations, strict=True):
            observation, paid, terminated, *_ = env.step(action)
            assert (paid, terminated) == (reward, ended)
            rows.append(observation)
        assert np.array_equal(np.stack(rows), episode.observations)
        played += 1
    assert played > len(dataset) // 2


def test_it_says_where_it_came_from(run, tmp_path, monkeypatch):
    exported(run[0], tmp_path)
    dataset = loaded(tmp_path, monkeypatch)
    ours = dataset.storage.metadata["laser_rl"]
    newest = checkpoint.latest(run[0])
    assert (ours["environment"], ours["members"], ours["checkpoint_step"]) == ("CartPole-v1", "all", newest.step)
    assert dataset.storage.jpeg_encoding is False
    assert NAME in minari.list_local_datasets()


class Killed(BaseException):
    """The export ends there as if the process had been killed: nothing after it runs, what is on disk stays."""


@pytest.mark.parametrize(
    "function",
    [
        "laser_rl.tools.minari_dataset._buffer",
        "minari.dataset.minari_storage.MinariStorage.update_metadata",
        "laser_rl.tools.minari_dataset._make_namespace",
    ],
)
def test_killed_there_is_no_dataset_and_the_next_export_is_whole(run, tmp_path, monkeypatch, function):
    whole = exported(run[0], tmp_path / "whole")

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(function, killed)
        with pytest.raises(Killed):
            exported(run[0], tmp_path / "killed")
    assert not (tmp_path / "killed" / NAME).exists()
    again = exported(run[0], tmp_path / "killed")
    assert again == whole._replace(path=again.path)
    both = (list(loaded(tmp_path / name, monkeypatch)) for name in ("whole", "killed"))
    for one, other in zip(*both, strict=True):
        assert in_bytes(one) == in_bytes(other)


def test_what_is_there_is_never_overwritten(run, tmp_path):
    about = exported(run[0], tmp_path).path / "data" / "metadata.json"
    before = about.read_bytes()
    with pytest.raises(ConfigError, match="is not overwritten"):
        exported(run[0], tmp_path)
    assert about.read_bytes() == before


def test_the_command_says_what_there_is_and_refuses_what_it_cannot_do(run, tmp_path, capsys):
    assert main(["export", str(run[0]), "--minari", NAME, "--out", str(tmp_path)]) == 0
    assert "whole episodes" in capsys.readouterr().out
    for given, said in (
        (["--minari", "mixed"], "NAMESPACE/NAME-vN"),
        ([], "export what"),
        (["--onnx", "a.onnx", "--out", "x"], "--out is for --minari"),
        (["--minari", NAME, "--member", "4"], "no member 4"),
    ):
        assert main(["export", str(run[0]), *given]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_without_replay_or_without_a_whole_episode_is_refused(tmp_path):
    finish(small(steps=60, **{"replay.fraction": 0.0}), tmp_path / "none")
    with pytest.raises(ConfigError, match="keeps no replay"):
        exported(tmp_path / "none", tmp_path / "out")
    finish(small(steps=30), tmp_path / "short")
    with pytest.raises(ConfigError, match="no whole episode"):
        exported(tmp_path / "short", tmp_path / "out")


@pytest.mark.slow
def test_one_member_of_a_sweep(tmp_path, monkeypatch):
    in_directory(small_sweep(steps=300), tmp_path / "sweep")
    exported(tmp_path / "sweep", tmp_path / "out", member=2)
    dataset = loaded(tmp_path / "out", monkeypatch)
    assert {about["member"] for about in dataset.storage.get_episode_metadata(range(len(dataset)))} == {2}


@pytest.mark.slow
def test_real_valued_actions_are_the_environments_and_the_stored_ones_stand_beside_them(tmp_path, monkeypatch):
    config = small("Pendulum-v1", steps=1400, capacity_steps=2000)
    _, training = finish(config, tmp_path / "run")
    exported(tmp_path / "run", tmp_path / "out")
    dataset = loaded(tmp_path / "out", monkeypatch)
    expected = naive.episodes(tmp_path / "run", training.member.layout)
    assert {one["action"].tobytes() for one in expected} == {e.infos["latent_action"][:-1].tobytes() for e in dataset}
    env = gymnasium.make("Pendulum-v1")
    for episode, about in zip(dataset, dataset.storage.get_episode_metadata(range(len(dataset))), strict=True):
        assert episode.truncations[-1]
        assert all(dataset.action_space.contains(action) for action in episode.actions)
        assert np.allclose(episode.actions, 2 * np.tanh(episode.infos["latent_action"][:-1]), atol=1e-6)
        observation, _ = env.reset(seed=about["seed"])
        assert np.array_equal(observation, episode.observations[0])
        assert np.array_equal(env.step(episode.actions[0])[0], episode.observations[1])


@pytest.mark.slow
def test_pictures_are_single_frames_and_exact(tmp_path, monkeypatch):
    pytest.importorskip("ale_py")
    config = small(
        "ALE/Pong-v5",
        steps=400,
        capacity_steps=2000,
        slots=2,
        torso="cnn",
        frame_stack=4,
        **{"environment.atari.most_frames": 200},
    )
    _, training = finish(config, tmp_path / "run")
    exported(tmp_path / "run", tmp_path / "out")
    dataset = loaded(tmp_path / "out", monkeypatch)
    expected = {one["observation"].tobytes() for one in naive.episodes(tmp_path / "run", training.member.layout)}
    assert dataset.observation_space.shape == (1, 84, 84)
    assert {episode.observations.tobytes() for episode in dataset} == expected
    assert dataset.storage.metadata["laser_rl"]["frame_stack"] == 4
    raw = sum(episode.observations.nbytes for episode in dataset)
    assert (tmp_path / "out" / NAME / "data" / "main_data.hdf5").stat().st_size < raw / 4


class Counted(gymnasium.Env):
    """Its observation repeats the action that it was handed, so that a shift between the two shows."""

    observation_space = gymnasium.spaces.Box(-99, 99, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        return np.resize(np.asarray(action, np.float32), 2), 1.0, self.t == 9, False, {}


class CountedTwice(Counted):
    action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=[-4, 7])


@pytest.mark.parametrize("environment", [Counted, CountedTwice])
def test_actions_are_those_that_the_environment_took_wherever_it_begins_to_count(environment, tmp_path, monkeypatch):
    name = f"{environment.__name__}-v0"
    gymnasium.register(name, entry_point=f"{__name__}:{environment.__name__}")
    try:
        finish(small(name, steps=300), tmp_path / "run")
        exported(tmp_path / "run", tmp_path / "data")
        dataset = loaded(tmp_path / "data", monkeypatch)
        assert dataset.action_space == environment.action_space
        assert dataset.storage.metadata["laser_rl"]["environment"] == name
    finally:
        gymnasium.registry.pop(name)
    episodes = list(dataset)
    assert episodes
    for episode in episodes:
        assert all(environment.action_space.contains(action) for action in episode.actions)
        assert np.array_equal(np.stack([np.resize(one, 2) for one in episode.actions]), episode.observations[1:])
