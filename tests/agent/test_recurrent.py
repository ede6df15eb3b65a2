"""Where the state of each column comes from, what is carried, and what must not be learned from."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from laser_rl.agent.learner import Learner
from laser_rl.agent.memory_state import Recurrent
from laser_rl.agent.parameters import GIVE_UP_AFTER
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.ops.distributions import Categorical
from tests.agent.test_learner import ACTIONS, B, T, random_batch
from tests.networks.make import build_network

SIZE = 6
SPEC = EnvironmentSpec("x", ObservationSpec((4,)), DiscreteActions(ACTIONS))


def network(seed=1, memory="lstm", **kinds):
    torch.manual_seed(seed)
    built = build_network(SPEC, hidden=(8,), memory=memory, memory_size=SIZE, **kinds)
    nn.init.orthogonal_(built.policy_head.weight)
    return built


def batch_of(net, seed=0, carried=False):
    batch = random_batch(seed)
    g = torch.Generator().manual_seed(seed + 100)
    replayed = ~batch.online
    return batch._replace(
        is_first=torch.rand(T + 1, B, generator=g) < 0.1,
        state=torch.randn(B, net.state_size, generator=g),
        carried=replayed & carried,
    )


@pytest.mark.parametrize("memory", ["lstm", "gru", "preco"])
def test_a_lane_goes_on_as_if_its_unrolls_were_one(memory):
    """Row T of an unroll is row 0 of the next: the state carried is the one before it."""
    net = network(memory=memory)
    recurrent = Recurrent(net)
    parts = [batch_of(net, seed, carried=seed > 0) for seed in range(3)]
    for one, following in itertools.pairwise(parts):
        for name in ("observation", "is_first", "last_action", "last_reward"):
            getattr(following, name)[0] = getattr(one, name)[-1]
    outputs = [recurrent.unroll(part)[0].policy[:-1] for part in parts]
    whole = type(parts[0].inputs)(
        *(torch.cat([field[:-1] for field in fields]) for fields in zip(*(p.inputs for p in parts), strict=True))
    )
    expected = net(whole, parts[0].state)[0].policy
    replayed = ~parts[0].online
    torch.testing.assert_close(torch.cat(outputs)[:, replayed], expected[:, replayed])


def test_online_columns_start_from_the_actors_state():
    net = network()
    recurrent = Recurrent(net)
    recurrent.unroll(batch_of(net, 0))
    second = batch_of(net, 1, carried=True)
    output = recurrent.unroll(second)[0]
    expected = net(second.inputs, second.state)[0].policy
    torch.testing.assert_close(output.policy[:, second.online], expected[:, second.online])
    assert not torch.allclose(output.policy[0, ~second.online], expected[0, ~second.online])


def test_nothing_is_learned_from_a_lane_whose_state_is_lost_until_it_begins_anew():
    net = network()
    recurrent = Recurrent(net)
    recurrent.unroll(batch_of(net, 0))
    recurrent.forget()
    going, replayed = batch_of(net, 1, carried=True), ~batch_of(net).online
    for _ in range(2):
        masked = recurrent.unroll(going)[1]
        assert not masked.is_transition[:, replayed].any()
        assert torch.equal(masked.is_transition[:, ~replayed], going.is_transition[:, ~replayed])
    begun = going._replace(carried=torch.zeros_like(going.carried))
    assert torch.equal(recurrent.unroll(begun)[1].is_transition, going.is_transition)
    assert torch.equal(recurrent.unroll(going)[1].is_transition, going.is_transition)


def test_a_state_that_is_not_finite_is_lost():
    net = network()
    recurrent = Recurrent(net)
    broken = batch_of(net, 0)._replace(is_first=torch.zeros(T + 1, B, dtype=torch.bool))
    broken.state[3] = torch.nan
    recurrent.unroll(broken)
    masked = recurrent.unroll(batch_of(net, 1, carried=True))[1]
    assert not masked.is_transition[:, 3].any()
    assert masked.is_transition[:, 2].any()
    assert all(part.isfinite().all() for part in recurrent.state_dict().values() if part.is_floating_point())


def test_burn_in_rows_of_replayed_columns_teach_nothing_and_let_no_gradient_through():
    rows = 2
    net = network()
    batch = batch_of(net)._replace(is_first=torch.zeros(T + 1, B, dtype=torch.bool))
    batch.observation.requires_grad_()
    plain = Recurrent(network()).unroll(batch)[0]
    output, masked = Recurrent(net, burn_in_steps=rows).unroll(batch)
    torch.testing.assert_close(output.policy, plain.policy)
    torch.testing.assert_close(output.value, plain.value)
    assert not masked.is_transition[:rows, ~batch.online].any()
    assert torch.equal(masked.is_transition[rows:], batch.is_transition[rows:])
    assert torch.equal(masked.is_transition[:, batch.online], batch.is_transition[:, batch.online])
    output.policy[-1].sum().backward()
    reached = batch.observation.grad.abs().sum(-1) > 0
    assert not reached[:rows, ~batch.online].any()
    assert reached[:, batch.online].all()
    assert reached[rows:].all()


def test_a_learner_carries_and_resumes_bit_for_bit():
    def learner():
        return Learner(network(), Categorical(ACTIONS), LossConfig(), OptimiserConfig(), seed=1)

    one = learner()
    batches = [batch_of(one.network, seed, carried=seed > 0) for seed in range(6)]
    for batch in batches[:3]:
        one.update(batch, progress=0.0)
    other, kept = learner(), one.state_dict()
    other.load_state_dict(kept.tensors, kept.numbers)
    for batch in batches[3:]:
        one.update(batch, progress=0.0)
        other.update(batch, progress=0.0)
    assert torch.equal(one.flat.value, other.flat.value)
    third = learner()
    third.load_state_dict(kept.tensors, kept.numbers)
    third.recurrent.load_state_dict(learner().recurrent.state_dict())  # as if nothing had been carried
    for batch in batches[3:]:
        third.update(batch, progress=0.0)
    assert not torch.equal(one.flat.value, third.flat.value)


def test_another_learners_parameters_make_the_lanes_worthless():
    one, other = (Learner(network(seed), Categorical(ACTIONS), LossConfig(), OptimiserConfig()) for seed in (1, 2))
    one.update(batch_of(one.network), progress=0.0)
    one.adopt(other.state_dict().tensors)
    masked = one.recurrent.unroll(batch_of(one.network, 1, carried=True))[1]
    assert not masked.is_transition[:, ~masked.online].any()


def test_so_does_a_roll_back():
    learner = Learner(network(), Categorical(ACTIONS), LossConfig(), OptimiserConfig())
    learner.update(batch_of(learner.network), progress=0.0)
    broken = batch_of(learner.network, 1)
    broken.reward[:] = torch.inf
    for _ in range(GIVE_UP_AFTER):
        assert not learner.update(broken, progress=0.0)
    assert learner.recovery.counts.rollbacks == 1
    masked = learner.recurrent.unroll(batch_of(learner.network, 2, carried=True))[1]
    assert not masked.is_transition[:, ~masked.online].any()


def test_what_is_drawn_by_priority_is_weighted_and_told_its_new_one():
    learner = Learner(network(), Categorical(ACTIONS), LossConfig(trust="off"), OptimiserConfig(), prioritise=True)
    batch = batch_of(learner.network)._replace(id=torch.arange(B) + 40)
    learner.update(batch, progress=0.0)
    ids, priority = learner.priorities
    assert ids.tolist() == [40, 41, 42, 43, 44]
    assert (priority > 0).all()
    assert priority.shape == (B,)
    assert not learner.update(batch._replace(reward=torch.full_like(batch.reward, torch.inf)), progress=0.0)
    assert learner.priorities is None  # a skipped update says nothing about its unrolls
    light, heavy = (
        Learner(network(), Categorical(ACTIONS), LossConfig(trust="off", entropy_cost=0.0), OptimiserConfig())
        for _ in range(2)
    )
    for one, weight in ((light, 1.0), (heavy, 2.0)):
        one.update(batch._replace(weight=torch.full((B,), weight)), progress=0.0)
    np.testing.assert_allclose(heavy.flat.gradient.numpy(), 2 * light.flat.gradient.numpy(), rtol=1e-4, atol=1e-6)
