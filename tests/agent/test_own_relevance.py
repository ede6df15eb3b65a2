"""A relevance function of the user's own: `loss.trust` at `module:function`."""

import importlib
import subprocess
import sys

import pytest
import torch

from laser_rl import LASER, Sweep
from laser_rl.agent import learner as learner_module
from laser_rl.agent.functions import _imported
from laser_rl.agent.loss import own_relevance
from laser_rl.config import Config, override
from laser_rl.errors import ConfigError
from laser_rl.ops.distributions import Categorical

SOURCE = """
import torch
from laser_rl.ops import trust_region

def same(family, policy, behaviour):
    return trust_region.kl_to_behaviour(family, policy, behaviour)

def nothing(family, policy, behaviour):
    return torch.full(policy.shape[:-1], float("inf"))

def unknown(family, policy, behaviour):
    return torch.full(policy.shape[:-1], float("nan"))

def everything(family, policy, behaviour):
    return torch.zeros(policy.shape[:-1])

def by_action(family, policy, behaviour):
    return policy - behaviour

def a_number(family, policy, behaviour):
    return 0.5

limit = 0.1
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of relevance functions in the current folder, under a name of its own."""
    name = f"relevances_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)
    _imported.cache_clear()


def trained(trust, **settings):
    agent = LASER("laser/Catch", seed=1, slots=2, trust=trust, trust_bound=2e-4, log_every_updates=5, **settings)
    rows = []
    agent.learn(400, callback=rows.append)
    agent.close()
    return agent, [row.values["acceptance"] for row in rows if row.kind == "train"]


def test_the_same_function_gives_the_same_parameters(module, monkeypatch):
    monkeypatch.setattr(learner_module, "fits", lambda *_: False)  # what NumPy computes differs in the last bits
    named, accepted = trained("behaviour")
    own, own_accepted = trained(f"{module}:same")
    assert accepted == own_accepted
    assert min(accepted) < 1  # the bound mattered
    for mine, other in zip(
        own.member.learner.network.parameters(), named.member.learner.network.parameters(), strict=True
    ):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("function", "share"), [("nothing", 0.0), ("unknown", 0.0), ("everything", 1.0)])
def test_the_function_decides(module, function, share):
    _, accepted = trained(f"{module}:{function}")
    assert accepted
    assert set(accepted) == {share}


