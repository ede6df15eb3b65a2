"""The report is the dashboard's page with its answers inside: it says what the rows say, of any directory, whole or not."""

import base64
import contextlib
import json
import os
import re
import time
from urllib.parse import unquote

import numpy as np
import pytest

from laser_rl.checkpoint import RunLock
from laser_rl.metrics import machine
from laser_rl.metrics.log import FILE, MetricsLog
from laser_rl.view import report as module
from laser_rl.view.facts import details, interval
from laser_rl.view.runs import ViewedRun
from laser_rl.view.server import live_summary
from tests.metrics.test_sweep_rows import a_sweep, settings_of
from tests.metrics.test_videos import trained
from tests.view.logs import write_sweep
from tests.view.reading import EVIL, Refused, read_report, report

TASKS = ("laser/Catch", "laser/TMaze-5", EVIL)


def a_run(run_dir, slope=1.0, *, seed=7, rate=0.001, updates=120, more=None, ended=True):
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(MetricsLog(run_dir)) as log:
        for update in range(1, updates + 1):
            log.write("episode", 10 * update, update, {"return": slope * update, "length": 5, "slot": 0})
            values = {
                "return_mean": slope * update,
                "episodes": update,
                "entropy": 0.5,
                "acceptance": 0.9,
                "lag_updates": 1,
                "policy_loss": -0.1,
                "value_loss": 2.0,
            }
            log.write("train", 10 * update, update, {**values, "steps_per_second": 1e4, **(more or {})})
        ends = {"ci95_low": 4300.0, "ci95_high": 4350.0}
        log.write("evaluation", 10 * updates, updates, {"mean": 4321.5 * slope, "iqm": 4320.0, "episodes": 20, **ends})
        if ended:
            log.write("event", 10 * updates, updates, {"event": "finished"})
    config = {
        "recipe": "cartpole",
        "environment": {"id": "CartPole-v1"},
        "optimiser": {"learning_rate": rate},
        "run": {"seed": seed},
    }
    (run_dir / "config.json").write_text(json.dumps(config))
    return run_dir


def a_mixture(run_dir):
    def numbers(level):
        values = {"return_mean": level, "score_mean_capped": level / 2, "tasks_above_random": 2, "tasks_seen": 3}
        for number, name in enumerate(TASKS):
            values |= {f"return_of_{name}": level + number, f"score_of_{name}": level - number}
        return values

    with contextlib.closing(MetricsLog(run_dir)) as log:
        for update in range(1, 20):
            log.write("train", 10 * update, update, {**numbers(update / 10), "entropy": 0.5})
        played = numbers(4.0)
        log.write("evaluation", 190, 19, {"mean": played.pop("return_mean"), **played})
    return run_dir


def test_one_run_with_its_numbers_and_settings(tmp_path):
    folder = tmp_path / "a run & <b>"
    path = report(a_run(folder))
    page = read_report(path)
    assert path == folder / "report.html"
    told, details = page.run(), page.details()
    assert (told["name"], told["state"], told["environment"], told["kind"]) == (
        "a run & <b>",
        "finished",
        "CartPole-v1",
        "one agent",
    )
    [member] = told["members"]
    assert (member["score"], member["evaluation"], member["interval"]) == (120, 4321.5, [4300, 4350])
    assert (member["iqm"], member["episodes"], member["steps"], member["updates"]) == (4320, 20, 1200, 120)
    assert details["settings"]["optimiser.learning_rate"] == "0.001"
    assert details["machine"]["seed"] == 7
    assert (details["numbers"]["return"], details["evaluation"]["mean"]) == ("120", 4321.5)
    assert told["notices"] == []
    assert page.line("returns") == [(10 * n, n) for n in range(1, 121)]
    assert page.line("episodes") == page.line("returns")
    for name, value in {"entropy": 0.5, "lag": 1, "policy-loss": -0.1, "value-loss": 2, "steps": 1e4}.items():
        assert {y for _, y in page.line(name)} == {value}, name
    assert page.panel("evaluations")["lines"][0]["low"] == [4300]
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", FILE, "report.html"]


