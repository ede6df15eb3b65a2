"""What a network reads besides the picture: the last step, and an instruction."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laser_rl.envs.instructions import VOCABULARY
from laser_rl.envs.records import ActionSpec, BoxActions, DiscreteActions


class LastStep:
    """The last action as one-hot (real-valued ones as they are) and the last reward, clipped to ±1; nothing on an episode's first row.

    With `blind` it is all zero.

    >>> LastStep(DiscreteActions(3))(torch.tensor([[2]]), torch.tensor([[7.0]]), torch.tensor([[False]]))
    tensor([[[0., 0., 1., 1.]]])
    """

    def __init__(self, action: ActionSpec, *, blind: bool = False) -> None:
        self._blind = blind
        self._counts: tuple[int, ...] | None
        if isinstance(action, BoxActions):
            self._counts, actions = None, len(action.low)
        else:
            self._counts = (action.count,) if isinstance(action, DiscreteActions) else action.counts
            actions = sum(self._counts)
        self.features = actions + 1

    def __call__(self, last_action: Tensor, last_reward: Tensor, is_first: Tensor) -> Tensor:
        """Of rows [T, B]: [T, B, features]."""
        rows = last_reward.shape
        if self._blind:
            return torch.zeros(*rows, self.features, device=last_reward.device)
        action = last_action.reshape(*rows, -1)
        if self._counts is not None:
            hot = [F.one_hot(part, count) for part, count in zip(action.long().unbind(-1), self._counts, strict=True)]
            action = torch.cat(hot, -1)
        both = torch.cat([action.float(), last_reward.clamp(-1.0, 1.0).unsqueeze(-1)], -1)
        return torch.where(is_first.unsqueeze(-1), 0.0, both)


class Instruction(nn.Module):
    """The words in the last row of a picture (`envs.instructions`), each embedded at its place, then one layer.

    >>> Instruction(words=16)(torch.zeros(7, 3, 73, 96, dtype=torch.uint8)).shape
    torch.Size([7, 64])
    """

    EMBEDDING = 16

    def __init__(self, words: int, channels: int = 3, features: int = 64) -> None:
        super().__init__()
        self.words, self.channels, self.features = words, channels, features
        self.embedding = nn.Embedding(VOCABULARY, self.EMBEDDING)
        self.linear = nn.Linear(words * self.EMBEDDING, features)

    def forward(self, picture: Tensor) -> Tensor:
        """Of pictures [N, stack · C, H + 1, W], uint8; the newest frame's words."""
        row = picture[:, -self.channels :, -1].flatten(1)[:, : 2 * self.words].long()
        words = (row[:, ::2] + 256 * row[:, 1::2]).clamp(max=VOCABULARY - 1)
        return F.relu(self.linear(self.embedding(words).flatten(1)))
