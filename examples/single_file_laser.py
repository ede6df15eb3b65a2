"""LASER in one file: a single agent, a replay, the trust region. It needs torch, numpy and gymnasium, and nothing of the package.

Schmitt, Hessel, Simonyan: Off-Policy Actor-Critic with Shared Experience Replay (2019). Equations, sections and Algorithm 1 are that
paper's. Read it from `laser_loss` outwards. On CartPole-v1 seeds 0 to 4 first reach a mean of 475 over 20 episodes after 16,000 to
25,000 steps.

    python examples/single_file_laser.py --seed 1
    python examples/single_file_laser.py --env Acrobot-v1

For any Gymnasium environment with Box observations (they are flattened) and Discrete actions.
"""

import argparse
import dataclasses
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """Each one is a flag: `--learning-rate 1e-3`."""

    env: str = "CartPole-v1"
    steps: int = 25_000  # of all slots together
    seed: int = 0
    slots: int = 4  # environments side by side
    unroll: int = 20  # T: steps of an unroll, which has T+1 observations
    batch: int = 8  # unrolls of an update, online and replayed together
    replay_fraction: float = 0.875  # of them replayed: 7, so that 1 is online (section 3: 1/8 online is enough)
    capacity: int = 100_000  # steps in the replay; the oldest unrolls leave first
    discount: float = 0.99
    trust_bound: float = 0.03  # b of section 4.1; the paper does not publish its own
    baseline_cost: float = 0.5
    entropy_cost: float = 0.0
    reward_scale: float = 0.1  # keeps the values of long episodes near those that a fresh network says
    learning_rate: float = 2e-3
    hidden: int = 64


# --- The clock ---------------------------------------------------------------------------------------------------------------------


class Unrolls(NamedTuple):
    """n unrolls, time-major. Observations have T+1 rows, all else T: row t answers observation t.

    The last observation of an episode has a row of its own, and the step from it to the next episode's first observation is not a
    transition: there `is_transition` is False, and the action was ignored. So unrolls cross episodes without a special case, and the value
    after a truncation is that of the episode's own last observation.
    """

    observation: Tensor  # [T+1, n, D]
    action: Tensor  # [T, n]
    reward: Tensor  # [T, n]
    terminated: Tensor  # [T, n]; not truncated: a time limit says nothing about what would have followed
    is_transition: Tensor  # [T, n]
    behaviour: Tensor  # [T, n, A]: logits of μ, the policy that acted, whole: the trust region asks for all actions


# --- The update: Algorithm 1, learner thread ---------------------------------------------------------------------------------------


def implied_kl(logits: Tensor, behaviour: Tensor) -> Tensor:
    """Behaviour relevance β (section 4.3): KL(π ‖ implied policy), the policy whose value V-trace really estimates.

    The implied policy is min(ρ̄μ, π)/Z with Z = Σ_b min(ρ̄μ, π) (eq. 3), and ρ̄ is 1 here. So the KL is log Z + Σ_a π·(log π − log min(μ, π)).
    (Algorithm 1 prints KL(π ‖ μ) instead, another function with another bound.)
    """
    log_pi, log_mu = logits.log_softmax(-1), behaviour.log_softmax(-1)
    common = torch.minimum(log_pi, log_mu)
    return common.logsumexp(-1) + (log_pi.exp() * (log_pi - common)).sum(-1)


