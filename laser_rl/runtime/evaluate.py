"""Playing without learning."""

from dataclasses import dataclass
from pathlib import Path

from laser_rl import checkpoint
from laser_rl.agent.learner import load_network
from laser_rl.agent.policy import Policy
from laser_rl.agent.stacking import FrameStack
from laser_rl.config import EnvironmentConfig
from laser_rl.envs.records import Rows
from laser_rl.errors import ConfigError
from laser_rl.evaluation.rollout import rollout
from laser_rl.evaluation.statistics import EvalResult, summarise_episodes
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import family_of
from laser_rl.ops.distributions import Family
from laser_rl.runtime.build import (
    EnvironmentSource,
    Member,
    another,
    device_of,
    layout_of,
    open_environments,
    seeded_network,
)
from laser_rl.runtime.files import read_config
from laser_rl.types import Array, UnrollLayout

SLOTS = 16


@dataclass(frozen=True)
class Trained:
    """A network that knows what it can play."""

    network: AgentNetwork
    family: Family
    layout: UnrollLayout
    source: EnvironmentSource
    environment: EnvironmentConfig
    steps: int


class Player:
    """A policy with the frame stacks of the slots it plays in."""

    def __init__(self, policy: Policy, layout: UnrollLayout, slots: int) -> None:
        self._policy = policy
        self._stack = FrameStack(slots, layout.stack, layout.observation_shape, layout.observation_dtype)

    def __call__(self, rows: Rows) -> Array:
        """The environment's actions for these rows."""
        self._stack.push(rows)
        return self._policy.act(self._stack.seen(rows.slots)).environment_action


def trained_of(member: Member, steps: int) -> Trained:
    """What a member has learned so far."""
    return Trained(
        member.learner.network, member.family, member.layout, member.source, member.config.environment, steps
    )


def load_trained(run_dir: Path) -> Trained:
    """What the newest checkpoint of a run holds; no replay is loaded."""
    config = read_config(run_dir)
    loaded = checkpoint.latest(run_dir)
    if loaded is None:
        raise ConfigError(f"{run_dir} holds no checkpoint yet; 'laser resume {run_dir}' goes on until it does")
    environments = open_environments(config.environment.id, config.environment, seed=0, lockstep=True, slots=1)
    spec = environments.spec
    environments.close()
    network = seeded_network(config, spec, None).to(device_of("auto"))  # played where we are, not where it was trained
    load_network(network, loaded.tensors["network"])
    family = family_of(spec.action)
    layout = layout_of(spec, family, config)
    return Trained(network, family, layout, config.environment.id, config.environment, loaded.step)


def evaluate(trained: Trained, *, episodes: int, deterministic: bool, seed: int) -> EvalResult:
    """Play whole episodes in fresh environments; the same seed gives the same result."""
    slots = min(episodes, SLOTS)
    environments = open_environments(
        another(trained.source), trained.environment, seed=seed, lockstep=True, slots=slots
    )
    policy = Policy(trained.network, trained.family, seed=seed, deterministic=deterministic)
    try:
        return summarise_episodes(rollout(environments, Player(policy, trained.layout, slots), episodes))
    finally:
        environments.close()