def test_a_sweep_with_its_members_copies_and_who_trusts_whom(tmp_path):
    folder = a_sweep(tmp_path / "a sweep", 3, pbt=True)
    page = read_report(report(folder))
    told = page.run()
    assert (told["best"], told["is_sweep"], told["exploits"]) == (2, True, len(page.panel("copies")["sentences"]))
    for number, one in enumerate(told["members"]):
        assert (one["steps"], one["updates"], one["evaluation"]) == (60_000, 600, 100 + number)
        assert (one["skipped"], one["interval"]) == (number, [90 + number, 110 + number])
        assert set(one["settings"]) == set(settings_of(3)[0])
    assert page.details()["settings"]["loss.discount"] == "0.99"
    one, everybody = page.panel("trust", learner=1), page.panel("trust")
    assert [line["name"] for line in one["lines"]] == [line["name"] for line in everybody["lines"]]
    assert one["lines"][1]["y"][-1] == pytest.approx(0.98, abs=1e-3)
    moved = page.panel("learning-rate")
    assert len(moved["lines"]) == 3
    assert len({y for line in moved["lines"] for y in line["y"]}) > 3


def a_varied_sweep(run_dir, settings, scores, *, evaluated=None):
    """Member k has the k-th settings and return; evaluations only of so many members."""
    with contextlib.closing(MetricsLog(run_dir)) as log:
        for member, score in enumerate(scores):
            log.write("train", 100, 10, {"member": member, "return_mean": score})
        for member, score in enumerate(scores[:evaluated]):
            log.write("evaluation", 100, 10, {"member": member, "mean": -score})
    base = {"environment": {"id": "x"}, "optimiser": {"learning_rate": 1.0}, "loss": {"discount": 0.99}}
    (run_dir / "sweep.json").write_text(json.dumps({"base": base, "settings": settings}))
    return run_dir


def test_settings_are_set_against_a_score_that_all_members_have(tmp_path):
    settings = [
        {"learning_rate": 1e-4, "loss.discount": 0.9, "loss.trust": "off", "popart": True},
        {"learning_rate": 1e-3, "loss.discount": 0.9, "loss.trust": "implied", "popart": False},
        {"learning_rate": 2e-3, "loss.discount": 0.99, "loss.trust": "off", "popart": True},
    ]
    for evaluated, sign, what in (
        (3, -1, "Mean of the last evaluation"),
        (2, 1, "Mean return of the last 100 episodes"),
    ):
        data = read_report(
            report(a_varied_sweep(tmp_path / what, settings, [5.0, 7.0, 6.0], evaluated=evaluated))
        ).panel("settings")
        assert data["score"] == what
        assert [(one["member"], one["score"]) for one in data["points"]] == [
            (0, 5 * sign),
            (1, 7 * sign),
            (2, 6 * sign),
        ]
        axes = {one["name"]: (one["log"], one["values"]) for one in data["settings"]}
        assert axes["learning_rate"] == (True, [1e-4, 1e-3, 2e-3])  # 20 times
        assert axes["discount"] == (False, [0.9, 0.9, 0.99])
        assert axes["trust"] == (False, ["off", "implied", "off"])
        assert axes["popart"] == (False, ["True", "False", "True"])
        assert len(axes) == 4
    same = a_varied_sweep(tmp_path / "same", settings[:1] * 2, [1.0, 2.0])
    assert read_report(report(same)).panel("settings")["settings"] == []


