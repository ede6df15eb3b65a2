"""A trust region of its own for the policy: another threshold on the same relevance."""

import pytest
import torch

from laser_rl.agent.learner import Learner
from laser_rl.agent.loss import hyper_of, laser_loss
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.networks.agent_network import Output
from laser_rl.ops import trust_region
from tests.agent.test_graphed import assert_same, learners, run
from tests.agent.test_learner import ACTIONS, FAMILY, B, T, make_network, random_batch


def moved(batch, hyper):
    """Which rows of the policy and of the value a loss moves."""
    torch.manual_seed(0)
    policy = torch.randn(T + 1, B, ACTIONS, requires_grad=True)
    value = torch.randn(T + 1, B, requires_grad=True)
    loss = laser_loss(FAMILY, Output(policy, value), batch, hyper, torch.tensor(hyper.bound))
    of_policy, of_value = torch.autograd.grad(loss.total, (policy, value))
    relevance = {"implied": trust_region.kl_to_implied, "behaviour": trust_region.kl_to_behaviour}[hyper.trust]
    found = relevance(FAMILY, policy[:-1].detach(), batch.behaviour)
    return (of_policy[:-1] != 0).any(-1), of_value[:-1] != 0, found, loss


@pytest.mark.parametrize("trust", ["implied", "behaviour"])
@pytest.mark.parametrize(("bound", "own"), [(0.5, 0.1), (0.1, 0.5)])
def test_each_learns_from_the_rows_below_its_own_bound(trust, bound, own):
    batch = random_batch(1)
    hyper = LossConfig(trust=trust, trust_bound=bound, policy_trust_bound=own)
    policy, value, relevance, loss = moved(batch, hyper)
    assert torch.equal(policy, batch.is_transition & (relevance < own))
    assert torch.equal(value, batch.is_transition & (relevance < bound))
    replayed = batch.is_transition & ~batch.online
    for name, limit in (("acceptance", bound), ("acceptance_policy", own)):
        share = (replayed & (relevance < limit)).sum() / replayed.sum()
        assert loss.numbers[name].item() == pytest.approx(share.item())
    assert (policy != value).any()


def test_a_step_rejected_for_the_policy_still_trains_the_value_by_hand():
    """One step of one unroll, by hand: π = (1/2, 1/2), μ = (9/10, 1/10), the rarer action paid 5."""
    batch = random_batch(0)
    one = torch.ones(1, 1, dtype=torch.bool)
    behaviour = torch.tensor([[[0.9, 0.1]]]).log()
    rows = {"reward": torch.tensor([[5.0]]), "action": torch.ones(1, 1, dtype=torch.long), "behaviour": behaviour}
    ended = {
        "terminated": one,
        "lost_life": ~one,
        "is_transition": one,
        "online": one[0] & False,
        "weight": torch.ones(1),
    }
    batch = batch._replace(**rows, **ended)
    policy, value = torch.zeros(2, 1, 2, requires_grad=True), torch.ones(2, 1, requires_grad=True)
    # Z = 0.5 + 0.1, KL = log Z + 0.5·log(0.5/0.1) = 0.294
    for own, learned in ((0.29, False), (0.30, True)):
        hyper = LossConfig(trust_bound=1.0, policy_trust_bound=own, baseline_cost=1.0)
        loss = laser_loss(FAMILY2, Output(policy, value), batch, hyper, torch.tensor(1.0))
        of_policy, of_value = torch.autograd.grad(loss.total, (policy, value))
        # ρ = min(1, 5) = 1: the target is the reward, the error 4, and −4·∇log π(1) = −4·(−1/2, 1/2).
        torch.testing.assert_close(of_value[:, 0], torch.tensor([-4.0, 0.0]))
        torch.testing.assert_close(of_policy[0, 0], torch.tensor([2.0, -2.0]) if learned else torch.zeros(2))


FAMILY2 = type(FAMILY)(2)


@pytest.mark.parametrize("trust", ["implied", "behaviour"])
@pytest.mark.parametrize("target", [None, 0.5])
def test_equal_bounds_change_no_bit(trust, target):
    plain = LossConfig(trust=trust, trust_bound=0.3, target_acceptance=target)
    one, other = (
        Learner(make_network(), FAMILY, loss, OptimiserConfig())
        for loss in (plain, plain.model_copy(update={"policy_trust_bound": 0.3}))
    )
    for seed in range(12):
        for learner in (one, other):
            learner.update(random_batch(seed), progress=0.0)
    assert one.flat.state_bytes() == other.flat.state_bytes()
    ours, theirs = one.report(), other.report()
    assert theirs.pop("acceptance_policy") == ours["acceptance"]
    assert ours == theirs


def test_where_the_bound_follows_an_acceptance_the_ratio_stays():
    loss = LossConfig(target_acceptance=0.9, trust_bound=0.01, policy_trust_bound=0.005)
    learner = Learner(make_network(), FAMILY, loss, OptimiserConfig(learning_rate=1e-9))
    for seed in range(300):
        learner.update(random_batch(seed % 20), progress=0.0)
    assert learner.setting("trust_bound") > 0.05
    assert learner.setting("policy_trust_bound") == pytest.approx(learner.setting("trust_bound") / 2)
    numbers = learner.report()
    assert 0 < numbers["acceptance_policy"] < numbers["acceptance"]


def test_tuning_one_bound_leaves_the_other_where_it_was():
    learner = Learner(make_network(), FAMILY, LossConfig(trust_bound=0.1, policy_trust_bound=0.05), OptimiserConfig())
    learner.tune({"trust_bound": 0.4})
    assert learner.setting("policy_trust_bound") == pytest.approx(0.05)
    learner.tune({"policy_trust_bound": 0.2})
    assert [learner.setting(name) for name in ("trust_bound", "policy_trust_bound")] == pytest.approx([0.4, 0.2])


def test_members_side_by_side_have_bounds_of_their_own():
    losses = [LossConfig(trust_bound=bound, policy_trust_bound=0.05) for bound in (0.1, 0.2)]
    torch.testing.assert_close(hyper_of(losses).policy_bound_ratio, torch.tensor([0.5, 0.25]))
    assert hyper_of([LossConfig()]).policy_bound_ratio is None


def test_it_can_be_recorded():
    watching, launching, recorder = learners(
        loss=LossConfig(trust_bound=0.3, policy_trust_bound=0.1, target_acceptance=0.6)
    )
    run((watching, launching), [random_batch(seed) for seed in range(15)])
    assert_same(watching, launching)
    assert recorder.replays > 5


def test_without_a_trust_region_there_is_none_to_part_from():
    with pytest.raises(ValueError, match="trust is off, so policy_trust_bound means nothing"):
        LossConfig(trust="off", policy_trust_bound=0.1)
