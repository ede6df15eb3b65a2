"""Act and learn for K small members in one batched computation: their parameters are the rows of one matrix.

Every learner stays what it is (its state, its report, its network are views of its row), so checkpoints, copies and evaluations need not
know. Only the way of an update differs.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.agent.actor import ActorStep
from laser_rl.agent.dense import Dense
from laser_rl.agent.learner import Learner
from laser_rl.agent.learner_metrics import EVERY, ages, tally
from laser_rl.agent.loss import columns, differences, hyper_of, laser_loss
from laser_rl.agent.numpy_loss import fits, numpy_loss
from laser_rl.agent.parallel import part_of
from laser_rl.agent.parameters import Optimiser
from laser_rl.agent.policy import Decision, Seen, choose
from laser_rl.gpu_streams import own_stream
from laser_rl.ops import checks
from laser_rl.replay.memory_layout import allocate
from laser_rl.training.build import Member
from laser_rl.training.member_group import MemberGroup, PinnedBatch
from laser_rl.types import Batch, Unrolls

MOST_PARAMETERS = 300_000  # of one member; how the gain shrinks with the size is in benchmarks/README.md


def can_stack(learners: Sequence[Learner]) -> bool:
    """Whether these members can be computed side by side, and are small enough to gain by it."""
    first = learners[0]
    places = first.flat.places
    kinds = {(type(x.network.torso), x.network.bf16, x.flat.places == places, x.rates.kind) for x in learners}
    alike = len(kinds) == 1 and not any(differences(first.loss, x.loss) for x in learners)
    fixed = {(x.rates.decay, x.rates.momentum, x.rates.added, x.rates.clip_gradient_norm) for x in learners}
    ours = first.network.dense and first.network.normaliser is None
    small = first.flat.value.numel() <= MOST_PARAMETERS
    enumerable = first.family.joint_size is not None  # else each member needs random numbers of its own
    drawn = not any(x.prioritises for x in learners)
    return len(learners) > 1 and drawn and alike and len(fixed) == 1 and ours and small and enumerable


class VectorizedLearners:
    """K learners, alike but for the values of hyper-parameters (`can_stack`), whose memory it has moved into the rows of its matrices."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        first = learners[0]
        self.learners = list(learners)
        count, size, device = len(learners), first.flat.value.numel(), first.device
        self.value = torch.zeros(count, size, device=device)
        self.gradient = torch.zeros(count, size, device=device)
        self._optimiser = Optimiser(self.value, first.rates)
        for row, learner in enumerate(learners):
            learner.flat.move(self.value[row], self.gradient[row])
            learner.optimiser.move({name: rows[row] for name, rows in self._optimiser.state.items()})
        self.family = first.family
        self.layers = Dense(first.network, first.flat.places, self.value, self.gradient)

    def update(self, rows: Sequence[int], batch: Batch, *, progress: Sequence[float]) -> None:
        """One gradient step for each of these members, ascending; the batch has the columns of the first, then those of the second."""
        learners, members = [self.learners[row] for row in rows], len(rows)
        device = self.value.device
        version = torch.tensor([learner.version for learner in learners], device=device)
        dense, gradient = self.layers, self.gradient
        if members < len(self.learners):
            gradient = torch.empty_like(self.gradient[:members])
            dense = Dense(learners[0].network, learners[0].flat.places, self.value[list(rows)], gradient)
        by_numpy = fits(self.family, learners[0].loss, learners[0].network, self.value)
        with checks.unchecked(), torch.inference_mode(by_numpy):
            output = dense.forward(batch.observation)
            hyper, bound = hyper_of([x.loss for x in learners], device), torch.stack([x.bound for x in learners])
            if by_numpy:
                loss = numpy_loss(output, batch, hyper, bound)
            else:
                output = output._replace(policy=output.policy.requires_grad_(), value=output.value.requires_grad_())
                loss = laser_loss(self.family, output, batch, hyper, bound)
            dense.backward(*(loss.gradients or torch.autograd.grad(loss.total, (output.policy, output.value))))
            if dense is not self.layers:
                self.gradient[list(rows)] = gradient
            norms = self.gradient.norm(dim=1)
            finite = norms.isfinite().tolist()
            self._step(rows, norms, finite, progress)
        age = columns(version, batch) - batch.version
        numbers = {**loss.numbers, **ages(age, batch, members), "gradient_norm": norms[list(rows)]}
        names, values = list(numbers), torch.stack([number.float() for number in numbers.values()], dim=1)
        counted = None
        if learners[0].version % EVERY == 0:
            counted = tally(loss, batch, age, sources=learners[0].sources, members=members)
        for number, (row, learner) in enumerate(zip(rows, learners, strict=True)):
            own = None if counted is None else counted[number]
            learner.count(names, values[number], own, learned=finite[row])

    def _step(self, rows: Sequence[int], norms: Tensor, finite: list[bool], progress: Sequence[float]) -> None:
        if len(rows) < len(self.learners) or not all(finite):  # one by one; rows are views of the same memory
            for row, done in zip(rows, progress, strict=True):
                if finite[row]:
                    self.learners[row].step(norms[row], done)
            return
        limit = self.learners[0].rates.clip_gradient_norm
        if limit is not None:
            self.gradient.mul_((limit / (norms + 1e-6)).clamp(max=1.0)[:, None])
        rates = [learner.learning_rate(done) for learner, done in zip(self.learners, progress, strict=True)]
        rate = torch.tensor(rates, device=self.value.device)[:, None]
        self._optimiser.step(None, self.value, self.gradient, rate)


