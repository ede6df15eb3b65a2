"""The learner: a batch in, parameters moved, numbers out."""

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laser_rl.agent.loss import Hyper, hyper_of, laser_loss
from laser_rl.agent.optimiser import build_optimiser, load_state
from laser_rl.agent.parameters import FlatParameters
from laser_rl.agent.policy import restore_generator
from laser_rl.agent.recurrent import Recurrent
from laser_rl.agent.tally import EVERY, GROUPS, shares, tally
from laser_rl.config import LossConfig, OptimiserConfig, full_name
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops import checks, trust_region
from laser_rl.ops.distributions import Family
from laser_rl.ops.priority import critic_priority
from laser_rl.ops.rmsprop import linear_rate
from laser_rl.types import Batch

log = logging.getLogger("laser_rl.agent")
BOUND_RATE = 0.01  # of the controller of the trust bound, a factor e^0.01 an update at most
GOOD_EVERY = 200  # updates between two states to go back to
GIVE_UP_AFTER = 20  # skipped updates in a row: these parameters will not recover


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
        sources: how many members write into the replay; acceptance is reported for each.
        burn_in_steps: first rows of a replayed unroll that only warm the memory up.
        prioritise: keep the critic's loss of each unroll in `priorities`.
    """

    def __init__(
        self,
        network: AgentNetwork,
        family: Family,
        loss: LossConfig,
        optimiser: OptimiserConfig,
        *,
        seed: int = 0,
        sources: int = 1,
        burn_in_steps: int = 0,
        prioritise: bool = False,
    ) -> None:
        self.network, self.family, self.loss, self.rates, self.sources = network, family, loss, optimiser, sources
        self.flat = FlatParameters(network)
        self.device = self.flat.value.device
        self.version = self.skipped = self.rollbacks = 0
        self.bound = torch.tensor(loss.bound, device=self.device)
        self.hyper: Hyper = hyper_of([loss], self.device)
        self.optimiser = build_optimiser(self.flat.value, optimiser)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._names: list[str] = []
        self._sums = torch.zeros(2, 0, device=self.device)  # of each number, and how often it was defined
        self._tally = torch.zeros(sources + GROUPS, 3, device=self.device)
        self._failing = 0  # skipped updates in a row
        self.recurrent = Recurrent(network, burn_in_steps)
        self.prioritises = prioritise
        # Ids and critic's losses of the last batch, unless it was skipped.
        self.priorities: tuple[Tensor, Tensor] | None = None
        self._good = self._parameters()

    def update(self, batch: Batch, *, progress: float) -> bool:
        """One gradient step; False if it was skipped because the gradient was not finite.

        Args:
            batch: any device.
            progress: share of the run that is done, for the learning rate's schedule.
        """
        batch = Batch(*(field.to(self.device, non_blocking=True) for field in batch))
        self.flat.gradient.zero_()
        with checks.unchecked():
            output, batch = self.recurrent.unroll(batch)
            loss = laser_loss(self.family, output, batch, self.hyper, self.bound, self.generator, self.network)
            loss.total.backward()  # type: ignore[no-untyped-call]
            norm = self.flat.gradient.norm()
            learned = math.isfinite(norm.item())
            if learned:
                self.step(norm, progress)
        if self.prioritises:
            self.priorities = (batch.id, critic_priority(loss.value, loss.learnable)) if learned else None
        age = self.version - batch.version
        numbers = {**loss.numbers, **ages(age, batch, 1), "gradient_norm": norm[None]}
        counted = tally(loss, batch, age, sources=self.sources, members=1)[0] if self.version % EVERY == 0 else None
        self.count(list(numbers), torch.cat(list(numbers.values())), counted, learned=learned)
        return learned

    def step(self, norm: Tensor, progress: float) -> None:
        """Take the gradient that stands in `flat`."""
        limit = self.rates.clip_gradient_norm
        if limit is not None:
            self.flat.gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        self.optimiser.step(self.flat.value, self.flat.gradient, self.learning_rate(progress))

    def count(self, names: list[str], values: Tensor, counted: Tensor | None, *, learned: bool) -> None:
        """After an update: its numbers, the trust bound, and a state to go back to if this goes wrong."""
        self.version += 1
        self.skipped += not learned
        self._failing = 0 if learned else self._failing + 1
        defined = ~values.isnan()  # an entropy where no online row is trusted does not count
        if not self._names:
            self._names, self._sums = names, torch.zeros(2, len(names), device=self.device)
        self._sums += torch.stack([torch.where(defined, values, 0.0), defined.float()])
        if counted is not None:
            self._tally += counted
        target = self.loss.target_acceptance
        if target is not None:
            accepted = values[names.index("acceptance")]
            self.bound = trust_region.adapt_bound(self.bound, accepted, target=target, rate=BOUND_RATE)
        if self._failing >= GIVE_UP_AFTER:
            self._roll_back()
        elif learned and self.version % GOOD_EVERY == 0:
            self._good = self._parameters()

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
        means |= shares(self._tally, self.sources)
        self._sums, self._tally = torch.zeros_like(self._sums), torch.zeros_like(self._tally)
        if self.loss.trust != "off":
            means["trust_bound"] = self.bound.item()
        return {**means, "skipped_updates": self.skipped, "rollbacks": self.rollbacks}

    def setting(self, name: str) -> float:
        """The present value of a hyper-parameter of loss or optimiser."""
        section, _, field = full_name(name).partition(".")
        value = (
            self.bound.item()
            if field == "trust_bound"
            else getattr(self.loss if section == "loss" else self.rates, field)
        )
        return float(value)

    def tune(self, settings: Mapping[str, float]) -> None:
        """Go on with other hyper-parameters of loss or optimiser; what is not named stays."""
        for name, value in settings.items():
            section, _, field = full_name(name).partition(".")
            if section == "loss":
                self.loss = LossConfig.model_validate({**self.loss.model_dump(), field: value})
                if field == "trust_bound":
                    self.bound.fill_(self.loss.bound)
            elif section == "optimiser":
                self.rates = OptimiserConfig.model_validate({**self.rates.model_dump(), field: value})
            else:
                raise ConfigError(f"{name} cannot be changed while learning; only settings of loss and optimiser can")
        self.hyper = hyper_of([self.loss], self.device)

    def adopt(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take another learner's parameters, optimiser and bound; counters and random numbers stay one's own. All or nothing."""
        _require_finite(tensors["network"])
        load_network(self.network, tensors["network"])
        load_state(self.optimiser, tensors["optimiser"])
        self.bound = tensors["learner"]["bound"].to(self.device).clone()
        self.recurrent.forget()  # what lanes carry was computed by other parameters
        self._failing, self._good = 0, self._parameters()

    def state(self) -> LearnerState:
        """Everything, for a checkpoint."""
        tensors = {
            "network": {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()},
            "optimiser": {name: tensor.clone() for name, tensor in self.optimiser.state.items()},
            "learner": {
                "bound": self.bound.clone(),
                "generator": self.generator.get_state(),
                "sums": self._sums.clone(),
                "tally": self._tally.clone(),
                **self.recurrent.state(),
            },
            "good": {name: tensor.clone() for name, tensor in self._good.items()},
        }
        counters = {"version": self.version, "skipped": self.skipped, "rollbacks": self.rollbacks}
        tuned = {"loss": self.loss.model_dump(mode="json"), "optimiser": self.rates.model_dump(mode="json")}
        return LearnerState(tensors, {**counters, "failing": self._failing, "names": list(self._names), **tuned})

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        load_network(self.network, tensors["network"])
        load_state(self.optimiser, tensors["optimiser"])
        learner = tensors["learner"]
        self.bound = learner["bound"].to(self.device)
        restore_generator(self.generator, learner["generator"])
        self._sums, self._tally = learner["sums"].to(self.device), learner["tally"].to(self.device)
        self.recurrent.load(learner)
        self._good = {name: tensor.to(self.device) for name, tensor in tensors["good"].items()}
        self.version, self.skipped, self.rollbacks = numbers["version"], numbers["skipped"], numbers["rollbacks"]
        self._failing, self._names = numbers["failing"], list(numbers["names"])
        self.loss = LossConfig.model_validate(numbers["loss"])
        self.rates = OptimiserConfig.model_validate(numbers["optimiser"])
        self.hyper = hyper_of([self.loss], self.device)

    def _parameters(self) -> dict[str, Tensor]:
        buffers = {f"buffer.{name}": tensor.clone() for name, tensor in self.network.named_buffers()}
        moments = {name: tensor.clone() for name, tensor in self.optimiser.state.items()}
        return {"value": self.flat.value.clone(), **moments, **buffers}

    def _roll_back(self) -> None:
        """To the last state that learned; whatever has been published of the broken one is overwritten by the next update."""
        if self.rollbacks & (self.rollbacks - 1) == 0:  # the first, second, fourth, eighth, …
            log.warning(
                "%d updates in a row had no finite gradient: back to the parameters of at most %d updates before (time %d); "
                "lower the learning rate or clip gradients if this repeats",
                self._failing,
                GOOD_EVERY + GIVE_UP_AFTER,
                self.rollbacks + 1,
            )
        self.flat.value.copy_(self._good["value"])
        for name, buffer in self.network.named_buffers():
            buffer.copy_(self._good[f"buffer.{name}"])
        load_state(self.optimiser, self._good)
        self.recurrent.forget()
        self._failing, self.rollbacks = 0, self.rollbacks + 1


def ages(age: Tensor, batch: Batch, members: int) -> dict[str, Tensor]:
    """How many versions old the data is, online and replayed, for each member; `age` is [B]."""
    parts = torch.stack([batch.online, ~batch.online]).float()
    total = torch.unflatten((parts * age), 1, (members, -1)).sum(2)
    lag, replayed = total / torch.unflatten(parts, 1, (members, -1)).sum(2)
    return {"lag_updates": lag, "replay_age_updates": replayed}


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


def _require_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} of the other learner is not finite; it is not taken")
