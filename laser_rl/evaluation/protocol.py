"""The paper's evaluation protocol: from the returns of episodes to the curve of a sweep.

1. The returns of the episodes of an agent in a task are averaged in buckets of frames: a million on Atari, ten million on DMLab-30.
2. They are normalised: 0 is random play, 1 is a person.
3. The agent's number is the median over its tasks.
4. Of a sweep, at every bucket the best member counts; a sweep is repeated, and its replicas have a mean, a worst and a best.

The order of 3 and 4 matters. The best member of each task, and the median after, is the score of an agent that nobody trained.

Arrays have their buckets last; before them tasks, before those members, before those replicas: [replicas, members, tasks, buckets].
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laser_rl.envs.suites import Reference

ATARI_BUCKET_FRAMES, DMLAB_BUCKET_FRAMES = 1_000_000, 10_000_000
DMLAB_DOWNSAMPLING = 10  # buckets of 10 M frames become points of 100 M
LAST_EPISODES = 100  # of which the scores in the paper's table are the mean
Floats = NDArray[np.float64]


class Episodes(NamedTuple):
    """The episodes of one agent in one task, in the order in which they ended."""

    frames: Floats  # that the agent had seen when the episode ended
    returns: Floats  # raw, as the environment pays them
    counts: Floats | None = None  # how many episodes each is the last and the mean of; None: one each

    @property
    def weights(self) -> Floats:
        """How many episodes each row stands for."""
        return np.ones(len(self.frames)) if self.counts is None else self.counts


def episodes_of(
    rows: Iterable[Mapping[str, Any]], *, frames_a_step: int, member: int | None = None, task: str | None = None
) -> Episodes:
    """The episodes in rows of metrics: of one member of a sweep, of one task of a mixture. A row may be of several.

    >>> rows = [{"kind": "episode", "step": 50, "return": 3.0}, {"kind": "train", "step": 60}]
    >>> episodes_of(rows, frames_a_step=4)
    Episodes(frames=array([200.]), returns=array([3.]), counts=array([1.]))
    """
    found = [
        (float(row["step"]) * frames_a_step, float(row["return"]), max(1.0, float(row.get("episodes", 1))))
        for row in rows
        if row["kind"] == "episode" and "return" in row and row.get("member") == member and row.get("task") == task
    ]
    # Rows of several processes may stand in another order than they were made; equal frames keep theirs.
    columns = np.array(sorted(found, key=lambda one: one[0]), dtype=np.float64).reshape(-1, 3)
    return Episodes(columns[:, 0], columns[:, 1], columns[:, 2])


def bucketed(episodes: Episodes, *, bucket_frames: int, total_frames: int) -> Floats:
    """The mean return of the episodes that ended in each bucket; NaN where none did. The last bucket may be cut short by the run's end.

    Bucket k is (k·bucket_frames, (k+1)·bucket_frames]: what ends at the very frame at which a score is taken counts for it.

    >>> episodes = Episodes(np.array([5.0, 10.0, 11.0, 35.0]), np.array([1.0, 3.0, 7.0, 9.0]))
    >>> bucketed(episodes, bucket_frames=10, total_frames=35).tolist()
    [2.0, 7.0, nan, 9.0]
    """
    _check_frames(episodes, total_frames)
    count = -(-total_frames // bucket_frames)
    bucket = np.maximum(np.ceil(episodes.frames / bucket_frames).astype(np.int64) - 1, 0)
    ended = np.bincount(bucket, weights=episodes.weights, minlength=count)
    total = np.bincount(bucket, weights=episodes.weights * episodes.returns, minlength=count)
    return np.asarray(np.divide(total, ended, out=np.full(count, np.nan), where=ended > 0))


def bucket_ends(count: int, bucket_frames: int) -> Floats:
    """Where to draw the buckets: at their last frames.

    >>> bucket_ends(3, 10).tolist()
    [10.0, 20.0, 30.0]
    """
    return bucket_frames * np.arange(1.0, count + 1)


def carried(values: ArrayLike) -> Floats:
    """Empty buckets take the value of the last one that was not; NaN before the first.

    A bucket is empty where episodes are long, and they are long where the agent plays well. A median without those tasks would fall
    because an agent became better; and the last known mean is the best guess at a policy that moves slowly.

    >>> carried([np.nan, 1.0, np.nan, 3.0]).tolist()
    [nan, 1.0, 1.0, 3.0]
    """
    values = np.asarray(values, dtype=np.float64)
    place = np.where(np.isnan(values), 0, np.arange(values.shape[-1]))
    return np.take_along_axis(values, np.maximum.accumulate(place, axis=-1), axis=-1)


def normalised(values: ArrayLike, references: Sequence[Reference]) -> Floats:
    """(return − random) / (human − random) of values [..., tasks, buckets]: 0 is random play, 1 a person.

    >>> normalised([[1.7, 16.1, 30.5]], [Reference(random=1.7, best=30.5)]).round(6).tolist()
    [[0.0, 0.5, 1.0]]
    """
    values = _with_tasks(values)
    if values.shape[-2] != len(references):
        raise ValueError(f"values {values.shape} are of {values.shape[-2]} tasks, references of {len(references)}")
    random = np.array([one.random for one in references])[:, None]
    human = np.array([one.best for one in references])[:, None]
    return np.asarray((values - random) / (human - random))


def median_over_tasks(scores: ArrayLike) -> Floats:
    """[..., tasks, buckets] to [..., buckets]. NaN until every task has a number: short episodes end first, and would count alone.

    >>> median_over_tasks([[0.1, 0.2], [np.nan, 0.4], [0.5, 0.6]]).tolist()
    [nan, 0.4]
    """
    return np.asarray(np.median(_with_tasks(scores), axis=-2))


def mean_capped(scores: ArrayLike, cap: float = 1.0) -> Floats:
    """DMLab-30's other number: mean over tasks of what counts at most `cap`; NaN until every task has a number.

    >>> mean_capped([[0.5, 0.5], [3.0, -0.5]]).tolist()
    [0.75, 0.0]
    """
    return np.asarray(np.minimum(_with_tasks(scores), cap).mean(axis=-2))


def downsampled(values: ArrayLike, factor: int) -> Floats:
    """The means of `factor` consecutive buckets, of those that have numbers; an incomplete group at the end is left out.

    The paper calls its downsampling a smoothing; so it is taken for a mean.

    >>> downsampled([1.0, 3.0, np.nan, 5.0, 9.0], 2).tolist()
    [2.0, 5.0]
    """
    values = np.asarray(values, dtype=np.float64)
    count = values.shape[-1] // factor
    groups = values[..., : count * factor].reshape(*values.shape[:-1], count, factor)
    known = ~np.isnan(groups)
    total, size = np.where(known, groups, 0.0).sum(-1), known.sum(-1)
    return np.asarray(np.divide(total, size, out=np.full(total.shape, np.nan), where=size > 0))


def best_member(values: ArrayLike) -> Floats:
    """[..., members, buckets] to [..., buckets]: at each bucket the best of those that have a number. A maximum, and so optimistic.

    >>> best_member([[0.1, 0.9], [0.4, np.nan]]).tolist()
    [0.4, 0.9]
    """
    values = np.asarray(values, dtype=np.float64)
    return np.asarray(np.fmax.reduce(values, axis=-2))  # fmax prefers a number to NaN


def agent_curve(scores: ArrayLike) -> Floats:
    """The curve of one agent, or of one agent a task, from normalised scores [tasks, buckets]: the median over tasks.

    >>> agent_curve([[0.0, 1.0, np.nan], [0.5, 0.0, 2.0], [np.nan, 4.0, 4.0]]).tolist()
    [nan, 1.0, 2.0]
    """
    return median_over_tasks(carried(scores))


def sweep_curve(scores: ArrayLike, *, downsampling: int = 1) -> Floats:
    """The curve of a sweep from normalised scores [..., members, tasks, buckets]: median over tasks, smoothing, then the best member.

    Member 0 is good at the first two tasks, member 1 at the last two; nobody is good at most of them:

    >>> sweep_curve([[[1.0], [1.0], [0.0], [0.0]], [[0.0], [0.0], [1.0], [1.0]]]).tolist()
    [0.5]
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim < 3:  # noqa: PLR2004
        raise ValueError(f"scores have shape {scores.shape}, expected [..., members, tasks, buckets]")
    return best_member(downsampled(agent_curve(scores), downsampling))