class StackedPolicy:
    """Acts for all members of a stack at once; the `slots` of each member one after the other."""

    def __init__(self, stack: VectorizedLearners, slots: int, *, seed: int) -> None:
        self._stack, self._slots = stack, slots
        self.device = stack.value.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._members = len(stack.learners)

    @torch.inference_mode()
    def act(self, rows: Seen, envs: NDArray[np.int64]) -> Decision:
        """Decide for the rows of these environments; the others are computed too, and ignored."""
        count = self._members * self._slots
        seen = np.zeros((count, *rows.observation.shape[1:]), rows.observation.dtype)
        seen[envs] = rows.observation
        with checks.unchecked():
            policy = self._stack.layers.policy(torch.from_numpy(seen).to(self.device))
            behaviour = policy[torch.from_numpy(envs).to(self.device)]
            return Decision(*(part.cpu().numpy() for part in choose(self._stack.family, behaviour, self.generator)))


class VectorizedGroup(MemberGroup):
    """All members share one actor, whose slots are theirs in turn, and are updated in one computation.

    A member that is ready waits for the others, until one has twice as many new unrolls as an update takes: members whose episodes are
    short have more rows for the same steps, and get their additional updates alone.
    """

    def __init__(self, members: Sequence[Member], stack: VectorizedLearners) -> None:
        super().__init__(members)
        self._stack, self.actor, first = stack, members[0].actor, members[0]
        self.actors = {"": self.actor}
        self._slots = first.config.environment.slots
        self._columns = first.config.loss.batch_unrolls
        device = stack.value.device
        stream, columns = own_stream(device, "uploading"), self._columns * len(members)
        host = allocate(first.layout, columns, pin=stream is not None, stacked=stream is None)
        self._batch = PinnedBatch(first.layout, host, device, stream)

    def act(self, among: Sequence[bool]) -> Iterator[tuple[int, ActorStep]]:
        versions = [member.learner.version for member in self.members]
        self.actor.versions[:] = np.repeat(versions, self._slots)
        taken = self.actor.step(np.repeat(np.asarray(among), self._slots))
        moved = taken.moved // self._slots
        for place in np.flatnonzero(among).tolist():
            first, unrolls = place * self._slots, None
            if taken.unrolls is not None:
                own = np.flatnonzero(taken.unrolls.member == self.members[place].number)
                unrolls = Unrolls(*(field.take(own, 0) for field in taken.unrolls)) if len(own) else None
            slots = range(first, first + self._slots)
            episodes = [one._replace(slot=one.slot - first) for one in taken.episodes if one.slot in slots]
            yield place, ActorStep(unrolls, episodes, taken.moved[moved == place])

    def ready(self) -> list[int]:
        """All together, or those that are ready as soon as one would fall behind."""
        mixers = [member.mixer for member in self.members]
        ready = [place for place, mixer in enumerate(mixers) if mixer.ready()]
        late = any(mixers[place].pending >= 2 * mixers[place].new_unrolls_per_update for place in ready)
        return ready if len(ready) == len(mixers) or late else []

    def learn(self, places: Sequence[int], progress: Sequence[float]) -> None:
        def fill(batch: Batch) -> None:
            for number, place in enumerate(places):
                self.members[place].mixer.fill(batch, number * self._columns)

        self._batch.fill(fill)
        with self._batch.read() as batch:
            whole = len(places) == len(self.members)
            own = batch if whole else part_of(batch, slice(0, len(places) * self._columns))
            self._stack.update(places, own, progress=progress)
