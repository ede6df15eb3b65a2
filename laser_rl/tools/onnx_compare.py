"""The acting policy as one function of tensors, and whether an exported file acts as it does.

File and torch see the same rows of the environment, each with the memory that it made itself.
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from laser_rl.agent.policy import Decision, Policy, Seen, choose, finite
from laser_rl.envs.records import Environments, Rows
from laser_rl.errors import ConfigError, EnvironmentRefused, MissingExtra
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.ops import checks, popart
from laser_rl.ops.distributions import Categorical, Family, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.training.build import another, open_environments, slots_of
from laser_rl.training.evaluate import Player, Trained, task_count
from laser_rl.trust import Untrusted
from laser_rl.types import Array, Inputs, UnrollLayout


class Acting(nn.Module):
    """Rows [B, ...] in; the likeliest action, the policy's parameters and the value out, and the memory where there is one.

    A copy of the network on the CPU, in float32 and in evaluation mode: our kernels need a GPU, and a file is to run anywhere.

    Args:
        network: of the agent; it is copied.
        family: what its parameters mean.
        starts: where the environment begins to count its choices; the network counts from 0.

    >>> from laser_rl.networks.torso import MLP
    >>> from laser_rl.ops.distributions import Categorical
    >>> acting = Acting(AgentNetwork(MLP((4,), (8,)), parameter_size=2), Categorical(2))
    >>> acting.inputs, acting.outputs
    (('observation',), ('action', 'logits', 'value'))
    >>> [tuple(part.shape) for part in acting(torch.zeros(5, 4))]
    [(5,), (5, 2), (5,)]
    """

    starts: Tensor | None  # None: all at 0

    def __init__(self, network: AgentNetwork, family: Family, starts: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.network, self.family = copy.deepcopy(network).cpu().eval(), family
        self.network.bf16 = False
        first = torch.tensor(starts, dtype=torch.int64).reshape(family.action_shape) if starts else None
        self.register_buffer("starts", first, persistent=False)

    @property
    def recurrent(self) -> bool:
        """Whether it carries a state from row to row."""
        return self.network.state_size > 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return (
            ("observation", "is_first", "last_action", "last_reward", "state") if self.recurrent else ("observation",)
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results, in order."""
        parameters = ("mean", "log_std") if isinstance(self.family, DiagonalGaussian) else ("logits",)
        return ("action", *parameters, "value", *(("next_state",) if self.recurrent else ()))

    def forward(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """One row of each of B episodes."""
        # Who has no memory looks at nothing but the observation, whatever stands for the rest.
        observation, first, action, reward, state = rows if self.recurrent else rows * len((*Inputs._fields, "state"))
        if self.recurrent and self.starts is not None:
            # A first row has no last action, and whatever number stands for that may lie below the first choice.
            action = torch.where(first.reshape(-1, *(1,) * self.starts.ndim), 0, action - self.starts)
        inputs = Inputs(*(part.unsqueeze(0) for part in (observation, first, action, reward)))
        with checks.unchecked():
            output, states = self.network(inputs, state)
            _, parameters, environment_action = choose(self.family, output.policy[0], _UNUSED, deterministic=True)
            if self.starts is not None:
                environment_action = environment_action + self.starts
            results = (environment_action, *self._named(parameters), self._value(output))
        return (*results, finite(states[-1])) if self.recurrent else results

    def _named(self, parameters: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(self.family, DiagonalGaussian):
            return (parameters,)
        mean, raw = parameters.chunk(2, -1)
        return mean, (self.family.min_scale + F.softplus(raw)).log()

    def _value(self, output: Output) -> Tensor:
        """In the units of the returns, [B]; of a mixture [B, tasks], each in its task's own."""
        head = self.network.popart
        if head is None:
            return output.value[0]
        value = output.value[0] * popart.sigma(head.statistics) + head.statistics.mean
        return (value.squeeze(-1) if value.shape[-1] == 1 else value).float()


_UNUSED = torch.Generator()  # the likeliest action needs no random numbers


def example(acting: Acting, layout: UnrollLayout, seen: tuple[int, ...], batch: int) -> tuple[Tensor, ...]:
    """Arguments of the right types, all zero."""
    dtype, action = getattr(torch, layout.observation_dtype), getattr(torch, layout.action_dtype)
    rows = (
        torch.zeros(batch, *seen, dtype=dtype),
        torch.zeros(batch, dtype=torch.bool),
        torch.zeros(batch, *layout.action_shape, dtype=action),
        torch.zeros(batch),
        torch.zeros(batch, layout.state_size),
    )
    return rows if acting.recurrent else rows[:1]


log = logging.getLogger("laser_rl.tools")
SLOTS = 8
TOLERANCE = 1e-4  # of parameters, values and states; relative where they are above 1


@dataclass(frozen=True)
class Verified:
    """What was compared."""

    rows: int
    ties: int  # rows at which two actions were equally likely to within the tolerance, and each side took another
    largest: float  # difference

    def __str__(self) -> str:
        ties = f", {self.ties} of them ties" if self.ties else ""
        return f"same actions on {self.rows} observations{ties}, largest difference {self.largest:.1g}"


@dataclass(frozen=True)
class ComparedRow:
    """What some slots showed at once."""

    slots: NDArray[np.int64]
    seen: Seen


class _Watched:
    """A policy that keeps what it was shown."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.rows = policy, list[ComparedRow]()

    def act(self, rows: Seen, slots: NDArray[np.int64] | None = None) -> Decision:
        assert slots is not None  # noqa: S101 - a player always says them
        self.rows.append(ComparedRow(slots.copy(), Seen._make(np.array(part) for part in rows)))
        return self._policy.act(rows, slots)


class RandomRows:
    """Stands for an environment that may not be opened: rows of random numbers in the shape of its observations."""

    def __init__(self, trained: Trained, slots: int, seed: int) -> None:
        self.spec, self.slots = trained.spec, slots
        self._random = np.random.default_rng(seed)

    def reset(self) -> Rows:
        """All begin an episode."""
        return self._rows(np.ones(self.slots, np.bool_))

    def step(self, slots: NDArray[np.int64], action: NDArray[np.generic]) -> Rows:
        """One in ten begins an episode, whatever was done."""
        return self._rows(self._random.random(self.slots) < 0.1)  # noqa: PLR2004

    def close(self) -> None:
        """Nothing is open."""

    def _rows(self, first: NDArray[np.bool_]) -> Rows:
        shape, random = (self.slots, *self.spec.observation.shape), self._random
        pictures = self.spec.observation.dtype == "uint8"
        seen = random.integers(0, 256, shape, np.uint8) if pictures else random.standard_normal(shape, np.float32)
        reward = np.where(first, 0.0, random.standard_normal(self.slots)).astype(np.float32)
        flags, numbers = np.zeros((4, self.slots), np.bool_), np.zeros((2, self.slots), np.int64)
        return Rows(np.arange(self.slots), seen, first, reward, *flags, *numbers)


def observed(trained: Trained, rows: int, *, seed: int = 0) -> list[ComparedRow]:
    """Play, with sampled actions, until about so many rows were seen; random numbers where the environment may not be imported."""
    tasks, source = task_count(trained.source), another(trained.source)
    slots = slots_of(source) or max(1, SLOTS // tasks) * tasks
    environments: Environments | RandomRows
    try:
        environments = open_environments(source, trained.environment, seed=seed, lockstep=True, slots=slots)
    except (Untrusted, EnvironmentRefused, MissingExtra) as problem:
        log.warning("the ONNX file is compared on random numbers, not on observations: %s", problem)
        environments = RandomRows(trained, slots, seed)
    watched = _Watched(Policy(trained.network, trained.family, seed=seed))
    player = Player(watched, trained.layout, slots)  # type: ignore[arg-type]
    try:
        now = environments.reset()
        for _ in range(-(-rows // slots)):
            now = environments.step(now.slots, player(now))
    finally:
        environments.close()
    return watched.rows


def compare(acting: Acting, trained: Trained, session: Any, rows: Sequence[ComparedRow]) -> Verified:
    """Refuse a file that does not do at every row what torch does; the memories are carried, not handed over."""
    count, ties, largest = 0, 0, 0.0
    for number, (theirs, ours) in enumerate(_both(acting, trained, session, rows)):
        for name, mine in ours.items():
            if name == "action" and mine.dtype.kind == "i":
                continue
            off = _off(theirs[name], mine)
            largest = max(largest, off)
            _require(off <= TOLERANCE, f"{name} differs by {off:.2g} at row {number}, expected {TOLERANCE} at most")
        if ours["action"].dtype.kind == "i":
            worse = _lost(trained, ours["logits"], _moved(acting, theirs["action"], -1))
            _require(bool((worse <= 2 * TOLERANCE).all()), f"another action is chosen at row {number}")
            other = (theirs["action"] != ours["action"]).reshape(len(worse), -1).any(-1)
            ties += int(other.sum())
        count += len(ours["action"])
    return Verified(count, ties, largest)


def _both(
    acting: Acting, trained: Trained, session: Any, rows: Sequence[ComparedRow]
) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Results of the file and of torch, row by row; the first row of all also one slot at a time, another size of batch."""
    for row in rows[:1]:
        for at in range(len(row.slots)):
            one = _given(acting, [part[at : at + 1] for part in row.seen])
            yield _run(session, acting, one), _torch(acting, one)
    slots = max((int(row.slots.max()) + 1 for row in rows), default=0)
    theirs, ours = np.zeros((2, slots, trained.layout.state_size), np.float32)
    for row in rows:
        before = [(*row.seen[:-1], states[row.slots]) for states in (theirs, ours)]
        given = [_given(acting, parts) for parts in before]
        results = _run(session, acting, given[0]), _torch(acting, given[1])
        if acting.recurrent:
            theirs[row.slots], ours[row.slots] = (result["next_state"] for result in results)
        yield results


def _given(acting: Acting, parts: Sequence[Array]) -> dict[str, Array]:
    """Arguments by name; the last action in the environment's numbers, as a user of the file has it."""
    given = dict(zip(acting.inputs, parts, strict=False))
    if "last_action" in given:
        given["last_action"] = _moved(acting, given["last_action"], 1)
    return given


def _moved(acting: Acting, action: Array, sign: int) -> Array:
    """Choices in the environment's numbers (1), or in the network's (-1)."""
    return action if acting.starts is None else np.asarray(action, np.int64) + sign * acting.starts.numpy()


def _run(session: Any, acting: Acting, given: dict[str, Array]) -> dict[str, Array]:
    return dict(zip(acting.outputs, session.run(list(acting.outputs), given), strict=True))


def _torch(acting: Acting, given: dict[str, Array]) -> dict[str, Array]:
    with torch.inference_mode():
        results = acting(*(torch.from_numpy(np.ascontiguousarray(part)) for part in given.values()))
    return {name: result.numpy() for name, result in zip(acting.outputs, results, strict=True)}


def _lost(trained: Trained, logits: Array, action: Array) -> NDArray[np.float64]:
    """How much less likely, in logits, an action is than the likeliest; 0 where it is that."""
    family = trained.family
    assert isinstance(family, Categorical | MultiCategorical)  # noqa: S101 - others have no logits
    counts = (family.actions,) if isinstance(family, Categorical) else family.actions
    parts = np.split(np.asarray(logits, np.float64), np.cumsum(counts)[:-1], axis=-1)
    chosen = np.asarray(action, np.int64).reshape(len(action), -1).T
    each = [
        part.max(-1) - np.take_along_axis(part, at[:, None], -1)[:, 0] for part, at in zip(parts, chosen, strict=True)
    ]
    most: NDArray[np.float64] = np.max(each, axis=0)
    return most


def _off(theirs: Array, ours: Array) -> float:
    """The largest difference; what is not finite on one side only is infinitely far."""
    a, b = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
    off = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0.0))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(
            f"the ONNX file does not act as torch does: {what}; nothing was written. "
            "Try other versions of torch and onnxruntime, and please report it"
        )
