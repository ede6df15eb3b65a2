"""Members side by side do what each would do alone."""

import copy

import numpy as np
import pytest
import torch

from laser_rl.agent.learner import Learner
from laser_rl.agent.parameters import GIVE_UP_AFTER
from laser_rl.agent.policy import Seen
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.envs.records import ObservationSpec
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.torso import CNN, MLP
from laser_rl.training.vectorized import StackedPolicy, VectorizedLearners, can_stack
from laser_rl.types import Batch, Inputs
from tests.agent.test_learner import FAMILY, random_batch

K = 4
LOSSES = [
    LossConfig(discount=0.9, entropy_cost=0.3, trust_bound=0.5),
    LossConfig(discount=0.99, entropy_cost=0.01, trust_bound=2.0, baseline_cost=1.0),
    LossConfig(discount=0.5, entropy_cost=0.1, trust_bound=1.0, reward_scale=0.1),
    LossConfig(discount=0.95, entropy_cost=0.0, trust_bound=1.5, target_acceptance=0.5),
]
RATES = [1e-3, 3e-3, 1e-2, 3e-2]


def network(seed, *, separate_value=False):
    torch.manual_seed(seed)
    made = AgentNetwork(
        MLP((4,), (8, 6)),
        parameter_size=3,
        value_torso=MLP((4,), (5,)) if separate_value else None,
        observation=ObservationSpec((4,), scale=0.5),
    )
    torch.nn.init.orthogonal_(made.policy_head.weight)
    return made


def learners(kind="adam", *, clip=None, separate_value=False, sources=K):
    return [
        Learner(
            network(seed, separate_value=separate_value),
            FAMILY,
            loss,
            OptimiserConfig(kind=kind, learning_rate=rate, clip_gradient_norm=clip, schedule="linear"),
            sources=sources,
        )
        for seed, (loss, rate) in enumerate(zip(LOSSES, RATES, strict=True))
    ]


