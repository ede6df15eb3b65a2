"""Bugs that other implementations shipped: one test each, which the bug, put in, makes fail.

Each test holds the bug as a few lines of code and asserts that it gives something else than the property demands, so that the property is
known to tell them apart.
"""

import math
from functools import partial

import pytest
import torch

from laser_rl.ops import actor_critic, pixel_control, trust_region, vtrace
from laser_rl.ops import recurrence as memory
from laser_rl.ops.checks import InputError
from laser_rl.ops.distributions import Categorical
from tests.ops.inputs import Rows, generator, make_rows, normal


def differs(a, b):
    return not torch.allclose(a, b, atol=1e-6)


def mixed_rows(seed=0):
    """On-policy rows with the middle one rejected."""
    rows = make_rows(5, 1, seed, kept=1.0)
    learnable = torch.tensor([[True], [True], [False], [True], [True]])
    return rows._replace(
        log_ratio=torch.zeros_like(rows.log_ratio), learnable=learnable, discount=torch.full_like(rows.discount, 0.9)
    )


def test_divergence_of_raw_logits():
    policy, behaviour = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 3.0]])
    shift = 7.0  # the same distributions
    for relevance in (partial(trust_region.kl_to_implied, Categorical(2)), Categorical(2).kl):
        torch.testing.assert_close(relevance(policy + shift, behaviour - shift), relevance(policy, behaviour))
    bug = (policy.softmax(-1) * (policy - behaviour)).sum(-1)
    shifted_bug = (policy.softmax(-1) * (policy + shift - behaviour + shift)).sum(-1)
    assert differs(bug, shifted_bug)


def test_divergence_in_the_wrong_direction():
    # A policy settled on one action, a behaviour that tries both: what the policy does is well covered, so KL(pi ‖ ·) is small.
    settled, spread = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    for relevance in (trust_region.kl_to_implied, trust_region.kl_to_behaviour):
        right, bug = relevance(Categorical(2), settled, spread), relevance(Categorical(2), spread, settled)
        assert right < 0.7 < bug
    assert trust_region.kl_to_behaviour(Categorical(2), settled, spread).item() == pytest.approx(math.log(2), abs=0.01)


def test_mask_as_a_cumulative_product():
    rows = mixed_rows()
    target = vtrace.vtrace(*rows.arguments).target
    bug = vtrace.vtrace(rows.log_ratio, rows.learnable.cumprod(0).bool(), *rows.arguments[2:]).target
    plain = rows.reward[3:4] + 0.9 * (rows.reward[4:] + 0.9 * rows.value[5:])
    torch.testing.assert_close(target[3:4], plain)
    assert differs(bug[3:4], plain)


def test_trust_on_the_trace_but_not_on_the_error():
    rows = mixed_rows()
    target = vtrace.vtrace(*rows.arguments).target
    # The rejected row's reward must not reach the rows before it: they bootstrap from its value.
    torch.testing.assert_close(target[1:2], rows.reward[1:2] + 0.9 * rows.value[2:3])
    value, next_value = rows.value[:-1], rows.value[1:]
    td_error = rows.reward + 0.9 * next_value - value
    acc, bug = torch.zeros(1, dtype=torch.float64), []
    for t in reversed(range(5)):
        acc = td_error[t] + rows.learnable[t] * 0.9 * acc
        bug.append(value[t] + acc)
    assert differs(bug[3], target[1])


def test_clipping_with_max():
    log_ratio = torch.tensor([[math.log(0.25)], [math.log(8.0)]])
    assert vtrace.clipped_ratio(log_ratio, 1.0).flatten().tolist() == pytest.approx([0.25, 1.0])
    assert differs(log_ratio.exp().clamp(min=1.0), vtrace.clipped_ratio(log_ratio, 1.0))


def test_entropy_or_auxiliary_losses_on_rejected_or_replayed_steps():
    learnable = torch.tensor([[True, True], [False, True]])
    online = torch.tensor([True, False])
    entropy = torch.ones(2, 2, requires_grad=True)
    loss = actor_critic.entropy_loss(entropy, learnable, online)
    assert loss.tolist() == [[-1.0, 0.0], [0.0, 0.0]]
    assert torch.autograd.grad(loss.sum(), entropy)[0].tolist() == [[-1.0, 0.0], [0.0, 0.0]]
    assert differs(-entropy * learnable, loss)  # the bug: on replayed steps too
    assert differs(-entropy * online, loss)  # the bug: on rejected steps too
    q = normal(0, 3, 2, 2, 1, 1).requires_grad_()
    action, discount = torch.zeros(2, 2, dtype=torch.long), torch.full((2, 2), 0.9, dtype=torch.float64)
    cumulant = torch.ones(2, 2, 1, 1, dtype=torch.float64)
    auxiliary = pixel_control.q_loss(q, action, cumulant, discount, learnable)
    assert (auxiliary[~learnable] == 0).all()
    assert (torch.autograd.grad(auxiliary.sum(), q)[0][:-1][~learnable] == 0).all()
    assert differs(pixel_control.q_loss(q, action, cumulant, discount, torch.ones_like(learnable)), auxiliary)


def known_stream(steps=12):
    """A stream in which every value is the true return: targets computed from it must be those values."""
    reward = normal(0, steps, 1)
    discount = torch.full((steps, 1), 0.9, dtype=torch.float64)
    value = torch.zeros(steps + 1, 1, dtype=torch.float64)
    value[-1] = 3.0
    for t in reversed(range(steps)):
        value[t] = reward[t] + 0.9 * value[t + 1]
    return reward, discount, value


