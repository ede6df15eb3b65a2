"""The train step that a typical IMPALA code has, as a baseline: plain modules, a loop over time, torch's RMSProp, numbers read at once.

Nothing here is of the package. The step is kept as simple as such codes are, but not made slow on purpose: convolutions choose their
algorithm by measuring (`cudnn.benchmark`), tf32 is allowed, and the picture stays uint8 until it is on the card.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Variant = Literal["fp32", "bf16", "compiled"]
CLIP_NORM, ENTROPY_COST, BASELINE_COST = 40.0, 0.01, 0.5


class Unrolls(NamedTuple):
    """What such a learner reads, time-major, on its device."""

    observation: Tensor  # uint8 [T+1, B, 4, 84, 84]
    action: Tensor  # [T, B]
    reward: Tensor
    discount: Tensor
    behaviour: Tensor  # logits [T, B, A]


class Block(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        return x + self.two(F.relu(self.one(F.relu(x))))


class Network(nn.Module):
    """IMPALA's deep network with a policy and a value.

    >>> [out.shape for out in Network(width=1, actions=6)(torch.zeros(2, 3, 4, 84, 84, dtype=torch.uint8))]
    [torch.Size([2, 3, 6]), torch.Size([2, 3])]
    """

    def __init__(self, width: int, actions: int, planes: int = 4, side: int = 84) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (16 * width, 32 * width, 32 * width):
            layers += [
                nn.Conv2d(planes, channels, 3, padding=1),
                nn.MaxPool2d(3, 2, 1),
                Block(channels),
                Block(channels),
            ]
            planes, side = channels, (side + 1) // 2
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(planes * side * side, 256), nn.ReLU())
        self.policy, self.value = nn.Linear(256, actions), nn.Linear(256, 1)
        self.memory_format = torch.contiguous_format

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and values of rows [T, B, ...]."""
        rows = observation.shape[:2]
        flat = (observation.flatten(0, 1).float() / 255).contiguous(memory_format=self.memory_format)
        features = self.body(flat)
        return self.policy(features).float().unflatten(0, rows), self.value(features).float().unflatten(
            0, rows
        ).squeeze(-1)


def vtrace(log_ratio: Tensor, reward: Tensor, discount: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Targets and advantages [T, B] of values [T+1, B], with a loop over time; both clips are 1.

    >>> one = torch.ones(3, 1)
    >>> vtrace(0 * one, one, 0.5 * one, torch.zeros(4, 1))[0].squeeze(1)
    tensor([1.7500, 1.5000, 1.0000])
    """
    rho = log_ratio.exp().clamp(max=1.0)
    td_error = rho * (reward + discount * value[1:] - value[:-1])
    gain, gains = torch.zeros_like(reward[0]), []
    for t in reversed(range(len(reward))):
        gain = td_error[t] + discount[t] * rho[t] * gain
        gains.append(gain)
    target = torch.stack(gains[::-1]) + value[:-1]
    following = torch.cat([target[1:], value[-1:]])
    return target, rho * (reward + discount * following - value[:-1])


def loss_of(network: Callable[[Tensor], tuple[Tensor, Tensor]], batch: Unrolls) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum over batch and time, and what is logged of it."""
    logits, value = network(batch.observation)
    log_policy, log_behaviour = logits[:-1].log_softmax(-1), batch.behaviour.log_softmax(-1)
    chosen = batch.action[..., None]
    log_prob = log_policy.gather(-1, chosen).squeeze(-1)
    with torch.no_grad():
        log_ratio = log_prob - log_behaviour.gather(-1, chosen).squeeze(-1)
        target, advantage = vtrace(log_ratio, batch.reward, batch.discount, value)
    policy_loss = -(log_prob * advantage).sum()
    value_loss = 0.5 * ((target - value[:-1]) ** 2).sum()
    entropy = -(log_policy.exp() * log_policy).sum()
    total = policy_loss + BASELINE_COST * value_loss - ENTROPY_COST * entropy
    return total, {"policy": policy_loss, "value": value_loss, "entropy": entropy, "total": total}


class Baseline:
    """A learner of this kind; `update` is the step that is timed."""

    def __init__(self, width: int, actions: int, device: torch.device, variant: Variant) -> None:
        torch.manual_seed(0)
        self.network = Network(width, actions).to(device)
        self._cast = variant != "fp32"
        if self._cast:
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.network.memory_format = torch.channels_last
        self._forward = torch.compile(self.network) if variant == "compiled" else self.network
        self._device = device
        self.optimiser = torch.optim.RMSprop(self.network.parameters(), lr=6e-4, alpha=0.99, eps=0.01)

    def update(self, batch: Unrolls) -> dict[str, float]:
        """One gradient step; its numbers, read at once."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._cast):
            total, numbers = loss_of(self._forward, batch)
        self.optimiser.zero_grad()
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), CLIP_NORM)
        self.optimiser.step()
        return {**{name: number.item() for name, number in numbers.items()}, "norm": norm.item()}


@contextlib.contextmanager
def generous() -> Iterator[None]:
    """With what such codes switch on: tf32, and convolutions that are chosen by measuring. All as before afterwards."""
    places = (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
    )
    before = [getattr(place, name) for place, name in places]
    try:
        for place, name in places:
            setattr(place, name, True)
        yield
    finally:
        for (place, name), value in zip(places, before, strict=True):
            setattr(place, name, value)