def batch_for(member, update):
    sources = torch.tensor([member, member, 0, 1, 3])
    made = random_batch(1000 * update + member)
    return made._replace(member=sources.int(), version=torch.tensor([update, update, update // 2, 0, 0]))


def joined(batches):
    return Batch(*(torch.cat(fields, dim=0 if fields[0].ndim == 1 else 1) for fields in zip(*batches, strict=True)))


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("separate_value", [False, True])
def test_side_by_side_each_member_learns_what_it_learns_alone(kind, clip, separate_value):
    alone = learners(kind, clip=clip, separate_value=separate_value)
    stack = VectorizedLearners(learners(kind, clip=clip, separate_value=separate_value))
    for update in range(6):
        rows = [0, 1, 2, 3] if update != 3 else [0, 2]  # once for some of them only
        batches = [batch_for(row, update) for row in rows]
        done = [0.1 * row for row in rows]
        stack.update(rows, joined(batches), progress=done)
        for row, batch, progress in zip(rows, batches, done, strict=True):
            alone[row].update(batch, progress=progress)
    for one, other in zip(alone, stack.learners, strict=True):
        torch.testing.assert_close(one.flat.value, other.flat.value, rtol=2e-4, atol=2e-5)
        assert (one.version, one.recovery.counts.skipped) == (other.version, other.recovery.counts.skipped)
        assert one.bound.item() == pytest.approx(other.bound.item(), rel=1e-5)
        ours, theirs = one.report(), other.report()
        # A member that missed an update counts acceptance in others than when it learns alone.
        names = [name for name in ours if one.version == 6 or not name.startswith(("acceptance_", "kl_"))]
        ours, theirs = ({name: numbers[name] for name in names} for numbers in (ours, theirs))
        assert one.version < 6 or {"acceptance_from_0", "kl_from_3", "acceptance_age_0"} <= ours.keys()
        assert list(ours.values()) == pytest.approx(list(theirs.values()), rel=2e-3, abs=1e-5)


def test_acceptance_is_counted_for_the_member_that_produced_the_data():
    learner = learners()[1]
    batch = random_batch(7)._replace(member=torch.tensor([1, 1, 0, 2, 9], dtype=torch.int32))
    learner.update(batch, progress=0.0)
    numbers = learner.report()
    assert {name for name in numbers if name.startswith("acceptance_from")} == {
        "acceptance_from_0",
        "acceptance_from_2",
    }
    alone = learners()[1]  # the same numbers from a batch in which only that column is replayed
    online = torch.tensor([True, True, False, True, True])
    alone.update(batch._replace(online=online), progress=0.0)
    assert alone.report()["acceptance"] == pytest.approx(numbers["acceptance_from_0"])


@pytest.mark.fault(21)
def test_a_member_with_a_broken_gradient_is_skipped_and_no_other():
    broken, whole = VectorizedLearners(learners()), VectorizedLearners(learners())
    batches = [batch_for(row, 0) for row in range(K)]
    ruined = [*batches[:2], batches[2]._replace(reward=torch.full_like(batches[2].reward, torch.nan)), batches[3]]
    broken.update(range(K), joined(ruined), progress=[0.0] * K)
    whole.update(range(K), joined(batches), progress=[0.0] * K)
    assert [learner.recovery.counts.skipped for learner in broken.learners] == [0, 0, 1, 0]
    before = learners()[2].flat.value
    torch.testing.assert_close(broken.learners[2].flat.value, before, rtol=0, atol=0)
    for row in (0, 1, 3):
        torch.testing.assert_close(broken.value[row], whole.value[row], rtol=1e-6, atol=1e-7)


@pytest.mark.fault(21)
def test_a_member_that_does_not_recover_is_rolled_back_to_what_it_was():
    stack = VectorizedLearners(learners())
    good = stack.learners[1].flat.value.clone()
    stack.value[1] = 1e30  # a step that was far too large
    for update in range(GIVE_UP_AFTER):
        assert stack.learners[1].recovery.counts.rollbacks == 0
        stack.update(range(K), joined([batch_for(row, update) for row in range(K)]), progress=[0.0] * K)
    assert stack.learners[1].recovery.counts.rollbacks == 1
    torch.testing.assert_close(stack.value[1], good, rtol=0, atol=0)
    assert [learner.recovery.counts.rollbacks for learner in stack.learners] == [0, 1, 0, 0]
    assert stack.learners[1].recovery.counts.skipped == GIVE_UP_AFTER
    stack.update(range(K), joined([batch_for(row, 99) for row in range(K)]), progress=[0.0] * K)
    assert stack.learners[1].recovery.counts.skipped == GIVE_UP_AFTER  # it learns again


def test_states_are_those_of_single_learners_and_come_back():
    stack = VectorizedLearners(learners())
    for update in range(3):
        stack.update(range(K), joined([batch_for(row, update) for row in range(K)]), progress=[0.0] * K)
    states = copy.deepcopy([learner.state_dict() for learner in stack.learners])
    other = VectorizedLearners(learners("adam"))
    for learner, state in zip(other.learners, states, strict=True):
        learner.load_state_dict(*state)
    for made in (stack, other):
        made.update(range(K), joined([batch_for(row, 5) for row in range(K)]), progress=[0.5] * K)
    assert torch.equal(stack.value, other.value)
    assert [x.report() for x in stack.learners] == [x.report() for x in other.learners]


def test_a_copy_takes_parameters_and_optimiser_and_keeps_what_is_its_own():
    stack = VectorizedLearners(learners())
    for update in range(3):
        stack.update(range(K), joined([batch_for(row, update) for row in range(K)]), progress=[0.0] * K)
    donor, recipient = stack.learners[3], stack.learners[0]
    stack.update([0], batch_for(0, 3), progress=[0.0])
    recipient.adopt(copy.deepcopy(donor.state_dict().tensors))
    recipient.tune({"learning_rate": 0.5, "entropy_cost": 0.25})
    assert torch.equal(stack.value[0], stack.value[3])
    assert torch.equal(recipient.optimiser.state["exp_avg"], donor.optimiser.state["exp_avg"])
    assert recipient.optimiser.state["step"].item() == 3
    assert (recipient.version, donor.version) == (4, 3)
    assert recipient.learning_rate(0.0) == 0.5
    assert recipient.hyper.costs[2].tolist() == [0.25]
    broken = copy.deepcopy(donor.state_dict().tensors)
    broken["network"]["policy_head.bias"][0] = torch.nan
    before = stack.value[0].clone()
    with pytest.raises(ValueError, match=r"policy_head\.bias"):
        recipient.adopt(broken)
    assert torch.equal(stack.value[0], before)


@pytest.mark.fault(20, 21)
def test_a_copy_that_cannot_learn_is_undone():
    """Its donor's parameters were finite, and broken all the same."""
    recipient, donor = learners()[:2]
    own = recipient.flat.value.clone()
    donor.flat.value.fill_(1e30)
    recipient.adopt(donor.state_dict().tensors)
    for update in range(GIVE_UP_AFTER):
        assert not recipient.update(batch_for(0, update), progress=0.0)
    assert recipient.recovery.counts.rollbacks == 1
    assert torch.equal(recipient.flat.value, own)
    assert recipient.update(batch_for(0, 99), progress=0.0)  # it learns again


def test_the_policy_answers_for_each_slot_with_its_own_member():
    stack = VectorizedLearners(learners())
    policy = StackedPolicy(stack, slots=2, seed=1)
    slots = np.array([7, 0, 3, 4])
    observation = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    nothing = np.zeros(4, np.float32)
    decision = policy.act(Seen(observation, np.zeros(4, bool), nothing, nothing, nothing[:, None][:, :0]), slots)
    for row, slot in enumerate(slots):
        seen, zero = torch.from_numpy(observation[row])[None, None], torch.zeros(1, 1)
        rows = Inputs(seen, zero.bool(), zero, zero)
        expected, _ = stack.learners[slot // 2].network(rows, torch.zeros(1, 0))
        np.testing.assert_allclose(
            decision.behaviour[row], expected.policy[0, 0].detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_what_cannot_be_stacked_is_not():
    assert can_stack(learners())
    assert not can_stack(learners()[:1])
    other_size = learners()
    other_size[2] = Learner(AgentNetwork(MLP((4,), (9, 6)), parameter_size=3), FAMILY, LOSSES[2], OptimiserConfig())
    assert not can_stack(other_size)
    other_clip = learners()
    other_clip[1].loss = LossConfig(clip_rho=2.0)
    assert not can_stack(other_clip)
    pictures = [
        Learner(AgentNetwork(CNN((1, 10, 10), 4, 8), parameter_size=3), FAMILY, loss, OptimiserConfig())
        for loss in LOSSES
    ]
    assert not can_stack(pictures)
