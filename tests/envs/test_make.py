import functools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from laser_rl.envs.construct import stored_name
from laser_rl.envs.make import make_environments, make_renderable
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.envs.vector import VectorAdapter
from laser_rl.errors import ConfigError, EnvironmentRefused
from tests.envs.samples import Telltale, processes


@pytest.mark.parametrize(
    ("source", "name", "shape"),
    [
        ("laser/Catch", "laser/Catch", (50,)),
        ("laser/DeepSea-6", "laser/DeepSea-6", (36,)),
        ("laser/TMaze-4", "laser/TMaze-4", (3,)),
        ("CartPole-v1", "CartPole-v1", (4,)),
        ("Pendulum-v1", "Pendulum-v1", (3,)),
        ("MinAtar/Breakout-v1", "MinAtar/Breakout-v1", (4, 10, 10)),
        ("tests.envs.samples:Telltale", "tests.envs.samples:Telltale", (64,)),
        ("gymnasium.envs.classic_control:CartPole-v1", "gymnasium.envs.classic_control:CartPole-v1", (4,)),
        (Telltale, "Telltale", (64,)),
        ("ALE/Pong-v5", "ALE/pong", (1, 84, 84)),
        ("Pong", "ALE/pong", (1, 84, 84)),
    ],
)
def test_every_kind_of_source_makes_environments(source, name, shape):
    envs = make_environments(source, slots=2, seed=1, lockstep=True)
    assert envs.spec.name == name
    assert envs.spec.observation.shape == shape
    rows = envs.reset()
    assert rows.is_first.all()
    low = getattr(envs.spec.action, "low", None)
    action = np.zeros(2, np.int64) if low is None else np.zeros((2, len(low)), np.float32)
    rows = envs.step(np.arange(2), action)
    assert rows.observation.shape == (2, *shape)
    assert rows.observation.dtype == envs.spec.observation.dtype
    envs.close()
    envs.close()


def test_minatar_in_a_process_registers_itself_there():
    envs = make_environments("MinAtar/Freeway-v1", slots=2, seed=1, placement="process", workers=1, lockstep=True)
    twin = make_environments("MinAtar/Freeway-v1", slots=2, seed=1)
    assert isinstance(envs, PoolEnvironments)
    assert isinstance(twin, SerialEnvironments)
    np.testing.assert_array_equal(envs.reset().observation, twin.reset().observation)
    for _ in range(20):
        action = np.array([1, 2])
        np.testing.assert_array_equal(
            envs.step(np.arange(2), action).observation, twin.step(np.arange(2), action).observation
        )
    envs.close()


def test_an_environment_that_exists_has_one_slot():
    envs = make_environments(gymnasium.make("CartPole-v1"), slots=1, seed=1)
    assert envs.reset().observation.shape == (1, 4)
    with pytest.raises(ConfigError, match="expected one slot"):
        make_environments(gymnasium.make("CartPole-v1"), slots=2, seed=1)


def test_a_vector_is_adapted_and_has_its_own_number_of_slots():
    vector = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    assert isinstance(make_environments(vector, slots=3, seed=1), VectorAdapter)
    with pytest.raises(ConfigError, match="vector of 2 environments, got one of 3"):
        make_environments(vector, slots=2, seed=1)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("MinAtar/Brekout-v1", "MinAtar/Breakout-v1"),
        ("laser/DepSea-10", "laser/DeepSea-10"),
    ],
)
def test_a_mistyped_id_is_refused_with_the_nearest_ones(name, near):
    with pytest.raises(EnvironmentRefused, match=near):
        make_environments(name, slots=1, seed=1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such_module:Env", "no_such_module"),
        ("no_such_module:Env-v0", "no_such_module"),
        ("tests.envs.samples:Nothing", "Nothing"),
        ("tests.envs.samples:WIDTH", "to be a class or a function, got int"),
        (3, "got int; e.g. 'CartPole-v1'"),
    ],
)
def test_what_cannot_be_found_is_refused(source, message):
    with pytest.raises(EnvironmentRefused, match=message):
        make_environments(source, slots=1, seed=1)


def test_options_reach_the_environment_or_are_refused():
    envs = make_environments("tests.envs.samples:Telltale", slots=1, seed=1, options={"raise_with": 0.1})
    envs.reset()
    for _ in range(60):
        envs.step(np.array([0]), np.array([0]))
    assert envs.counters()["errors"] > 0
    with pytest.raises(ConfigError, match="options"):
        make_environments("ALE/Pong-v5", slots=1, seed=1, options={"hard": True})
    with pytest.raises(ConfigError, match="at least one"):
        make_environments("CartPole-v1", slots=0, seed=1)


