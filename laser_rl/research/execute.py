"""One run of an experiment: a sweep from its first step to its last, and its returns in buckets of steps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from laser_rl.api.sweep import require_memory
from laser_rl.envs.scores import references_of, tasks_of
from laser_rl.errors import ConfigError
from laser_rl.evaluation.statistics import Floats
from laser_rl.metrics.log import read
from laser_rl.metrics.rows import Kind, Row, Value, episodes_in
from laser_rl.research import protocol
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import act_and_learn
from laser_rl.training.launch import train as run_in_directory
from laser_rl.training.settings import SweepConfig
from laser_rl.training.trainer import Trainer

_RECORDED = ("member", "return", "episodes", "task", "acceptance", "online_share")


class Buckets(NamedTuple):
    """What members did, by bucket of steps; arrays are [members, buckets], NaN where there is nothing to say."""

    step: Floats  # [buckets], the last one of each
    update: Floats
    episodes: Floats
    value: Floats  # mean return; of a mixture the score
    acceptance: Floats
    online_share: Floats  # of the policy's gradient, where it is adaptive

    def state_dict(self) -> dict[str, Any]:
        """For JSON: seven digits, None for NaN."""
        return {name: _plain(values.tolist()) for name, values in self._asdict().items()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "Buckets":
        """The same back; ConfigError if it is not such a state.

        >>> names = ("update", "episodes", "value", "acceptance", "online_share")
        >>> Buckets.from_state_dict({"step": [10.0], **{name: [[None]] for name in names}}).value
        array([[nan]])
        """
        try:
            arrays = {name: np.array(state[name], dtype=np.float64) for name in cls._fields}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"the numbers of a run cannot be used: {error}; remove its part, and run it again"
            ) from None
        shape = arrays["value"].shape
        if not all(array.shape == shape[name == "step" :] for name, array in arrays.items()) or len(shape) != 2:  # noqa: PLR2004
            raise ConfigError("the numbers of a run have different shapes; remove its part, and run it again")
        return cls(**arrays)


def _plain(values: Any) -> Any:
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return None if math.isnan(values) else float(f"{values:.7g}")


class RowRecorder:
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
    tasks = tuple(tasks_of(sweep.base.environment.id))
    return buckets_of(
        rows,
        members=len(sweep.settings),
        steps=sweep.base.run.steps,
        bucket_steps=bucket_steps,
        tasks=tasks if len(tasks) > 1 else (),
    )


def _in_memory(sweep: SweepConfig) -> Sequence[Row]:
    recorder = RowRecorder()
    crew = build_group(sweep)
    try:
        training = Trainer(sweep, crew, sinks=[recorder])
        crew.begin()
        act_and_learn(training)
        training.report()
    finally:
        crew.close()
    return recorder.rows


def _in_directory(sweep: SweepConfig, path: Path) -> Sequence[Row]:
    directory = RunDirectory(path, sweep)
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
    own: list[list[Row]] = [[] for _ in range(members)]
    for row in rows:
        if row.get("member") in range(members):
            own[int(row["member"])].append(row)
    count = -(-steps // bucket_steps)
    found = [_member_buckets(mine, bucket_steps, count) for mine in own]
    values = [_values(mine, member, steps, bucket_steps, tasks) for member, mine in enumerate(own)]
    return Buckets(
        step=np.minimum(bucket_steps * np.arange(1.0, count + 1), steps),
        value=np.stack(values),
        **{name: np.stack([one[name] for one in found]) for name in found[0]},
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


def _member_buckets(rows: Sequence[Row], bucket_steps: int, count: int) -> dict[str, Floats]:
    update, episodes = np.full(count, np.nan), np.zeros(count)
    means: dict[str, list[list[float]]] = {name: [[] for _ in range(count)] for name in ("acceptance", "online_share")}
    for row in rows:
        place = min(max(-(-int(row["step"]) // bucket_steps) - 1, 0), count - 1)
        update[place] = np.fmax(update[place], float(row["update"]))
        episodes[place] += episodes_in(row) if row["kind"] == "episode" else 0
        for name in means.keys() & row.keys():
            means[name][place].append(float(row[name]))
    averaged = {
        name: np.array([np.mean(values) if values else np.nan for values in found]) for name, found in means.items()
    }
    return {"update": update, "episodes": episodes, **averaged}