def targets_of(value, reward, discount):
    zeros = torch.zeros_like(reward)
    return vtrace.vtrace(zeros, zeros == 0, reward, discount, value[:-1], value[1:]).target


def test_a_bootstrap_row_that_was_never_filled():
    reward, discount, value = known_stream()
    value = torch.cat([value[start : start + 5] for start in (0, 4, 8)], 1)
    columns = [torch.cat([rows[start : start + 4] for start in (0, 4, 8)], 1) for rows in (reward, discount)]
    torch.testing.assert_close(targets_of(value, *columns), value[:-1])
    bug = value.clone()
    bug[-1] = 0.0
    assert differs(targets_of(bug, *columns), value[:-1])
    bug[-1] = math.nan  # poisoned, as fresh buffers are in debug mode: then it does not even pass
    with pytest.raises(InputError, match="next_value has 3 entries that are not finite"):
        targets_of(bug, *columns)


def truncated_rows():
    """Row 1 is the last step of a truncated episode, row 2 is no transition, row 3 begins the next episode, worth 100."""
    value = torch.tensor([[1.0], [2.0], [5.0], [100.0], [100.0]], dtype=torch.float64)
    real = torch.tensor([[True], [True], [False], [True]])
    reward = torch.tensor([[0.0], [1.0], [0.0], [0.0]], dtype=torch.float64)
    return Rows(torch.zeros_like(reward), real, reward, torch.full_like(reward, 0.9), value)


def test_value_after_a_truncation_taken_from_the_next_episode():
    rows = truncated_rows()
    target = vtrace.vtrace(*rows.arguments).target
    assert target[1].item() == pytest.approx(1 + 0.9 * 5)
    bug = rows._replace(value=torch.cat([rows.value[:2], rows.value[3:4], rows.value[3:]]))
    assert vtrace.vtrace(*bug.arguments).target[1].item() == pytest.approx(1 + 0.9 * 100)


def test_the_fake_transition_of_an_automatic_reset_trained_on():
    rows = truncated_rows()
    family = Categorical(2)
    policy = torch.zeros(4, 1, 2, dtype=torch.float64)
    everywhere = torch.ones_like(rows.learnable)
    action = torch.zeros(4, 1, dtype=torch.long)
    common = family, policy, rows.value, policy, action, rows.reward, rows.discount
    losses = actor_critic.actor_critic_losses(*common, rows.learnable, everywhere[0], everywhere)
    bug = actor_critic.actor_critic_losses(*common, everywhere, everywhere[0], everywhere)
    assert losses.value[2] == losses.policy[2] == losses.entropy[2] == 0
    assert bug.value[2] > 1000  # from 5 to 90 in one step
    assert losses.estimate.target[1].item() == pytest.approx(5.5)
    assert bug.estimate.target[1] > 50  # and it would have gone on into the true rows


def test_memory_not_reset_inside_an_unroll():
    def count(row, state):
        return state + row

    is_first = torch.tensor([[False], [False], [True], [False]])
    ones, before = torch.ones(4, 1), torch.tensor([10.0])
    outputs = memory.unroll(count, ones, is_first, before).flatten()
    assert outputs.tolist() == [11, 12, 1, 2]
    bug = memory.unroll(count, ones, is_first & (torch.arange(4) == 0)[:, None], before).flatten()
    assert differs(bug, outputs)


def test_advantage_of_algorithm_1_counts_rho_twice():
    rows = make_rows(6, 2, 3, kept=1.0)._replace(log_ratio=torch.full((6, 2), math.log(0.5), dtype=torch.float64))
    estimate = vtrace.vtrace(*rows.arguments)
    bug = estimate.target - rows.value[:-1]
    one_step = rows.reward + rows.discount * rows.value[1:] - rows.value[:-1]
    torch.testing.assert_close(estimate.advantage[-1], one_step[-1])
    torch.testing.assert_close(bug[-1], 0.5 * one_step[-1])


def test_rho_of_the_first_step_in_every_term():
    # The paper's first print of the V-trace sum has rho_t where rho_{t+k} is meant.
    rows = make_rows(2, 1, 4, kept=1.0)._replace(
        log_ratio=torch.tensor([[0.0], [math.log(0.1)]], dtype=torch.float64),
        discount=torch.ones(2, 1, dtype=torch.float64),
    )
    td_error = rows.reward + rows.value[1:] - rows.value[:-1]
    target = vtrace.vtrace(*rows.arguments).target[0]
    torch.testing.assert_close(target, rows.value[0] + td_error[0] + 0.1 * td_error[1])
    assert differs(target, rows.value[0] + td_error[0] + 1.0 * td_error[1])


def test_policy_gradient_sign_of_algorithm_1():
    logits = torch.zeros(1, 1, 2, requires_grad=True)
    one = torch.ones(1, 1)
    log_prob = Categorical(2).log_prob(logits, torch.tensor([[0]]))
    actor_critic.policy_gradient_loss(log_prob, one, one, one.bool()).sum().backward()
    assert (logits - logits.grad)[0, 0, 0] > 0


def test_sampled_relevance_does_not_look_at_the_taken_action():
    # Relevance is a function of the state: with the same draws it is the same number whatever was done there.
    policy, behaviour = normal(0, 4, 3), normal(1, 4, 3)
    assert torch.equal(
        trust_region.kl_to_implied(Categorical(3), policy, behaviour, generator=generator(0)),
        trust_region.kl_to_implied(Categorical(3), policy, behaviour, generator=generator(1)),
    )
