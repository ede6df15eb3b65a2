"""The ONNX file acts as torch does; a file that does not is never written."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from laser_rl import LASER
from laser_rl.checkpoint import newest_step
from laser_rl.cli import main
from laser_rl.envs.records import (
    BoxActions,
    DiscreteActions,
    EnvironmentSpec,
    MultiDiscreteActions,
    ObservationSpec,
)
from laser_rl.errors import ConfigError
from laser_rl.networks.build import family_of
from laser_rl.tools.onnx_policy import PREFIX, Acting, compare, described, export_onnx, random_rows, session_of
from laser_rl.tools.source import starts_in
from laser_rl.training.evaluate import trained_of
from tests.networks.make import build_network
from tests.training.small import build_member, finish, small


def untrained(environment="CartPole-v1", net=None, **settings):
    """An agent as it begins, but with a policy that is not nearly uniform: the likeliest action is not a matter of rounding."""
    member = build_member(small(environment, **settings), None, net)
    member.actor.environments.close()
    nn.init.normal_(member.learner.network.policy_head.weight)
    return trained_of(member, 0)


def about_of(session):
    """Our entries of a model's metadata."""
    entries = session.get_modelmeta().custom_metadata_map
    return {name.removeprefix(PREFIX): json.loads(value) for name, value in entries.items() if name.startswith(PREFIX)}


class Torch:
    """In place of ONNX Runtime: torch itself, and one mistake."""

    def __init__(self, acting, mistake):
        self._acting, self._mistake = acting, mistake

    def run(self, names, given):
        with torch.inference_mode():
            results = self._acting(*(torch.from_numpy(np.ascontiguousarray(part)) for part in given.values()))
        found = dict(zip(self._acting.outputs, (result.numpy().copy() for result in results), strict=True))
        self._mistake(found)
        return [found[name] for name in names]


def another_action(found):
    found["action"][0] = 1 - found["action"][0]


def logits_off(found):
    found["logits"] += 1e-3


def value_nan(found):
    found["value"][0] = np.nan


def forgets(found):
    found["next_state"] *= 0.5


def drifts(found):
    """Too little to be seen in one row; what is carried adds up."""
    found["next_state"] += 0.9e-4


@pytest.fixture(scope="module")
def recurrent():
    trained = untrained(memory="lstm", memory_size=8)
    return trained, random_rows(trained, 40)


@pytest.mark.parametrize("mistake", [another_action, logits_off, value_nan, forgets, drifts])
def test_a_file_with_a_mistake_is_refused(recurrent, mistake):
    trained, rows = recurrent
    acting = Acting(trained.network, trained.family)
    with pytest.raises(ConfigError, match="does not act as torch does"):
        compare(acting, Torch(acting, mistake), rows)


def test_it_is_the_acting_policy():
    """Row by row what `LASER.predict` and the evaluation do."""
    trained = untrained(memory="preco", memory_size=8)
    acting = Acting(trained.network, trained.family)
    from laser_rl.agent.policy import Policy  # noqa: PLC0415

    policy = Policy(trained.network, trained.family, seed=0, deterministic=True)
    for row in random_rows(trained, 40):
        decision = policy.act(row)
        with torch.inference_mode():
            action, logits, _, state = acting(*(torch.from_numpy(part) for part in row))
        assert np.array_equal(decision.environment_action, action)
        assert np.array_equal(decision.behaviour, logits)
        assert np.array_equal(decision.state, state)


def test_log_std_is_that_of_the_latent_normal():
    family = family_of(BoxActions((-1.0, -np.inf), (1.0, np.inf)))
    spec = EnvironmentSpec("none", ObservationSpec((3,)), BoxActions(family.low, family.high))
    acting = Acting(build_network(spec), family)
    action, mean, _, _ = acting(torch.randn(50, 3))
    parameters = acting.network.policy_head(acting.network.torso(torch.zeros(1, 3)))
    _, mean0, log_std0, _ = acting(torch.zeros(1, 3))
    latent = torch.tensor([[0.3, -0.7]])
    normal = torch.distributions.Normal(mean0, log_std0.exp()).log_prob(latent)
    squash = torch.log(1 - latent[:, :1].tanh() ** 2)
    assert torch.allclose(family.log_prob(parameters, latent), normal.sum(-1) - squash.sum(-1), atol=1e-5)
    assert torch.allclose(action[:, 0], mean[:, 0].tanh())
    assert torch.equal(action[:, 1], mean[:, 1])


