"""Final scores with intervals, and what an interval is over: episodes of one agent, or agents of several seeds."""

import numpy as np

from laser_rl.metrics.reporting.document import Array, Cell, Table, number, words
from laser_rl.metrics.reporting.subject import Subject

_RESAMPLES, _SEED, _LAST = 2000, 0, 100
OVER_EPISODES = (
    "Intervals (95 %, bootstrap) are over episodes of one agent: how well its mean is known, not how another seed would do. "
    "Training returns are those of a policy that still explores and learns; an evaluation has fixed parameters."
)


def interval(values: Array) -> tuple[float, float] | None:
    """95 % bootstrap interval of a mean, with a fixed seed: the same report twice has the same numbers. None of fewer than two.

    >>> low, high = interval(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> low < 2.5 < high, interval(np.array([1.0])) is None
    (True, True)
    """
    if len(values) < 2:  # noqa: PLR2004
        return None
    chosen = np.random.default_rng(_SEED).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(values[chosen].mean(1), [0.025, 0.975])
    return float(low), float(high)


def between(pair: tuple[float, float] | None) -> Cell:
    """The cell of an interval.

    >>> between((1.0, 2.5)).text, between(None).text
    ('1 to 2.5', '–')
    """
    if pair is None:
        return Cell("–")
    return Cell(" to ".join(number(end).text for end in pair), pair)


def scores_table(subject: Subject) -> Table | None:
    """A line a member: training and evaluation; none before the first episode has ended."""
    lines, measure = [], "score" if subject.mixed else "return"
    for one in subject.members:
        rows = subject.of(one.member)
        played = next((row for row in reversed(rows) if row["kind"] == "evaluation"), {})
        # Returns of several tasks have nothing in common.
        episodes = np.empty(0) if subject.mixed else subject.single_episodes(one.member, _LAST)[1]
        lines.append(
            (
                words(one.member if subject.is_sweep else subject.name),
                number(one.return_mean),
                between(interval(episodes)),
                number(one.evaluation),
                between(one.evaluation_interval),
                number(played.get("iqm")),
                number(played.get("episodes"), lambda value: f"{value:,.0f}"),
                number(played.get("step"), lambda value: f"{value:,.0f}"),
            )
        )
    columns = (
        "member" if subject.is_sweep else "run", f"training {measure}", "its interval", f"evaluation {measure}", "interval", "IQM",
        "episodes", "at step",
    )  # fmt: skip
    if not any(cell.value is not None for line in lines for cell in line[1:]):
        return None
    leader = None if subject.best is None or not subject.is_sweep else subject.best.member
    return Table("Final scores", columns, tuple(lines), OVER_EPISODES, leader)
