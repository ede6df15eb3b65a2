"""PopArt's and PixelControl's heads."""

import pytest
import torch
import torch.nn.functional as F

from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.errors import ConfigError
from laser_rl.networks.heads import PixelControlHead, PopArtHead
from laser_rl.ops import popart
from tests.networks.make import build_network


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_values_do_not_change_when_the_statistics_move(scale):
    torch.manual_seed(0)
    head, features = PopArtHead(16, 3), torch.randn(5, 4, 16)
    task = torch.tensor([0, 1, 2, 1])
    for move in range(20):
        before = head.value(head(features), task)
        target = scale * (torch.randn(5, 4) + move)
        mean = head.mean.clone()
        head.move(target, task, torch.ones(5, 4, dtype=torch.bool), 1e-2)
        after = head.value(head(features), task)
        assert not torch.equal(head.mean, mean)
        # In float32 nothing can be exact to more than its last digit: of the value, or of the mean that it is made with.
        span = max(1.0, before.abs().max().item(), head.mean.abs().max().item())
        assert (after - before).abs().max().item() <= 1e-6 * span


def test_targets_that_are_not_finite_move_nothing():
    head = PopArtHead(4, 2)
    weight, mean = head.weight.clone(), head.mean.clone()
    target = torch.tensor([[torch.nan, 1.0]])
    with popart.checks.unchecked():
        head.move(target, torch.tensor([0, 1]), torch.ones(1, 2, dtype=torch.bool), 0.1)
    assert torch.equal(head.weight, weight)
    assert torch.equal(head.mean, mean)


@pytest.mark.parametrize("picture", [(3, 28, 28), (1, 84, 84), (3, 72, 96), (3, 30, 21)])
def test_the_grid_fits_the_picture(picture):
    head = PixelControlHead(8, 5, picture)
    q = head(torch.randn(3, 2, 8))
    height, width = picture[1] // 4, picture[2] // 4
    assert q.shape == (3, 2, 5, height, width)
    pictures = torch.randint(0, 255, (3, 2, *picture), dtype=torch.uint8)
    assert head.cumulants(pictures).shape == (2, 2, height, width)


def test_cumulants_are_those_of_the_newest_frame_without_the_instruction_cut_evenly():
    head = PixelControlHead(8, 2, (1, 9, 10))
    observation = torch.zeros(2, 1, 2, 10, 10, dtype=torch.uint8)  # two frames, a row of words below
    observation[1, 0, 0] = 255  # the older frame
    observation[1, 0, :, 9] = 99  # the words
    observation[1, 0, 1, 0, 1] = 255  # first row and second column: inside, since 9 = 0 + 8 + 1 and 10 = 1 + 8 + 1
    observation[1, 0, 1, 0, 0] = 255  # outside
    change = head.cumulants(observation)[0, 0]
    assert change.tolist() == [[1 / 16, 0.0], [0.0, 0.0]]


def test_action_values_are_dueling():
    torch.manual_seed(0)
    head = PixelControlHead(8, 3, (1, 16, 16))
    features = torch.randn(1, 1, 8)
    coarse = F.relu(head.linear(features[0])).view(1, 32, 2, 2)
    torch.testing.assert_close(head(features)[0, 0].mean(0), head.value(coarse)[0, 0])


def test_pixel_control_asks_for_pictures_and_one_choice():
    picture = ObservationSpec((1, 16, 16), "uint8")
    spec = EnvironmentSpec("x", picture, DiscreteActions(2))
    assert build_network(spec, torso="tiles", pixel_control_cell=4).pixel_control is not None
    with pytest.raises(ConfigError, match=r"set loss\.pixel_control_cost to 0"):
        build_network(EnvironmentSpec("x", picture, BoxActions((0.0,), (1.0,))), torso="tiles", pixel_control_cell=4)
    with pytest.raises(ConfigError, match="PixelControl needs pictures"):
        build_network(EnvironmentSpec("x", ObservationSpec((4,)), DiscreteActions(2)), pixel_control_cell=4)
    with pytest.raises(ConfigError, match="no cell of 20"):
        build_network(spec, torso="tiles", pixel_control_cell=20)