def test_a_copy_is_a_sentence(tmp_path):
    a_varied_sweep(tmp_path, [{}, {}, {}], [1.0, 2.0, 3.0])
    settings = {"learning_rate": (6e-4, 7.2e-4), "entropy_cost": (0.01, 0.01 + 1e-12)}
    marks = {f"{when}_{name}": ends[n] for name, ends in settings.items() for n, when in enumerate(("before", "after"))}
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        scores = {"score": 12.5, "donor_score": 3100.0}
        log.write("event", 40_000, 5, {"event": "exploit", "member": 2, "donor": 0, **scores, **marks})
        log.write("event", 50_000, 6, {"event": "exploit", "member": 1, "donor": 2, "score": float("nan")})
    page = read_report(report(tmp_path))
    assert page.panel("copies")["sentences"] == [
        "At 50,000 steps member 1 copied member 2 and kept its settings.",
        "At 40,000 steps member 2 copied member 0 (score 12.5 against 3,100) and changed learning_rate from 0.0006 to 0.00072.",
    ]
    rates = {one["name"]: one["values"] for one in page.panel("settings")["settings"]}["learning_rate"]
    assert rates == [1.0, 1.0, 7.2e-4]  # as they are now


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_the_report_says_what_the_dashboard_says(tmp_path, kind):
    run_dir = a_run(tmp_path / "a") if kind == "run" else a_sweep(tmp_path / "a", 3, pbt=True)
    page, live = read_report(report(run_dir)), ViewedRun(0, run_dir)
    live.look()
    while live.read_on():
        pass
    told, frozen = live_summary(live), page.run()
    assert {name: told[name] for name in told if name != "version"} == {
        name: frozen[name] for name in frozen if name != "version"
    }
    assert json.loads(json.dumps(details(live.subject(), live.videos()))) == page.details()


def test_the_interval_of_training_is_over_the_last_hundred_episodes(tmp_path):
    [[low, high]] = read_report(report(a_run(tmp_path))).details()["intervals"]
    assert 21 < low < 70.5 < high < 120  # the mean of 21 to 120 is 70.5
    draws = np.random.default_rng(1).integers(21, 121, size=(4000, 100)).mean(1)
    np.testing.assert_allclose((low, high), np.quantile(draws, [0.025, 0.975]), atol=1.5)
    assert interval(np.full(9, 3.0)) == (3.0, 3.0)


def test_a_mixture_has_every_task_and_says_what_its_curve_is(tmp_path):
    page = read_report(report(a_mixture(tmp_path)))
    lines = {line.pop("task"): list(line.values()) for line in page.table("task-table")}
    for number, name in enumerate(TASKS):
        known = [[-0.6, 1], [0, 1], [None, None]][number]
        assert lines[name] == pytest.approx([*known, 1.9 + number, 1.9 - number, 4.0 + number, 4.0 - number])
    drawn = page.panel("tasks")["lines"]
    assert [line["name"] for line in drawn] == list(TASKS)
    assert drawn[1]["y"][-1] == pytest.approx(0.9)
    assert page.panel("returns")["label"] == "Median over tasks of the normalised score"
    assert (page.run()["score"], page.details()["numbers"]["score"]) == ("score", "1.9")
    assert read_report(report(a_run(tmp_path / "single"))).table("task-table") == []


def test_everything_from_outside_is_data(tmp_path):
    run_dir = a_run(tmp_path / EVIL.replace("/", "_"), more={EVIL: 1.0})
    with contextlib.closing(MetricsLog(run_dir)) as log:
        log.write("evaluation", 1200, 120, {"mean": 1.0, "note": EVIL, EVIL: EVIL})
        log.write("event", 1200, 120, {"event": EVIL, EVIL: EVIL})
    (run_dir / "config.json").write_text(json.dumps({"environment": {"id": EVIL}, "replay": {EVIL: EVIL}}))
    session = {"command": EVIL, "gpu": EVIL, "libraries": {EVIL: EVIL}}
    (run_dir / machine.FILE).write_text(json.dumps({"sessions": [session]}))
    trained(run_dir, 100, 9.0, task=EVIL)
    page = read_report(report(run_dir))  # refuses scripts and attributes that are not ours
    assert page.details()["events"][-1]["event"] == EVIL
    assert page.run()["environment"] == EVIL
    assert page.details()["machine"]["GPU"] == EVIL
    assert page.details()["videos"][0]["task"] == EVIL
    sweep = tmp_path / "sweep"
    with contextlib.closing(MetricsLog(sweep)) as log:
        log.write("train", 10, 1, {"member": 0, "return_mean": 1.0, EVIL: EVIL})
        log.write("event", 10, 1, {"event": "exploit", "member": 0, "donor": 1, f"after_{EVIL}": 1.0})
    (sweep / "sweep.json").write_text(json.dumps({"settings": [{EVIL: EVIL}, {}], "recipe": EVIL, "base": {EVIL: 1}}))
    assert read_report(report(sweep)).run()["members"][0]["settings"][EVIL] == "1"


