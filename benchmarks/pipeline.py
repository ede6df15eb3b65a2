"""Does `local` overlap acting and learning? Seconds per update of each alone, of both in `local`, and of both in two processes.

All at the same exact ratio of new unrolls to updates. Acting alone is the actor's loop with an inbox that takes everything; learning alone
offers, gathers and learns unrolls that are there already; each keeps one core busy. The ideal of `local` is the slower of the two. The
same two at once in two processes have no interpreter lock in common: what they lose is the machine's (memory, caches, other users).
Run: python benchmarks/pipeline.py [--cases pong minatar catch] [--seconds 2.5] [--repeats 3] [--csv FILE]
"""

import argparse
import csv
import datetime as dt
import itertools
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from laser_rl import recipes
from laser_rl.agent.parameters import FlatParameters
from laser_rl.config import Config, override
from laser_rl.errors import UserError
from laser_rl.replay.memory_layout import allocate
from laser_rl.training.build import Member
from laser_rl.training.launch import prepare
from laser_rl.training.member_group import ThreadMailbox
from laser_rl.training.stop import Stop
from laser_rl.training.threads import run_actor, run_local
from laser_rl.training.trainer import Trainer
from laser_rl.types import Delivery, Unrolls

RATIOS = ("local / slower alone", "local / slower of two processes", "local / sum", "CPU: local / sum")
WARM_UP = 0.25  # share of a part's time that is not counted
PREFILL_UNROLLS, FOREVER, PATIENCE_S = 64, 10**12, 120.0
ON_ONE_CORE: dict[str, Any] = {"run.runtime": "local", "run.threads": 1, "run.device": "cpu", "run.steps": FOREVER}
PONG = {
    "width": 1,
    "environment.atari.threads": 1,
    "environment.slots": 16,
    "capacity_steps": 50_000,
    "batch_unrolls": 4,
    "replay.fraction": 0.5,
    "new_unrolls_per_update": 8,  # about as much acting as learning, where overlap is hardest and brings most
}
CATCH = {"environment.slots": 16, "fraction": 0.875, "batch_unrolls": 8}
CASES: dict[str, Callable[[], Config]] = {
    # ALE's own vector environment, IMPALA's small network in bf16.
    "pong": lambda: override(recipes.atari("ALE/Pong-v5"), {**ON_ONE_CORE, **PONG}),
    # Environments in a worker process, a small CNN; the recipe as it is.
    "minatar": lambda: override(recipes.minatar(), {**ON_ONE_CORE, "placement": "process", "workers": 1}),
    # All in NumPy and a tiny network: nearly everything holds the interpreter lock.
    "catch": lambda: override(recipes.cartpole("laser/Catch"), {**ON_ONE_CORE, **CATCH}),
}


class Pace(NamedTuple):
    """What one update takes."""

    seconds: float
    cpu_seconds: float  # of this process, all threads; hardly depends on who else uses the cores


class Marks:
    """Counts of something at moments; a pace comes from those after the warm-up."""

    def __init__(self, seconds: float) -> None:
        self._begin, self._seconds, self._total = time.perf_counter(), seconds, 0
        self._marks: list[tuple[float, float, int]] = []

    def add(self, count: int = 1) -> bool:
        """So many more; True when the time is over."""
        passed, self._total = time.perf_counter() - self._begin, self._total + count
        if passed >= WARM_UP * self._seconds:
            self._marks.append((passed, time.process_time(), self._total))
        return passed >= self._seconds and len(self._marks) > 1

    def pace(self, times: int = 1) -> Pace:
        """Of `times` of what was counted."""
        (begin, cpu_begin, first), (end, cpu_end, last) = self._marks[0], self._marks[-1]
        share = times / (last - first)
        return Pace((end - begin) * share, (cpu_end - cpu_begin) * share)


class Everything:
    """An inbox that takes everything at once, until the time is over."""

    def __init__(self, marks: Marks, stop: Stop) -> None:
        self.unrolls: list[Unrolls] = []
        self._marks, self._stop = marks, stop

    def put(self, delivery: Delivery, timeout_s: float) -> bool:
        """Always room."""
        self.unrolls = [*self.unrolls[-PREFILL_UNROLLS:], delivery.unrolls]
        if self._marks.add(len(delivery.unrolls.reward)):
            self._stop.request("enough")
        return True

    def take(self, timeout_s: float) -> Delivery | None:
        """Nobody asks."""
        return None


def acting(member: Member, seconds: float) -> tuple[Pace, list[Unrolls]]:
    """What the actor needs for the new unrolls of one update, and some unrolls."""
    marks, stop = Marks(seconds), Stop()
    inbox, flat = Everything(marks, stop), FlatParameters(member.acting)
    mailbox = ThreadMailbox(flat.value, member.actor.version)
    run_actor(member.actor, flat, inbox, mailbox, stop, threading.Lock(), FOREVER)
    return marks.pace(member.mixer.new_unrolls_per_update), inbox.unrolls


def learning(member: Member, unrolls: list[Unrolls], seconds: float) -> Pace:
    """One update from unrolls that are there: into the replay, gathered, learned."""
    batch = allocate(member.layout, member.config.loss.batch_unrolls)
    marks = Marks(seconds)
    for new in itertools.cycle(unrolls):
        member.mixer.offer(new)
        while member.mixer.ready():
            member.mixer.fill(batch)
            member.learner.update(batch, progress=0.0)
            if marks.add():
                return marks.pace()
    raise AssertionError("there were no unrolls")


