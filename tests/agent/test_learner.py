import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from laser_rl.agent.learner import Learner
from laser_rl.agent.loss import hyper_of, laser_loss, learned_discount, learned_reward
from laser_rl.agent.parameters import FlatParameters
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.networks.torso import MLP
from laser_rl.ops.distributions import Categorical
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.types import Batch

T, B, ACTIONS = 6, 5, 3
FAMILY = Categorical(ACTIONS)


def random_batch(seed=0, online=2, family=FAMILY):
    g = torch.Generator().manual_seed(seed)
    behaviour = torch.randn(T, B, family.parameter_size, generator=g)
    flags = torch.rand(4, T, B, generator=g) < torch.tensor([0.1, 0.1, 0.2, 0.9])[:, None, None]
    return Batch(
        observation=torch.randn(T + 1, B, 4, generator=g),
        is_first=torch.zeros(T + 1, B, dtype=torch.bool),
        last_action=torch.zeros(T + 1, B, dtype=torch.long),
        last_reward=torch.zeros(T + 1, B),
        action=family.sample(behaviour, g),
        reward=3 * torch.randn(T, B, generator=g),
        terminated=flags[0],
        truncated=flags[1],
        lost_life=flags[2],
        is_transition=flags[3],
        behaviour=behaviour,
        member=torch.zeros(B, dtype=torch.int32),
        slot=torch.zeros(B, dtype=torch.int32),
        task=torch.zeros(B, dtype=torch.int32),
        state=torch.zeros(B, 0),
        carried=torch.zeros(B, dtype=torch.bool),
        weight=torch.ones(B),
        id=torch.full((B,), -1),
        episode=torch.zeros(B, dtype=torch.long),
        seed=torch.zeros(B, dtype=torch.long),
        version=torch.zeros(B, dtype=torch.long),
        online=torch.arange(B) < online,
    )


def make_network(seed=1, family=FAMILY):
    torch.manual_seed(seed)
    network = AgentNetwork(MLP((4,), (8,)), parameter_size=family.parameter_size)
    nn.init.orthogonal_(network.policy_head.weight)
    return network


def output_of(network, batch):
    return network(batch.inputs, batch.state)[0]


def by_hand(output, batch, hyper):
    """The whole loss in plain loops, float64: relevance, trust, V-trace, losses, reduction."""
    policy, value = output.policy.detach().double(), output.value.detach().double()
    totals, counts = [0.0, 0.0, 0.0], [0, 0, 0]
    for b in range(B):
        gain, following = 0.0, value[T, b].item()
        for t in reversed(range(T)):
            pi, mu = policy[t, b].softmax(-1), batch.behaviour[t, b].double().softmax(-1)
            common = torch.minimum(mu * hyper.clip_rho, pi)
            implied = common / common.sum()
            divergence = (pi * (pi / implied).log()).sum().item()
            learnable = divergence < hyper.bound and bool(batch.is_transition[t, b])
            action, v = batch.action[t, b], value[t, b].item()
            ratio = (pi[action] / mu[action]).item()
            rho, c = min(hyper.clip_rho, ratio), min(hyper.clip_c, ratio)
            gamma = 0.0 if batch.terminated[t, b] else hyper.discount
            reward = hyper.reward_scale * batch.reward[t, b].item()
            advantage = reward + gamma * following - v
            delta = reward + gamma * value[t + 1, b].item() - v
            gain = rho * delta + gamma * c * gain if learnable else 0.0
            following = v + gain
            if learnable:
                totals[0] += -rho * advantage * pi[action].log().item()
                totals[1] += 0.5 * gain**2
                counts[0] += 1
                counts[1] += 1
                if batch.online[b]:
                    totals[2] += (pi * pi.log()).sum().item()
                    counts[2] += 1
    policy_loss, value_loss, entropy_loss = (
        total / count if hyper.reduction == "mean" else total for total, count in zip(totals, counts, strict=True)
    )
    return policy_loss + hyper.baseline_cost * value_loss + hyper.entropy_cost * entropy_loss, counts


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("bound", [0.05, 0.2, 1e9])
def test_the_loss_is_the_one_in_plain_loops(reduction, bound):
    hyper = LossConfig(reduction=reduction, trust_bound=bound, entropy_cost=0.3, reward_scale=0.5, clip_rho=1.3)
    for seed in range(5):
        batch, network = random_batch(seed), make_network(seed)
        loss = laser_loss(FAMILY, output_of(network, batch), batch, hyper, torch.tensor(hyper.bound))
        expected, counts = by_hand(output_of(network, batch), batch, hyper)
        assert loss.total.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert bound > 1 or counts[0] < batch.is_transition.sum()  # the trust region does reject some


