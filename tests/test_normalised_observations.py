"""Normalised observations, as a user switches them on: statistics in every file, one function for acting and playing."""

import gymnasium
import numpy as np
import pytest
import safetensors.torch

from laser_rl import LASER, cli
from laser_rl.errors import ConfigError

SMALL = {"normalise_observation": True, "hidden": (8,), "unroll_steps": 5, "seed": 1, "schedule": "constant"}
SEEN = []


class Gauges(gymnasium.Env):
    """Three numbers in very different units, one of them constant; remembers all that it has shown."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def _show(self):
        noise = self.np_random.standard_normal(2)
        seen = np.array([1000 + 30 * noise[0], 0.001 * noise[1], 5.0], np.float32)
        SEEN.append(seen)
        return seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 7
        return self._show(), {}

    def step(self, action):
        self._left -= 1
        return self._show(), float(action), self._left == 0, False, {}


def statistics(path):
    tensors = safetensors.torch.load_file(path)
    return [tensors[f"normaliser.{name}"].numpy() for name in ("number", "mean", "spread")]


def test_a_saved_agent_has_the_statistics_of_every_row_that_it_learned_from(tmp_path):
    SEEN.clear()
    agent = LASER(Gauges, recipe="cartpole", slots=1, **SMALL).learn(300)
    count, mean, spread = statistics(agent.save(tmp_path / "agent.laser"))
    rows = np.array(SEEN[: int(count)], np.float64)
    assert 200 < count <= len(SEEN)
    assert count % 5 == 0  # whole unrolls, none of their rows twice
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(spread / count, rows.var(0), rtol=1e-9, atol=1e-12)
    other = LASER.load(tmp_path / "agent.laser", Gauges)
    assert [agent.predict(row)[0] for row in SEEN[:50]] == [other.predict(row)[0] for row in SEEN[:50]]
    agent.close()
    other.close()


def test_going_on_is_as_if_it_had_never_stopped(tmp_path):
    whole = LASER("CartPole-v1", recipe="cartpole", **SMALL).learn(400)
    LASER("CartPole-v1", recipe="cartpole", run_dir=tmp_path / "run", **SMALL).learn(200, total=400).close()
    second = LASER("CartPole-v1", recipe="cartpole", run_dir=tmp_path / "run", **SMALL)
    assert second.member.learner.version > 0
    second.learn(400 - second.steps)
    files = [agent.save(tmp_path / name) for name, agent in {"whole": whole, "second": second}.items()]
    for one, other in zip(*map(statistics, files), strict=True):
        assert np.array_equal(one, other)
    whole.close()
    second.close()


def test_an_actor_beside_the_learner_gets_the_statistics():
    agent = LASER("CartPole-v1", recipe="cartpole", runtime="local", **SMALL).learn(400)
    acting, learning = agent.member.acting.normaliser, agent.member.learner.network.normaliser
    assert acting is not learning
    assert (acting.scale != 1).all()
    np.testing.assert_allclose(acting.scale, learning.scale, rtol=0.5)  # at most a few updates behind
    agent.close()


def test_members_have_statistics_of_their_own_on_the_command_line_and_evaluate_and_export_know_them(tmp_path, capsys):
    words = "--recipe cartpole --env CartPole-v1 --network.normalise-observation --network.hidden 8 --steps 300 --plain"
    grid = ["--grid", "learning_rate=1e-3,2e-3", "--run.evaluate-episodes", "1", "--out", str(tmp_path / "sweep")]
    assert cli.main(["sweep", *words.split(), *grid]) == 0
    found = sorted((tmp_path / "sweep" / "checkpoints").glob("*/member-*.safetensors"))[-2:]
    one, other = (safetensors.torch.load_file(path)["network/normaliser.mean"] for path in found)
    assert not np.allclose(one, other)
    assert cli.main(["evaluate", str(tmp_path / "sweep"), "--member", "1", "--episodes", "2"]) == 0
    pytest.importorskip("onnxscript")
    assert cli.main(["export", str(tmp_path / "sweep"), "--member", "1", "--onnx", str(tmp_path / "policy.onnx")]) == 0
    assert "same actions" in capsys.readouterr().out


class Pixels(Gauges):
    """The same as a picture."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def _show(self):
        return self.observation_space.sample()


def test_pictures_are_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"normalise_observation is for vectors.*pictures.*leave it out"):
        LASER(Pixels, recipe="cartpole", **SMALL).learn(1)
