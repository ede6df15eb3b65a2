"""The adaptive online share: exact where everything is, a weighting of the policy's loss and of nothing else, and part of the state."""

import copy
import math

import pytest
import torch

from laser_rl.agent.learner import Learner
from laser_rl.agent.loss import hyper_of, laser_loss
from laser_rl.agent.online_share import HEAVIEST, RATE, SERVED, STATE, online_share
from laser_rl.config import Config, LossConfig, OptimiserConfig, override
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import Output
from laser_rl.ops import mixing, trust_region
from laser_rl.ops.actor_critic import actor_critic_losses
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.research import theory
from laser_rl.types import Batch
from tests.agent import test_auxiliary
from tests.agent.test_graphed import assert_same, learners, poisoned, run
from tests.agent.test_learner import ACTIONS, FAMILY, B, T, make_network, output_of, random_batch

ADAPTIVE = LossConfig(trust="off", online_share="adaptive", online_share_least=0.0, online_share_most=1.0)
INFINITE = torch.tensor(math.inf)
NUMBERS = {"online_share", "online_share_needed", "online_share_confidence"}


def fresh(members=1):
    return torch.zeros(members, STATE)


def remembering(share, rows=1e6):
    """A state that has settled on this share."""
    state = fresh()
    state[:, 0], state[:, -1] = rows, share
    return state


def loss_of(output, batch, hyper, state):
    return laser_loss(FAMILY, output, batch, hyper, torch.tensor(hyper.bound), mixing=state)


def boltzmann(seed, states=6, temperature=0.7, discount=0.8):
    """A process without chance whose policy is the softmax of its own action values: A = temperature · x everywhere."""
    rng = torch.Generator().manual_seed(seed)
    ends = torch.randint(states, (states, ACTIONS), generator=rng)
    transition = torch.nn.functional.one_hot(ends, states).double()
    mdp = theory.MDP(transition, 2 + torch.randn(states, ACTIONS, dtype=torch.float64, generator=rng), discount)
    policy = torch.full((states, ACTIONS), 1 / ACTIONS, dtype=torch.float64)
    for _ in range(3000):
        q = theory.action_values(mdp, theory.policy_value(mdp, policy))
        policy = 0.9 * policy + 0.1 * (q / temperature).softmax(-1)
    value = theory.policy_value(mdp, policy)
    q = theory.action_values(mdp, value)
    torch.testing.assert_close(policy, (q / temperature).softmax(-1))
    behaviour = theory.random_policy(states, ACTIONS, sharpness=1.5, generator=rng)
    return mdp, ends, policy, behaviour, value, q


def one_step_batch(mdp, ends, policy, behaviour, value):
    """Every action in every state as an unroll of one step: all from the replay, and all once more as online columns."""
    states, actions = mdp.reward.shape
    state, action = (
        grid.reshape(-1) for grid in torch.meshgrid(torch.arange(states), torch.arange(actions), indexing="ij")
    )
    columns = states * actions
    state, action = state.repeat(2), action.repeat(2)
    online = torch.arange(2 * columns) < columns
    mu = torch.where(online[:, None], policy[state], behaviour[state])
    rows = {"reward": mdp.reward[state, action][None], "action": action[None], "behaviour": mu.log()[None]}
    masks = {"is_transition": torch.ones(1, 2 * columns, dtype=torch.bool), "online": online}
    nothing = dict.fromkeys(("terminated", "truncated", "lost_life"), torch.zeros(1, 2 * columns, dtype=torch.bool))
    unused = dict.fromkeys(Batch._fields, torch.zeros(2 * columns))
    batch = Batch(**{**unused, **rows, **masks, **nothing, "weight": torch.ones(2 * columns)})
    following = ends[state, action]
    output = Output(
        torch.stack([policy[state], policy[following]]).log(), torch.stack([value[state], value[following]])
    )
    return batch, output, state[columns:]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("kind", "clip_rho"), [("adaptive", 1.0), ("adaptive_baseline", 1.0), ("adaptive", 1.5)])
