"""A search from outside: `laser sweep --search optuna` and `Sweep(search=...)`, stopped and resumed, in one process and in several."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

optuna = pytest.importorskip("optuna")

from laser_rl import Sweep  # noqa: E402
from laser_rl.checkpoint import CHECKPOINTS  # noqa: E402
from laser_rl.cli import main  # noqa: E402
from laser_rl.errors import ConfigError  # noqa: E402
from laser_rl.training.search import SearchConfig  # noqa: E402

SPACE = {
    "learning_rate": {"kind": "log_uniform", "low": 1e-4, "high": 1e-1},
    "entropy_cost": {"kind": "log_uniform", "low": 1e-4, "high": 1e-1},
}
SMALL = {"recipe": "cartpole", "seed": 3, "slots": 4, "hidden": (16,), "evaluate_episodes": 4, "capacity_steps": 2_000}


def searching(run_dir=None, *, stack="auto", trials=9, processes=1, **settings):
    search = SearchConfig(trials=trials, trial_steps=600, **settings)
    return Sweep(
        "laser/Catch", random=SPACE, draws=3, search=search, stack=stack, processes=processes, run_dir=run_dir, **SMALL
    )


def trials_of(run_dir):
    newest = max((run_dir / CHECKPOINTS).iterdir())
    return json.loads((newest / "state.json").read_text())["trainer"]["pbt"]


def learned(result):
    return [{name: tensor.tolist() for name, tensor in one.network.state_dict().items()} for one in result.members]


@pytest.mark.parametrize("stack", ["on", "off"])
def test_a_search_that_was_stopped_goes_on_with_the_same_trials_to_the_same_bits(tmp_path, stack):
    whole = searching(tmp_path / "whole", stack=stack).run(2_400)
    stopped = searching(tmp_path / "parts", stack=stack).run(2_400, callback=lambda progress: progress.step < 1_300)
    assert stopped.interrupted == "a callback"
    resumed = searching(tmp_path / "parts", stack=stack).run(2_400)
    assert trials_of(tmp_path / "whole") == trials_of(tmp_path / "parts")
    assert learned(whole) == learned(resumed)
    assert len(trials_of(tmp_path / "whole")["trials"]) > 3 + 3


def test_a_trial_begins_with_new_parameters_unless_it_inherits():
    still = {
        "learning_rate": {"kind": "log_uniform", "low": 1e-300, "high": 1e-299}
    }  # so small that no parameter moves

    def first_layers(steps, **settings):
        search = SearchConfig(trials=9, trial_steps=600, **settings)
        result = Sweep("laser/Catch", random=still, draws=3, search=search, **SMALL).run(steps)
        return result, [next(iter(one.network.parameters())).tolist() for one in result.members]

    _, first = first_layers(100)
    alone, fresh = first_layers(2_400)
    heir, inherited = first_layers(2_400, inherit=True)
    replaced = {exploit.member for exploit in alone.exploits}
    assert replaced
    assert all((fresh[member] in first) == (member not in replaced) for member in range(3))
    assert len({str(layer) for layer in fresh}) == 3
    assert heir.exploits
    assert all(layer in first for layer in inherited)
    for result in (alone, heir):
        assert [exploit.trial for exploit in result.exploits] == list(range(3, 3 + len(result.exploits)))
        newest = {exploit.member: exploit.after for exploit in result.exploits}
        for member in result.members:
            expected = newest.get(member.number, member.settings)["learning_rate"]
            assert member.config.optimiser.learning_rate == expected


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--trials", "9"], "add --search optuna"),
        (["--search", "optuna", "--trials", "9", "--pbt"], "leave one of them out"),
        (["--search", "optuna", "--trials", "2"], "as many trials"),
        (["--search", "optuna", "--trials", "9", "--concurrent", "1"], "at least two members"),
        (["--search", "optuna", "--trials", "9", "--random", "unroll_steps=choice:5:10"], "cannot be searched"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(flags, sentence, tmp_path, capsys):
    words = ["sweep", "laser/Catch", "--random", "learning_rate=log_uniform:1e-4:1e-2", "--draws", "3", *flags]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_search_needs_a_space():
    with pytest.raises(ConfigError, match="random"):
        Sweep("laser/Catch", grid={"learning_rate": [1e-3, 1e-2]}, search=SearchConfig(trials=4), **SMALL)


@pytest.mark.slow
def test_members_in_two_processes_take_trials_one_after_the_other(tmp_path):
    result = searching(tmp_path / "run", processes=2, trials=6).run(12_000)
    state = trials_of(tmp_path / "run")
    assert [trial["number"] for trial in state["trials"]] == list(range(len(state["trials"])))
    assert len(state["trials"]) > 3
    assert [exploit.trial for exploit in result.exploits] == list(range(3, len(state["trials"])))


@pytest.mark.slow
@pytest.mark.fault(6)
def test_forty_trials_killed_twice_end_with_the_same_best(tmp_path):
    words = [
        sys.executable, "-m", "laser_rl", "sweep", "laser/Catch", "--recipe", "cartpole", "--search", "optuna", "--trials", "40",
        "--concurrent", "4", "--random", "learning_rate=log_uniform:1e-4:1e-1", "--random", "entropy_cost=log_uniform:1e-4:1e-1",
        "--trial-steps", "600", "--steps", "6000", "--slots", "4", "--checkpoint-every-steps", "500", "--plain", "--out",
    ]  # fmt: skip
    subprocess.run([*words, str(tmp_path / "whole")], check=True, capture_output=True, timeout=300)
    run = tmp_path / "killed"
    for kill in range(2):
        begin = words if kill == 0 else [*words[:3], "resume", "--plain"]
        child = subprocess.Popen([*begin, str(run)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline, wanted = time.monotonic() + 200, 1_000 * (2 * kill + 1)
        while time.monotonic() < deadline and child.poll() is None:
            steps = [int(one.name.partition("-")[2]) for one in (run / CHECKPOINTS).glob("step-*")]
            if max(steps, default=0) >= wanted:
                break
            time.sleep(0.05)
        assert child.poll() is None
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    subprocess.run([*words[:3], "resume", "--plain", str(run)], check=True, capture_output=True, timeout=300)
    whole, killed = trials_of(tmp_path / "whole"), trials_of(run)
    assert len(whole["trials"]) == 40
    assert whole == killed
