"""Every kind of environment that can be handed in, with every method; what the user made stays the user's."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from laser_rl import LASER
from laser_rl.cli import main
from laser_rl.errors import ConfigError, UserError
from laser_rl.training.files import read_sweep
from tests.agent.unroll_witness import UnrollWitness
from tests.envs.samples import Telltale

SMALL = {"hidden": (16,), "unroll_steps": 5, "capacity_steps": 500, "seed": 2}
OBSERVATION = np.array([0.1, -0.2, 0.3, -0.4], np.float32)


def cartpole():
    return gymnasium.make("CartPole-v1")


class Unknown(gymnasium.Wrapper):
    """Gymnasium cannot make it again: it does not record its arguments."""


class Bare(gymnasium.Env):
    """Neither registered nor made by Gymnasium."""

    observation_space, action_space = spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(4, self.t / 10, np.float32), float(action), self.t == 7, False, {}


def make_vec(mode):
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode)


SOURCES = {
    "id": (lambda: "CartPole-v1", "CartPole-v1"),
    "function": (lambda: cartpole, "tests.test_sources:cartpole"),
    "lambda": (lambda: lambda: gymnasium.make("CartPole-v1"), None),
    "partial": (lambda: functools.partial(gymnasium.make, "CartPole-v1"), None),
    "class": (lambda: Bare, "tests.test_sources:Bare"),
    "instance": (cartpole, "CartPole-v1"),
    "bare instance": (Bare, "tests.test_sources:Bare"),
    "wrapped": (lambda: gymnasium.wrappers.RecordEpisodeStatistics(cartpole()), None),
    "wrapped by the user": (lambda: Unknown(cartpole()), None),
    "make_vec sync": (lambda: make_vec("sync"), "CartPole-v1"),
    "make_vec async": (lambda: make_vec("async"), "CartPole-v1"),
    "make_vec native": (lambda: make_vec("vector_entry_point"), "CartPole-v1"),
    "wrapped vector": (lambda: gymnasium.wrappers.vector.RecordEpisodeStatistics(make_vec("sync")), None),
    **{
        f"{kind.__name__} {mode.name}": (
            functools.partial(kind, [cartpole] * 2, autoreset_mode=mode),
            "CartPole-v1",
        )
        for kind in (SyncVectorEnv, AsyncVectorEnv)
        for mode in AutoresetMode
    },
}


@pytest.fixture(params=SOURCES)
def handed_in(request):
    make, name = SOURCES[request.param]
    source = make()
    yield source, name
    if not isinstance(source, str) and not callable(source):
        source.close()


def still_open(source):
    """What the user made can be used as if nothing had been."""
    if isinstance(source, gymnasium.vector.VectorEnv):
        assert not source.unwrapped.closed
        observation, _ = source.reset(seed=3)
        source.step(source.action_space.sample())
        assert observation.shape == (2, 4)
    elif isinstance(source, gymnasium.Env):
        source.reset(seed=3)
        source.step(source.action_space.sample())


def test_every_source_with_every_method(handed_in, tmp_path):
    source, name = handed_in
    agent = LASER(source, **SMALL).learn(60)
    action, state = agent.predict(OBSERVATION)
    assert action in {0, 1}
    assert agent.predict(OBSERVATION, state, deterministic=False)[0] in {0, 1}
    assert agent.evaluate(3).episodes == 3
    before = agent.steps
    agent.learn(40)
    assert agent.steps >= before + 40
    assert agent.evaluate(3, seed=5) == agent.evaluate(3, seed=5)
    path = agent.save(tmp_path / "agent.laser")
    assert agent.config.environment.id == name or (name is None and agent.config.environment.id.startswith("<"))
    known = agent.predict(OBSERVATION)[0]
    played = agent.evaluate(2, seed=1)
    agent.close()
    assert agent.predict(OBSERVATION)[0] == known
    still_open(source)
    other = LASER.load(path, env=source)
    assert other.predict(OBSERVATION)[0] == known
    assert other.evaluate(2, seed=1) == played
    other.close()
    still_open(source)
    alone = LASER.load(path, trust_code=True)
    assert alone.predict(OBSERVATION)[0] == known
    if name is None:
        with pytest.raises(UserError, match="which no name can make again; pass it"):
            alone.evaluate(1)
    else:
        assert alone.evaluate(1).episodes == 1
    with pytest.raises(ConfigError, match="names the code") if ":" in (name or "") else pytest.raises(UserError):
        LASER.load(path).evaluate(1 if name is None or ":" in name else 0)


class Seedless(Telltale):
    """Vectors that reset by themselves do so without a seed."""

    def reset(self, *, seed=None, options=None):
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        return super().reset(seed=seed)


@pytest.mark.parametrize("mode", [*AutoresetMode, None], ids=str)
def test_after_an_evaluation_in_the_environment_itself_no_episode_is_mixed_up(mode):
    """The environment's rows name their episode, so a transition from one episode into another one shows."""
    source = Seedless() if mode is None else SyncVectorEnv([Seedless] * 2, autoreset_mode=mode)
    agent = LASER(source, **SMALL, evaluate_every_steps=37, evaluate_episodes=2)
    for _ in range(4):
        agent.learn(73).evaluate(3)
    replay, witness = agent.member.replay, UnrollWitness()
    witness.hear(replay.export(np.arange(replay.first_id, replay.next_id)), contiguous=False)
    assert witness.unrolls > 30
    assert witness.ends > 5
    agent.close()


