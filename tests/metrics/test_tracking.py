"""Trackers get the rows, stay on this machine, and can do nothing to a run."""

import collections
import json
import logging
import math
import os
import sys
import threading
import time
from unittest import mock

import pytest

from laser_rl import LASER, Sweep
from laser_rl.cli import main
from laser_rl.errors import ConfigError
from laser_rl.metrics import tracking as tracking_module
from laser_rl.metrics.log import read
from laser_rl.metrics.tracking import TrackedRun, Tracking, book_path
from tests.metrics.fake_trackers import Mlflow, Trackio, Wandb

SMALL = ["--env", "laser/Catch", "--seed", "1", "--plain", "--run.evaluate-episodes", "2"]
OURS = ("WANDB", "TRACKIO", "MLFLOW")


@pytest.fixture(autouse=True)
def _nobody_has_set_anything():
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    with mock.patch.dict(os.environ, clean, clear=True):
        yield


@pytest.fixture
def fakes(monkeypatch):
    wandb, trackio, mlflow = Wandb(), Trackio(), Mlflow()
    for name, module in {"wandb": wandb, "trackio": trackio, **mlflow.modules}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return wandb, trackio, mlflow


class Remembered:
    """A tracker's run, and all that were begun."""

    begun: list

    def __init__(self, about, known):
        self.id, self.about, self.rows, self.how = known or about.name, about, [], None
        type(self).begun.append(self)

    def log(self, step, time_s, numbers):
        self.rows.append((step, numbers))

    def end(self, how):
        self.how = how


@pytest.fixture
def remembered(monkeypatch):
    fresh = type("Fresh", (Remembered,), {"begun": []})
    monkeypatch.setitem(tracking_module._TRACKERS, "wandb", fresh)
    return fresh


only = collections.defaultdict(lambda: TrackedRun("a", {}))  # any member's


def told_of(run_dir, member=None):
    """What a tracker should have been told, from the one source of truth."""
    rows = [row for row in read(run_dir, ("train", "evaluation")) if member is None or row["member"] == member]
    hidden = {"kind", "step", "time", "member"}
    return [
        (row["step"], {f"{row['kind']}/{name}": value for name, value in row.items() if name not in hidden})
        for row in rows
    ]


def test_all_three_get_the_rows_of_the_log_and_its_settings(fakes, tmp_path, capsys):
    run_dir = tmp_path / "catch"
    assert (
        main(
            [
                "train",
                *SMALL,
                "--steps",
                "2000",
                "--out",
                str(run_dir),
                "--track",
                "tensorboard,wandb",
                "trackio,mlflow",
            ]
        )
        == 0
    )
    expected, config = told_of(run_dir), json.loads((run_dir / "config.json").read_text())
    assert len(expected) >= 3
    assert {kind for _, numbers in expected for kind in (name.split("/")[0] for name in numbers)} == {
        "train",
        "evaluation",
    }
    for fake in fakes:
        (run,) = fake.runs
        assert run.rows == expected
        assert run.given["config"]["loss.discount"] in {config["loss"]["discount"], str(config["loss"]["discount"])}
        assert run.given["config"]["environment.id"] == "laser/Catch"
    wandb, trackio, mlflow = fakes
    assert (wandb.runs[0].given["mode"], wandb.runs[0].given["name"], wandb.runs[0].ended) == ("offline", "catch", 0)
    assert wandb.runs[0].given["dir"] == str(run_dir)
    assert trackio.runs[0].id.startswith("catch-")
    assert mlflow.addresses == [(run_dir / "mlruns").as_uri()]
    assert mlflow.runs[0].ended == "FINISHED"
    # Not a setting: what names the parts of experiments, and what a run goes on with, is as it was.
    assert "track" not in json.dumps(config)


def learn(run_dir=None, **options):
    settings = {"seed": 1, "slots": 4, "hidden": (8,), "log_every_updates": 10, "run_dir": run_dir, **options}
    LASER("laser/Catch", **settings).learn(400).close()


def test_nothing_is_reported_to_those_who_made_the_libraries(fakes):
    learn(track="wandb,mlflow,trackio")
    wanted = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_DISABLE_TELEMETRY": "1"}
    assert {name: os.environ.get(name) for name in wanted} == wanted


def test_the_users_own_environment_decides_where_rows_go(fakes, monkeypatch, tmp_path):
    for name, value in {
        "WANDB_MODE": "online",
        "WANDB_PROJECT": "mine",
        "MLFLOW_TRACKING_URI": "http://mlflow.example",
        "MLFLOW_EXPERIMENT_NAME": "mine",
    }.items():
        monkeypatch.setenv(name, value)
    learn(tmp_path, track=["wandb", "mlflow"])
    wandb, _, mlflow = fakes
    assert wandb.runs[0].given["mode"] == "online"
    assert "project" not in wandb.runs[0].given  # W&B takes it from the environment
    assert mlflow.addresses == ["http://mlflow.example"]
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ


