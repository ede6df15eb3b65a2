"""PixelControl: learning to change the picture, cell by cell, as an auxiliary task.

Each cell of a coarse grid has its own reward (how much its pixels changed) and its own action values, learned by n-step Q-learning. Images
are channel-first, [..., C, H, W].
"""

import torch
from jaxtyping import Bool, Float, Integer, Num
from torch import Tensor

from laser_rl.ops import checks
from laser_rl.ops.recurrence import backward_recurrence


def cumulants(observation: Num[Tensor, "T_plus_1 B C H W"], *, cell: int = 4) -> Float[Tensor, "T B h w"]:
    """Mean absolute change of each cell's pixels from one row to the next; uint8 counts as [0, 255], floats as [0, 1].

    Of a stack of frames pass the newest one only: the others changed earlier.

    >>> dark, bright = torch.zeros(1, 1, 1, 4, 8, dtype=torch.uint8), torch.full((1, 1, 1, 4, 8), 255, dtype=torch.uint8)
    >>> bright[..., 4:] = 0
    >>> cumulants(torch.cat([dark, bright]))
    tensor([[[[1., 0.]]]])
    """
    before, after = observation[:-1], observation[1:]
    # |after − before| without leaving uint8, where a plain difference would wrap around.
    change = torch.maximum(before, after) - torch.minimum(before, after)
    height, width = change.shape[-2:]
    cells = change.reshape(*change.shape[:-2], height // cell, cell, width // cell, cell)
    if observation.dtype == torch.uint8:
        return cells.mean((2, 4, 6), dtype=torch.float32) / 255.0
    return cells.mean((2, 4, 6))


def dueling(
    value: Float[Tensor, "*rows 1 h w"], advantage: Float[Tensor, "*rows A h w"]
) -> Float[Tensor, "*rows A h w"]:
    """Q = value + advantage − mean over actions of the advantage.

    >>> dueling(torch.full((1, 1, 1), 5.0), torch.tensor([1.0, 3.0]).reshape(2, 1, 1)).flatten()
    tensor([4., 6.])
    """
    return value + advantage - advantage.mean(-3, keepdim=True)


def q_targets(
    q: Float[Tensor, "T_plus_1 B A h w"],
    cumulant: Float[Tensor, "T B h w"],
    discount: Float[Tensor, "T B"],
    learnable: Bool[Tensor, "T B"],
) -> Float[Tensor, "T B h w"]:
    """n-step targets of every cell: discounted cumulants up to the end of the unroll, then the best action's value.

    A return does not run through a row that is not learnable: it stops there and takes that row's best value instead.

    >>> q = torch.full((3, 1, 2, 1, 1), 8.0)
    >>> ones = torch.ones(2, 1)
    >>> q_targets(q, torch.ones(2, 1, 1, 1), 0.5 * ones, ones.bool()).flatten()
    tensor([3.5000, 5.0000])
    """
    if checks.active():
        checks.rows(learnable, discount=discount)
        expected, got = (*learnable.shape, *q.shape[3:]), tuple(cumulant.shape)
        checks.require(
            got == expected and q.shape[:2] == (got[0] + 1, got[1]),
            f"cumulant has shape {got}, expected {expected} for q {tuple(q.shape)}",
        )
        checks.numbers(q=q)
        checks.numbers(learnable[..., None, None], cumulant=cumulant)
    with torch.no_grad():
        best_next = q[1:].amax(2)
        # Whether the return runs on through row t+1; never beyond the unroll.
        goes_on = torch.cat([learnable[1:], torch.zeros_like(learnable[:1])])[..., None, None]
        discount = torch.where(learnable, discount, discount.new_zeros(()))[..., None, None]
        cumulant = torch.where(learnable[..., None, None], cumulant, cumulant.new_zeros(()))
        stopped = torch.where(goes_on, best_next.new_zeros(()), best_next)
        factor = torch.where(goes_on, discount, discount.new_zeros(())).expand_as(cumulant)
        return backward_recurrence(cumulant + discount * stopped, factor)


def q_loss(
    q: Float[Tensor, "T_plus_1 B A h w"],
    action: Integer[Tensor, "T B"],
    cumulant: Float[Tensor, "T B h w"],
    discount: Float[Tensor, "T B"],
    learnable: Bool[Tensor, "T B"],
) -> Float[Tensor, "T B"]:
    """½·(target − Q(s_t, a_t))², summed over cells; 0 on rows that are not learnable.

    The discount is the auxiliary task's own (the paper's sources use 0.9), 0 where the environment terminated. The trust region holds for
    auxiliary tasks too.

    >>> q = torch.zeros(2, 1, 2, 1, 1)
    >>> ones = torch.ones(1, 1)
    >>> q_loss(q, torch.tensor([[0]]), torch.ones(1, 1, 1, 1), 0.9 * ones, ones.bool())
    tensor([[0.5000]])
    """
    if checks.active():
        checks.same_shape(learnable=learnable, action=action)
        checks.indices(q.shape[2], action=action)
    target = q_targets(q, cumulant, discount, learnable)
    index = action.long()[..., None, None, None].expand(-1, -1, 1, *q.shape[3:])
    taken = q[:-1].gather(2, index).squeeze(2)
    error = torch.where(learnable[..., None, None], target - taken, taken.new_zeros(()))
    return 0.5 * error.square().sum((2, 3))
