"""What is said of an episode is what the networks say of it, however many rows are looked at together."""

import numpy as np
import pytest
import torch

from laser_rl.agent.commentary import Commentator
from laser_rl.agent.policy import Seen
from laser_rl.config import LossConfig
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.heads import PopArtHead
from laser_rl.networks.torso import MLP
from laser_rl.ops.distributions import Categorical
from laser_rl.types import Inputs
from tests.networks.make import build_network
from tests.references.trust_region import kl_to_implied

ACTIONS = 3
BOUND = 0.05


def network(seed, *, memory=False, popart=0):
    torch.manual_seed(seed)
    spec = EnvironmentSpec("x", ObservationSpec((4,)), DiscreteActions(ACTIONS))
    made = (
        build_network(spec, hidden=(8,), memory="lstm", memory_size=6)
        if memory
        else AgentNetwork(MLP((4,), (8,)), parameter_size=ACTIONS, popart_tasks=popart)
    )
    with torch.no_grad():
        made.policy_head.weight.mul_(200)  # policies that differ
    return made


def rows(count, state=0):
    random = np.random.default_rng(0)
    for t in range(count):
        yield Seen(
            random.normal(size=(1, 4)).astype(np.float32),
            np.array([t == 0]),
            np.array([t % ACTIONS]),
            np.array([0.5 * t], np.float32),
            np.zeros((1, state), np.float32),
        )


def test_value_entropy_and_trust_are_those_of_the_formulas():
    own, others = network(1), [network(2), network(1), network(3)]
    remarks = Commentator(own, Categorical(ACTIONS), LossConfig(), bound=BOUND, sources=others)(list(rows(9)))
    shares = []
    for seen, remark in zip(rows(9), remarks, strict=True):
        with torch.no_grad():
            features = own.torso(torch.from_numpy(seen.observation))
            policies = [
                one.policy_head(one.torso(torch.from_numpy(seen.observation))).softmax(-1)[0].double().numpy()
                for one in (own, *others)
            ]
        pi = policies[0]
        assert remark.value == pytest.approx(own.value_head(features).item(), abs=1e-5)
        assert remark.entropy == pytest.approx(-(pi * np.log(pi)).sum(), abs=1e-5)
        inside = [kl_to_implied(pi, mu, 1.0) < BOUND for mu in policies[1:]]
        shares.append(float(np.mean(inside)))
        assert remark.trusted == pytest.approx(shares[-1])
    assert len(set(shares)) > 1, "a test in which all are equal would not notice much"


def test_nobody_to_compare_with_and_a_bound_without_end():
    own = network(1)
    assert {
        remark.trusted for remark in Commentator(own, Categorical(ACTIONS), LossConfig(), bound=BOUND)(list(rows(3)))
    } == {None}
    everything = Commentator(own, Categorical(ACTIONS), LossConfig(), bound=torch.inf, sources=[network(2)])
    assert {remark.trusted for remark in everything(list(rows(3)))} == {1.0}
    assert everything([]) == []


def test_values_are_in_the_units_of_the_task():
    own = network(1, popart=2)
    assert isinstance(own.value_head, PopArtHead)
    with torch.no_grad():
        own.value_head.mean[1] += 5.0
        own.value_head.mean_square[1] += 30.0
    first, second = (
        Commentator(own, Categorical(ACTIONS), LossConfig(), bound=BOUND, task=task)(list(rows(2))) for task in (0, 1)
    )
    assert first[0].value != pytest.approx(second[0].value)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("pieces", [[12], [1] * 12, [5, 7], [11, 1]])
def test_memories_are_carried_from_piece_to_piece(memory, pieces):
    sources = [network(2, memory=memory), network(3, memory=memory)]
    comment = Commentator(network(1, memory=memory), Categorical(ACTIONS), LossConfig(), bound=BOUND, sources=sources)
    seen, remarks = rows(12, state=network(1, memory=memory).state_size), []
    for count in pieces:
        remarks += comment([next(seen) for _ in range(count)])
    # One network after the other, row by row, with the memory that it has itself.
    for place, name in enumerate(("own", *sources)):
        one = network(1, memory=memory) if name == "own" else name
        state = one.initial_state(1)
        for t, row in enumerate(rows(12, state=one.state_size)):
            inputs = Inputs(*(torch.from_numpy(getattr(row, field))[None] for field in Inputs._fields))
            with torch.no_grad():
                output, states = one(inputs, state)
            state = states[-1]
            if place == 0:
                assert remarks[t].value == pytest.approx(output.value.item(), abs=1e-5)
    assert len({remark.trusted for remark in remarks}) > 1


def test_each_source_has_a_memory_of_its_own():
    own, source = network(1, memory=True), network(1, memory=True)
    with torch.no_grad():
        source.policy_head.bias[0] += 0.5
    seen = list(rows(12, state=own.state_size))
    comment = Commentator(own, Categorical(ACTIONS), LossConfig(trust="behaviour"), bound=1e-9, sources=[own, source])
    assert {remark.trusted for remark in comment(seen)} == {0.5}, "the same network with the same memory is itself"