def test_where_all_is_exact_what_is_needed_is_proposition_3(seed, kind, clip_rho):
    mdp, ends, policy, behaviour, value, q = boltzmann(seed)
    batch, output, state = one_step_batch(mdp, ends, policy, behaviour, value)
    hyper = ADAPTIVE.model_copy(update={"online_share": kind, "discount": mdp.discount, "clip_rho": clip_rho})
    found = laser_loss(FAMILY, output, batch, hyper, INFINITE, mixing=fresh().double()).numbers
    one = torch.ones(len(value), dtype=torch.float64)
    values = q if kind == "adaptive" else q - value[:, None]
    bound = theory.alpha_bound(values, theory.distortion(policy, behaviour, clip_rho=clip_rho) * values, one, one)
    expected = bound[state].sort().values[math.ceil(SERVED * len(state) - 1e-3) - 1]
    assert found["online_share_needed"].item() == pytest.approx(expected.item(), abs=1e-5)
    assert found["online_share_confidence"].item() == pytest.approx(1.0, abs=1e-6)
    assert expected > 0.05 or kind == "adaptive_baseline"  # else nothing was tested


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
def test_the_gradient_is_the_mixture_of_the_two_gradients_with_that_share(reduction, share):
    hyper = ADAPTIVE.model_copy(update={"baseline_cost": 0.0, "entropy_cost": 0.0, "reduction": reduction})
    batch, value = random_batch(3), torch.randn(T + 1, B)
    policy = torch.randn(T + 1, B, ACTIONS, requires_grad=True)

    def gradient(settings, batch, state=None):
        loss = loss_of(Output(policy, value), batch, settings, state)
        return torch.autograd.grad(loss.total, policy)[0], loss

    mixed, loss = gradient(hyper, batch, remembering(share))
    plain = hyper.model_copy(update={"online_share": "fixed", "reduction": "mean"})
    parts = [
        gradient(plain, batch._replace(is_transition=batch.is_transition & mask))[0].double()
        for mask in (batch.online, ~batch.online)
    ]
    rows = batch.is_transition.sum() if reduction == "sum" else 1
    expected = rows * (share * parts[0] + (1 - share) * parts[1])
    torch.testing.assert_close(mixed.double(), expected, rtol=1e-4, atol=1e-6)
    assert loss.numbers["online_share"].item() == pytest.approx(share)


def test_what_is_remembered_is_summed_up_over_learnable_rows_with_their_ratios():
    hyper = ADAPTIVE.model_copy(update={"trust": "implied", "trust_bound": 0.2, "clip_rho": 1.3})
    batch, output = random_batch(2), output_of(make_network(), random_batch(2))
    expected = torch.zeros(mixing.MOMENTS)
    seen = actor_critic_losses(
        FAMILY, output.policy[:-1], output.value, batch.behaviour, batch.action, batch.reward,
        torch.where(batch.terminated, 0.0, hyper.discount), batch.is_transition, batch.online,
        trust_region.kl_to_implied(FAMILY, output.policy[:-1], batch.behaviour, clip_rho=1.3) < 0.2, clip_rho=1.3,
    )  # fmt: skip
    for t in range(T):
        for b in range(B):
            if seen.policy_learnable[t, b]:
                log_pi = output.policy[t, b].detach().log_softmax(-1)
                x = (log_pi[batch.action[t, b]] - (log_pi.exp() * log_pi).sum()).item()
                y = seen.estimate.advantage[t, b].item()
                expected += min(1.3, seen.log_ratio[t, b].exp().item()) * torch.tensor([1, x, y, x * x, x * y, y * y])
    assert 0 < seen.policy_learnable.sum() < batch.is_transition.sum()
    torch.testing.assert_close(loss_of(output, batch, hyper, fresh()).mixing[0, :-1], expected, rtol=1e-4, atol=1e-4)


