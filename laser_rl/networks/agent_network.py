"""The whole network: torso, memory, heads."""

import contextlib
import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laser_rl.envs.records import ObservationSpec, Part
from laser_rl.networks.heads import PixelControlHead, PopArtHead
from laser_rl.networks.recurrent import Memory, NoMemory
from laser_rl.networks.torso import MLP, PICTURE, ImpalaDeep, Instruction, LastStep, ObservationNormaliser, orthogonal
from laser_rl.ops.distributions import FORBIDDEN
from laser_rl.types import Inputs


class Output(NamedTuple):
    """What the heads say at every row."""

    policy: Tensor  # [T, B, P], parameters of the family
    value: Tensor  # [T, B]; with PopArt [T, B, tasks], normalised
    features: Tensor | None = None  # [T, B, F], what the value was made of
    pixel_q: Tensor | None = None  # [T, B, A, h, w], if asked for


class AgentNetwork(nn.Module):
    """Rows [T, B, ...] in, policy parameters and values out.

    `torso` maps [N, ...], the observation as float times `scale`, to [N, features]; the value shares it unless it has a `value_torso`.
    `normaliser` stands before both. `instruction` reads the last row of a picture, which the torso then does not see. Of an observation
    with `parts`, stored as bytes, the torso gets a dict of tensors by their keys. The last `mask` numbers of an observation are for the
    policy alone: illegal actions get a logit that gives them no probability, so what is stored, its ratios, KL and entropy are those of the
    legal ones. With `popart_tasks` values are in each task's own units. With `bf16` the torso runs in bfloat16; heads and everything after
    them stay in float32.
    """

    def __init__(
        self,
        torso: nn.Module,
        *,
        parameter_size: int,
        memory: Memory | None = None,
        last: LastStep | None = None,
        instruction: Instruction | None = None,
        value_torso: nn.Module | None = None,
        normaliser: ObservationNormaliser | None = None,
        popart_tasks: int = 0,
        pixel_control: PixelControlHead | None = None,
        observation: ObservationSpec = ObservationSpec(()),  # noqa: B008 - frozen
        bf16: bool = False,
        normalise_features: bool = False,
    ) -> None:
        super().__init__()
        features, self.normalise_features = int(torso.features), normalise_features  # type: ignore[arg-type]
        self.torso, self.value_torso, self.normaliser = torso, value_torso, normaliser
        self.memory: Memory = memory or NoMemory(features)
        self.last, self.instruction, self.pixel_control = last, instruction, pixel_control
        self.scale, self.parts, self.mask, self.bf16 = observation.scale, observation.parts, observation.mask, bf16
        # A policy that starts near uniform, as small weights make it, explores before it has reasons not to.
        self.policy_head = orthogonal(nn.Linear(self.memory.features, parameter_size), gain=0.01)
        width = self.memory.features if value_torso is None else int(value_torso.features)  # type: ignore[arg-type]
        self.value_head = PopArtHead(width, popart_tasks) if popart_tasks else orthogonal(nn.Linear(width, 1), gain=1.0)

    @property
    def popart(self) -> PopArtHead | None:
        return self.value_head if isinstance(self.value_head, PopArtHead) else None

    @functools.cached_property
    def dense(self) -> bool:
        """Whether there are only layers with tanh, from a vector to the policy and to the value."""
        torsos = {type(torso) for torso in (self.torso, self.value_torso) if torso is not None}
        others = self.popart, self.pixel_control, self.instruction, self.last, self.parts, self.state_size
        return torsos == {MLP} and not any(others) and not self.bf16 and not self.normalise_features

    @property
    def state_size(self) -> int:
        return self.memory.state_size

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch, self.state_size, device=self.policy_head.weight.device)

    def forward(self, inputs: Inputs, state: Tensor, *, auxiliary: bool = False) -> tuple[Output, Tensor]:
        """All rows at once; only the memory looks at time. Also returns its state after each row, [T, B, S]."""
        rows = inputs.observation.shape[:2]
        # Batches lie unroll by unroll; torsos do not care for the order of rows, and pictures are too large to be put into another.
        turned = inputs.observation.ndim > PICTURE and inputs.observation.stride(0) < inputs.observation.stride(1)
        flat = self.without_mask(inputs.observation.transpose(0, 1) if turned else inputs.observation).flatten(0, 1)

        def by_row(features: Tensor) -> Tensor:
            return features.view(rows[1], rows[0], -1).transpose(0, 1) if turned else features.view(*rows, -1)

        seen = self.prepared(flat)
        features = self._encoded(flat, seen)
        last = features if self.last is None else self.last(inputs.last_action, inputs.last_reward, inputs.is_first)
        features, states = self.memory.forward(by_row(features), last, inputs.is_first, state)
        valued = features if self.value_torso is None else by_row(self._features(self.value_torso, seen))
        pixel_q = self.pixel_control(features) if auxiliary and self.pixel_control is not None else None
        value = self.value_head(valued)
        value = value if self.popart is not None else value.squeeze(-1)
        return Output(self.masked(self.policy_head(features), inputs.observation), value, valued, pixel_q), states

    def policy(self, observation: Tensor) -> Tensor:
        """The policy's parameters [N, P] at N observations, of a network without a memory: all that acting needs of `forward`."""
        flat = self.without_mask(observation)
        return self.masked(self.policy_head(self._encoded(flat, self.prepared(flat))), observation)

    def _encoded(self, flat: Tensor, seen: Tensor | dict[str, Tensor]) -> Tensor:
        features = self._features(self.torso, seen)
        if self.instruction is not None:
            features = torch.cat([features, self.instruction(flat)], -1)
        return F.layer_norm(features, features.shape[-1:]) if self.normalise_features else features

    def without_mask(self, observation: Tensor) -> Tensor:
        return observation[..., : -self.mask] if self.mask else observation

    def masked(self, policy: Tensor, observation: Tensor) -> Tensor:
        """Logits [T, B, P] of legal actions, and `FORBIDDEN` for the others; a legal one stays far above, whatever the network says."""
        if not self.mask:
            return policy
        return torch.where(observation[..., -self.mask :] != 0, policy.clamp(min=FORBIDDEN / 2), FORBIDDEN)

    def prepared(self, flat: Tensor) -> Tensor | dict[str, Tensor]:
        if self.parts:
            return split_parts(flat, self.parts)
        if self.bf16 and self.instruction is None:
            torsos = [torso for torso in (self.torso, self.value_torso) if torso is not None]
            if all(isinstance(torso, ImpalaDeep) and torso.reads_bytes(flat) for torso in torsos):
                return flat  # the stored bytes: our own kernels scale them on the way
        if self.normaliser is not None:
            flat = self.normaliser(flat.float())
        flat = flat.to(torch.bfloat16 if self.bf16 else torch.float32)
        if self.instruction is not None:
            flat = flat[:, :, :-1]
        if self.scale != 1.0:
            flat = flat * self.scale
        return flat.contiguous(memory_format=torch.channels_last) if flat.ndim == PICTURE else flat

    def _features(self, torso: nn.Module, seen: Tensor | dict[str, Tensor]) -> Tensor:
        device = self.policy_head.weight.device.type
        with torch.autocast(device, torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            if isinstance(torso, ImpalaDeep) and isinstance(seen, Tensor) and seen.dtype == torch.uint8:
                return torso.from_bytes(seen, self.scale).float()
            features: Tensor = torso(seen)
            return features.float()


def split_parts(flat: Tensor, parts: Sequence[Part]) -> dict[str, Tensor]:
    """From stored bytes [N, bytes] to the scaled numbers of each part, float32 [N, ...]."""
    found: dict[str, Tensor] = {}
    pieces = torch.split(flat, [part.nbytes for part in parts], -1)
    for part, piece in zip(parts, pieces, strict=True):
        if part.dtype != "uint8":  # a copy: bytes in the middle of a row need not be aligned
            piece = piece.clone(memory_format=torch.contiguous_format).view(torch.float32)  # noqa: PLW2901
        shaped = piece.float().reshape(-1, *part.shape)
        shaped = shaped if part.scale == 1.0 else shaped * part.scale
        found[part.key] = shaped.contiguous(memory_format=torch.channels_last) if shaped.ndim == PICTURE else shaped
    return found
