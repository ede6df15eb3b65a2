"""PopArt and PixelControl in the loss: in the right order, through the trust region, against naive twins."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from laser_rl.agent.learner import Learner
from laser_rl.agent.loss import laser_loss
from laser_rl.agent.parameters import GIVE_UP_AFTER
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.networks.heads import of_task
from laser_rl.ops import popart
from laser_rl.ops.actor_critic import actor_critic_losses
from laser_rl.ops.distributions import Categorical
from tests.agent.test_learner import ACTIONS, B, T, random_batch
from tests.networks.make import build_network

TASKS = ("one", "two", "three")
FAMILY = Categorical(ACTIONS)
PICTURE = (3, 12, 8)


def vector_network(seed=1):
    torch.manual_seed(seed)
    spec = EnvironmentSpec("x", ObservationSpec((4,)), DiscreteActions(ACTIONS), TASKS)
    net = build_network(spec, hidden=(8,), popart=True)
    nn.init.orthogonal_(net.policy_head.weight)
    return net


def multitask_batch(seed=0):
    batch = random_batch(seed)
    task = torch.tensor([0, 1, 2, 1, 0], dtype=torch.int32)
    return batch._replace(task=task, reward=batch.reward * torch.tensor([1.0, 100.0, 0.01])[task.long()])


def values(net, batch):
    with torch.no_grad():
        output, _ = net(batch.inputs, batch.state)
        return net.popart.value(output.value, batch.task)


def test_popart_preserves_every_value_at_every_update():
    """All that moves a value in an update is the gradient: with a rate of nothing, nothing moves, however far the statistics do."""
    rates = OptimiserConfig(kind="adam", learning_rate=1e-30)
    learner = Learner(vector_network(), FAMILY, LossConfig(popart=True, popart_step=1e-2, trust="off"), rates)
    for update in range(30):
        batch = multitask_batch(update)
        before, mean = values(learner.network, batch), learner.network.popart.mean.clone()
        assert learner.update(batch, progress=0.0)
        assert not torch.equal(learner.network.popart.mean, mean)
        after = values(learner.network, batch)
        mean, unit = (
            part.abs()[batch.task.long()]
            for part in (learner.network.popart.mean, popart.sigma(learner.network.popart.statistics))
        )
        span = torch.maximum(before.abs(), torch.maximum(mean, unit)).clamp(min=1.0)  # float32 has no more digits
        assert ((after - before).abs() / span).max().item() <= 1e-6


def test_the_losses_are_those_of_the_new_units_taken_after_the_rescaling():
    """A twin written down in one place: V-trace in old units, statistics, layer, then losses. Each wrong order gives other numbers."""
    batch, hyper = multitask_batch(), LossConfig(popart=True, popart_step=0.01, trust="off", entropy_cost=0.0)
    net = vector_network()
    net.popart.mean.copy_(torch.tensor([0.5, -3.0, 0.0]))
    net.popart.mean_square.copy_(torch.tensor([4.0, 25.0, 1e-4]))
    twin = copy.deepcopy(net)
    bound = torch.tensor(torch.inf)
    output, _ = net(batch.inputs, batch.state)
    loss = laser_loss(FAMILY, output, batch, hyper, bound, network=net)
    loss.total.backward()

    old = twin.popart.statistics
    out, _ = twin(batch.inputs, batch.state)
    raw = popart.sigma(old)[batch.task.long()] * of_task(out.value, batch.task) + old.mean[batch.task.long()]
    discount = torch.where(batch.terminated, 0.0, hyper.discount)
    every = torch.ones(T, B, dtype=torch.bool)
    losses = actor_critic_losses(
        FAMILY,
        out.policy[:-1],
        raw.float(),
        batch.behaviour,
        batch.action,
        batch.reward,
        discount,
        batch.is_transition,
        batch.online,
        every,
    )
    target, learnable = losses.estimate.target, losses.learnable
    new = popart.update(old, popart.sums(target, batch.task, learnable, tasks=len(old.mean)), step=0.01)
    layer = popart.rescale(popart.Layer(twin.popart.weight, twin.popart.bias), old, new)
    weight, bias = (part.clone().requires_grad_() for part in layer)
    normalised = of_task(out.features @ weight.T + bias, batch.task)[:-1]
    aim = (target - new.mean[batch.task.long()]) / popart.sigma(new)[batch.task.long()]
    error = torch.where(learnable, aim.float() - normalised, 0.0)
    advantage = losses.policy / popart.sigma(new)[batch.task.long()]
    count = learnable.sum()
    expected = advantage.sum() / count + 0.5 * 0.5 * error.square().sum() / count
    np.testing.assert_allclose(loss.total.item(), expected.item(), rtol=1e-5)
    expected.backward()
    torch.testing.assert_close(net.popart.weight, weight, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(net.popart.weight.grad, weight.grad.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(net.popart.bias.grad, bias.grad.float(), rtol=1e-4, atol=1e-6)
    torso, other = net.torso.layers[1].weight.grad, twin.torso.layers[1].weight.grad
    torch.testing.assert_close(torso, other, rtol=1e-4, atol=1e-6)


def test_each_tasks_statistics_follow_its_own_trusted_targets():
    learner = Learner(
        vector_network(), FAMILY, LossConfig(popart=True, trust="off"), OptimiserConfig(learning_rate=1e-9)
    )
    only = torch.tensor([True, False, False, False, False])
    batch = multitask_batch()
    batch = batch._replace(is_transition=batch.is_transition & only)
    learner.update(batch, progress=0.0)
    moved = learner.network.popart.mean != 0
    assert moved.tolist() == [True, False, False]


def test_statistics_are_part_of_state_copy_and_roll_back():
    def learner(seed):
        return Learner(vector_network(seed), FAMILY, LossConfig(popart=True), OptimiserConfig())

    one, other, third = learner(1), learner(2), learner(3)
    for seed in range(3):
        one.update(multitask_batch(seed), progress=0.0)
    kept, own = one.state_dict(), other.network.popart.mean.clone()
    other.adopt(kept.tensors)
    third.load_state_dict(kept.tensors, kept.numbers)
    for copied in (other, third):
        assert torch.equal(copied.network.popart.mean, one.network.popart.mean)
        assert torch.equal(copied.network.popart.mean_square, one.network.popart.mean_square)
    for _ in range(GIVE_UP_AFTER):
        other.recovery.count(1, learned=False)  # a copy that has not learned yet: back to what was its own
    assert other.recovery.counts[1:] == (0, 1)  # it counts anew after one way back
    assert torch.equal(other.network.popart.mean, own)


def test_an_update_that_fails_does_not_spoil_the_statistics():
    learner = Learner(vector_network(), FAMILY, LossConfig(popart=True, trust="off"), OptimiserConfig())
    batch = multitask_batch()
    batch.reward[0, 0] = torch.inf
    assert not learner.update(batch, progress=0.0)
    assert learner.network.popart.mean.isfinite().all()
    assert learner.update(multitask_batch(1), progress=0.0)


def picture_batch(seed=0):
    batch = random_batch(seed)
    g = torch.Generator().manual_seed(seed)
    observation = torch.randint(0, 256, (T + 1, B, *PICTURE), generator=g, dtype=torch.int64).to(torch.uint8)
    return batch._replace(observation=observation)


def picture_network(seed=1):
    torch.manual_seed(seed)
    spec = EnvironmentSpec("x", ObservationSpec(PICTURE, "uint8", 1 / 255), DiscreteActions(ACTIONS))
    net = build_network(spec, torso="tiles", channels=4, hidden=(8,), pixel_control_cell=4)
    nn.init.orthogonal_(net.policy_head.weight)
    return net


def naive_pixel_loss(q, batch, learnable, discount):
    """Plain loops over every step, column and cell."""
    total, pictures = 0.0, batch.observation.double() / 255
    for b in range(B):
        for row in range(PICTURE[1] // 4):
            for column in range(PICTURE[2] // 4):
                cell = pictures[:, b, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                for t in range(T):
                    if not learnable[t, b]:
                        continue
                    target, factor, s = 0.0, 1.0, t
                    while True:
                        target += factor * (cell[s + 1] - cell[s]).abs().mean().item()
                        factor *= 0.0 if batch.terminated[s, b] else discount
                        s += 1
                        if s == T or not learnable[s, b]:
                            target += factor * q[s, b, :, row, column].max().item()
                            break
                    total += 0.5 * (target - q[t, b, batch.action[t, b], row, column].item()) ** 2
    return total


@pytest.mark.parametrize("bound", [torch.inf, 0.3])
def test_pixel_control_agrees_with_plain_loops_and_obeys_the_trust_region(bound):
    batch, net = picture_batch(), picture_network()
    hyper = LossConfig(pixel_control_cost=0.5, reduction="sum", trust_bound=1.0)
    output, _ = net(batch.inputs, batch.state, auxiliary=True)
    loss = laser_loss(FAMILY, output, batch, hyper, torch.tensor(bound), network=net)
    assert 0 < loss.learnable.sum() < T * B
    expected = naive_pixel_loss(output.pixel_q.double(), batch, loss.learnable, 0.9)
    np.testing.assert_allclose(loss.numbers["pixel_control_loss"].item(), expected, rtol=1e-4)
    without = laser_loss(FAMILY, output._replace(pixel_q=None), batch, hyper, torch.tensor(bound), network=net)
    np.testing.assert_allclose((loss.total - without.total).item(), 0.5 * expected, rtol=1e-3)


def test_pixel_control_is_weighted_like_the_other_losses():
    batch, net = picture_batch(), picture_network()
    output, _ = net(batch.inputs, batch.state, auxiliary=True)
    hyper, bound = LossConfig(pixel_control_cost=0.5, entropy_cost=0.0), torch.tensor(torch.inf)
    one, three = (
        laser_loss(FAMILY, output, batch._replace(weight=torch.full((B,), weight)), hyper, bound, network=net)
        for weight in (1.0, 3.0)
    )
    np.testing.assert_allclose(three.total.item(), 3 * one.total.item(), rtol=1e-5)


def test_rejected_rows_send_no_gradient_into_the_pixel_head():
    batch, net = picture_batch(), picture_network()
    output, _ = net(batch.inputs, batch.state, auxiliary=True)
    loss = laser_loss(FAMILY, output, batch, LossConfig(pixel_control_cost=1.0), torch.tensor(1e-9), network=net)
    loss.total.backward()
    assert not loss.learnable.any()
    assert all(p.grad is None or p.grad.abs().sum() == 0 for p in net.pixel_control.parameters())


def test_a_learner_learns_to_predict_the_changes():
    # Without a future the targets stand still.
    loss = LossConfig(pixel_control_cost=1.0, pixel_control_discount=0.0, trust="off", baseline_cost=0.0)
    learner = Learner(picture_network(), FAMILY, loss, OptimiserConfig(learning_rate=3e-3))
    batch = picture_batch()
    first = None
    for _ in range(40):
        learner.update(batch, progress=0.0)
        number = learner.report()["pixel_control_loss"]
        first = first or number
    assert number < 0.5 * first
