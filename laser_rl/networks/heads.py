"""Heads that are more than a layer: values in each task's own units, and PixelControl's action values."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laser_rl.networks.torso import orthogonal
from laser_rl.ops import pixel_control, popart


class PopArtHead(nn.Linear):
    """One value a task, in units of that task's returns; its statistics are part of the network's state."""

    def __init__(self, features: int, tasks: int) -> None:
        super().__init__(features, tasks)
        orthogonal(self, gain=1.0)
        self.mean: Tensor
        self.mean_square: Tensor
        for name, start in popart.initial(tasks)._asdict().items():
            self.register_buffer(name, start)

    @property
    def statistics(self) -> popart.Statistics:
        return popart.Statistics(self.mean, self.mean_square)

    def value(self, normalised: Tensor, task: Tensor) -> Tensor:
        """From outputs [T, B, tasks] to values [T, B] in the units of each column's task."""
        return popart.unnormalise(self.statistics, of_task(normalised, task), task)

    @torch.no_grad()
    def move(
        self,
        target: Tensor,
        task: Tensor,
        learnable: Tensor,
        step: float,
        whole: Callable[[Tensor], Tensor] = lambda part: part,
    ) -> None:
        """Move the statistics towards the targets, and rescale the layer so that no value changes. Nothing moves if a target is not finite.

        `whole` turns sums over these columns into sums over all columns of the batch, if there are more.
        """
        old = self.statistics
        new = popart.update(old, whole(popart.sums(target, task, learnable, tasks=len(old.mean))), step=step)
        # Not looked at here: that would wait for a GPU.
        finite = new.mean.isfinite().all() & new.mean_square.isfinite().all()
        layer = popart.rescale(popart.Layer(self.weight, self.bias), old, new)
        # Through `data`: the parameters may be views of one vector, and the graph of the values before is not needed any more.
        places = (self.weight.data, self.bias.data, self.mean, self.mean_square)
        for place, moved in zip(places, (*layer, *new), strict=True):
            place.copy_(torch.where(finite, moved, place))


def of_task(values: Tensor, task: Tensor) -> Tensor:
    index = task.long()[None, :, None].expand(values.shape[0], -1, 1)
    return values.gather(2, index).squeeze(2)


class PixelControlHead(nn.Module):
    """Action values of every cell of the picture, by a dueling deconvolution from the memory's features.

    `picture` is the shape [C, H, W] of one frame, without an instruction's row; `cell` counts the pixels of a cell's side. Rows and columns
    that fill no cell are cut off evenly.
    """

    CHANNELS = 32

    def __init__(self, features: int, actions: int, picture: tuple[int, int, int], cell: int = 4) -> None:
        super().__init__()
        self.picture, self.cell = picture, cell
        self.grid = (picture[1] // cell, picture[2] // cell)
        self._half = tuple(math.ceil(side / 2) for side in self.grid)
        self.linear = nn.Linear(features, self.CHANNELS * math.prod(self._half))
        self.value = nn.ConvTranspose2d(self.CHANNELS, 1, 4, stride=2, padding=1)
        self.advantage = nn.ConvTranspose2d(self.CHANNELS, actions, 4, stride=2, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """From features [T, B, F] to action values [T, B, actions, h, w]."""
        rows, (height, width) = features.shape[:2], self.grid
        coarse = F.relu(self.linear(features.flatten(0, 1))).view(-1, self.CHANNELS, *self._half)
        q = pixel_control.dueling(self.value(coarse), self.advantage(coarse))
        return torch.unflatten(q[..., :height, :width], 0, rows)

    def cumulants(self, observation: Tensor) -> Tensor:
        """How much each cell of the newest frame changes, of observations [T+1, B, stack · C, H (+ 1), W]: [T, B, h, w]."""
        channels, height, width = self.picture
        top, left = (height % self.cell) // 2, (width % self.cell) // 2
        bottom, right = top + self.grid[0] * self.cell, left + self.grid[1] * self.cell
        newest = observation[:, :, -channels:, top:bottom, left:right]
        return pixel_control.cumulants(newest, cell=self.cell)