def test_trust_off_rejects_nothing_and_behaviour_uses_the_other_divergence():
    batch, network = random_batch(), make_network()
    output = output_of(network, batch)

    def acceptance(**settings):
        hyper = LossConfig(**settings)
        return laser_loss(FAMILY, output, batch, hyper, torch.tensor(hyper.bound)).numbers["acceptance"].item()

    assert acceptance(trust="off") == 1.0
    implied, behaviour = acceptance(trust_bound=0.2), acceptance(trust="behaviour", trust_bound=0.2)
    assert behaviour < implied < 1.0  # near policies: KL(pi || implied) is the smaller one


def test_importance_sampling_clips_nothing_and_trusts_the_same_rows():
    batch, network = random_batch(), make_network()
    output = output_of(network, batch)

    def computed(**settings):
        hyper = LossConfig(trust_bound=0.2, **settings)
        return laser_loss(FAMILY, output, batch, hyper, torch.tensor(hyper.bound))

    # KL(pi || mu) does not depend on the clipping.
    plain, far = computed(trust="behaviour"), computed(trust="behaviour", clip_rho=1e9, clip_c=1e9)
    sampled = computed(trust="behaviour", returns="importance")
    assert sampled.total.item() == pytest.approx(far.total.item())
    assert sampled.total.item() != pytest.approx(plain.total.item(), rel=1e-3)
    assert torch.equal(computed(returns="importance").learnable, computed().learnable)


def test_entropy_moves_online_rows_only():
    batch, hyper = random_batch(), LossConfig(trust="off", entropy_cost=1.0, baseline_cost=0.0)
    policy = torch.randn(T + 1, B, ACTIONS, requires_grad=True)

    def gradient(cost):
        output = Output(policy, torch.zeros(T + 1, B))
        loss = laser_loss(
            FAMILY, output, batch, hyper.model_copy(update={"entropy_cost": cost}), torch.tensor(math.inf)
        )
        return torch.autograd.grad(loss.total, policy)[0]

    difference = (gradient(1.0) - gradient(0.0))[:-1]
    moved = difference.abs().sum(-1) > 0
    assert (moved == (batch.is_transition & batch.online)).all()


@pytest.mark.parametrize("bound", [0.05, 1e9])
def test_entropy_weighs_by_the_online_share_less_under_sum_as_its_setting_says(bound):
    said = LossConfig.model_fields["entropy_cost"].description
    assert "cost with sum = cost with mean / online share" in " ".join(said.split())
    batch = random_batch()
    policy = torch.randn(T + 1, B, ACTIONS, dtype=torch.float64, requires_grad=True)
    output = Output(policy, torch.randn(T + 1, B, dtype=torch.float64))

    def gradient(reduction, entropy_cost):
        hyper = LossConfig(reduction=reduction, entropy_cost=entropy_cost, trust_bound=bound)
        loss = laser_loss(FAMILY, output, batch, hyper, torch.tensor(hyper.bound))
        return torch.autograd.grad(loss.total, policy)[0], loss.learnable

    mean, learnable = gradient("mean", 0.3)
    online_share = (learnable & batch.online).sum() / learnable.sum()
    assert 0 < online_share < 1
    summed, _ = gradient("sum", 0.3 / online_share.item())
    torch.testing.assert_close(mean, summed / learnable.sum(), rtol=1e-5, atol=1e-7)
    same_cost, _ = gradient("sum", 0.3)
    assert (mean - same_cost / learnable.sum()).abs().max() > 1e-3  # the same number is not the same weight


