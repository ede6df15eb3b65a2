"""Ordinary pictures of more than 32 pixels: which recipe they get, and that it starts on a laptop."""

import re

import gymnasium
import numpy as np
import pytest

from laser_rl import LASER, recipes
from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.networks.build import family_of, parameter_count
from laser_rl.replay.memory_estimate import estimate
from laser_rl.training.build import layout_of, seeded_network

LAPTOP_GB = 2.0
THREE = DiscreteActions(3)


class Falling(gymnasium.Env):
    """Catch what falls through five columns, drawn on `size` × `size` pixels in colour; ±10 at the end."""

    ROWS, COLUMNS = 8, 5
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, size=40, *, floats=False):
        self.size, self.floats = size, floats
        kind = (0, 1, (size, size, 3), np.float32) if floats else (0, 255, (size, size, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Box(*kind)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.column, self.paddle = 0, int(self.np_random.integers(self.COLUMNS)), self.COLUMNS // 2
        return self.look(), {}

    def step(self, action):
        self.paddle = min(self.COLUMNS - 1, max(0, self.paddle + int(action) - 1))
        self.row += 1
        ended = self.row == self.ROWS - 1
        return self.look(), (10.0 if self.paddle == self.column else -10.0) if ended else 0.0, ended, False, {}

    def look(self):
        board = np.zeros((self.size, self.size, 3), np.float32)
        height, width = self.size // self.ROWS, self.size // self.COLUMNS
        board[self.row * height :, self.column * width :][:height, :width] += (0.8, 0.8, 0.2)
        board[(self.ROWS - 1) * height :, self.paddle * width :][:height, :width] += (0.0, 0.2, 0.8)
        return board if self.floats else (255 * board).astype(np.uint8)


def floats():
    return Falling(floats=True)


def chosen(shape, environment="mazes:Maze", action=THREE, dtype="uint8"):
    return recipes.for_environment(EnvironmentSpec("maze", ObservationSpec(shape, dtype), action), environment)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("shape", [(3, 33, 20), (3, 40, 40), (1, 84, 84), (3, 210, 160)])
def test_ordinary_pictures_keep_their_rewards(shape, dtype):
    config = chosen(shape, dtype=dtype)
    assert config.recipe == "pictures"
    assert (config.loss.reward_transform, config.loss.life_loss_ends_discount) == ("none", False)


def test_other_environments_keep_their_recipe():
    assert chosen((1, 84, 84), "ALE/Pong-v5") == recipes.atari("ALE/Pong-v5")
    assert chosen((1, 84, 84), "pong").recipe == "atari"
    assert chosen((4, 10, 10)).recipe == "minatar"
    assert chosen((3, 84, 84), action=BoxActions((-1.0,), (1.0,))).recipe == "continuous"
    assert not chosen(
        (3, 84, 84), action=BoxActions((-1.0,), (1.0,))
    ).network.normalise_observation  # refused for pictures


@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_trust_bound_grows_with_the_actions_as_the_kl_does(count):
    config = chosen((4,), action=BoxActions((-1.0,) * count, (1.0,) * count), dtype="float32")
    assert config.loss.trust_bound == pytest.approx(count / 6)
    assert config.network.normalise_observation


def test_lunar_lander_is_known_by_its_entry_in_the_registry():
    assert chosen((8,), "LunarLander-v3", dtype="float32").recipe == "box2d"  # Box2D itself need not be there
    assert chosen((8,), "CartPole-v1", dtype="float32").recipe == "cartpole"


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("shape", [(3, 40, 40), (3, 210, 160)])
def test_they_fit_a_laptop(shape, dtype):
    spec = EnvironmentSpec("maze", ObservationSpec(shape, dtype), THREE)
    config = recipes.for_environment(spec, "mazes:Maze")
    assert config.recipe == "pictures"
    layout = layout_of(spec, family_of(spec.action), config)
    need = str(estimate(layout, config.replay.capacity_steps, config.replay.codec, config.replay.budget_bytes))
    assert float(re.search(r"steps: ([\d.]+) GB", need)[1]) < LAPTOP_GB
    assert "zstd" in need
    assert parameter_count(seeded_network(config, spec, None)) < 10_000_000


@pytest.mark.parametrize("torso", [None, "auto"])
def test_pictures_of_floats_are_learned_from(torso):
    settings = {
        "batch_unrolls": 8,
        "slots": 2,
        "unroll_steps": 5,
        "run.threads": 1,
        **({} if torso is None else {"torso": torso}),
    }
    agent = LASER(floats, seed=1, **settings).learn(30)
    observation = floats().reset(seed=1)[0]
    assert agent.config.recipe == "pictures"
    assert int(agent.predict(observation)[0]) in range(3)
    agent.close()
