"""The Atari queue: which runs it starts within a time, what it keeps, and what its page says."""

import argparse
import doctest
import importlib
import json

import ale_py
import gymnasium
import pytest

from benchmarks import atari_plan, atari_queue, atari_queue_report
from laser_rl import recipes
from laser_rl.config import override
from laser_rl.envs.atari import atari_game
from laser_rl.envs.scores import ATARI_57

# Settings that have come or gone since rows were made, at the values at which they do nothing.
GONE = {
    "returns": "vtrace",
    "online_share": "fixed",
    "online_share_least": 0.0625,
    "online_share_most": 0.5,
    "policy_trust_bound": None,
}


class Fake:
    """A run that is over after three looks, or fails."""

    fails = frozenset()

    def __init__(self, part, out, threads):
        self.part, self.folder, self.began, self.looks = part, out / part.name, 0.0, 0
        self.folder.mkdir(parents=True)
        (self.folder / "row.json").write_text(json.dumps({"name": part.name}))
        (self.folder / "console.txt").write_text("no card")
        self.process = self

    frames = 0

    @property
    def returncode(self):
        return 1 if self.part.name in self.fails else 0

    def poll(self):
        self.looks += 1
        return None if self.looks < 3 else self.returncode

    def terminate(self):
        self.looks = 3

    kill = terminate

    def wait(self, timeout):
        return self.returncode


@pytest.fixture
def queue(tmp_path, monkeypatch):
    plan = [atari_plan.Part(1, "Assault", "centre", seed, 1_000_000) for seed in range(4)]
    monkeypatch.setattr(atari_queue, "parts", lambda: plan)
    monkeypatch.setattr(atari_queue, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(atari_queue, "Running", Fake)
    monkeypatch.setattr(atari_queue, "LOOK_S", 0.0)
    return plan


def work(tmp_path, minutes, workers=2):
    asked = argparse.Namespace(minutes=minutes, out=tmp_path / "out", rows=tmp_path / "rows.jsonl", workers=workers)
    asked.threads, asked.agents, asked.stages = 1, None, [1, 2]
    return atari_queue.work(asked)


def names(path):
    return [row["name"] for row in atari_queue.load(path)]


def test_all_runs_are_made_once_and_kept_once(queue, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"name": queue[1].name}) + "\n")
    assert work(tmp_path, minutes=60) == 0
    assert sorted(names(tmp_path / "rows.jsonl")) == [part.name for part in queue]
    atari_queue.keep([tmp_path / "rows.jsonl", tmp_path / "rows.jsonl"])
    assert names(tmp_path / "kept.jsonl") == [part.name for part in queue]
    assert not atari_queue.missing(atari_queue.load(tmp_path / "kept.jsonl"))


def test_no_run_is_started_that_cannot_end_in_time(queue, tmp_path):
    one = (1_000_000 / atari_queue.FIRST_RATE + atari_queue.MARGIN_S) / 60
    assert work(tmp_path, minutes=0.9 * one) == 0
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_run_that_fails_is_counted_and_leaves_no_row(queue, tmp_path, monkeypatch):
    monkeypatch.setattr(Fake, "fails", frozenset({queue[0].name}))
    assert work(tmp_path, minutes=60) == 1
    assert queue[0].name not in names(tmp_path / "rows.jsonl")


def test_the_plan_names_every_run_once_and_its_settings_are_the_protocols():
    every = atari_plan.parts()
    assert len({part.name for part in every}) == len(every) == 128
    assert not set(atari_plan.CALIBRATION_GAMES) & set(atari_plan.COMPARISON_GAMES)
    for part in every:
        config = atari_plan.config_of(part)
        assert config.environment.atari.sticky_actions == 0.25
        assert config.environment.atari.most_noops == 0
        assert not config.loss.life_loss_ends_discount
        assert 4 * config.run.steps == part.frames


def test_kept_rows_are_of_the_plan_and_the_page_is_made_of_them():
    rows = atari_queue.load()
    planned = {part.name: part for part in atari_plan.parts()}
    for row in rows:
        config = atari_plan.config_of(planned[row["name"]]).model_dump(mode="json")
        assert {**GONE, **config["loss"]} == {**GONE, **row["config"]["loss"]}
        assert row["config"]["environment"]["id"] == config["environment"]["id"]
        assert sum(row["episodes"]) > 100
    assert (atari_queue_report.RESULTS / "calibration.md").read_text() == atari_queue_report.page(rows)
    assert (atari_queue_report.RESULTS / "README.md").read_text() == atari_queue_report.comparison_page(rows)


