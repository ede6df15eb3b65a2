"""The kept runs on Atari: what docs/results/atari says of them is what they hold."""

import json
from pathlib import Path

import pytest

from benchmarks import atari_report
from benchmarks.atari_report import entries_of, evaluation_of, flow

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results"
EVALUATIONS = KEPT / "2026-11-15-atari-evaluations-h200.json"


def files_of(day):
    return [KEPT / f"{day}-{name}-h200.json.gz" for name in ("atari", "atari-sharing")]


FILES = files_of("2026-11-15")
LATER = files_of("2026-11-16")


@pytest.mark.parametrize(
    ("files", "evaluations", "tag"),
    [(FILES, json.loads(EVALUATIONS.read_text()), ""), (LATER, [], "-2026-11-16")],
    ids=["15 November", "16 November"],
)
def test_the_tables_of_the_page_are_those_of_the_files(tmp_path, files, evaluations, tag):
    text = atari_report.report(entries_of(files, evaluations), tmp_path, tag)
    folder = ROOT / "docs" / "results" / "atari"
    assert {file.name for file in tmp_path.iterdir()} <= {file.name for file in folder.iterdir()}
    assert (folder / f"members{tag}.csv").read_text() == (tmp_path / f"members{tag}.csv").read_text()
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


def together(flows):
    """Training and environment frames a second of several runs, in hundreds."""
    return [
        round(128 * 20 * sum(each.updates for each in flows), -2),
        round(4 * sum(each.steps for each in flows), -2),
    ]


def test_what_the_page_says_of_the_card_is_what_the_rows_hold():
    runs = {(run["run"], run["member"]): run for run in entries_of(FILES)}
    games = [runs[name, None] for name in ("Pong", "Breakout", "Boxing")]
    members = [run for (_, member), run in runs.items() if member is not None]
    spans = [
        [flow(run, 20, 195) for run in [*games, runs["Krull", None]]],
        [flow(run, 240, 370) for run in games] + [flow(run, 35, 195) for run in members],
        [flow(run, 410, 520) for run in games],
        [flow(run, 75, 265) for run in entries_of(LATER)],
    ]
    page = (ROOT / "docs" / "results" / "atari" / "README.md").read_text()
    assert [together(span) for span in spans] == [[196200, 46600], [221100, 44400], [177800, 42200], [199900, 47400]]
    for span in spans:
        training, environment = together(span)
        assert f"{training:,.0f} | {environment:,.0f} |" in page


def second_half(entry):
    """The mean return of episodes in the second half of a member's steps, as a number."""
    return float(atari_report.halves(entry)[2].replace(",", ""))


@pytest.mark.parametrize(("files", "shared", "separate"), [(FILES, "2,530", "2,659"), (LATER, "2,426", "2,812")])
def test_what_the_page_says_of_sharing_are_means_over_members(files, shared, separate):
    page = (ROOT / "docs" / "results" / "atari" / "README.md").read_text()
    for share, said in (("shared", shared), ("separate", separate)):
        members = [second_half(entry) for entry in entries_of(files) if entry["share"] == share]
        assert len(members) == 3
        assert f"{sum(members) / 3:,.0f}" == said
        assert said in page


def test_members_evaluations_are_their_own_and_their_means_are_on_the_page():
    page = (ROOT / "docs" / "results" / "atari" / "README.md").read_text()
    for share, said in (("shared", "2,311"), ("separate", "3,087")):
        played = [evaluation_of(entry) for entry in entries_of(LATER) if entry["share"] == share]
        assert [one["episodes"] for one in played] == [16, 16, 16]
        assert f"{sum(one['mean'] for one in played) / 3:,.0f}" == said
        assert said in page


def test_pong_stays_above_eighteen_once_it_is_there():
    (pong,) = entries_of(LATER[:1])
    reached = atari_report.first_reach(pong, 18.0)
    train, episodes = pong["train"], pong["episodes"]
    after = [mean for step, mean in zip(train["step"], train["return_mean"], strict=True) if 4 * step >= reached.frames]
    assert round(min(after), 1) == 18.1
    assert round(after[-1], 1) == 19.5
    bins = zip(episodes["step"], episodes["return"], episodes["count"], strict=True)
    later = [(mean, count) for step, mean, count in bins if 4 * step > reached.frames]
    assert min(mean for mean, _ in later) == 14.5
    played = sum(count for _, count in later)
    assert played == 426
    assert sum(mean * count for mean, count in later) / played == pytest.approx(19.0, abs=0.05)


def test_minutes_end_with_training():
    entry = entries_of(LATER)[0]
    assert entry["seconds"] > 300  # its evaluation, too
    assert f"{atari_report.minutes_of(entry):.1f}" == "4.5"
