import math

import pytest
import torch
from hypothesis import given

from laser_rl.ops import actor_critic
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from tests.ops.inputs import assert_same, clips, generator, make_rows, normal, rows, seeds
from tests.references import distributions as twin_distributions
from tests.references import losses as twin
from tests.references import returns as twin_returns

FAMILIES = [Categorical(3), MultiCategorical((2, 2)), DiagonalGaussian((-1.0,), (1.0,))]


@given(rows(), seeds)
def test_losses_agree_with_their_twins(batch, seed):
    log_prob, rho, advantage = [normal(seed + i, *batch.reward.shape) for i in range(3)]
    online = torch.rand(batch.reward.shape[1], generator=generator(seed)) < 0.5
    mask = batch.learnable
    numbers = [x.numpy() for x in (log_prob, rho, advantage)]
    policy = actor_critic.policy_gradient_loss(log_prob, rho, advantage, mask)
    value = actor_critic.value_loss(log_prob, rho, mask)
    entropy = actor_critic.entropy_loss(log_prob, mask, online)
    assert_same(policy, twin.policy_gradient_loss(*numbers, mask.numpy()))
    assert_same(value, twin.value_loss(*numbers[:2], mask.numpy()))
    assert_same(entropy, twin.entropy_loss(numbers[0], mask.numpy(), online.numpy()))
    for how in ("sum", "mean"):
        assert_same(actor_critic.reduce(policy, mask, how), twin.reduced(policy.numpy(), mask.numpy(), how))


@given(rows(most_steps=7), clips(), seeds)
def test_the_whole_loss_agrees_with_algorithm_1_by_hand(batch, clip, seed):
    clip_rho, clip_c = clip
    steps, width = batch.reward.shape
    policy, behaviour = normal(seed, steps, width, 3), normal(seed + 1, steps, width, 3)
    action = torch.randint(3, (steps, width), generator=generator(seed))
    is_transition = torch.rand(steps, width, generator=generator(seed + 2)) < 0.8
    online = torch.rand(width, generator=generator(seed + 4)) < 0.5
    losses = actor_critic.actor_critic_losses(
        Categorical(3), policy, batch.value, behaviour, action, batch.reward, batch.discount, is_transition, online, batch.learnable,
        clip_rho=clip_rho, clip_c=clip_c,
    )  # fmt: skip
    mask = (batch.learnable & is_transition).numpy()
    log_prob, entropy, ratio = [torch.zeros(steps, width, dtype=torch.float64).numpy() for _ in range(3)]
    for t in range(steps):
        for b in range(width):
            pi, mu, a = policy[t, b].numpy(), behaviour[t, b].numpy(), int(action[t, b])
            log_prob[t, b] = twin_distributions.categorical_log_prob(pi, a)
            entropy[t, b] = twin_distributions.categorical_entropy(pi)
            ratio[t, b] = math.exp(log_prob[t, b] - twin_distributions.categorical_log_prob(mu, a))
    inputs = ratio, mask, batch.reward.numpy(), batch.discount.numpy(), batch.value.numpy(), clip_rho, clip_c
    target, advantage = twin_returns.vtrace_target(*inputs), twin_returns.vtrace_advantage(*inputs)
    rho = twin_returns.clipped(ratio, clip_rho)
    assert_same(losses.policy, twin.policy_gradient_loss(log_prob, rho, advantage, mask))
    assert_same(losses.value, twin.value_loss(batch.value[:-1].numpy(), target, mask))
    assert_same(losses.entropy, twin.entropy_loss(entropy, mask, online.numpy()))
    assert_same(losses.learnable, mask)
    assert_same(losses.estimate.target, target)


