"""Agents with a memory in the user's hands: predict, evaluate, save and load; and what is refused, with what to do."""

import numpy as np
import pytest
import torch
from torch import nn

from laser_rl import LASER, cli
from laser_rl.agent.actor import Actor
from laser_rl.agent.policy import Policy
from laser_rl.envs.make import make_environments, make_renderable
from laser_rl.envs.records import seed_of
from laser_rl.errors import ConfigError

TINY = {"slots": 4, "unroll_steps": 5, "hidden": (8,), "memory": "lstm", "memory_size": 8, "capacity_steps": 400}
CUE, JUNCTION = 0, 1  # units of the memory


class Plain(nn.Module):
    """The observation as it is."""

    def __init__(self, shape):
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return observation + 0 * self.idle


def knows_the_way():
    """An agent whose memory keeps the cue, and who turns by it: made by hand. Without the memory's state it always turns left."""
    agent = LASER("laser/TMaze-2", net=Plain, **TINY)
    network, size = agent.member.learner.network, 8
    with torch.no_grad():
        for parameter in (*network.memory.parameters(), *network.policy_head.parameters()):
            parameter.zero_()
        write, keep, value, show = (slice(k * size, (k + 1) * size) for k in range(4))
        cell = network.memory.cell
        cell.bias_ih[write], cell.bias_ih[show] = 20.0, 20.0
        cell.bias_ih[keep] = -20.0
        cell.bias_ih[keep][CUE] = 20.0
        cell.weight_ih[value][CUE, :2] = torch.tensor([-9.0, 9.0])  # left, right
        cell.weight_ih[value][JUNCTION, 2] = 9.0
        network.policy_head.bias[0] = 5.0
        network.policy_head.weight[1, [CUE, JUNCTION]] = torch.tensor([-4.0, 8.0])
        network.policy_head.weight[2, [CUE, JUNCTION]] = torch.tensor([4.0, 8.0])
    return agent


def restless(environment="laser/Convention", **settings):
    """An agent whose actions depend strongly on what it has seen, done and got before."""
    agent = LASER(environment, **{**TINY, **settings})
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in agent.member.learner.network.named_parameters():
            if "memory" in name or "policy" in name:
                parameter.normal_(0, 2.0)
    return agent


@pytest.fixture(scope="module")
def guide():
    agent = knows_the_way()
    yield agent
    agent.close()


def play(agent, env, seed, *, state=True, reward=True):
    """One episode by `predict`; returns the actions and their sum of rewards."""
    observation, _ = env.reset(seed=seed)
    before, last, actions, total, ended = None, 0.0, [], 0.0, False
    while not ended:
        action, after = agent.predict(observation, before, reward=last, deterministic=True)
        before = after if state else None
        observation, got, terminated, truncated, _ = env.step(action)
        last = float(got) if reward else 0.0
        actions.append(int(action))
        total, ended = total + float(got), terminated or truncated
    return actions, total


def acted(agent, *, seed, rows):
    """What the actor that trains does with the likeliest actions: for each of its episodes the seed and the actions."""
    member = agent.member
    environments = make_environments(member.source, agent.config.environment, seed=seed, lockstep=True)
    policy = Policy(member.learner.network, member.learner.family, seed=0, deterministic=True)
    actor, episode, found = Actor(environments, policy, member.layout), {}, {}
    actor.begin(recorded=True)  # no first row is left out
    for unrolls in filter(None, (actor.step().unrolls for _ in range(rows))):
        for n, t in np.ndindex(unrolls.action.shape):  # of one slot in order; slots do not mix
            slot = int(unrolls.slot[n])
            if not unrolls.is_transition[n, t]:
                episode[slot] = episode.get(slot, 0) + 1
                continue
            place = slot, episode.get(slot, 0)
            actions, _ = found.setdefault(place, ([], []))
            actions.append(int(unrolls.action[n, t]))
            if unrolls.terminated[n, t] | unrolls.truncated[n, t]:
                found[place][1].append("whole")
    environments.close()
    return {
        int(seed_of(seed, np.array(slot), np.array(number))): actions
        for (slot, number), (actions, whole) in found.items()
        if whole
    }


