"""Members side by side: an adaptive online share and a bound for the policy, each of its own."""

import pytest
import torch

from laser_rl.agent.learner import Learner
from laser_rl.config import OptimiserConfig
from laser_rl.training.vectorized import VectorizedLearners, can_stack
from tests.agent.test_learner import FAMILY
from tests.training.test_stacked import LOSSES, K, batch_for, joined, network


def learners(**settings):
    losses = [loss.model_copy(update=settings) for loss in LOSSES]
    return [Learner(network(seed), FAMILY, loss, OptimiserConfig(), sources=K) for seed, loss in enumerate(losses)]


@pytest.mark.parametrize("kind", ["adaptive", "adaptive_baseline"])
def test_each_member_follows_the_share_and_the_bound_that_it_follows_alone(kind):
    settings = {"online_share": kind, "policy_trust_bound": 0.4}
    alone, stack = learners(**settings), VectorizedLearners(learners(**settings))
    assert can_stack(stack.learners)
    for update in range(6):
        batches = [batch_for(row, update) for row in range(K)]
        if update == 3:  # one that is not finite, and is not remembered
            batches[2] = batches[2]._replace(reward=torch.full_like(batches[2].reward, torch.nan))
        stack.update(range(K), joined(batches), progress=[0.0] * K)
        for learner, batch in zip(alone, batches, strict=True):
            learner.update(batch, progress=0.0)
    assert [learner.skipped for learner in stack.learners] == [0, 0, 1, 0]
    for one, other in zip(alone, stack.learners, strict=True):
        torch.testing.assert_close(one.flat.value, other.flat.value, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(one.mixing, other.mixing, rtol=2e-3, atol=1e-4)
        ours, theirs = one.report(), other.report()
        for name in ("online_share", "acceptance_policy"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)
    assert len({round(learner.mixing[-1].item(), 4) for learner in alone}) == K


def test_members_of_two_kinds_are_not_computed_side_by_side():
    mixed = [*learners()[:2], *learners(online_share="adaptive")[2:]]
    assert not can_stack(mixed)
