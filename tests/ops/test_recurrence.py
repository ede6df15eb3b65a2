import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from laser_rl.ops.recurrence import _written_out, backward_recurrence
from tests.ops.inputs import assert_same, normal, seeds


def loop(addend, factor):
    acc = torch.zeros_like(addend[0])
    rows = []
    for a, f in zip(reversed(addend), reversed(factor), strict=True):
        acc = a + f * acc
        rows.append(acc)
    return torch.stack(rows[::-1])


@given(st.integers(1, 70), st.integers(1, 3), seeds)
def test_agrees_with_the_loop_for_every_length(steps, batch, seed):
    addend, factor = normal(seed, steps, batch), normal(seed + 1, steps, batch)
    factor[torch.rand(steps, batch) < 0.2] = 0
    assert_same(backward_recurrence(addend, factor), loop(addend, factor))
    assert_same(_written_out(addend, factor), loop(addend, factor))


def test_a_vector_is_a_sequence_too():
    assert_same(backward_recurrence(normal(0, 5), normal(1, 5)), loop(normal(0, 5), normal(1, 5)))


def test_trailing_dimensions_are_independent():
    addend, factor = normal(0, 5, 2, 3, 4), normal(1, 5, 2, 3, 4)
    assert_same(backward_recurrence(addend, factor)[:, 1, 2, 3], loop(addend[:, 1, 2, 3], factor[:, 1, 2, 3]))


def test_a_zero_factor_cuts_exactly():
    addend, factor = normal(0, 9, 1), torch.full((9, 1), 1e3, dtype=torch.float64)
    factor[3] = 0
    behind = addend.clone()
    behind[4:] = 1e30
    assert torch.equal(backward_recurrence(addend, factor)[:4], backward_recurrence(behind, factor)[:4])


def test_inputs_are_left_alone():
    addend, factor = normal(0, 6, 2), normal(1, 6, 2)
    before = addend.clone(), factor.clone()
    backward_recurrence(addend, factor)
    assert torch.equal(addend, before[0])
    assert torch.equal(factor, before[1])


def test_gradients_are_the_numerical_ones():
    inputs = [normal(seed, 7, 2).requires_grad_() for seed in (0, 1)]
    assert torch.autograd.gradcheck(backward_recurrence, inputs)


class CountOperations(TorchDispatchMode):
    """How many kernels eager mode launches; views are free."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in {"cat", "addcmul", "mul", "add"}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("steps", [16, 20, 80, 320])
def test_kernels_grow_with_the_logarithm_of_time(steps):
    with CountOperations() as counter:
        backward_recurrence(torch.ones(steps, 4), torch.ones(steps, 4))
    assert 0 < counter.count <= 3 * math.ceil(math.log2(steps))