def test_it_asks_nobody_and_its_scripts_cannot_be_ended(tmp_path):
    page = read_report(report(a_run(tmp_path)))
    own = page.source.replace(page.scripts[0], "")  # uPlot
    assert not re.search(r"@import|url\(|javascript:|/static/", own)
    assert not re.search(r"</script|<!--", "".join(page.scripts), re.IGNORECASE)
    assert not re.search(r"^(import|export) ", page.scripts[1], re.MULTILINE)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page.source
    assert "@media print" in page.source


def test_warnings_count_over_sessions_and_say_whose(tmp_path):
    counts = [0, 2, 2, 0, 1]  # a new session counts from nothing
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        for n, count in enumerate(counts, start=1):
            values = {"skipped_updates": count, "environment_restarts": 4}
            log.write("train", n, n, {**values, "episodes": 200, "return_mean": 1.0})
        log.write("event", 9, 9, {"event": "finished"})
    assert read_report(report(tmp_path)).notices("warning") == [
        "3 updates were skipped, because their gradient was not finite.",
        "4 environment workers were replaced.",
    ]
    sweep = read_report(report(a_sweep(tmp_path / "sweep", 3))).notices("warning")
    assert any("3 updates were skipped" in text and "member 1: 1, member 2: 2" in text for text in sweep)


def test_a_resumption_is_marked_and_its_void_rows_are_left_out(tmp_path):
    a_run(tmp_path, ended=False)
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        log.resumed(600, 60)
        log.write("train", 610, 61, {"return_mean": -5.0, "entropy": 0.25})
        log.write("event", 610, 61, {"event": "finished"})
    page = read_report(report(tmp_path))
    assert any("Resumed at step 600" in text for text in page.notices("note"))
    assert page.panel("returns")["marks"] == [600]
    assert page.line("returns")[-2:] == [(600, 60), (610, -5)]
    [member] = page.run()["members"]
    assert (member["score"], member["evaluation"]) == (-5, None)  # the evaluation was after the checkpoint


def test_a_run_that_goes_on_and_one_that_broke_off(tmp_path):
    a_run(tmp_path, ended=False)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"kind": "train", "step": 99000, "upd')  # half a row, being written
    page = read_report(report(tmp_path))
    assert page.run()["state"] == "broken off"
    assert any("nothing here is a final result" in text for text in page.notices("warning"))
    with RunLock(tmp_path):
        page = read_report(report(tmp_path))
    assert (page.run()["state"], page.run()["notices"]) == ("running", [])
    assert page.run()["members"][0]["steps"] == 1200


@pytest.mark.parametrize("name", ["config.json", "sweep.json"])
def test_before_the_first_row_and_before_the_first_episode(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"environment": {"id": "x"}, "settings": [{"learning_rate": 0.1}, {}]}))
    page = read_report(report(tmp_path))
    assert any("no rows yet" in text for text in page.notices("warning"))
    assert page.details()["settings"]
    assert page.run()["state"] == "not begun"
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        log.write("train", 10, 1, {"entropy": 0.5, "episodes": 3, **({"member": 0} if name == "sweep.json" else {})})
    page = read_report(report(tmp_path))
    assert page.panel("returns")["lines"] == []
    assert any("Fewer than 100 episodes" in text for text in page.notices("note"))


