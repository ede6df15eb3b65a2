"""Environments that ask the whole program to end: never a run that is said to be finished, but status 4 and the steps that are missing."""

import re

import gymnasium
import pytest

from laser_rl import LASER, Sweep
from laser_rl.errors import EnvironmentEnded
from laser_rl.metrics.log import read
from tests.faults.bad_environments import CallsOsExit, CallsSysExit, RaisesKeyboardInterrupt, RaisesSystemExit
from tests.faults.test_run_faults import finish, start

pytestmark = pytest.mark.fault(31)
WAYS = [CallsSysExit, CallsOsExit, RaisesSystemExit, RaisesKeyboardInterrupt]
SMALL = {"hidden": (8,), "unroll_steps": 5, "slots": 2, "capacity_steps": 500, "evaluate_episodes": 2}
SAID = r"after 9\d of 2,000 steps, 1,9\d\d are missing: .*the environment asked the program to end"
COMMANDS = {
    "train, thread": "train --environment.placement thread",
    "train, process": "train --environment.placement process --environment.workers 1",
    "train, local": "train --runtime local",
    "sweep": "sweep --grid learning_rate=1e-3,2e-3",
    "sweep, processes": "sweep --grid learning_rate=1e-3,2e-3 --processes 2",
    "sweep, processes, workers": "sweep --grid learning_rate=1e-3,2e-3 --processes 2 --environment.placement process",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_learn_says_how_many_steps_are_missing(way, runtime):
    agent = LASER(way, recipe="cartpole", runtime=runtime, **SMALL)
    with pytest.raises(EnvironmentEnded, match=SAID):
        agent.learn(2_000)
    agent.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_sweep_says_how_many_steps_are_missing(way):
    sweep = Sweep(way, grid={"learning_rate": [1e-3, 2e-3]}, recipe="cartpole", **SMALL)
    with pytest.raises(EnvironmentEnded, match=r"of 2,000 steps, 1,9\d\d are missing"):
        sweep.run(2_000)


@pytest.mark.parametrize("way", WAYS)
def test_a_vector_that_exits_says_how_many_steps_are_missing(way):
    agent = LASER(gymnasium.vector.SyncVectorEnv([way, way]), recipe="cartpole", **{**SMALL, "slots": 2})
    with pytest.raises(EnvironmentEnded, match=r"of 2,000 steps, 1,9\d\d are missing"):
        agent.learn(2_000)
    agent.close()


def run_command(words, way, path):
    more = "--recipe cartpole --steps 2000 --environment.slots 2 --replay.capacity-steps 500 --run.evaluate-episodes 2 --plain"
    name = f"tests.faults.bad_environments:{way.__name__}"
    return finish(start(*words.split(), "--env", name, "--out", path, *more.split()))


def check_command(words, way, path):
    status, out, said = run_command(words, way, path)
    assert status == 4, said
    assert "done:" not in out
    (missing, *_) = re.findall(r"([\d,]+)(?: steps of each member)? are missing", said)
    assert 1_000 < int(missing.replace(",", "")) < 2_000
    assert "Traceback" not in said
    assert not any(row["event"] == "finished" for row in read(path, ("event",)))


@pytest.mark.slow
def test_a_process_of_a_sweep_that_exits_is_no_finished_sweep(tmp_path, figure):
    check_command(COMMANDS["sweep, processes"], CallsSysExit, tmp_path / "run")
    figure("an environment calls sys.exit(0) in laser sweep --processes 2: status 4 and the missing steps")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_an_exit_for_the_end(command, tmp_path, figure):
    for way in WAYS:
        check_command(COMMANDS[command], way, tmp_path / way.__name__)
    figure(f"{command}: sys.exit, os._exit, SystemExit and KeyboardInterrupt all end with status 4")