def test_columns_in_other_units_give_the_same():
    batch, output = random_batch(2), output_of(make_network(), random_batch(2))
    unit = torch.tensor([1.0, 10.0, 0.1, 5.0, 2.0])
    everywhere = batch.is_transition | True
    preferred = 9 * FAMILY.log_prob(output.policy[:-1], batch.action).detach()  # so that the slope is above 0
    found = []
    for scale, known in ((torch.ones(B), None), (unit, unit)):
        value = (output.value.detach() + 20) * scale
        rows = (
            batch.behaviour,
            batch.action,
            preferred * scale,
            torch.full((T, B), 0.9),
            batch.is_transition,
            batch.online,
        )
        losses = actor_critic_losses(FAMILY, output.policy[:-1], value, *rows, everywhere)
        policy = output.policy[:-1].detach()
        found.append(online_share(fresh(), FAMILY, policy, value[:-1], batch, losses, ADAPTIVE, known))
    torch.testing.assert_close(found[0].state, found[1].state)
    assert found[0].numbers["online_share_needed"].item() > 0


def test_weights_of_prioritised_draws_count():
    batch = random_batch(3)._replace(weight=torch.tensor([1.0, 1.0, 0.2, 0.7, 0.4]))
    loss = loss_of(output_of(make_network(), batch), batch, ADAPTIVE, remembering(0.4))
    assert loss.numbers["online_share"].item() == pytest.approx(0.4)
    plain = loss_of(output_of(make_network(), batch), batch, ADAPTIVE, fresh()).numbers["online_share"].item()
    rows = (batch.is_transition * batch.weight).sum(0)
    assert plain == pytest.approx((rows[:2].sum() / rows.sum()).item())


def test_neither_the_critic_nor_the_entropy_is_weighted():
    batch, hyper = random_batch(4), ADAPTIVE
    policy, value = torch.randn(T + 1, B, ACTIONS), torch.randn(T + 1, B, requires_grad=True)

    def gradient(state, **settings):
        loss = loss_of(Output(policy, value), batch, hyper.model_copy(update=settings), state)
        return torch.autograd.grad(loss.total, value)[0], loss.numbers

    weighted, numbers = gradient(remembering(0.9))
    plain, _ = gradient(None, online_share="fixed")
    assert torch.equal(weighted, plain)
    assert numbers["online_share"].item() == pytest.approx(0.9)


def test_no_row_weighs_more_than_the_heaviest():
    batch = random_batch(5)
    few = batch._replace(is_transition=batch.is_transition & (batch.online | (torch.arange(T)[:, None] == 0)))
    loss = loss_of(output_of(make_network(), few), few, ADAPTIVE, remembering(0.01))
    online, replayed = (few.is_transition & few.online).sum().item(), (few.is_transition & ~few.online).sum().item()
    assert 0.99 * (online + replayed) / replayed > HEAVIEST  # else the test is none
    own = 0.01 * (online + replayed)
    assert loss.numbers["online_share"].item() == pytest.approx(own / (own + HEAVIEST * replayed))


def test_the_first_update_is_a_plain_one_and_later_ones_follow_what_came_before():
    batch, output = random_batch(6), output_of(make_network(), random_batch(6))
    first, plain = (
        loss_of(output, batch, hyper, fresh())
        for hyper in (ADAPTIVE, ADAPTIVE.model_copy(update={"online_share": "fixed"}))
    )
    torch.testing.assert_close(first.total, plain.total)
    assert plain.mixing is None
    assert not NUMBERS & plain.numbers.keys()
    needed, trust, own = (
        first.numbers[name].item() for name in ("online_share_needed", "online_share_confidence", "online_share")
    )
    aim = own + trust * (needed - own)
    assert first.mixing[0, -1].item() == pytest.approx(own + RATE * (aim - own))
    second = loss_of(output, batch, ADAPTIVE, first.mixing)
    assert second.numbers["online_share"].item() == pytest.approx(first.mixing[0, -1].item())
    torch.testing.assert_close(second.mixing[0, :-1], (2 - RATE) * first.mixing[0, :-1])