def test_rewards_and_discounts_as_configured():
    batch = random_batch()
    clipped = hyper_of([LossConfig(reward_scale=10.0, reward_transform="clip")])
    assert learned_reward(batch, clipped).abs().max() == 1.0
    plain, lives = (hyper_of([LossConfig(discount=0.9, life_loss_ends_discount=lost)]) for lost in (False, True))
    torch.testing.assert_close(learned_discount(batch, plain), 0.9 * (~batch.terminated).float())
    torch.testing.assert_close(learned_discount(batch, lives), 0.9 * (~(batch.terminated | batch.lost_life)).float())


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_flat_parameters_learn_what_separate_ones_learn(kind):
    flat, plain = make_network(), make_network()
    learner = Learner(flat, FAMILY, LossConfig(), OptimiserConfig(kind=kind, learning_rate=0.01))
    parameters = list(plain.parameters())
    squares = [torch.ones_like(p) for p in parameters]
    adam = torch.optim.Adam(parameters, lr=0.01, eps=1e-8)
    for seed in range(4):
        batch = random_batch(seed)
        assert learner.update(batch, progress=0.0)
        adam.zero_grad()
        loss = laser_loss(FAMILY, output_of(plain, batch), batch, LossConfig(), torch.tensor(LossConfig().bound))
        loss.total.backward()
        if kind == "adam":
            adam.step()
        else:
            with torch.no_grad():
                for p, square in zip(parameters, squares, strict=True):
                    square.mul_(0.99).add_(0.01 * p.grad**2)
                    p.sub_(0.01 * p.grad / (square + 0.01).sqrt())
    for one, other in zip(flat.parameters(), parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_an_update_that_is_not_finite_is_skipped_and_counted():
    learner = Learner(make_network(), FAMILY, LossConfig(trust="off"), OptimiserConfig())
    good, before = random_batch(), None
    learner.update(good, progress=0.0)
    before = learner.flat.value.clone()
    state = copy.deepcopy(learner.state_dict().tensors["optimiser"])
    poisoned = good._replace(reward=good.reward.clone().index_fill_(0, torch.tensor([2]), math.nan))
    assert not learner.update(poisoned, progress=0.0)
    torch.testing.assert_close(learner.flat.value, before, rtol=0, atol=0)
    for name, tensor in learner.state_dict().tensors["optimiser"].items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    assert (learner.recovery.counts.skipped, learner.version) == (1, 2)
    assert learner.report()["skipped_updates"] == 1
    assert learner.update(good, progress=0.0)


def test_the_gradient_is_clipped_only_if_asked():
    batch = random_batch()
    for limit, clipped in ((None, False), (1e-3, True)):
        learner = Learner(make_network(), FAMILY, LossConfig(), OptimiserConfig(clip_gradient_norm=limit))
        learner.update(batch, progress=0.0)
        assert (learner.flat.gradient.norm() <= 1.001e-3) == clipped


def test_schedules():
    constant = Learner(make_network(), FAMILY, LossConfig(), OptimiserConfig(learning_rate=0.1))
    linear = Learner(make_network(), FAMILY, LossConfig(), OptimiserConfig(learning_rate=0.1, schedule="linear"))
    assert [constant.learning_rate(p) for p in (0.0, 0.5, 1.0)] == [0.1, 0.1, 0.1]
    assert [linear.learning_rate(p) for p in (0.0, 0.25, 0.5, 1.0, 1.2)] == pytest.approx([0.1, 0.075, 0.05, 0.0, 0.0])


@pytest.mark.slow
def test_the_bound_follows_the_acceptance_asked_for():
    loss = LossConfig(target_acceptance=0.5, trust_bound=1e-2)
    learner = Learner(make_network(), FAMILY, loss, OptimiserConfig(learning_rate=1e-9))
    shares = []
    for seed in range(1200):
        learner.update(random_batch(seed % 50), progress=0.0)
        shares.append(learner.report().get("acceptance", math.nan))
    assert np.nanmean(shares[:50]) < 0.2
    assert np.nanmean(shares[-200:]) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("family", [FAMILY, DiagonalGaussian((-1.0,), (1.0,))])
def test_a_state_goes_on_bit_for_bit(kind, family):
    loss, rates = LossConfig(target_acceptance=0.8), OptimiserConfig(kind=kind)
    one = Learner(make_network(family=family), family, loss, rates, seed=3)
    for seed in range(3):
        one.update(random_batch(seed, family=family), progress=0.0)
    tensors, numbers = copy.deepcopy(one.state_dict())
    other = Learner(make_network(seed=9, family=family), family, loss, rates, seed=4)
    other.load_state_dict(tensors, numbers)
    for seed in range(3, 6):
        for learner in (one, other):
            learner.update(random_batch(seed, family=family), progress=0.5)
    assert one.flat.value.numpy().tobytes() == other.flat.value.numpy().tobytes()
    assert one.version == other.version == 6
    assert one.report() == other.report()


def test_a_number_that_one_batch_does_not_define_is_the_mean_of_the_others():
    learner = Learner(make_network(), FAMILY, LossConfig(trust="off"), OptimiserConfig())
    learner.update(random_batch(), progress=0.0)
    alone = learner.report()["entropy"]
    learner = Learner(make_network(), FAMILY, LossConfig(trust="off"), OptimiserConfig())
    learner.update(random_batch(), progress=0.0)
    learner.update(random_batch(online=0), progress=0.0)  # no online row, no entropy
    assert learner.report()["entropy"] == alone


def test_ages_are_counted_in_versions():
    learner = Learner(make_network(), FAMILY, LossConfig(), OptimiserConfig())
    for _ in range(3):
        learner.update(random_batch(), progress=0.0)
    learner.report()
    batch = random_batch()._replace(version=torch.tensor([3, 1, 0, 0, 3]))
    learner.update(batch, progress=0.0)
    numbers = learner.report()
    assert numbers["lag_updates"] == 1.0  # of 0 and 2
    assert numbers["replay_age_updates"] == 2.0  # of 3, 3 and 0


def test_parameters_of_two_types_are_refused():
    with pytest.raises(ConfigError, match="one type and one device"):
        FlatParameters(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()]))


def test_kernels_stay_channels_last_and_values_unchanged():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, 3)
    before, x = layer.weight.detach().clone(), torch.randn(2, 3, 6, 6)
    out = layer(x)
    FlatParameters(layer)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(layer(x), out)
