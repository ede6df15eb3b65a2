"""The learner: one optimiser step for each batch, its metrics and checkpoint state, and changes of its hyper-parameters."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from laser_rl.agent.dense import Dense
from laser_rl.agent.functions import own_factor
from laser_rl.agent.learner_metrics import EVERY, Numbers, ages, tally
from laser_rl.agent.loss import Hyper, Loss, draws, hyper_of, laser_loss, require_splittable
from laser_rl.agent.memory_state import Recurrent
from laser_rl.agent.numpy_loss import fits, numpy_loss
from laser_rl.agent.parallel import ALONE, Team, require_together
from laser_rl.agent.parameters import GOOD_EVERY, FlatParameters, Optimiser, Recovery, load_network, require_finite
from laser_rl.agent.policy import restore_generator
from laser_rl.config import LossConfig, OptimiserConfig, full_name
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops import checks, trust_region
from laser_rl.ops.distributions import Family
from laser_rl.ops.priority import critic_priority
from laser_rl.types import Batch

if TYPE_CHECKING:
    from laser_rl.cuda.graphs import CudaGraphs, Graphed  # a run on a CPU never imports it


class LearnerState(NamedTuple):
    """A learner's state: tensors by group, and plain numbers."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, Any]


class UpdateOutcome(NamedTuple):
    """Results of an update, on the device; the next update may overwrite them."""

    loss: Loss  # without the graph that it was computed by
    batch: Batch  # as the loss was computed from it
    age: Tensor
    finite: Tensor  # whether the gradient was finite; only then was the step taken


