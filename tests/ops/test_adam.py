"""Adam for several members, against torch's for each, and against plain loops."""

import math

import pytest
import torch

from laser_rl.ops import adam


def by_hand(gradients, rate, beta1, beta2, epsilon):
    """One parameter, step by step."""
    mean = square = value = 0.0
    for n, g in enumerate(gradients, start=1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g * g
        value -= rate * (mean / (1 - beta1**n)) / (math.sqrt(square / (1 - beta2**n)) + epsilon)
    return value


@pytest.mark.parametrize(("beta1", "beta2", "epsilon"), [(0.9, 0.999, 1e-8), (0.5, 0.9, 0.1)])
def test_each_row_is_what_plain_loops_and_torch_give(beta1, beta2, epsilon):
    members, size, rates = 3, 5, [1e-3, 0.1, 1.0]
    gradients = torch.randn(7, members, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value = torch.zeros(members, size, dtype=torch.float64)
    state = adam.initial(value)
    learning_rate = torch.tensor(rates, dtype=torch.float64)[:, None]
    for gradient in gradients:
        step = adam.update(gradient, state, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
        value, state = value - step.decrement, step.state
    for row, rate in enumerate(rates):
        theirs = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))
        optimiser = torch.optim.Adam([theirs], lr=rate, betas=(beta1, beta2), eps=epsilon)
        for gradient in gradients:
            theirs.grad = gradient[row].clone()
            optimiser.step()
        torch.testing.assert_close(value[row], theirs.detach(), rtol=1e-10, atol=1e-12)
        for column in range(size):
            expected = by_hand(gradients[:, row, column].tolist(), rate, beta1, beta2, epsilon)
            assert value[row, column].item() == pytest.approx(expected, rel=1e-10)


def test_a_row_counts_its_own_steps():
    """A member that copied another's state goes on with its count: the correction of the bias is by row."""
    state = adam.AdamState(torch.full((2, 1), 0.1), torch.full((2, 1), 0.01), torch.tensor([[0.0], [1000.0]]))
    step = adam.update(torch.ones(2, 1), state, learning_rate=1.0)
    assert step.state.steps.tolist() == [[1.0], [1001.0]]
    mean, square = 0.9 * 0.1 + 0.1, 0.999 * 0.01 + 0.001
    expected = [(mean / (1 - 0.9**n)) / (math.sqrt(square / (1 - 0.999**n)) + 1e-8) for n in (1, 1001)]
    assert step.decrement[:, 0].tolist() == pytest.approx(expected, rel=1e-5)


def test_bad_input_is_refused():
    state = adam.initial(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="learning_rate"):
        adam.update(torch.ones(2, 3), state, learning_rate=torch.tensor([[1e-3], [0.0]]))
    with pytest.raises(ValueError, match="finite"):
        adam.update(torch.full((2, 3), math.nan), state, learning_rate=1e-3)
    with pytest.raises(ValueError, match="beta1"):
        adam.update(torch.ones(2, 3), state, learning_rate=1e-3, beta1=1.5)