def test_a_member_is_a_run_of_its_own_and_the_sweep_their_group(fakes, tmp_path):
    grid = ["--grid", "learning_rate=1e-3,2e-3"]
    run_dir = tmp_path / "pair"
    assert main(["sweep", *SMALL, *grid, "--steps", "1000", "--out", str(run_dir), "--track", "wandb,mlflow"]) == 0
    wandb, _, mlflow = fakes
    runs = {run.given["name"]: run for run in wandb.runs}
    assert set(runs) == {"pair-member-00", "pair-member-01", "pair-all"}
    for number, rate in enumerate((1e-3, 2e-3)):
        run = runs[f"pair-member-{number:02d}"]
        assert run.given["group"] == "pair"
        assert run.given["config"]["optimiser.learning_rate"] == rate
        assert run.rows == told_of(run_dir, member=number)
        assert run.ended == 0
    assert "optimiser.learning_rate" not in runs["pair-all"].given["config"]
    assert all(name.startswith("sweep/") for _, numbers in runs["pair-all"].rows for name in numbers)
    assert [run.given["group"] for run in mlflow.runs] == ["pair"] * 3


def test_a_resumed_run_goes_on_in_the_same_run_of_every_tracker(fakes, tmp_path):
    run_dir = tmp_path / "a"
    assert main(["train", *SMALL, "--steps", "1000", "--out", str(run_dir), "--track", "wandb,trackio,mlflow"]) == 0
    before = [(fake.runs[0].id, len(fake.runs[0].rows)) for fake in fakes]
    assert main(["resume", str(run_dir), "--steps", "2000", "--plain"]) == 0
    wandb, trackio, mlflow = fakes
    assert [run.id for run in wandb.runs] == [before[0][0]] * 2  # an offline run cannot be opened again
    assert wandb.runs[1].given["resume"] == "allow"
    # W&B's own steps, which it sorts by, go on as well.
    assert wandb.runs[1].last > wandb.runs[0].last >= 0
    assert (len(trackio.runs), len(mlflow.runs)) == (1, 1)
    assert [step for step, _ in trackio.runs[0].rows] == [step for step, _ in told_of(run_dir)]
    assert trackio.runs[0].rows == mlflow.runs[0].rows == wandb.runs[0].rows + wandb.runs[1].rows


def test_a_fresh_run_is_a_new_one_for_its_trackers(fakes, tmp_path):
    def train(*more):
        words = ["train", *SMALL, "--steps", "500", "--run.log-every-updates", "5", "--out", str(tmp_path / "a"), *more]
        assert main(words) == 0
        return [len({run.id for run in fake.runs}) for fake in fakes]

    every = ["--track", "wandb,trackio,mlflow"]
    assert train(*every) == [1, 1, 1]
    assert train(*every, "--fresh") == [2, 2, 2]
    assert train("--fresh") == [2, 2, 2]
    assert not list((tmp_path / "a").glob("tracker-*"))


def test_in_python(fakes, tmp_path):
    agent = LASER("laser/Catch", seed=1, slots=4, run_dir=tmp_path / "a", track="wandb", log_every_updates=10).learn(
        600
    )
    agent.close()
    result = Sweep("laser/Catch", members=[{}, {}], seed=1, slots=4, evaluate_episodes=2, track=["wandb"]).run(300)
    assert result.interrupted is None
    wandb = fakes[0]
    assert [(run.given["name"], run.given["group"]) for run in wandb.runs] == [
        ("a", None),
        *((f"laser/Catch-sweep-{who}", "laser/Catch-sweep") for who in ("member-00", "member-01", "all")),
    ]
    assert "dir" not in wandb.runs[1].given  # a temporary directory would take it along
    assert wandb.runs[0].rows == told_of(tmp_path / "a")
    LASER("laser/Catch", seed=1, slots=4, run_dir=tmp_path / "a", log_every_updates=10).learn(200).close()
    assert wandb.runs[-1].id == wandb.runs[0].id  # it goes on there
    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        LASER("laser/Catch", track="mflow")


def test_a_missing_library_is_one_line_and_the_run_goes_on(monkeypatch, tmp_path, caplog, capsys):
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    with caplog.at_level(logging.WARNING, "laser_rl"):
        assert main(["train", *SMALL, "--steps", "500", "--out", str(tmp_path / "a"), "--track", "trackio"]) == 0
    (line,) = [record.getMessage() for record in caplog.records if "trackio" in record.getMessage()]
    assert "pip install 'laser-rl[trackio]'" in line
    assert "tracked:" not in capsys.readouterr().out
    assert "\n" not in line


def test_a_name_that_is_none_is_refused_before_anything_is_made(tmp_path, capsys):
    assert main(["train", *SMALL, "--out", str(tmp_path / "a"), "--track", "wandbb"]) == 2
    assert "did you mean 'wandb'?" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("where", ["begin", "log", "end", "exit"])
