"""The page in a real browser, during a live sweep. Pictures are kept in the folder of the test, or in $LASER_SCREENSHOTS."""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laser_rl.metrics.log import MetricsLog
from tests.metrics.test_sweep_rows import a_sweep
from tests.view.chromium import PROGRAM, Chromium
from tests.view.logs import START, write_run, write_sweep
from tests.view.reading import report
from tests.view.test_load import end, start_dashboard
from tests.view.test_report import a_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: apt-get install chromium"),
]
LIVE = "document.getElementById('link').textContent === 'live'"
LABEL = "document.querySelector('#panel-returns .plot')?.getAttribute('aria-label')"
# What stands below a chart of so many points.
TICKS = """(async () => {
  const { Chart } = await import("/static/charts.js");
  const place = document.createElement("div"), x = %s;
  place.style.width = "600px";
  document.body.append(place);
  const chart = new Chart(place, { title: "a chart", dots: true });
  chart.draw({ x, marks: [], lines: [{ name: "0", member: 0, y: x, low: x, high: x }] }, { hidden: new Set(), axis: "step" });
  await new Promise((done) => setTimeout(done, 300));
  const texts = chart.made.axes[0]._values;
  place.remove();
  return texts;
})()"""
# Where the ticks of a logarithmic axis stand, and what they say.
LOG_TICKS = """(async () => {
  const { Chart } = await import("/static/charts.js");
  const place = document.createElement("div"), y = %s;
  place.style.width = "600px";
  document.body.append(place);
  const chart = new Chart(place, { title: "a chart", log: true });
  chart.draw({ x: y.map((_, n) => n), marks: [], lines: [{ name: "0", member: 0, y }] }, { hidden: new Set(), axis: "step" });
  await new Promise((done) => setTimeout(done, 300));
  const { _splits: at, _values: texts } = chart.made.axes[1];
  const legend = chart.legend.textContent;
  place.remove();
  return [at.map((v, n) => [v, texts[n]]), legend];
})()"""
NAME = "<img src=x onerror=alert(1)>"


