"""Small networks on a CPU: loss, layers and acting by NumPy are those of torch, up to rounding."""

import itertools

import numpy as np
import pytest
import torch

from laser_rl.agent import learner as learner_module
from laser_rl.agent.dense import Dense
from laser_rl.agent.learner import Learner
from laser_rl.agent.loss import hyper_of, laser_loss
from laser_rl.agent.numpy_loss import fits, numpy_loss
from laser_rl.agent.parameters import FlatParameters
from laser_rl.agent.policy import MOST_PRODUCTS, Policy, Seen
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.envs.records import ObservationSpec
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.networks.torso import MLP, ObservationNormaliser
from laser_rl.ops.distributions import FORBIDDEN
from laser_rl.ops.gaussian import DiagonalGaussian
from tests.agent.test_learner import ACTIONS, FAMILY, B, T, make_network, random_batch

VARIANTS = [
    {},
    {"reduction": "sum", "reward_scale": 0.1, "baseline_cost": 0.7},
    {"trust": "behaviour", "trust_bound": 0.5},
    {"trust": "off", "returns": "importance"},
    {"clip_rho": 2.0, "clip_c": 0.5, "reward_transform": "clip"},
    {"life_loss_ends_discount": True, "trust_bound": 1e-9},  # nothing is trusted
]
CLOSE = {"rtol": 2e-4, "atol": 2e-5, "equal_nan": True}


def outputs(seed, members=1):
    g = torch.Generator().manual_seed(100 + seed)  # not that of a batch
    columns = B * members
    policy, value = torch.randn(T + 1, columns, ACTIONS, generator=g), torch.randn(T + 1, columns, generator=g)
    return Output(policy.requires_grad_(), value.requires_grad_())


def batch_of(seed, members=1, online=2):
    batches = [random_batch(10 * seed + number, online) for number in range(members)]
    fields = zip(*batches, strict=True)
    joined = type(batches[0])(*(torch.cat(field, dim=0 if field[0].ndim == 1 else 1) for field in fields))
    return joined._replace(weight=torch.rand(B * members, generator=torch.Generator().manual_seed(seed)) + 0.5)


