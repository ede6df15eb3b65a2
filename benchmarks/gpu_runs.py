"""The sections of `gpu_train.py` that act as well as learn: one agent in the runtime `local`, and members of a sweep in processes."""

import gc
import itertools
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.gpu_measure import forget_memory, peak_memory, sustained
from laser_rl.config import Config, override
from laser_rl.metrics.log import FILE, read, read_from
from laser_rl.metrics.machine import memory_bytes
from laser_rl.metrics.rows import Row
from laser_rl.replay.memory_layout import DeviceBatch, allocate, shape_of
from laser_rl.replay.mixer import UniformSampler
from laser_rl.training.build import Member, device_of
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare, run
from laser_rl.training.member_training import Progress
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor

FRAMES_A_STEP = 4
WARM_UP_SHARE = 1 / 3  # of the time asked for: caches fill, graphs are captured, the replay gets its first unrolls
START_S = 300.0
LOOK_S = 0.25
MOST_ROWS = 200  # of each run, that are kept
REAL_UNROLLS = 4096  # looked at to know how many rows are steps
OWN_BATCHES = 8  # of the replay, that the learner alone learns from
Numbers = dict[str, Any]


class Alone(NamedTuple):
    """The learner with nothing beside it."""

    ms: float

    def frames_per_second(self, config: Config) -> float:
        """Training frames."""
        return 1e3 / self.ms * observations_of(config)


class Sample(NamedTuple):
    """A row of metrics, and when it came."""

    seconds: float
    step: int
    update: int
    values: Mapping[str, float]


def observations_of(config: Config) -> int:
    """Input rows of a batch."""
    return config.loss.batch_unrolls * (config.loss.unroll_steps + 1)


class Watch:
    """Keeps rows of metrics, and ends the run so many seconds after the first.

    A run that ends has a last row: nobody acts any more, and what had been gathered is still learned. That is no part of a steady flow.
    """

    def __init__(self, seconds: float) -> None:
        self.samples: list[Sample] = []
        self._seconds, self._over = seconds, False

    def __call__(self, progress: Progress) -> bool | None:
        """A callback of a run."""
        now = time.monotonic()
        if progress.kind == "train" and not self._over:
            self.samples.append(Sample(now, progress.step, progress.update, progress.values))
            self._over = now - self.samples[0].seconds > self._seconds
        return False if self._over else None


