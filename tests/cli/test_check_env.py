"""`laser check-env` as a user meets it: what is printed, the exit status, and environments that hang or crash."""

import contextlib
import json
import time
from pathlib import Path

import pytest

from laser_rl import cli
from laser_rl.errors import EnvironmentRefused
from laser_rl.tools.check_env import CHECKS, Order
from laser_rl.tools.check_process import examine


def test_a_good_environment(capsys):
    assert cli.main(["check-env", "CartPole-v1", "--steps", "300"]) == 0
    out = capsys.readouterr().out
    assert f"CartPole-v1: 0 defects, 0 warnings in {len(CHECKS)} checks; fine" in out
    assert all(check in out for check in CHECKS)
    for words in ("float32 (4,)", "one of 2 choices", "recipe          cartpole", "random return"):
        assert words in out


def test_a_defect_is_exit_status_1_and_json_has_all_of_it(capsys):
    command = ["check-env", "tests.envs.planted:NanReward", "--steps", "100", "--json"]
    assert cli.main(command) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "defect"
    by_check = {one["check"]: one for one in found["findings"]}
    assert set(by_check) == set(CHECKS)
    rows = by_check["rows"]
    assert rows["verdict"] == "defect"
    assert "(slot 0, episode 0, step 3): expected finite numbers, got nan in reward" in rows["text"]
    assert by_check["construction"]["verdict"] == "good"
    assert by_check["seed"]["verdict"] == "not done"
    assert found["facts"]["recipe"].startswith("cartpole")


def test_a_hang_is_reported_with_its_stack_and_what_came_before_it_is_good():
    found = examine(Order("tests.envs.planted:HangsInStep", steps=60, limit=4.0))
    by_check = {one.check: one for one in found.findings}
    hang = by_check["answers"]
    assert hang.verdict == "defect"
    assert "it hangs in step (slot 0, episode 1, step 9)" in hang.text
    assert "--limit" in hang.text
    assert "planted.py" in hang.trace
    assert "in step" in hang.trace
    assert by_check["construction"].verdict == "good"
    assert by_check["speed"].verdict == "not done"


@pytest.mark.slow
def test_a_crash_is_reported():
    found = examine(Order("tests.envs.planted:Crashes", steps=60))
    crash = next(one for one in found.findings if one.check == "errors")
    assert "SIGSEGV in step (slot 0, episode 0, step 6)" in crash.text


@pytest.mark.slow
def test_processes_that_an_environment_leaves_are_ended():
    assert examine(Order("tests.envs.planted:LeaksProcesses", steps=60)).of("defect") == []
    deadline = time.monotonic() + 5  # what was killed takes a moment to go
    while _sleeping("47.11") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _sleeping("47.11")


def _sleeping(seconds):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "Pendulum-v1",
        "Acrobot-v1",
        "laser/Catch",
        "laser/DeepSea-10",
        "MinAtar/Breakout-v1",
        "MiniGrid-DoorKey-5x5-v0",
        "ALE/Breakout-v5",
        "suite:grid",
    ],
)
def test_good_environments_have_no_defect(name, capsys):
    assert cli.main(["check-env", name]) == 0
    assert "DEFECT" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("OnlyOnce", "port 5555 is in use"),
        ("NotBuilt", "KeyError: 'nowhere'"),
        ("NotDerived", "has no attribute 'close'"),
    ],
)
def test_what_cannot_be_built_says_why(name, words, capsys):
    assert cli.main(["check-env", f"tests.envs.planted:{name}"]) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CartPol-v1"], "did you mean CartPole-v1"),
        (["tests.envs.planted:Nobody"], "check the spelling"),
        (["CartPole-v1", "--options", "[1]"], "expected --options to be a JSON object"),
        (["CartPole-v1", "--steps", "0"], "above 0"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence(arguments, words, capsys):
    assert cli.main(["check-env", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_a_module_beside_the_user_that_registers_an_environment(tmp_path, monkeypatch):
    (tmp_path / "besides.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "gymnasium.register('Besides-v0', entry_point=CartPoleEnv, max_episode_steps=50)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert examine(Order("besides:Besides-v0", steps=60)).of("defect") == []


def test_options_reach_the_environment():
    with pytest.raises(EnvironmentRefused, match="nowhere_to_be_found"):
        examine(Order("nowhere_to_be_found:Maze", options='{"size": 1}'))
    assert examine(Order("laser/DeepSea-4", options='{"image": true}', steps=20)).spec.observation.shape == (1, 4, 4)


def test_a_traceback_stands_below_its_finding(capsys):
    assert cli.main(["check-env", "tests.envs.planted:NotBuilt"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[2].startswith("errors          DEFECT      KeyError: 'nowhere' in constructor")
    assert out[3].strip().startswith("|   File")
    assert out[-1].endswith("1 defects, 0 warnings in 2 checks; mend the defects, then check again")
