"""Learning on real Atari games within a time: each game a `laser train` in a process of its own, all at once on one card.

    python benchmarks/atari.py Pong Breakout --minutes 8 --total-minutes 24 --out runs/atari --collect atari.json.gz
    python benchmarks/atari.py Pong Breakout --minutes 8 --total-minutes 24 --out runs/atari --collect atari.json.gz --resume
    python benchmarks/atari.py --sweep Breakout --members 3 --share shared separate --minutes 8 --out runs/sharing
    python benchmarks/atari_report.py atari.json.gz

A run ends in good order, evaluated and saved, when its time is over. Without --total-minutes this call is meant to be the last one,
and schedules end with it. With it, schedules go by the total: a call that does not reach it is stopped after --minutes, and its policy
is played from the checkpoint. --resume goes on with what is in the folder. Runs are in DIR/GAME, sweeps in DIR/GAME-shared and
DIR/GAME-separate (a replay each, together as large as the shared one); DIR/summary.json says how each stands.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import atari_collect
from benchmarks.atari_collect import EVALUATIONS
from laser_rl import checkpoint, recipes
from laser_rl.cli.flags import value_of
from laser_rl.config import Config, full_name, override
from laser_rl.disk import write_json
from laser_rl.envs.atari import atari_game
from laser_rl.envs.scores import ATARI_57
from laser_rl.metrics.log import read
from laser_rl.training.files import is_sweep, read_sweep

# The command `laser`, in a process that never outlives this one.
CODE = """\
import sys
from laser_rl.envs.worker import die_with
die_with(int(sys.argv.pop(1)))
from laser_rl.cli import main
sys.exit(main())
"""
LASER = (sys.executable, "-c", CODE, str(os.getpid()))
FRAMES_A_STEP = 4
LOOK_S, SAY_S = 0.5, 60.0
STOP_S = 120.0  # for the update under way and a checkpoint
PLAY_S = 1800.0


@dataclass(frozen=True)
class Job:
    """One run or sweep."""

    name: str
    environment: str
    members: int = 1  # processes of a sweep
    share: str | None = None  # None: a single agent

    @property
    def is_sweep(self) -> bool:
        """Whether it has members."""
        return self.share is not None


def environment_of(game: str) -> str:
    """A Gymnasium id from the name of a game.

    >>> environment_of("Pong"), environment_of("ALE/Breakout-v5")
    ('ALE/Pong-v5', 'ALE/Breakout-v5')
    """
    return game if "/" in game else f"ALE/{game}-v5"


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """Everything that runs in this call."""
    jobs = [Job(game.removeprefix("ALE/").partition("-v")[0], environment_of(game)) for game in asked.games]
    if asked.sweep:
        name, environment = asked.sweep.removeprefix("ALE/").partition("-v")[0], environment_of(asked.sweep)
        jobs += [Job(f"{name}-{share}", environment, asked.members, share) for share in asked.share]
    return jobs


def rates(base: float, count: int) -> list[float]:
    """Learning rates from half of one to twice that.

    >>> rates(6e-4, 3)
    [0.0003, 0.0006, 0.0012]
    """
    return [base] if count == 1 else [round(base * 2 ** (2 * place / (count - 1) - 1), 8) for place in range(count)]


def config_of(job: Job, asked: argparse.Namespace, processes: int) -> Config:
    """The recipe with what was asked for; emulators share the cores among all processes."""
    base = recipes.atari_shared(job.environment).base if job.is_sweep else recipes.atari(job.environment)
    cores = len(os.sched_getaffinity(0))
    settings: dict[str, Any] = {
        "network.width": asked.width,
        "environment.slots": asked.slots,
        "environment.atari.threads": 0 if processes == 1 else max(1, cores // processes),
        "run.threads": 0 if processes == 1 else max(1, cores // processes),
        "run.evaluate_episodes": max(1, asked.episodes),
    }
    given = {full_name(name): value for name, value in asked.settings.items()}
    config = override(base, {**settings, **given})
    if job.share == "separate":
        config = override(config, {"replay.capacity_steps": max(1, config.replay.capacity_steps // job.members)})
    return config


def begin(job: Job, asked: argparse.Namespace, processes: int) -> list[str]:
    """The command that starts a job; its settings go into a file beside the run directory."""
    config = config_of(job, asked, processes)
    config = override(config, {"run.budget_minutes": asked.total_minutes or asked.minutes})
    file, out = asked.out / f"{job.name}.settings.json", asked.out / job.name
    if not job.is_sweep:
        write_json(file, config.model_dump(mode="json"))
        return ["train", "--config", str(file), "--out", str(out), "--plain"]
    members = [{"learning_rate": rate} for rate in rates(config.optimiser.learning_rate, job.members)]
    sweep = {"base": config.model_dump(mode="json"), "members": members, "share": job.share, "processes": job.members}
    write_json(file, sweep)
    return ["sweep", str(file), "--out", str(out), "--plain"]


def spent_minutes(run_dir: Path) -> float | None:
    """Minutes of training in the newest checkpoint; None if there is none."""
    loaded = checkpoint.latest(run_dir)
    if loaded is None:
        return None
    members = loaded.state.get("members", [loaded.state])
    return max(float(member["training"].get("spent_seconds", 0.0)) for member in members) / 60


def command_of(job: Job, asked: argparse.Namespace, processes: int) -> tuple[list[str], float | None]:
    """What to run, and after how many seconds it is stopped; None: it ends by itself."""
    out = asked.out / job.name
    spent = spent_minutes(out) if asked.resume else None
    if not asked.resume and out.exists():
        raise SystemExit(f"{out} is there already; go on with it by --resume, or choose another --out")
    total = asked.total_minutes or (spent or 0.0) + asked.minutes
    limit = 60 * asked.minutes if total > (spent or 0.0) + asked.minutes else None
    if spent is None:  # also a run that was killed before its first checkpoint
        return begin(job, asked, processes), limit
    return ["resume", str(out), "--budget-minutes", f"{total:.4f}", "--plain"], limit


class Running:
    """A job's process."""

    def __init__(self, job: Job, command: Sequence[str], limit_s: float | None, out: Path) -> None:
        self.job, self.began, self._limit_s = job, time.monotonic(), limit_s
        self._told: float | None = None  # when it was asked to stop
        with (out / f"{job.name}.console.txt").open("ab") as console:
            # A session of its own: Ctrl-C must reach it once, through `stop`; a second signal would end it without a checkpoint.
            words = [*LASER, *command]
            self.process = subprocess.Popen(words, stdout=console, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603

    def over(self, patience_s: float) -> bool:
        """One look; a run whose time is over, or that hangs, is asked to stop, then made to."""
        if self.process.poll() is not None:
            return True
        now = time.monotonic()
        limit = self._limit_s or patience_s
        if self._told is None and now - self.began > limit:
            self.stop()
        elif self._told is not None and now - self._told > STOP_S:
            print(
                f"{self.job.name}: did not stop within {STOP_S:.0f} s and is killed; its last checkpoint stays",
                flush=True,
            )
            self.process.kill()
            self.process.wait(STOP_S)
        return False

    def stop(self) -> None:
        """Ask for an orderly end: a checkpoint is written."""
        if self.process.poll() is None:
            self._told = time.monotonic()
            self.process.send_signal(signal.SIGTERM)


def run_all(jobs: Sequence[Job], asked: argparse.Namespace) -> dict[str, int]:
    """Exit statuses by name."""
    processes = sum(job.members for job in jobs)
    asked.out.mkdir(parents=True, exist_ok=True)
    commands = {job: command_of(job, asked, processes) for job in jobs}  # refused before anything is started
    running = [Running(job, command, limit, asked.out) for job, (command, limit) in commands.items()]
    patience_s, said = 60 * (asked.minutes + asked.patience_minutes), time.monotonic()
    try:
        while sum(not one.over(patience_s) for one in running):
            time.sleep(LOOK_S)
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                print("  ".join(_line(job, asked.out / job.name) for job in jobs), flush=True)
    except BaseException:
        for one in running:
            one.stop()
        while sum(not one.over(patience_s) for one in running):
            time.sleep(LOOK_S)
        raise
    return {one.job.name: int(one.process.returncode) for one in running}


def _line(job: Job, run_dir: Path) -> str:
    rows = read(run_dir, ("train",))
    if not rows:
        return f"{job.name}: no row yet"
    newest = {row.get("member"): row for row in rows}
    last = dict(sorted(newest.items(), key=lambda item: item[0] or 0))
    frames = FRAMES_A_STEP * sum(int(row["step"]) for row in last.values())
    returns = [f"{float(row['return_mean']):.1f}" for row in last.values() if "return_mean" in row]
    speed = FRAMES_A_STEP * sum(float(row["steps_per_second"]) for row in last.values())
    return f"{job.name}: {frames / 1e6:.2f} M frames, {speed:,.0f}/s, return {'/'.join(returns) or '–'}"


def play(jobs: Sequence[Job], asked: argparse.Namespace) -> None:
    """Evaluate those that were stopped on their way, from their checkpoints, all at once; results beside their rows."""
    waiting = []
    for job in jobs:
        run_dir = asked.out / job.name
        numbers = range(len(read_sweep(run_dir).settings)) if is_sweep(run_dir) else [None]
        for member in numbers:
            which = [] if member is None else ["--member", str(member)]
            words = [*LASER, "evaluate", str(run_dir), "--episodes", str(asked.episodes), "--json", *which]
            waiting.append((run_dir, member, subprocess.Popen(words, stdout=subprocess.PIPE, text=True)))  # noqa: S603
    for run_dir, member, process in waiting:
        try:
            output, _ = process.communicate(timeout=PLAY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=STOP_S)
            print(f"{run_dir}: {asked.episodes} episodes were not played within {PLAY_S:.0f} s", flush=True)
            continue
        if process.returncode == 0:
            _keep(run_dir, member, json.loads(output.splitlines()[-1]))


def _keep(run_dir: Path, member: int | None, result: Mapping[str, Any]) -> None:
    path = run_dir / EVALUATIONS
    kept = json.loads(path.read_text()) if path.exists() else []
    low, high = result["ci95"]
    numbers = {name: result[name] for name in ("step", "mean", "iqm", "episodes")}
    write_json(path, [*kept, {"member": member, **numbers, "ci95_low": low, "ci95_high": high}])


def summary(jobs: Sequence[Job], statuses: Mapping[str, int], out: Path) -> dict[str, Any]:
    """How each of them stands."""
    found: dict[str, Any] = {}
    for entry in atari_collect.collect(out, bins=1)["runs"]:
        if entry["run"] not in {job.name for job in jobs}:
            continue
        human = ATARI_57.get(atari_game(entry["environment"]))
        found.setdefault(entry["run"], {"status": statuses[entry["run"]], "members": []})["members"].append(
            {
                "member": entry["member"],
                "learning_rate": entry["config"]["optimiser"]["learning_rate"],
                "frames": FRAMES_A_STEP * entry["step"],
                "minutes": round(entry["seconds"] / 60, 2),
                "return_mean": (entry["train"].get("return_mean") or [None])[-1],
                "evaluation": entry["evaluations"][-1] if entry["evaluations"] else None,
                "human": None if human is None else human.best,
            }
        )
    return found


def setting(word: str) -> tuple[str, Any]:
    """key=value.

    >>> setting("replay.capacity_steps=2000")
    ('replay.capacity_steps', 2000)
    """
    name, equals, value = word.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{word!r} is no setting; write name=value")
    return name, value_of(value)


def parsed() -> argparse.Namespace:
    """Flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", metavar="GAME")
    parser.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        help="of this call: of training if it is the last one, else from its start; 0: only --collect",
    )
    parser.add_argument(
        "--total-minutes",
        type=float,
        help="of all calls together, by which schedules go; this is the last one if left out",
    )
    parser.add_argument(
        "--patience-minutes", type=float, default=15.0, help="start, evaluation and saving may take so long on top"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="go on with what is there; settings stay as they were")
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument(
        "--episodes", type=int, default=30, help="of the evaluation at the end; 0: none after a call that was cut short"
    )
    parser.add_argument("--settings", nargs="+", type=setting, default=[], metavar="NAME=VALUE")
    parser.add_argument("--sweep", metavar="GAME", help="members that differ in their learning rates, a process each")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--share", nargs="+", choices=["shared", "separate"], default=["shared"])
    parser.add_argument("--collect", type=Path, metavar="FILE.json.gz", help="what curves need of all runs in --out")
    asked = parser.parse_args()
    asked.settings = dict(asked.settings)
    return asked


def main() -> int:
    """Run, evaluate, say how it went, collect."""
    asked, statuses = parsed(), dict[str, int]()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that runs are stopped in good order
    jobs = jobs_of(asked)
    if jobs and asked.minutes > 0:
        statuses = run_all(jobs, asked)
        if asked.episodes:
            play([job for job in jobs if statuses[job.name] == 128 + signal.SIGTERM], asked)
        found = summary(jobs, statuses, asked.out)
        before = json.loads((asked.out / "summary.json").read_text()) if (asked.out / "summary.json").exists() else {}
        write_json(asked.out / "summary.json", {**before, **found})
        print(json.dumps(found, indent=1))
    if asked.collect:
        print(f"{asked.collect}: {atari_collect.write(asked.out, asked.collect):,} bytes")
    failed = [name for name, status in statuses.items() if status not in {0, 128 + signal.SIGTERM}]
    for name in failed:
        print(f"{name} ended with status {statuses[name]}; see {asked.out / name}.console.txt", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
