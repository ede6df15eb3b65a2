import builtins
import signal
import sys
import tempfile
import types

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from laser_rl import LASER, Sweep, checkpoint
from laser_rl.errors import ConfigError, EnvironmentRefused
from laser_rl.metrics.log import read
from tests.envs.samples import Telltale

SMALL = {"hidden": (16,), "unroll_steps": 5, "slots": 2, "capacity_steps": 500}


@pytest.fixture(scope="module")
def agent():
    agent = LASER("CartPole-v1", seed=1, **SMALL).learn(300)
    yield agent
    agent.close()


def test_learning_goes_on_where_it_stopped(agent):
    before, updates = agent.steps, agent.member.learner.version
    assert agent.learn(200) is agent
    assert 200 <= agent.steps - before < 210
    assert agent.member.learner.version > updates


def test_a_schedule_goes_by_the_total_of_all_calls():
    """With `total`, two calls learn what one call of all steps learns: the rate falls once, not in each of them."""
    settings = {**SMALL, "schedule": "linear", "seed": 3}
    two = LASER("CartPole-v1", **settings).learn(200, total=400).learn(200, total=400)
    one = LASER("CartPole-v1", **settings).learn(400)
    assert one.steps == two.steps
    assert torch.equal(one.member.learner.flat.value, two.member.learner.flat.value)


def test_predict_answers_in_the_environments_terms(agent):
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    action, state = agent.predict(observation, deterministic=True)
    assert env.action_space.contains(np.int64(action))
    assert agent.predict(observation, state, deterministic=True)[0] == action
    sampled = {int(agent.predict(observation)[0]) for _ in range(60)}
    assert sampled == {0, 1}


def test_save_and_load_give_the_same_policy(agent, tmp_path):
    path = agent.save(tmp_path / "agent.laser")
    other = LASER.load(path)
    for seed in range(5):
        observation = gymnasium.make("CartPole-v1").reset(seed=seed)[0]
        assert agent.predict(observation, deterministic=True)[0] == other.predict(observation, deterministic=True)[0]
    assert agent.evaluate(3, seed=4) == other.evaluate(3, seed=4)
    assert other.config.loss == agent.config.loss
    assert other.config.run.device == "auto"  # wherever it was trained
    other.close()


def test_loading_something_else_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not there"):
        LASER.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigError, match=r"is no file of LASER\.save"):
        LASER.load(tmp_path / "text")


def test_settings_go_by_name_and_wrong_ones_are_refused():
    config = LASER("CartPole-v1", learning_rate=0.5, **{"loss.discount": 0.5}).config
    assert (config.optimiser.learning_rate, config.loss.discount) == (0.5, 0.5)
    with pytest.raises(ConfigError, match=r"did you mean 'optimiser\.learning_rate'"):
        LASER("CartPole-v1", learning_rat=0.5)
    with pytest.raises(ConfigError, match=r"loss\.discount is 7: input should be less than or equal to 1"):
        LASER("CartPole-v1", discount=7)


def test_the_recipe_fits_the_environment():
    assert LASER("CartPole-v1").config.recipe == "cartpole"
    assert LASER("MountainCarContinuous-v0").config.recipe == "continuous"
    assert LASER("Pendulum-v1").config.recipe == "pendulum"
    assert LASER("laser/Catch", recipe="minatar").config.recipe == "minatar"


@pytest.mark.parametrize(
    "source",
    [
        "CartPole-v1",
        lambda: gymnasium.make("CartPole-v1"),
        Telltale,
    ],
    ids=["id", "callable", "class"],
)
def test_environments_of_every_kind(source):
    agent = LASER(source, **SMALL).learn(60)
    assert agent.evaluate(2).episodes == 2
    agent.close()


def test_one_environment_and_a_vector_of_them():
    agent = LASER(gymnasium.make("CartPole-v1"), hidden=(16,), unroll_steps=5).learn(60)
    assert agent.steps >= 60
    assert agent.evaluate(2).episodes == 2
    agent.close()
    for mode in gymnasium.vector.AutoresetMode:
        vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=mode)
        agent = LASER(vector, **{**SMALL, "slots": 2}).learn(200)
        assert agent.steps >= 200
        agent.close()


