"""The kept runs on Atari: what docs/results/atari says of them is what they hold."""

import json
from pathlib import Path

import pytest

from benchmarks import atari_report
from benchmarks.atari_report import entries_of, evaluation_of, flow

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results"
FILES = [KEPT / f"2026-11-15-{name}-h200.json.gz" for name in ("atari", "atari-sharing")]
EVALUATIONS = KEPT / "2026-11-15-atari-evaluations-h200.json"


def test_the_tables_of_the_page_are_those_of_the_files(tmp_path):
    text = atari_report.report(entries_of(FILES, json.loads(EVALUATIONS.read_text())), tmp_path)
    folder = ROOT / "docs" / "results" / "atari"
    assert (folder / "tables.md").read_text().strip() == text.strip()
    assert {file.name for file in tmp_path.iterdir()} <= {file.name for file in folder.iterdir()}
    page = (folder / "README.md").read_text()
    for line in text.splitlines():
        assert line in page


def test_evaluations_are_those_of_their_episodes_and_of_the_last_checkpoint():
    evaluations = json.loads(EVALUATIONS.read_text())
    steps = {entry["run"]: entry["step"] for entry in entries_of(FILES[:1])}
    for played in evaluations:
        assert played["step"] == steps[played["run"]]
        if "returns" in played:
            assert len(played["returns"]) == played["episodes"]
            assert sum(played["returns"]) / played["episodes"] == pytest.approx(played["mean"])


def test_an_evaluation_that_was_made_apart_counts_and_one_episode_does_not():
    apart = [{"run": "Pong", "member": None, "step": 1, "mean": 5.0, "episodes": 7}]
    pong = {entry["run"]: entry for entry in entries_of(FILES[:1], apart)}["Pong"]
    assert [played["episodes"] for played in pong["evaluations"]] == [7, 1]
    assert evaluation_of(pong)["mean"] == 5.0
    assert evaluation_of(entries_of(FILES[:1])[0]) is None


def test_a_flow_needs_two_rows():
    with pytest.raises(ValueError, match="longer span"):
        flow(entries_of(FILES[:1])[0], 10.0, 10.1)