def test_a_function_of_the_program_itself_will_do(module, tmp_path):
    """Also one that no import finds; it is asked for again where it is needed again."""
    half = 0.5
    _, accepted = trained(lambda family, policy, behaviour: torch.full(policy.shape[:-1], half))
    _, everything = trained(lambda family, policy, behaviour: torch.zeros(policy.shape[:-1]))
    assert set(accepted) == {0.0}
    assert set(everything) == {1.0}
    sys.path.append(str(tmp_path))
    imported = importlib.import_module(module)
    assert LASER("laser/Catch", trust=imported.same).config.loss.trust == f"{module}:same"

    def nothing(family, policy, behaviour):
        return torch.full(policy.shape[:-1], float("inf"))

    settings = {"seed": 1, "slots": 2, "trust": nothing}
    agent = LASER("laser/Catch", run_dir=tmp_path / "run", **settings).learn(300)
    path = agent.save(tmp_path / "agent.laser", replay=True)
    agent.close()
    with LASER("laser/Catch", run_dir=tmp_path / "run", **settings) as again:
        assert again.learn(100).steps >= 400
    # What another process sees:
    asked = "from laser_rl import LASER; import sys; LASER.load(sys.argv[1]).learn(100)"
    ended = subprocess.run([sys.executable, "-c", asked, path], capture_output=True, text=True, check=False)
    assert "a function of the program that trained, 'nothing', which no other process can import" in ended.stderr
    resumed = subprocess.run(
        [sys.executable, "-m", "laser_rl", "resume", str(tmp_path / "run"), "--steps", "600"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert resumed.returncode == 2
    assert resumed.stderr.count("\n") == 1
    assert "pass it again (trust=...), or define it in a module" in resumed.stderr
    passed = asked.replace("sys.argv[1]", "sys.argv[1], trust=lambda family, policy, behaviour: policy.sum(-1)")
    subprocess.run([sys.executable, "-c", passed, path], check=True)
    with pytest.raises(ConfigError, match=r"processes needs .* functions that can be imported; use processes=1"):
        Sweep("laser/Catch", grid={"trust": [nothing, "off"]}, run_dir=tmp_path / "sweep", processes=2).run(100)


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_schedule_is_a_function_of_what_remains(runtime):
    seen = []

    def rate(remaining):
        seen.append(remaining)
        return 1e-3 * remaining**2

    rows, settings = [], {"seed": 1, "slots": 2, "runtime": runtime}
    with LASER("laser/Catch", learning_rate=rate, **settings) as agent:
        agent.learn(600, log_every=100, callback=rows.append)
    assert max(seen) > (0.9 if runtime == "serial" else 0.5)  # threads act on while the first batch is gathered
    assert min(seen) < 0.1
    rates = [row.values["learning_rate"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    made = {1e-3 * remaining**2 for remaining in seen}
    for row in rows:
        assert any(row.values["learning_rate"] == pytest.approx(one) for one in made)
        if (
            runtime == "serial"
        ):  # threads act on while the learner makes an update: a row's step may be ahead of the update's
            remaining = max(0.0, 1 - row.step / 600)
            assert row.values["learning_rate"] == pytest.approx(1e-3 * remaining**2, abs=5e-5)
    with LASER("laser/Catch", schedule=lambda remaining: 0.5, learning_rate=4e-3, **settings) as agent:
        agent.learn(100, callback=rows.append)
    assert rows[-1].values["learning_rate"] == 2e-3


def test_a_schedule_that_gives_no_rate_is_refused():
    with pytest.raises(ConfigError, match=r"expected a finite number of at least 0 .* got -1"):
        LASER("laser/Catch", slots=2, schedule=lambda remaining: -1).learn(300)
    with pytest.raises(ConfigError, match="learning_rate is a function and so is its own schedule"):
        LASER("laser/Catch", learning_rate=float, schedule="linear")
    with pytest.raises(ConfigError, match="give numbers, and the functions as schedule"):
        Sweep("laser/Catch", grid={"learning_rate": [float]})


def test_members_side_by_side_have_it_too(module):
    settings = {"seed": 1, "slots": 2, "stack": "on", "log_every_updates": 5, "trust": f"{module}:nothing"}
    sweep = Sweep("laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, **settings)
    rows = []
    sweep.run(300, callback=rows.append)
    assert {row.values["acceptance"] for row in rows if row.kind == "train"} == {0.0}


def test_nothing_is_learned_through_it(module):
    policy = torch.zeros(3, 2, 4, requires_grad=True)
    assert not own_relevance(f"{module}:same", Categorical(4), policy, torch.ones(3, 2, 4)).requires_grad


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nowhere_at_all:f",
            "loss.trust: expected 'nowhere_at_all' to be a module .* imported from here.* check the spelling",
        ),
        ("MODULE:missing", "loss.trust: expected .*:missing to be .* a function, got nothing; check the spelling"),
        ("MODULE:limit", "loss.trust: expected .*:limit to be .* a function, got float"),
    ],
)
def test_a_name_that_leads_nowhere_is_said_before_the_first_step(module, name, message):
    name = name.replace("MODULE", module)
    agent = LASER("laser/Catch", seed=1, slots=2, trust=name)
    with pytest.raises(ConfigError, match=message):
        agent.learn(100)
    assert agent.steps == 0
    agent.close()
    with pytest.raises(ConfigError, match=message):
        Sweep("laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, slots=2, trust=name).run(100)


@pytest.mark.parametrize(
    ("function", "got"), [("by_action", r"a tensor of shape \(20, 32, 3\)"), ("a_number", "got float")]
)
def test_an_answer_that_is_not_one_number_a_row_is_refused(module, function, got):
    with pytest.raises(ConfigError, match=rf"{function}: expected a tensor of shape \(20, 32\), .*{got}"):
        trained(f"{module}:{function}")


@pytest.mark.parametrize("trust", ["impled", "", "a b:c", "os:", ":system", "os:system()"])
def test_what_is_no_name_is_refused(trust):
    with pytest.raises(ConfigError, match="expected implied, behaviour, off or module:function"):
        override(Config(), {"loss.trust": trust})


def test_loading_an_agent_does_not_import_it(module):
    agent, _ = trained(f"{module}:everything")
    path = agent.save("own.laser")
    sys.modules.pop(module)
    _imported.cache_clear()
    loaded = LASER.load(path)
    assert loaded.evaluate(episodes=2).episodes == 2
    loaded.close()
    assert module not in sys.modules
