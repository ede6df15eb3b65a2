"""A step that the device decides about is the step that the host would take, or none."""

import math

import pytest
import torch

from laser_rl.agent.optimiser import build_optimiser
from laser_rl.config import OptimiserConfig

SIZE = 1003  # not a multiple of what a vector unit takes
KINDS = [
    OptimiserConfig(kind="adam"),
    OptimiserConfig(kind="rmsprop"),
    OptimiserConfig(kind="rmsprop", momentum=0.9, decay=0.95, epsilon=0.1),
]


def gradients(count, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(-6, 4, count)
    return [scale * torch.randn(SIZE, generator=generator, dtype=dtype) for scale in scales]


@pytest.mark.parametrize("config", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_that_is_taken_is_the_hosts_bit_for_bit(config, dtype):
    value = torch.randn(SIZE, dtype=dtype, generator=torch.Generator().manual_seed(1))
    other = value.clone()
    watched, launched = build_optimiser(value, config), build_optimiser(other, config)
    rate = torch.zeros((), dtype=dtype)
    for number, gradient in enumerate(gradients(30, dtype)):
        learning_rate = 0.01 / (1 + number)
        given = gradient.clone()
        watched.step(value, gradient, learning_rate)
        launched.step_where(torch.tensor(True), other, given, rate.fill_(learning_rate))
        assert torch.equal(value, other)
        assert torch.equal(given, gradient)
        for name, tensor in watched.state.items():
            assert torch.equal(launched.state[name], tensor), name


@pytest.mark.parametrize("config", KINDS)
@pytest.mark.parametrize("steps_before", [0, 5])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_taken_changes_nothing(config, steps_before, bad):
    value = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    optimiser, rate = build_optimiser(value, config), torch.tensor(0.01)
    for gradient in gradients(steps_before):
        optimiser.step_where(torch.tensor(True), value, gradient, rate)
    before, state = value.clone(), {name: tensor.clone() for name, tensor in optimiser.state.items()}
    places = {name: tensor.data_ptr() for name, tensor in optimiser.state.items()}
    broken = gradients(1)[0]
    broken[7] = bad
    optimiser.step_where(torch.tensor(False), value, broken, rate)
    assert torch.equal(value, before)
    for name, tensor in optimiser.state.items():
        assert torch.equal(tensor, state[name]), name
        assert tensor.data_ptr() == places[name]