def test_values_are_in_the_units_of_the_returns():
    spec = EnvironmentSpec("none", ObservationSpec((3,)), DiscreteActions(2), ("a", "b"))
    network = build_network(spec, popart=True)
    network.popart.mean[:] = torch.tensor([5.0, -1.0])
    network.popart.mean_square[:] = torch.tensor([25.0 + 9.0, 1.0 + 4.0])
    normalised = network.value_head(network.torso(torch.ones(1, 3)))
    value = Acting(network, family_of(spec.action))(torch.ones(1, 3))[2]
    assert torch.allclose(value, normalised * torch.tensor([3.0, 2.0]) + torch.tensor([5.0, -1.0]))


def test_export_and_run(run, tmp_path, capsys):
    """The whole way once, as a user goes it; more networks below."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "new" / "policy.onnx"
    assert main(["export", str(run[0]), "--onnx", str(path)]) == 0
    assert "same actions on 3" in capsys.readouterr().out
    session = session_of(path)
    assert [(one.name, one.shape) for one in session.get_inputs()] == [("observation", ["batch", 4])]
    for batch in (1, 7):
        action, logits, value = session.run(None, {"observation": np.ones((batch, 4), np.float32)})
        assert (action.shape, logits.shape, value.shape) == ((batch,), (batch, 2), (batch,))
        assert action.tolist() == logits.argmax(-1).tolist()
    about = about_of(session)
    assert (about["environment"], about["step"]) == ("CartPole-v1", newest_step(run[0]))
    assert [file.name for file in path.parent.iterdir()] == ["policy.onnx"]
    assert str(tmp_path.home()).encode() not in path.read_bytes()
    assert b"laser_rl/networks" not in path.read_bytes()  # of our traces


def test_refused_names_and_members(run, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    for given, said in (
        (["--onnx", str(tmp_path)], "expected something like policy.onnx"),
        (["--onnx", "policy.pt"], "policy.onnx"),
    ):
        assert main(["export", str(run[0]), *given]) == 2
        assert said in capsys.readouterr().err


class Looks(nn.Module):
    """A torso of a user that looks at values: nobody can trace it."""

    features = 4

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, observation):
        return self.linear(observation) if float(observation.sum()) > 0 else observation * 2


@pytest.mark.slow
def test_a_torso_that_cannot_be_traced_is_named(tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(ConfigError, match=r"with the torso tests.tools.*Looks cannot be written as ONNX.*torch\.where"):
        export_onnx(untrained(net=Looks()), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_file_that_is_refused_leaves_the_old_one(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"old")
    trained = untrained()
    acting = Acting(trained.network, trained.family)
    monkeypatch.setattr("laser_rl.tools.onnx_policy.session_of", lambda _: Torch(acting, logits_off))
    with pytest.raises(ConfigError, match="nothing was written"):
        export_onnx(trained, path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("policy.onnx", b"old")]


PICTURES = {"frame_stack": 4, "torso": "impala", "slots": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ("CartPole-v1", {}),
        ("laser/TMaze-5", {"memory": "lstm", "memory_size": 16}),
        ("laser/TMaze-5", {"memory": "preco", "memory_size": 16}),
        ("laser/TMaze-5", {"memory": "gru", "memory_size": 16, "last_step": False}),
        ("Pendulum-v1", {"memory": "lstm", "memory_size": 16}),
        ("Pendulum-v1", {"separate_value": True}),
        ("MinAtar/Breakout-v1", {"torso": "cnn"}),
        ("ALE/Breakout-v5", PICTURES),
        ("laser/TMaze-3,laser/TMaze-5", {"slots": 4, "popart": True, "memory": "preco", "memory_size": 16}),
        ("suite:grid", {"slots": 24, "torso": "tiles", "memory": "lstm", "memory_size": 16}),
    ],
)
def test_same_actions_over_a_thousand_observations(environment, settings, tmp_path):
    pytest.importorskip("onnxscript")
    if environment.startswith(("ALE", "MinAtar")):
        pytest.importorskip({"A": "ale_py", "M": "minatar"}[environment[0]])
    made = export_onnx(untrained(environment, **settings), tmp_path / "policy.onnx", rows=1000)
    assert made.rows >= 1000
    assert made.largest < 1e-4


@pytest.mark.slow
def test_several_choices_at_once(tmp_path):
    pytest.importorskip("onnxscript")

    class Two(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.np_random.uniform(-1, 1, 3).astype(np.float32), 0.0, False, False, {}

    member = build_member(small(memory="gru", memory_size=8), Two)
    member.actor.environments.close()
    nn.init.normal_(member.learner.network.policy_head.weight)
    made = export_onnx(trained_of(member, 0), tmp_path / "policy.onnx", rows=1000)
    assert isinstance(member.learner.family, type(family_of(MultiDiscreteActions((2, 3)))))
    assert made.rows >= 1000


@pytest.mark.slow
def test_a_trained_memory_of_a_run_plays_an_episode_alone(tmp_path):
    """Called as the file says: state in, state out, one environment; the same actions as the run's own policy."""
    pytest.importorskip("onnxscript")
    finish(small("laser/TMaze-5", memory="lstm", memory_size=16), tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--onnx", str(tmp_path / "policy.onnx")]) == 0
    session = session_of(tmp_path / "policy.onnx")
    from laser_rl.agent.policy import Policy, act_once  # noqa: PLC0415
    from laser_rl.envs.make import make_renderable  # noqa: PLC0415
    from laser_rl.tools.source import load_source  # noqa: PLC0415

    trained = load_source(tmp_path / "run").trained
    policy = Policy(trained.network, trained.family, seed=0, deterministic=True)
    env, steps = make_renderable("laser/TMaze-5"), 0
    for episode in range(20):
        observation, _ = env.reset(seed=episode)
        state, action, reward, first, memento, over = np.zeros((1, 32), np.float32), 0, 0.0, True, None, False
        while not over:
            given = {
                "observation": observation[None].astype(np.float32),
                "is_first": np.array([first]),
                "last_action": np.array([action], np.int64),
                "last_reward": np.array([reward], np.float32),
                "state": state,
            }
            chosen, _, _, state = session.run(None, given)
            [expected], memento = act_once(
                policy, trained.layout, given["observation"], given["last_reward"], given["is_first"], memento
            )
            action, first = int(chosen[0]), False
            assert action == int(expected)
            observation, reward, terminated, truncated, _ = env.step(action)
            over, steps = terminated or truncated, steps + 1
    assert steps > 60


class Shifted(gymnasium.Env):
    """Choices that do not begin at 0."""

    observation_space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4, start=-2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32).clip(-9, 9), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.np_random.normal(size=3).astype(np.float32).clip(-9, 9), 0.0, False, False, {}


