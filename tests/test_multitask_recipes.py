"""The recipes for mixtures of tasks, as a user types them: on the grid suite, on DMLab's stand-in, and every command on such a run."""

import json
import sys

import pytest
import yaml

from laser_rl import LASER, checkpoint, cli, recipes
from laser_rl.checkpoint.snapshot import grouped
from laser_rl.config import override
from laser_rl.envs.instructions import word_numbers
from laser_rl.envs.make import make_environments
from laser_rl.envs.scores import suite_of
from laser_rl.metrics.log import read
from laser_rl.replay.mixer import Counts
from laser_rl.training.build import seeded_network
from laser_rl.training.evaluate import load_trained
from laser_rl.training.files import read_sweep
from tests.envs import standin_lab
from tests.view.reading import read_report

NAMES = ("popart-impala", "popart-impala-pixelcontrol", "laser-multitask")
GRID = [task.id for task in suite_of("suite:grid")]
SMALL = (
    "--steps 2000 --loss.batch-unrolls 16 --loss.unroll-steps 5 --network.channels 4 --network.hidden 16 --network.memory-size 16 "
    "--run.evaluate-episodes 1 --run.log-every-updates 10 --plain"
)
LEVELS = ("dmlab/rooms_watermaze", "dmlab/language_select_described_object")


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory):
    """A run of each recipe on the suite, with as many slots as it says."""
    made = {}

    def of(name):
        if name not in made:
            path = tmp_path_factory.mktemp("runs") / name
            capacity = ["--replay.capacity-steps", "20k"] if name == "laser-multitask" else []
            words = ["train", "--recipe", name, "--env", "suite:grid", "--out", str(path), *SMALL.split(), *capacity]
            assert cli.main(words) == 0
            made[name] = path
        return made[name]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_on_the_suite(name, run_dirs):
    path = run_dirs(name)
    config, loaded = read_sweep(path).base, checkpoint.latest(path)
    assert config.recipe == name
    assert config.environment.slots % len(GRID) == 0
    last = read(path, ("train",))[-1]
    assert last["update"] >= 20
    assert last["skipped_updates"] == 0
    assert ("acceptance" in last) == (name == "laser-multitask")
    assert ("pixel_control_loss" in last) == (name != "popart-impala")
    network = grouped(loaded.tensors["member-00"])["network"]
    assert network["value_head.mean"].shape == (len(GRID),)
    assert (network["value_head.mean_square"] != 1).any()
    kinds = {parameter.split(".")[1] for parameter in network if parameter.startswith("memory.")}
    assert kinds == ({"predictor", "corrector"} if name == "laser-multitask" else {"cell"})
    evaluated = read(path, ("evaluation",))[-1]
    assert (evaluated["episodes"], evaluated["tasks_seen"]) == (len(GRID), len(GRID))
    assert {row["task"] for row in read(path, ("episode",))} <= set(GRID)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_for_dmlab_is_the_papers(name, capsys):
    assert cli.main(["config", "show", "--recipe", name, "--env", "suite:dmlab-30", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    config = recipes.by_name(name, "suite:dmlab-30")
    assert shown == config.model_dump(mode="json")
    replays = name == "laser-multitask"
    counts = Counts.of(config.loss.batch_unrolls, config.replay.fraction)
    assert (counts.online, counts.replayed) == ((16, 112) if replays else (32, 0))
    assert (config.network.torso, config.network.memory) == ("impala", "preco" if replays else "lstm")
    assert (config.loss.unroll_steps, config.loss.discount, config.loss.reward_transform) == (79, 0.99, "dmlab")
    assert (config.loss.trust, config.loss.popart) == ("implied" if replays else "off", True)
    assert (config.loss.pixel_control_cost > 0) == (name != "popart-impala")
    assert config.environment.slots % 30 == 0
    assert config.environment.placement == "process"


def test_recipes_differ_in_nothing_but_their_systems():
    for environment in ("suite:grid", "suite:dmlab-30"):
        plain, pixels, laser = (recipes.by_name(name, environment) for name in NAMES)
        loss = plain.loss.model_copy(update={"pixel_control_cost": pixels.loss.pixel_control_cost})
        same = {"recipe": pixels.recipe, "loss": loss}
        assert plain.model_copy(update=same) == pixels
        assert pixels.environment == laser.environment
        assert pixels.optimiser == laser.optimiser
        assert override(pixels, {"network.memory": "preco"}).network == laser.network


def test_what_fits_a_suite_is_the_multitask_agent(tmp_path, capsys):
    assert cli.main(["config", "show", "--env", "suite:grid", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == "laser-multitask"


def test_check_env_shows_the_tasks(capsys):
    assert cli.main(["check-env", "suite:grid", "--steps", "120"]) == 0
    out = capsys.readouterr().out
    assert "suite:grid: 0 defects, 0 warnings in 8 checks; fine" in out
    assert all(name in out for name in GRID)
    assert "12 slots" in out


def test_evaluate_has_a_line_for_every_task(run_dirs, capsys):
    path = run_dirs("laser-multitask")
    capsys.readouterr()
    assert cli.main(["evaluate", str(path), "--episodes", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [task["name"] for task in found["tasks"]] == GRID
    assert {task["episodes"] for task in found["tasks"]} == {1}


def test_enjoy_films_one_task(run_dirs, tmp_path, capsys):
    path = run_dirs("laser-multitask")
    for task in ("laser/TMaze-20", "MiniGrid-DoorKey-5x5-v0"):
        video = tmp_path / f"{task[-4:]}.gif"
        assert cli.main(["enjoy", str(path), "--task", task, "--video", str(video), "--max-steps", "8"]) == 0
        assert video.stat().st_size > 100
    assert cli.main(["enjoy", str(path), "--task", "laser/TMaze-3"]) == 2
    assert "expected a task of suite:grid" in capsys.readouterr().err


def test_report_and_status_know_the_tasks(run_dirs, capsys):
    path = run_dirs("laser-multitask")
    assert cli.main(["report", str(path)]) == 0
    assert {line["task"] for line in read_report(path / "report.html").table("task-table")} == set(GRID)
    assert cli.main(["status", str(path)]) == 0
    assert cli.main(["resume", str(path), "--steps", "2100", "--plain"]) == 0
    assert checkpoint.latest(path).step >= 2_100


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """In this process, and on the path for worker processes."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "deepmind_lab.py").write_text("from tests.envs.standin_lab import Lab\n")
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setitem(sys.modules, "deepmind_lab", standin_lab)
    standin_lab.made.clear()


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("placement", [pytest.param("thread", marks=pytest.mark.slow), "process"])
def test_two_levels_are_learned_with_their_instructions(placement, tmp_path, capsys):
    settings = {
        "recipe": "laser-multitask",
        "environment": {
            "id": ",".join(LEVELS), "slots": 4, "placement": placement, "workers": 2, "options": {"width": 32, "height": 24},
        },
        "network": {"memory_size": 16},
        "replay": {"capacity_steps": 2_000},
        "loss": {"unroll_steps": 10, "batch_unrolls": 8},
        "run": {"steps": 600, "evaluate_episodes": 2, "runtime": "local" if placement == "process" else "serial"},
    }  # fmt: skip
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    path = tmp_path / "run"
    assert cli.main(["train", "--config", str(tmp_path / "settings.yaml"), "--out", str(path), "--plain"]) == 0
    last = read(path, ("train",))[-1]
    assert last["update"] >= 10
    assert last["skipped_updates"] == 0
    assert {row["task"] for row in read(path, ("episode",))} == set(LEVELS)
    assert read(path, ("evaluation",))[-1]["tasks_seen"] == 2
    # Words that were read have been learned about, and words that never came have not.
    trained, config = load_trained(path), read_sweep(path).base
    environments = make_environments(config.environment.id, config.environment, seed=0, lockstep=True, slots=2)
    environments.close()
    before = seeded_network(config, environments.spec, None).instruction.embedding.weight
    moved = (trained.network.instruction.embedding.weight.cpu() != before).any(1)
    read_words = {int(number) for text in _instructions() for number in word_numbers(text)}
    assert moved[sorted(read_words - {0})].all()
    assert moved.sum() <= len(read_words | {0})
    assert (
        cli.main(["enjoy", str(path), "--task", LEVELS[1], "--video", str(tmp_path / "v.gif"), "--max-steps", "5"]) == 0
    )


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("asked", [None, False])
def test_evaluations_play_levels_that_training_does_not_unless_they_are_told_to(asked):
    options = {"width": 32, "height": 24} | ({} if asked is None else {"test": asked})
    settings = {"environment.options": options, "environment.placement": "thread", "network.memory_size": 8}
    settings |= {
        "environment.slots": 1,
        "replay.capacity_steps": 500,
        "network.precision": "fp32",
        "loss.batch_unrolls": 8,
    }
    agent = LASER("dmlab/rooms_collect_good_objects_train", recipe="laser-multitask", **settings).learn(5)
    trained_on = len(standin_lab.made)
    agent.evaluate(episodes=1)
    evaluated = standin_lab.made[trained_on:]
    folder = "contributed/dmlab30/rooms_collect_good_objects_"
    assert {lab.level for lab in standin_lab.made[:trained_on]} == {f"{folder}train"}
    assert {lab.level for lab in evaluated} == {f"{folder}{'test' if asked is None else 'train'}"}
    assert {"mixerSeed" in lab.config for lab in evaluated} == {asked is None}
    agent.close()


def _instructions():
    return {standin_lab.instruction(seed, frame) for seed in range(3) for frame in (0, 50)}
