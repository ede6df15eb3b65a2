"""Whether what a claim says was seen: decided by an interval over seeds, never by eye.

A claim says that one condition is better than another. Of the difference of their mean scores we take a bootstrap interval over seeds.
All of it above the margin: reproduced. None of it: not reproduced. Otherwise the seeds do not tell: undecided. Neither do they where all
came to the same: a task that both conditions solve, or neither, is silent about which is better.

Experiments have three to ten seeds, and a plain percentile bootstrap of so few is too narrow: of two identical agents with three seeds
it would call one the better in about every fourth experiment. Two things are missing from it, and both are known: the spread of n drawn
values falls short by sqrt((n - 1) / n), and the spread itself is only an estimate, which is what Student's t is for. So deviations are
drawn with the unbiased spread, and the interval is stretched by t / z (Hesterberg 2015, "What teachers should know about the
bootstrap"). With many seeds both factors are 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Word = Literal["reproduced", "not reproduced", "undecided"]
Floats = NDArray[np.float64]


class Verdict(NamedTuple):
    """What became of a claim: the difference of the means, better less worse, and its interval."""

    word: Word
    difference: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        """As a table shows it.

        >>> print(Verdict("undecided", 0.25, (-0.5, 1.0)))
        undecided: +0.25 [-0.5, +1]
        """
        return f"{self.word}: {self.difference:+.3g} [{self.interval[0]:+.3g}, {self.interval[1]:+.3g}]"


@dataclass(frozen=True)
class Claim:
    """That the mean score of the condition `better` is above that of `worse` by more than `margin`.

    A negative margin claims "not worse by more than that".

    >>> claim = Claim("shared replay beats none", better="shared", worse="none", source="Fig. 1")
    >>> scores = {"shared": {1: 9.0, 2: 9.5, 3: 9.2}, "none": {1: 4.0, 2: 4.4, 3: 4.3}}
    >>> claim.verdict(scores).word
    'reproduced'
    """

    text: str
    better: str
    worse: str
    margin: float = 0.0
    source: str = ""  # where the paper says so

    def verdict(self, scores: Mapping[str, Mapping[int, float]], *, level: float = 0.95, seed: int = 0) -> Verdict:
        """Judge by scores[condition][seed]; paired where both conditions have the same seeds."""
        missing = [name for name in (self.better, self.worse) if not scores.get(name)]
        if missing:
            raise ValueError(
                f"{self.text}: no scores of {', '.join(missing)}, only of {', '.join(scores) or 'nothing'}"
            )
        better, worse = scores[self.better], scores[self.worse]
        paired = better.keys() == worse.keys()
        # Sorted, so that the drawing, and with it the last digits, does not depend on which seed came in first.
        return verdict(
            [better[key] for key in sorted(better)],
            [worse[key] for key in sorted(worse)],
            paired=paired,
            level=level,
            margin=self.margin,
            seed=seed,
        )


def verdict(
    better: Sequence[float],
    worse: Sequence[float],
    *,
    paired: bool = True,
    level: float = 0.95,
    margin: float = 0.0,
    resamples: int = 10_000,
    seed: int = 0,
) -> Verdict:
    """Judge the claim that `better`, one score for each seed, has a higher mean than `worse`.

    Paired scores stand at the same place for the same seed. One score alone has no spread: undecided, with an interval without ends.

    >>> verdict([5.0, 6.0, 5.5, 6.2, 5.1], [1.0, 2.5, 1.7, 2.0, 1.2]).word
    'reproduced'
    >>> verdict([1.0, 2.5, 1.7, 2.0, 1.2], [5.0, 6.0, 5.5, 6.2, 5.1]).word
    'not reproduced'
    >>> verdict([1.0, 5.0, 3.0], [2.0, 3.0, 4.0]).word
    'undecided'
    >>> verdict([1.0], [0.0])
    Verdict(word='undecided', difference=1.0, interval=(-inf, inf))
    """
    difference, interval = difference_interval(
        better, worse, paired=paired, level=level, resamples=resamples, seed=seed
    )
    return Verdict(word_of(interval, margin), difference, interval)


def word_of(interval: tuple[float, float], margin: float = 0.0) -> Word:
    """What an interval of the difference says of the claim that the difference is above `margin`.

    >>> word_of((0.1, 0.4)), word_of((-0.1, 0.4)), word_of((-0.4, 0.0))
    ('reproduced', 'undecided', 'not reproduced')
    >>> word_of((-0.1, 0.4), margin=-0.2), word_of((0.0, 0.0))
    ('reproduced', 'undecided')
    """
    low, high = interval
    if low == high == margin:
        return "undecided"
    if low > margin:
        return "reproduced"
    return "not reproduced" if high <= margin else "undecided"


def difference_interval(
    better: Sequence[float],
    worse: Sequence[float],
    *,
    paired: bool = True,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, tuple[float, float]]:
    """The difference of the means and its bootstrap interval, widened for few seeds (see above).

    >>> difference, (low, high) = difference_interval([3.0, 4.0, 5.0], [1.0, 2.5, 2.5])
    >>> difference, low < difference < high
    (2.0, True)
    """
    above, below = _scores(better, "better"), _scores(worse, "worse")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level}, expected a share between 0 and 1")
    if paired and above.size != below.size:
        raise ValueError(f"{above.size} scores against {below.size} are not pairs; pass paired=False")
    groups = (above - below,) if paired else (above, -below)
    difference = float(sum(group.mean() for group in groups))
    if any(group.size == 1 for group in groups):
        return difference, (-np.inf, np.inf)
    deviation = _bootstrapped(groups, resamples, seed)
    low, high = np.quantile(deviation, [(1 - level) / 2, (1 + level) / 2]) * _stretch(groups, level)
    return difference, (difference + float(low), difference + float(high))


def _scores(values: Sequence[float], name: str) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size == 0 or not np.isfinite(found).all():
        raise ValueError(f"{name}: expected at least one finite score, one for each seed, got {values}")
    return found


def _bootstrapped(groups: tuple[Floats, ...], resamples: int, seed: int) -> Floats:
    """What drawing seeds anew adds to the sum of the groups' means: deviations with the unbiased spread."""
    generator = np.random.default_rng(seed)
    total = np.zeros(resamples)
    for group in groups:
        deviation = (group - group.mean()) * np.sqrt(group.size / (group.size - 1))
        total += deviation[generator.integers(0, group.size, (resamples, group.size))].mean(axis=1)
    return total


def _stretch(groups: tuple[Floats, ...], level: float) -> float:
    """Student's quantile over the normal one; degrees of freedom of several groups after Welch and Satterthwaite."""
    from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]  # noqa: PLC0415 - takes long to import

    variances = np.array([group.var(ddof=1) / group.size for group in groups])
    if not variances.any():
        return 1.0  # every seed came to the same: there is nothing to stretch
    freedom = variances.sum() ** 2 / sum(
        variance**2 / (group.size - 1) for variance, group in zip(variances, groups, strict=True)
    )
    tail = (1 + level) / 2
    return float(stdtrit(freedom, tail) / ndtri(tail))