class ShiftedTwice(Shifted):
    action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=[5, -1])


@pytest.mark.slow
@pytest.mark.parametrize("environment", [Shifted, ShiftedTwice])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_action_of_the_file_is_the_one_that_predict_hands_over(environment, memory, tmp_path):
    """200 observations in a row; what was done last goes in as the environment took it."""
    pytest.importorskip("onnxscript")
    agent = LASER(environment, memory=memory, memory_size=8, hidden=(16,), slots=2)
    nn.init.normal_(agent.member.learner.network.policy_head.weight)
    made = export_onnx(trained_of(agent.member, 0), tmp_path / "policy.onnx")
    session, seen, before = (
        session_of(made.path),
        np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32),
        None,
    )
    start = environment.action_space.start
    state, last = np.zeros((1, 16), np.float32), np.zeros((1, *np.shape(start)), np.int64)
    for row, observation in enumerate(seen):
        expected, before = agent.predict(observation, before, deterministic=True)
        given = {"observation": observation[None]}
        if memory == "lstm":
            more = {"is_first": [row == 0], "last_action": last, "last_reward": np.zeros(1, np.float32), "state": state}
            given |= {name: np.asarray(part) for name, part in more.items()}
        found = dict(zip(made.outputs, session.run(list(made.outputs), given), strict=True))
        assert np.array_equal(found["action"][0], expected), row
        assert environment.action_space.contains(found["action"][0])
        last, state = found["action"], found.get("next_state")
    assert about_of(session)["action"]["start"] == np.ravel(start).tolist()
    agent.close()


def test_the_exported_action_begins_where_the_space_does():
    """The same without ONNX: what would be traced."""
    member = build_member(small(), Shifted)
    member.actor.environments.close()
    nn.init.normal_(member.learner.network.policy_head.weight)
    trained = trained_of(member, 0)
    acting = Acting(trained.network, trained.family, starts_in(trained.spec.action))
    action, logits, _ = acting(torch.randn(50, 3))
    assert torch.equal(action, logits.argmax(-1) - 2)
    assert described(trained)["action"]["start"] == [-2]
