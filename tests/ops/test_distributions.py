import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laser_rl.ops.distributions import Categorical, Family, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from tests.ops.inputs import assert_same, generator, normal, seeds
from tests.references import distributions as twin

spreads = st.sampled_from([0.3, 3.0, 100.0, 1e4])
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
FAMILIES = [Categorical(4), MultiCategorical((3, 1, 2)), DiagonalGaussian((-1.0, -math.inf), (3.0, math.inf))]


@given(seeds, st.integers(1, 5), spreads)
def test_categorical_agrees_with_its_twin(seed, actions, spread):
    family = Categorical(actions)
    logits, other = spread * normal(seed, 3, actions).clamp(-1, 1), spread * normal(seed + 1, 3, actions).clamp(-1, 1)
    action = torch.arange(3) % actions
    ours = family.log_prob(logits, action), family.entropy(logits), family.kl(logits, other)
    for row in range(3):
        p, q = logits[row].numpy(), other[row].numpy()
        assert_same(ours[0][row], twin.categorical_log_prob(p, row % actions))
        assert_same(ours[1][row], twin.categorical_entropy(p))
        assert_same(ours[2][row], twin.categorical_kl(p, q))
        assert_same(family.joint_log_probs(logits)[row], twin.log_softmax(p))


@given(seeds, sizes, spreads)
def test_product_of_categoricals_agrees_with_the_enumerated_joint(seed, factors, spread):
    family = MultiCategorical(factors)
    logits = spread * normal(seed, 2, sum(factors)).clamp(-1, 1)
    other = spread * normal(seed + 1, 2, sum(factors)).clamp(-1, 1)
    action = torch.stack([torch.arange(2) % size for size in factors], -1)
    ours = family.log_prob(logits, action), family.entropy(logits), family.kl(logits, other)
    for row in range(2):
        p, q = logits[row].numpy(), other[row].numpy()
        assert_same(ours[0][row], twin.multi_log_prob(p, action[row].tolist(), factors))
        assert_same(ours[1][row], twin.multi_entropy(p, factors))
        assert_same(ours[2][row], twin.multi_kl(p, q, factors))
        assert_same(family.joint_log_probs(logits)[row], twin.joint_log_probs(p, factors))


@given(seeds, spreads, st.sampled_from([1e-4, 0.1]))
def test_gaussian_agrees_with_its_twin(seed, spread, min_scale):
    low, high = (-2.0, -math.inf, 0.5), (1.0, math.inf, 4.0)
    family = DiagonalGaussian(low, high, min_scale)
    parameters, other = spread * normal(seed, 2, 6).clamp(-1, 1), spread * normal(seed + 1, 2, 6).clamp(-1, 1)
    latent = parameters[:, :3] + normal(seed + 2, 2, 3)
    for row in range(2):
        p, q, u = parameters[row].numpy(), other[row].numpy(), latent[row].numpy()
        bounds = np.array(low), np.array(high)
        assert_same(family.log_prob(parameters, latent)[row], twin.gaussian_log_prob(p, u, *bounds, min_scale))
        assert_same(family.kl(parameters, other)[row], twin.gaussian_kl(p, q, min_scale))
        assert_same(family.to_environment(latent)[row], twin.to_environment(u, *bounds))


@pytest.mark.parametrize(
    ("scale", "tolerance"),
    [
        (0.01, 1e-6),
        (0.3, 1e-6),
        (1.0, 1e-6),
        (2.0, 2e-4),
        (3.0, 2e-3),
        (5.0, 0.03 * 5),
        (30.0, 0.03 * 40),
        (1e4, 0.03 * 15945),
    ],
)
def test_entropy_of_a_squashed_normal_is_as_exact_as_documented(scale, tolerance):
    raw = math.log(math.expm1(scale)) if scale < 30 else scale
    low, high = (-2.0, -math.inf), (1.0, math.inf)
    for mean in (0.0, 0.3, -2.5, 7.0):
        parameters = torch.tensor([mean, 1.0, raw, -0.5], dtype=torch.float64)
        exact = twin.gaussian_entropy(parameters.numpy(), np.array(low), np.array(high), 1e-4)
        assert DiagonalGaussian(low, high).entropy(parameters).item() == pytest.approx(exact, abs=tolerance)


