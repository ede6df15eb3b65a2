"""What runs say of claims, on results whose answer is known; and the page that tells it."""

import csv

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.research.experiment import EXPERIMENTS, Claim, Experiment, suite_of
from laser_rl.research.pages import CURVES, TIMES, About, read_about, report, table
from laser_rl.research.verdicts import ALL, judge, results_of

TASKS = [suite_of("small").task(name) for name in ("catch", "cartpole")]
SEEDS = range(5)
CLAIMS = (
    Claim("clear", "shared", "no replay", source="Fig. 1", statistic="end"),
    Claim("reversed", "no replay", "shared", source="Fig. 1", statistic="end"),
    Claim("open", "shared", "separate", statistic="whole run"),
    Claim("no worse", "shared", "separate", -0.5, "Fig. 1"),
)
EXPERIMENT = Experiment("made", "Fig. 0", "?", (), CLAIMS)
ABOUT = About(
    name="sharing",
    suite="small",
    tasks=("catch", "cartpole"),
    seeds=tuple(SEEDS),
    device="cpu",
    smoke=False,
    command="laser …",
)


def score(task, condition, seed, bucket):
    """Normalised: separate and shared differ by noise that changes its sign with the seed."""
    level = {"no replay": 0.1, "separate": 0.8, "shared": 0.8 + 0.02 * (-1) ** seed}[condition]
    return level * (bucket + 1) / 10 + 0.01 * seed


def curve_lines(make=score, tasks=TASKS, conditions=("no replay", "separate", "shared")):
    lines = []
    for task in tasks:
        for condition in conditions:
            for seed in SEEDS:
                for bucket in range(10):
                    random, best = task.returns.random, task.returns.best
                    value = random + (best - random) * make(task, condition, seed, bucket)
                    place = {"task": task.name, "condition": condition, "seed": str(seed), "step": str(bucket + 1)}
                    lines.append({**place, "mean": f"{value:.9g}", "best": f"{value + 1:.9g}"})
    return lines


def words(lines, tasks=TASKS):
    return {(one.claim.text, one.task): one.word for one in judge(EXPERIMENT, tasks, results_of(lines))}


def test_known_differences_get_their_words():
    found = words(curve_lines())
    for task in (ALL, "catch", "cartpole"):
        assert found["clear", task] == "reproduced"
        assert found["reversed", task] == "not reproduced"
        assert found["open", task] == "undecided"
        assert found["no worse", task] == "reproduced"


def test_a_question_of_our_own_is_answered_not_reproduced():
    def make(task, condition, seed, bucket):
        return score(task, condition, seed, bucket) + (condition == "shared")

    assert words(curve_lines(make))["open", ALL] == "yes"


def test_all_tasks_count_the_same_whatever_their_returns():
    """CartPole's returns are hundreds of times those of Catch; the loss in one is the gain in the other."""

    def make(task, condition, seed, bucket):
        gain = {"catch": 0.3, "cartpole": -0.3}[task.name]
        return gain * (condition == "shared") + 0.01 * np.cos(seed + len(condition))

    judged = {(one.claim.text, one.task): one for one in judge(EXPERIMENT, TASKS, results_of(curve_lines(make)))}
    assert judged["clear", "catch"].word == "reproduced"
    assert judged["clear", "cartpole"].word == "not reproduced"
    assert judged["clear", ALL].word == "undecided"
    assert judged["clear", "cartpole"].verdict.difference == pytest.approx(-0.3, abs=0.02)
    assert judged["clear", ALL].verdict.difference == pytest.approx(0, abs=0.02)


def test_a_run_without_an_episode_decides_nothing():
    lines = [{**line, "mean": "", "best": ""} if line["seed"] == "2" else line for line in curve_lines()]
    assert set(words(lines).values()) == {"no episodes"}


def test_the_page_names_each_machine_once(folder):
    times = [{"seconds": 60 * n, "made_with": made} for n, made in enumerate(("one", "other", "other"), start=1)]
    (folder / TIMES).write_bytes(table(("seconds", "made_with"), times))
    report(folder)
    page = (folder / "README.md").read_text()
    assert "- 1 runs, 1 minutes of one core or device: one\n- 2 runs, 5 minutes of one core or device: other\n" in page


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "experiment.json").write_text(ABOUT.model_dump_json())
    assert read_about(tmp_path) == ABOUT
    lines = list(curve_lines())
    (tmp_path / CURVES).write_bytes(table(tuple(lines[0]), lines))
    return tmp_path


def scores_in(folder):
    with (folder / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_needs_the_curves_alone_and_is_the_same_twice(folder):
    names = ("README.md", "curves.png", "scores.csv", "verdicts.csv")
    judged = report(folder)
    first = [(folder / name).read_bytes() for name in names]
    assert len(judged) == 3 * len(EXPERIMENTS["sharing"].claims)
    report(folder)
    assert [(folder / name).read_bytes() for name in names] == first
    assert first[1].startswith(b"\x89PNG")
    page = first[0].decode()
    assert "| replay beats none | Fig. 1 | whole run | **reproduced** |" in page
    assert "| shared replay beats one each | Fig. 1, sec. 5.4 | whole run | **undecided** |" in page
    results, scores = results_of(curve_lines()), scores_in(folder)
    assert len(scores) == len({(row["task"], row["condition"], row["seed"]) for row in scores}) == 2 * 3 * 5
    for row in scores:
        known = results[row["task"]][row["condition"]][int(row["seed"])]
        assert {name: float(row[name]) for name in known} == pytest.approx(known, rel=1e-5)
    with (folder / "verdicts.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    told = next(line for line in lines if (line["claim"], line["task"]) == ("shared replay beats none", ALL))
    assert told["verdict"] == "reproduced"
    assert 0 < float(told["low"]) < float(told["difference"]) < float(told["high"])


def test_what_is_no_experiment_is_refused(folder, tmp_path_factory):
    with pytest.raises(ConfigError, match=r"has no experiment\.json"):
        report(tmp_path_factory.mktemp("empty"))
    (folder / "experiment.json").write_text(ABOUT.model_copy(update={"name": "nothing"}).model_dump_json())
    with pytest.raises(ConfigError, match="no experiment 'nothing'"):
        report(folder)
    (folder / "experiment.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        report(folder)
    (folder / "experiment.json").write_text(ABOUT.model_dump_json())
    (folder / CURVES).unlink()
    with pytest.raises(ConfigError, match=r"no curves\.csv yet"):
        report(folder)