def test_the_readme_says_what_the_rows_say():
    rows, readme = atari_queue.load(), (atari_queue_report.RESULTS.parents[2] / "README.md").read_text()
    seeds = atari_queue_report.seeds_done(rows)
    games = atari_queue_report.complete_games(rows, seeds)
    for variant in seeds:
        found = atari_queue_report.iqm_at(rows, variant, games, seeds[variant], 6)
        assert f"{found.iqm:.2f} [{found.ci95[0]:.2f}, {found.ci95[1]:.2f}]" in readme
    for agent in ("Rainbow", "IQN"):
        assert f"{agent} ({atari_queue_report.public_iqm_at(agent, games, 6):.2f})" in readme
    scores = atari_queue_report.scores_by_game(rows, games)
    assert all(ours > without for ours, without in zip(scores["LASER"], scores["without replay"], strict=True))


def comparison_rows(score):
    """A row for every run of stage 2; `score` gives the normalised score of a variant in a million."""
    rows = []
    for part in (part for part in atari_plan.parts() if part.stage == 2):
        reference = atari_queue_report.ATARI_57[atari_queue_report.atari_game(part.game)]
        returns = [
            reference.random + score(part.variant, 1 + place // 4) * (reference.best - reference.random)
            for place in range(24)
        ]
        row = {"stage": 2, "game": part.game, "variant": part.variant, "seed": part.seed, "seconds": 120.0}
        rows.append({**row, "episodes": [2] * 24, "return_sum": [2 * value for value in returns]})
    return rows


def test_the_comparison_finds_the_scores_that_were_put_in():
    rows = comparison_rows(lambda variant, million: million * (2.0 if variant == "laser" else 0.1))
    seeds = atari_queue_report.seeds_done(rows)
    assert seeds == {"laser": 3, "impala": 2}
    games = atari_queue_report.complete_games(rows, seeds)
    assert games == list(atari_plan.COMPARISON_GAMES)
    assert atari_queue_report.iqm_at(rows, "laser", games, 3, 4).iqm == pytest.approx(8.0)
    assert atari_queue_report.iqm_at(rows, "impala", games, 2, 6).iqm == pytest.approx(0.6)
    assert all("LASER is better" in line for line in atari_queue_report.verdicts(rows, games))
    worse = comparison_rows(lambda variant, million: -1.0 if variant == "laser" else 0.5)
    assert all("LASER is worse" in line for line in atari_queue_report.verdicts(worse, games))


def test_games_without_all_of_their_runs_do_not_count():
    rows = comparison_rows(lambda variant, million: 1.0)
    rows = [row for row in rows if row["seed"] == 1 and (row["game"], row["variant"]) != ("Qbert", "impala")]
    seeds = atari_queue_report.seeds_done(rows)
    assert seeds == {"laser": 1, "impala": 1}
    assert set(atari_plan.COMPARISON_GAMES) - set(atari_queue_report.complete_games(rows, seeds)) == {"Qbert"}
    assert "Only games that have all runs count: Amidar" in atari_queue_report.comparison_page(rows)


def test_sweeps_that_share_have_three_members_and_equal_replays():
    sweeps = [part for part in atari_plan.parts() if part.rates]
    assert len(sweeps) == 18
    assert {part.game for part in sweeps} == {"BattleZone", "Frostbite", "Phoenix"}
    configs = {part.variant: atari_plan.config_of(part) for part in sweeps}
    assert (configs["shared"].loss.trust, configs["naive"].loss.trust) == ("implied", "off")
    assert configs["shared"].replay.capacity_steps // 3 == configs["separate"].replay.capacity_steps
    assert sweeps[0].all_frames == 9_000_000


@pytest.mark.parametrize("variant", ["shared", pytest.param("separate", marks=pytest.mark.slow)])
def test_a_sweep_leaves_a_row_with_its_members(variant, tmp_path, monkeypatch):
    part = atari_plan.Part(3, "Phoenix", variant, 1, 4_000)
    small = {"run.steps": 1_000, "run.seed": 1, "log_every_updates": 5, "run.device": "cpu", "environment.slots": 2}
    monkeypatch.setattr(atari_queue, "parts", lambda: [part])
    monkeypatch.setattr(atari_queue, "config_of", lambda part: override(recipes.cartpole("laser/Catch"), small))
    monkeypatch.setattr(atari_queue, "die_with", lambda pid: None)
    atari_queue.run_part(part.name, tmp_path, threads=3)
    row = json.loads((tmp_path / "row.json").read_text())
    assert [member["learning_rate"] for member in row["members"]] == list(atari_plan.RATES)
    assert sum(sum(member["episodes"]) for member in row["members"]) == sum(row["episodes"])
    assert all(sum(member["episodes"]) > 50 and member["train"]["update"][-1] > 20 for member in row["members"])
    assert (tmp_path / "agent.laser").exists()


@pytest.mark.parametrize("name", ["atari_plan", "atari_queue", "atari_queue_report"])
def test_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_every_game_of_the_table_is_found_by_its_environment():
    gymnasium.register_envs(ale_py)
    known = {atari_game(name) for name in gymnasium.registry if name.startswith("ALE/")}
    assert len(ATARI_57) == 57
    assert ATARI_57.keys() <= known
    assert all(score.best != score.random for score in ATARI_57.values())
