"""Nothing in ops makes a tensor on the wrong device: all runs on `meta` (no data, strict about devices) and on a card if there is one."""

import math

import pytest
import torch

from examples import theory
from laser_rl.ops import (
    actor_critic,
    checks,
    pixel_control,
    popart,
    priority,
    rewards,
    rmsprop,
    trust_region,
    vtrace,
)
from laser_rl.ops import (
    recurrence as memory,
)
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from tests.ops.inputs import make_rows, normal

CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
FAMILIES = [Categorical(5), MultiCategorical((3, 2)), DiagonalGaussian((-1.0, -math.inf), (1.0, math.inf))]


def everything(device, dtype=torch.float64):
    """One result of every function that takes tensors; random draws are left out."""

    def to(tensor):
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    batch = make_rows(7, 3, 0)
    rows = [to(tensor) for tensor in batch.arguments]
    _, learnable, reward, discount, *_ = rows
    task, online = to(torch.tensor([0, 1, 0])), to(torch.tensor([True, False, True]))
    action = to(torch.arange(21).reshape(7, 3) % 2)
    statistics = popart.Statistics(*(part.to(device) for part in popart.initial(2)))
    new = popart.update(statistics, popart.sums(reward, task, learnable, tasks=2))
    q, cumulant = to(normal(0, 8, 3, 2, 2, 2)), to(normal(1, 7, 3, 2, 2))
    pictures = torch.arange(2 * 3 * 64).reshape(2, 3, 1, 8, 8).to(device, torch.uint8)
    priorities = priority.probabilities(to(normal(2, 4).abs()), total=5.0, stored=4, uniform_share=0.1)
    moved, state = reward.clone(), rmsprop.initial(reward)
    rmsprop.update(moved, reward, state, to(torch.tensor(True)), learning_rate=to(torch.tensor(0.1)))
    results = [
        *vtrace.vtrace(*rows), *new,
        *popart.rescale(popart.Layer(to(normal(3, 2, 4)), to(normal(4, 2))), statistics, new),
        popart.unnormalise(new, popart.normalise(new, reward, task), task),
        pixel_control.cumulants(pictures), pixel_control.q_loss(q, action, cumulant, discount, learnable),
        rewards.clip(reward), rewards.dmlab_squash(reward), priorities, priority.weights(priorities, stored=4, exponent=0.5),
        moved, state.mean_square,
        memory.unroll(lambda x, s: x + s, reward, learnable, reward[0]),
        trust_region.adapt_bound(to(torch.tensor(0.1)), learnable.float().mean(), target=0.5),
    ]  # fmt: skip
    for family in FAMILIES:
        policy, behaviour = to(normal(5, 7, 3, family.parameter_size)), to(normal(6, 7, 3, family.parameter_size))
        relevance = trust_region.kl_to_behaviour(family, policy, behaviour)
        chosen = family.mode(policy)
        if family.joint_size is not None:
            relevance = trust_region.kl_to_implied(family, policy, behaviour)
        losses = actor_critic.actor_critic_losses(
            family,
            policy,
            to(batch.value),
            behaviour,
            chosen,
            reward,
            discount,
            learnable,
            online,
            trust_region.within(relevance, 0.5),
        )
        total = actor_critic.reduce(losses.policy + losses.value + losses.entropy, losses.learnable, "mean")
        results += [relevance, total, family.to_environment(chosen)]
    return results


def test_no_function_mixes_devices():
    with checks.unchecked():
        assert all(result.device.type == "meta" for result in everything("meta"))


def test_theory_stays_on_its_device():
    table = torch.empty(3, 2, device="meta")
    mdp = theory.MDP(torch.empty(3, 2, 3, device="meta"), table, 0.9)
    with checks.unchecked():
        operator = theory.expected_return(mdp, table, table, table[:, 0] > 0, steps=2)
    assert operator.matrix.device.type == operator.offset.device.type == "meta"


def test_draws_stay_on_their_device():
    with checks.unchecked():
        for family in FAMILIES:
            assert family.sample(torch.empty(3, family.parameter_size, device="meta")).device.type == "meta"


@CARD
def test_a_card_gives_the_same_numbers():
    for here, there in zip(everything("cpu"), everything("cuda"), strict=True):
        tolerance = 1e-6 if here.dtype == torch.float32 else 1e-10  # bytes are averaged in float32
        torch.testing.assert_close(there.cpu(), here, rtol=tolerance, atol=tolerance)


@CARD
def test_samples_on_a_card_follow_the_probabilities():
    logits = torch.tensor([0.0, 1.0, -1.0], device="cuda")
    counts = torch.bincount(Categorical(3).sample(logits.expand(300_000, 3)), minlength=3)
    torch.testing.assert_close(counts.cpu() / 300_000, logits.softmax(-1).cpu(), atol=0.005, rtol=0)
