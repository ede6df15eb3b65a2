"""A relevance function of the user's own: `loss.trust` at `module:function`."""

import sys

import pytest
import torch

from laser_rl import LASER, Sweep
from laser_rl.agent.functions import _imported
from laser_rl.agent.relevance import own_relevance
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
    agent.learn(400, callbacks=[rows.append])
    agent.close()
    return agent, [row.values["acceptance"] for row in rows if row.kind == "train"]


def test_the_same_function_gives_the_same_parameters(module):
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


def test_members_side_by_side_have_it_too(module):
    settings = {"seed": 1, "slots": 2, "stack": "on", "log_every_updates": 5, "trust": f"{module}:nothing"}
    sweep = Sweep("laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, **settings)
    rows = []
    sweep.run(300, callbacks=[rows.append])
    assert {row.values["acceptance"] for row in rows if row.kind == "train"} == {0.0}


def test_nothing_is_learned_through_it(module):
    policy = torch.zeros(3, 2, 4, requires_grad=True)
    assert not own_relevance(f"{module}:same", Categorical(4), policy, torch.ones(3, 2, 4)).requires_grad


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_at_all:f", "which cannot be imported from here .*'nowhere_at_all'.* check the spelling"),
        ("MODULE:missing", "which cannot be imported from here .*'missing'.*; check the spelling"),
        ("MODULE:limit", "which is no function"),
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
    ("function", "got"), [("by_action", r"a tensor of shape \(20, 8, 3\)"), ("a_number", "got float")]
)
def test_an_answer_that_is_not_one_number_a_row_is_refused(module, function, got):
    with pytest.raises(ConfigError, match=rf"{function}: expected a tensor of shape \(20, 8\), .*{got}"):
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
