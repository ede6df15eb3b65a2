"""Playing whole episodes, and their returns as honest numbers: mean, interquartile mean, and bootstrap intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from laser_rl.envs.records import Environments, EnvironmentSpec, Rows
from laser_rl.envs.scores import TaskScores, references_of
from laser_rl.errors import ConfigError
from laser_rl.types import Episode

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_LARGE = 10  # from here on one decimal is enough to print
_LEVEL, _BATCH = 0.95, 100  # of bootstrap intervals: how sure they are, and resamples at a time
MAX_EPISODE_STEPS = 1_000_000  # ten hours of Atari; nothing that ends takes longer


def rollout(
    environments: Environments,
    act: Callable[[Rows], NDArray[np.generic]],
    episodes: int,
    max_steps: int = MAX_EPISODE_STEPS,
) -> list[Episode]:
    """Play exactly `episodes` episodes and return them, ordered by slot.

    Each slot plays a fixed number of them, decided before the first step: taking the first that end would favour the short ones. So
    more slots than episodes are of no use. `act` gets the newest row of some slots and returns an action for each, in the form that
    the environments take; where a row ended its episode, the action is ignored. An episode of more than `max_steps` steps (default:
    a million) is an error, not a wait without end. The environments must be fresh: they are reset here.
    """
    if episodes < 1:
        raise ConfigError(f"expected at least one episode to play, got {episodes}; raise --episodes")
    slots = environments.slots
    left = np.full(slots, episodes // slots, np.int64) + (np.arange(slots) < episodes % slots)  # differ by one at most
    total, length = np.zeros(slots), np.zeros(slots, np.int64)
    played: list[Episode] = []
    rows = environments.reset()
    while True:
        _count(rows, left, total, length, played)
        if not (left > 0).any():
            # Stable: within a slot the order in which they were played.
            return sorted(played, key=lambda episode: episode.slot)
        still_open = np.where(left > 0, length, 0)
        if still_open.max() > max_steps:
            raise ConfigError(
                f"{environments.spec.name}: expected an episode to end within {max_steps:,} steps, slot {still_open.argmax()} has "
                f"played {still_open.max():,}; wrap the environment in gymnasium.wrappers.TimeLimit"
            )
        # Slots that are done go on too: vector environments step all their slots or none.
        rows = environments.step(rows.slots, act(rows))


def _count(rows: Rows, left: Integers, total: Floats, length: Integers, played: list[Episode]) -> None:
    """Add new rows to the open episodes; close those that ended."""
    fresh = rows.is_first  # also where a stream broke: its open episode is void, and played again
    slots = rows.slots
    total[slots] = np.where(fresh, 0.0, total[slots] + rows.reward)
    length[slots] = np.where(fresh, 0, length[slots] + 1)
    ended = (rows.terminated | rows.truncated) & ~fresh & (left[slots] > 0)
    for slot in slots[ended].tolist():
        played.append(Episode(slot, int(length[slot]), float(total[slot])))
        left[slot] -= 1


@dataclass(frozen=True)
class TaskResult:
    """What the episodes of one task of a mixture came to."""

    name: str
    episodes: int
    mean: float  # raw return
    score: float  # the same, normalised


@dataclass(frozen=True, repr=False)
class EvalResult:
    """What a number of episodes came to. `ci95` is the bootstrap interval of the mean.

    Of a mixture of tasks, all numbers but those in `tasks` are of normalised returns. Agents are compared by `score`.
    """

    episodes: int
    mean: float
    median: float
    iqm: float
    ci95: tuple[float, float]
    std: float  # of single episodes, not of the mean; 0 for one
    minimum: float
    maximum: float
    returns: tuple[float, ...]
    length_mean: float  # NaN where lengths are not known
    tasks: tuple[TaskResult, ...] = ()  # of a mixture
    tasks_ci95: tuple[float, float] | None = None  # of a mixture: of the median over tasks

    @property
    def score(self) -> float:
        """The mean return; of a mixture, the median over tasks of the normalised mean return."""
        return self.task_scores.median if self.tasks else self.mean

    @property
    def score_ci95(self) -> tuple[float, float]:
        """The bootstrap interval of `score`; of a mixture, episodes are drawn anew within each task."""
        return self.ci95 if self.tasks_ci95 is None else self.tasks_ci95

    @property
    def task_scores(self) -> TaskScores:
        """Of a mixture: median, mean capped, how many above random; empty otherwise."""
        columns = (tuple(getattr(task, name) for task in self.tasks) for name in ("name", "mean", "score"))
        return TaskScores(*columns)

    def __repr__(self) -> str:
        score, iqm, low, high = (
            round(float(x), 1 if abs(x) >= _LARGE else 3) for x in (self.score, self.iqm, *self.score_ci95)
        )
        if self.tasks:
            return f"EvalResult(score={score}, ci95=({low}, {high}), tasks={len(self.tasks)})"
        return f"EvalResult(mean={score}, iqm={iqm}, ci95=({low}, {high}))"


def evaluation_of(fields: Mapping[str, Any]) -> EvalResult:
    """A result from its fields as JSON keeps them."""
    return TypeAdapter(EvalResult).validate_python(fields)


def summarise(returns: Sequence[float], *, lengths: Sequence[int] | None = None, seed: int = 0) -> EvalResult:
    """The statistics of episodes; the same for the same returns and seed.

    >>> summarise([490.0, 500.0, 500.0, 500.0])
    EvalResult(mean=497.5, iqm=500.0, ci95=(492.5, 500.0))
    """
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"returns have shape {values.shape}, expected at least one number")
    if lengths is not None and len(lengths) != values.size:
        raise ValueError(f"{len(lengths)} lengths for {values.size} returns, expected as many")
    return EvalResult(
        episodes=values.size,
        mean=float(values.mean()),
        median=float(np.median(values)),
        iqm=float(interquartile_mean(values)),
        ci95=bootstrap_interval([values], lambda drawn: drawn.mean(-1), seed=seed),
        std=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        minimum=float(values.min()),
        maximum=float(values.max()),
        returns=tuple(values.tolist()),
        length_mean=math.nan if lengths is None else float(np.mean(lengths)),
    )


def summarise_mixture(episodes: Sequence[Episode], spec: EnvironmentSpec) -> EvalResult:
    """The statistics of what `rollout` played in a mixture: as many episodes of every task."""
    references = references_of(spec.tasks)
    raw = [list[float]() for _ in spec.tasks]
    for episode in episodes:
        raw[spec.task_of(episode.slot)].append(episode.raw_return)
    pooled = [references[spec.task_of(one.slot)].normalised(one.raw_return) for one in episodes]
    if len({len(returns) for returns in raw}) != 1 or not pooled:
        counts = ", ".join(f"{len(returns)} of {name}" for name, returns in zip(spec.tasks, raw, strict=True))
        raise ValueError(f"expected as many episodes of every task, at least one, got {counts}")
    tasks, scores = [], []
    for name, returns, reference in zip(spec.tasks, raw, references, strict=True):
        mean = math.fsum(returns) / len(returns)
        tasks.append(TaskResult(name, len(returns), mean, reference.normalised(mean)))
        scores.append(np.array([reference.normalised(one) for one in returns]))
    ci95, tasks_ci95 = (
        bootstrap_interval(scores, lambda *drawn, of=of: of([task.mean(-1) for task in drawn], axis=0))
        for of in (np.mean, np.median)
    )
    result = summarise(pooled, lengths=[episode.length for episode in episodes])
    return replace(result, ci95=ci95, tasks=tuple(tasks), tasks_ci95=tasks_ci95)


def interquartile_mean(values: Floats) -> Floats:
    """The mean without the lowest and the highest quarter (rounded down) of the last axis."""
    size = values.shape[-1]
    cut = size // 4
    return np.asarray(np.partition(values, (cut, size - cut - 1), axis=-1)[..., cut : size - cut].mean(axis=-1))


def bootstrap_interval(
    samples: Sequence[Floats], statistic: Callable[..., Floats], *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a statistic, of 95 %.

    Each sample [n, ...] is resampled on its own, and so is each column of a table [runs, tasks]: then the bootstrap is stratified by
    task. `statistic` gets resampled samples [batch, n, ...] and returns [batch]; batches bound the memory.
    """
    generator, found = np.random.default_rng(seed), []
    for done in range(0, resamples, _BATCH):
        count = min(_BATCH, resamples - done)
        indices = [generator.integers(0, len(sample), (count, *sample.shape)) for sample in samples]
        drawn = [np.take_along_axis(sample[None], one, axis=1) for sample, one in zip(samples, indices, strict=True)]
        found.append(statistic(*drawn))
    low, high = np.quantile(np.concatenate(found), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
