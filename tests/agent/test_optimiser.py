"""A step that the device decides not to take changes nothing."""

import math

import pytest
import torch

from laser_rl.agent.parameters import Optimiser
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
@pytest.mark.parametrize("steps_before", [0, 5])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_taken_changes_nothing(config, steps_before, bad):
    value = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    optimiser, rate = Optimiser(value, config), torch.tensor(0.01)
    for gradient in gradients(steps_before):
        optimiser.step(torch.tensor(True), value, gradient, rate)
    before, state = value.clone(), {name: tensor.clone() for name, tensor in optimiser.state.items()}
    places = {name: tensor.data_ptr() for name, tensor in optimiser.state.items()}
    broken = gradients(1)[0]
    broken[7] = bad
    optimiser.step(torch.tensor(False), value, broken, rate)
    assert torch.equal(value, before)
    for name, tensor in optimiser.state.items():
        assert torch.equal(tensor, state[name]), name
        assert tensor.data_ptr() == places[name]