@pytest.fixture
def pictures(tmp_path):
    folder = Path(os.environ.get("LASER_SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def browser(tmp_path):
    with Chromium(tmp_path / "profile") as found:
        found.prefers("light")
        yield found


@pytest.fixture
def sweep(tmp_path):
    """A sweep that goes on until the test ends."""
    run = tmp_path / "runs" / "live"
    command = [
        sys.executable,
        "-m",
        "laser_rl",
        "sweep",
        "--recipe",
        "demo",
        "--steps",
        "2M",
        "--out",
        str(run),
        "--plain",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    yield run
    process.kill()
    process.wait(20)


def steps_in(label: str) -> int:
    return int(re.search(r"([\d,]+) steps", label)[1].replace(",", ""))


def whole_page(browser: Chromium, path: Path, width: int, *, phone: bool = False) -> None:
    browser.size(width, 900, phone=phone)
    time.sleep(1)
    browser.size(width, min(8000, browser.run("document.documentElement.scrollHeight")), phone=phone)
    time.sleep(4)  # panels that came into sight are fetched
    browser.picture(path)


def phone_page(browser: Chromium, path: Path) -> None:
    """At 390 pixels nothing is wider than the page, panels have its whole width, and a finger can hit every control."""
    whole_page(browser, path, 390, phone=True)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    widths = "[...document.querySelectorAll('.panel')].filter((one) => !one.hidden).map((one) => one.clientWidth)"
    assert min(browser.run(widths)) >= 360
    plots = "[...document.querySelectorAll('.panel .plot canvas')].map((one) => one.clientWidth)"
    assert min(browser.run(plots)) >= 330
    controls = "[...document.querySelectorAll('header button, header select, .members button, nav a')].filter((one) => !one.hidden)"
    heights = browser.run(f"{controls}.map((one) => one.getBoundingClientRect().height)")
    assert len(heights) > 6
    assert min(heights) >= 44


def test_a_live_sweep_is_followed_and_a_restart_survived(sweep, browser, pictures, monkeypatch):
    port = ["--port", str(free_port())]
    monkeypatch.setenv("LASER_DASHBOARD_TOKEN", "a-token-of-tests-" + "0" * 30)
    while not (sweep / "metrics.jsonl").exists():
        time.sleep(0.2)
    process, link = start_dashboard(str(sweep.parent), *port)
    try:
        browser.go(link)
        browser.wait(f"{LIVE} && {LABEL}", 60)
        assert "token" not in browser.run("location.href")
        assert browser.run("document.cookie") == ""
        browser.wait("document.getElementById('state').textContent === 'running'")
        first = steps_in(browser.wait(LABEL))
        moved = browser.wait(f"{LABEL} && !{LABEL}.includes('{first:,} steps') && {LABEL}", 60)
        assert steps_in(moved) > first
        _members_toggle(browser)
        _heat_map(browser)
        _axes(browser)
        whole_page(browser, pictures / "live-light.png", 1280)
        browser.prefers("dark")
        browser.wait("document.documentElement.dataset.theme === 'dark'")
        whole_page(browser, pictures / "live-dark.png", 1280)
        browser.prefers("light")
        phone_page(browser, pictures / "live-phone.png")
        browser.size(1280, 900)
        assert browser.errors == []

        process.send_signal(signal.SIGKILL)
        end(process)
        browser.wait("document.getElementById('link').textContent.startsWith('disconnected')")
        browser.wait("!document.getElementById('notice').hidden")
        browser.picture(pictures / "disconnected.png")
        seen = steps_in(browser.run(LABEL))
        process, again = start_dashboard(str(sweep.parent), *port)
        assert again == link
        browser.wait(f"{LIVE} && document.getElementById('notice').hidden", 60)
        # The new server shows the log while it is still reading it, so for a moment the chart may be shorter than before.
        browser.wait(f"Number({LABEL}?.match(/([\\d,]+) steps/)?.[1].replaceAll(',', '')) > {seen}", 60)

        end(process)
        monkeypatch.delenv("LASER_DASHBOARD_TOKEN")
        process, _ = start_dashboard(str(sweep.parent), *port)  # another token: the page says what to do
        browser.wait("document.getElementById('notice').textContent.includes('another token')", 60)
        lost = (
            "CONNECTION_REFUSED",
            "CONNECTION_RESET",
            "INCOMPLETE",
            "CONTENT_LENGTH_MISMATCH",
            "EMPTY_RESPONSE",
            "401",
        )
        assert [one for one in browser.errors if not any(name in one for name in lost)] == [], (
            "only the lost connection is an error"
        )
    finally:
        end(process)


def _members_toggle(browser: Chromium) -> None:
    assert "3 lines" in browser.run(LABEL)
    browser.key("1")
    browser.wait(f"{LABEL}.includes('2 lines')")
    assert browser.run("document.querySelector('[data-member=\"1\"]').getAttribute('aria-pressed')") == "false"
    browser.run("document.querySelector('[data-member=\"1\"]').click()")
    browser.wait(f"{LABEL}.includes('3 lines')")
    browser.key("b")
    browser.wait(f"{LABEL}.includes('1 line,')")
    browser.key("a")
    browser.wait(f"{LABEL}.includes('3 lines')")


def _heat_map(browser: Chromium) -> None:
    cells = browser.wait(
        "(() => { document.getElementById('panel-who').scrollIntoView();"
        " const found = [...document.querySelectorAll('#panel-who table')[0]?.querySelectorAll('td[aria-label]') ?? []];"
        " return found.length >= 9 && found.map((one) => [one.getAttribute('aria-label'), one.style.backgroundColor]) })()"
    )
    assert len(cells) == 9
    assert re.fullmatch(r"member 0 trusts [\d.]+ % of the steps of member 0", cells[0][0])
    assert all(background.startswith("rgb") for _, background in cells)


def _axes(browser: Chromium) -> None:
    browser.run("scrollTo(0, 0)")
    browser.key("x")
    browser.wait(f"/lines, [\\d:]+$/.test({LABEL})")
    browser.key("x")
    browser.wait(f"/steps$/.test({LABEL})")


def free_port() -> int:
    from laser_rl.view.server import listening_socket  # noqa: PLC0415

    with listening_socket(0) as found:
        return int(found.getsockname()[1])


def a_video(path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra 'video'")
    import numpy as np  # noqa: PLC0415

    from laser_rl.training.filming import _write_mp4  # noqa: PLC0415

    path.parent.mkdir(parents=True)
    frames = [np.full((64, 64, 3), 4 * n, np.uint8) for n in range(60)]
    _write_mp4(path, iter(frames), 30)
    facts = {"by": "training", "step": 50_000, "member": 3, "return": 31.5, "length": 60}
    path.with_suffix(".json").write_text(json.dumps(facts))


def test_a_finished_sweep_with_everything(tmp_path, browser, pictures):
    run = write_sweep(tmp_path / NAME, 10, 3000)
    with contextlib.closing(MetricsLog(run)) as log:
        for n, (member, donor) in enumerate([(0, 9), (1, 8), (2, 9), (0, 7), (5, 2)]):
            log.write(
                "event",
                20_000 * (n + 1),
                500 * n,
                {"event": "exploit", "member": member, "donor": donor, "score": 1.0, "donor_score": 2.0},
            )
        for member in range(10):
            for step in (40_000, 80_000, 119_000):
                mean = step / 20_000 * member
                log.write(
                    "evaluation",
                    step,
                    3000,
                    {"member": member, "mean": mean, "ci95_low": mean - 1, "ci95_high": mean + 2},
                )
        log.resumed(118_000, 10**6)
        log.write("event", 120_000, 3000, {"event": "finished"})
    a_video(run / "videos" / "step-000000050000.mp4")
    assert START > 0
    process, link = start_dashboard(str(tmp_path))
    try:
        browser.go(link)
        browser.wait(f"{LIVE} && {LABEL}")
        assert browser.run("document.querySelector('#run option').textContent") == NAME
        assert browser.run("document.querySelectorAll('header img, header script').length") == 0
        whole_page(browser, pictures / "full-light.png", 1280)
        assert browser.wait("document.querySelectorAll('#panel-lineage circle').length") == 5
        browser.wait(
            "[...document.querySelectorAll('.panel')].every((one) => one.hidden || one.querySelector('canvas, table, svg, dl, ul, video'))"
        )
        hidden = "[...document.querySelectorAll('.panel')].filter((one) => one.hidden).map((one) => one.id.slice(6))"
        learning = ["policy-loss", "value-loss", "kl", "gradient", "learning-rate", "entropy-cost", "clipped", "lag"]
        expected = ["episodes", "tasks", "task-table", "trials", *learning]  # nothing in the log is about these
        browser.wait(f"JSON.stringify({hidden}) === JSON.stringify({expected})")  # answers may be a few seconds old
        assert browser.run("document.querySelector('#panel-videos figcaption b').textContent") == "return 31.5"
        caption = browser.run("document.querySelector('#panel-videos figcaption').textContent")
        assert "step 50,000 · member 3" in caption
        _video_plays(browser)
        _keyboard(browser)
        browser.key("?")
        browser.wait("document.getElementById('shortcuts').open")
        browser.picture(pictures / "help.png")
        browser.run("document.getElementById('shortcuts').close()")
        browser.key("t")
        browser.wait("document.documentElement.dataset.theme === 'dark'")
        whole_page(browser, pictures / "full-dark.png", 1280)
        phone_page(browser, pictures / "full-phone.png")
        assert browser.errors == []
    finally:
        end(process)


def test_numbers_below_a_chart_are_different_where_all_points_are_near_each_other(tmp_path, browser, pictures):
    """Final evaluations alone: all of them have the same step, or nearly."""
    run = write_sweep(tmp_path / "sweep", 3, 1501)
    with contextlib.closing(MetricsLog(run)) as log:
        for member in range(3):
            log.write(
                "evaluation",
                60_000 + member,
                1501,
                {"member": member, "mean": member, "ci95_low": member - 1, "ci95_high": 9.0},
            )
    process, link = start_dashboard(str(tmp_path))
    try:
        browser.go(link)
        browser.wait(f"{LIVE} && {LABEL}")
        browser.wait("document.querySelector('#panel-evaluations canvas') !== null")
        browser.run("document.getElementById('panel-evaluations').scrollIntoView()")
        time.sleep(1)
        browser.picture(pictures / "final-evaluations.png")
        assert browser.run(TICKS % "[60000]") == ["0", "20K", "40K", "60K", "80K", "100K", "120K"]
        # Members are a few steps apart: "60K" for all of them says nothing.
        assert browser.run(TICKS % "[60000, 60002, 60004]") == ["60,000", "60,001", "60,002", "60,003", "60,004"]
        assert browser.run(TICKS % "[0, 5]") == ["0", "1", "2", "3", "4", "5"]
        assert browser.errors == []
    finally:
        end(process)


def test_several_runs_in_one_chart_smoothed_on_request(tmp_path, browser, pictures):
    """The numbers below the chart are those of the lines: here an average that was computed apart."""
    steps = [40 * n for n in range(50)]
    write_run(tmp_path / "a", 50)
    write_run(tmp_path / "b", 20)
    process, link = start_dashboard(str(tmp_path))
    plot = "#panel-steps"
    legend = f"[...document.querySelectorAll('{plot} .legend span')].map((one) => one.innerText.split(/\\s+/))"
    ink = f"(() => {{ const c = document.querySelector('{plot} canvas'); return c.toDataURL() }})()"
    try:
        browser.go(link)
        browser.wait(
            f"{LIVE} && document.querySelectorAll('#panel-compared-0 .legend span').length === 1"
        )  # one condition
        browser.run(f"document.querySelector('{plot}').scrollIntoView()")
        browser.wait(f"document.querySelectorAll('{plot} .legend span').length === 2")
        assert [name for name, _ in browser.run(legend)] == ["a", "b"]
        assert browser.run(legend)[0][1] == "1,049"
        pictures_of = [browser.run(ink)]
        for level, reach in (("light", 0.02), ("strong", 0.06)):
            browser.key("s")
            weights = [math.exp((step - steps[-1]) / (reach * steps[-1])) for step in steps]
            mean = sum(w * (1000 + n) for n, w in enumerate(weights)) / sum(weights)
            assert browser.run("document.getElementById('smoothing').value") == level
            browser.wait(f"{legend}[0][1] === '{mean:,.0f}'")
            time.sleep(0.5)
            pictures_of.append(browser.run(ink))
        browser.picture(pictures / "smoothed.png")
        assert len(set(pictures_of)) == 3
        swatch = "getComputedStyle(document.querySelector('%s .swatch')).backgroundColor"
        assert browser.run(swatch % f"{plot} .legend") == browser.run(swatch % "#members")
        browser.key("0")
        browser.wait(f"{legend}.length === 1 && {legend}[0][0] === 'b'")
        browser.key("s")
        browser.wait("document.getElementById('smoothing').value === 'off'")
        assert browser.errors == []
    finally:
        end(process)


def test_logarithmic_ticks_stand_where_they_say_and_a_phone_has_one_line_for_the_controls(tmp_path, browser, pictures):
    with contextlib.closing(MetricsLog(write_run(tmp_path / "a", 50))) as log:
        for step in (2000, 4000):
            log.write("train", step, step, {"memory_bytes": 300 * 2**20 + step})
    process, link = start_dashboard(str(tmp_path))
    try:
        browser.go(link)
        browser.wait(f"{LIVE} && {LABEL}")
        for values in ([5e-4, 1e-3, 2e-3], [8.33e-3, 1e-2, 1.2e-2], [3e-6, 0.2]):
            ticks, legend = browser.run(LOG_TICKS % json.dumps([*values, *[None] * 500]))
            told = {at: text for at, text in ticks if text}
            assert legend == f"0{values[-1]}"  # of a line that ended early too
            assert all(float(text) == pytest.approx(at, rel=1e-6) for at, text in told.items()), told
            assert len([at for at in told if min(values) <= at <= max(values)]) >= 2
        memory = "document.querySelector('#panel-memory')"
        browser.run(f"{memory}.scrollIntoView()")
        browser.wait(f"{memory}.innerText.includes('300 MiB')")
        browser.size(390, 900, phone=True)
        browser.run("document.getElementById('smoothing').value = 'strong'")
        for line in ("#run", "#link", "#theme", "#help"), ("#by-step", "#smoothing", "#state"):
            boxes = f"{list(line)}.map((one) => document.querySelector(one).getBoundingClientRect())"
            middles = browser.run(f"{boxes}.map((one) => Math.round((one.top + one.bottom) / 2))")
            assert len(set(middles)) == 1, (line, middles, browser.run(f"{boxes}.map((one) => one.width)"))
        # A select shows the end of a long choice only if it is as wide as it would like to be.
        wide = "document.getElementById('smoothing').clientWidth"
        given = browser.run(wide)
        browser.run("document.getElementById('smoothing').style.flex = 'none'")
        assert given >= browser.run(wide) > 0
        browser.picture(pictures / "phone-header.png")
        assert browser.errors == []
    finally:
        end(process)


def test_another_run_leaves_nothing_of_the_one_before_in_panels_out_of_sight(tmp_path, browser):
    first, second = write_sweep(tmp_path / "first", 10, 300), write_sweep(tmp_path / "second", 2, 300)
    for run, members in ((first, 10), (second, 2)):
        with contextlib.closing(MetricsLog(run)) as log:
            for number in range(1, members):
                told = {"event": "exploit", "member": number, "donor": 0, "score": 1.0, "donor_score": 2.0}
                log.write("event", 10_000, 100, told)
            log.write("event", 12_000, 300, {"event": "finished"})
    process, link = start_dashboard(str(tmp_path))
    texts = "[...document.querySelectorAll('.panel:not(#panel-events):not(#panel-machine)')].map((one) => one.innerText).join(' ')"
    try:
        browser.go(link)
        browser.wait(f"{LIVE} && document.querySelector('#panel-compared-0 canvas') !== null")
        browser.key("n")
        browser.wait(f"document.title.startsWith('first') && {LABEL}?.includes('10 lines')")
        browser.size(1280, 8000)
        browser.wait(
            "document.querySelectorAll('#panel-who table')[0]?.querySelectorAll('td[aria-label]').length === 100"
        )
        browser.wait("document.querySelectorAll('#panel-lineage circle').length === 9")
        browser.wait("document.querySelectorAll('#panel-steps .legend span').length === 10")
        browser.size(1280, 400)  # only the first panel is in sight
        browser.run("scrollTo(0, 0)")
        time.sleep(1)
        browser.key("n")
        browser.wait(f"document.title.startsWith('second') && {LABEL}?.includes('2 lines')", 30)
        assert browser.run("document.querySelectorAll('#panel-who td[aria-label]').length") in {0, 4, 14}
        assert browser.run("document.querySelectorAll('#panel-steps .legend span').length") in {0, 2}
        assert browser.run("document.querySelectorAll('#panel-lineage circle').length") in {0, 1}
        assert "member 9" not in browser.run(texts)
        browser.run("document.getElementById('panel-who').scrollIntoView()")
        browser.wait(
            "document.querySelectorAll('#panel-who table')[0]?.querySelectorAll('td[aria-label]').length === 4"
        )
        assert browser.errors == []
    finally:
        end(process)


def _video_plays(browser: Chromium) -> None:
    browser.run("(() => { const video = document.querySelector('video'); video.muted = true; return video.play() })()")
    browser.wait("document.querySelector('video').currentTime > 0.3")
    browser.run("document.querySelector('video').currentTime = 1.5")
    browser.wait("document.querySelector('video').currentTime >= 1.4")


def _keyboard(browser: Chromium) -> None:
    """Everything that can be clicked can be reached with the tabulator, in the order seen, and shows that it has the focus."""
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    seen = []
    for _ in range(16):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        who, outline = browser.run(
            "((one) => [one.id || one.className || one.dataset.member || one.innerText, getComputedStyle(one).outlineStyle])"
            "(document.activeElement)"
        )
        seen.append(who)
        assert outline != "none", who
    assert seen[:7] == ["skip", "run", "by-step", "by-time", "smoothing", "theme", "help"]
    assert seen[7:12] == ["Score", "Replay", "Population", "Learning", "Speed"]
    assert seen[13:] == ["0", "1", "2"]


@pytest.mark.parametrize("kind", ["run", "sweep", "several"])
def test_a_report_shows_everything_and_asks_nobody(tmp_path, browser, pictures, kind):
    sweep, run = a_sweep(tmp_path / NAME.replace("/", "_"), 9, pbt=True), a_run(tmp_path / "run")
    path = report(*{"run": [run], "sweep": [sweep], "several": [run, sweep]}[kind], out=tmp_path / "x.html")
    browser.prefers("dark")
    browser.go(path.as_uri())
    shown = "[...document.querySelectorAll('.panel')].filter((one) => !one.hidden)"
    browser.wait(
        f"{shown}.length > 5 && {shown}.every((one) => one.querySelector('canvas, table, svg, dl, ul, .empty'))"
    )
    assert browser.run("document.getElementById('link').textContent").startswith("report of ")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    circles = "[...document.querySelectorAll('.scatters svg')].map((one) => one.querySelectorAll('circle').length)"
    assert browser.run(circles) == ([] if kind == "run" else [9, 9])  # of each of two settings a point a member
    whole_page(browser, pictures / f"report-{kind}-1280.png", 1280)
    assert browser.run("document.documentElement.scrollWidth") <= 1280
    phone_page(browser, pictures / f"report-{kind}-390.png")
    browser.size(1280, 900)
    browser.key("x")
    browser.wait("document.getElementById('by-time').getAttribute('aria-checked') === 'true'")
    if kind == "several":
        browser.key("n")
        browser.wait("document.title.startsWith('run') && document.querySelector('#panel-returns canvas') !== null")
    assert browser.requests == [path.as_uri()]
    assert browser.errors == []


def test_a_report_plays_its_video_from_within(tmp_path, browser, pictures):
    run = write_sweep(tmp_path / "sweep", 3, 50)
    a_video(run / "videos" / "step-000000050000.mp4")
    page = report(run)
    shutil.rmtree(run / "videos")  # mailed without them
    browser.go(page.as_uri())
    browser.wait("document.querySelector('video')?.readyState >= 2")
    _video_plays(browser)
    browser.picture(pictures / "report-video.png")
    assert browser.errors == []