def test_threads_wait_while_a_vector_is_evaluated():
    source = SyncVectorEnv([Seedless] * 2)
    agent = LASER(source, **SMALL, runtime="local", evaluate_every_steps=50, evaluate_episodes=2).learn(600)
    replay, witness = agent.member.replay, UnrollWitness()
    witness.hear(replay.export(np.arange(replay.first_id, replay.next_id)), contiguous=False)
    assert witness.unrolls > 50
    agent.close()


def test_options_of_an_instance_are_stored_and_used_again(tmp_path):
    agent = LASER(gymnasium.make("CartPole-v1", max_episode_steps=9), **SMALL)
    environment = agent.config.environment
    assert (environment.id, environment.options) == ("CartPole-v1", {"max_episode_steps": 9})
    result = LASER.load(agent.save(tmp_path / "agent.laser")).evaluate(5)
    assert max(result.returns) <= 9


def test_a_run_of_a_class_can_be_evaluated_by_its_stored_name(tmp_path):
    agent = LASER(Bare, run_dir=tmp_path / "run", **SMALL).learn(60)
    agent.close()
    assert read_sweep(tmp_path / "run").base.environment.id == "tests.test_sources:Bare"
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--trust-code"]) == 0
    again = LASER(Bare, run_dir=tmp_path / "run", **SMALL)
    assert again.member.learner.version > 0
    assert again.steps >= 60
    again.close()


