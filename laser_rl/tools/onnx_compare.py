"""Does a file act as torch does? Both see the same rows of the environment, each with the memory that it made itself."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl.agent.policy import Decision, Policy, Seen
from laser_rl.envs.records import Environments, Rows
from laser_rl.errors import ConfigError, EnvironmentRefused, MissingExtra
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.runtime.build import another, open_environments, slots_of
from laser_rl.runtime.evaluate import Player, Trained, task_count
from laser_rl.tools.acting import Acting
from laser_rl.trust import Untrusted
from laser_rl.types import Array

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
class Row:
    """What some slots showed at once."""

    slots: NDArray[np.int64]
    seen: Seen


class _Watched:
    """A policy that keeps what it was shown."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.rows = policy, list[Row]()

    def act(self, rows: Seen, slots: NDArray[np.int64] | None = None) -> Decision:
        assert slots is not None  # noqa: S101 - a player always says them
        self.rows.append(Row(slots.copy(), Seen._make(np.array(part) for part in rows)))
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


def observed(trained: Trained, rows: int, *, seed: int = 0) -> list[Row]:
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


def compare(acting: Acting, trained: Trained, session: Any, rows: Sequence[Row]) -> Verified:
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
    acting: Acting, trained: Trained, session: Any, rows: Sequence[Row]
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
