"""`laser train` and its companions as a user types them, in this process."""

import json
import sys
import threading

import gymnasium
import numpy as np
import pytest

from laser_rl import cli
from laser_rl.metrics.log import read
from laser_rl.training import directory as directories
from laser_rl.training import saving, stall
from tests.view.reading import read_report

SMALL = [
    "--steps",
    "400",
    "--environment.slots",
    "2",
    "--loss.unroll-steps",
    "5",
    "--run.evaluate-episodes",
    "2",
    "--plain",
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "cart"
    assert cli.main(["train", "--env", "CartPole-v1", "--out", str(path), *SMALL]) == 0
    return path


def test_a_run_ends_with_what_to_do_next(tmp_path, capsys):
    assert cli.main(["train", "--env", "laser/Catch", "--out", str(tmp_path / "catch"), *SMALL]) == 0
    out = capsys.readouterr().out
    assert "evaluation at step 40" in out
    assert f"report:   {tmp_path}/catch/report.html" in out
    assert f"laser evaluate {tmp_path}/catch" in out
    page = read_report(tmp_path / "catch" / "report.html")
    assert (page.run()["state"], page.run()["environment"]) == ("finished", "laser/Catch")
    assert list((tmp_path / "catch").glob("events.*"))
    assert 50 << 20 < read(tmp_path / "catch", ["train"])[-1]["memory_bytes"] < 1 << 40


def test_runs_get_names_of_their_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.main(["train", "--env", "laser/Catch", *SMALL]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["laser-Catch-1", "laser-Catch-2"]


def test_evaluate(run_dir, capsys):
    assert cli.main(["evaluate", str(run_dir), "--episodes", "5"]) == 0
    assert "5 episodes, sampled actions\nmean " in capsys.readouterr().out
    assert cli.main(["evaluate", str(run_dir), "--episodes", "5", "--json", "--deterministic"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["returns"]) == 5
    assert result["ci95"][0] <= result["mean"] <= result["ci95"][1]


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_enjoy(run_dir, tmp_path, capsys, suffix):
    path = tmp_path / f"video.{suffix}"
    assert cli.main(["enjoy", str(run_dir), "--video", str(path), "--max-steps", "30"]) == 0
    assert f"video: {path}" in capsys.readouterr().out
    assert path.stat().st_size > 1_000


def test_config_show_is_a_file_for_train(run_dir, tmp_path, capsys):
    flags = ["--recipe", "minatar", "--loss.discount", "0.9", "--replay.capacity-steps", "1.5M"]
    assert cli.main(["config", "show", *flags]) == 0
    text = capsys.readouterr().out
    assert "capacity_steps: 1500000" in text
    (tmp_path / "settings.yaml").write_text(text)
    assert cli.main(["config", "show", "--config", str(tmp_path / "settings.yaml")]) == 0
    assert capsys.readouterr().out == text
    assert cli.main(["config", "show", "--config", str(tmp_path / "settings.yaml"), "--seed", "7", "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert (changed["run"]["seed"], changed["loss"]["discount"]) == (7, 0.9)
    assert cli.main(["config", "show", "--run-dir", str(run_dir)]) == 0
    assert "slots: 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss: {discount: 5}", "loss.discount is 5: input should be less than or equal to 1"),
        ("loss: {discont: 0.5}", "there is no setting 'loss.discont'; did you mean 'loss.discount'?"),
        ("[1, 2]", "holds list, expected sections"),
        ("loss: !!python/object/apply:os.system ['true']", "cannot be read"),
        ("recipe: xyz", "there is no recipe 'xyz'; there are cartpole"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, capsys, text, message):
    (tmp_path / "settings.yaml").write_text(text)
    assert cli.main(["train", "--config", str(tmp_path / "settings.yaml")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPol-v1"], "did you mean CartPole-v1"),
        (["--env", "no_such_module:make"], "no_such_module"),
        (["--env", "CartPole-v1", "--batch-unrolls", "1"], "use 0 or 1"),
        (["--env", "CartPole-v1", "--environment.frame-stack", "4"], "are no pictures; set it to 1"),
        (["--env", "CartPole-v1", "--device", "cuda:77"], "device"),
        (["--env", "CartPole-v1", "--replay.capacity-steps", "900000M"], "lower --replay.capacity-steps to"),
    ],
)
def test_mistakes_are_refused_with_what_to_do(tmp_path, capsys, arguments, message):
    assert cli.main(["train", *arguments, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("laser: ")
    assert "Traceback" not in error


def test_a_mistyped_flag_suggests_the_right_one(capsys):
    assert cli.main(["train", "--stepz", "3"]) == 2
    assert capsys.readouterr().err == "laser: there is no flag --stepz; did you mean --steps?\n"


@pytest.mark.parametrize(
    ("module", "environment", "extra"),
    [("ale_py", "ALE/Pong-v5", "atari"), ("minatar", "MinAtar/Breakout-v1", "minatar")],
)
def test_a_missing_extra_says_which_one(tmp_path, capsys, monkeypatch, module, environment, extra):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    for name in [
        name for name in gymnasium.registry if name.startswith("MinAtar/")
    ]:  # other tests have registered them
        monkeypatch.delitem(gymnasium.registry, name)
    assert cli.main(["train", "--env", environment, "--out", str(tmp_path / "run")]) == 2
    assert f"pip install 'laser-rl[{extra}]'" in capsys.readouterr().err


def test_a_bad_environment_is_refused_with_expected_and_got(tmp_path, capsys, monkeypatch):
    (tmp_path / "crooked.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Crooked(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None): return np.zeros(2, np.float32), {}\n"
        "    def step(self, action): return np.zeros(3, np.float32), 0.0, False, False, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["train", "--env", "crooked:Crooked", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "(2,)" in error
    assert "(3,)" in error


def test_other_settings_in_an_old_directory_are_refused_unless_fresh(tmp_path, capsys):
    command = ["train", "--env", "laser/Catch", "--out", str(tmp_path / "run"), *SMALL]
    assert cli.main(command) == 0
    assert cli.main([*command, "--loss.discount", "0.5"]) == 2
    assert "was started with loss.discount = 0.99, not 0.5" in capsys.readouterr().err
    assert cli.main([*command, "--loss.discount", "0.5", "--fresh"]) == 0
    steps = [row["step"] for row in read(tmp_path / "run", ["train"])]
    assert steps == sorted(steps)  # the metrics of the first run are gone
    assert len(list((tmp_path / "run").glob("events.*"))) == 1


def test_resume_without_a_checkpoint_is_refused(tmp_path, capsys):
    assert cli.main(["resume", str(tmp_path)]) == 2
    assert "is no run directory" in capsys.readouterr().err


class Undrawn(gymnasium.Env):
    """As many environments of one's own: its constructor takes nothing, and it draws nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 9, False, {}


class Promised(Undrawn):
    """Takes the argument, but has no render."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode


class Failing(Promised):
    def render(self):
        raise ZeroDivisionError("no screen")


@pytest.mark.parametrize(
    ("environment", "hint", "message"),
    [
        (Undrawn, False, "render_mode='rgb_array'"),
        (Promised, False, "expected render() to return a picture, got NotImplementedError"),
        (Failing, True, "expected render() to return a picture, got ZeroDivisionError: no screen"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence_and_no_hint(environment, hint, message, tmp_path, capsys):
    name, path = f"{environment.__name__}-v0", tmp_path / "run"
    gymnasium.register(name, entry_point=environment)
    try:
        assert cli.main(["train", "--env", name, "--out", str(path), *SMALL]) == 0
        assert ("laser enjoy" in capsys.readouterr().out) == hint
        assert cli.main(["enjoy", str(path), "--video", str(tmp_path / "v.gif")]) == 2
    finally:
        gymnasium.registry.pop(name)
    said = capsys.readouterr().err.strip()
    assert said.startswith("laser: ")
    assert message in said
    assert "\n" not in said
    assert not [*tmp_path.glob("*.gif"), *tmp_path.glob(".*.gif")]


def test_the_hint_is_there_where_it_works(run_dir, tmp_path, capsys):
    assert cli.main(["resume", str(run_dir), "--steps", "410", "--plain"]) == 0
    assert f"watch:    laser enjoy {run_dir} --video {run_dir}/video.mp4" in capsys.readouterr().out


def test_a_wait_that_is_given_up_is_one_sentence(tmp_path, capsys, monkeypatch):
    """A checkpoint that is due while the one before is still being written: here its writer never ends."""
    monkeypatch.setattr(directories, "ASIDE_BYTES", 0)
    monkeypatch.setattr(stall, "GIVE_UP_S", 0.5)
    go = threading.Event()
    monkeypatch.setattr(saving, "write_segment", lambda *_: go.wait(20))
    every = ["--checkpoint-every-steps", "50", "--recipe", "cartpole", "--steps", "400", "--slots", "4"]
    try:
        assert cli.main(["train", "laser/Catch", *every, "--plain", "--out", str(tmp_path / "run")]) == 4
    finally:
        go.set()
    said = capsys.readouterr().err
    assert said.startswith("laser: ")
    assert "for the checkpoint's writer" in said
    assert said.count("\n") == 1