@pytest.mark.parametrize("file", ["config.json", "sweep.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"settings": 3}', '{"settings": [1, null]}', "[" * 100_000])
def test_damaged_settings_are_no_reason_to_refuse(tmp_path, file, content):
    with contextlib.closing(MetricsLog(tmp_path)) as log:
        for member in range(3):
            log.write("train", 10, 1, {"member": member, "entropy": 0.5})
    (tmp_path / file).write_text(content)
    assert len(read_report(report(tmp_path)).run()["members"]) == 3


def test_rows_with_less_in_them_are_shown(tmp_path):
    rows = [{"kind": "train", "step": n, "update": n, "return_mean": 1.0} for n in (1, 2)]  # no time, no counters
    (tmp_path / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = read_report(report(tmp_path))
    assert page.run()["members"][0]["score"] == 1
    assert page.details()["machine"] == {"times started": "not recorded"}
    assert page.notices("note") == []  # how many episodes there were was not told


def test_what_is_no_run_directory_is_refused_with_a_hint(tmp_path):
    with pytest.raises(Refused, match="is this a run directory"):
        report(tmp_path)
    a_run(tmp_path / "inside")
    with pytest.raises(Refused, match=r"its folders are: laser report .*/\*"):
        report(tmp_path)
    with pytest.raises(Refused, match="report what"):
        report()


def test_sessions_name_machine_versions_and_command(tmp_path, monkeypatch):
    a_run(tmp_path)
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/laser", "train", "--env", "a b"])
    machine.record(tmp_path, b"{}")
    machine.record(tmp_path, b"{}")
    details = read_report(report(tmp_path)).details()
    assert [one["command"] for one in details["sessions"]] == ["laser train --env 'a b'"] * 2
    here = machine.machine()
    assert (details["machine"]["Python"], details["machine"]["cores"]) == (here["python"], here["cores"])
    assert details["machine"]["numpy"] == np.__version__
    assert not list(tmp_path.glob(".*.tmp"))


def test_huge_logs_are_binned_and_extremes_are_not_averaged_away(tmp_path):
    row = {"kind": "train", "time": 0.0, "episodes": 5, **{f"number_{n}": 0.5 for n in range(20)}}
    values = np.random.default_rng(0).normal(size=30_000)
    with (tmp_path / FILE).open("w") as file:
        for n, value in enumerate(values.tolist()):
            file.write(json.dumps({**row, "step": 10 * n, "update": n, "return_mean": value, "entropy": value}) + "\n")
    start = time.process_time()
    path = report(tmp_path)
    assert time.process_time() - start < 20  # about 1 s on a free core; here only against what grows with the square
    assert path.stat().st_size < 1e6
    [line] = read_report(path).panel("entropy")["lines"]
    assert len(line["y"]) <= 400
    assert min(line["low"]) == pytest.approx(values.min(), rel=1e-4)
    assert max(line["high"]) == pytest.approx(values.max(), rel=1e-4)


@pytest.mark.parametrize("members", [1, 13, 40])
def test_few_and_many_members(tmp_path, members):
    page = read_report(report(a_sweep(tmp_path, members, pbt=members > 1, times=13)))
    assert len(page.run()["members"]) == len(page.panel("returns")["lines"]) == members
    assert (page.panel("lineage")["copies"] != []) == (members > 1)
    learners = [address for address in page.answers if "learner=0" in address]
    assert learners == []  # of one there is no choice, of many there would be too much


@pytest.fixture
def runs(tmp_path):
    """Two conditions of three and two seeds."""
    fast = [a_run(tmp_path / f"fast{seed}", 1.0 + seed, seed=seed, rate=0.1) for seed in range(3)]
    slow = [a_run(tmp_path / f"slow{seed}", 0.1 + seed, seed=seed, rate=0.01) for seed in range(2)]
    return [*fast, *slow]


def test_runs_that_differ_in_the_seed_are_one_condition(runs, tmp_path):
    page = read_report(report(*runs, out=tmp_path / "out.html"))
    names = ["fast0", "fast1", "fast2", "slow0", "slow1"]
    assert [one["name"] for one in page.answers["/api/runs"]] == ["Side by side", *names]
    lines = page.table("conditions")
    assert [(line["condition"], line["seeds"]) for line in lines] == [
        ("learning_rate 0.1", "0, 1, 2"),
        ("learning_rate 0.01", "0, 1"),
    ]
    scores = 4321.5 * np.array([1.0, 2.0, 3.0])
    assert [lines[0][name] for name in ("mean score", "lowest", "highest")] == [8643, 4321.5, 12964.5]
    assert lines[0]["interval over seeds"] == " to ".join(f"{end:,.0f}" for end in interval(scores))
    differ = page.table("differences")
    assert [line.pop("setting") for line in differ] == ["optimiser.learning_rate", "run.seed"]
    assert list(differ[0]) == names
    assert page.run(2)["name"] == "fast1"
    assert page.panel("returns", 2)["lines"][0]["y"][-1] == 240


def test_the_band_is_from_the_lowest_to_the_highest_run(runs, tmp_path):
    page = read_report(report(*runs, out=tmp_path / "out.html"))
    data = page.panel("compared-0")
    fast, slow = data["lines"]
    x = np.array(data["x"])
    for line, (low, mean, high) in ((fast, (1, 2, 3)), (slow, (0.1, 0.6, 1.1))):
        for name, slope in (("low", low), ("y", mean), ("high", high)):
            np.testing.assert_allclose(np.array(line[name], float), slope * x / 10, rtol=1e-4)
    assert fast["member"] != slow["member"]  # the colour


def test_a_directory_has_one_name_and_colour_in_all_charts_and_counts_time_from_its_own_start(tmp_path):
    runs = [a_run(tmp_path / "a", rate=0.1), a_run(tmp_path / "b", 2.0, rate=0.01), a_sweep(tmp_path / "c", 3)]
    page = read_report(report(*runs, out=tmp_path / "out.html"))
    told = page.run()
    assert [one["name"] for one in told["members"]] == ["a", "b", "c"]
    charts = {one["id"] for one in told["panels"]} & {"compared-0", "compared-1", "steps", "acceptance", "value-loss"}
    assert len(charts) == 5
    for name in charts:
        for line in page.panel(name)["lines"]:
            assert line["name"] == "abc"[line["member"]], name
    assert [line["name"] for line in page.panel("value-loss")["lines"]] == ["a", "b"]
    assert all(page.panel(name, axis="time")["x"][0] < 60 for name in charts)
    points = {n: page.panel(f"settings-{n}") for n in (0, 1)}
    assert [(one["name"], one["member"]) for one in points[0]["points"]] == [("a", 0), ("b", 1)]
    assert points[0]["settings"] == [{"name": "learning_rate", "log": False, "values": [0.1, 0.01]}]
    assert [one["name"] for one in points[1]["points"]] == [f"c, member {n}" for n in range(3)]


def test_environments_have_a_chart_each_and_a_sweep_is_its_best_member(tmp_path):
    first, second = a_run(tmp_path / "a"), a_sweep(tmp_path / "b", 3)
    page = read_report(report(first, second, out=tmp_path / "out.html"))
    titles = [one["title"] for one in page.run()["panels"] if one["id"].startswith("compared-")]
    assert titles[:2] == [
        "Mean return of the last 100 episodes, CartPole-v1",
        "Mean return of the last 100 episodes, unknown environment",
    ]
    assert page.table("directories")[1]["kind"] == "sweep of 3"
    best = page.panel("compared-1")["lines"][0]["y"][-1]
    assert best == pytest.approx(max(one["score"] for one in page.run(2)["members"]), rel=1e-4)


def test_a_setting_that_one_directory_does_not_know_differs(tmp_path):
    first, second = a_run(tmp_path / "a"), a_run(tmp_path / "b")
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps({**config, "replay": {"new": None}}))
    page = read_report(report(first, second, out=tmp_path / "out.html"))
    assert page.table("differences") == [{"setting": "replay.new", "a": "–", "b": "None"}]


def test_directories_without_settings_are_never_one_condition_and_one_twice_is_one(tmp_path):
    for name in ("x/a", "y/a"):
        with contextlib.closing(MetricsLog(tmp_path / name)) as log:
            log.write("train", 10, 1, {"return_mean": 1.0})
    page = read_report(report(tmp_path / "x/a", tmp_path / "y/a", out=tmp_path / "out.html"))
    assert [line["condition"] for line in page.table("conditions")] == ["x/a", "y/a"]
    page = read_report(report(tmp_path / "x/a", tmp_path / "x/a", out=tmp_path / "out.html"))
    assert [one["name"] for one in page.answers["/api/runs"]] == ["a"]


@pytest.fixture
def filmed(tmp_path):
    run_dir = a_run(tmp_path / "a run")
    for n, (total, data) in enumerate([(9.0, b"the best"), (1.0, b"between"), (2.0, b"the newest")], start=1):
        path = trained(run_dir, 100 * n, total, member=3)
        path.write_bytes(data)
        os.utime(path, (n, n))
    return run_dir


def sources(page, number=0):
    return {one["step"]: one["src"] for one in page.details(number)["videos"]}


def embedded(source):
    return base64.b64decode(source.removeprefix("data:video/mp4;base64,"))


def test_the_newest_and_the_best_film_are_in_the_page_and_others_are_links(filmed):
    page = read_report(report(filmed))
    found = sources(page)
    assert list(found) == [300, 100, 200]
    assert (embedded(found[300]), embedded(found[100])) == (b"the newest", b"the best")
    assert (filmed / unquote(found[200])).read_bytes() == b"between"
    assert "media-src data:" in page.policy
    one = page.details()["videos"][0]
    assert (one["return"], one["member"]) == (2, 3)


def test_a_large_film_is_a_link_that_leads_there(filmed, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_BYTES", 9)
    for out in (None, tmp_path / "elsewhere" / "report.html"):
        path = report(filmed, out=out)
        found = sources(read_report(path))
        assert embedded(found[100]) == b"the best"
        assert (path.parent / unquote(found[300])).read_bytes() == b"the newest"
        assert found[300].startswith(".")


def test_of_several_directories_films_are_links_only(filmed, tmp_path):
    page = read_report(report(filmed, a_run(tmp_path / "b", 2.0, seed=8), out=tmp_path / "report.html"))
    assert sources(page, 1)[300] == "./a%20run/videos/step-000000000300.mp4"
    assert "base64," not in page.source.replace("".join(page.scripts), "")


def test_no_link_is_followed_out_of_the_directory(filmed, tmp_path):
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (filmed / "videos" / "zz.mp4").symlink_to(tmp_path / "secret.mp4")
    source = report(filmed).read_text()
    assert base64.b64encode(b"secret").decode() not in source
    assert "zz.mp4" not in source
    (filmed / "videos").rename(tmp_path / "elsewhere")
    (filmed / "videos").symlink_to(tmp_path / "elsewhere")
    assert read_report(report(filmed)).details()["videos"] == []


def test_a_log_that_is_a_link_is_not_followed(tmp_path):
    elsewhere = write_sweep(tmp_path / "elsewhere", 2, 5)
    run_dir = a_run(tmp_path / "a")
    (run_dir / FILE).unlink()
    (run_dir / FILE).symlink_to(elsewhere / FILE)
    with pytest.raises(Refused, match="cannot be read"):
        report(run_dir)