class Torso(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(*shape, 12)

    def forward(self, observation):
        return torch.tanh(self.linear(observation))


@pytest.mark.parametrize("runtime", ["serial", "local"])
@pytest.mark.parametrize("net", [Torso, Torso((4,))], ids=["class", "instance"])
def test_a_network_of_ones_own_learns(net, runtime):
    agent = LASER("CartPole-v1", net=net, runtime=runtime, **SMALL)
    before = agent.member.learner.network.torso.linear.weight.detach().clone()
    agent.learn(200)
    assert not torch.equal(before, agent.member.learner.network.torso.linear.weight)
    agent.close()


def test_callbacks_see_numbers_and_may_end_it():
    seen = []
    agent = LASER("CartPole-v1", log_every_updates=5, **SMALL)
    agent.learn(50_000, callback=lambda progress: seen.append(progress) or progress.update < 20)
    assert agent.steps < 1000
    assert seen[-1].values["return_mean"] > 0
    agent.learn(50)  # and it can go on
    agent.close()


def test_an_agent_says_what_it_is_and_closes_after_a_block(tmp_path):
    with LASER("CartPole-v1", run_dir=tmp_path / "run", **SMALL) as agent:
        assert repr(agent) == "LASER(CartPole-v1, recipe cartpole, 0 steps)"
        assert isinstance(agent.network, nn.Module)
        count = sum(parameter.numel() for parameter in agent.learn("0.1k").network.parameters())
        assert repr(agent) == f"LASER(CartPole-v1, recipe cartpole, {agent.steps} steps, {count} parameters)"
        path = agent.save(tmp_path / "agent.laser")
        with torch.no_grad():
            agent.network.policy_head.bias[1] = 99.0  # the agent's own parameters
        assert agent.predict(np.zeros(4, np.float32))[0] == 1
    assert repr(LASER.load(path)) == repr(agent)
    LASER("CartPole-v1", run_dir=tmp_path / "run", **SMALL).close()  # its lock is free


def test_steps_by_any_name_are_more_steps():
    with LASER("laser/Catch", **SMALL) as agent:
        for number, more in enumerate([{"total_timesteps": 50}, {"steps": "0.05k"}, {"total_timesteps": 5e1}], start=1):
            agent.learn(**more)
            assert 50 * number <= agent.steps < 50 * number + 6


def test_what_a_call_asks_to_be_shown_is_shown_in_that_call(tmp_path, capsys):
    with LASER("laser/Catch", **SMALL) as agent:
        agent.learn(60)
        assert capsys.readouterr().out == ""
        agent.learn(100, verbose=1, tensorboard_log=tmp_path / "board", log_every=20)
        said = capsys.readouterr().out.splitlines()
        assert said[0] == "laser/Catch"
        assert said[-1].startswith(f"step {agent.steps} of 160 (100 %)")
        [events] = (tmp_path / "board").iterdir()
        written = events.stat().st_size
        assert written > 5 * 1000  # rows every 20 steps
        agent.learn(60)
        assert (capsys.readouterr().out, events.stat().st_size) == ("", written)
    sweep = Sweep("laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, evaluate_episodes=2, **SMALL)
    sweep.run("0.1k", progress_bar=True, tensorboard_log=tmp_path / "boards")
    assert "laser/Catch, 2 members" in capsys.readouterr().out
    assert len(list((tmp_path / "boards" / "members").iterdir())) == 2


def test_in_a_notebook_the_table_is_one_output_that_changes(monkeypatch):
    shown, handles = [], []

    class Handle:
        def __init__(self, table):
            self.pages = []
            self.update(table)

        def update(self, table):
            self.pages.append(table._repr_mimebundle_([], []))  # as IPython asks for it

    def display(*objects, display_id=False, **_):
        if not display_id:
            return shown.extend(objects)
        handles.append(Handle(*objects))
        return handles[-1]

    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    with LASER("laser/Catch", **SMALL) as agent:
        agent.learn(200, progress_bar=True, log_every=50)
    [table] = handles
    assert len(table.pages) > 1
    assert "starting" in table.pages[0]["text/plain"]
    assert f"{agent.steps} of 200 (100 %)" in table.pages[-1]["text/plain"]
    assert table.pages[-1]["text/html"].startswith("<pre")


def test_a_run_directory_goes_on(tmp_path):
    one = LASER("CartPole-v1", run_dir=tmp_path / "run", **SMALL).learn(300)
    steps, updates = one.steps, one.member.learner.version
    one.close()
    two = LASER("CartPole-v1", run_dir=tmp_path / "run", **SMALL)
    assert two.member.learner.version == updates
    assert two.steps == steps
    assert len(two.member.replay) > 0
    two.learn(100)
    two.close()
    assert read(tmp_path / "run", ["train"])[-1]["step"] > steps


def test_what_is_no_environment_is_refused():
    with pytest.raises(EnvironmentRefused, match="expected an id, a constructor"):
        LASER(42)


def press(name):
    """A callback that is there when a signal comes."""
    return lambda progress: signal.raise_signal(signal.Signals[name])


@pytest.mark.fault(38)
def test_ctrl_c_saves_and_ends_a_loop_over_seeds(tmp_path):
    begun = []

    def all_seeds():
        for seed in range(3):
            begun.append(LASER("laser/Catch", seed=seed, run_dir=tmp_path / str(seed), log_every_updates=5, **SMALL))
            begun[-1].learn(10_000, callback=press("SIGINT"))

    with pytest.raises(KeyboardInterrupt):
        all_seeds()
    (agent,) = begun
    saved = checkpoint.latest(tmp_path / "0").step
    assert saved == agent.steps > 0
    assert agent.learn(20).steps >= saved + 20  # it is whole, and can go on
    agent.close()


@pytest.mark.fault(38)
def test_ctrl_c_in_a_sweep_saves_and_reaches_the_caller(tmp_path):
    sweep = Sweep("laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, run_dir=tmp_path, log_every_updates=5, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(10_000, callback=press("SIGINT"))
    assert checkpoint.latest(tmp_path).step > 0


@pytest.mark.fault(38)
def test_ctrl_c_leaves_no_temporary_directory_of_a_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sweep = Sweep("laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, log_every_updates=5, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(10_000, callback=press("SIGINT"))
    assert list(tmp_path.iterdir()) == []


def test_a_handler_of_the_users_own_hears_sigterm_after_the_checkpoint(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append((number, checkpoint.latest(tmp_path).step)))
    try:
        agent = LASER("laser/Catch", run_dir=tmp_path, log_every_updates=5, **SMALL)
        agent.learn(10_000, callback=press("SIGTERM"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [(signal.SIGTERM, agent.steps)]
    agent.close()
