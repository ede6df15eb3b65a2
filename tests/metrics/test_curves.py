"""Curves and the report: right numbers, nothing executable, nothing from elsewhere."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.metrics import MetricsLog
from laser_rl.metrics.curves import band, plot_returns, returns
from laser_rl.metrics.report import report

ALLOWED = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "table", "tr", "td", "figure", "img", "pre"}
EVIL = "<script>alert(1)</script>"


def a_run(run_dir, slope=1.0):
    with MetricsLog(run_dir) as log:
        for update in range(1, 30):
            log.write("train", 10 * update, update, {"return_mean": slope * update, "entropy": 0.5, "acceptance": 0.9, "lag_updates": 1,
                                                     "steps_per_second": 1e4, "kl": float("nan")})  # fmt: skip
        log.write("evaluation", 290, 29, {"mean": 4321.5, "note": EVIL})
        log.write("event", 290, 29, {"event": EVIL})
    (run_dir / "config.json").write_text(json.dumps({"seed": 7, "replay": {"capacity_steps": 123, EVIL: EVIL}}))
    return run_dir


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.sources, self.text, self.open = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open += [] if tag in {"meta", "img"} else [tag]
        self.sources += [value for name, value in attributes if name in {"src", "href"}]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_report_is_whole_self_contained_and_escaped(tmp_path):
    folder = tmp_path / "a run & <b>"
    folder.mkdir()
    path = report(a_run(folder))
    reader = Reader()
    reader.feed(path.read_text())
    assert not reader.open  # every tag is closed
    assert set(reader.tags) <= ALLOWED
    assert len(reader.sources) == 5
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in reader.sources)
    text = "".join(reader.text)
    for part in (
        EVIL,
        "4,321.5",
        "replay.capacity_steps",
        "123",
        "a run & <b>",
        "90.0 %",
        f"laser evaluate '{folder}'",
    ):
        assert part in text, part
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "metrics.jsonl", "report.html"]


@pytest.mark.parametrize("config", [None, "{", "[]", "[" * 100_000])
def test_report_does_without_a_configuration(tmp_path, config):
    a_run(tmp_path)
    (tmp_path / "config.json").unlink() if config is None else (tmp_path / "config.json").write_text(config)
    assert "Configuration" not in report(tmp_path).read_text()


def test_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is this a run directory"):
        report(tmp_path)


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


def test_reading_metrics_imports_neither_torch_nor_matplotlib():
    code = "import laser_rl.metrics, sys; sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'scipy', 'tensorboard')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
