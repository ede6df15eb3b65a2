"""Logs of a week: rows of episodes are few in a long run, and no command needs more memory for a longer log."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laser_rl import recipes
from laser_rl.metrics.log import FILE

MB = 1 << 20
COMMANDS = ("status", "report", "verify", "compare")
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


def peak_of(*arguments: str) -> tuple[int, str]:
    """The most memory of a command in bytes, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "laser_rl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert process.returncode == 0, printed
    return 1024 * usage.ru_maxrss, printed


@pytest.mark.slow
@pytest.mark.fault(33)
def test_no_command_needs_more_memory_for_a_longer_log(tmp_path, figure):
    sizes = [int(float(size) * MB) for size in os.environ.get("LASER_LOG_MB", "40,400").split(",")]
    peaks = {}
    for number, size in enumerate(sizes):
        run = long_run(tmp_path / str(number), size)
        for command in COMMANDS:
            peaks[command, size], _ = peak_of(command, str(run))
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
