"""The paper's evaluation protocol: from the returns of episodes to the curve of a sweep.

1. The returns of the episodes of an agent in a task are averaged in buckets of frames: a million on Atari, ten million on DMLab-30.
2. They are normalised: 0 is random play, 1 is a person.
3. The agent's number is the median over its tasks.
4. Of a sweep, at every bucket the best of the members that have a number counts. A maximum, and so optimistic.

The order of 3 and 4 matters: the median of each task's best member is a score that no single agent reached.

Arrays are [members, tasks, buckets].
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from laser_rl.envs.scores import Reference, references_of
from laser_rl.evaluation.statistics import Floats
from laser_rl.metrics.rows import episodes_in

ATARI_BUCKET_FRAMES, DMLAB_BUCKET_FRAMES = 1_000_000, 10_000_000


class Episodes(NamedTuple):
    """The episodes of one agent in one task, in the order in which they ended."""

    frames: Floats  # that the agent had seen when the episode ended
    returns: Floats  # raw, as the environment pays them
    weights: Floats  # how many episodes each is the last and the mean of


def episodes_of(
    rows: Iterable[Mapping[str, Any]], *, frames_a_step: int, member: int | None = None, task: str | None = None
) -> Episodes:
    """The episodes in rows of metrics: of one member of a sweep, of one task of a mixture. A row may stand for several episodes."""
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
    """
    if episodes.frames.size and episodes.frames.max() > total_frames:
        raise ValueError(f"an episode ended after {episodes.frames.max():,.0f} frames, the run has {total_frames:,}")
    count = -(-total_frames // bucket_frames)
    bucket = np.maximum(np.ceil(episodes.frames / bucket_frames).astype(np.int64) - 1, 0)
    ended = np.bincount(bucket, weights=episodes.weights, minlength=count)
    total = np.bincount(bucket, weights=episodes.weights * episodes.returns, minlength=count)
    return np.asarray(np.divide(total, ended, out=np.full(count, np.nan), where=ended > 0))


def carried(values: ArrayLike) -> Floats:
    """Empty buckets take the value of the last one that was not; NaN before the first.

    A bucket is empty where episodes are long, and they are long where the agent plays well. A median without those tasks would fall
    because an agent became better; and the last known mean is the best guess at a policy that moves slowly.
    """
    values = np.asarray(values, dtype=np.float64)
    place = np.where(np.isnan(values), 0, np.arange(values.shape[-1]))
    return np.take_along_axis(values, np.maximum.accumulate(place, axis=-1), axis=-1)


def normalised(values: ArrayLike, references: Sequence[Reference]) -> Floats:
    """(return − random) / (human − random) of values [..., tasks, buckets]: 0 is random play, 1 a person."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape[-2] != len(references):
        raise ValueError(f"values {values.shape} are of {values.shape[-2]} tasks, references of {len(references)}")
    random = np.array([one.random for one in references])[:, None]
    human = np.array([one.best for one in references])[:, None]
    return np.asarray((values - random) / (human - random))


def agent_curve(scores: ArrayLike) -> Floats:
    """Of normalised scores [..., tasks, buckets] the median over tasks; NaN until every task has one: short episodes end first."""
    return np.asarray(np.median(carried(scores), axis=-2))


def curve_lines(
    rows: Iterable[Mapping[str, Any]], *, members: int, steps: int, bucket_steps: int, tasks: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """A sweep's rows of metrics as one line a bucket: mean, best and worst of the members that have a number by then.

    Updates and episodes are those of all members. Of a mixture, means by task are normalised and the value is their median, as the paper
    does.
    """
    count = -(-steps // bucket_steps)
    own: list[list[Mapping[str, Any]]] = [[] for _ in range(members)]
    update, episodes = np.full((members, count), np.nan), np.zeros((members, count))
    accepted: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        if row.get("member") not in range(members):
            continue
        place = row["member"], min(max(-(-int(row["step"]) // bucket_steps) - 1, 0), count - 1)
        own[row["member"]].append(row)
        update[place] = np.fmax(update[place], float(row["update"]))
        episodes[place] += episodes_in(row) if row["kind"] == "episode" else 0
        if "acceptance" in row:
            accepted.setdefault(place, []).append(float(row["acceptance"]))
    value = carried([_values(mine, member, steps, bucket_steps, tasks) for member, mine in enumerate(own)])
    update, lines = carried(update), []
    for bucket in range(count):
        found = value[:, bucket][~np.isnan(value[:, bucket])]
        shares = [np.mean(accepted[member, bucket]) for member in range(members) if (member, bucket) in accepted]
        lines.append({
            "step": min(bucket_steps * (bucket + 1), steps),
            "update": int(np.nansum(update[:, bucket])),
            "episodes": int(episodes[:, bucket].sum()),
            "mean": _cell(found),
            "best": _cell(found, np.max),
            "worst": _cell(found, np.min),
            "acceptance": _cell(np.array(shares)),
        })  # fmt: skip
    return lines


def _values(rows: Sequence[Mapping[str, Any]], member: int, steps: int, bucket: int, tasks: Sequence[str]) -> Floats:
    means = []
    for task in tasks or (None,):
        episodes = episodes_of(rows, frames_a_step=1, member=member, task=task)
        # A turn of all slots may end a few steps after the run's last one.
        within = episodes._replace(frames=np.minimum(episodes.frames, steps))
        means.append(bucketed(within, bucket_frames=bucket, total_frames=steps))
    return agent_curve(normalised(means, references_of(tuple(tasks)))) if tasks else means[0]


def _cell(values: Floats, made: Callable[[Floats], Any] = np.mean) -> str:
    return f"{made(values):.6g}" if values.size else ""
