"""`make soak`: half an hour of random faults at a sweep of three members, and then a look at everything that has to hold.

    python -m tests.faults.soak --minutes 30 [--seed 0] [--disk-full] [--out FOLDER]

Every few seconds something is killed (a process of the sweep, an environment's worker, the whole run), paused, or asked to end; with
--disk-full its disk is filled for a while. Its environments return numbers that are none, and raise; one member cannot learn. After each
fault it has to get further, in a minute at most. Ends with status 1 if anything is wrong, and names it.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from laser_rl.metrics.log import FILE, read_from
from tests.faults.disk import mounted, unmount
from tests.faults.families import Family, age_s
from tests.faults.progress import Point, saved, written
from tests.faults.soak_checks import Found, Memory, final_state

INTERVAL = 500
SWEEP = {
    "grid": {"learning_rate": [1e-4, 1e-3, 1e33]},  # the last one cannot learn, and is not to teach it to others
    "pbt": {"burn_in_steps": 500, "every_episodes": 50, "margin": 5.0, "tuned": ["entropy_cost"]},
    "processes": 3,
}
SETTINGS = (
    "--env tests.faults.soak_environment:make --environment.placement process --environment.workers 1 --environment.slots 4 "
    "--environment.on-bad-value drop --environment.step-timeout-s 20 --network.hidden 16 --loss.unroll-steps 5 --optimiser.kind rmsprop "
    f"--steps 1000M --plain --replay.capacity-steps 6000 --run.checkpoint-every-steps {INTERVAL} --run.evaluate-every-steps 5000 "
    "--run.evaluate-episodes 4"
)
MEMBERS = 3  # each in a process of its own
FURTHER_S, GONE_S, ORDER_S, STARTED_S = 60.0, 3.0, 10.0, 120.0
LONGEST_PAUSE_S, LONGEST_FULL_S = 4.0, 6.0
SETTLED_S = 20.0  # so old are processes whose memory is looked at


class Soak:
    """One run directory, whoever is running there now, and what has been seen."""

    def __init__(self, path: Path, said: TextIO, seed: int, disk: Path | None) -> None:
        self.path, self.dice, self.disk = path, random.Random(seed), disk  # noqa: S311
        self.found, self.memory, self.done = Found(), Memory(), Counter[str]()
        self.kept = Point()
        self.said = said
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name("sweep.json")
        file.write_text(json.dumps(SWEEP))
        self.family = self._start("sweep", str(file), *SETTINGS.split(), "--out", str(path))

    def _start(self, *words: str) -> Family:
        """Its messages go to a file: nobody reads a pipe for half an hour."""
        return Family(*words, out=self.said)

    def go(self, minutes: float) -> None:
        """Faults, one after the other, until the time is over."""
        self._gets_further("start", STARTED_S)
        end = time.monotonic() + 60 * minutes
        faults = self._faults()
        while time.monotonic() < end and not self.found.problems:
            self._rest(self.dice.uniform(1.0, 8.0))
            name = self.dice.choice(list(faults))
            faults[name]()
            self.done[name] += 1
            self._gets_further(name, FURTHER_S)
        self.kept = saved(self.path)

    def _faults(self) -> dict[str, Callable[[], None]]:
        found: dict[str, Callable[[], None]] = {
            "a process of the sweep killed": lambda: self._hit(self.family.share_processes(), signal.SIGKILL),
            "a worker killed": lambda: self._hit(self.family.workers(), signal.SIGKILL),
            "a process of the sweep paused": lambda: self._pause(self.family.share_processes()),
            "a worker paused": lambda: self._pause(self.family.workers()),
            "the run paused": lambda: self._pause([self.family.process.pid]),
            "the whole run killed": self._kill_all,
            "the run asked to end": self._ask,
        }
        return found | ({} if self.disk is None else {"the disk filled": self._fill})

    def _hit(self, pids: list[int], number: int) -> int | None:
        try:
            pid = self.dice.choice(pids)
            os.kill(pid, number)
        except (IndexError, ProcessLookupError):  # it is being replaced
            return None
        return pid

    def _pause(self, pids: list[int]) -> None:
        pid = self._hit(pids, signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.2, LONGEST_PAUSE_S))
        self._hit([] if pid is None else [pid], signal.SIGCONT)

    def _kill_all(self) -> None:
        self.family.kill()
        self._ended("the whole run killed", lost_more=INTERVAL)

    def _ask(self) -> None:
        number = self.dice.choice([signal.SIGTERM, signal.SIGINT])
        status, _, _, took = self.family.end(number, 60.0)
        self.found.expect(status == 128 + number, f"asked to end by {number.name}: status {status}")
        self.found.expect(took < ORDER_S, f"asked to end by {number.name}: it took {took:.1f} s")
        self._ended("the run asked to end", lost_more=0)

    def _ended(self, how: str, lost_more: int) -> None:
        """Nobody is left, the newest checkpoint is whole and no older than it was; the run goes on."""
        gone = self.family.seconds_until_gone(30.0)
        self.found.expect(gone < GONE_S, f"{how}: a child was left after {gone:.1f} s")
        reached, kept = written(self.path), saved(self.path)
        lost = reached.step - kept.step
        self.found.expect(kept.step >= self.kept.step, f"{how}: back from step {self.kept.step} to {kept.step}")
        self.found.expect(lost <= INTERVAL + lost_more, f"{how}: {lost} steps lost, checkpoints every {INTERVAL}")
        self.found.worst("steps lost", lost)
        self.kept = kept
        self.family = self._start("resume", str(self.path), "--plain", "--trust-code")

    def _fill(self) -> None:
        assert self.disk is not None
        ballast = self.disk / "ballast"
        try:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            time.sleep(self.dice.uniform(0.5, LONGEST_FULL_S))
        finally:
            ballast.unlink()
        self._saves_again()

    def _saves_again(self) -> None:
        before, begin = saved(self.path).step, time.monotonic()
        while saved(self.path).step <= before:
            if time.monotonic() - begin > FURTHER_S:
                self.found.problems.append(f"the disk filled: no checkpoint within {FURTHER_S:.0f} s of space")
                return
            time.sleep(0.2)
        self.found.worst("s until there was a checkpoint again", round(time.monotonic() - begin, 1))

    def _rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1.0)
            ages = [age_s(pid) for pid in self.family.share_processes()]
            if len(ages) == MEMBERS and min(ages) > SETTLED_S:
                self.memory.sample(self.family.pids())

    def _gets_further(self, after: str, limit_s: float) -> None:
        """Every member ends an episode that is written down after the fault."""
        log, begin = self.path / FILE, time.monotonic()
        offset = log.stat().st_size if log.exists() else 0
        while len({row.get("member") for row in read_from(log, offset)[0] if row["kind"] == "episode"}) < MEMBERS:
            if self.family.process.poll() is not None:
                self.found.problems.append(f"{after}: the run ended with status {self.family.process.returncode}")
                return
            if time.monotonic() - begin > limit_s:
                self.found.problems.append(f"{after}: not every member has ended an episode in {limit_s:.0f} s")
                return
            time.sleep(0.1)
        self.found.worst(f"s until all went on after: {after}", round(time.monotonic() - begin, 1))

    def finish(self) -> None:
        """A last orderly end, what is on disk, and a few more steps."""
        if self.family.process.poll() is None:
            self._ask()
            wanted = saved(self.path).step + 300
            self.family.kill()
            self.family.seconds_until_gone(30.0)
            self.family = self._start("resume", str(self.path), "--steps", str(wanted), "--plain", "--trust-code")
            status = self.family.process.wait(300)
            self.found.expect(status == 0, f"the last {300} steps: status {status}")
            self.family.seconds_until_gone(30.0)
        self.family.kill()
        final_state(self.path, self.found)
        self.memory.judge(self.found)

    def summary(self) -> str:
        lines = [f"{sum(self.done.values())} faults"]
        lines += [f"  {count:4d} × {name}" for name, count in sorted(self.done.items())]
        lines += [f"  at most {value} {name}" for name, value in self.found.most.items()]
        lines += [f"  {line}" for line in self.found.facts]
        if not self.found.problems:
            return "\n".join([*lines, "all that has to hold holds"])
        self.said.seek(0)
        said = self.said.read().splitlines()[-30:]
        return "\n".join([*lines, *(f"WRONG: {one}" for one in self.found.problems), "the last that it said:", *said])


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--disk-full",
        action="store_true",
        help="a small disk of its own is filled now and then; needs the right to mount",
    )
    parser.add_argument("--out", type=Path, help="kept afterwards; a temporary folder if left out")
    asked = parser.parse_args()
    # A shell's background job, and all its children, would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        home = asked.out or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        disk = home / "disk" if asked.disk_full else None
        if disk is not None and not mounted(disk, "64m"):
            parser.error("--disk-full needs the right to mount a small disk; leave it out")
        with (home / "said.txt").open("w+") as said:
            soak = Soak((disk or home) / "run", said, asked.seed, disk)
            try:
                soak.go(asked.minutes)
                soak.finish()
            finally:
                soak.family.kill()
                print(soak.summary())
                if disk is not None:
                    unmount(disk)
    return 1 if soak.found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
