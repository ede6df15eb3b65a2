import torch
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.ops import popart
from tests.ops.inputs import assert_same, generator, make_rows, normal, rows, seeds
from tests.references import popart as twin


def moved(statistics, target, task, learnable, **step):
    return popart.update(statistics, popart.sums(target, task, learnable, tasks=len(statistics.mean)), **step)


def statistics(seed, tasks=3):
    mean = 5 * normal(seed, tasks)
    return popart.Statistics(mean, mean.square() + normal(seed + 1, tasks).square() + 0.1)


def arrays(state):
    return state.mean.numpy(), state.mean_square.numpy()


@given(rows(), seeds, st.sampled_from([3e-4, 0.1, 1.0]))
def test_update_agrees_with_its_twin(batch, seed, step):
    state = statistics(seed)
    task = torch.randint(2, (batch.reward.shape[1],), generator=generator(seed))  # task 2 has no target
    new = moved(state, batch.reward, task, batch.learnable, step=step)
    expected = twin.updated(*arrays(state), batch.reward.numpy(), task.numpy(), batch.learnable.numpy(), step)
    for ours, theirs in zip(new, expected, strict=True):
        assert_same(ours, theirs)
    assert new.mean[2] == state.mean[2]


def test_default_step_is_the_published_one():
    batch = make_rows(4, 2, 0)
    arguments = popart.initial(1), batch.reward, torch.zeros(2, dtype=torch.long), batch.learnable
    assert torch.equal(moved(*arguments).mean, moved(*arguments, step=3e-4).mean)


def test_update_ignores_what_is_not_learnable():
    batch = make_rows(5, 2, 1)
    task = torch.tensor([0, 1])
    dirty = batch.reward.masked_fill(~batch.learnable, torch.nan)
    for clean, other in zip(
        moved(statistics(0), batch.reward, task, batch.learnable),
        moved(statistics(0), dirty, task, batch.learnable),
        strict=True,
    ):
        assert torch.equal(clean, other)


@given(seeds)
def test_sigma_agrees_with_its_twin(seed):
    state = statistics(seed)
    assert_same(popart.sigma(state), twin.sigma(*arrays(state)))


def test_sigma_stays_within_its_bounds():
    mean = torch.zeros(3, dtype=torch.float64)
    extremes = popart.Statistics(mean, torch.tensor([0.0, -1.0, 1e20], dtype=torch.float64))
    assert_same(popart.sigma(extremes), [1e-4, 1e-4, 1e6])


@given(seeds, seeds)
def test_rescaling_preserves_outputs(seed, other_seed):
    old, new = statistics(seed), statistics(other_seed)
    layer = popart.Layer(normal(seed, 3, 5), normal(seed + 2, 3))
    rescaled = popart.rescale(layer, old, new)
    hidden = normal(seed + 3, 7, 5)
    before = popart.sigma(old) * (hidden @ layer.weight.T + layer.bias) + old.mean
    after = popart.sigma(new) * (hidden @ rescaled.weight.T + rescaled.bias) + new.mean
    assert_same(after, before)
    expected = twin.rescaled(
        layer.weight.numpy(), layer.bias.numpy(),
        old.mean.numpy(), popart.sigma(old).numpy(), new.mean.numpy(), popart.sigma(new).numpy(),
    )  # fmt: skip
    for ours, theirs in zip(rescaled, expected, strict=True):
        assert_same(ours, theirs)


@given(seeds)
def test_units_there_and_back(seed):
    state, value, task = statistics(seed), normal(seed, 4, 5), torch.tensor([0, 1, 2, 1, 0])
    normalised = popart.normalise(state, value, task)
    assert_same(
        normalised, twin.normalised(value.numpy(), task.numpy(), state.mean.numpy(), popart.sigma(state).numpy())
    )
    assert_same(popart.unnormalise(state, normalised, task), value)
    assert_same(
        popart.unnormalise(state, value, task),
        twin.unnormalised(value.numpy(), task.numpy(), state.mean.numpy(), popart.sigma(state).numpy()),
    )


def test_networks_in_float32_keep_their_type_while_statistics_stay_exact():
    state = popart.initial(2)
    assert state.mean.dtype == state.mean_square.dtype == torch.float64
    target = torch.full((50, 2), 1e4) + torch.randn(50, 2, generator=generator(0))
    new = moved(state, target, torch.tensor([0, 1]), torch.ones(50, 2, dtype=torch.bool), step=1.0)
    assert_same(popart.sigma(new), target.double().std(0, correction=0), 1e-6)
    layer = popart.rescale(popart.Layer(torch.ones(2, 3), torch.ones(2)), state, new)
    assert {part.dtype for part in layer} == {torch.float32}
    assert popart.normalise(new, target, torch.tensor([0, 1])).dtype == torch.float32
    assert popart.unnormalise(new, target, torch.tensor([0, 1])).dtype == torch.float32


def test_no_gradient_flows_into_statistics_or_rescaled_layers():
    value = normal(0, 4, 2).requires_grad_()
    mask, task = torch.ones(4, 2, dtype=torch.bool), torch.tensor([0, 1])
    new = moved(popart.initial(2), value, task, mask)
    layer = popart.Layer(normal(1, 2, 3).requires_grad_(), normal(2, 2).requires_grad_())
    assert not any(part.requires_grad for part in (*new, *popart.rescale(layer, popart.initial(2), new)))
    assert torch.autograd.gradcheck(lambda v: popart.normalise(new, v, task), [value])
    assert torch.autograd.gradcheck(lambda v: popart.unnormalise(new, v, task), [value])


def test_targets_become_standard_in_the_long_run():
    state = popart.initial(1)
    for seed in range(300):
        target = 40 + 7 * normal(seed, 20, 4)
        state = moved(state, target, torch.zeros(4, dtype=torch.long), torch.ones(20, 4, dtype=torch.bool))
    normalised = popart.normalise(state, 40 + 7 * normal(999, 500, 4), torch.zeros(4, dtype=torch.long))
    assert abs(normalised.mean()) < 0.1
    assert abs(normalised.std() - 1) < 0.1