def assert_same_loss(output, batch, hyper, bound):
    expected, found = laser_loss(FAMILY, output, batch, hyper, bound), numpy_loss(output, batch, hyper, bound)
    for name in ("total", "relevance", "value"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name).detach(), msg=name, **CLOSE)
    assert torch.equal(found.learnable, expected.learnable)
    assert list(found.numbers) == list(expected.numbers)
    for name, number in expected.numbers.items():
        torch.testing.assert_close(found.numbers[name], number.detach(), msg=name, **CLOSE)
    gradients = torch.autograd.grad(expected.total, (output.policy, output.value))
    for mine, theirs in zip(found.gradients, gradients, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("members", [1, 3])
def test_the_loss_its_numbers_and_its_gradients_are_those_of_torch(variant, members):
    losses = [
        LossConfig(entropy_cost=0.3, discount=0.9 + 0.02 * number, **{"trust_bound": 0.2, **variant})
        for number in range(members)
    ]
    bound = torch.tensor([loss.bound * (1 + number) for number, loss in enumerate(losses)])
    for seed, online in itertools.product(range(4), (0, 2, B)):
        batch = batch_of(seed, members, online)
        assert_same_loss(outputs(seed, members), batch, hyper_of(losses), bound if members > 1 else bound[0])


def test_rows_that_are_not_learnable_may_hold_anything_and_forbidden_actions_stay_without_gradient():
    batch, output, hyper = batch_of(5), outputs(5), hyper_of([LossConfig(entropy_cost=0.3, trust_bound=0.5)])
    void = ~batch.is_transition
    batch = batch._replace(reward=torch.where(void, torch.nan, batch.reward))
    assert void.any()
    forbidden = torch.zeros(T + 1, B, ACTIONS, dtype=torch.bool)
    forbidden[:, :, 2] = True
    policy = torch.where(forbidden, FORBIDDEN, output.policy).detach().requires_grad_()
    behaviour = torch.where(forbidden[:-1], FORBIDDEN, batch.behaviour)
    batch = batch._replace(behaviour=behaviour, action=batch.action.clamp(max=1))
    output = Output(policy, output.value)
    assert_same_loss(output, batch, hyper, torch.tensor(0.5))
    by_policy, _ = numpy_loss(output, batch, hyper, torch.tensor(0.5)).gradients
    assert not by_policy[forbidden].any()
    assert by_policy.any()


def test_a_network_that_has_diverged_has_a_gradient_that_is_not_finite():
    output = outputs(1)
    with torch.no_grad():
        output.policy[2, 1, 0] = torch.nan
    found = numpy_loss(output, batch_of(1), hyper_of([LossConfig()]), torch.tensor(0.1))
    assert not found.gradients[0].isfinite().all()
    assert not found.learnable[2, 1]


def made(seed, *, separate=False, mask=0, normalised=False, pictures=False):
    torch.manual_seed(seed)
    shape = (2, 1, 2) if pictures else (4,)
    value_torso = MLP(shape, (5,)) if separate else None
    normaliser = ObservationNormaliser((4,)) if normalised else None
    seen = ObservationSpec((4 + mask,) if mask else shape, scale=0.5, mask=mask)
    network = AgentNetwork(
        MLP(shape, (8, 6)), parameter_size=ACTIONS, value_torso=value_torso, normaliser=normaliser, observation=seen
    )
    torch.nn.init.orthogonal_(network.policy_head.weight)
    for layer in network.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.bias.data.normal_()
    if normaliser is not None:
        normaliser.shift.data.normal_()
        normaliser.scale.data.uniform_(0.5, 2.0)
    return network


def observations(members, mask):
    found = torch.randn(T + 1, members * B, 4 + mask)
    if mask:
        found[..., -mask:] = (found[..., -mask:] > 0).float()
        found[..., -1] = 1.0
    return found


@pytest.mark.parametrize(
    ("members", "more"),
    [
        (1, {}),
        (1, {"separate": True}),
        (1, {"mask": ACTIONS}),
        (1, {"normalised": True}),
        (1, {"pictures": True}),
        (3, {}),
        (3, {"separate": True, "mask": ACTIONS}),
    ],
)
def test_layers_say_and_learn_what_the_networks_do(members, more):
    networks = [made(seed, **more) for seed in range(members)]
    assert all(network.dense for network in networks)
    flats = [FlatParameters(network) for network in networks]
    value, gradient = torch.stack([flat.value for flat in flats]), torch.full((members, flats[0].value.numel()), 7.0)
    dense, observation = (
        Dense(networks[0], flats[0].places, value, gradient),
        observations(members, more.get("mask", 0)),
    )
    if "pictures" in more:
        observation = observation.view(T + 1, B, 2, 1, 2)
    output = dense.forward(observation)
    by_policy, by_value = torch.randn_like(output.policy), torch.randn_like(output.value)
    if "mask" in more:
        by_policy *= observation[..., -ACTIONS:]  # a loss has no gradient where π is 0
    dense.backward(by_policy, by_value)
    for number, (network, flat) in enumerate(zip(networks, flats, strict=True)):
        own = slice(number * B, (number + 1) * B)
        batch = random_batch()._replace(observation=observation[:, own])
        expected, _ = network(batch.inputs, batch.state)
        torch.testing.assert_close(output.policy[:, own], expected.policy, **CLOSE)
        torch.testing.assert_close(output.value[:, own], expected.value, **CLOSE)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        found = torch.autograd.grad((expected.policy, expected.value), trained, (by_policy[:, own], by_value[:, own]))
        assert dense.parameters == len(trained)
        for place, parameter in zip(flat.places, network.parameters(), strict=True):
            mine = gradient[number, place.first : place.last].view(place.shape)
            if parameter.requires_grad:
                index = next(i for i, one in enumerate(trained) if one is parameter)
                torch.testing.assert_close(mine, found[index], msg=place.name, **CLOSE)
            else:
                assert (mine == 7.0).all()
    torch.testing.assert_close(dense.policy(observation[0]), output.policy[0], **CLOSE)


@pytest.mark.parametrize(
    "rates", [OptimiserConfig(learning_rate=0.01), OptimiserConfig(kind="rmsprop", learning_rate=0.01)]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_learner_learns_what_it_learns_by_torch(rates, frozen, monkeypatch):
    def learned(by_numpy):
        monkeypatch.setattr(learner_module, "fits", fits if by_numpy else lambda *_: False)
        network = make_network()
        network.torso.requires_grad_(not frozen)
        one = Learner(network, FAMILY, LossConfig(entropy_cost=0.1, target_acceptance=0.5), rates)
        for update in range(12):
            one.update(random_batch(update), progress=update / 12)
        return one

    mine, theirs = learned(True), learned(False)
    assert (mine._layers is not None) > (theirs._layers is not None)
    torch.testing.assert_close(mine.flat.value, theirs.flat.value, rtol=1e-3, atol=1e-4)
    assert not torch.equal(mine.network.policy_head.weight, make_network().policy_head.weight)
    ours, others = mine.report(), theirs.report()
    assert list(ours) == list(others)
    assert list(ours.values()) == pytest.approx(list(others.values()), rel=1e-3, abs=1e-4)


def test_layers_follow_parameters_that_move_elsewhere():
    one, other = (Learner(make_network(), FAMILY, LossConfig(), OptimiserConfig(learning_rate=0.01)) for _ in range(2))
    for learner in (one, other):
        learner.update(random_batch(0), progress=0.0)
    one.flat.move(torch.empty_like(one.flat.value), torch.zeros_like(one.flat.value))
    for learner in (one, other):
        learner.update(random_batch(1), progress=0.0)
    assert torch.equal(one.flat.value, other.flat.value)


@pytest.mark.parametrize("deterministic", [False, True])
def test_acting_decides_as_torch_does(deterministic):
    network = made(3)
    mine, theirs = (Policy(network, FAMILY, seed=5, deterministic=deterministic) for _ in range(2))
    theirs._layers = []
    random = np.random.default_rng(0)
    for rows in (1, 4, 7):
        seen = Seen(random.normal(size=(rows, 4)).astype(np.float32))
        one, two = mine.act(seen), theirs.act(seen)
        np.testing.assert_allclose(one.behaviour, two.behaviour, rtol=1e-5, atol=1e-6)
        assert (one.action == two.action).all()
        assert [part.dtype for part in one[:3]] == [part.dtype for part in two[:3]]
    assert torch.equal(mine.generator.get_state(), theirs.generator.get_state())


def test_acting_reads_parameters_where_they_lie_and_leaves_large_or_broken_ones_to_torch(monkeypatch):
    network = made(3)
    policy, seen = Policy(network, FAMILY, seed=5), Seen(np.ones((2, 4), np.float32))
    before = policy.act(seen).behaviour
    flat = FlatParameters(network)  # moves them
    flat.value.mul_(2.0)
    assert abs(policy.act(seen).behaviour - before).min() > 1e-4
    assert policy._act_by_numpy(np.ones((MOST_PRODUCTS, 4), np.float32)) is None
    flat.value.fill_(torch.nan)
    assert policy._act_by_numpy(seen.observation) is None
    assert not policy.act(seen).behaviour.any()


def test_what_numpy_cannot_do_is_left_to_torch():
    network, plain = make_network(), LossConfig()
    assert fits(FAMILY, plain, network, torch.zeros(1))
    assert not fits(FAMILY, plain, network, torch.zeros(1, dtype=torch.float64))
    assert not fits(FAMILY, plain, network, torch.zeros(1, device="meta"))
    assert not fits(FAMILY, LossConfig(trust="a:b"), network, torch.zeros(1))
    assert not fits(FAMILY, LossConfig(reward_transform="dmlab"), network, torch.zeros(1))
    assert not fits(DiagonalGaussian((-1.0,), (1.0,)), plain, network, torch.zeros(1))