def test_only_replayed_rows_that_the_policy_learns_from_are_asked():
    batch, output = random_batch(7), output_of(make_network(), random_batch(7))
    far = batch.behaviour.clone()
    far[:, 3:] += torch.tensor([8.0, 0.0, -8.0])
    strict = ADAPTIVE.model_copy(update={"trust": "implied", "trust_bound": 0.5})
    found = [
        loss_of(
            output, batch._replace(behaviour=behaviour, is_transition=batch.is_transition & real), strict, fresh()
        ).numbers
        for behaviour, real in ((far, True), (batch.behaviour, torch.arange(B) < 3))
    ]
    assert found[0]["acceptance"] < 0.5
    assert found[0]["online_share_needed"].item() == pytest.approx(found[1]["online_share_needed"].item(), rel=1e-4)


def test_a_batch_without_replayed_or_without_any_rows_changes_no_share():
    batch, output = random_batch(8), output_of(make_network(), random_batch(8))
    for real in (batch.is_transition & batch.online, torch.zeros_like(batch.is_transition)):
        loss = loss_of(output, batch._replace(is_transition=real), ADAPTIVE, remembering(0.3))
        assert loss.mixing[0, -1].item() == pytest.approx(0.3)
        assert loss.mixing.isfinite().all()
        assert loss.total.isfinite()


def test_members_side_by_side_have_a_share_each():
    batches = [random_batch(seed, online=1 + seed) for seed in range(2)]
    networks = [make_network(seed) for seed in range(2)]
    outputs = [output_of(*pair) for pair in zip(networks, batches, strict=True)]
    states = [remembering(0.2, rows=100.0), fresh()]
    alone = [loss_of(*one, ADAPTIVE, state) for *one, state in zip(outputs, batches, states, strict=True)]
    joined = Batch(*(torch.cat(part, dim=0 if part[0].ndim == 1 else 1) for part in zip(*batches, strict=True)))
    joined = joined._replace(state=torch.zeros(2 * B, 0))
    both = Output(*(torch.cat(part, dim=1) for part in [[o.policy for o in outputs], [o.value for o in outputs]]))
    found = laser_loss(FAMILY, both, joined, hyper_of([ADAPTIVE] * 2), INFINITE, mixing=torch.cat(states))
    torch.testing.assert_close(found.total, alone[0].total + alone[1].total)
    torch.testing.assert_close(found.mixing, torch.cat([one.mixing for one in alone]))
    for name in NUMBERS:
        torch.testing.assert_close(found.numbers[name], torch.cat([one.numbers[name] for one in alone]))


def test_without_its_state_it_is_refused():
    batch = random_batch()
    with pytest.raises(ValueError, match="needs `mixing`"):
        loss_of(output_of(make_network(), batch), batch, ADAPTIVE, None)


LEARNING = ADAPTIVE.model_copy(update={"trust": "implied", "trust_bound": 0.3, "policy_trust_bound": 0.2})


@pytest.mark.parametrize("kind", ["adaptive", "adaptive_baseline"])
def test_a_recorded_learner_is_the_watching_one_bit_for_bit(kind):
    watching, launching, recorder = learners(loss=LEARNING.model_copy(update={"online_share": kind}))
    batches = [random_batch(seed) for seed in range(25)]
    batches[4], batches[15] = poisoned(batches[4]), poisoned(batches[15])
    batches[20] = batches[20]._replace(weight=torch.full((B,), math.nan))  # only the gradient is not finite
    run((watching, launching), batches[:13])
    assert watching.mixing[0] > 0
    assert NUMBERS | {"acceptance_policy"} <= watching.report().keys()
    launching.report()
    run((watching, launching), batches[13:], begin=13)
    assert_same(watching, launching)
    assert recorder.replays > 10
    assert (launching.skipped, bool(launching.mixing.isfinite().all())) == (3, True)


