"""The kept runs of `gpu_train.py`: what the documents say of them is what they hold."""

import doctest
import itertools
import json
import re
import statistics
from pathlib import Path

import pytest

from benchmarks import gpu_report

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results"
FILES = sorted(KEPT.glob("2026-11-16-gpu-*.json"))
PAGE = (ROOT / "benchmarks" / "README.md").read_text()
NOTES = (ROOT / "benchmarks" / "kernels.md").read_text()
LOADED_W = 640.0  # above it the card is at work at ×4, and near its limit


def steps(name):
    """Frames a second by width and step."""
    rows = json.loads((KEPT / f"2026-11-16-gpu-{name}.json").read_text())["steps"]
    return {(row["width"], row["step"]): row["frames_per_second"] for row in rows}


def test_examples_in_docstrings_hold():
    found = doctest.testmod(gpu_report)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_tables_of_the_page_are_those_of_the_files():
    assert len(FILES) == 17
    tables = gpu_report.report(gpu_report.load(FILES)).split("\n\n")
    assert len(tables) == 3
    for table in tables:
        assert table in PAGE


@pytest.mark.parametrize(("name", "over"), [("members-x4", "10 s"), ("members-x4-before-permits", "burst of 10")])
def test_a_burst_is_not_shown_as_a_mean_over_seconds(name, over):
    (line,) = gpu_report.members_table(gpu_report.load([KEPT / f"2026-11-16-gpu-{name}.json"]))[2:]
    assert f"| {over} |" in line


def spells(text):
    """Clocks of each time without a pause in which the card was at work."""
    found, clocks = [], []
    for clock, power in [*re.findall(r"^(\d+) MHz, ([\d.]+) W", text, re.MULTILINE), ("0", "0")]:
        if float(power) > LOADED_W:
            clocks.append(int(clock))
        elif clocks:
            found.append(clocks)
            clocks = []
    return [clocks for clocks in found if len(clocks) > 2]


def test_the_clocks_of_the_page_are_those_of_the_list():
    found = spells((KEPT / "2026-11-16-gpu-clock.txt").read_text())
    table = PAGE[PAGE.index("| call | what ran | samples |") :].split("\n\n")[0].splitlines()[2:]
    shown = [[cell.strip() for cell in line.strip("| ").split("|")][-4:] for line in table]
    assert shown == [
        [str(len(one)), *(f"{value:,.0f}" for value in (min(one), statistics.median(one), max(one)))] for one in found
    ]


def test_permits_on_the_pages_are_those_of_the_list():
    phases = re.findall(
        r"K=(\d): ([\d,]+) training frames/s, ([\d,]+) env", (KEPT / "2026-11-16-gpu-permits.txt").read_text()
    )
    assert [int(count) for count, *_ in phases] == [9, 1, 2, 3]
    decision = (ROOT / "docs" / "adr" / "0022-permits-for-updates.md").read_text()
    for count, training, environment in phases:
        assert re.search(rf"^\| {count}[^|]*\| {training} \| {environment} \|$", PAGE, re.MULTILINE)
        assert re.search(rf"^\| {count}[^|]*\| {training} \|$", decision, re.MULTILINE)
        assert training in NOTES


def best(text, channels, kind):
    """Milliseconds before, and the best after."""
    part = text[text.index(f"C {channels} ") :].split("\nC ")[0]
    old = re.search(rf"old.* {kind} ([\d.]+)", part)
    return float(old.group(1)), min(float(ms) for ms in re.findall(rf"new {kind} \d+ \d+ ([\d.]+)", part))


@pytest.mark.parametrize(
    ("channels", "kind", "said"),
    [(64, "fwd", "1.74 at best"), (64, "bwd", "backward 2.10"), (16, "fwd", "1.30 → 0.55"), (16, "bwd", "0.77 → 1.27")],
)
def test_the_notes_on_the_first_convolution_are_those_of_the_list(channels, kind, said):
    before, after = best((KEPT / "2026-11-16-gpu-kernels.txt").read_text(), channels, kind)
    assert said in NOTES
    figures = [float(figure) for figure in re.findall(r"\d+\.\d+", said)]
    assert figures == [round(value, 2) for value in (before, after)[-len(figures) :]]


def test_the_page_shows_the_steps_that_were_measured():
    page, train = (ROOT / "docs" / "gpu.md").read_text(), steps("train")
    for width in (1, 4):
        (line,) = re.findall(rf"^\| ×{width}[, ].*\| \d.*$", page, re.MULTILINE)
        for name in ("eager bf16 channels-last autocast", "torch.compile bf16", "ours"):
            assert f"{train[width, name]:,.0f}"[:-3] in line
    assert f"in a later run {round(steps('train-x1-by-row')[1, 'ours'], -2):,.0f}" in page


@pytest.mark.parametrize("name", ["acting", "acting-again"])
def test_what_end_to_end_reaches_is_said_with_its_figures(name):
    (run,) = gpu_report.load(FILES)[f"2026-11-16-gpu-end-to-end-256-{name}"]["runs"]
    assert min(run["environment_share_of_usable"], run["learner_busy"]) > 0.95
    said = (
        f"{run['environment_share_of_usable']:.1%} by environment frames and {run['training_share_of_learner_alone']:.1%} by "
        f"training frames, busy {run['learner_busy']:.1%}"
    )
    assert said.replace("%", " %") in PAGE


def test_the_short_runs_are_said_with_their_figures():
    listed = (KEPT / "2026-11-16-gpu-end-to-end-short.txt").read_text()
    before, equal, more = re.findall(r"environment frames ([\d.]+ %), .* busy ([\d.]+ %)", listed)
    assert f"seconds 10 to 30 gave {before[0]} by environment frames" in PAGE
    assert f"({equal[0]}, busy {equal[1]})" in PAGE
    assert f"512 slots at equal priority gave {more[0]} " in PAGE


def test_what_acting_costs_is_said_with_its_figures():
    times = [
        re.findall(r"act (\d+): ([\d.]+) ms a replay", (KEPT / f"2026-11-16-gpu-{name}.txt").read_text())
        for name in ("acting", "acting-alone")
    ]
    before, after = (dict(found) for found in times)
    for frames in ("64", "128", "256"):
        assert f"{before[frames]} → {after[frames]}" in PAGE


def test_the_call_that_was_cut_is_said_with_its_figures():
    _, alone, _, *lines = (KEPT / "2026-11-16-gpu-end-to-end-256-cut.txt").read_text().splitlines()
    training, usable = map(float, re.findall(r"(\d+) (?:training|environment) frames/s", alone))
    rows = [[float(value) for value in line.split()] for line in lines[1:]]  # the first is of the start
    (begin, steps, updates, _), (end, last_step, last_update, _) = rows[0], rows[-1]
    spans = [(after[0] - before[0], after[3]) for before, after in itertools.pairwise(rows)]
    busy = sum(span * share for span, share in spans) / (end - begin)
    rate = (last_update - updates) / (end - begin)
    shares = 4 * (last_step - steps) / (end - begin) / usable, 2560 * rate / training, busy
    said = "{:.1f} updates/s over 13 s, {:.1f} % and {:.1f} %, busy {:.1f} %"
    assert said.format(rate, *(100 * share for share in shares)) in PAGE


def test_no_kept_file_names_a_path_of_a_machine():
    for path in [*FILES, *KEPT.glob("2026-11-16-*.txt")]:
        assert not re.search(r"/(root|home|tmp|work)/", path.read_text()), path.name
