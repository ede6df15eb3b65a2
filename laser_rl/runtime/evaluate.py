"""Playing without learning."""

from laser_rl.agent.policy import Policy
from laser_rl.agent.stacking import FrameStack
from laser_rl.envs.records import Rows
from laser_rl.evaluation.rollout import rollout
from laser_rl.evaluation.statistics import EvalResult, summarise
from laser_rl.runtime.build import Member, open_environments
from laser_rl.types import Array, UnrollLayout

SLOTS = 16


class Player:
    """A policy with the frame stacks of the slots it plays in."""

    def __init__(self, policy: Policy, layout: UnrollLayout, slots: int) -> None:
        self._policy = policy
        self._stack = FrameStack(slots, layout.stack, layout.observation_shape, layout.observation_dtype)

    def __call__(self, rows: Rows) -> Array:
        """The environment's actions for these rows."""
        self._stack.push(rows)
        return self._policy.act(self._stack.seen(rows.slots)).environment_action


def evaluate_member(member: Member, *, episodes: int, deterministic: bool, seed: int) -> EvalResult:
    """Play whole episodes in fresh environments; the same seed gives the same result."""
    slots = min(episodes, SLOTS)
    environments = open_environments(member.source, member.config.environment, seed=seed, lockstep=True, slots=slots)
    policy = Policy(member.learner.network, member.family, seed=seed, deterministic=deterministic)
    try:
        played = rollout(environments, Player(policy, member.layout, slots), episodes)
    finally:
        environments.close()
    return summarise([episode.raw_return for episode in played], lengths=[episode.length for episode in played])