def test_a_tracker_that_raises_is_one_warning_and_then_silence(where, remembered, monkeypatch, caplog):
    class Broken(remembered):
        def __init__(self, about, known):
            if where == "begin":
                raise RuntimeError("no\nnetwork")
            super().__init__(about, known)

        def log(self, step, time_s, numbers):
            if where == "exit":
                sys.exit("no network")
            if where == "log":
                raise RuntimeError("no network")

        def end(self, how):
            raise RuntimeError("no network")

    monkeypatch.setitem(tracking_module._TRACKERS, "wandb", Broken)
    tracking = Tracking("wandb", only)
    with caplog.at_level(logging.INFO, "laser_rl"):
        for step in range(20):
            tracking.write("train", step, step, {"kl": 0.5})
            time.sleep(0.005)
        tracking.close()
        tracking.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("wandb fails and gets no more rows")
    assert "network" in line
    assert "\n" not in line


def test_training_never_waits_for_a_tracker_and_what_it_misses_is_counted(remembered, monkeypatch, caplog):
    begun, free = threading.Event(), threading.Event()

    class Stuck(remembered):
        def log(self, step, time_s, numbers):
            begun.set()
            free.wait(30.0)
            super().log(step, time_s, numbers)

    monkeypatch.setitem(tracking_module._TRACKERS, "mlflow", Stuck)
    monkeypatch.setattr(tracking_module, "_MOST_WAITING", 10)
    monkeypatch.setattr(tracking_module, "_LAST_ROWS_S", 0.2)
    tracking = Tracking("mlflow", only)
    tracking.write("train", 0, 0, {"kl": 0.5})
    assert begun.wait(10.0)
    start = time.monotonic()
    for step in range(1, 1001):
        tracking.write("train", step, step, {"kl": 0.5})
    tracking.flush()
    took = time.monotonic() - start
    assert tracking.dropped == 990
    assert took < 5.0  # it would be stuck for 30 s
    with caplog.at_level(logging.INFO, "laser_rl"):
        tracking.close()
    *_, last = [record.getMessage() for record in caplog.records]
    assert last == "mlflow was too slow: 1000 rows did not get there; metrics.jsonl has all of them"
    free.set()


def test_only_finite_numbers_and_no_episodes_are_sent(remembered):
    tracking = Tracking("wandb", only)
    tracking.write("episode", 1, 1, {"return": 1.0})
    tracking.write("train", 2, 1, {"kl": math.nan, "bound": math.inf, "task": "a", "entropy": 0.5})
    tracking.write("event", 2, 1, {"event": "rolled back"})
    tracking.close()
    assert remembered.begun[0].rows == [(2, {"train/entropy": 0.5, "train/update": 1})]


@pytest.mark.parametrize(
    ("events", "how"),
    [(["finished"], "finished"), (["stopped"], "stopped"), (["finished", "resumed"], "failed"), ([], "failed")],
)
def test_how_a_run_ended_is_told(events, how, remembered):
    tracking = Tracking("wandb", only)
    tracking.write("train", 1, 1, {"kl": 0.5})
    for event in events:
        tracking.write("event", 1, 1, {"event": event})
    tracking.close()
    assert remembered.begun[0].how == how


def test_a_damaged_book_begins_a_new_run(remembered, tmp_path):
    book_path(tmp_path, "wandb").write_text('{"began": "x", "ids": [1')
    tracking = Tracking("wandb", only, tmp_path)
    tracking.write("train", 1, 1, {"kl": 0.5})
    tracking.close()
    assert json.loads(book_path(tmp_path, "wandb").read_text())["ids"] == {"-1": "a"}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["wandb", "trackio", "mlflow"])
def test_the_real_library(library, tmp_path):
    """In a process of its own: all of them have threads and exit handlers that stay."""
    pytest.importorskip(library)
    code = f"""
from laser_rl import LASER
for steps in (600, 400):
    agent = LASER("laser/Catch", seed=1, slots=4, run_dir={str(tmp_path / "a")!r}, track={library!r}, log_every_updates=10)
    agent.learn(steps).close()
"""
    import subprocess  # noqa: PLC0415

    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fails" not in done.stderr
    written, expected = REAL[library](tmp_path), [step for step, _ in told_of(tmp_path / "a")]
    assert written == expected


def _wandb_steps(folder):
    """Its own format has no public reader: one folder a session, with one id and with our rows in it."""
    parts = sorted((folder / "a" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(parts) == 2
    assert len({part.stem for part in parts}) == 1
    assert all(b"train/return_mean" in part.read_bytes() for part in parts)
    return [step for step, _ in told_of(folder / "a")]


def _trackio_steps(folder):
    import sqlite3  # noqa: PLC0415

    (base,) = (folder / "trackio").glob("*.db")
    with sqlite3.connect(base) as database:
        found = database.execute("select run_name, step from metrics order by id").fetchall()
    assert len({name for name, _ in found}) == 1
    return [step for _, step in found]


def _mlflow_steps(folder):
    (file,) = (folder / "a" / "mlruns").glob("*/*/metrics/train/update")
    return [int(line.split()[2]) for line in file.read_text().splitlines()]


REAL = {"wandb": _wandb_steps, "trackio": _trackio_steps, "mlflow": _mlflow_steps}