def test_entropy_without_bounds_is_the_closed_form():
    parameters = normal(0, 4, 6)
    free = DiagonalGaussian((-math.inf,) * 3, (math.inf,) * 3)
    for row, entropy in zip(parameters, free.entropy(parameters), strict=True):
        scale = twin.gaussian_scale(row[3:].numpy(), 1e-4)
        assert_same(entropy, stats.norm(scale=scale).entropy().sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_repeated_without_a_copy_give_what_copies_give(family):
    rows, others = normal(0, 3, family.parameter_size), normal(1, 3, family.parameter_size)
    repeated, other = rows.expand(5, *rows.shape), others.expand(5, *others.shape)
    copies = repeated.clone()
    action = family.sample(repeated, generator(2))
    assert torch.equal(action, family.sample(copies, generator(2)))
    assert torch.equal(family.log_prob(repeated, action), family.log_prob(copies, action))
    assert torch.equal(family.entropy(repeated), family.entropy(copies))
    assert torch.equal(family.kl(repeated, other), family.kl(copies, other.clone()))
    assert torch.equal(family.mode(repeated), family.mode(copies))


def test_density_of_a_bounded_action_integrates_to_one():
    family = DiagonalGaussian((-2.0,), (1.0,))
    parameters = torch.tensor([0.4, 0.2], dtype=torch.float64)
    action = torch.linspace(-2, 1, 200_001, dtype=torch.float64)[1:-1]
    latent = torch.atanh((action + 0.5) / 1.5)
    density = family.log_prob(parameters.expand(len(action), 2), latent.unsqueeze(-1)).exp()
    assert torch.trapezoid(density, action).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_finite_at_ten_thousand(family):
    for dtype in (torch.float32, torch.float64):
        corners = torch.tensor([1e4, -1e4, 0.0, 1e4, -1e4, 0.0, 1e4], dtype=dtype)
        rows = corners.unfold(0, family.parameter_size, 1).clone().requires_grad_()
        action = family.sample(rows.detach(), generator(0))
        numbers = [family.log_prob(rows, action), family.entropy(rows), family.kl(rows, rows.flip(0))]
        assert all(number.isfinite().all() for number in numbers)
        sum(number.sum() for number in numbers).backward()
        assert rows.grad.isfinite().all()
        assert family.to_environment(action).isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_numerical_ones(family):
    parameters, other = [normal(seed, 3, family.parameter_size).requires_grad_() for seed in (0, 1)]
    action = family.sample(parameters.detach(), generator(0))
    assert torch.autograd.gradcheck(lambda p: family.log_prob(p, action), [parameters])
    assert torch.autograd.gradcheck(family.entropy, [parameters])
    assert torch.autograd.gradcheck(family.kl, [parameters, other])


@pytest.mark.parametrize("family", FAMILIES)
def test_divergence_is_zero_only_to_itself_and_has_a_direction(family):
    p, q = normal(0, family.parameter_size), normal(1, family.parameter_size)
    assert family.kl(p, p).item() == pytest.approx(0, abs=1e-12)
    assert family.kl(p, q) > 0
    assert family.kl(p, q) != family.kl(q, p)


@pytest.mark.parametrize("family", FAMILIES)
def test_divergence_is_the_expected_log_ratio_of_samples(family):
    p, q = [normal(seed, family.parameter_size).expand(200_000, -1) for seed in (0, 1)]
    action = family.sample(p, generator(0))
    ratio = family.log_prob(p, action) - family.log_prob(q, action)
    assert ratio.mean().item() == pytest.approx(family.kl(p[0], q[0]).item(), abs=5 * ratio.std().item() / 200_000**0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_entropy_is_the_expected_surprise_of_samples(family):
    p = normal(3, family.parameter_size).expand(200_000, -1)
    surprise = -family.log_prob(p, family.sample(p, generator(1)))
    assert surprise.mean().item() == pytest.approx(
        family.entropy(p[0]).item(), abs=5 * surprise.std().item() / 200_000**0.5
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_what_the_protocol_asks_for(family):
    assert isinstance(family, Family)
    parameters = torch.zeros(5, 2, family.parameter_size)
    action = family.sample(parameters)
    assert action.shape == (5, 2, *family.action_shape) == family.mode(parameters).shape
    assert hash(family) == hash(family)


@pytest.mark.parametrize("family", [Categorical(4), MultiCategorical((2, 3))])
def test_samples_follow_the_probabilities(family):
    parameters = normal(7, family.parameter_size)
    draws = 100_000
    action = family.sample(parameters.expand(draws, -1), generator(0)).reshape(draws, -1)
    strides = torch.tensor([1] if isinstance(family, Categorical) else [3, 1])
    counts = torch.bincount((action * strides).sum(-1), minlength=family.joint_size)
    expected = family.joint_log_probs(parameters).exp() * draws
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


def test_a_draw_repeats_with_its_generator_and_not_without():
    for family in FAMILIES:
        parameters = torch.zeros(64, family.parameter_size)
        assert torch.equal(family.sample(parameters, generator(3)), family.sample(parameters, generator(3)))
        assert not torch.equal(family.sample(parameters, generator(3)), family.sample(parameters, generator(4)))


def test_an_exponential_variate_of_zero_cannot_win(monkeypatch):
    def zeros_where_hopeless(self, generator=None):
        return self.copy_(torch.tensor([0.0, 1.0]).expand_as(self))

    monkeypatch.setattr(torch.Tensor, "exponential_", zeros_where_hopeless)
    assert Categorical(2).sample(torch.tensor([[-1e3, 0.0]])).item() == 1


def test_samples_of_a_normal_have_its_moments():
    family = DiagonalGaussian((-1.0, -math.inf), (1.0, math.inf))
    parameters = torch.tensor([0.5, -2.0, 0.0, 1.0], dtype=torch.float64)
    latent = family.sample(parameters.expand(200_000, 4), generator(0))
    scale = torch.nn.functional.softplus(parameters[2:]) + 1e-4
    assert latent.mean(0).tolist() == pytest.approx(parameters[:2].tolist(), abs=0.02)
    assert latent.std(0).tolist() == pytest.approx(scale.tolist(), rel=0.01)


def test_evaluate_is_both_at_once():
    for family in FAMILIES:
        parameters = normal(0, 3, family.parameter_size)
        action = family.sample(parameters, generator(0))
        log_prob, entropy = family.evaluate(parameters, action)
        assert torch.equal(log_prob, family.log_prob(parameters, action))
        assert torch.equal(entropy, family.entropy(parameters))


def test_rows_may_have_any_shape():
    for family in FAMILIES:
        parameters, other = normal(0, 2, 3, 4, family.parameter_size), normal(1, 2, 3, 4, family.parameter_size)
        action = family.sample(parameters, generator(0))
        for function, second in ((family.log_prob, action), (family.kl, other)):
            flat = function(parameters.flatten(0, 2), second.flatten(0, 2))
            assert torch.equal(function(parameters, second), flat.reshape(2, 3, 4))
        assert torch.allclose(family.entropy(parameters), family.entropy(parameters.flatten(0, 2)).reshape(2, 3, 4))


def test_gradients_pass_through_the_squashing():
    family = DiagonalGaussian((-1.0, -math.inf), (3.0, math.inf))
    assert torch.autograd.gradcheck(family.to_environment, [normal(0, 4, 2).requires_grad_()])


def test_mode_is_the_most_probable_action():
    assert Categorical(3).mode(torch.tensor([0.0, 2.0, 1.0])).item() == 1
    assert MultiCategorical((2, 3)).mode(torch.tensor([0.0, 2.0, 5.0, 4.0, 3.0])).tolist() == [1, 0]
    family = DiagonalGaussian((-1.0,), (3.0,))
    assert family.to_environment(family.mode(torch.tensor([0.0, 9.0]))).item() == 1


def test_discrete_actions_reach_the_environment_as_they_are():
    action = torch.tensor([[1, 0]])
    assert Categorical(2).to_environment(action) is action
    assert MultiCategorical((2, 2)).to_environment(action) is action


def test_smaller_integers_serve_as_actions():
    logits, action = normal(0, 3, 4), torch.tensor([3, 1, 0])
    assert torch.equal(Categorical(4).log_prob(logits, action.to(torch.uint8)), Categorical(4).log_prob(logits, action))