def test_evaluation_and_predict_find_the_way_by_memory(guide):
    assert guide.evaluate(40, deterministic=True, seed=1).mean == 1.0
    env = make_renderable("laser/TMaze-2")
    cues = {0: [0, 0, 1], 1: [0, 0, 2]}
    for seed in range(6):
        assert play(guide, env, seed) == (cues[seed % 2], 1.0)
    without = [play(guide, env, seed, state=False)[1] for seed in range(6)]
    assert without == [1.0, -1.0] * 3  # always left


def test_actor_evaluation_and_predict_do_the_same(guide):
    for agent, name in ((guide, "laser/TMaze-2"), (restless(), "laser/Convention")):
        env, episodes = make_renderable(name), acted(agent, seed=5, rows=60)
        assert len(episodes) > 12
        for seed, actions in episodes.items():
            assert play(agent, env, seed)[0] == actions
        result = agent.evaluate(16, deterministic=True, seed=5)
        seeds = [int(seed_of(5, np.array(slot), np.array(0))) for slot in range(16)]
        assert list(result.returns) == pytest.approx([play(agent, env, seed)[1] for seed in seeds])


def test_state_and_reward_matter():
    agent, env = restless(), make_renderable("laser/Convention")
    seeds = range(20)
    whole = [play(agent, env, seed)[0] for seed in seeds]
    assert [play(agent, env, seed, state=False)[0] for seed in seeds] != whole
    assert [play(agent, env, seed, reward=False)[0] for seed in seeds] != whole
    agent.close()


def test_an_agent_that_is_blind_to_its_last_step_does_not_look_at_the_reward():
    agent, env = restless(last_step=False), make_renderable("laser/Convention")
    for seed in range(10):
        assert play(agent, env, seed, reward=False) == play(agent, env, seed)
    agent.close()


def test_save_and_load_keep_memory_and_units(tmp_path):
    agent = LASER("laser/TMaze-3,laser/TMaze-5", popart=True, popart_step=0.1, **TINY).learn(400)
    other = LASER.load(agent.save(tmp_path / "agent.laser"))
    own, loaded = (one.member.learner.network.state_dict() for one in (agent, other))
    assert own.keys() == loaded.keys()
    assert any("memory" in name for name in own)
    assert own["value_head.mean"].abs().min() > 0
    for name, tensor in own.items():
        assert torch.equal(tensor, loaded[name]), name
    assert agent.evaluate(4, seed=2) == other.evaluate(4, seed=2)
    before = again = None
    for row in np.eye(3, dtype=np.float32):
        (one, before), (two, again) = agent.predict(row, before), other.predict(row, again)
        assert one == two
        assert np.array_equal(before.memory, again.memory)
    assert before.memory.any()
    agent.close()
    other.close()


def test_learning_in_two_calls_is_learning_in_one():
    """Lanes, and what is carried for them, stay between the calls."""
    agent = LASER("laser/TMaze-8", schedule="constant", **TINY).learn(200).learn(150)
    other = LASER("laser/TMaze-8", schedule="constant", **TINY).learn(agent.steps)
    assert other.steps == agent.steps
    assert torch.equal(agent.member.learner.flat.value, other.member.learner.flat.value)
    agent.close()
    other.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "none", "burn_in_steps": 2}, r"burn_in_steps needs network\.memory"),
        ({"burn_in_steps": 2}, r"replay\.state stored or zero"),
        ({"sampling": "prioritised"}, r"draws unrolls, no whole episodes; use replay\.state stored or zero"),
        ({"burn_in_steps": 5, "state": "stored"}, "leaves nothing to learn of 5 steps"),
        ({"burn_in_steps": 9, "state": "zero"}, "leaves nothing to learn of 5 steps"),
        ({"separate_value": True}, r"sees nothing of network\.memory"),
        ({"memory": "rnn"}, r"network\.memory is 'rnn'.*'lstm', 'gru' or 'preco'"),
        ({"memory_size": 0}, r"network\.memory_size is 0"),
        ({"state": "fresh"}, r"replay\.state is 'fresh'"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings, message):
    with pytest.raises(ConfigError, match=message):
        LASER("laser/TMaze-3", **{**TINY, **settings})