def trusted_vtrace(rho: Tensor, learnable: Tensor, reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
    """V-trace targets v under the trust region (eq. 8), from the last step backwards: T+1 rows, as `value` has; all else has T.

    v_t = V_t + acc_t with acc_t = λ_t·(ρ_t·δ_t + γ_t·c_t·acc_{t+1}), and ρ_t = c_t = min(1, π/μ), as ρ̄ = c̄ = 1. A step that is not
    learnable (λ_t = 0) adds nothing to any earlier target and lets no trace through; the steps after it still train.
    """
    td_error = reward + discount * value[1:] - value[:-1]
    gain, targets = torch.zeros_like(value[-1]), [value[-1]]
    for t in reversed(range(len(reward))):
        gain = learnable[t] * rho[t] * (td_error[t] + discount[t] * gain)
        targets.append(value[t] + gain)
    return torch.stack(targets[::-1])


def laser_loss(
    logits: Tensor, value: Tensor, batch: Unrolls, online: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """The number to minimise, and which steps were learned from.

    Args:
        logits: of π at all T+1 observations, [T+1, B, A].
        value: V at the same ones, [T+1, B].
        batch: what was stored.
        online: [B], which unrolls are new and not replayed.
        settings: the constants.
    """
    log_pi = logits[:-1].log_softmax(-1)
    log_prob = pick(log_pi, batch.action)
    with torch.no_grad():  # relevance, targets and advantages are constants
        learnable = (implied_kl(logits[:-1], batch.behaviour) < settings.trust_bound) & batch.is_transition
        rho = (log_prob - pick(batch.behaviour.log_softmax(-1), batch.action)).exp().clamp(max=1.0)
        reward, discount = settings.reward_scale * batch.reward, settings.discount * ~batch.terminated
        target = trusted_vtrace(rho, learnable, reward, discount, value)
        # Eq. 2 less the baseline: r_t + γ·v_{t+1} − V_t. (Algorithm 1 prints v_t − V_t, which holds ρ_t already; it would count twice.)
        advantage = reward + discount * target[1:] - value[:-1]
        weight = learnable * rho * advantage
    # A rejected step is rejected for every loss (section 4.3); entropy is that of fresh states only.
    steps, fresh = learnable.sum().clamp(min=1), learnable & online
    policy_loss = -(weight * log_prob).sum() / steps
    value_loss = 0.5 * (learnable * (target[:-1] - value[:-1]) ** 2).sum() / steps
    entropy = -(fresh * (log_pi.exp() * log_pi).sum(-1)).sum() / fresh.sum().clamp(min=1)
    return policy_loss + settings.baseline_cost * value_loss - settings.entropy_cost * entropy, learnable


def pick(log_probs: Tensor, action: Tensor) -> Tensor:
    """The entry of each row's action."""
    return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)


# --- The network -------------------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Two layers, and on them a policy and a value."""

    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.policy, self.value = nn.Linear(hidden, actions), nn.Linear(hidden, 1)
        # The policy's weights are small, so that it starts near uniform.
        for layer, gain in ((self.torso[0], 2**0.5), (self.torso[2], 2**0.5), (self.policy, 0.01), (self.value, 1.0)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [..., A] and values [...] of observations [..., D]."""
        features = self.torso(observation)
        return self.policy(features), self.value(features).squeeze(-1)


# --- Acting: Algorithm 1, actor thread ---------------------------------------------------------------------------------------------


class Actor:
    """Steps all slots, and remembers between two unrolls where each one is."""

    def __init__(self, envs: VectorEnv, network: Network, seed: int) -> None:
        if envs.metadata["autoreset_mode"] != AutoresetMode.NEXT_STEP:
            raise ValueError("expected environments that reset on the step after an episode's last (see Unrolls)")
        self.envs, self.network = envs, network
        self.observation = flat(envs.reset(seed=seed)[0])
        self.ended = np.zeros(envs.num_envs, bool)  # the newest observation is the last of its episode
        self.returns = np.zeros(envs.num_envs)  # of the open episodes
        self.finished: deque[float] = deque(maxlen=20)  # returns of the last episodes

    @torch.no_grad()
    def act(self, steps: int) -> Unrolls:
        """One unroll of every slot; its last observation is the first of the next unroll."""
        rows, observations = [], [self.observation]
        for _ in range(steps):
            logits, _ = self.network(self.observation)
            action = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
            is_transition = torch.tensor(~self.ended)
            seen, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            self.observation, self.ended = flat(seen), terminated | truncated
            observations.append(self.observation)
            rows.append((action, torch.tensor(reward).float(), torch.tensor(terminated), is_transition, logits))
            self.returns += reward
            self.finished.extend(self.returns[self.ended])
            self.returns[self.ended] = 0.0
        return Unrolls(torch.stack(observations), *(torch.stack(field) for field in zip(*rows, strict=True)))


def flat(observation: np.ndarray) -> Tensor:
    """One vector a slot."""
    return torch.tensor(observation, dtype=torch.float32).flatten(1)


# --- Replay ------------------------------------------------------------------------------------------------------------------------


class Replay:
    """A ring of unrolls: the oldest leave first, each one is as likely to be drawn as any other."""

    def __init__(self, capacity: int) -> None:  # in unrolls
        self.ring: list[Unrolls] = []
        self.capacity, self.oldest = capacity, 0

    def insert(self, unroll: Unrolls) -> None:
        """At the end, or over the oldest."""
        if len(self.ring) < self.capacity:
            self.ring.append(unroll)
        else:
            self.ring[self.oldest] = unroll
            self.oldest = (self.oldest + 1) % self.capacity

    def sample(self, count: int) -> list[Unrolls]:
        """Uniform, with replacement."""
        return [self.ring[i] for i in torch.randint(len(self.ring), (count,)).tolist()]


def columns(unrolls: Unrolls) -> list[Unrolls]:
    """One by one."""
    return [Unrolls(*one) for one in zip(*(field.split(1, dim=1) for field in unrolls), strict=True)]


def side_by_side(parts: list[Unrolls]) -> Unrolls:
    """The other way round."""
    return Unrolls(*(torch.cat(fields, 1) for fields in zip(*parts, strict=True)))


# --- Both together -----------------------------------------------------------------------------------------------------------------


class Learner:
    """Mixes new unrolls with replayed ones, in whole numbers, and moves the parameters."""

    def __init__(self, network: Network, settings: Settings) -> None:
        self.network, self.settings, self.updates, self.accepted = network, settings, 0, 1.0
        self.replayed = round(settings.replay_fraction * settings.batch)
        self.online = settings.batch - self.replayed
        if self.online < 1:
            raise SystemExit(f"no unroll of {settings.batch} is online; lower --replay-fraction or raise --batch")
        self.replay = Replay(max(1, settings.capacity // settings.unroll))
        self.waiting: deque[Unrolls] = deque()  # new unrolls, each online once
        self.optimiser = torch.optim.Adam(network.parameters(), settings.learning_rate, foreach=False)

    def offer(self, unrolls: Unrolls) -> None:
        """New unrolls go to the replay and to the learner's queue."""
        for unroll in columns(unrolls):
            self.replay.insert(unroll)
            self.waiting.append(unroll)

    def batch(self) -> tuple[Unrolls, Tensor]:
        """The next batch, and which of its unrolls are online."""
        new = [self.waiting.popleft() for _ in range(self.online)]
        return side_by_side(new + self.replay.sample(self.replayed)), torch.arange(self.settings.batch) < self.online

    def learn(self) -> None:
        """As many updates as there are new unrolls for."""
        while len(self.waiting) >= self.online:
            batch, online = self.batch()
            loss, learnable = laser_loss(*self.network(batch.observation), batch, online, self.settings)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.updates += 1
            replayed = batch.is_transition & ~online
            self.accepted = ((learnable & replayed).sum() / replayed.sum()).item()


def train(settings: Settings) -> float:
    """Act, insert, learn, in turn; returns the mean return of the last episodes."""
    torch.set_num_threads(1)  # the network is too small for a second one to pay
    torch.manual_seed(settings.seed)
    mode = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    envs = gymnasium.make_vec(settings.env, settings.slots, vectorization_mode="sync", vector_kwargs=mode)
    sees, acts = envs.single_observation_space, envs.single_action_space
    if not (isinstance(sees, Box) and isinstance(acts, Discrete) and acts.start == 0):
        raise SystemExit(
            f"expected Box observations and Discrete actions from 0 on, {settings.env} has {sees} and {acts}"
        )
    network = Network(int(np.prod(sees.shape)), int(acts.n), settings.hidden)
    actor, learner = Actor(envs, network, settings.seed), Learner(network, settings)
    steps, shown, began = 0, 0, time.monotonic()
    while steps < settings.steps:
        unrolls = actor.act(settings.unroll)
        learner.offer(unrolls)
        learner.learn()
        steps += int(unrolls.is_transition.sum())
        if steps - shown >= 1000 or steps >= settings.steps:
            shown, mean = steps, float(np.mean(actor.finished or [np.nan]))
            text = f"step {steps:6d}  update {learner.updates:5d}  return of the last episodes {mean:6.1f}"
            print(f"{text}  replayed steps trusted {learner.accepted:4.0%}  {time.monotonic() - began:5.1f} s")
    envs.close()
    return mean


def main() -> None:
    """Read the flags and train."""
    parser = argparse.ArgumentParser(description="LASER in one file")
    for field in dataclasses.fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    train(Settings(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
