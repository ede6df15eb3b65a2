"""Input encoders, from [N, ...] to features [N, F]: torsos of observations, `LastStep` (last action and reward), `Instruction` (words).

A user's own module can stand in a torso's place. `ObservationNormaliser` stands before it.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laser_rl.config import NetworkConfig
from laser_rl.envs.instructions import VOCABULARY
from laser_rl.envs.masks import choices_of
from laser_rl.envs.records import ActionSpec, BoxActions
from laser_rl.errors import ConfigError
from laser_rl.networks.recurrent import lstm_cell
from laser_rl.ops import moments

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
PICTURE = 4  # dimensions of [N, C, H, W]
SMALL_PICTURE = 32


class MLP(nn.Module):
    """Fully connected layers with tanh, the observation flattened."""

    def __init__(self, shape: Sequence[int], hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [math.prod(shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [orthogonal(nn.Linear(inputs, outputs), gain=math.sqrt(2)), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self._linear = tuple(layer for layer in layers if isinstance(layer, nn.Linear))
        self.features = sizes[-1]

    def forward(self, observation: Tensor) -> Tensor:
        # Not `self.layers(observation)`: for small layers a module's call takes as long as its arithmetic.
        x = observation.flatten(1)
        for layer in self._linear:
            x = F.linear(x, layer.weight, layer.bias).tanh()
        return x


class CNN(nn.Module):
    """One 3×3 convolution and one layer, for pictures of about 10×10 (MinAtar)."""

    def __init__(self, shape: Sequence[int], channels: int, hidden: int) -> None:
        super().__init__()
        planes, height, width = shape
        self.convolution = orthogonal(nn.Conv2d(planes, channels, 3), gain=math.sqrt(2))
        size = channels * (height - 2) * (width - 2)
        self.linear = orthogonal(nn.Linear(size, hidden), gain=math.sqrt(2))
        self.features = hidden

    def forward(self, observation: Tensor) -> Tensor:
        return torch.relu(self.linear(torch.relu(self.convolution(observation)).flatten(1)))


class Tiles(nn.Module):
    """For pictures made of 4×4 tiles: one look at each tile, one at its neighbours, one layer."""

    TILE = 4

    def __init__(self, shape: Sequence[int], channels: int, hidden: int) -> None:
        super().__init__()
        planes, height, width = shape
        rows, columns = height // self.TILE, width // self.TILE
        self.tile = orthogonal(nn.Conv2d(planes, channels, self.TILE, stride=self.TILE), gain=math.sqrt(2))
        self.neighbours = orthogonal(nn.Conv2d(channels, 2 * channels, 3, padding=1), gain=math.sqrt(2))
        self.linear = orthogonal(nn.Linear(2 * channels * rows * columns, hidden), gain=math.sqrt(2))
        self.features = hidden

    def forward(self, observation: Tensor) -> Tensor:
        seen = torch.relu(self.neighbours(torch.relu(self.tile(observation))))
        return torch.relu(self.linear(seen.flatten(1)))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), as in IMPALA's deep network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(torch.relu(self.first(torch.relu(x))))
        return out


class ImpalaDeep(nn.Module):
    """IMPALA's deep residual network: three sections of (16, 32, 32)·width filters, then 256 features."""

    def __init__(self, shape: Sequence[int], width: int = 1, hidden: int = 256) -> None:
        super().__init__()
        planes, height, breadth = shape
        sections: list[nn.Module] = []
        for channels in (16 * width, 32 * width, 32 * width):
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            sections += [nn.Conv2d(planes, channels, 3, padding=1), pool, Residual(channels), Residual(channels)]
            planes, height, breadth = channels, (height + 1) // 2, (breadth + 1) // 2
        self.sections = nn.Sequential(*sections)
        self.linear = nn.Linear(planes * height * breadth, hidden)
        self.features = hidden
        self._kernels_work: bool | None = None  # not known before they have been tried

    def forward(self, observation: Tensor) -> Tensor:
        return self._ends(torch.relu(self.sections(observation)))

    def reads_bytes(self, observation: Tensor) -> bool:
        """Whether `from_bytes` understands these; it needs a GPU on which our kernels work."""
        if not observation.is_cuda or observation.dtype != torch.uint8:
            return False
        from laser_rl import cuda  # noqa: PLC0415 - a run on a CPU never imports it

        if not cuda.available():
            return False
        if self._kernels_work is None:
            from laser_rl.networks.impala import kernels_work  # noqa: PLC0415 - Triton need not be there

            self._kernels_work = kernels_work(list(self.sections.parameters()), observation.shape[1:])
        return self._kernels_work

    def from_bytes(self, observation: Tensor, scale: float) -> Tensor:
        """Features of scale · bytes [N, planes, H, W]: the same function, in bfloat16 and by our own kernels."""
        from laser_rl.networks.impala import Sections, act  # noqa: PLC0415 - Triton need not be there

        through = Sections.apply if torch.is_grad_enabled() else act
        out = through(observation.contiguous(), scale, *self.sections.parameters())
        return self._ends(out.permute(0, 3, 1, 2))

    def _ends(self, pictures: Tensor) -> Tensor:
        return torch.relu(self.linear(pictures.flatten(1)))


