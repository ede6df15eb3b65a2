"""The learner: a batch in, parameters moved, numbers out."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laser_rl.agent.loss import laser_loss
from laser_rl.agent.optimiser import build_optimiser
from laser_rl.agent.parameters import FlatParameters
from laser_rl.agent.policy import restore_generator
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops import checks, trust_region
from laser_rl.ops.distributions import Family
from laser_rl.ops.rmsprop import linear_rate
from laser_rl.types import Batch

BOUND_RATE = 0.01  # of the controller of the trust bound, a factor e^0.01 an update at most


class LearnerState(NamedTuple):
    """All that a learner is, as tensors by group and plain numbers."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, Any]


class Learner:
    """Owns the parameters, the optimiser and the version.

    Args:
        network: moved to `device` by the caller; its parameters become views of one vector.
        family: what the policy's parameters mean.
        loss: constants of Algorithm 1.
        optimiser: what to do with a gradient.
        seed: only used where relevance is estimated by sampling.
    """

    def __init__(
        self, network: AgentNetwork, family: Family, loss: LossConfig, optimiser: OptimiserConfig, *, seed: int = 0
    ) -> None:
        self.network, self.family, self.loss, self.rates = network, family, loss, optimiser
        self.flat = FlatParameters(network)
        self.device = self.flat.value.device
        self.version = 0
        self.skipped = 0
        self.bound = torch.tensor(loss.bound, device=self.device)
        self._optimiser = build_optimiser(self.flat, optimiser)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._names: list[str] = []
        self._sums = torch.zeros(2, 0, device=self.device)  # of each number, and how often it was defined

    def update(self, batch: Batch, *, progress: float) -> bool:
        """One gradient step; False if it was skipped because the gradient was not finite.

        Args:
            batch: any device.
            progress: share of the run that is done, for the learning rate's schedule.
        """
        batch = Batch(*(field.to(self.device, non_blocking=True) for field in batch))
        self.flat.gradient.zero_()
        with checks.unchecked():
            output, _ = self.network(
                batch.observation, batch.is_first, self.network.initial_state(batch.online.shape[0])
            )
            loss = laser_loss(self.family, output, batch, self.loss, self.bound, self._generator)
            loss.total.backward()  # type: ignore[no-untyped-call]
            norm = self.flat.gradient.norm()
            learned = math.isfinite(norm.item())
            if learned:
                self._clip(norm)
                self._optimiser.step(self.learning_rate(progress))
        self.version += 1
        self.skipped += not learned
        self._adapt(loss.numbers["acceptance"])
        self._count({**loss.numbers, **self._ages(batch), "gradient_norm": norm})
        return learned

    def learning_rate(self, progress: float) -> float:
        """What the schedule says at this share of the run."""
        rate = self.rates.learning_rate
        if self.rates.schedule == "linear":
            return linear_rate(rate, 0.0, step=round(progress * 10**9), total=10**9)
        return rate

    def report(self) -> dict[str, float]:
        """Means over the updates since the last report."""
        totals, counts = self._sums.tolist()
        means = {
            name: total / count for name, total, count in zip(self._names, totals, counts, strict=True) if count > 0
        }
        self._sums = torch.zeros_like(self._sums)
        if self.loss.trust != "off":
            means["trust_bound"] = self.bound.item()
        return {**means, "skipped_updates": self.skipped}

    def state(self) -> LearnerState:
        """Everything, for a checkpoint."""
        tensors = {
            "network": {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()},
            "optimiser": {name: tensor.clone() for name, tensor in self._optimiser.state_dict().items()},
            "learner": {
                "bound": self.bound.clone(),
                "generator": self._generator.get_state(),
                "sums": self._sums.clone(),
            },
        }
        return LearnerState(tensors, {"version": self.version, "skipped": self.skipped, "names": list(self._names)})

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        load_network(self.network, tensors["network"])
        self._optimiser.load_state_dict(tensors["optimiser"])
        learner = tensors["learner"]
        self.bound = learner["bound"].to(self.device)
        restore_generator(self._generator, learner["generator"])
        self._sums = learner["sums"].to(self.device)
        self.version, self.skipped, self._names = numbers["version"], numbers["skipped"], list(numbers["names"])

    def _clip(self, norm: Tensor) -> None:
        limit = self.rates.clip_gradient_norm
        if limit is not None:
            self.flat.gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))

    def _adapt(self, accepted: Tensor) -> None:
        target = self.loss.target_acceptance
        if target is not None:
            self.bound = trust_region.adapt_bound(self.bound, accepted, target=target, rate=BOUND_RATE)

    def _ages(self, batch: Batch) -> dict[str, Tensor]:
        """How many versions old the data is."""
        age = (self.version - 1 - batch.version).float()
        online = batch.online
        return {
            "lag_updates": age[online].mean(),
            "replay_age_updates": age[~online].mean(),
        }

    def _count(self, numbers: dict[str, Tensor]) -> None:
        """Add up; a number that is undefined in this batch (an entropy where no online row is trusted) does not count."""
        values = torch.stack([number.float() for number in numbers.values()])
        defined = ~values.isnan()
        if not self._names:
            self._names, self._sums = list(numbers), torch.zeros(2, len(numbers), device=self.device)
        self._sums += torch.stack([torch.where(defined, values, 0.0), defined.float()])


def load_network(network: AgentNetwork, tensors: Mapping[str, Tensor]) -> None:
    """Copy values in place: parameters stay the views that they are."""
    own = network.state_dict()
    if missing := own.keys() ^ tensors.keys():
        raise ConfigError(
            f"the stored network does not fit this one; they differ in {sorted(missing)}. If it was trained with a network of "
            "your own, hand it in again: LASER(env, net=YourModule, run_dir=...)"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
