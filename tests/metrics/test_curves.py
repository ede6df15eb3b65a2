"""Curves: right numbers, on common steps."""

import subprocess
import sys

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.metrics import MetricsLog, drawing
from laser_rl.metrics.curves import band, plot_returns, returns


def a_run(run_dir, slope=1.0):
    with MetricsLog(run_dir) as log:
        for update in range(1, 30):
            log.write("train", 10 * update, update, {"return_mean": slope * update})
    return run_dir


def test_curves_of_runs_and_rows_are_drawn(tmp_path):
    runs = [a_run(tmp_path / str(n), slope=n) for n in (1, 2, 3)]
    one = plot_returns(runs[:1], tmp_path / "one.png").read_bytes()
    many = plot_returns(runs, tmp_path / "many.png", title="a $ sign").read_bytes()
    assert one[:4] == many[:4] == b"\x89PNG"
    assert one != many
    with pytest.raises(ConfigError, match="train for longer"):
        plot_returns([[]], tmp_path / "none.png")


def test_band_is_interpolated_where_all_runs_have_numbers(tmp_path):
    slopes = [1.0, 2.0, 6.0]
    curves = [
        (np.arange(10 * n, 100.0 + n, 7 + n), slope * np.arange(10 * n, 100.0 + n, 7 + n))
        for n, slope in enumerate(slopes)
    ]
    steps, values = band(curves)
    assert steps[0] == 20
    assert steps[-1] == min(curve[0][-1] for curve in curves)
    np.testing.assert_allclose(values, np.outer(slopes, steps))
    apart = [(np.array([0.0, 1.0]), np.zeros(2)), (np.array([5.0, 6.0]), np.zeros(2))]
    assert band(apart)[0].size == 0
    rows = [[{"kind": "train", "step": int(s), "update": 0, "return_mean": 0.0} for s in one[0]] for one in apart]
    plot_returns(rows, tmp_path / "apart.png")


def test_returns_from_episodes_are_means_of_the_last_hundred():
    rows = [{"kind": "episode", "step": n, "update": 0, "return": float(n)} for n in range(250)]
    _, values = returns(rows)
    assert values[49] == np.mean(range(50))
    assert values[-1] == np.mean(range(150, 250))


@pytest.mark.parametrize("owner", ["figure", "axes"])
@pytest.mark.parametrize(("members", "columns"), [(1, 1), (14, 1), (15, 2), (28, 2), (29, 3)])
def test_a_legend_has_at_most_fourteen_names_in_a_column(owner, members, columns):
    figure = drawing.figure()
    axes = figure.subplots()
    handles = [axes.plot([0, 1], [k, k], label=f"member {k}", **drawing.line(k))[0] for k in range(members)]
    drawing.legend(figure if owner == "figure" else axes, handles)
    drawing.png(figure)  # now everything has its place
    [legend] = figure.legends or [axes.get_legend()]
    boxes = [text.get_window_extent() for text in legend.get_texts()]
    assert len(boxes) == members
    assert len({round(box.x0) for box in boxes}) == columns
    assert max(sum(round(box.x0) == round(one.x0) for box in boxes) for one in boxes) <= 14


def test_reading_metrics_imports_neither_torch_nor_matplotlib():
    code = "import laser_rl.metrics, sys; sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'scipy', 'tensorboard')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
