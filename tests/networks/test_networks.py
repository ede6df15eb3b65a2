import pytest
import torch
from torch import nn

from laser_rl.config import NetworkConfig
from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, MultiDiscreteActions, ObservationSpec
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import family_of, parameter_count, stacked_shape, users_torso
from laser_rl.networks.torso import CNN, MLP, ImpalaDeep, build_torso
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.types import Inputs
from tests.networks.make import build_network

PIXELS = EnvironmentSpec("game", ObservationSpec((1, 84, 84), "uint8", 1 / 255), DiscreteActions(6))


def convolution(inputs, outputs):
    return 9 * inputs * outputs + outputs


@pytest.mark.parametrize("width", [1, 4])
def test_impala_has_the_published_layers(width):
    torso, planes, count = ImpalaDeep((4, 84, 84), width), 4, 0
    for channels in (16 * width, 32 * width, 32 * width):
        count += convolution(planes, channels) + 4 * convolution(channels, channels)
        planes = channels
    count += 11 * 11 * planes * 256 + 256  # 84 -> 42 -> 21 -> 11
    assert parameter_count(torso) == count
    assert len([m for m in torso.modules() if isinstance(m, nn.Conv2d)]) == 15


def run(network, observation):
    nothing = torch.zeros(observation.shape[:2])
    inputs = Inputs(observation, nothing.bool(), nothing, nothing)
    return network(inputs, network.initial_state(observation.shape[1]))[0]


def test_torso_memory_and_heads_are_chosen_apart():
    spec = EnvironmentSpec("box", ObservationSpec((5,)), BoxActions((-1.0, -1.0), (1.0, 1.0)))
    shared, separate = build_network(spec), build_network(spec, separate_value=True)
    assert shared.policy_head.out_features == 4
    torso = parameter_count(MLP((5,), (64, 64)))
    assert parameter_count(separate) - parameter_count(shared) == torso
    output = run(separate, torch.ones(2, 3, 5))
    assert output.policy.shape == (2, 3, 4)
    output.value.sum().backward()
    assert separate.torso.layers[1].weight.grad is None
    assert separate.value_torso.layers[1].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4,), MLP), ((4, 10, 10), CNN), ((4, 84, 84), ImpalaDeep)],
    ids=["vector", "small", "large"],
)
def test_auto_looks_at_the_observation(shape, expected):
    assert isinstance(build_torso(NetworkConfig(), shape), expected)


def test_stored_pictures_are_scaled_once():
    network = build_network(PIXELS, torso="impala", stack=1)
    seen = []
    network.torso.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    run(network, torch.full((1, 2, 1, 84, 84), 255, dtype=torch.uint8))
    torch.testing.assert_close(seen[0], torch.ones_like(seen[0]))


def test_every_row_is_computed_alone():
    torch.manual_seed(0)
    network = build_network(PIXELS, torso="impala")
    rows = torch.randint(0, 255, (3, 2, 1, 84, 84), dtype=torch.uint8)
    whole, one = run(network, rows), run(network, rows[1:2, 1:2])
    torch.testing.assert_close(whole.policy[1, 1], one.policy[0, 0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(whole.value[1, 1], one.value[0, 0], rtol=1e-4, atol=1e-5)


def test_bf16_is_close_and_heads_stay_float32():
    rows = torch.randint(0, 255, (2, 2, 1, 84, 84), dtype=torch.uint8)
    outputs = []
    for bf16 in (False, True):
        torch.manual_seed(3)
        outputs.append(run(build_network(PIXELS, torso="impala", precision="bf16" if bf16 else "fp32"), rows))
    assert outputs[1].value.dtype == torch.float32
    torch.testing.assert_close(outputs[0].value, outputs[1].value, rtol=0.1, atol=0.02)
    assert not torch.equal(outputs[0].value, outputs[1].value)


@pytest.mark.parametrize(
    ("action", "size"), [(DiscreteActions(3), 3), (MultiDiscreteActions((2, 4)), 6), (BoxActions((-1.0,), (1.0,)), 2)]
)
def test_families_fit_their_action_spaces(action, size):
    assert family_of(action).parameter_size == size


def test_the_bounds_of_a_box_reach_the_policy():
    assert family_of(BoxActions((-2.0,), (2.0,))) == DiagonalGaussian((-2.0,), (2.0,))


def test_a_users_module_is_tried_before_it_is_used():
    assert users_torso(nn.Linear(4, 9), (4,)).features == 9
    network = build_network(EnvironmentSpec("v", ObservationSpec((4,)), DiscreteActions(2)), torso=nn.Linear(4, 9))
    assert isinstance(network, AgentNetwork)
    with pytest.raises(ConfigError, match=r"net failed on observations of shape \(2, 5\)"):
        users_torso(nn.Linear(4, 9), (5,))
    with pytest.raises(ConfigError, match=r"to \(2, 3, 2\), expected features of shape \(2, F\)"):
        users_torso(nn.Linear(4, 2), (3, 4))
    with pytest.raises(ConfigError, match="net returned int"):
        users_torso(lambda shape: 3, (4,))


def test_what_cannot_be_stacked_or_convolved_is_refused():
    with pytest.raises(ConfigError, match="are no pictures; set it to 1"):
        stacked_shape(ObservationSpec((4,)), 4)
    with pytest.raises(ConfigError, match="use torso mlp"):
        build_torso(NetworkConfig(torso="impala"), (4,))
    with pytest.raises(ConfigError, match="at least 4×4, these have 40×3; use torso impala"):
        build_torso(NetworkConfig(torso="tiles"), (3, 40, 3))
