"""Dict observations with pictures: their bytes arrive as they were, each part has its torso, and files keep them."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from laser_rl import LASER
from laser_rl.errors import ConfigError, EnvironmentRefused
from laser_rl.networks.agent_network import split_parts
from laser_rl.networks.torso import CNN, MLP, Tiles
from laser_rl.training.build import batch_of
from tests.envs.several import Both, Forbidding, MaskedBook, PictureBook, expected_parts

SMALL = {"hidden": (16,), "unroll_steps": 5, "slots": 4, "capacity_steps": 500, "batch_unrolls": 8, "seed": 1}
LONG = {**SMALL, "unroll_steps": 20}  # enough bytes to be compressed


@pytest.fixture(scope="module", params=[PictureBook, MaskedBook])
def agent(request):
    agent = LASER(request.param, **LONG).learn(400)
    yield agent
    agent.close()


def test_a_dict_with_pictures_gets_a_torso_for_each_part_and_a_laptop_recipe(agent):
    torso = agent.member.learner.network.torso
    prefix = "observation/" if agent.member.spec.observation.mask else ""
    assert torso.keys == (*(prefix + key for key in ("depth", "eyes/far", "eyes/near")), "rest")
    assert [type(one) for one in torso.torsos] == [CNN, Tiles, CNN, MLP]
    assert (agent.config.recipe, agent.config.environment.frame_stack) == ("pictures", 1)


def test_every_byte_arrives_in_batches_and_at_the_torsos(agent):
    member = agent.member
    spec, batch = member.spec.observation, batch_of(member)
    assert member.replay.codec == "zstd"
    member.replay.sample_into(8, np.random.default_rng(0), batch, 0)
    flat = batch.observation.flatten(0, 1)
    seen = {
        key.removeprefix("observation/"): value
        for key, value in split_parts(flat[:, : flat.shape[1] - spec.mask], spec.parts).items()
    }
    modes, masks = set(), flat[:, flat.shape[1] - spec.mask :].numpy()
    for row in range(len(flat)):
        one = {key: value[row].numpy() for key, value in seen.items()}
        mode, place = one["rest"][:3], one["rest"][3:].astype(int)
        seed, t, total = (int(place[0]) << 16) + int(place[1]), int(place[2]), int(place[3])
        wanted = expected_parts(seed, t, total)
        assert mode.argmax() == wanted["mode"]
        np.testing.assert_array_equal(
            one["depth"], wanted["depth"]
        )  # [C, H, W] already: the first dimension is the smallest
        np.testing.assert_array_equal(np.round(one["eyes/far"][0] * 100), wanted["eyes"]["far"])
        np.testing.assert_array_equal(np.round(one["eyes/near"] * 255), wanted["eyes"]["near"].transpose(2, 0, 1))
        assert one["eyes/near"].max() <= 1
        if spec.mask and t != 3 + seed % 7:
            assert masks[row].tolist() == [1, t % 2 == 0, 1]
        modes.add(wanted["mode"])
    assert modes == {0, 1, 2}


def test_saved_agents_predict_from_the_dict_as_the_environment_gives_it(agent, tmp_path):
    loaded = LASER.load(agent.save(tmp_path / "book.laser"))
    assert loaded._loaded.spec == agent.member.spec
    more = {"action_mask": [1, 0, 1]} if agent.member.spec.observation.mask else {}
    for seed in range(20):
        seen = expected_parts(seed, 1, 2)
        action = agent.predict(seen, **more)[0]
        assert action == loaded.predict(seen, **more)[0]
        assert not more or action != 1
    seen["place"][1] = np.nan
    with pytest.raises(ConfigError, match="with NaN or infinity in it"):
        loaded.predict(seen, **more)
    del seen["depth"]
    with pytest.raises(ConfigError, match="expected one observation of"):
        loaded.predict(seen, **more)


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path):
    def parameters(agent):
        return agent.member.learner.flat.value.clone()

    settings = {**SMALL, "env": MaskedBook, "checkpoint_every_steps": 10_000}
    whole = LASER(**settings)
    parts = LASER(**settings, run_dir=tmp_path / "run")
    for one in (whole, parts):
        one.learn(100, total=200)
    parts.close()
    assert torch.equal(parameters(whole), parameters(parts))
    again = LASER(**settings, run_dir=tmp_path / "run")
    for one in (whole, again):
        one.learn(100, total=200)
        one.close()
    assert torch.equal(parameters(whole), parameters(again))
    assert again.member.learner.version > parts.member.learner.version


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"placement": "process", "workers": 2}, {"runtime": "local"}, {"memory": "lstm"}], ids=str
)
def test_other_ways_to_run_learn_from_pages_too(how):
    agent = LASER(MaskedBook, **SMALL, **how).learn(300)
    assert agent.member.learner.version > 10
    assert agent.evaluate(episodes=2).episodes == 2
    agent.close()


@pytest.mark.slow
def test_a_task_that_needs_picture_and_number_is_learnt():
    agent = LASER(Both, seed=1, slots=8, hidden=(32,), channels=8, discount=0.0, recipe="minatar", steps=8_000).learn(
        8_000
    )
    score = agent.evaluate(episodes=20, deterministic=True).mean
    agent.close()
    assert score > 7  # of 8; 4 without one of the two


def damaged(place, value, seen):
    functools.reduce(lambda part, key: part[key], place[:-1], seen)[place[-1]].reshape(-1)[0] = value


@pytest.mark.parametrize("place", [("depth",), ("place",)])
def test_nan_in_a_dict_with_pictures_is_refused_or_dropped(place):
    source = functools.partial(PictureBook, functools.partial(damaged, place, np.nan))
    with pytest.raises(EnvironmentRefused, match=r"step 2\): expected finite numbers, got nan in observation"):
        LASER(source, **SMALL).learn(50)


def test_nan_is_found_after_the_rows_that_are_looked_at_in_full():
    class Late(PictureBook):
        rows = 0

        def step(self, action):
            seen, *others = super().step(action)
            Late.rows += 1
            if Late.rows == 150:
                seen["depth"][1, 2, 3] = np.inf
            return seen, *others

    with pytest.raises(EnvironmentRefused, match="expected finite numbers, got inf in observation"):
        LASER(Late, **{**SMALL, "slots": 1}).learn(300)


@pytest.mark.parametrize(("place", "value"), [(("eyes", "far"), 101), (("place",), -1.0)])
def test_a_value_outside_of_its_box_is_warned_about_once(place, value, caplog):
    source = functools.partial(PictureBook, functools.partial(damaged, place, value))
    LASER(source, **SMALL).learn(100).close()
    warned = [record.message for record in caplog.records if "outside of" in record.message]
    assert len(warned) == 1
    assert f"observation{''.join(f'[{key!r}]' for key in place)}" in warned[0]


def test_a_torso_of_ones_own_gets_the_parts_by_their_keys():
    class Own(nn.Module):
        def __init__(self, shapes):
            super().__init__()
            assert shapes == {"depth": (2, 5, 6), "eyes/far": (1, 80, 40), "eyes/near": (3, 9, 8), "rest": (7,)}
            self.layer = nn.Linear(7 + 60, 5)

        def forward(self, seen):
            return torch.tanh(self.layer(torch.cat([seen["rest"], seen["depth"].flatten(1)], -1)))

    agent = LASER(PictureBook, net=Own, **SMALL).learn(50)
    agent.predict(expected_parts(1, 0, 0))
    agent.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frame_stack": 4}, "only a picture alone is stacked.*FrameStackObservation"),
        ({"pixel_control_cost": 0.1}, "PixelControl needs pictures"),
    ],
)
def test_what_reads_one_picture_alone_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        LASER(PictureBook, **SMALL, **settings).learn(10)


@pytest.mark.parametrize(("size", "recipe"), [(32, "minatar"), (33, "pictures")])
def test_the_largest_picture_chooses_the_recipe(size, recipe):
    class Room(PictureBook):
        observation_space = spaces.Dict(
            {"small": spaces.Box(0, 255, (5, 5), np.uint8), "eye": spaces.Box(0, 255, (size, size, 3), np.uint8)}
        )

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

    assert LASER(Room).config.recipe == recipe


def test_a_picture_alone_may_have_a_mask():
    class Maze(Forbidding):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (10, 10, 3), np.uint8)

        def look(self, *, last=False):
            return np.full((10, 10, 3), self.t, np.uint8), super().look(last=last)[1]

    agent = LASER(Maze, **SMALL).learn(60)
    seen = agent.member.spec.observation
    agent.close()
    assert ([part.key for part in seen.parts], seen.mask, seen.shape) == (["observation"], 6, (306,))


def test_vectors_of_environments_with_pictures_give_the_same_rows():
    vector = gymnasium.vector.SyncVectorEnv([PictureBook] * 4)
    agent = LASER(vector, **LONG).learn(400)
    test_every_byte_arrives_in_batches_and_at_the_torsos(agent)
    agent.close()
    vector.close()