class Seen(gymnasium.Env):
    """Any spaces; what is done is looked at."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 6, False, {}


BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = {
    "start": (BOX, spaces.Discrete(3, start=-7)),
    "several": (BOX, spaces.MultiDiscrete([2, 4])),
    "binary": (BOX, spaces.MultiBinary(3)),
    "real": (BOX, spaces.Box(np.array([-1.0, -2.0]), np.array([0.5, 3.0]), dtype=np.float64)),
    "one of many": (spaces.Discrete(5, start=2), spaces.Discrete(2)),
    "parts": (
        spaces.Dict({"b": BOX, "a": spaces.Discrete(3), "c": spaces.Tuple([BOX, spaces.MultiBinary(2)])}),
        spaces.Discrete(2),
    ),
    "picture": (spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Discrete(4)),
    "bits": (spaces.Box(0, 1, (10, 10, 4), bool), spaces.Discrete(4)),
    "uneven": (spaces.Box(np.arange(3, dtype=np.float32) - 9, np.arange(3, dtype=np.float32) + 9), spaces.Discrete(2)),
}


@pytest.mark.parametrize("kind", SPACES)
def test_a_loaded_agent_acts_without_its_environment(kind, tmp_path):
    made = functools.partial(Seen, *SPACES[kind])
    stack = {"frame_stack": 3} if kind == "picture" else {}
    agent = LASER(
        made,
        recipe="minatar" if kind in {"picture", "bits"} else None,
        slots=2,
        unroll_steps=5,
        capacity_steps=500,
        warmup_steps=0,
        **stack,
    )
    agent.learn(30)
    other = LASER.load(agent.save(tmp_path / "agent.laser"))
    third = LASER.load(other.save(tmp_path / "again.laser"))
    env, states = made(), [None, None, None]
    observation, _ = env.reset(seed=1)
    for _ in range(5):
        actions = []
        for number, one in enumerate((agent, other, third)):
            action, states[number] = one.predict(observation, states[number], reward=0.5)
            actions.append(action)
        assert env.action_space.contains(actions[0])
        assert np.array_equal(actions[0], actions[1])
        assert np.array_equal(actions[0], actions[2])
        observation, *_ = env.step(actions[0])
    assert third.steps == agent.steps
    agent.close()


def test_a_loaded_agent_learns_on_only_if_that_is_said(tmp_path):
    agent = LASER("CartPole-v1", slots=2, **SMALL).learn(200)
    path, steps = agent.save(tmp_path / "agent.laser"), agent.steps
    weights = [parameter.detach().clone() for parameter in agent.member.learner.network.parameters()]
    agent.close()
    with pytest.raises(ConfigError, match=r"neither its optimiser nor its replay.* run_dir=.* warm_start=True"):
        LASER.load(path).learn(50)
    other = LASER.load(path, warm_start=True)
    assert other.steps == steps
    loaded = list(other.member.learner.network.parameters())
    assert all(bool((ours == theirs).all()) for ours, theirs in zip(weights, loaded, strict=True))
    other.learn(50)
    assert steps + 50 <= other.steps < steps + 60
    other.close()


@pytest.fixture(scope="module")
def agent():
    agent = LASER("CartPole-v1", slots=2, **SMALL)
    yield agent
    agent.close()


MISTAKES = {
    "learn(-1)": lambda agent, _: agent.learn(-1),
    "learn(nan)": lambda agent, _: agent.learn(float("nan")),
    "learn('x')": lambda agent, _: agent.learn("x"),
    "learn(None)": lambda agent, _: agent.learn(None),
    "learn(total)": lambda agent, _: agent.learn(10, total=-3),
    "evaluate(0)": lambda agent, _: agent.evaluate(episodes=0),
    "evaluate(2.5)": lambda agent, _: agent.evaluate(2.5),
    "evaluate(seed)": lambda agent, _: agent.evaluate(1, seed=-1),
    "shape": lambda agent, _: agent.predict(np.zeros(3, np.float32)),
    "batch": lambda agent, _: agent.predict(np.zeros((2, 4), np.float32)),
    "text": lambda agent, _: agent.predict("hello"),
    "objects": lambda agent, _: agent.predict(np.array([None] * 4)),
    "none": lambda agent, _: agent.predict(None),
    "dict": lambda agent, _: agent.predict({"a": 1}),
    "nan": lambda agent, _: agent.predict(np.full(4, np.nan)),
    "reward": lambda agent, _: agent.predict(OBSERVATION, reward=float("inf")),
    "state": lambda agent, _: agent.predict(OBSERVATION, 3),
    "folder": lambda agent, path: agent.save(path / "missing" / "agent.laser"),
    "a folder": lambda agent, path: agent.save(path),
}


@pytest.mark.fault(38)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_argument_is_one_sentence(mistake, agent, tmp_path):
    with pytest.raises(ConfigError) as refused:
        MISTAKES[mistake](agent, tmp_path)
    assert "\n" not in str(refused.value)
    assert "expected" in str(refused.value) or "choose another" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_meant_are_taken(agent):
    assert agent.predict([0.0, 0.0, 0.0, 0.0])[0] in {0, 1}
    assert agent.predict(np.zeros(4, np.float64), reward=np.float32(1))[0] in {0, 1}
    assert agent.evaluate(np.int64(1)).episodes == 1
