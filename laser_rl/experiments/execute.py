"""One run of an experiment: a sweep from its first step to its last, and its returns in buckets of steps."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl.api.sweep import require_memory
from laser_rl.envs.scores import references_of, tasks_of
from laser_rl.errors import ConfigError
from laser_rl.evaluation import protocol
from laser_rl.metrics.log import read
from laser_rl.metrics.sink import Kind, Row, Value
from laser_rl.metrics.stream import episodes_in
from laser_rl.runtime.crew_build import build_crew
from laser_rl.runtime.sweep import SweepTraining, run_sweep
from laser_rl.runtime.sweep_directory import SweepDirectory
from laser_rl.runtime.sweep_launch import sweep as run_in_directory
from laser_rl.sweep.settings import SweepConfig

Floats = NDArray[np.float64]
_RECORDED = ("member", "return", "episodes", "task", "acceptance", "online_share")
_COLUMNS = ("update", "episodes", "value", "acceptance", "online_share")


class Buckets(NamedTuple):
    """What members did, by bucket of steps; arrays are [members, buckets], NaN where there is nothing to say."""

    step: Floats  # [buckets], the last one of each
    update: Floats
    episodes: Floats
    value: Floats  # mean return; of a mixture the score
    acceptance: Floats
    online_share: Floats  # of the policy's gradient, where it is adaptive


class Recorder:
    """A sink that keeps what `buckets_of` needs."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Take a row; a sweep's rows come with the member's number."""
        if kind in {"episode", "train"}:
            kept = {name: values[name] for name in _RECORDED if name in values}
            self.rows.append({"kind": kind, "step": step, "update": update, **kept})

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is open."""


def executed(sweep: SweepConfig, bucket_steps: int, directory: Path | None = None) -> Buckets:
    """Run a sweep to its end.

    Without a directory in one thread, so that the same sweep gives the same numbers; with one as `laser sweep` does, from the newest
    checkpoint on.
    """
    torch.set_num_threads(1)
    require_memory(sweep)
    rows = _in_memory(sweep) if directory is None else _in_directory(sweep, directory)
    base = sweep.base
    tasks = tuple(tasks_of(base.environment.id))
    return buckets_of(
        rows,
        members=len(sweep.settings),
        steps=base.run.steps,
        bucket_steps=bucket_steps,
        tasks=tasks if len(tasks) > 1 else (),
    )


def _in_memory(sweep: SweepConfig) -> Sequence[Row]:
    recorder = Recorder()
    crew = build_crew(sweep)
    try:
        training = SweepTraining(sweep, crew, sinks=[recorder])
        crew.begin()
        run_sweep(training)
        training.report()
    finally:
        crew.close()
    return recorder.rows


def _in_directory(sweep: SweepConfig, path: Path) -> Sequence[Row]:
    directory = SweepDirectory(path, sweep)
    try:
        end = run_in_directory(sweep, directory, sinks=[directory.log])
    finally:
        directory.close()
    if end.interrupted is not None:
        raise KeyboardInterrupt(end.interrupted)  # not an error of this run: the others must not go on either
    return read(path, ("episode", "train"))


def buckets_of(
    rows: Iterable[Row], *, members: int, steps: int, bucket_steps: int, tasks: Sequence[str] = ()
) -> Buckets:
    """Rows of metrics in buckets. Of a mixture, means by task are normalised and the value is their median, as the paper does.

    >>> rows = [{"kind": "episode", "member": 0, "step": step, "update": 1, "return": 1.0} for step in (5, 10, 21)]
    >>> buckets_of(rows, members=1, steps=20, bucket_steps=10).episodes
    array([[2., 1.]])
    """
    rows = list(rows)
    count = -(-steps // bucket_steps)
    own = [[row for row in rows if row.get("member") == member] for member in range(members)]
    values = [_values(mine, member, steps, bucket_steps, tasks) for member, mine in enumerate(own)]
    return Buckets(
        step=np.minimum(protocol.bucket_ends(count, bucket_steps), steps),
        update=np.stack([_largest(mine, "update", bucket_steps, count) for mine in own]),
        episodes=np.stack([_ended(mine, bucket_steps, count) for mine in own]),
        value=np.stack(values),
        acceptance=np.stack([_mean(mine, "acceptance", bucket_steps, count) for mine in own]),
        online_share=np.stack([_mean(mine, "online_share", bucket_steps, count) for mine in own]),
    )


def _values(rows: Sequence[Row], member: int, steps: int, bucket_steps: int, tasks: Sequence[str]) -> Floats:
    means = []
    for task in tasks or (None,):
        episodes = protocol.episodes_of(rows, frames_a_step=1, member=member, task=task)
        # A turn of all slots may end a few steps after the run's last one.
        within = episodes._replace(frames=np.minimum(episodes.frames, steps))
        means.append(protocol.bucketed(within, bucket_frames=bucket_steps, total_frames=steps))
    if not tasks:
        return means[0]
    return protocol.agent_curve(protocol.normalised(np.stack(means), references_of(tuple(tasks))))


def _place(row: Row, bucket_steps: int, count: int) -> int:
    return min(max(-(-int(row["step"]) // bucket_steps) - 1, 0), count - 1)


def _ended(rows: Sequence[Row], bucket_steps: int, count: int) -> Floats:
    ended = [(_place(row, bucket_steps, count), episodes_in(row)) for row in rows if row["kind"] == "episode"]
    places, episodes = np.array(ended, np.int64).reshape(-1, 2).T
    return np.bincount(places, episodes, minlength=count).astype(np.float64)


def _largest(rows: Sequence[Row], name: str, bucket_steps: int, count: int) -> Floats:
    found = np.full(count, np.nan)
    for row in rows:
        place = _place(row, bucket_steps, count)
        found[place] = np.fmax(found[place], float(row[name]))
    return found


def _mean(rows: Sequence[Row], name: str, bucket_steps: int, count: int) -> Floats:
    found: list[list[float]] = [[] for _ in range(count)]
    for row in rows:
        if name in row:
            found[_place(row, bucket_steps, count)].append(float(row[name]))
    return np.array([float(np.mean(values)) if values else np.nan for values in found])


def to_lines(buckets: Buckets) -> list[dict[str, Any]]:
    """A line for each member and bucket, as it is written; empty cells where there is nothing to say."""
    members, count = buckets.value.shape
    return [
        {
            "member": member,
            "step": int(buckets.step[place]),
            **{name: _cell(getattr(buckets, name)[member, place]) for name in _COLUMNS},
        }
        for member in range(members)
        for place in range(count)
    ]


def from_lines(lines: Sequence[Mapping[str, str]]) -> Buckets:
    """The same back.

    >>> lines = [{"member": "0", "step": "10", "update": "1", "episodes": "2", "value": "", "acceptance": "0.5", "online_share": ""}]
    >>> from_lines(lines).value
    array([[nan]])
    """
    try:
        members = 1 + max(int(line["member"]) for line in lines)
        columns = {
            name: np.array([float(line[name] or "nan") for line in lines]).reshape(members, -1)
            for name in ("step", *_COLUMNS)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the numbers of a run cannot be used: {error}; remove its part, and run it again") from None
    return Buckets(**{**columns, "step": columns["step"][0]})


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.7g}"
