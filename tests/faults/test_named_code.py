"""Row 26: code that a stranger's file names is never imported or called, unless the user passes the name or says --trust-code."""

import json
import shlex
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors
import safetensors.torch
import yaml

from laser_rl import LASER, checkpoint, trust
from laser_rl.agent import functions
from laser_rl.checkpoint import manifest
from laser_rl.cli import main
from laser_rl.cli.train import broken_off
from laser_rl.config import override
from laser_rl.errors import ConfigError
from laser_rl.training.files import CONFIG, SWEEP
from tests.training.small import finish, small
from tests.training.test_sweeps import in_directory, small_sweep
from tests.view.serving import serving

pytestmark = pytest.mark.fault(26)
MODULE = """
from pathlib import Path
import gymnasium
Path({mark!r}).touch()
def make(**options):
    return gymnasium.make("CartPole-v1", **options)
def relevance(family, policy, behaviour):
    return (policy - behaviour).abs().sum(-1)
if "Planted-v0" not in gymnasium.registry:
    gymnasium.register("Planted-v0", entry_point="planted:make")
"""
FORGED = {
    "os:system": {"environment.id": "os:system"},
    "a function": {"environment.id": "planted:make"},
    "an id after a module": {"environment.id": "planted:Planted-v0"},
    "one of a mixture": {"environment.id": "planted:make,CartPole-v1"},
    "a relevance": {"loss.trust": "planted:relevance"},
    "a schedule": {"optimiser.schedule": "planted:relevance"},
}
ENVIRONMENTS = [name for name in FORGED if name not in {"a relevance", "a schedule"}]


class Stranger:
    """A run, a sweep and a saved agent of CartPole, and what becomes of copies whose settings name code."""

    def __init__(self, folder):
        self.folder, self.run, self.mark = folder, folder / "run", folder / "MARK"
        self.agent, self.sweep = folder / "agent.laser", folder / "sweep"

    def changes(self, kind):
        options = {"command": f"touch {self.mark}"} if kind == "os:system" else {}
        return FORGED[kind] | {"environment.options": options}

    def forge(self, kind):
        """Write the names into every file that holds settings."""
        changes = self.changes(kind)
        for place, file in ((self.run, CONFIG), (self.sweep, SWEEP)):
            values = json.loads((place / file).read_text())
            _put(values if file == CONFIG else values["base"], changes)
            (place / file).write_text(json.dumps(values))
            for folder in (place / checkpoint.CHECKPOINTS).iterdir():
                _put_into_checkpoint(folder, changes)
        with safetensors.safe_open(self.agent, "pt") as saved:
            about = saved.metadata()
        values = json.loads(about["config"])
        _put(values, changes)
        about = {**about, "config": json.dumps(values)}
        self.agent.write_bytes(safetensors.torch.save(safetensors.torch.load_file(self.agent), metadata=about))
        return self

    def ran(self):
        """Whether the code was imported or called since the last look."""
        was = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        sys.modules.pop("planted", None)
        functions._imported.cache_clear()
        return was


def _put_into_checkpoint(folder, changes):
    """Checkpoints hold the settings, too; a forger makes their checksums fit."""
    state = json.loads((folder / "state.json").read_text())
    _put(state["settings"].get("base", state["settings"]), changes)
    data = json.dumps(state).encode()
    (folder / "state.json").write_bytes(data)
    about = manifest.read(folder)
    files = {**about.files, "state.json": manifest.entry_of(data)}
    (folder / "manifest.json").write_bytes(manifest.encode(replace(about, files=files, sha256=manifest._BLANK)))


def _put(values, changes):
    for name, value in changes.items():
        section, _, last = name.partition(".")
        values[section][last] = value


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    finish(small(capacity_steps=400), folder / "run")
    in_directory(small_sweep(steps=100), folder / "sweep")
    agent = LASER("CartPole-v1", hidden=(16,), slots=2, seed=3)
    agent.save(folder / "agent.laser")
    agent.close()
    return folder