FLAGS = "--environment.slots 4 --loss.unroll-steps 5 --network.hidden 8 --network.memory-size 8 --run.evaluate-episodes 2 --plain"


def train(path, *words):
    return cli.main(["train", "--recipe", "cartpole", "--out", str(path), *FLAGS.split(), *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--env laser/TMaze-3 --replay.burn-in-steps 2", "needs network.memory"),
        (
            "--env laser/TMaze-3 --network.memory lstm --replay.state stored --replay.burn-in-steps 5",
            "leaves nothing to learn of 5 steps",
        ),
        ("--env laser/TMaze-3 --network.memory gru --network.separate-value", "sees nothing of network.memory"),
        ("--env laser/TMaze-3 --loss.pixel-control-cost 0.1", "set loss.pixel_control_cost to 0"),
        (
            "--env laser/TMaze-20 --network.memory lstm --replay.capacity-steps 40 --steps 2000",
            "raise --replay.capacity-steps or use --replay.state stored",
        ),
        (
            "--env laser/TMaze-20 --network.memory lstm --replay.capacity-steps 40 --steps 2000 --runtime local",
            "raise --replay.capacity-steps or use --replay.state stored",
        ),
        (
            "--env laser/TMaze-3,laser/TMaze-5,laser/TMaze-8",
            "slots that its 3 tasks can share evenly, got 4; use 3 or 6",
        ),
        ("--env laser/TMaze-3,laser/TMaze-3", "twice"),
        ("--env laser/TMaze-3,CartPole-v1", "seen alike"),
    ],
)
def test_mistakes_are_refused_with_what_to_do(tmp_path, capsys, words, message):
    assert train(tmp_path / "run", *words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("laser: ")
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["sweep --recipe demo --grid learning_rate=1e-3,2e-3", "config show"])
def test_the_other_commands_refuse_them_too(capsys, command):
    assert cli.main([*command.split(), "--env", "laser/TMaze-3", "--replay.burn-in-steps", "2"]) == 2
    assert capsys.readouterr().err == (
        "laser: replay.burn_in_steps needs network.memory and replay.state stored or zero; leave it at 0\n"
    )


def test_flags_of_the_memory_reach_the_agent(tmp_path, capsys):
    words = "--env laser/TMaze-3 --steps 200 --network.memory gru --replay.state zero --replay.burn-in-steps 1 --loss.popart"
    assert train(tmp_path / "run", *words.split()) == 0
    trained = (tmp_path / "run" / "config.json").read_text()
    assert '"memory": "gru"' in trained
    assert cli.main(["evaluate", str(tmp_path / "run"), "--episodes", "3"]) == 0
    assert cli.main(["enjoy", str(tmp_path / "run"), "--max-steps", "12", "--video", str(tmp_path / "v.gif")]) == 0
    assert "3 episodes" in capsys.readouterr().out


def test_a_recipes_separate_value_gives_way_to_a_memory_that_is_asked_for(capsys, tmp_path):
    agent = LASER("Pendulum-v1", memory="lstm")
    assert (agent.config.network.memory, agent.config.network.separate_value) == ("lstm", False)
    file = tmp_path / "memory.yaml"
    file.write_text("network:\n  memory: gru\n")
    for words in (["--network.memory", "lstm"], ["--network.memory=lstm"], ["--config", str(file)]):
        assert cli.main(["config", "show", "--env", "Pendulum-v1", *words]) == 0
        assert "separate_value: false" in capsys.readouterr().out
    assert cli.main(["config", "show", "--env", "Pendulum-v1", "--network.memory", "none"]) == 0
    assert "separate_value: true" in capsys.readouterr().out


def test_a_memory_and_a_separate_value_that_are_both_asked_for_are_refused(capsys):
    with pytest.raises(ConfigError, match=r"sees nothing of network\.memory"):
        LASER("Pendulum-v1", memory="lstm", separate_value=True)
    words = ["--env", "Pendulum-v1", "--network.memory", "lstm", "--network.separate-value"]
    assert cli.main(["config", "show", *words]) == 2
    assert "sees nothing of network.memory" in capsys.readouterr().err