def whole_loss(family, batch, policy, value, behaviour, action, **options):
    everywhere = torch.ones_like(batch.learnable)
    losses = actor_critic.actor_critic_losses(
        family, policy, value, behaviour, action, batch.reward, batch.discount,
        batch.learnable, everywhere[0], everywhere, **options,
    )  # fmt: skip
    return losses.policy.sum() + 0.5 * losses.value.sum() + 0.01 * losses.entropy.sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_numerical_ones_with_targets_held_constant(family):
    batch = make_rows(5, 2, 0)
    policy, behaviour = [normal(seed, 5, 2, family.parameter_size) for seed in (1, 2)]
    action = family.sample(policy, generator(0))
    losses = actor_critic.actor_critic_losses(
        family, policy, batch.value, behaviour, action, batch.reward, batch.discount,
        torch.ones_like(batch.learnable), torch.ones(2, dtype=torch.bool), batch.learnable,
    )  # fmt: skip
    estimate = losses.estimate

    def with_constant_targets(parameters, value):
        log_prob = family.log_prob(parameters, action)
        mask = batch.learnable
        return (
            actor_critic.policy_gradient_loss(log_prob, estimate.rho, estimate.advantage, mask).sum()
            + 0.5 * actor_critic.value_loss(value[:-1], estimate.target, mask).sum()
            + 0.01 * actor_critic.entropy_loss(family.entropy(parameters), mask, mask[0] | True).sum()
        )

    inputs = policy.requires_grad_(), batch.value.clone().requires_grad_()
    assert torch.autograd.gradcheck(with_constant_targets, inputs)
    ours = torch.autograd.grad(whole_loss(family, batch, inputs[0], inputs[1], behaviour, action), inputs)
    expected = torch.autograd.grad(with_constant_targets(*inputs), inputs)
    for gradient, reference in zip(ours, expected, strict=True):
        assert_same(gradient, reference)


def test_rows_that_are_not_learnable_give_no_gradient_whatever_stands_in_them():
    batch = make_rows(8, 3, 5, kept=0.5)
    off = ~batch.learnable
    reward, discount = batch.reward.masked_fill(off, math.nan), batch.discount.masked_fill(off, math.inf)
    policy = normal(0, 8, 3, 4).requires_grad_()
    value = batch.value.clone().requires_grad_()
    family = Categorical(4)
    action = family.sample(policy.detach(), generator(0))
    total = whole_loss(
        family, batch._replace(reward=reward, discount=discount), policy, value, normal(1, 8, 3, 4), action
    )
    total.backward()
    assert total.isfinite()
    assert (policy.grad[off] == 0).all()
    assert (value.grad[:-1][off] == 0).all()
    assert (policy.grad[batch.learnable] != 0).any()


def test_the_bootstrap_value_gets_no_gradient():
    batch = make_rows(4, 2, 6, kept=1.0)
    value = batch.value.clone().requires_grad_()
    policy = normal(0, 4, 2, 3)
    whole_loss(Categorical(3), batch, policy, value, policy, torch.zeros(4, 2, dtype=torch.long)).backward()
    assert (value.grad[-1] == 0).all()
    assert (value.grad[:-1] != 0).all()


def test_a_good_action_becomes_more_probable_and_a_good_value_is_kept():
    logits = torch.zeros(1, 1, 2, requires_grad=True)
    one = torch.ones(1, 1)
    log_prob = Categorical(2).log_prob(logits, torch.tensor([[1]]))
    actor_critic.policy_gradient_loss(log_prob, one, 2 * one, one.bool()).sum().backward()
    assert (logits - logits.grad)[0, 0].argmax() == 1
    assert actor_critic.value_loss(3 * one, 3 * one, one.bool()) == 0


def test_constants_of_the_losses_get_no_gradient():
    one = torch.ones(1, 1, requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss = actor_critic.policy_gradient_loss(torch.zeros(1, 1), one, one, mask).sum()
    assert not loss.requires_grad
    assert not actor_critic.value_loss(torch.zeros(1, 1), one, mask).requires_grad


def test_clipping_defaults_are_the_papers():
    batch = make_rows(6, 2, 7)
    policy, behaviour = 2 * normal(0, 6, 2, 3), 2 * normal(1, 6, 2, 3)
    action = Categorical(3).sample(behaviour, generator(0))
    arguments = Categorical(3), batch, policy, batch.value, behaviour, action
    assert whole_loss(*arguments) == whole_loss(*arguments, clip_rho=1.0, clip_c=1.0)
    assert whole_loss(*arguments) != whole_loss(*arguments, clip_rho=2.0, clip_c=1.0)
    assert whole_loss(*arguments) != whole_loss(*arguments, clip_rho=1.0, clip_c=0.5)


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_members_side_by_side_are_reduced_each_for_itself(how):
    loss, mask = normal(1, 4, 6), normal(2, 4, 6) > 0
    mask[:, 2:4] = False  # the second member has nothing to learn from
    loss = loss * mask  # as all losses are
    together = actor_critic.reduce(loss, mask, how, members=3)
    for member in range(3):
        columns = slice(2 * member, 2 * member + 2)
        assert_same(
            together[member : member + 1], twin.reduced(loss[:, columns].numpy(), mask[:, columns].numpy(), how)
        )