def test_popart_is_recorded_too():
    loss = ADAPTIVE.model_copy(update={"popart": True, "popart_step": 1e-2})
    watching, launching, recorder = learners(test_auxiliary.vector_network, loss)
    run((watching, launching), [test_auxiliary.multitask_batch(seed) for seed in range(12)])
    assert_same(watching, launching)
    assert recorder.replays > 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_on_a_card_it_is_captured_and_nobody_waits():
    batches = [Batch(*(field.cuda() for field in random_batch(seed))) for seed in range(20)]
    eager, captured = (
        Learner(make_network().cuda(), FAMILY, LEARNING, OptimiserConfig(), graphs=graphs) for graphs in (False, True)
    )
    for learner in (eager, captured):
        for batch in batches[:10]:
            learner.update(batch, progress=0.0)
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode("error")
            for batch in batches[10:]:
                learner.update(batch, progress=0.0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert captured._launcher.recorded == 1
    torch.testing.assert_close(captured.mixing, eager.mixing, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(captured.flat.value, eager.flat.value, rtol=1e-3, atol=1e-4)
    assert captured.report()["online_share"] == pytest.approx(eager.report()["online_share"], rel=1e-3)


def test_a_state_goes_on_bit_for_bit_and_a_copy_takes_it_along():
    rates = OptimiserConfig()
    one = Learner(make_network(), FAMILY, LEARNING, rates)
    for seed in range(3):
        one.update(random_batch(seed), progress=0.0)
    tensors, numbers = copy.deepcopy(one.state_dict())
    other, adopting = (Learner(make_network(seed=9), FAMILY, LEARNING, rates) for _ in range(2))
    other.load_state_dict(tensors, numbers)
    adopting.adopt(tensors)
    assert torch.equal(adopting.mixing, one.mixing)
    for seed in range(3, 6):
        for learner in (one, other):
            learner.update(random_batch(seed), progress=0.5)
    assert one.flat.state_bytes() == other.flat.state_bytes()
    assert torch.equal(one.mixing, other.mixing)
    assert one.report() == other.report()


def test_a_fixed_share_leaves_no_trace():
    learner = Learner(make_network(), FAMILY, LossConfig(), OptimiserConfig())
    learner.update(random_batch(), progress=0.0)
    assert "mixing" not in learner.state_dict().tensors["learner"]
    assert not NUMBERS & learner.report().keys()
    assert not learner.mixing.any()


def test_a_batch_that_is_not_finite_is_not_remembered():
    learner = Learner(make_network(), FAMILY, LEARNING, OptimiserConfig())
    learner.update(random_batch(), progress=0.0)
    before = learner.mixing.clone()
    assert not learner.update(poisoned(random_batch()), progress=0.0)
    assert torch.equal(learner.mixing, before)


def test_choices_that_have_several_parts_are_enumerated():
    family = MultiCategorical((2, 3))
    batch = random_batch(9, family=family)
    loss = laser_loss(family, output_of(make_network(family=family), batch), batch, ADAPTIVE, INFINITE, mixing=fresh())
    assert loss.mixing.isfinite().all()
    joint = random_batch(9, family=family)._replace(
        action=batch.action[..., 0] * 3 + batch.action[..., 1], behaviour=family.joint_log_probs(batch.behaviour)
    )
    output = output_of(make_network(family=family), batch)
    flat = output._replace(policy=family.joint_log_probs(output.policy))
    same = laser_loss(Categorical(6), flat, joint, ADAPTIVE, INFINITE, mixing=fresh())
    for name in NUMBERS:
        torch.testing.assert_close(same.numbers[name], loss.numbers[name])


def test_what_cannot_work_is_refused_with_advice():
    family = DiagonalGaussian((-1.0,), (1.0,))
    with pytest.raises(ConfigError, match="at most 1024 actions, and here are infinitely many; use fixed"):
        Learner(make_network(family=family), family, ADAPTIVE, OptimiserConfig())
    with pytest.raises(ConfigError, match="nothing to mix"):
        override(Config(), {"online_share": "adaptive", "replay.fraction": 0.0})
    with pytest.raises(ConfigError, match="swap them"):
        override(Config(), {"online_share_least": 0.6})
    assert mixing.MOMENTS + 1 == STATE