def steady(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    """Those after the warm-up; refused if they do not span a time.

    >>> samples = [Sample(10.0 + second, 0, second, {}) for second in range(10)]
    >>> [sample.update for sample in steady(samples, 9.0)]
    [3, 4, 5, 6, 7, 8, 9]
    """
    kept = [sample for sample in samples if sample.seconds - samples[0].seconds >= WARM_UP_SHARE * seconds]
    if len(kept) < 2:
        raise RuntimeError(
            f"{len(kept)} rows of metrics came after the warm-up, expected at least 2; the run was too short or too slow: "
            "give more seconds"
        )
    return kept


def mean_of(samples: Sequence[Sample], prefix: str) -> float | None:
    """The mean over time of the number whose name begins so; None if no row has one.

    >>> rows = [Sample(0, 0, 0, {}), Sample(1, 0, 0, {"learner_busy": 0.5}), Sample(4, 0, 0, {"learner_busy": 0.9})]
    >>> round(mean_of(rows, "learner_busy"), 3)
    0.8
    """
    spans, values = [], []
    for before, sample in itertools.pairwise(samples):
        found = [value for name, value in sample.values.items() if name.startswith(prefix)]
        if found:
            spans.append(sample.seconds - before.seconds)
            values.append(found[0])
    return sum(s * v for s, v in zip(spans, values, strict=True)) / sum(spans) if spans else None


def end_to_end(config: Config, seconds: float, noise: Alone, alone_seconds: float) -> Numbers:
    """Acting, replay and learning together, for so many seconds after the first row; then the same learner alone.

    Alone it learns from batches of the same replay, which lie on the card: a card at its limit of power is faster or slower with other
    numbers. What it does with a new network and random pictures, `noise`, stands beside it.
    """
    config = override(config, {"run.runtime": "local", "run.checkpoint_every_steps": 0})
    watch = Watch(seconds)
    trainer = prepare(config, callbacks=[watch])
    [member] = trainer.group.members
    device = member.learner.device
    forget_memory(device)
    try:
        run(trainer, evaluate_at_end=False)
        memory = peak_memory(device)
        samples = steady(watch.samples, seconds)
        return {
            "section": f"end to end: {config.environment.id}, ×{config.network.width}, {config.replay.fraction:.1%} replay",
            "slots": config.environment.slots,
            **_flow(member, samples, alone_of(member, alone_seconds)),
            "training_frames_per_second_learner_alone_on_noise": noise.frames_per_second(config),
            "gpu_memory_gb": None if memory.allocated is None else memory.allocated / 1e9,
            "gpu_reserved_gb": None if memory.reserved is None else memory.reserved / 1e9,
            "resident_memory_gb": memory_bytes() / 1e9,
            "rows": [_kept(sample, watch.samples[0].seconds) for sample in watch.samples[-MOST_ROWS:]],
        }
    finally:
        member.actor.environments.close()


def alone_of(member: Member, seconds: float) -> Alone:
    """Of a run that is over: its learner, with batches of its replay on the device."""
    learner, random, batches = member.learner, np.random.default_rng(0), []
    for _ in range(OWN_BATCHES):
        host = allocate(member.layout, member.config.loss.batch_unrolls, stacked=False)
        if member.replay is not None:
            UniformSampler(member.replay).fill(member.config.loss.batch_unrolls, random, host, 0)
        host.online[: member.mixer.counts.online] = True
        batches.append(DeviceBatch(member.layout, host, learner.device).copy_from(host))
    turn = itertools.cycle(batches)
    ms = sustained(lambda: learner.update(next(turn), progress=0.0), learner.device, seconds=seconds, warm_ups=3)
    return Alone(ms)


def _flow(member: Member, samples: Sequence[Sample], alone: Alone) -> Numbers:
    """What passed through a run, beside what the learner alone could take."""
    config, first, last = member.config, samples[0], samples[-1]
    seconds = last.seconds - first.seconds
    updates, steps = (last.update - first.update) / seconds, (last.step - first.step) / seconds
    training, sizes = updates * observations_of(config), shape_of(member.layout)
    new = member.config.loss.new_unrolls_per_update or max(1, member.mixer.counts.online)
    rows = FRAMES_A_STEP * new * config.loss.unroll_steps * 1e3 / alone.ms
    real = real_share(member)
    batch = config.loss.batch_unrolls * (sizes.record_bytes + sizes.frames_bytes)
    return {
        "seconds": seconds,
        "environment_frames_per_second": FRAMES_A_STEP * steps,
        "environment_frames_per_second_the_learner_alone_could_use": real * rows,
        "environment_share_of_usable": FRAMES_A_STEP * steps / (real * rows),
        "real_share_of_rows": real,
        "training_frames_per_second": training,
        "training_frames_per_second_learner_alone": alone.frames_per_second(config),
        "training_share_of_learner_alone": training / alone.frames_per_second(config),
        "learner_busy": mean_of(samples, "learner_busy"),
        "learner_wait": mean_of(samples, "learner_wait"),
        # Counted: unstacked batches for the learner, stacks for the actor.
        "uploaded_mb_per_second": (updates * batch + steps * sizes.stack * sizes.frame_bytes) / 1e6,
        "updates_per_second": updates,
        "replay_bytes": last.values.get("replay_bytes"),
    }


def real_share(member: Member) -> float:
    """Of the rows in the replay, those that are steps: the others lead from the end of an episode to the beginning of the next."""
    if member.replay is None:
        return 1.0
    batch, random = allocate(member.layout, REAL_UNROLLS, stacked=False), np.random.default_rng(0)
    UniformSampler(member.replay).fill(REAL_UNROLLS, random, batch, 0)
    return float(batch.is_transition.float().mean())


def _kept(sample: Sample, begin: float) -> Numbers:
    names = ("learner_busy", "learner_wait", "steps_per_second", "updates_per_second", "lag_updates", "replay_steps")
    values = {name: round(value, 5) for name, value in sample.values.items() if name.startswith(names)}
    return {"seconds": round(sample.seconds - begin, 2), "step": sample.step, "update": sample.update, **values}


class Watcher:
    """Looks at a sweep from a thread of its own and ends it: rows come only when members are alive, and somebody must notice if not."""

    def __init__(
        self, supervisor: ProcessSupervisor, log: Path, members: int, seconds: float, device: torch.device
    ) -> None:
        self.begin: float | None = None  # when everybody had written rows
        self.end = 0.0
        self.late = False  # it was ended because somebody was silent for too long
        self.gpu_bytes = 0
        self._supervisor, self._log, self._rows = supervisor, log, dict.fromkeys(range(members), 0)
        self._seconds, self._device, self._over = seconds, device, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._thread.start()

    @property
    def missing(self) -> list[int]:
        """Members that have not written two rows yet."""
        return [member for member, rows in self._rows.items() if rows < 2]

    def _watch(self) -> None:
        offset, started = 0, time.monotonic()
        while not self._over.wait(LOOK_S):
            rows, offset = read_from(self._log, offset)
            for row in rows:
                if row["kind"] == "train":
                    self._rows[int(row["member"])] += 1
            if self._device.type == "cuda":
                free, total = torch.cuda.mem_get_info(self._device)
                self.gpu_bytes = max(self.gpu_bytes, total - free)
            if self.begin is None and not self.missing:
                self.begin = time.time()  # rows carry the wall clock
            late = self.begin is None and time.monotonic() - started > START_S
            if late or (self.begin is not None and time.time() - self.begin > self._seconds):
                self.end, self.late = time.time(), late
                self._supervisor.stop.request("enough seen")
                return

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join(10)


def members(config: Config, count: int, seconds: float, noise: Alone, alone_seconds: float) -> Numbers:
    """A sweep of so many members with one replay, a process each, beside one member: its learner alone, and a whole run of it."""
    single = end_to_end(config, seconds / 2, noise, alone_seconds)
    gc.collect()
    forget_memory(device_of(config.run.device))  # the card is the members' now
    config = override(
        config, {"run.log_every_updates": 10, "run.checkpoint_every_steps": 0, "run.evaluate_episodes": 1}
    )
    rates = tuple({"learning_rate": 6e-4 * 2 ** (place / count)} for place in range(count))
    sweep = SweepConfig(base=config, members=rates, processes=count, stack="off")
    with tempfile.TemporaryDirectory() as folder:
        watcher = _swept(sweep, Path(folder), count, seconds)
        rows = [row for row in read(folder, ("train",)) if float(row["time"]) <= watcher.end]
    if watcher.begin is None:
        how = f"within {START_S:.0f} s" if watcher.late else "before the sweep ended; see its log"
        raise RuntimeError(f"members {watcher.missing} of {count} wrote no two rows of metrics {how}")
    since = watcher.begin + WARM_UP_SHARE * seconds
    each = [member_rates(rows, number, since) for number in range(count)]
    frames = observations_of(config)
    total, one = frames * sum(updates for updates, _ in each), single["training_frames_per_second_learner_alone"]
    ended = single["training_frames_per_second"]
    return {
        "section": f"{count} members, one replay, ×{config.network.width}, {config.replay.fraction:.1%} replay",
        "slots": config.environment.slots,
        "training_frames_per_second_all_members": total,
        "training_frames_per_second_one_learner_alone": one,
        "share_of_one_learner_alone": total / one,
        "training_frames_per_second_one_member_end_to_end": ended,
        "ratio_to_one_member_end_to_end": total / ended,
        "environment_frames_per_second_all_members": FRAMES_A_STEP * sum(steps for _, steps in each),
        "gpu_memory_gb": watcher.gpu_bytes / 1e9 or None,
        "updates_per_second_by_member": [round(updates, 3) for updates, _ in each],
        "one_member": single,
    }


def _swept(sweep: SweepConfig, folder: Path, count: int, seconds: float) -> Watcher:
    directory = RunDirectory(folder, sweep)
    try:
        supervisor = ProcessSupervisor(sweep, directory, count)
        watcher = Watcher(supervisor, folder / FILE, count, seconds, supervisor.members[0].learner.device)
        try:
            supervisor.run()
        finally:
            watcher.close()
        return watcher
    finally:
        directory.close()


def member_rates(rows: Sequence[Row], member: int, since: float) -> tuple[float, float]:
    """Updates and steps a second of one member, between its first and last row after a moment.

    >>> rows = [{"member": 0, "time": float(t), "update": 5 * t, "step": 100 * t} for t in range(4)]
    >>> member_rates(rows, 0, since=1)
    (5.0, 100.0)
    """
    own = [row for row in rows if row["member"] == member and float(row["time"]) >= since]
    if len(own) < 2:
        raise RuntimeError(
            f"member {member} wrote {len(own)} rows after the warm-up, expected at least 2; give more seconds"
        )
    seconds = float(own[-1]["time"]) - float(own[0]["time"])
    updates, steps = (int(own[-1][name]) - int(own[0][name]) for name in ("update", "step"))
    return updates / seconds, steps / seconds
