import torch
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.ops import pixel_control
from tests.ops.inputs import assert_same, generator, make_rows, normal, rows, seeds
from tests.references import pixel_control as twin


@given(seeds, st.sampled_from([1, 2, 4]), st.booleans())
def test_cumulants_agree_with_their_twin(seed, cell, as_bytes):
    shape = (4, 2, 3, 8, 4)
    if as_bytes:
        observation = torch.randint(0, 256, shape, generator=generator(seed), dtype=torch.uint8)
        tolerance = 1e-6  # bytes are averaged in float32
    else:
        observation = torch.rand(shape, generator=generator(seed), dtype=torch.float64)
        tolerance = 1e-10
    assert_same(pixel_control.cumulants(observation, cell=cell), twin.cumulants(observation.numpy(), cell), tolerance)


def test_cells_are_of_four_pixels_by_default():
    assert pixel_control.cumulants(torch.zeros(2, 1, 1, 84, 84)).shape == (1, 1, 21, 21)


def test_a_darker_picture_has_changed_as_much_as_a_brighter_one():
    frames = torch.tensor([0, 255, 0], dtype=torch.uint8).reshape(3, 1, 1, 1, 1).expand(3, 1, 1, 4, 4)
    assert pixel_control.cumulants(frames).flatten().tolist() == [1.0, 1.0]


@given(seeds, st.integers(1, 4))
def test_dueling_agrees_with_its_twin(seed, actions):
    value, advantage = normal(seed, 2, 1, 3, 4), normal(seed + 1, 2, actions, 3, 4)
    ours = pixel_control.dueling(value[None], advantage[None])[0]
    for row in range(2):
        assert_same(ours[row], twin.dueling(value[row, 0].numpy(), advantage[row].numpy()))
    assert_same(ours.mean(1, keepdim=True), value)


@given(rows(most_steps=6), seeds)
def test_targets_and_loss_agree_with_their_twins(batch, seed):
    steps, width = batch.reward.shape
    q, cumulant = normal(seed, steps + 1, width, 3, 2, 1), normal(seed + 1, steps, width, 2, 1)
    action = torch.randint(3, (steps, width), generator=generator(seed))
    mask = batch.learnable
    arrays = cumulant.numpy(), batch.discount.numpy(), mask.numpy()
    targets = pixel_control.q_targets(q, cumulant, batch.discount, mask)
    assert_same(targets[mask], twin.q_targets(q.numpy(), *arrays)[mask.numpy()])
    loss = pixel_control.q_loss(q, action, cumulant, batch.discount, mask)
    assert_same(loss, twin.q_loss(q.numpy(), action.numpy(), *arrays))


def test_gradients_are_the_numerical_ones_and_leave_targets_alone():
    batch = make_rows(4, 2, 0)
    q, cumulant = normal(0, 5, 2, 3, 1, 2), normal(1, 4, 2, 1, 2)
    action = torch.randint(3, (4, 2), generator=generator(0))
    targets = pixel_control.q_targets(q.requires_grad_(), cumulant, batch.discount, batch.learnable)
    assert not targets.requires_grad
    ours = torch.autograd.grad(pixel_control.q_loss(q, action, cumulant, batch.discount, batch.learnable).sum(), q)[0]
    expected = torch.zeros_like(q)
    for t in range(4):
        for b in range(2):
            if batch.learnable[t, b]:
                expected[t, b, action[t, b]] = q[t, b, action[t, b]] - targets[t, b]
    assert_same(ours, expected.detach())
    advantage = normal(2, 2, 3, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(pixel_control.dueling, [normal(3, 2, 1, 2, 2).requires_grad_(), advantage])


def test_whatever_stands_in_a_row_that_is_not_learnable_stays_there():
    batch = make_rows(6, 2, 1)
    q, cumulant = normal(0, 7, 2, 2, 1, 1), normal(1, 6, 2, 1, 1)
    action = torch.zeros(6, 2, dtype=torch.long)
    off = ~batch.learnable
    dirty = pixel_control.q_loss(
        q,
        action,
        cumulant.masked_fill(off[..., None, None], torch.nan),
        batch.discount.masked_fill(off, torch.inf),
        batch.learnable,
    )
    assert torch.equal(dirty, pixel_control.q_loss(q, action, cumulant, batch.discount, batch.learnable))
    assert (dirty[off] == 0).all()


def test_the_return_stops_at_a_rejected_row_and_takes_its_best_value():
    q = torch.arange(8, dtype=torch.float64).reshape(4, 1, 2, 1, 1)  # best values 1, 3, 5, 7
    mask = torch.tensor([[True], [False], [True]])
    targets = pixel_control.q_targets(
        q, torch.ones(3, 1, 1, 1, dtype=torch.float64), torch.full((3, 1), 0.5, dtype=torch.float64), mask
    )
    assert targets[0].item() == 1 + 0.5 * 3
    assert targets[2].item() == 1 + 0.5 * 7