def both(trainer: Trainer, seconds: float) -> Pace:
    """One update in `local`; the trainer ends after so many seconds."""
    marks, [training] = Marks(seconds), trainer.trainings
    trainer.extend(10**9, total=None)
    learned = training.learned

    def timed() -> None:
        if marks.add():
            trainer.stop.request("enough")
        learned()

    training.learned = timed  # type: ignore[method-assign]
    run_local(trainer)
    training.learned = learned  # type: ignore[method-assign]
    training.check()
    return marks.pace()


@contextmanager
def built(case: str) -> Iterator[Trainer]:
    """The run of a case, with its environments started."""
    trainer = prepare(CASES[case]())
    try:
        yield trainer
    finally:
        trainer.group.close()


def act_on_demand(case: str, orders: Connection) -> None:
    """The other process: acts for as many seconds as it is told and answers with its pace, until the pipe is closed."""
    with built(case) as trainer:
        [member] = trainer.group.members
        orders.send(0.0)
        try:
            while True:
                orders.send(acting(member, orders.recv())[0].seconds)
        except EOFError:
            return


class Neighbour:
    """An actor in another process."""

    def __init__(self, case: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=act_on_demand, args=(case, theirs))  # no daemon: it may have workers
        self._process.start()
        theirs.close()
        self._answer("start")

    def act(self, seconds: float) -> Callable[[], float]:
        """Begin; the function that is returned waits for the end and gives the pace."""
        self._pipe.send(seconds)
        return lambda: self._answer("act")

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.join(PATIENCE_S)

    def _answer(self, what: str) -> float:
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for the acting process to {what}; look at its output above")
        return float(self._pipe.recv())


class Paces(NamedTuple):
    """Seconds per update."""

    acting: float
    learning: float
    local: float
    acting_beside: float  # while another process learns
    learning_beside: float
    acting_cpu: float
    learning_cpu: float
    local_cpu: float

    def ratios(self) -> dict[str, float]:
        """What `local` takes of the ideal, of two processes at once, of one after the other, and of their work."""
        return {
            "of_ideal": self.local / max(self.acting, self.learning),
            "of_two_processes": self.local / max(self.acting_beside, self.learning_beside),
            "of_serial": self.local / (self.acting + self.learning),
            "cpu_of_serial": self.local_cpu / (self.acting_cpu + self.learning_cpu),
        }


def paces(trainer: Trainer, neighbour: Neighbour, seconds: float) -> Paces:
    """Each part once."""
    [member] = trainer.group.members
    act, unrolls = acting(member, seconds)
    learn = learning(member, unrolls, seconds)
    local = both(trainer, seconds)
    answer = neighbour.act(seconds)
    beside = learning(member, unrolls, seconds).seconds
    cpu = act.cpu_seconds, learn.cpu_seconds, local.cpu_seconds
    return Paces(act.seconds, learn.seconds, local.seconds, answer(), beside, *cpu)


def measured(case: str, seconds: float, repeats: int) -> list[Paces]:
    """A case, several times; the parts take turns."""
    with built(case) as trainer:
        neighbour = Neighbour(case)
        try:
            return [paces(trainer, neighbour, seconds) for _ in range(repeats)]
        finally:
            neighbour.close()


def hardware() -> str:
    """Cores and processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{len(os.sched_getaffinity(0))} cores {model}"


def compare(cases: list[str], seconds: float, repeats: int) -> Iterator[dict[str, Any]]:
    """All cases, printed as they come; yields the rows of the CSV."""
    about = {"date": today(), "hardware": hardware(), "torch": torch.__version__}
    about["switch_ms"] = f"{1e3 * sys.getswitchinterval():g}"
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"milliseconds per update, medians of {repeats}; ratios are medians of ratios\n")
    headings = ["case", *Paces._fields, *RATIOS]
    print(f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
    for case in cases:
        found, load = measured(case, seconds, repeats), round(os.getloadavg()[0], 2)
        ms = [1e3 * statistics.median(column) for column in zip(*found, strict=True)]
        cells = [f"{number:.1f}" for number in ms]
        ratios = [statistics.median(one) for one in zip(*(each.ratios().values() for each in found), strict=True)]
        print(f"| {case} | {' | '.join(cells)} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |", flush=True)
        for repeat, each in enumerate(found):
            numbers = {name: round(number, 6) for name, number in (each._asdict() | each.ratios()).items()}
            yield ({**about, "load": load, "case": case, "repeat": repeat, **numbers})


def today() -> str:
    """The date of a result."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def write(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Each row when it comes: a run that is ended early keeps what it has found."""
    first = next(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, first)
        writer.writeheader()
        for row in itertools.chain([first], rows):
            writer.writerow(row)
            file.flush()


def main() -> None:
    """Run, print, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=2.5, help="of each part, a quarter of them to warm up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--switch-ms", type=float, default=5.0, help="how long a thread may keep the interpreter lock")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    sys.setswitchinterval(1e-3 * arguments.switch_ms)
    path = arguments.csv or Path(__file__).parent / "results" / f"pipeline-{today()}.csv"
    try:
        write(path, compare(arguments.cases, arguments.seconds, arguments.repeats))
    except UserError as error:
        parser.exit(error.exit_status, f"{error}\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
