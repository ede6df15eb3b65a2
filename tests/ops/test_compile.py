"""The whole loss under torch.compile: the same numbers, one graph, no check inside, and work that does not grow with every step of time."""

import subprocess
import sys

import pytest
import torch
from torch._inductor import metrics

from laser_rl.ops import actor_critic, checks, pixel_control, trust_region
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.ops.recurrence import backward_recurrence
from tests.ops.inputs import generator, make_rows, normal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_in_production")]
FAMILIES = [Categorical(5), MultiCategorical((3, 2)), DiagonalGaussian((-1.0, -2.0), (1.0, 2.0))]


def laser_loss(family, policy, value, behaviour, action, reward, discount, is_transition, online, bound):
    """Relevance, trust, V-trace, losses and their weighted sum: what a learner differentiates."""
    relevance = trust_region.kl_to_behaviour(family, policy, behaviour)
    if family.joint_size is not None:
        relevance = trust_region.kl_to_implied(family, policy, behaviour)
    trusted = trust_region.within(relevance, bound)
    losses = actor_critic.actor_critic_losses(
        family, policy, value, behaviour, action, reward, discount, is_transition, online, trusted
    )
    return sum(
        weight * actor_critic.reduce(loss, losses.learnable, "sum")
        for weight, loss in ((1.0, losses.policy), (0.5, losses.value), (0.01, losses.entropy))
    )


def make_inputs(family, steps=12, batch=4):
    rows = make_rows(steps, batch, 0)
    policy = normal(0, steps, batch, family.parameter_size)
    behaviour = policy + 0.3 * normal(1, steps, batch, family.parameter_size)
    action = family.sample(behaviour, generator(0))
    online = torch.arange(batch) < batch // 2
    constants = action, rows.reward, rows.discount, rows.learnable, online, torch.tensor(0.05, dtype=torch.float64)
    return policy, rows.value, behaviour, constants


OTHERS = [*((family, 12) for family in FAMILIES[1:]), (FAMILIES[0], 40)]


@pytest.mark.parametrize(
    ("family", "steps"), [(FAMILIES[0], 12), *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)]
)
def test_compiled_and_eager_losses_and_gradients_are_the_same_numbers(family, steps):
    policy, value, behaviour, constants = make_inputs(family, steps)
    results = []
    for loss in (laser_loss, torch.compile(laser_loss, fullgraph=True)):
        leaves = [tensor.clone().requires_grad_() for tensor in (policy, value)]
        total = loss(family, leaves[0], leaves[1], behaviour, *constants)
        results.append((total.detach(), *torch.autograd.grad(total, leaves)))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


def kernels_of(function, *inputs):
    torch._dynamo.reset()
    metrics.reset()
    torch.compile(function, fullgraph=True)(*inputs)
    return metrics.generated_kernel_count


def test_a_short_recursion_is_one_kernel_and_a_long_one_grows_with_the_logarithm_of_time():
    counts = [kernels_of(backward_recurrence, normal(0, steps, 4), normal(1, steps, 4)) for steps in (20, 40, 160)]
    assert counts[0] == 1
    assert 1 < counts[1] <= counts[2] <= counts[1] + 3 * 2  # two doublings more, of at most three kernels


def test_a_compiled_step_contains_no_check(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a check ran")

    family = FAMILIES[0]
    policy, value, behaviour, constants = make_inputs(family, steps=7, batch=2)
    for name in ("require", "rows", "numbers", "same_shape", "finite", "boolean"):
        monkeypatch.setattr(checks, name, forbidden)
    torch._dynamo.reset()
    compiled = torch.compile(laser_loss, fullgraph=True, backend="eager")
    compiled(family, policy, value, behaviour, *constants)
    with pytest.raises(AssertionError, match="a check ran"):
        laser_loss(family, policy, value, behaviour, *constants)


def test_pixel_control_compiles_to_the_same_numbers():
    rows = make_rows(6, 2, 1)
    q, cumulant = normal(0, 7, 2, 3, 2, 2), normal(1, 6, 2, 2, 2)
    action = torch.randint(3, (6, 2), generator=generator(0))
    arguments = q, action, cumulant, rows.discount, rows.learnable
    compiled = torch.compile(pixel_control.q_loss, fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), pixel_control.q_loss(*arguments), rtol=1e-12, atol=1e-12)


def test_the_hook_that_checks_shapes_is_not_part_of_the_package():
    command = "import laser_rl.ops.vtrace, sys; sys.exit('beartype' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False, timeout=60).returncode == 0
