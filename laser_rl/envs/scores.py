"""How good an agent is at a mixture of tasks whose returns have nothing in common.

With the mean returns of random play and of the best known player, a task's normalised score is (mean - random) / (best - random). The
agent's score is the median over tasks: mean over episodes first, median over tasks after, as the paper does.
"""

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from laser_rl.errors import EnvironmentRefused

if TYPE_CHECKING:
    from laser_rl.envs.suites import Reference

log = logging.getLogger("laser_rl.envs")
PREFIX = "suite:"
RETURN_OF, SCORE_OF = "return_of_", "score_of_"  # with a task's name, in rows of metrics


@dataclass(frozen=True)
class TaskScores:
    """Mean returns and normalised scores by task; None where no episode has ended yet.

    >>> scores = TaskScores(("a", "b", "c"), (5.0, 1.0, None), (2.0, -0.5, None))
    >>> scores.median, scores.mean_capped, scores.above_random, scores.tasks_seen
    (0.75, 0.25, 1, 2)
    """

    names: tuple[str, ...]
    returns: tuple[float | None, ...]
    scores: tuple[float | None, ...]

    @property
    def median(self) -> float:
        """The agent's score: over tasks that have episodes; NaN if none has."""
        return median(self._known) if self._known else math.nan

    @property
    def mean_capped(self) -> float:
        """Mean of min(1, score), likewise: what is better than the best in one task makes up for nothing in another."""
        return sum(min(1.0, score) for score in self._known) / len(self._known) if self._known else math.nan

    @property
    def above_random(self) -> int:
        """Tasks in which the mean return is better than random play's."""
        return sum(score > 0 for score in self._known)

    @property
    def tasks_seen(self) -> int:
        """Tasks that have episodes."""
        return len(self._known)

    def numbers(self) -> dict[str, float]:
        """For a row of metrics: all but the median, which goes by another name in each kind of row."""
        found: dict[str, float] = {
            "score_mean_capped": self.mean_capped,
            "tasks_above_random": self.above_random,
            "tasks_seen": self.tasks_seen,
        }
        for name, mean, score in zip(self.names, self.returns, self.scores, strict=True):
            if mean is not None and score is not None:
                found |= {RETURN_OF + name: mean, SCORE_OF + name: score}
        return found

    @property
    def _known(self) -> list[float]:
        return [score for score in self.scores if score is not None]


def scores_of(
    names: Sequence[str], means: Sequence[float | None], references: "Sequence[Reference] | None" = None
) -> TaskScores:
    """The scores of tasks with these mean returns, by the references that are known of them unless others are given.

    >>> scores_of(["laser/Catch", "laser/TMaze-5"], [0.2, None]).scores
    (0.5, None)
    """
    references = references_of(tuple(names)) if references is None else references
    scores = tuple(
        None if mean is None else reference.normalised(mean) for mean, reference in zip(means, references, strict=True)
    )
    return TaskScores(tuple(names), tuple(means), scores)


@functools.lru_cache
def references_of(names: tuple[str, ...]) -> "tuple[Reference, ...]":
    """What scores go by. A task of which nothing is known counts with its raw return; that is said once.

    >>> references_of(("CartPole-v1", "laser/Catch"))
    (Reference(random=0.0, best=1.0), Reference(random=-0.6, best=1.0))
    """
    from laser_rl.envs.suites import Reference, reference_of  # noqa: PLC0415 - needs Gymnasium; readers of metrics do not

    known = [reference_of(name) for name in names]
    unknown = [name for name, reference in zip(names, known, strict=True) if reference is None]
    if unknown:
        log.warning(
            "no scores of random and of the best play are known for %s; raw returns count as scores", ", ".join(unknown)
        )
    return tuple(reference or Reference(0.0, 1.0) for reference in known)


def refuse_twice(names: Sequence[str]) -> None:
    """Tasks of a mixture go by their names, so a name may be there once."""
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise EnvironmentRefused(f"expected every task once, got {twice[0]} twice; leave one of them out")


def tasks_of(name: str) -> dict[str, Mapping[str, Any]]:
    """The tasks that an environment's name stands for, in order, with their own options; one that is no mixture stands for itself.

    >>> tasks_of("laser/TMaze-3,laser/TMaze-5"), tasks_of("laser/Catch")
    ({'laser/TMaze-3': {}, 'laser/TMaze-5': {}}, {'laser/Catch': {}})
    >>> tasks_of("suite:grid")["laser/TMaze-20"]
    {'tiles': True}
    """
    if name.startswith(PREFIX) and "," not in name:
        from laser_rl.envs.suites import suite_of  # noqa: PLC0415

        return {task.id: task.options for task in suite_of(name).tasks}
    names = [part.strip() for part in name.split(",")]
    if len(names) > 1 and ("" in names or any(part.startswith(PREFIX) for part in names)):
        raise EnvironmentRefused(
            f"expected ids of tasks with commas between them, got {name!r}; leave out what is empty, and name a suite alone"
        )
    refuse_twice(names)
    return {part: {} for part in names}
