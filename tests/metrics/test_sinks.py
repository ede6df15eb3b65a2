"""What the terminal and TensorBoard show, and running numbers."""

import re
import subprocess
import sys
import warnings
from contextlib import closing
from io import StringIO

import pytest
from rich.console import Console as Terminal

from laser_rl.metrics.console import Console
from laser_rl.metrics.tensorboard import TensorBoardLog

ALL = {
    "return_mean": 123.4, "return_best": 500.0, "episodes": 321, "steps_per_second": 15000.0, "updates_per_second": 93.2,
    "online_unrolls": 1, "replayed_unrolls": 7, "acceptance": 0.931, "kl": 0.0123, "rho_clipped": 0.2, "c_clipped": 0.1,
    "entropy": 0.62, "policy_loss": -0.01, "value_loss": 2.2, "gradient_norm": 40.0, "learning_rate": 6e-4, "lag_updates": 1.3,
    "replay_fill": 0.7, "replay_age_updates": 1200.0, "replay_bytes": 2**30, "memory_bytes": 2**31, "skipped_updates": 4,
    "environment_restarts": 9,
}  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def plain(**options):
    output, clock = StringIO(), Clock()
    return Console("a [run]", 1000, terminal=Terminal(file=output, width=80), clock=clock, **options), output, clock


def live(width=120):
    output, clock = StringIO(), Clock()
    terminal = Terminal(
        file=output, width=width, height=60, force_terminal=True, color_system=None, legacy_windows=False
    )
    return Console("a [run]", 1000, terminal=terminal, clock=clock), output, clock


def test_a_sign_of_life_before_any_number():
    assert plain()[1].getvalue() == "a [run]\n"
    console, output, _ = live()
    assert "a [run]" in output.getvalue()
    assert "starting" in output.getvalue()
    console.close()


def test_plain_lines_come_at_once_then_every_few_seconds_and_at_the_end():
    console, output, clock = plain()
    for second in range(12):
        clock.now = float(second)
        console.write("train", 10 * second, second, {"kl": 0.5})
    assert re.findall(r"step (\d+) of 1,000", output.getvalue()) == ["0", "50", "100"]
    console.close()
    console.close()
    assert re.findall(r"step (\d+) of 1,000", output.getvalue()) == ["0", "50", "100", "110"]
    assert "\x1b" not in output.getvalue()
    assert all("KL 0.5" in line for line in output.getvalue().splitlines()[1:])


def test_a_live_table_is_drawn_four_times_a_second_at_most():
    console, output, clock = live()
    for tick in range(1000):
        clock.now = tick / 100
        console.write("train", tick, tick, {"kl": 0.5})
    drawn = output.getvalue().count("a [run]")
    assert 30 <= drawn <= 42
    console.close()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_shows_every_number_in_full(width):
    console, output, _ = live(width)
    console.write("train", 640, 4, ALL)
    console.close()
    last = output.getvalue().rpartition("a [run]")[2]
    numbers = [
        "640 of 1,000 (64 %)",
        "123",
        "500",
        "321",
        "15,000",
        "93.2",
        "7 of 8",
        "93.1 %",
        "0.0123",
        "20.0 %",
        "10.0 %",
        "0.62",
    ]
    numbers += [
        "-0.01",
        "2.2",
        "40",
        "0.0006",
        "1.3 updates",
        "70.0 % full",
        "1,200 updates",
        "1.0 GiB",
        "2.0 GiB",
        " 4 ",
        " 9 ",
    ]
    for text in numbers:
        assert text in last, text


def test_events_and_evaluations_are_said_when_they_happen_and_nothing_is_markup():
    console, output, _ = plain()
    console.write("event", 50, 5, {"event": "resumed", "from": "[bold]x"})
    console.write("evaluation", 50, 5, {"mean": 498.2, "note": "a"})
    assert output.getvalue().splitlines()[1:] == [
        "resumed at step 50: from [bold]x",
        "evaluation at step 50: mean 498, note a",
    ]


def test_tensorboard_reads_what_was_written(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader's, not ours
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    log = TensorBoardLog(tmp_path)
    for step in (10, 20, 30):
        log.write("train", step, step, {"kl": step / 100, "note": "text", "broken": float("nan")})
    log.write("event", 20, 20, {"event": "resumed"})
    log.write("train", 30, 30, {"kl": 7.0})
    log.write("episode", 30, 30, {"return": 5})
    log.close()
    log.close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert sorted(reader.Tags()["scalars"]) == ["episode/return", "train/broken", "train/kl"]
    found = [(event.step, round(event.value, 6)) for event in reader.Scalars("train/kl")]
    assert found == [(10, 0.1), (20, 0.2), (30, 7.0)]  # the first 30 was void


def test_tensorboard_sink_needs_neither_torch_nor_tensorflow_and_does_not_warn(tmp_path):
    code = f"""
import sys
from laser_rl.metrics.tensorboard import TensorBoardLog
TensorBoardLog({str(tmp_path)!r}).close()
sys.exit(any(name in sys.modules for name in ("torch", "tensorflow", "scipy")))
"""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_terminal_shows_a_score_of_a_mixture_and_not_thirty_tasks():
    values = {
        "return_mean": 0.25,
        "tasks_above_random": 2,
        "tasks_seen": 3,
        "return_of_laser/Catch": 9.0,
        "score_of_laser/Catch": 0.5,
    }
    output = StringIO()
    with closing(Console("x", 100, terminal=Terminal(file=output, width=200))) as console:
        console.write("train", 10, 1, values)
        console.write("evaluation", 10, 1, {"mean": 0.75, "tasks_seen": 3, "score_of_laser/Catch": 0.5})
    text = output.getvalue()
    assert "step 10 of 100 (10 %) | update 1 | score 0.25 | above random 2 of 3\n" in text
    assert "evaluation at step 10: score 0.75, tasks_seen 3\n" in text
    assert "return" not in text
    assert "Catch" not in text


def test_reading_metrics_imports_neither_torch_nor_matplotlib():
    code = "import laser_rl.metrics, sys; sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'scipy', 'tensorboard')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
