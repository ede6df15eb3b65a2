"""Every example runs and says something true; the single-file one computes what the package computes."""

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from laser_rl import LASER
from laser_rl.agent.loss import laser_loss
from laser_rl.config import LossConfig
from laser_rl.networks.agent_network import Output
from laser_rl.ops.distributions import Categorical
from laser_rl.training.member_training import Progress
from laser_rl.types import Batch

EXAMPLES = Path(__file__).parents[1] / "examples"
# Lines, at most. The tabular one explains a figure of the README and is longer.
MOST_LINES = {"theory": 300, "single_file_laser": 300, "shared_replay": 150}


def output_of(name, *arguments, timeout=240):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def load(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def numbers(pattern, text):
    found = [tuple(map(float, match.groups())) for match in re.finditer(pattern, text, re.MULTILINE)]
    assert found, text
    return found


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES.get(path.stem, 60)


def test_own_environment_and_network():
    out = output_of("own_environment_and_network", 4000)
    [(mean,)] = numbers(r"mean return of 100 episodes: (-?\d+\.\d+)", out)
    assert 0.62 < mean < 0.85  # always the same way round: 0.6; the shortest way: 0.77 in expectation
    *before, (walker, door) = numbers(r"walker in cell (\d+), door in cell (\d+)", out)
    assert abs(walker - door) in {1, 7}  # the last step leads through the door
    assert len(before) < 49


@pytest.mark.slow
def test_memory():
    out = output_of("memory", 6_000)
    found = numbers(r"laser/TMaze-(\d+): mean return (-?\d+\.\d+) in (\d+) episodes", out)
    assert [(length, episodes) for length, _, episodes in found] == [(2, 20), (5, 20), (15, 20)]
    assert all(-1 <= mean <= 1 for _, mean, _ in found)


@pytest.mark.slow
def test_memory_learns():
    assert (
        min(
            mean
            for _, mean, _ in numbers(
                r"laser/TMaze-(\d+): mean return (-?\d+\.\d+) in (\d+)", output_of("memory", 100_000)
            )
        )
        > 0.9
    )


def test_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = output_of("sweep", 20_000)
    shared, separate = out.split("a replay each:")
    means = [
        [mean for _, mean in numbers(r"member \d, learning rate ([\d.]+): mean return (-?[\d.]+)", part)]
        for part in (shared, separate)
    ]
    assert min(means[0]) > 0.9  # all of those who share have found it
    assert min(means[1]) < 0.5 < max(means[1])  # of the others not all
    [(again,)] = numbers(r"from its file: (-?[\d.]+)", out)
    assert again == max(means[1])


def test_callbacks():
    out = output_of("callbacks", "--goal", 40)
    curve = numbers(r"step +(\d+)  mean return +([\d.]+)", out)
    steps, means = zip(*curve, strict=True)
    assert all(mean < 40 for mean in means[:-1])
    assert means[-1] >= 40  # the run ended at the first such row
    [(goal, within)] = numbers(r"^reached (\d+) within (\d+) steps", out)
    assert (goal, within) == (40, steps[-1])
    [(balanced,)] = numbers(r"balances for (\d+) steps", out)
    assert 25 < balanced <= 500  # random actions: about 22


def test_the_callback_counts_training_rows_only(capsys):
    until = load("callbacks").Until(goal=10.0)
    assert until(Progress(1, 1, "train", {}))
    assert until(Progress(2, 1, "evaluation", {"mean": 99.0}))
    assert until(Progress(3, 1, "train", {"return_mean": 9.0, "acceptance": 1.0}))
    assert not until(Progress(4, 1, "train", {"return_mean": 10.0, "acceptance": 0.5}))
    assert until.curve == [(3, 9.0), (4, 10.0)]
    assert "trusted  50%" in capsys.readouterr().out


@pytest.mark.slow
def test_continuous_actions():
    out = output_of("continuous_actions", "--steps", 2000, "--stretches", 2)
    assert "policy: DiagonalGaussian(low=(-2.0,), high=(2.0,)" in out
    stretches = numbers(r"step +(\d+): mean (-?\d+), 95 % interval (-?\d+) to (-?\d+)", out)
    assert [step // 1000 for step, *_ in stretches] == [1, 2]
    for _, mean, low, high in stretches:
        assert -3300 < low <= mean <= high < 0  # 200 steps at worst cost 200 · 16.3


@pytest.mark.slow
def test_shared_replay():
    [(own, shared)] = numbers(r"own replay (\d) of 3 members, one for all (\d) of 3", output_of("shared_replay"))
    assert shared >= own


def test_shared_replay_counts_treasures(monkeypatch):
    example = load("shared_replay")
    monkeypatch.setattr(example, "UPDATES", 10)
    monkeypatch.setattr(example, "SIZE", 2)  # a treasure every fourth episode, at random
    curves, accepted = example.run(shared=True, seed=0)
    assert curves.shape == (3, example.STRETCHES)
    assert (curves > 0.05).all()
    assert (curves <= 1).all()
    assert (accepted > 0.5).all()


def test_single_file_laser_learns_cartpole():
    out = output_of("single_file_laser", "--steps", 4000, "--seed", 1)
    curve = numbers(r"step +(\d+)  update +(\d+)  return of the last episodes +([\d.]+)", out)
    step, update, mean = curve[-1]
    assert 4000 <= step < 4080
    assert 0 < 20 * update - step < 0.1 * step  # an update for each unroll of 20 rows, a few of which are resets
    assert mean > 60  # random actions: about 22


def test_single_file_laser_needs_nothing_of_the_package():
    imported = set()
    for node in ast.walk(ast.parse((EXAMPLES / "single_file_laser.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names == {"gymnasium", "numpy", "torch"}


def random_batch(seed, steps=9, columns=6, actions=3):
    """The package's batch of random unrolls, and parameters: near the behaviour in some rows, far away in others."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    chance = lambda share: torch.rand(steps, columns, generator=generator) < share  # noqa: E731
    behaviour = normal(steps, columns, actions)
    spread = normal(steps, columns, 1).exp()  # of the distance between the two policies
    logits = torch.cat([behaviour + 0.5 * spread * normal(steps, columns, actions), normal(1, columns, actions)])
    empty = torch.zeros(columns, dtype=torch.int64)
    is_transition = chance(0.9)
    batch = Batch(
        observation=normal(steps + 1, columns, 1),
        is_first=torch.zeros(steps + 1, columns, dtype=torch.bool),
        last_action=torch.zeros(steps + 1, columns, dtype=torch.int64),
        last_reward=normal(steps + 1, columns),
        action=torch.randint(actions, (steps, columns), generator=generator),
        reward=normal(steps, columns),
        terminated=chance(0.2) & is_transition,
        truncated=chance(0.1) & is_transition,
        lost_life=chance(0.1) & is_transition,
        is_transition=is_transition,
        behaviour=behaviour,
        member=empty,
        slot=empty,
        task=empty,
        state=torch.zeros(columns, 0),
        carried=torch.zeros(columns, dtype=torch.bool),
        weight=torch.ones(columns),
        id=empty,
        episode=empty,
        seed=empty,
        version=empty,
        online=torch.arange(columns) < 2,
    )
    return batch, logits, normal(steps + 1, columns)


@pytest.mark.parametrize("seed", range(20))
def test_single_file_laser_computes_the_same_loss(seed):
    example = load("single_file_laser")
    batch, logits, value = random_batch(seed)
    # γ is a sum of powers of 2, so that it does not matter who keeps it in float32.
    same = {"discount": 0.875, "trust_bound": 0.03125, "baseline_cost": 0.5, "entropy_cost": 0.03, "reward_scale": 0.25}

    ours = [logits.clone().requires_grad_(), value.clone().requires_grad_()]
    hyper, bound = LossConfig(**same), torch.tensor(0.03125, dtype=torch.float64)
    loss = laser_loss(Categorical(logits.shape[-1]), Output(*ours), batch, hyper, bound)

    theirs = [logits.clone().requires_grad_(), value.clone().requires_grad_()]
    unrolls = example.Unrolls(*(getattr(batch, name) for name in example.Unrolls._fields))
    total, learnable = example.laser_loss(*theirs, unrolls, batch.online, example.Settings(**same))

    torch.testing.assert_close(total, loss.total, rtol=1e-9, atol=1e-12)
    for mine, other in zip(torch.autograd.grad(loss.total, ours), torch.autograd.grad(total, theirs), strict=True):
        assert mine.abs().max() > 0.01
        torch.testing.assert_close(other, mine, rtol=1e-9, atol=1e-12)
    replayed = batch.is_transition & ~batch.online
    accepted = (learnable & replayed).sum() / replayed.sum()
    assert accepted == loss.numbers["acceptance"]
    assert 0.2 < accepted < 1  # both kinds of rows were there


class Clock(gymnasium.Env):
    """Observes (episode, age). Even episodes terminate at age 3, odd ones are truncated at age 4; the reward is the age."""

    observation_space = gymnasium.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.age = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.age += 1
        even = self.episode % 2 == 0
        ends = self.age == 3 + self.episode % 2
        return np.array([self.episode, self.age], np.float32), float(self.age), ends and even, ends and not even, {}


@pytest.fixture
def clocks():
    envs = SyncVectorEnv([Clock] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    yield envs
    envs.close()


def test_single_file_laser_writes_down_what_happened(clocks):
    example = load("single_file_laser")
    actor = example.Actor(clocks, example.Network(inputs=2, actions=2, hidden=4), seed=0)
    unrolls = [actor.act(steps=7) for _ in range(5)]
    for this, following in itertools.pairwise(unrolls):
        assert torch.equal(this.observation[-1], following.observation[0])
    for unroll in unrolls:
        episode, age = unroll.observation[:-1].unbind(-1)
        next_episode, next_age = unroll.observation[1:].unbind(-1)
        last = age == 3 + episode % 2
        assert torch.equal(
            unroll.is_transition, ~last
        )  # an episode's last observation has a row, and no transition leaves it
        assert torch.equal(next_age, torch.where(last, 0.0, age + 1))
        assert torch.equal(next_episode, torch.where(last, episode + 1, episode))
        assert torch.equal(unroll.reward, torch.where(last, 0.0, age + 1))
        assert torch.equal(unroll.terminated, ~last & (episode % 2 == 0) & (age == 2))
        logits, _ = actor.network(unroll.observation[:-1])
        torch.testing.assert_close(unroll.behaviour, logits.detach())
    assert sorted(set(actor.finished)) == [6.0, 10.0]


def test_single_file_laser_refuses_another_kind_of_reset():
    example = load("single_file_laser")
    envs = SyncVectorEnv([Clock], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="reset on the step after"):
        example.Actor(envs, example.Network(2, 2, 4), seed=0)
    envs.close()


def test_single_file_laser_mixes_exactly(clocks):
    example = load("single_file_laser")
    network = example.Network(inputs=2, actions=2, hidden=4)
    settings = example.Settings(unroll=2, batch=8, replay_fraction=0.75, capacity=10)
    learner, actor = example.Learner(network, settings), example.Actor(clocks, network, seed=0)
    offered = []
    for number in range(4):
        unrolls = actor.act(steps=2)
        named = unrolls._replace(reward=torch.full((2, 3), 3.0 * number) + torch.arange(3))  # 0, 1, 2 and so on
        offered += range(3 * number, 3 * number + 3)
        learner.offer(named)
    assert (
        sorted(unroll.reward[0, 0].item() for unroll in learner.replay.ring) == offered[-5:]
    )  # 10 steps are 5 unrolls
    online, drawn = [], set()
    while len(learner.waiting) >= learner.online:
        batch, mask = learner.batch()
        names = batch.reward[0]
        assert mask.tolist() == [True] * 2 + [False] * 6
        online += names[mask].tolist()
        drawn |= set(names[~mask].tolist())
    assert online == offered  # each new unroll is online once, in order
    assert drawn == set(offered[-5:])


@pytest.mark.parametrize(
    ("name", "numbers", "module"),
    [("cartpole", 4, None), ("lunarlander", 8, "Box2D"), ("halfcheetah", 17, "mujoco")],
)
def test_a_trained_agent_predicts_without_its_environment_and_plays_as_its_table_says(name, numbers, module):
    agent = LASER.load(EXAMPLES / "agents" / f"{name}.laser", device="cpu")
    action, _ = agent.predict(np.zeros((3, numbers), np.float32), deterministic=True)
    assert len(action) == 3
    if module is not None:
        pytest.importorskip(module)
    [line] = [one for one in (EXAMPLES / "agents" / "README.md").read_text().splitlines() if f"`{name}.laser`" in one]
    told = float(re.findall(r"([\d,]+) \[", line)[-1].replace(",", ""))  # with the likeliest actions
    assert agent.evaluate(episodes=5, seed=1000, deterministic=True).mean > 0.7 * told
