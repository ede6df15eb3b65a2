"""Logs of a week: rows of episodes are few in a long run, and no command needs more memory for a longer log."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from laser_rl import checkpoint, recipes
from laser_rl.metrics.history import History
from laser_rl.metrics.log import FILE, read, rows_of
from laser_rl.metrics.rows import EACH, EpisodeRows, episodes_in
from tests.row_hash import rows_hash
from tests.training.small import finish, small

MB = 1 << 20
COMMANDS = ("status", "report", "verify")
LIMIT_BYTES = 300 * MB
_NAMES = [f"number_{n}" for n in range(40)]


def long_run(run_dir: Path, size: int) -> Path:
    """A run on Pong with a log of so many bytes, half of it rows of training, half of it one row for each episode."""
    run_dir.mkdir()
    (run_dir / "config.json").write_text(recipes.by_name("atari", "ALE/Pong-v5").model_dump_json())
    others = json.dumps(dict.fromkeys(_NAMES, 0.12345678901234567))[1:]
    with (run_dir / FILE).open("w", buffering=MB) as file:
        step = update = 0
        while file.tell() < size:
            for _ in range(1000):
                step, update = step + 120, update + 3
                clock = f'"step": {step}, "update": {update}, "time": {1.79e9 + step / 500:.3f}'
                numbers = f'"return_mean": {step % 42 - 21.0}, "acceptance": 0.9, "skipped_updates": {update // 1000}'
                file.write(f'{{"kind": "train", {clock}, {numbers}, {others}\n')
                file.writelines(
                    f'{{"kind": "episode", {clock}, "return": {(step + n) % 42 - 21.0}, "length": 900, "slot": {n}}}\n'
                    for n in range(10)
                )
        file.write(f'{{"kind": "event", {clock}, "event": "finished"}}\n')
    return run_dir


# Of the process itself, when it ends: what the kernel tells its parent counts the parent's own memory before the exec.
_MEASURED = """
import atexit, pathlib, sys
from laser_rl.cli import main
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))))
sys.exit(main(sys.argv[1:]))
"""


def peak_of(*arguments: str) -> int:
    """The most memory of a command in bytes."""
    done = subprocess.run([sys.executable, "-c", _MEASURED, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return 1024 * int(done.stdout.split()[-2])


@pytest.mark.slow
@pytest.mark.fault(33)
def test_no_command_needs_more_memory_for_a_longer_log(tmp_path, figure):
    sizes = [int(float(size) * MB) for size in os.environ.get("LASER_LOG_MB", "20,200").split(",")]
    peaks = {}
    for number, size in enumerate(sizes):
        run = long_run(tmp_path / str(number), size)
        for command in COMMANDS:
            peaks[command, size] = peak_of(command, str(run))
        (run / FILE).unlink()
    small, large = sizes[0], sizes[-1]
    for command in COMMANDS:
        assert peaks[command, large] < LIMIT_BYTES, (command, peaks)
        slope = (peaks[command, large] - peaks[command, small]) / (large - small)
        assert slope < 0.05, (command, peaks)
        figure(
            f"{command}: {peaks[command, small] / MB:.0f} MB of memory for a log of {small / MB:,.0f} MB, "
            f"{peaks[command, large] / MB:.0f} MB for {large / MB:,.0f} MB"
        )


def test_rows_of_episodes_grow_with_the_logarithm_of_their_number():
    """And every mean over all episodes stays what it was."""
    rows, episodes, written = EpisodeRows(), 20 * EACH, []
    returns = np.random.default_rng(1).normal(size=episodes)
    for number, value in enumerate(returns, start=1):
        row = rows.add({"return": float(value), "length": number % 7, "slot": 0}, number)
        written += [row] if row else []
    written += rows.rest()
    assert written[:EACH] == [
        {"return": float(r), "length": (n + 1) % 7, "slot": 0} for n, r in enumerate(returns[:EACH])
    ]
    assert len(written) <= EACH * math.ceil(math.log2(21))
    counts = np.array([episodes_in(row) for row in written])
    assert counts.sum() == episodes
    assert sum(counts * [row["return"] for row in written]) / episodes == pytest.approx(returns.mean(), abs=1e-12)
    assert max(row.get("return_high", row["return"]) for row in written) == returns.max()


@pytest.mark.slow
@pytest.mark.fault(33)
def test_a_long_run_writes_few_rows_of_episodes_and_resumes_bit_for_bit(tmp_path, monkeypatch, figure):
    """As if the thinning began after 8 episodes: the run is killed within a row of several, and goes on with it."""
    monkeypatch.setattr("laser_rl.metrics.rows.EACH", 8)
    config = small(**{"run.steps": 3000, "checkpoint_every_steps": 1000})
    whole, half = tmp_path / "whole", tmp_path / "half"
    _, training = finish(config, whole)

    class Killed(Exception):
        pass

    def kill(progress):
        if progress.step > 2500:
            raise Killed

    with pytest.raises(Killed):
        finish(config, half, callbacks=[kill])
    state = json.loads((checkpoint.latest(half).path / "state.json").read_text())
    assert state["members"][0]["training"]["open_rows"]
    finish(config, half)
    assert rows_hash(half) == rows_hash(whole)
    rows = read(whole, ["episode"])
    ended = sum(map(episodes_in, rows))
    assert ended == training.window.episodes
    assert len(rows) < ended / 2
    figure(
        f"{ended} episodes in {len(rows)} rows of metrics, resumed within a row of several: the same rows bit for bit"
    )


def test_what_is_kept_of_a_long_log_is_little_and_tells_what_has_to_be_told():
    rows = [
        {"kind": "train", "step": 10 * n, "update": n, "time": float(n), "kl": float(n), "skipped_updates": n % 100}
        for n in range(25_000)
    ]
    history = History()
    history.add([*rows, {**rows[-1], "kl": math.inf}])
    assert history.newest("train", 0) == [*rows[-9:], {**rows[-1], "kl": math.inf}]
    assert history.count(0, "skipped_updates") == 250 * 99
    line = history.line("train", 0, "kl")
    assert len(line.x) <= 2000
    assert line.mean.mean() == pytest.approx(np.mean(range(25_000)), rel=0.01)
    assert (line.low.min(), line.high.max()) == (0.0, 24_999.0)


def test_a_hole_of_gigabytes_in_a_log_is_passed_over(tmp_path):
    """What a broken disk may leave: a line that is longer than memory."""
    path = tmp_path / FILE
    row = b'{"kind": "train", "step": %d, "update": 1, "time": 1.0}\n'
    path.write_bytes(row % 1)
    with path.open("r+b") as file:
        file.seek(200 * MB)
        file.write(b"\n" + row % 2)
    assert [one["step"] for one in rows_of(path)] == [1, 2]