class Learner:
    """Owns the parameters, the optimiser and the version.

    On a GPU `update` launches on the current stream and returns at once; what reads a result (`report`, `state_dict`, `setting`) waits for
    that stream, so it belongs into the same thread.

    Args:
        network: moved to its device by the caller; its parameters become views of one vector.
        family, loss, optimiser: what the policy's parameters mean, the constants of Algorithm 1, what to do with a gradient.
        seed: only used where relevance is estimated by sampling.
        sources: how many members write into the replay; acceptance is reported for each.
        burn_in_steps: first rows of a replayed unroll that only warm the memory up.
        prioritise: keep the critic's loss of each unroll in `priorities`; the host then waits for each update: the sampler needs them.
        graphs: on a GPU, capture an update as a CUDA graph and launch that, where the policy's family needs no random numbers.
        team: the ranks that learn together, each from its own columns of every batch. Each has a learner of its own, with the same
            arguments, and calls `update` as often; then their states stay identical, except for the sums of `report`.
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
        graphs: bool = True,
        team: Team = ALONE,
    ) -> None:
        require_splittable(family, loss, team.size)
        self.team = team
        # Counts replacements of state or hyper-parameters from outside, which other ranks have to be told.
        self.edition = 0
        self.network, self.family, self.loss, self.rates, self.sources = network, family, loss, optimiser, sources
        self.flat = FlatParameters(network)
        self.device = self.flat.value.device
        self.version = 0
        self.bound = torch.tensor(loss.bound, device=self.device)
        self.hyper: Hyper = hyper_of([loss], self.device)
        self.optimiser = Optimiser(self.flat.value, optimiser)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.numbers = Numbers(sources, self.device)
        self.recurrent = Recurrent(network, burn_in_steps, team)
        self._layers: Dense | None = None
        self.recovery = Recovery(self.flat, network, self.optimiser)
        self.prioritises = prioritise
        # Ids and critic's losses of the last batch, unless it was skipped.
        self.priorities: tuple[Tensor, Tensor] | None = None
        # What changes from update to update, where a graph can read it.
        self._rate = self.flat.value.new_zeros(())
        self._version = torch.zeros((), dtype=torch.int64, device=self.device)
        self._launcher: Graphed[UpdateOutcome] | None = None  # None: the host waits for each update's outcome
        self._addresses: tuple[int, ...] = ()
        if self.device.type == "cuda" and not prioritise:
            from laser_rl.cuda.graphs import CudaGraphs  # noqa: PLC0415 - a run on a CPU never imports it

            # Several devices are for large networks, where a graph gains nothing (ADR 0020).
            self.launch_with(CudaGraphs(self.device), graphs=graphs and not burn_in_steps and team.size == 1)

    def launch_with(self, recorder: "CudaGraphs", *, graphs: bool = True) -> None:
        """From now on the host launches updates without waiting for their outcome; with `graphs` as a CUDA graph, if possible.

        Not possible: densities copy their bounds from the host, and random numbers would be the same at every launch of a graph.
        """
        from laser_rl.cuda.graphs import MOST_GRAPHS, Graphed  # noqa: PLC0415

        fixed = self.family.joint_size is not None and not draws(self.family, self.loss)
        self._launcher = Graphed(self._compute, recorder, self.device, most=MOST_GRAPHS if graphs and fixed else 0)

    def update(self, batch: Batch, *, progress: float) -> bool:
        """One gradient step; False if it was skipped because the gradient was not finite.

        On a GPU True says that it was launched: a gradient that is not finite changes nothing there either. The batch may be overwritten
        once the current stream is done with it. `progress` is the share of the run that is done, for the learning rate's schedule.
        """
        if self.version % GOOD_EVERY == 0:
            require_together(self.team, self.flat.value)
        # `fill_` passes a number with its launch; one in memory of the host could be overwritten before the device reads it.
        self._rate.fill_(self.learning_rate(progress))
        self._version.fill_(self.version)
        outcome = self._compute(batch) if self._launcher is None else self._launched(self._launcher, batch)
        if self.version % EVERY == 0:
            counted = tally(outcome.loss, outcome.batch, outcome.age, sources=self.sources, members=1)
            self.numbers.tally += self.team.sum(counted)[0]
        self.version += 1
        if self._launcher is not None:
            if (gave_up := self.recovery.launched(self.version)) is not None:
                self.recurrent.forget(gave_up)
            return True
        learned = bool(outcome.finite)
        self.priorities = None
        if self.prioritises and learned:
            loss, columns = outcome.loss, self.team.columns
            self.priorities = columns(outcome.batch.id), columns(critic_priority(loss.value, loss.learnable))
        if self.recovery.count(self.version, learned=learned):
            self.recurrent.forget()
        return learned

    def _launched(self, launcher: "Graphed[UpdateOutcome]", batch: Batch) -> UpdateOutcome:
        # A recorded update is void when one of the tensors that it uses has been replaced.
        tensors = (self.flat.value, self.flat.gradient, self.bound, self.numbers.sums, *self.optimiser.state.values())
        addresses = *(tensor.data_ptr() for tensor in tensors), *self.recurrent.addresses()
        if self._addresses != addresses:
            launcher.forget()
            self._addresses = addresses
        self.recovery.launching()
        return launcher(batch)

    def _compute(self, batch: Batch) -> UpdateOutcome:
        """An update of which the host reads no value, so that a CUDA graph can record it. A gradient that is not finite changes nothing."""
        parameters = [parameter for parameter in self.flat.parameters if parameter.requires_grad]
        known = self._launcher is None and self.device.type == "cpu"
        by_numpy = known and self.team.size == 1 and fits(self.family, self.loss, self.network, self.flat.value)
        dense = self._dense(parameters) if by_numpy and self.network.dense else None
        # In inference mode torch counts no versions of tensors: an update of a small network takes 6 % less time.
        with checks.unchecked(), torch.inference_mode(dense is not None):
            if self.device.type != "cpu":
                batch = Batch(*(field.to(self.device, non_blocking=True) for field in batch))
            output, batch = self.recurrent.unroll(batch) if dense is None else (dense.forward(batch.observation), batch)
            if by_numpy:
                loss = numpy_loss(output, batch, self.hyper, self.bound)
            else:
                constants = (self.hyper, self.bound, self.generator, self.network)
                loss = laser_loss(self.family, output, batch, *constants, team=self.team)
            if dense is not None and loss.gradients is not None:
                dense.backward(*loss.gradients)
            else:
                outputs = [loss.total] if loss.gradients is None else [output.policy, output.value]
                # Not `backward`, which adds every gradient to zeros: these are copied, all of them in one launch.
                gradients = torch.autograd.grad(outputs, parameters, loss.gradients, materialize_grads=True)
                torch._foreach_copy_([parameter.grad for parameter in parameters], gradients)  # type: ignore[misc]
            # Of the whole batch from here on: what is not finite on one rank is so on all, and all skip the update.
            norm = torch.linalg.vector_norm(self.team.sum(self.flat.gradient))
            finite = torch.tensor(math.isfinite(norm)) if known else norm.isfinite()
            self._clip(norm)
            if not known or finite:
                self.optimiser.step(None if known else finite, self.flat.value, self.flat.gradient, self._rate)
            if (normaliser := self.network.normaliser) is not None:
                # After the step: the loss sees the observations as the actor of this version did, and both move to the next one together.
                normaliser.move(self.network.without_mask(batch.observation), batch.online, finite, self.team.sum)
            age = self._version - batch.version
            numbers = {**loss.numbers, **ages(age, batch, 1, self.team), "gradient_norm": norm[None]}
            self._add(list(numbers), torch.cat(list(numbers.values())))
            if self._launcher is not None:
                self.recovery.note(finite)
        return UpdateOutcome(loss._replace(total=loss.total.detach()), batch, age, finite)

    def _dense(self, parameters: Sequence[nn.Parameter]) -> Dense | None:
        """Views of the memory where the parameters lie now; None if the user has frozen some of them."""
        flat = self.flat
        if self._layers is None or self._layers.value.data_ptr() != flat.value.data_ptr():
            self._layers = Dense(self.network, flat.places, flat.value[None], flat.gradient[None])
        return self._layers if len(parameters) == self._layers.parameters else None

    def step(self, norm: Tensor, progress: float) -> None:
        self._clip(norm)
        self._rate.fill_(self.learning_rate(progress))
        self.optimiser.step(norm.isfinite(), self.flat.value, self.flat.gradient, self._rate)

    def _clip(self, norm: Tensor) -> None:
        if (limit := self.rates.clip_gradient_norm) is not None:
            self.flat.gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))

    def count(self, names: list[str], values: Tensor, counted: Tensor | None, *, learned: bool) -> None:
        """Account for an update that was computed elsewhere: its numbers, the trust bound, and the state for a roll-back."""
        self.version += 1
        self._add(names, values)
        if counted is not None:
            self.numbers.tally += counted
        if self.recovery.count(self.version, learned=learned):
            self.recurrent.forget()

    def _add(self, names: list[str], values: Tensor) -> None:
        self.numbers.add(names, values)
        if (target := self.loss.target_acceptance) is not None:
            accepted = values[names.index("acceptance")]
            self.bound.copy_(trust_region.adapt_bound(self.bound, accepted, target=target))

    def learning_rate(self, progress: float) -> float:
        rate, schedule = self.rates.learning_rate, self.rates.schedule
        if schedule == "linear":
            return rate - rate * min(round(progress * 10**9) / 10**9, 1.0)
        return rate if schedule == "constant" else rate * own_factor(schedule, 1.0 - progress)

    def report(self) -> dict[str, float]:
        """Means over the updates since the last report."""
        means = self.numbers.report()
        if self.loss.trust != "off":
            means["trust_bound"] = self.bound.item()
        counts = self.recovery.counts
        return {**means, "skipped_updates": counts.skipped, "rollbacks": counts.rollbacks}

    def setting(self, name: str) -> float:
        section, _, field = full_name(name).partition(".")
        if field == "trust_bound":
            return self.bound.item()
        return float(getattr(self.loss if section == "loss" else self.rates, field))

    def tune(self, settings: Mapping[str, float]) -> None:
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
        self._set_hyper()

    def _set_hyper(self) -> None:
        if self._launcher is not None:
            self._launcher.forget()  # the old numbers are part of what it has recorded
        self.hyper = hyper_of([self.loss], self.device)
        self.edition += 1

    def adopt(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take another learner's parameters, optimiser and bound; its own counters and random numbers stay. All or nothing."""
        require_finite(tensors["network"], "the other learner")
        load_network(self.network, tensors["network"])
        self.optimiser.load_state_dict(tensors["optimiser"])
        self.bound.copy_(tensors["learner"]["bound"])
        self.recurrent.forget()  # what lanes carry was computed by other parameters
        self.recovery.adopted()
        self.edition += 1

    def state_dict(self) -> LearnerState:
        tensors = {
            "network": {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()},
            "optimiser": {name: tensor.clone() for name, tensor in self.optimiser.state.items()},
            "learner": {
                "bound": self.bound.clone(),
                "generator": self.generator.get_state(),
                "sums": self.numbers.sums.clone(),
                "tally": self.numbers.tally.clone(),
                **self.recurrent.state_dict(),
            },
            "good": {name: tensor.clone() for name, tensor in self.recovery.good.items()},
        }
        counters = {"version": self.version, **self.recovery.counts._asdict()}
        tuned = {"loss": self.loss.model_dump(mode="json"), "optimiser": self.rates.model_dump(mode="json")}
        return LearnerState(tensors, {**counters, "names": list(self.numbers.names), **tuned})

    def load_state_dict(self, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]) -> None:
        """Continue exactly from a saved state; refused if the state that a roll-back would restore is not finite.

        A run that was exported to be carried has no "good" state: there a roll-back restores what is loaded.
        """
        require_finite(tensors.get("good", tensors["network"]), "the last state that learned")
        load_network(self.network, tensors["network"])
        self.optimiser.load_state_dict(tensors["optimiser"])
        learner = tensors["learner"]
        self.bound.copy_(learner["bound"])
        restore_generator(self.generator, learner["generator"])
        self.numbers.load_state_dict(numbers["names"], learner)
        self.recurrent.load_state_dict(learner)
        self.recovery.load_state_dict(tensors.get("good"), numbers)
        self.version = numbers["version"]
        self.loss = LossConfig.model_validate(numbers["loss"])
        self.rates = OptimiserConfig.model_validate(numbers["optimiser"])
        self._set_hyper()
