"""Masks of actions: no illegal action is ever taken, and what is learnt from is the policy over the legal ones."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from laser_rl import LASER, Sweep
from laser_rl.agent.policy import choose
from laser_rl.envs.make import make_environments
from laser_rl.envs.masks import legal
from laser_rl.errors import ConfigError, EnvironmentRefused
from laser_rl.ops.distributions import FORBIDDEN, Categorical
from laser_rl.ops.trust_region import kl_to_implied
from laser_rl.training.build import batch_of
from tests.envs.several import Forbidding
from tests.references import masked, trust_region

SMALL = {"hidden": (16,), "unroll_steps": 5, "slots": 4, "capacity_steps": 2_000, "trust_bound": 10.0, "seed": 1}
TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
KINDS = [(where, several) for where in ("info", "key") for several in (False, True)]


@pytest.mark.parametrize(("where", "several"), KINDS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"memory": "lstm", "memory_size": 8},
        pytest.param({"runtime": "local"}, marks=pytest.mark.slow),
        pytest.param(
            {"placement": "process", "workers": 2, "memory": "lstm", "memory_size": 8}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_no_illegal_action_is_taken_in_a_whole_run(where, several, how, tmp_path):
    source = functools.partial(Forbidding, tmp_path / "noted", where=where, several=several)
    agent = LASER(source, **SMALL, **how).learn(400)
    result = agent.evaluate(episodes=4, deterministic=True)
    agent.close()
    assert agent.member.learner.version > 10
    assert not (tmp_path / "noted").exists()
    assert result.length_mean == 9


def test_no_member_of_a_sweep_takes_an_illegal_action(tmp_path):
    source = functools.partial(Forbidding, tmp_path / "noted")
    sweep = Sweep(source, grid={"learning_rate": [1e-3, 1e-2, 1e-1]}, **SMALL)
    result = sweep.run(400)
    assert len(result.members) == 3
    assert not (tmp_path / "noted").exists()


def test_an_illegal_action_is_noticed(tmp_path):
    env = Forbidding(tmp_path / "noted")
    env.reset(seed=0)
    _, reward, ended, _, _ = env.step(2 + int(np.flatnonzero(~env.legal)[0]))
    assert (reward, ended, (tmp_path / "noted").exists()) == (-100.0, True, True)


@pytest.mark.parametrize(("where", "several"), KINDS)
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_stored_rows_have_the_ratios_divergences_and_entropies_of_the_masked_policy(where, several, memory):
    agent = LASER(functools.partial(Forbidding, where=where, several=several), memory=memory, **SMALL).learn(200)
    agent.close()
    member = agent.member
    batch, spec, family = batch_of(member), member.spec.observation, member.learner.family
    member.replay.sample_into(batch.online.shape[0], np.random.default_rng(0), batch, 0)
    sizes = (3, 4) if several else (6,)
    everything = batch.observation.clone()
    everything[..., -spec.mask :] = 1
    with torch.no_grad():
        policy = member.learner.network(batch.inputs, batch.state)[0].policy[:-1]
        # All legal: the logits before the mask.
        logits = member.learner.network(batch.inputs._replace(observation=everything), batch.state)[0].policy[:-1]
    masks = legal(spec, batch.observation.numpy())
    assert 0.2 < masks[:-1].mean() < 0.7
    log_prob, entropy = family.evaluate(policy, batch.action)
    ours = {
        "ratio": (log_prob - family.log_prob(batch.behaviour, batch.action)).exp(),
        "entropy": entropy,
        "kl": family.kl(policy, batch.behaviour),
        "implied": kl_to_implied(family, policy, batch.behaviour, clip_rho=1.0),
    }
    compared = 0
    for t, b in np.argwhere(batch.is_transition.numpy()):
        mask = masks[t, b]
        pi = masked.probabilities(logits[t, b].double().numpy(), mask, sizes)
        mu = masked.probabilities(batch.behaviour[t, b].double().numpy(), mask, sizes)
        taken = masked.legal_actions(mask, sizes).index(tuple(np.atleast_1d(batch.action[t, b].numpy()).tolist()))
        twin = {
            "ratio": pi[taken] / mu[taken],
            "entropy": masked.entropy(pi),
            "kl": trust_region.kl(pi, mu),
            "implied": trust_region.kl_to_implied(pi, mu, 1.0),
        }
        for name, value in twin.items():
            assert float(ours[name][t, b]) == pytest.approx(value, rel=2e-4, abs=2e-5), name
        compared += len(pi) > 1
    assert compared > 20


class Careful(gymnasium.Wrapper):
    """Raises where an action is illegal by the mask that was given last."""

    taken = 0

    def reset(self, **arguments):
        observation, info = self.env.reset(**arguments)
        self.mask = info["action_mask"]
        return observation, info

    def step(self, action):
        assert self.mask[action]
        Careful.taken += 1
        *result, info = self.env.step(action)
        self.mask = info["action_mask"]
        return *result, info


def careful_taxi():
    return Careful(gymnasium.make(TAXI, disable_env_checker=True))


def test_taxi_is_driven_by_its_mask_and_predicts_with_it(tmp_path, caplog):
    before = Careful.taken
    agent = LASER(careful_taxi, **SMALL).learn(1_000)
    assert Careful.taken - before >= 1_000
    assert "raised" not in caplog.text
    loaded = LASER.load(agent.save(tmp_path / "taxi.laser"))
    env = careful_taxi()
    observation, info = env.reset(seed=3)
    state = None
    for _ in range(30):
        for player in (agent, loaded):
            action, after = player.predict(observation, state, action_mask=info["action_mask"])
            assert info["action_mask"][action]
        observation, _, terminated, truncated, info = env.step(action)
        state = after
        if terminated or truncated:
            break
    only = np.zeros(6, np.int8)
    only[4] = 1
    assert {int(agent.predict(observation, action_mask=only, deterministic=False)[0]) for _ in range(20)} == {4}
    agent.close()
    with pytest.raises(
        ConfigError, match=r"expected the mask of legal actions .* pass action_mask=info\['action_mask'\]"
    ):
        loaded.predict(observation)
    with pytest.raises(ConfigError, match="6 numbers, each 0 or 1, with a legal action"):
        loaded.predict(observation, action_mask=np.zeros(6))
    with pytest.raises(ConfigError, match="expected no action_mask"):
        LASER("CartPole-v1", **SMALL).predict(np.zeros(4, np.float32), action_mask=[1, 1])


@pytest.mark.slow
def test_a_task_is_learnt_where_the_mask_leaves_a_choice():
    agent = LASER(functools.partial(Forbidding, steps=20), **{**SMALL, "slots": 8}, recipe="cartpole").learn(8_000)
    best = agent.evaluate(episodes=20, deterministic=True).mean
    agent.close()
    assert best > 18  # of 20; a legal action at random gets 8.7


class Wrong(Forbidding):
    """A mask that is wrong at the third step."""

    def __init__(self, mask, where="info"):
        super().__init__(where=where)
        self.wrong = mask

    def look(self, *, last=False):
        observation, info = super().look(last=last)
        if self.t == 2 and self.where == "info":
            return observation, {"action_mask": self.wrong} if self.wrong is not None else {}
        if self.t == 2:
            observation["action_mask"] = self.wrong
        return observation, info


@pytest.mark.parametrize("where", ["info", "key"])
@pytest.mark.parametrize(
    "mask",
    [np.zeros(6, np.int8), np.ones(5, np.int8), np.full(6, 0.5), np.array([2, 1, 1, 0, 0, 0]), None, "no"],
    ids=str,
)
def test_a_mask_that_cannot_be_used_is_refused_with_its_place(mask, where):
    with pytest.raises(
        EnvironmentRefused, match=r"slot 0, episode 0, step 2\): expected an action_mask of 6 numbers, each 0 or 1"
    ):
        LASER(functools.partial(Wrong, mask, where), **{**SMALL, "slots": 1}).learn(50)


def test_a_mask_that_comes_later_is_refused_and_not_ignored():
    class Late(Forbidding):
        def look(self, *, last=False):
            observation, info = super().look(last=last)
            return observation, info if self.t else {}

    with pytest.raises(EnvironmentRefused, match=r"info\['action_mask'\] from the first reset on, or never"):
        LASER(Late, **SMALL).learn(10)


@pytest.mark.parametrize(
    ("seen", "action", "message"),
    [
        (
            {"a": spaces.Discrete(3), "action_mask": spaces.MultiBinary(3)},
            spaces.Box(-1, 1, (2,)),
            "got one with a Box",
        ),
        ({"a": spaces.Discrete(3), "action_mask": spaces.MultiBinary(3)}, spaces.Discrete(4), "to hold 4 numbers"),
        ({"action_mask": spaces.MultiBinary(3)}, spaces.Discrete(3), "something to see beside the action_mask"),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(seen, action, message):
    class Odd(gymnasium.Env):
        observation_space, action_space = spaces.Dict(seen), action

    with pytest.raises(EnvironmentRefused, match=message):
        LASER(Odd)


def test_a_network_that_has_diverged_still_respects_the_mask():
    family = Categorical(4)
    broken = torch.tensor([[float("nan"), FORBIDDEN, float("nan"), FORBIDDEN], [1.0, 2.0, 3.0, FORBIDDEN]]).repeat(
        200, 1
    )
    action, behaviour, _ = choose(family, broken, torch.Generator().manual_seed(0))
    assert set(action[::2].tolist()) == {0, 2}
    assert behaviour[0].tolist() == [0.0, FORBIDDEN, 0.0, FORBIDDEN]
    assert behaviour.isfinite().all()


def test_a_network_that_wants_only_illegal_actions_takes_a_legal_one():
    agent = LASER(Forbidding, **SMALL)
    network = agent.member.learner.network
    with torch.no_grad():
        network.policy_head.bias.copy_(torch.tensor([-1e9, 1e9, 0.0, 1e9, 1e9, 1e9]))
    mask = np.array([1, 0, 0, 0, 0, 0], np.int8)
    chosen = {
        int(agent.predict(np.zeros(6, np.float32), action_mask=mask, deterministic=flag)[0]) for flag in (True, False)
    }
    agent.close()
    assert chosen == {2}  # the environment counts from 2


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
@pytest.mark.parametrize(("where", "several"), KINDS)
def test_vectors_give_the_same_masks(where, several, mode, tmp_path):
    make = functools.partial(Forbidding, tmp_path / "noted", where=where, several=several)
    vector = gymnasium.vector.SyncVectorEnv([make] * 4, autoreset_mode=mode)
    agent = LASER(vector, **SMALL).learn(300)
    agent.close()
    assert agent.member.spec.observation.mask == (7 if several else 6)
    assert not (tmp_path / "noted").exists()
    vector.close()


def test_a_vector_without_a_mask_at_a_row_is_refused():
    make = functools.partial(Wrong, np.zeros(6, np.int8))
    with pytest.raises(EnvironmentRefused, match=r"\(step 2\): expected an action_mask of 6 numbers"):
        LASER(gymnasium.vector.SyncVectorEnv([make] * 2), **{**SMALL, "slots": 2}).learn(50)


def test_an_environment_is_reset_once_for_its_first_row():
    resets = []

    class Counting(Forbidding):
        def reset(self, *, seed=None, options=None):
            resets.append(seed)
            return super().reset(seed=seed, options=options)

    environments = make_environments(Counting, slots=2, seed=5)
    rows = environments.reset()
    assert sorted(resets) == sorted(rows.seed.tolist())
    environments.close()
