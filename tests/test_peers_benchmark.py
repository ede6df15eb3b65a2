"""The harness beside stable-baselines3: what it measures, that it goes on, and the statistics of its report."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats

from benchmarks import peers, peers_report
from benchmarks.peers import Job, judged, main
from laser_rl import LASER

BEGIN, END = "<!-- peers: made by `python -m benchmarks.peers publish FILE` -->", "<!-- peers end -->"


def test_the_measure_is_the_mean_of_the_last_hundred_episodes_within_the_steps():
    random = np.random.default_rng(0)
    ends, returns = np.cumsum(random.integers(1, 40, 400)), random.normal(0, 30, 400) + np.linspace(0, 200, 400)
    steps = int(ends[350])
    found = judged(list(zip(ends.tolist(), returns.tolist(), strict=True)), steps, 100.0)
    assert found["episodes"] == 351
    assert found["last100"] == pytest.approx(returns[251:351].mean(), abs=1e-3)
    for point, seen in enumerate(found["curve"], start=1):
        inside = returns[ends <= steps * point / 20]
        assert seen == pytest.approx(inside[-100:].mean(), abs=1e-3)
    first = next(n for n in range(100, 352) if returns[n - 100 : n].mean() >= 100)
    assert found["solved_at"] == ends[first - 1]
    assert judged([], 100, 1.0)["last100"] is None
    assert judged([(5, 9.0)] * 99, 100, 1.0)["solved_at"] is None


def test_a_dip_is_the_longest_row_of_low_means_after_the_task_was_solved():
    returns = [0.0] * 100 + [500.0] * 200 + [0.0] * 30 + [500.0] * 200 + [0.0] * 12 + [500.0] * 100
    episodes = [(n, one) for n, one in enumerate(returns, start=1)]
    means = np.array([np.mean(returns[n - 100 : n]) for n in range(100, len(returns) + 1)])
    solved = int(np.flatnonzero(means >= 475)[0])
    longest = run = 0
    for mean in means[solved:]:
        run = run + 1 if mean < 450 else 0
        longest = max(longest, run)
    assert judged(episodes, len(returns), 475.0, 450.0)["dip"] == longest > 100
    assert judged(episodes[:280], 280, 475.0, 450.0)["dip"] == 0
    assert judged(episodes[:150], 150, 475.0, 450.0)["dip"] is None  # not solved


@pytest.mark.slow
def test_finished_runs_are_not_run_again_and_a_torn_line_is(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    words = [
        "run",
        "--tasks",
        "CartPole-v1",
        "--arms",
        "default",
        "recipe",
        "sac",
        "--steps",
        "300",
        "--out",
        str(path),
    ]
    assert main([*words, "--seeds", "1"]) == 0
    assert "1 runs to do" in capsys.readouterr().out  # no SAC for choices, and no recipe of its own
    [row] = map(json.loads, path.read_text().splitlines())
    assert Job.of(row) == Job("CartPole-v1", "default", 1, 300)
    assert row["last100"] > 0
    assert len(row["curve"]) == 20
    path.write_text(path.read_text() + '{"task": "Cart')
    assert main([*words, "--seeds", "1", "2", "--set", "loss.discount=0.9"]) == 0
    assert "2 runs to do" in capsys.readouterr().out
    assert main([*words, "--seeds", "1"]) == 0
    assert "0 runs to do" in capsys.readouterr().out
    assert [row["settings"] for row in peers.rows_of(path)] == ["{}", *['{"loss.discount": 0.9}'] * 2]


def test_a_run_that_fails_is_told_and_tried_again(tmp_path, capsys):
    words = ["run", "--tasks", "CartPole-v1", "--arms", "default", "--seeds", "1", "--steps", "300"]
    assert main([*words, "--set", "no.such=1", "--out", str(tmp_path / "results.jsonl")]) == 1
    assert "there is no setting 'no.such'" in capsys.readouterr().out
    assert not peers.rows_of(tmp_path / "results.jsonl")


def row(arm, seed, last100, solved=None):
    return {
        **Job("CartPole-v1", arm, seed, 1000)._asdict(), "last100": last100, "solved_at": solved, "threshold": 475.0, "seconds": 2.0,
        "curve": [None] + [last100] * 19,
    }  # fmt: skip


def test_the_report_has_students_intervals_and_paired_tests_with_holms_rule():
    random = np.random.default_rng(1)
    values = {arm: random.normal(mean, 20, 5) for arm, mean in {"default": 300, "ppo": 240, "ppo-zoo": 295}.items()}
    rows = [
        row(arm, seed, one, 700 if one > 290 else None) for arm, own in values.items() for seed, one in enumerate(own)
    ]
    rows.append(row("sac", 0, None))  # no episode ended
    rows.append(row("ppo", 9, 1.0))  # a seed that ours has not got takes no part in a difference
    text = peers_report.report(rows)
    half = scipy.stats.t.interval(0.95, 4, 0, scipy.stats.sem(values["default"]))[1]
    assert f"| LASER | 5 | {values['default'].mean():.1f} ± {half:.1f} |" in text
    tests = [scipy.stats.ttest_rel(values["default"], values[peer]) for peer in ("ppo", "ppo-zoo")]
    small, large = sorted(test.pvalue for test in tests)
    expected = {small: min(1, 2 * small), large: max(min(1, 2 * small), large)}
    for test, peer in zip(tests, ("PPO", "PPO, zoo"), strict=True):
        low, high = test.confidence_interval()
        better = "ours" if expected[test.pvalue] < 0.05 else "–"
        numbers = f"{(low + high) / 2:.1f} ± {(high - low) / 2:.1f} | {test.pvalue:.3f} | {expected[test.pvalue]:.3f} | {better}"
        assert f"| LASER | {peer} | 5 | {numbers} |" in text


def test_the_page_has_a_line_a_task_and_marks_who_is_better(tmp_path):
    (tmp_path / "README.md").write_text(f"Above.\n\n{BEGIN}\nold\n{END}\n\nBelow.\n")
    means = {"default": 300, "ppo": 100, "ppo-zoo": 500, "sac": 299}
    rows = [row(arm, seed, mean + seed * (1 + (arm == "sac"))) for arm, mean in means.items() for seed in range(5)]
    peers_report.publish(rows, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("Above.")
    assert text.endswith("Below.\n")
    assert "old" not in text
    assert r"| CartPole-v1, 1,000 | 302 ± 2 (5) | 102 ± 2 (5) \* | 502 ± 2 (5) × | 303 ± 4 (5) |" in text
    assert len((tmp_path / "differences.csv").read_text().splitlines()) == 4
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_runs_that_are_all_alike_decide_nothing_unless_they_differ():
    same = peers_report.difference("x", "default", "ppo", {0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    apart = peers_report.difference("x", "default", "ppo", {0: 3.0, 1: 4.0}, {0: 1.0, 1: 2.0})
    assert (same.p, apart.p) == (1.0, 0.0)
    assert peers_report.difference("x", "default", "ppo", {0: 1.0}, {0: 2.0}).p == 1.0


def test_every_task_is_known_to_gymnasium_and_its_recipe_to_us():
    for name, task in peers.TASKS.items():
        assert peers.gymnasium.spec(name).id == name
        assert task.get("recipe") in {None, "pendulum"}
        if name not in peers.OWN:
            assert task["steps"] >= 100_000
            assert {"gamma", "n_envs"} <= task["zoo"].keys()


@pytest.mark.parametrize("name", peers.OWN)
def test_the_harness_draws_colour_pictures_of_its_own_tasks_and_they_get_the_recipe_for_pictures(name):
    with LASER(name, seed=1) as agent:
        assert agent.config.recipe == "pictures"
    seen = peers.gymnasium.make(name).reset(seed=1)[0]
    assert (seen.shape, seen.dtype) == ((64, 64, 3), np.uint8)
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) >= 3


def test_the_random_policy_is_the_same_again_and_its_returns_are_those_of_episodes():
    job = Job("Pictures/Empty-Random-6x6-v0", "random", 3, 600)
    (episodes, _), (again, _) = peers.learn_nothing(job), peers.learn_nothing(job)
    assert episodes == again
    assert all(0 <= value < 1 for _, value in episodes)
    assert all(before < after <= 600 for (before, _), (after, _) in itertools.pairwise(episodes))


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["ppo", "ppo-zoo", "sac"])
def test_a_peer_is_measured_likewise(arm, tmp_path):
    pytest.importorskip("stable_baselines3")
    path = tmp_path / "results.jsonl"
    assert (
        main(["run", "--tasks", "Pendulum-v1", "--arms", arm, "--seeds", "1", "--steps", "400", "--out", str(path)])
        == 0
    )
    [found] = peers.rows_of(path)
    assert found["last100"] < 0
    assert found["episodes"] == 2 or arm == "ppo-zoo"
