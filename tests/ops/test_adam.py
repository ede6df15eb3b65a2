"""Adam for several members, against torch's for each, and against plain loops."""

import math

import pytest
import torch

from laser_rl.ops import adam

TAKEN = torch.tensor(True)


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
        constants = {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        adam.update(value, gradient, state, TAKEN, **constants)
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
    value = torch.zeros(2, 1)
    adam.update(value, torch.ones(2, 1), state, TAKEN, learning_rate=torch.tensor(1.0))
    assert state.step.tolist() == [[1.0], [1001.0]]
    mean, square = 0.9 * 0.1 + 0.1, 0.999 * 0.01 + 0.001
    expected = [(mean / (1 - 0.9**n)) / (math.sqrt(square / (1 - 0.999**n)) + 1e-8) for n in (1, 1001)]
    assert (-value[:, 0]).tolist() == pytest.approx(expected, rel=1e-5)


def test_each_row_is_taken_or_left_by_itself():
    value, gradient, state = torch.zeros(2, 3), torch.ones(2, 3), adam.initial(torch.zeros(2, 3))
    gradient[1] = math.nan
    adam.update(value, gradient, state, torch.tensor([[True], [False]]), learning_rate=torch.full((2, 1), 0.1))
    assert value.tolist() == [pytest.approx([-0.1] * 3, rel=1e-4), [0.0] * 3]
    assert state.step.tolist() == [[1.0], [0.0]]
    assert not state.exp_avg[1].any()
    assert not state.exp_avg_sq[1].any()