@pytest.fixture
def stranger(original, tmp_path, monkeypatch):
    shutil.copytree(original, tmp_path / "files")
    found = Stranger(tmp_path / "files")
    (tmp_path / "planted.py").write_text(MODULE.format(mark=str(found.mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield found
    sys.modules.pop("planted", None)


OBSERVATION = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


@pytest.mark.parametrize("kind", FORGED)
def test_methods_of_an_agent_import_nothing_that_its_file_names(kind, stranger, original, tmp_path, figure):
    stranger.forge(kind)
    agent = LASER.load(stranger.agent, warm_start=True)
    expected, _ = LASER.load(original / "agent.laser").predict(OBSERVATION, deterministic=True)
    assert agent.predict(OBSERVATION, deterministic=True)[0] == expected  # without its environment
    copy = agent.save(tmp_path / "copy.laser")
    assert LASER.load(copy).predict(OBSERVATION, deterministic=True)[0] == expected
    if kind in ENVIRONMENTS:
        with pytest.raises(ConfigError, match=r"agent\.laser names the code .* --trust-code .*trust_code=True"):
            agent.evaluate(1)
    else:
        assert agent.evaluate(1).episodes == 1
    with pytest.raises(ConfigError, match=r"names the code '(os|planted):"):
        agent.learn(50)
    agent.close()
    assert not stranger.ran()
    figure("load, predict, evaluate, save, learn: nothing imported")


def commands(stranger, tmp_path):
    """Every command that reads a run directory, by its name; and whether it needs the environment, or learns."""
    run = str(stranger.run)
    return {
        "evaluate": (["evaluate", run, "--episodes", "1"], "environment"),
        "enjoy": (["enjoy", run, "--max-steps", "5"], "environment"),
        "resume": (["resume", run, "--steps", "700", "--plain"], "learns"),
        "resume --fresh": (["resume", run, "--fresh", "--plain"], "learns"),
        "push": (["push", run, "somebody/agent", "--dry-run", "--out", str(tmp_path / "hub")], None),
        "export": (["export", run, "--onnx", str(tmp_path / "policy.onnx")], None),
        "report": (["report", run], None),
        "status": (["status", run], None),
        "verify": (["verify", run], None),
        "config": (["config", "show", "--run-dir", run], None),
        "sweep's evaluate": (["evaluate", str(stranger.sweep), "--episodes", "1"], "environment"),
        "sweep's resume": (["resume", str(stranger.sweep), "--steps", "200", "--plain"], "learns"),
        "sweep's report": (["report", str(stranger.sweep)], None),
    }


@pytest.mark.parametrize("kind", FORGED)
def test_commands_import_nothing_that_a_run_directory_names(kind, stranger, tmp_path, capsys, figure):
    stranger.forge(kind)
    before = sorted(path.name for path in (stranger.run / checkpoint.CHECKPOINTS).iterdir())
    for name, (arguments, needs) in commands(stranger, tmp_path).items():
        status = main(arguments)
        said = capsys.readouterr().err
        assert not stranger.ran(), name
        if needs == "learns" or (needs == "environment" and kind in ENVIRONMENTS):
            assert status == 2, name
            assert "names the code" in said, name
            assert trust.FLAG in said, name
        elif needs is None and not (name == "export" and "needs the extra" in said):
            assert status == 0, (name, said)
    assert sorted(path.name for path in (stranger.run / checkpoint.CHECKPOINTS).iterdir()) == before
    with serving([stranger.folder]) as served:
        assert served.ask("/")[0] == 200
        for at in range(2):
            assert served.ask(f"/api/run/{at}")[0] in {200, 404}
    assert not stranger.ran()
    figure(f"{len(commands(stranger, tmp_path))} commands and the dashboard: nothing imported")


@pytest.mark.parametrize("kind", ["a function", "an id after a module", "a relevance"])
def test_with_the_flag_they_do_what_was_asked(kind, stranger, tmp_path, capsys):
    stranger.forge(kind)
    asked = commands(stranger, tmp_path)
    for name in ("evaluate", "resume", "sweep's resume", "push", "report"):
        arguments, needs = asked[name]
        assert main([*arguments, "--trust-code"]) == 0, (name, capsys.readouterr().err)
        assert stranger.ran() == (needs == "learns" or (needs == "environment" and kind in ENVIRONMENTS)), name
    agent = LASER.load(stranger.agent, trust_code=True, warm_start=True)
    assert agent.evaluate(1).episodes == 1
    agent.learn(50)
    agent.close()
    assert stranger.ran()


def test_what_the_caller_passes_needs_no_flag(stranger):
    stranger.forge("os:system")
    agent = LASER.load(stranger.agent, env="planted:make")
    assert agent.evaluate(1).episodes == 1
    assert stranger.ran()
    agent = LASER.load(stranger.forge("a function").agent, env="planted:make")  # also where the file says the same
    assert agent.evaluate(1).episodes == 1


@pytest.mark.parametrize("command", [["train", "--config"], ["sweep"], ["config", "show", "--config"]])
def test_a_file_of_settings_may_not_name_code_either(command, stranger, tmp_path, capsys):
    config = override(small(), {"environment.id": "planted:make", "run.steps": 100})
    values = {"environment": config.model_dump(mode="json")["environment"], "run": {"steps": 100}}
    settings = {"base": values, "grid": {"learning_rate": [1e-3, 2e-3]}} if command == ["sweep"] else values
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    out = [] if command[0] == "config" else ["--out", str(tmp_path / "out"), "--plain"]
    asked = [*command, str(tmp_path / "settings.yaml"), *out]
    assert main(asked) == 2
    assert "settings.yaml names the code 'planted:make'" in capsys.readouterr().err
    assert not stranger.ran()
    assert not (tmp_path / "out").exists()
    assert main([*asked, "--env", "CartPole-v1"]) == 0
    assert not stranger.ran()
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert main([*asked, "--env", "planted:make"]) == 0
    assert stranger.ran()
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert main([*asked, "--trust-code"]) == 0
    assert stranger.ran()


def test_members_of_a_sweep_file_may_not_name_a_relevance(stranger, tmp_path, capsys):
    settings = {"recipe": "cartpole", "base": {"run": {"steps": 60}}, "members": [{"trust": "planted:relevance"}, {}]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(settings))
    asked = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), "--plain", "--processes", "2"]
    assert main(asked) == 2
    assert "sweep.yaml names the code 'planted:relevance'" in capsys.readouterr().err
    assert not stranger.ran()


def test_the_commands_that_a_run_prints_work_as_they_are(stranger, tmp_path, capsys):
    out = tmp_path / "my run"
    small_run = ["--network.hidden", "16", "--run.evaluate-episodes", "1", "--steps", "200", "--plain"]
    assert main(["train", "--env", "planted:make", "--recipe", "cartpole", "--out", str(out), *small_run]) == 0
    said = capsys.readouterr().out
    hint = next(line for line in said.splitlines() if line.startswith("evaluate:"))
    assert main(shlex.split(hint)[2:]) == 0
    broken_off(out, KeyboardInterrupt())
    hint = capsys.readouterr().out.splitlines()[-1].partition("go on with: ")[2]
    assert hint == f"laser resume {shlex.quote(str(out))} --trust-code"
    assert main([*shlex.split(hint)[1:], "--steps", "300", "--plain"]) == 0


def test_names_of_code_are_told_from_others():
    assert trust.code_in("laser/Catch,mine:Maze", {"host": "localhost:80"}, "implied") == ["mine:Maze"]
    assert trust.code_in("suite:grid", {}, "mine:trust") == ["mine:trust"]


def test_options_may_not_carry_a_name_of_code_either():
    with trust.Trust().applied():
        trust.note({"environment": {"id": "Maze-v0", "options": {"inner": {"env": "planted:make"}}}}, "stranger.json")
        with pytest.raises(ConfigError, match="names the code 'planted:make'"):
            trust.require(*trust.code_in("CartPole-v1", {"inner": {"env": "planted:make"}}))
        trust.require(*trust.code_in("CartPole-v1", {"server": "localhost:8080", "at": "https://example.org"}))
