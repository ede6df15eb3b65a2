"""`laser sweep` and what goes with it, as a user types it."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from laser_rl import checkpoint, cli, recipes
from laser_rl.api import sweep as api
from laser_rl.checkpoint import RunLock
from laser_rl.cli.flags import begin, grid_of
from laser_rl.metrics.log import FILE, MetricsLog, read
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import load_trained
from laser_rl.training.files import read_sweep
from tests.view.reading import read_report

SMALL = [
    "--environment.slots",
    "2",
    "--loss.unroll-steps",
    "5",
    "--network.hidden",
    "16",
    "--replay.capacity-steps",
    "1k",
    "--run.evaluate-episodes",
    "2",
    "--plain",
]
GRID = ["--grid", "learning_rate=1e-3,2e-3"]


def train_sweep(path, *more, env="laser/Catch", steps="200"):
    return cli.main(["sweep", "--env", env, "--out", str(path), "--steps", steps, *SMALL, *(more or GRID)])


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweeps") / "cart"
    assert train_sweep(path, *GRID, "--run.checkpoint-every-steps", "100", env="CartPole-v1") == 0
    assert len(list((path / "checkpoints").iterdir())) == 2
    return path


@pytest.fixture
def copied(sweep_dir, tmp_path):
    return shutil.copytree(sweep_dir, tmp_path / "copy")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "catch"
    assert cli.main(["train", "--env", "laser/Catch", "--out", str(path), "--steps", "100", *SMALL]) == 0
    return path


def test_a_sweep_ends_with_a_line_a_member_and_what_to_do_next(tmp_path, capsys):
    path = tmp_path / "catch"
    assert train_sweep(path, "--grid", "learning_rate=1e-3,2e-3", "--grid=entropy_cost=0.01,0.02") == 0
    out = capsys.readouterr().out
    assert "done: 4 members, 200 steps each, " in out
    lines = [line for line in out.splitlines() if line.startswith("member ") and "EvalResult" in line]
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    assert "learning_rate 0.002, entropy_cost 0.01 " in lines[2]
    means = [float(line.partition("mean=")[2].partition(",")[0]) for line in lines]
    [chosen] = [line.split()[2].rstrip(",") for line in out.splitlines() if line.startswith("best: ")]
    assert means[int(chosen)] == max(means)
    assert f"report:   {path}/report.html" in out
    assert f"laser evaluate {path} --member best" in out
    assert str(read_report(path / "report.html").run()["best"]) == chosen
    assert sorted(folder.name for folder in (path / "members").iterdir()) == ["00", "01", "02", "03"]


def test_sweeps_get_names_of_their_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "--env", "laser/Catch", "--steps", "20", *GRID, *SMALL]) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["laser-Catch-sweep-1"]


def test_a_recipe_for_sweeps_and_flags_over_it(tmp_path):
    path = tmp_path / "demo"
    arguments = ["--recipe", "demo", "--env", "laser/Catch", "--steps", "20", "--seed", "4", "--share", "separate"]
    assert cli.main(["sweep", *arguments, "--loss.discount", "0.9", "--pbt", "--out", str(path), *SMALL]) == 0
    sweep = read_sweep(path)
    assert sweep.settings == recipes.demo().settings
    assert (sweep.base.recipe, sweep.base.environment.id, sweep.base.run.seed) == ("demo", "laser/Catch", 4)
    assert (sweep.base.loss.discount, sweep.base.loss.trust_bound) == (0.9, 0.1)
    assert (sweep.share, sweep.pbt) == ("separate", recipes.small_pbt(20))


def test_a_file_is_merged_over_its_recipe_and_flags_win(tmp_path):
    file, path = tmp_path / "my.yaml", tmp_path / "run"
    file.write_text(
        "base: {recipe: continuous, environment: {id: laser/Catch}, loss: {discount: 0.8, reward_scale: 0.2}}\n"
        "members: [{learning_rate: 1e-3}, {learning_rate: 2e-3, trust: 'off'}]\n"
        "share: none\nstack: off\n"
        "pbt: {burn_in_steps: 7, every_episodes: 3, margin: 1.5}\n"
    )
    assert cli.main(["sweep", str(file), "--loss.discount", "0.7", "--steps", "20", "--out", str(path), *SMALL]) == 0
    sweep = read_sweep(path)
    assert sweep.settings == ({"learning_rate": 1e-3}, {"learning_rate": 2e-3, "trust": "off"})  # 1e-3 is text in YAML
    assert (sweep.base.loss.discount, sweep.base.loss.reward_scale, sweep.base.recipe) == (0.7, 0.2, "continuous")
    assert sweep.base.network.separate_value  # the recipe's
    assert (sweep.share, sweep.stack, sweep.pbt.margin) == ("none", "off", 1.5)
    # What members differ in is replaced as a whole.
    arguments = [
        str(file),
        "--random",
        "discount=uniform:0.8:1",
        "--draws",
        "3",
        "--no-pbt",
        "--random",
        "entropy_cost=log_uniform:1e-3:1e-2",
    ]
    assert cli.main(["sweep", *arguments, "--steps", "20", "--out", str(path), "--fresh", *SMALL]) == 0
    sweep = read_sweep(path)
    assert [list(settings) for settings in sweep.settings] == [["discount", "entropy_cost"]] * 3
    assert all(1e-3 <= settings["entropy_cost"] <= 1e-2 for settings in sweep.settings)
    assert sweep.pbt is None


def test_another_distribution_keeps_the_number_of_draws_of_the_file(tmp_path):
    file, path = tmp_path / "my.yaml", tmp_path / "run"
    file.write_text(
        "base: {environment: {id: laser/Catch}}\nrandom: {learning_rate: {kind: uniform, low: 0.1, high: 1}}\ndraws: 3\n"
    )
    asked = ["--random", "discount=uniform:0.8:1", "--steps", "20", "--out", str(path), *SMALL]
    assert cli.main(["sweep", str(file), *asked]) == 0
    assert [list(settings) for settings in read_sweep(path).settings] == [["discount"]] * 3


def test_what_members_differ_in_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("recipe: demo\nbase: {environment: {id: laser/Catch}}\nmembers: [{entropy_cost: 0.1}, {}]\n")
    base, rest = begin(file, None, None, sweep=True)
    assert (rest["members"], rest.get("grid"), base.recipe) == (
        [{"entropy_cost": 0.1}, {}],
        None,
        "demo",
    )
    file.write_text("recipe: demo\nshare: none\n")
    base, rest = begin(file, None, "laser/Catch", sweep=True)
    assert (rest["grid"], rest["share"]) == (
        recipes.demo().grid,
        "none",
    )  # the recipe's, as the file has none
    assert begin(file, "cartpole", None, sweep=True)[1] == {"share": "none"}  # the flag's recipe counts


def test_values_of_a_list_are_numbers_lists_or_words():
    words = ["trust_bound=1e-3,8,.5,implied,None", "hidden=[64, 64],[8]"]
    assert grid_of(words) == {"trust_bound": [0.001, 8, 0.5, "implied", None], "hidden": [[64, 64], [8]]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "what its members differ in; give --grid learning_rate=3e-4,1e-3"),
        (["--grid", "learning_rat=1,2"], "there is no setting 'learning_rat'; did you mean 'optimiser.learning_rate'?"),
        (["--grid", "learning_rate"], "--grid learning_rate: expected a name and what follows it"),
        (["--grid", "learning_rate="], "expected a name and what follows it"),
        (["--grid", "learning_rate=1e-3,,2e-3"], "a value is empty"),
        (["--grid", "learning_rate=1e-3", "optimiser.learning_rate=2e-3"], "names optimiser.learning_rate twice"),
        (["--grid", "learning_rate=fast,slow"], "optimiser.learning_rate is 'fast': input should be a valid number"),
        (["--grid", "capacity_steps=10,20"], "replay.capacity_steps cannot differ between members"),
        (["--random", "learning_rate=log_uniform:1e-4:1e-2"], "distributions, and how many members to draw"),
        (["--random", "learning_rate=normal:0:1", "--draws", "2"], "'normal' is no distribution; there are log_unif"),
        (["--random", "learning_rate=uniform:1", "--draws", "2"], "uniform needs two numbers, got ['1']"),
        (["--random", "learning_rate=uniform:2:1", "--draws", "2"], "low (2.0) is not below high (1.0)"),
        ([*GRID, "--random", "discount=uniform:0:1", "--draws", "2"], "got grid and random"),
        ([*GRID, "--draws", "2"], "random and draws belong together"),
        (["--recipe", "atari-share", *GRID], "did you mean 'atari-shared'?"),
        (["--recipe", "dmlab-pbt"], "deepmind_lab"),
        (["--env", "CartPol-v1", *GRID], "did you mean CartPole-v1"),
        (["--env", "laser/Catch", *GRID, "--replay.capacity-steps", "900000M"], "lower --replay.capacity-steps to"),
        (["--env", "laser/Catch", *GRID, "--fresh", "elsewhere.yaml"], "there is no file elsewhere.yaml"),
        (["sweep.yaml", *GRID, "--config", "x.yaml"], "the file is given twice, x.yaml and sweep.yaml; leave one"),
        (["laser/Catch", *GRID, "--env", "CartPole-v1"], "the environment is given twice, CartPole-v1 and laser/Catch"),
        (["--config", "x.yaml", *GRID], "x.yaml"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, capsys, arguments, message):
    try:
        status = cli.main(["sweep", *arguments, "--out", str(tmp_path / "run")])
    except SystemExit as stop:  # a flag that is none
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gird: {learning_rate: [1, 2]}", "did you mean 'grid'?"),
        ("loss: {discount: 0.5}", "settings of all members go under 'base:'"),
        ("base: {loss: {discont: 0.5}}\ngrid: {learning_rate: [1]}", "did you mean 'loss.discount'?"),
        ("base: 5", "base is 5, expected sections"),
        ("base: {environment: 5}\ngrid: {learning_rate: [1]}", "environment is 5"),
        ("grid: {learning_rate: 1}", "grid.learning_rate is 1: input should be a valid tuple"),
        ("grid: {learning_rate: [1]}\nshare: all", "share is 'all'"),
        ("grid: {learning_rate: [1]}\npbt: {margin: 1}", "pbt.burn_in_steps"),
        ("recipe: xyz", "there is no recipe 'xyz'"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, capsys, text, message):
    (tmp_path / "my.yaml").write_text(text)
    assert cli.main(["sweep", str(tmp_path / "my.yaml"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_replays_that_do_not_fit_together_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(api, "available_bytes", lambda: 8_000_000)
    arguments = ["sweep", "--env", "laser/Catch", *GRID, "--out", str(tmp_path / "run"), "--share", "separate"]
    assert cli.main([*arguments, "--replay.capacity-steps", "20k"]) == 2
    error = capsys.readouterr().err
    assert "2 members with a replay each" in error
    assert "lower --replay.capacity-steps to" in error


def test_an_existing_directory_goes_on_and_other_settings_are_refused_unless_fresh(copied, capsys):
    path, env = copied, "CartPole-v1"
    rows = len(read(path, ["train"]))
    assert train_sweep(path, env=env) == 0
    assert len(read(path, ["train"])) == rows  # it was done
    capsys.readouterr()
    for more, message in [
        (["--grid", "learning_rate=1e-3,3e-3"], "was started with 2 members [{'learning_rate': 0.001}"),
        ([*GRID, "--loss.discount", "0.5"], "was started with loss.discount = 0.99, not 0.5"),
        ([*GRID, "--share", "separate"], "was started with share = shared, not separate"),
    ]:
        assert train_sweep(path, *more, env=env) == 2
        assert message in capsys.readouterr().err
    assert train_sweep(path, *GRID, "--loss.discount", "0.5", "--fresh", env=env) == 0
    assert read_sweep(path).base.loss.discount == 0.5


def test_runs_and_sweeps_share_no_directory_but_fresh_replaces_one_by_the_other(copied, run_dir, tmp_path, capsys):
    single = shutil.copytree(run_dir, tmp_path / "single")
    train = ["train", "--env", "laser/Catch", "--steps", "20", *SMALL, "--out"]
    assert train_sweep(single) == 2
    assert "holds the run of one agent" in capsys.readouterr().err
    assert cli.main([*train, str(copied)]) == 2
    assert "holds a sweep" in capsys.readouterr().err
    assert checkpoint.latest(single).step == checkpoint.latest(run_dir).step
    assert checkpoint.latest(copied).step == 200
    assert train_sweep(single, *GRID, "--fresh", steps="20") == 0
    assert cli.main([*train, str(copied), "--fresh"]) == 0
    capsys.readouterr()
    assert cli.main(["status", str(single), str(copied), "--json"]) == 0
    assert [one["kind"] for one in json.loads(capsys.readouterr().out)] == ["sweep", "run"]
    assert not (single / "config.json").exists()
    assert not list(copied.glob("members/*/events.*"))


def test_the_configuration_of_a_sweep_is_a_file_for_a_sweep(copied, tmp_path, capsys):
    stored = read_sweep(copied)
    assert cli.main(["config", "show", "--run-dir", str(copied), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == stored.model_dump(mode="json")
    assert cli.main(["config", "show", "--run-dir", str(copied)]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    for file in (tmp_path / "shown.yaml", copied / "sweep.json"):
        assert cli.main(["sweep", str(file), "--out", str(copied), "--plain"]) == 0  # the same, so it goes on
        assert read_sweep(copied) == stored


def test_resume_and_report(copied, capsys):
    assert cli.main(["resume", str(copied), "--steps", "300", "--plain"]) == 0
    assert "done: 2 members, 300 steps each" in capsys.readouterr().out
    (copied / "report.html").unlink()
    assert cli.main(["report", str(copied)]) == 0
    assert capsys.readouterr().out == f"{copied}/report.html\n"
    assert min(one["steps"] for one in read_report(copied / "report.html").run()["members"]) == 300


def test_resume_without_a_checkpoint_is_refused(tmp_path, sweep_dir, capsys):
    RunDirectory(tmp_path, read_sweep(sweep_dir)).close()
    assert cli.main(["resume", str(tmp_path)]) == 2
    assert "holds no checkpoint to go on from; use --fresh" in capsys.readouterr().err


@pytest.mark.parametrize("leader", [0, 1])
def test_the_best_member_is_the_one_that_plays(copied, capsys, leader):
    with contextlib.closing(MetricsLog(copied)) as log:
        log.write("evaluation", 200, 10, {"member": leader, "mean": 1e6})
        log.write("evaluation", 200, 10, {"member": 1 - leader, "mean": 0.0})
        log.write("train", 200, 10, {"member": 1 - leader, "return_mean": 1e9})  # evaluations count
    for flags, member in [([], leader), (["--member", "best"], leader), (["--member", str(1 - leader)], 1 - leader)]:
        assert cli.main(["evaluate", str(copied), "--episodes", "3", "--json", *flags]) == 0
        assert json.loads(capsys.readouterr().out)["member"] == member
    assert cli.main(["evaluate", str(copied), "--episodes", "3"]) == 0
    assert capsys.readouterr().out.startswith(f"member {leader}: CartPole-v1 after 200 steps, 3 episodes")
    network = load_trained(copied, "best").network.state_dict()
    stored = checkpoint.latest(copied).tensors
    same = [
        all(torch.equal(tensor.cpu(), stored[f"member-{k:02d}"][f"network/{name}"]) for name, tensor in network.items())
        for k in (0, 1)
    ]
    assert same == [leader == 0, leader == 1]


def test_enjoy(sweep_dir, tmp_path, capsys):
    video = tmp_path / "video.gif"
    assert cli.main(["enjoy", str(sweep_dir), "--member", "1", "--video", str(video), "--max-steps", "5"]) == 0
    assert capsys.readouterr().out.startswith("member 1: return ")
    assert video.stat().st_size > 500


def test_members_that_are_not_there_are_refused(sweep_dir, run_dir, tmp_path, capsys):
    for member in ("2", "-1", "worst", "0.5"):
        assert cli.main(["evaluate", str(sweep_dir), f"--member={member}"]) == 2
        assert f"there is no member {member} in" in capsys.readouterr().err
    for command in ("evaluate", "enjoy"):
        assert cli.main([command, str(run_dir), "--member", "1"]) == 2
        assert "is a run of one agent" in capsys.readouterr().err
    assert cli.main(["evaluate", str(run_dir), "--member", "0", "--episodes", "2"]) == 0
    RunDirectory(tmp_path, read_sweep(sweep_dir)).close()
    assert cli.main(["evaluate", str(tmp_path)]) == 2
    assert "none is best; name one" in capsys.readouterr().err


def test_status_of_a_sweep_and_of_a_run(sweep_dir, run_dir, capsys):
    assert cli.main(["status", str(sweep_dir), str(run_dir), "--json"]) == 0
    sweep, run = json.loads(capsys.readouterr().out)
    assert (sweep["kind"], sweep["state"], sweep["process"]) == ("sweep", "finished", None)
    assert (run["kind"], run["state"], run["environment"]) == ("run", "finished", "laser/Catch")
    assert sweep["checkpoint"]["step"] == 200
    assert checkpoint.latest(sweep_dir).path.samefile(sweep["checkpoint"]["path"])
    assert [member["settings"]["learning_rate"] for member in sweep["members"]] == [1e-3, 2e-3]
    for one, path in ((sweep, sweep_dir), (run, run_dir)):
        for member in one["members"]:
            rows = [row for row in read(path) if row.get("member", 0) == member["member"]]
            trained = [row for row in rows if row["kind"] == "train"][-1]
            assert member["steps"] == max(row["step"] for row in rows)
            assert member["evaluation"] == [row["mean"] for row in rows if row["kind"] == "evaluation"][-1]
            assert member["steps_per_second"] == trained["steps_per_second"]
            assert 0 <= member["acceptance_own"] <= 1
            assert 0 <= member["silent_seconds"] < 3600
    assert run["members"][0]["acceptance_own"] == trained["acceptance"]
    assert (sweep["members"][0]["total_steps"], run["members"][0]["total_steps"]) == (200, 100)
    assert cli.main(["status", str(sweep_dir), str(run_dir)]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert f"{sweep_dir}: sweep of 2 members on CartPole-v1, finished, checkpoint at step 200" in first
    assert len(first.splitlines()) == 4
    assert len(second.splitlines()) == 3
    assert "200 of 200 (100 %)" in first.splitlines()[2]


def test_status_says_who_writes_and_what_was_broken_off(copied, capsys):
    def title():
        assert cli.main(["status", str(copied)]) == 0
        return capsys.readouterr().out.splitlines()[0]

    with RunLock(copied):
        assert f"running (process {os.getpid()} on " in title()
        assert cli.main(["status", str(copied)]) == 0  # asking takes nothing away
        assert checkpoint.owner(copied).pid == os.getpid()
    capsys.readouterr()
    lines = (copied / FILE).read_text().splitlines(keepends=True)
    (copied / FILE).write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])  # half a line: killed while writing
    shutil.rmtree(copied / "checkpoints")
    assert "broken off, no checkpoint yet" in title()
    (copied / FILE).write_text("")
    assert "not begun" in title()


def test_status_of_what_is_no_run_is_refused(tmp_path, sweep_dir, capsys):
    assert cli.main(["status", str(sweep_dir), str(tmp_path)]) == 2
    assert "is no run directory" in capsys.readouterr().err
    assert cli.main(["status"]) == 2
    assert "name one or more run directories" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on_and_that_works(tmp_path, capsys):
    path = tmp_path / "a sweep"  # with a space: the command has to be quoted
    start = "import sys; from laser_rl.cli import main; sys.exit(main(sys.argv[1:]))"
    flags = ["--env", "laser/Catch", "--steps", "5M", "--run.log-every-updates", "5", "--out", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-c", start, "sweep", *flags, *GRID, *SMALL], stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while not read(path, ["train"]):
            assert process.poll() is None
            assert time.monotonic() < deadline, "no row of metrics within 120 s"
            time.sleep(0.05)
        assert cli.main(["status", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["process"]["pid"] == process.pid
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert process.returncode == 130
    command = shlex.split(out.rpartition("go on with: laser ")[2])
    assert command == ["resume", str(path)]
    done = json.loads((checkpoint.latest(path).path / "state.json").read_text())["members"][0]["training"]["steps"]
    assert cli.main([*command, "--steps", str(done + 50), "--plain"]) == 0
    assert f"done: 2 members, {done + 50:,} steps each" in capsys.readouterr().out
    steps = [row["step"] for row in read(path, ["train"]) if row["member"] == 0]
    assert steps == sorted(steps)
    assert yaml.safe_load((path / "sweep.json").read_text())["base"]["run"]["steps"] == done + 50
