"""How long commands take to begin: `import laser_rl`, every command that needs no tensor, and the first row of `laser train` on CartPole.

    python -m benchmarks.start --csv FILE
    python -m benchmarks.start --atari "" "--placement thread" "--width 1" --csv FILE   # on a card

Wall seconds of a process of its own, the median of five; Python and its libraries are in the page cache after a first call.
`--atari` instead measures `laser train ALE/Breakout-v5 --recipe atari` with each of these groups of flags: seconds until its first update,
and frames/s in the half minute after it.
"""

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cpu import keep

ROOT = Path(__file__).parents[1]
REPEATS, PAUSE_S, PATIENCE_S = 5, 0.005, 60.0
LASER = (sys.executable, "-m", "laser_rl")
COMMANDS = {
    "import laser_rl": (sys.executable, "-c", "import laser_rl"),
    "import torch, for comparison": (sys.executable, "-c", "import torch"),
    "laser --help": (*LASER, "--help"),
    "laser train --help": (*LASER, "train", "--help"),
    "laser evaluate --help": (*LASER, "evaluate", "--help"),
    "laser export --help": (*LASER, "export", "--help"),
    "laser status RUN": (*LASER, "status", "RUN"),
    "laser config show": (*LASER, "config", "show"),
    "laser config show --run-dir RUN": (*LASER, "config", "show", "--run-dir", "RUN"),
    "laser report RUN": (*LASER, "report", "RUN"),
    "laser dashboard --help": (*LASER, "dashboard", "--help"),
    "laser check-env --help": (*LASER, "check-env", "--help"),
    "laser experiment --help": (*LASER, "experiment", "--help"),
}
ATARI = (
    *LASER,
    "train",
    "ALE/Breakout-v5",
    "--recipe",
    "atari",
    "--plain",
    "--checkpoint-every-steps",
    "50000000",
    "--out",
)
ATARI_S = 30.0
TRAIN = (*LASER, "train", "--env", "CartPole-v1", "--plain", "--run.evaluate-episodes", "1", "--steps", "3000", "--out")


def timed(command: tuple[str, ...], run_dir: Path) -> float:
    """Seconds of one call."""
    words = [str(run_dir) if word == "RUN" else word for word in command]
    begin = time.perf_counter()
    subprocess.run(words, cwd=ROOT, env=environment(), check=True, capture_output=True)  # noqa: S603
    return time.perf_counter() - begin


def environment() -> dict[str, str]:
    """One thread, so that other cores do not help."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def first_row(run_dir: Path) -> float:
    """Seconds until the log of a new run has its first row about training."""
    begin, log = time.perf_counter(), run_dir / "metrics.jsonl"
    with subprocess.Popen(  # noqa: S603
        [*TRAIN, str(run_dir)], cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while not (log.exists() and '"train"' in log.read_text(encoding="utf-8")):
            if process.poll() not in (None, 0) or time.perf_counter() - begin > PATIENCE_S:
                raise SystemExit("laser train has written no row")
            time.sleep(PAUSE_S)
        return time.perf_counter() - begin


def train_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows about training that a run has written so far."""
    log = run_dir / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row for row in rows if row["kind"] == "train"]


def atari(flags: str, run_dir: Path) -> dict[str, Any]:
    """Seconds until the first update of a run with these flags, and its frames/s: median, least and most of its rows after the first."""
    begin, first = time.time(), None
    words = [*ATARI, str(run_dir), *shlex.split(flags)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as process:  # noqa: S603
        while first is None or time.time() < first + ATARI_S:
            time.sleep(0.2)
            rows = train_rows(run_dir)
            first = rows[0]["time"] if rows else None
            if process.poll() is not None or (first is None and time.time() - begin > 5 * PATIENCE_S):
                raise SystemExit("laser train ended, or made no update")
        os.killpg(process.pid, signal.SIGKILL)
    rates = [4.0 * row["steps_per_second"] for row in rows[1:]]
    numbers = {"frames_per_second": statistics.median(rates), "least": min(rates), "most": max(rates)}
    about = {"what": f"atari {flags}".strip(), "seconds": round(first - begin, 1)}
    return {**about, **{name: round(rate) for name, rate in numbers.items()}, "learner_busy": rows[-1]["learner_busy"]}


def main() -> None:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--atari", nargs="+", metavar="FLAGS")
    arguments = parser.parse_args()
    if arguments.atari:
        with tempfile.TemporaryDirectory() as folder:
            done = list[dict[str, Any]]()
            for number, flags in enumerate(arguments.atari):
                done.append(atari(flags, Path(folder) / f"run-{number}"))
                print(done[-1], flush=True)
                if arguments.csv:
                    keep(done, arguments.csv)
        return
    with tempfile.TemporaryDirectory() as folder:
        first = [first_row(Path(folder) / f"run-{number}") for number in range(REPEATS)]
        found = {"laser train, first row": statistics.median(first)}
        for name, command in COMMANDS.items():
            found[name] = statistics.median(timed(command, Path(folder) / "run-0") for _ in range(REPEATS))
    rows = [{"what": name, "seconds": round(seconds, 3)} for name, seconds in found.items()]
    for row in rows:
        print(f"{row['seconds']:7.3f} s  {row['what']}")
    if arguments.csv:
        keep(rows, arguments.csv)


if __name__ == "__main__":
    main()