class Band(NamedTuple):
    """Replicas of a sweep, or seeds of an agent: as the paper draws them, a line and a shade."""

    mean: Floats
    worst: Floats
    best: Floats


def over_replicas(curves: ArrayLike) -> Band:
    """The band of curves [replicas, buckets]; NaN where a replica has no number yet.

    >>> [part.tolist() for part in over_replicas([[1.0, 2.0], [3.0, np.nan]])]
    [[2.0, nan], [1.0, nan], [3.0, nan]]
    """
    curves = np.asarray(curves, dtype=np.float64)
    if curves.ndim != 2:  # noqa: PLR2004
        raise ValueError(f"curves have shape {curves.shape}, expected [replicas, buckets]")
    return Band(curves.mean(0), curves.min(0), curves.max(0))


def common_buckets(curves: Sequence[ArrayLike]) -> Floats:
    """Curves of runs of different lengths, cut to the shortest: where a run has stopped, nothing is known of it.

    >>> common_buckets([[1.0, 2.0, 3.0], [4.0, 5.0]]).tolist()
    [[1.0, 2.0], [4.0, 5.0]]
    """
    arrays = [np.asarray(curve, dtype=np.float64) for curve in curves]
    shortest = min(array.shape[-1] for array in arrays)
    return np.stack([array[..., :shortest] for array in arrays])


def last_episodes(episodes: Episodes, *, before_frames: float | None = None, count: int = LAST_EPISODES) -> float:
    """The score of the paper's table: mean return of the last `count` episodes that ended within some frames. NaN without episodes.

    >>> episodes = Episodes(np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0, 9.0]))
    >>> last_episodes(episodes, count=2), last_episodes(episodes, before_frames=20)
    (5.5, 1.5)

    Where rows are of several episodes, the mean is over the fewest last rows that hold so many.

    >>> last_episodes(Episodes(np.array([10.0, 20.0]), np.array([1.0, 4.0]), np.array([8.0, 16.0])), count=20)
    3.0
    """
    within = slice(None) if before_frames is None else episodes.frames <= before_frames
    returns, weights = episodes.returns[within], episodes.weights[within]
    if not returns.size:
        return float("nan")
    after = np.cumsum(weights[::-1])[::-1] - weights  # episodes after each row
    last = after < count
    if (weights[last] == 1).all():
        return float(returns[last].mean())
    return float(np.average(returns[last], weights=weights[last]))


def _with_tasks(values: ArrayLike) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim < 2:  # noqa: PLR2004
        raise ValueError(f"values have shape {found.shape}, expected [..., tasks, buckets]")
    return found


def _check_frames(episodes: Episodes, total_frames: int) -> None:
    if episodes.frames.size and episodes.frames.max() > total_frames:
        raise ValueError(f"an episode ended after {episodes.frames.max():,.0f} frames, the run has {total_frames:,}")