class PartTorsos(nn.Module):
    """A torso for each part of an observation, by the parts' keys, then one layer: what depends on several parts is no sum over them."""

    def __init__(self, torsos: Mapping[str, nn.Module], hidden: int) -> None:
        super().__init__()
        # No ModuleDict: a key may hold what a module's name may not.
        self.keys, self.torsos = tuple(torsos), nn.ModuleList(torsos.values())
        width = sum(int(torso.features) for torso in torsos.values())  # type: ignore[arg-type, misc]
        self.joint, self.features = orthogonal(nn.Linear(width, hidden), gain=math.sqrt(2)), hidden

    def forward(self, parts: Mapping[str, Tensor]) -> Tensor:
        found = [torso(parts[key]) for key, torso in zip(self.keys, self.torsos, strict=True)]
        return torch.relu(self.joint(torch.cat(found, -1)))


def build_torso(config: NetworkConfig, shape: tuple[int, ...]) -> nn.Module:
    name, picture = config.torso, len(shape) == 3  # noqa: PLR2004
    if name == "auto":
        name = "mlp" if not picture else "cnn" if max(shape[1:]) <= SMALL_PICTURE else "impala"
    if not config.hidden:
        raise ConfigError("network.hidden is empty, expected at least one layer size")
    if name == "mlp":
        return MLP(shape, config.hidden)
    if not picture:
        raise ConfigError(f"torso {name} reads pictures [C, H, W], observations here have shape {shape}; use torso mlp")
    if name == "impala":
        return ImpalaDeep(shape, config.width)
    if name == "cnn":
        return CNN(shape, config.channels, config.hidden[-1])
    if min(shape[1:]) < Tiles.TILE:
        raise ConfigError(
            f"torso tiles reads pictures of at least {Tiles.TILE}×{Tiles.TILE}, these have {shape[1]}×{shape[2]}; use torso impala"
        )
    return Tiles(shape, config.channels, config.hidden[-1])


def part_torso(config: NetworkConfig, shape: tuple[int, ...]) -> nn.Module:
    """Vectors get an MLP, small pictures a CNN, large ones what the configuration names: a Dict may hold all three."""
    if len(shape) == 1:
        return MLP(shape, config.hidden)
    small = max(shape[1:]) <= SMALL_PICTURE or min(shape[1:]) < Tiles.TILE
    return build_torso(config.model_copy(update={"torso": "cnn"}) if small and config.torso != "mlp" else config, shape)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Orthogonal weights, no bias: keeps the scale of what passes through."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