def test_limits_and_policy_reach_the_pool():
    envs = make_environments(
        Telltale,
        slots=4,
        seed=1,
        placement="process",
        workers=2,
        step_timeout_s=3,
        reset_timeout_s=4,
        on_bad_value="drop",
    )
    assert (envs._limits.step_s, envs._limits.reset_s, len(processes(envs))) == (3, 4, 2)
    assert envs._start["on_bad_value"] == "drop"
    envs.close()


@pytest.mark.parametrize("source", ["laser/Catch", "laser/DeepSea-5", "laser/TMaze-5", "MinAtar/Seaquest-v1"])
def test_there_is_something_to_look_at(source):
    env = make_renderable(source)
    trained = make_environments(source, slots=1, seed=3)
    rows = trained.reset()
    observation, _ = env.reset(seed=int(rows.seed[0]))
    stored = observation.transpose(2, 0, 1) if observation.ndim == 3 else observation
    np.testing.assert_array_equal(stored, rows.observation[0])
    frames = []
    for step in range(8):
        frames.append(env.render())
        if env.step(np.int64(step % 2))[2]:
            break
    assert all(frame.dtype == np.uint8 and frame.shape == frames[0].shape and frame.shape[2] == 3 for frame in frames)
    assert any((frame != frames[0]).any() for frame in frames)


def test_what_can_be_made_again_goes_by_a_name_and_its_options():
    assert stored_name(gymnasium.make("CartPole-v1", max_episode_steps=20)) == (
        "CartPole-v1",
        {"max_episode_steps": 20},
    )
    assert stored_name(Telltale) == ("tests.envs.samples:Telltale", {})
    assert stored_name(lambda: None) == (
        "<test_what_can_be_made_again_goes_by_a_name_and_its_options.<locals>.<lambda>>",
        {},
    )
    assert stored_name(gymnasium.wrappers.ClipReward(gymnasium.make("CartPole-v1"), -1, 1))[0].startswith(
        "<CartPole-v1"
    )


def test_a_constructor_is_looked_at_as_it_is():
    make = functools.partial(Telltale)
    assert isinstance(make_renderable(make), Telltale)


def test_importing_the_package_is_cheap_and_registers_nothing():
    program = (
        "import sys, gymnasium; before = set(gymnasium.registry)\n"
        "import laser_rl.envs, laser_rl.envs.make\n"
        "print([name for name in ('torch', 'ale_py', 'minatar', 'cv2') if name in sys.modules], set(gymnasium.registry) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] set()\n"


def missing_package(**options):
    """As gymnasium.make("Ant-v5") without MuJoCo."""
    raise gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`')


def missing_module(**options):
    import no_such_physics.engine  # noqa: F401, PLC0415


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        (missing_package, r'run `pip install "gymnasium\[mujoco\]"`'),
        (missing_module, r"No module named .*; install what is missing \(pip install no_such_physics\)"),
    ],
)
@pytest.mark.parametrize("by", ["id", "name", "constructor"])
@pytest.mark.parametrize("placement", ["thread", "process"])
def test_a_missing_package_is_named_in_one_sentence(entry, advice, by, placement):
    sources = {"id": "Needy-v0", "name": f"tests.envs.test_make:{entry.__name__}", "constructor": entry}
    if by == "id":
        if placement == "process":
            pytest.skip("a worker does not know what this process has registered")
        gymnasium.register("Needy-v0", entry_point=entry)
    try:
        with pytest.raises(EnvironmentRefused, match=f"expected all packages that it needs, got .*{advice}") as error:
            make_environments(sources[by], slots=1, seed=1, placement=placement)
        assert "\n" not in str(error.value)
    finally:
        gymnasium.registry.pop("Needy-v0", None)


class ManyAgents:
    """PettingZoo's interface, of both kinds: spaces are methods, agents have names."""

    def __init__(self):
        self.agents = self.possible_agents = ["red", "blue"]

    def observation_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        return dict.fromkeys(self.agents, 0), {}

    def step(self, actions):
        return {}, {}, {}, {}, {}


@pytest.mark.parametrize("source", [ManyAgents, "tests.envs.test_make:ManyAgents"])
def test_an_environment_of_several_agents_is_refused_as_such(source):
    with pytest.raises(EnvironmentRefused, match=r"multi-agent environments are not supported"):
        make_environments(source, slots=1, seed=1)
