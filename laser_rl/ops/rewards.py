"""What is done to a reward before it is learned from; the raw one is kept for the scores."""

import torch
from jaxtyping import Float
from torch import Tensor


def clip(reward: Float[Tensor, "*rows"], bound: float = 1.0) -> Float[Tensor, "*rows"]:
    """Into [−bound, bound], as for Atari.

    >>> clip(torch.tensor([-7.0, 0.5, 400.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """
    return reward.clamp(-bound, bound)


def dmlab_squash(reward: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """5·tanh(r/5), and of losses only 0.3 times that: an optimist's view, as for DMLab-30.

    >>> dmlab_squash(torch.tensor([-5.0, 0.0, 5.0]))
    tensor([-1.1424,  0.0000,  3.8080])
    """
    squashed = 5.0 * torch.tanh(reward / 5.0)
    return torch.where(reward < 0, 0.3 * squashed, squashed)