class LastStep:
    """The last action as one-hot (real-valued ones as they are) and the last reward, clipped to ±1; nothing on an episode's first row.

    With `blind` it is all zero.
    """

    def __init__(self, action: ActionSpec, *, blind: bool = False) -> None:
        self._blind, self._counts = blind, choices_of(action)
        self.features = 1 + (len(action.low) if isinstance(action, BoxActions) else sum(self._counts))

    def __call__(self, last_action: Tensor, last_reward: Tensor, is_first: Tensor) -> Tensor:
        """Encode rows [T, B] as [T, B, features]."""
        rows = last_reward.shape
        if self._blind:
            return torch.zeros(*rows, self.features, device=last_reward.device)
        action = last_action.reshape(*rows, -1)
        if self._counts:
            hot = [F.one_hot(part, count) for part, count in zip(action.long().unbind(-1), self._counts, strict=True)]
            action = torch.cat(hot, -1)
        both = torch.cat([action.float(), last_reward.clamp(-1.0, 1.0).unsqueeze(-1)], -1)
        return torch.where(is_first.unsqueeze(-1), 0.0, both)


class Instruction(nn.Module):
    """The words in the last row of a picture (`envs.instructions`), each embedded at its place, then one layer."""

    EMBEDDING = 16

    def __init__(self, words: int, channels: int = 3, features: int = 64) -> None:
        super().__init__()
        self.words, self.channels, self.features = words, channels, features
        self.embedding = nn.Embedding(VOCABULARY, self.EMBEDDING)
        self._encoder(words, features)

    def _encoder(self, words: int, features: int) -> None:
        self.linear = nn.Linear(words * self.EMBEDDING, features)

    def forward(self, picture: Tensor) -> Tensor:
        """Encode the words of the newest frame of pictures [N, stack · C, H + 1, W], uint8."""
        row = picture[:, -self.channels :, -1].flatten(1)[:, : 2 * self.words].long()
        return self._encoded((row[:, ::2] + 256 * row[:, 1::2]).clamp(max=VOCABULARY - 1))

    def _encoded(self, words: Tensor) -> Tensor:
        return F.relu(self.linear(self.embedding(words).flatten(1)))


class InstructionLSTM(Instruction):
    """The same words read by an LSTM, as IMPALA does: its output after the last of them, zeros if there is none."""

    EMBEDDING = 20

    def _encoder(self, words: int, features: int) -> None:
        self.cell = lstm_cell(self.EMBEDDING, features)

    def _encoded(self, words: Tensor) -> Tensor:
        if not (words.is_cuda or torch.compiler.is_compiling()):  # else the longest is not known at once
            words = words[:, : int((words > 0).sum(1).max()) if len(words) else 0]
        h = c = self.embedding.weight.new_zeros(len(words), self.features)
        for word in words.unbind(1):
            moved, there = self.cell(self.embedding(word), (h, c)), (word > 0).unsqueeze(-1)
            h, c = (torch.where(there, new, old) for new, old in zip(moved, (h, c), strict=True))
        return h


INSTRUCTIONS = {"lstm": InstructionLSTM, "embedding": Instruction}


class ObservationNormaliser(nn.Module):
    """Each number of a vector less its mean, by its standard deviation, of all rows so far.

    The statistics are buffers of the learner's network. `shift` and `scale`, all that acting needs of them, are parameters without a
    gradient: they lie in the vector of all parameters, and so go wherever that goes.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.number: Tensor
        self.mean: Tensor
        self.spread: Tensor
        for name, start in moments.initial(shape)._asdict().items():
            self.register_buffer(name, start)
        self.shift, self.scale = (nn.Parameter(make(shape), requires_grad=False) for make in (torch.zeros, torch.ones))

    @property
    def moments(self) -> moments.Moments:
        return moments.Moments(self.number, self.mean, self.spread)

    def forward(self, observation: Tensor) -> Tensor:
        return moments.standardise(observation, self.shift, self.scale)

    @torch.no_grad()
    def move(self, observation: Tensor, online: Tensor, taken: Tensor, whole: Callable[[Tensor], Tensor]) -> None:
        """Count the rows [T+1, B, ...] of the online columns, of all if none is online; nothing moves unless the update was `taken`.

        Row T is row 0 of the next unroll. `whole` turns sums over these columns into sums over all columns of the batch.
        """
        seen = online | (whole(online.sum()) == 0)
        new = moments.merge(self.moments, whole(moments.sums(self.mean, observation[:-1], seen)))
        places = (*self.moments, self.shift.data, self.scale.data)
        for place, moved in zip(places, (*new, *moments.scaling(new)), strict=True):
            place.copy_(torch.where(taken, moved, place))
