"""Every kind of environment that can be handed in, with every method; what the user made stays the user's."""

import functools
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

import laser_rl
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


class Native(VectorEnv):
    """A vector of one's own: all slots are stepped by one line of numpy, and an episode begins with the step after its end."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, count=2):
        self.num_envs = count
        self.single_observation_space, self.single_action_space = Bare.observation_space, Bare.action_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)

    def reset(self, *, seed=None, options=None):
        self.t = np.zeros(self.num_envs, np.int64)
        return self._seen(), {}

    def step(self, actions):
        again = self.t == 7
        self.t = np.where(again, 0, self.t + 1)
        ended = self.t == 7
        return self._seen(), np.where(again, 0.0, actions), ended, np.zeros_like(ended), {}

    def _seen(self):
        return np.repeat(self.t[:, None] / 10, 4, axis=1).astype(np.float32)


def make_vec(mode=None):
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode)


# What the user hands in, and the name that files have for it; None where no name can make it again.
SOURCES = {
    "id": (lambda: "CartPole-v1", "CartPole-v1"),
    "class": (lambda: Bare, "tests.test_sources:Bare"),
    "instance": (cartpole, "CartPole-v1"),
    "lambda": (lambda: lambda: gymnasium.make("CartPole-v1"), None),
    "SyncVectorEnv": (lambda: SyncVectorEnv([cartpole] * 2), "CartPole-v1"),
    "AsyncVectorEnv": (lambda: AsyncVectorEnv([cartpole] * 2), "CartPole-v1"),
    "make_vec": (make_vec, "CartPole-v1"),
    "native VectorEnv": (Native, None),
    # More of the same kinds.
    "function": (lambda: cartpole, "tests.test_sources:cartpole"),
    "partial": (lambda: functools.partial(gymnasium.make, "CartPole-v1"), None),
    "bare instance": (Bare, "tests.test_sources:Bare"),
    "wrapped": (lambda: gymnasium.wrappers.RecordEpisodeStatistics(cartpole()), None),
    "wrapped by the user": (lambda: Unknown(cartpole()), None),
    "make_vec async": (lambda: make_vec("async"), "CartPole-v1"),
    "make_vec native": (lambda: make_vec("vector_entry_point"), "CartPole-v1"),
    "wrapped vector": (lambda: gymnasium.wrappers.vector.RecordEpisodeStatistics(make_vec("sync")), None),
    **{
        f"{kind.__name__} {mode.name}": (functools.partial(kind, [cartpole] * 2, autoreset_mode=mode), "CartPole-v1")
        for kind in (SyncVectorEnv, AsyncVectorEnv)
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
    },
}


class Handed(NamedTuple):
    source: object
    name: str | None
    agent: LASER
    folder: Path

    @property
    def named(self):
        """Whether files hold a name that makes the environment again."""
        return self.name is not None


@pytest.fixture(scope="module", params=SOURCES)
def handed_in(request, tmp_path_factory):
    make, name = SOURCES[request.param]
    source = make()
    agent = LASER(source, **SMALL).learn(60)
    yield Handed(source, name, agent, tmp_path_factory.mktemp("agent"))
    agent.close()
    still_open(source)
    if isinstance(source, gymnasium.Env | VectorEnv):
        source.close()


def still_open(source):
    """What the user made can be used as if nothing had been."""
    if isinstance(source, VectorEnv):
        assert not getattr(source.unwrapped, "closed", False)
        observation, _ = source.reset(seed=3)
        source.step(source.action_space.sample())
        assert observation.shape == (2, 4)
    elif isinstance(source, gymnasium.Env):
        source.reset(seed=3)
        source.step(source.action_space.sample())


def learns(one):
    before = one.agent.steps
    assert one.agent.learn(40) is one.agent
    assert before + 40 <= one.agent.steps < before + 60


def predicts_one(one):
    action, state = one.agent.predict(OBSERVATION, deterministic=True)
    assert action in {0, 1}
    assert one.agent.predict(OBSERVATION, state, deterministic=True)[0] == action
    assert {int(one.agent.predict(OBSERVATION, state)[0]) for _ in range(60)} == {0, 1}


def predicts_a_batch(one):
    batch = np.stack([OBSERVATION, -OBSERVATION, OBSERVATION * 9])
    actions, state = one.agent.predict(batch, deterministic=True)
    assert list(actions) == [one.agent.predict(row, deterministic=True)[0] for row in batch]
    again, _ = one.agent.predict(batch[::-1], state, reward=[1.0, 2.0, 3.0], deterministic=True)
    assert list(again) == list(actions)[::-1]


def evaluates(one):
    assert one.agent.evaluate(3).episodes == 3
    assert one.agent.evaluate(3, seed=5) == one.agent.evaluate(3, seed=5)


def saves(one):
    small, whole = (one.agent.save(one.folder / f"{replay}.laser", replay=replay) for replay in (False, True))
    assert small.stat().st_size < whole.stat().st_size
    stored = one.agent.config.environment.id
    assert stored == one.name or (not one.named and stored.startswith("<"))


def loads_and_predicts(one):
    path = one.agent.save(one.folder / "agent.laser")
    known, played = one.agent.predict(OBSERVATION, deterministic=True)[0], one.agent.evaluate(2, seed=1)
    with LASER.load(path, env=one.source, device="cpu") as other:
        assert other.predict(OBSERVATION, deterministic=True)[0] == known
        assert other.evaluate(2, seed=1) == played
    alone = LASER.load(path, trust_code=True)
    assert alone.predict(OBSERVATION, deterministic=True)[0] == known
    if one.named:
        assert alone.evaluate(1).episodes == 1
    else:
        with pytest.raises(UserError, match="which no name can make again; pass it"):
            alone.evaluate(1)
    if ":" in (one.name or ""):
        with pytest.raises(ConfigError, match="names the code"):
            LASER.load(path).evaluate(1)


def loads_and_learns(one):
    path, steps = one.agent.save(one.folder / "whole.laser", replay=True), one.agent.steps
    with LASER.load(path, env=one.source) as other:
        assert other.learn(20).steps >= steps + 20
    if one.named:
        with LASER.load(path, trust_code=True) as other:
            assert other.learn(20).steps >= steps + 20
    path = one.agent.save(one.folder / "small.laser")
    with pytest.raises(ConfigError, match=r"replay=True\), or train with run_dir=.* warm_start=True"):
        LASER.load(path, env=one.source).learn(20)
    with LASER.load(path, env=one.source, warm_start=True) as other:
        assert other.learn(20).steps >= steps + 20


METHODS = [learns, predicts_one, predicts_a_batch, evaluates, saves, loads_and_predicts, loads_and_learns]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_every_source_with_every_method(handed_in, method):
    method(handed_in)


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


@pytest.mark.parametrize("kind", SPACES)
def test_a_batch_is_acted_on_as_its_observations_one_by_one(kind):
    """As a vector environment returns it, which takes the actions as they are."""
    made, picture = functools.partial(Seen, *SPACES[kind]), kind in {"picture", "bits"}
    settings = {"frame_stack": 3} if kind == "picture" else {"memory": "gru", "memory_size": 8}
    agent = LASER(made, recipe="minatar" if picture else "cartpole", slots=2, capacity_steps=500, **settings)
    vector = SyncVectorEnv([made] * 3)
    seen, _ = vector.reset(seed=[1, 2, 3])
    state, starts, ended, reward, alone = None, np.ones(3, bool), np.zeros(3, bool), np.zeros(3), [None] * 3
    for _ in range(9):  # the vector begins new episodes by itself, in the step after an end
        actions, state = agent.predict(seen, state, reward=reward, episode_start=starts, deterministic=True)
        for row, item in enumerate(iterate(vector.observation_space, seen)):
            before = None if starts[row] else alone[row]
            action, alone[row] = agent.predict(item, before, reward=float(reward[row]), deterministic=True)
            assert np.allclose(action, actions[row], atol=1e-5)
            assert np.allclose(alone[row].memory[0], state.memory[row], atol=1e-6)
            assert np.array_equal(alone[row].frames[0], state.frames[row])
        seen, reward, terminated, truncated, _ = vector.step(actions)
        starts, ended = ended, terminated | truncated
    agent.close()


def test_a_saved_agent_with_its_replay_goes_on_bit_for_bit(tmp_path):
    settings = {**SMALL, "schedule": "constant", "slots": 2}
    agent = LASER("CartPole-v1", **settings).learn(200)
    path = agent.save(tmp_path / "agent.laser", replay=True)
    with LASER.load(path) as other, LASER("CartPole-v1", **settings) as third:
        agent.save(tmp_path / "agent.laser")  # another file of the same name does not matter any more
        ends = [parameters(one) for one in (agent.learn(150), other.learn(150), third.learn(other.steps))]
        assert agent.steps == other.steps == third.steps
        for own, loaded, whole in zip(*ends, strict=True):
            assert np.array_equal(own, loaded)
            assert np.array_equal(own, whole)
    agent.close()
    assert [file.name for file in tmp_path.iterdir()] == ["agent.laser"]


def parameters(agent):
    return [parameter.detach().numpy().copy() for parameter in agent.network.parameters()]


@pytest.mark.fault(38)
def test_a_damaged_part_of_a_saved_replay_is_one_sentence(tmp_path):
    agent = LASER("CartPole-v1", **SMALL).learn(60)
    path = agent.save(tmp_path / "agent.laser", replay=True)
    agent.close()
    data, place = path.read_bytes(), path.read_bytes().index(b'"next_evaluation"')
    path.write_bytes(data[:place] + b"X" + data[place + 1 :])
    other = LASER.load(path)
    assert other.predict(OBSERVATION)[0] in {0, 1}
    with pytest.raises(UserError, match=r"cannot go on learning.*SHA-256.*warm_start=True") as refused:
        other.learn(20)
    assert "\n" not in str(refused.value)
    path.write_bytes(data.replace(b"run/replay/segment", b"run/../..//segment"))
    with pytest.raises(ConfigError, match=r"holds 'run/\.\./\.\.//segment"):
        LASER.load(path).learn(20)


def test_weights_alone_are_a_warm_start(tmp_path):
    agent = LASER("CartPole-v1", slots=2, **SMALL).learn(200)
    path, steps, weights = agent.save(tmp_path / "agent.laser"), agent.steps, parameters(agent)
    agent.close()
    with LASER.load(path, warm_start=True) as other:
        assert other.steps == steps
        assert all(map(np.array_equal, weights, parameters(other)))
        other.learn(50)
        assert steps + 50 <= other.steps < steps + 60


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
    "learn()": lambda agent, _: agent.learn(),
    "learn(steps twice)": lambda agent, _: agent.learn(10, total_timesteps=10),
    "learn('1.5')": lambda agent, _: agent.learn("1.5"),
    "learn(callback)": lambda agent, _: agent.learn(10, callback=[3]),
    "learn(log_every)": lambda agent, _: agent.learn(10, log_every=0),
    "learn(verbose)": lambda agent, _: agent.learn(10, verbose="loud"),
    "learn(progress_bar)": lambda agent, _: agent.learn(10, progress_bar=7),
    "learn(tensorboard_log)": lambda agent, _: agent.learn(10, tensorboard_log="/dev/null/board"),
    "evaluate(0)": lambda agent, _: agent.evaluate(episodes=0),
    "evaluate(2.5)": lambda agent, _: agent.evaluate(2.5),
    "evaluate(seed)": lambda agent, _: agent.evaluate(1, seed=-1),
    "shape": lambda agent, _: agent.predict(np.zeros(3, np.float32)),
    "empty batch": lambda agent, _: agent.predict(np.zeros((0, 4), np.float32)),
    "batch of batches": lambda agent, _: agent.predict(np.zeros((2, 2, 4), np.float32)),
    "rewards": lambda agent, _: agent.predict(np.zeros((2, 4), np.float32), reward=[0.0] * 3),
    "start": lambda agent, _: agent.predict(OBSERVATION, episode_start="yes"),
    "another batch's state": lambda agent, _: agent.predict(OBSERVATION, agent.predict([OBSERVATION] * 2)[1]),
    "text": lambda agent, _: agent.predict("hello"),
    "objects": lambda agent, _: agent.predict(np.array([None] * 4)),
    "none": lambda agent, _: agent.predict(None),
    "dict": lambda agent, _: agent.predict({"a": 1}),
    "nan": lambda agent, _: agent.predict(np.full(4, np.nan)),
    "reward": lambda agent, _: agent.predict(OBSERVATION, reward=float("inf")),
    "state": lambda agent, _: agent.predict(OBSERVATION, 3),
    "folder": lambda agent, path: agent.save(path / "missing" / "agent.laser"),
    "a folder": lambda agent, path: agent.save(path),
    "save(3)": lambda agent, _: agent.save(3),
    "load(3)": lambda agent, _: LASER.load(3),
    "load_from_hub(3)": lambda agent, _: laser_rl.load_from_hub(3),
    "load_from_hub(nowhere)": lambda agent, path: laser_rl.load_from_hub(path / "nowhere"),
    "load_from_hub(other)": lambda agent, path: laser_rl.load_from_hub(path),
    "goal": lambda agent, _: laser_rl.StopAtReturn("high"),
    "patience": lambda agent, _: laser_rl.StopWithoutImprovement(0),
    "every": lambda agent, _: laser_rl.EvaluateEvery(-5),
    "best": lambda agent, path: laser_rl.EvaluateEvery(5, best=path / "missing" / "best.laser"),
    "save every": lambda agent, path: laser_rl.SaveEvery(5, 3),
    "trust": lambda agent, _: LASER("CartPole-v1", trust="near"),
    "schedule": lambda agent, _: LASER("CartPole-v1", schedule="cosine"),
    "devices": lambda agent, _: LASER("laser/Catch", schedule=lambda remaining: remaining, devices=2).learn(10),
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
