"""Rewards, RMSProp, priorities, and memory."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.ops import priority, rewards, rmsprop
from laser_rl.ops import recurrence as memory
from tests.ops.inputs import assert_same, generator, make_rows, normal, rows, seeds
from tests.references import priority as twin_priority
from tests.references import rewards as twin_rewards
from tests.references import rmsprop as twin_rmsprop

# rewards


@given(seeds, st.sampled_from([0.5, 1.0, 3.0]))
def test_reward_transforms_agree_with_their_twins(seed, bound):
    reward = 4 * normal(seed, 5, 3)
    assert_same(rewards.clip(reward, bound), twin_rewards.clipped(reward.numpy(), bound))
    assert_same(rewards.dmlab_squash(reward), twin_rewards.dmlab_squashed(reward.numpy()))


def test_rewards_have_numerical_gradients_and_the_usual_default():
    reward = (4 * normal(0, 6)).requires_grad_()
    assert torch.autograd.gradcheck(rewards.dmlab_squash, [reward])
    assert torch.autograd.gradcheck(rewards.clip, [reward])
    assert torch.equal(rewards.clip(reward), rewards.clip(reward, 1.0))


# rmsprop

TAKEN = torch.tensor(True)


@given(seeds, st.sampled_from([0.9, 0.99]), st.sampled_from([0.0, 0.9]), st.sampled_from([0.01, 0.1]))
def test_rmsprop_agrees_with_tensorflows(seed, decay, momentum, epsilon):
    gradients, start = normal(seed, 6, 4), normal(seed + 1, 4)
    rates = [0.1, 0.0775, 0.055, 0.0325, 0.01, 0.01]
    value, state, history = start.clone(), rmsprop.initial(start), []
    for gradient, rate in zip(gradients, rates, strict=True):
        constants = {"decay": decay, "momentum": momentum, "epsilon": epsilon}
        rmsprop.update(
            value, gradient, state, TAKEN, learning_rate=torch.tensor(rate, dtype=torch.float64), **constants
        )
        history.append(value.clone())
    for entry in range(4):
        expected = twin_rmsprop.run(start[entry].item(), gradients[:, entry].tolist(), rates, decay, momentum, epsilon)
        assert_same(torch.stack(history)[:, entry], expected)


def test_rmsprop_is_not_torchs():
    gradient, start, value = torch.tensor([0.01]), torch.tensor([1.0]), torch.tensor([1.0])
    rmsprop.update(value, gradient, rmsprop.initial(start), TAKEN, learning_rate=torch.tensor(0.1), epsilon=0.1)
    ours = (start - value).item()
    assert ours == pytest.approx(0.1 * 0.01 / (0.99 + 1e-6 + 0.1) ** 0.5, rel=1e-3)
    parameter = start.clone().requires_grad_()
    parameter.grad = gradient
    torch.optim.RMSprop([parameter], lr=0.1, alpha=0.99, eps=0.1).step()
    assert abs((start - parameter).item() / ours - 1) > 5


def test_rmsprop_defaults_and_rates_of_rows():
    gradient, rate = normal(0, 2, 3), torch.tensor(0.1, dtype=torch.float64)
    plain, explicit = torch.zeros(2, 3).double(), torch.zeros(2, 3).double()
    state, other = rmsprop.initial(plain), rmsprop.initial(plain)
    rates, constants = rate.expand(2, 1), {"decay": 0.99, "momentum": 0.0, "epsilon": 0.01}
    rmsprop.update(plain, gradient, state, TAKEN, learning_rate=rate)
    rmsprop.update(explicit, gradient, other, TAKEN.expand(2, 1), learning_rate=rates, **constants)
    assert_same(plain, explicit)
    assert_same(-plain, 0.1 * gradient / (0.99 + 0.01 * gradient**2 + 0.01).sqrt())
    rmsprop.update(explicit, gradient, other, torch.tensor([[False], [True]]), learning_rate=rates)
    assert_same(explicit[0], plain[0])
    assert_same(other.mean_square[0], state.mean_square[0])
    assert (explicit[1] != plain[1]).all()
    gradient.requires_grad_()
    rmsprop.update(plain, gradient, state, TAKEN, learning_rate=rate)
    assert not plain.requires_grad


# priority


def probabilities(priorities, *, exponent, uniform_share=0.0):
    powered = priorities**exponent
    return priority.probabilities(powered, total=float(powered.sum()), stored=len(powered), uniform_share=uniform_share)


@given(seeds, st.sampled_from([0.0, 0.6, 1.0, 2.0]), st.sampled_from([0.0, 0.1, 1.0]))
def test_priorities_agree_with_their_twins(seed, exponent, uniform_share):
    priorities = normal(seed, 7).abs()
    ours = probabilities(priorities, exponent=exponent, uniform_share=uniform_share)
    assert_same(ours, twin_priority.probabilities(priorities.numpy(), exponent, uniform_share))
    for beta in (0.0, 0.5, 1.0):
        assert_same(priority.weights(ours, stored=7, exponent=beta), twin_priority.weights(ours.numpy(), 7, beta))


@given(rows())
def test_critic_priority_agrees_with_its_twin(batch):
    loss = batch.reward.square()
    expected = twin_priority.critic_priority(loss.numpy(), batch.learnable.numpy())
    assert_same(priority.critic_priority(loss, batch.learnable), expected)
    dirty = loss.masked_fill(~batch.learnable, torch.nan).requires_grad_()
    assert_same(priority.critic_priority(dirty, batch.learnable), expected)
    assert not priority.critic_priority(dirty, batch.learnable).requires_grad


def test_without_any_priority_sampling_is_uniform():
    assert_same(probabilities(torch.zeros(4), exponent=0.6), [0.25] * 4)
    spread = probabilities(torch.tensor([1.0, 3.0]), exponent=1.0)
    assert torch.equal(spread, probabilities(torch.tensor([1.0, 3.0]), exponent=1.0, uniform_share=0.0))
    assert_same(probabilities(torch.tensor([0.1, 0.3]), exponent=1.0), [0.25, 0.75], 1e-6)
    assert priority.weights(torch.ones(1), stored=1, exponent=1.0).item() == 1


def test_full_correction_makes_a_prioritised_mean_unbiased():
    quantity = normal(0, 6)
    chance = probabilities(normal(1, 6).abs(), exponent=0.7, uniform_share=0.1)
    corrected = (chance * priority.weights(chance, stored=6, exponent=1.0) * quantity).sum()
    assert corrected.item() == pytest.approx(quantity.mean().item())


# memory


def test_counting_memory_agrees_with_the_episodes_clock():
    is_first = torch.rand(30, 4, generator=generator(0)) < 0.2
    time, before = torch.zeros(30, 4), torch.full((4,), 6.0)  # all four episodes are six rows old at the start
    running = before
    for t in range(30):
        running = torch.where(is_first[t], torch.ones(4), running + 1)
        time[t] = running

    def count(row, state):
        return state + 1

    whole = memory.unroll(count, time, is_first, before)
    assert torch.equal(whole, time)
    first = memory.unroll(count, time[:13], is_first[:13], before)
    second = memory.unroll(count, time[13:], is_first[13:], first[-1])
    assert torch.equal(torch.cat([first, second]), whole)


def test_a_reset_stops_the_gradient_of_an_earlier_episode():
    state = torch.ones(1, 3, requires_grad=True)
    is_first = torch.tensor([[False], [True], [False]])
    total = memory.unroll(lambda x, s: s * x + 1, torch.ones(3, 1, 3), is_first, state)
    assert torch.autograd.grad(total[0].sum(), state, retain_graph=True)[0].tolist() == [[1.0, 1.0, 1.0]]
    assert torch.autograd.grad(total[1:].sum(), state)[0].tolist() == [[0.0, 0.0, 0.0]]


def test_gradients_through_a_memory_are_the_numerical_ones():
    weight, inputs, state = normal(0, 2, 2), normal(1, 4, 3, 2), normal(2, 3, 2)
    is_first = torch.tensor([[False] * 3, [True, False, False], [False] * 3, [False, True, True]])

    def run(x, before):
        return memory.unroll(lambda row, part: torch.tanh(row + part @ weight), x, is_first, before)

    assert torch.autograd.gradcheck(run, [inputs.requires_grad_(), state.requires_grad_()])


def test_rows_of_the_helpers_are_what_they_say():
    batch = make_rows(50, 50, 0)
    assert batch.learnable.double().mean() == pytest.approx(0.7, abs=0.05)
    assert {0.0, 0.9, 1.0} == set(np.unique(batch.discount.numpy()))
    assert batch.log_ratio.min() < -1.9
    assert batch.log_ratio.max() > 1.9
