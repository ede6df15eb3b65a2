"""Playing one episode, observation by observation."""

from typing import NamedTuple

import numpy as np

from laser_rl.agent.policy import Policy, Seen
from laser_rl.agent.stacking import follow
from laser_rl.types import Array, UnrollLayout


class Memento(NamedTuple):
    """What is remembered of an episode that goes on."""

    frames: Array  # the newest ones
    memory: Array  # [1, S]
    last_action: Array  # [1, ...], as stored


def act_once(
    policy: Policy, layout: UnrollLayout, observation: Array, before: Memento | None, reward: float
) -> tuple[Array, Memento]:
    """The environment's action for one observation as it is stored, and what to hand in with the next; None before the first."""
    action, after, _ = act_and_tell(policy, layout, observation, before, reward)
    return action, after


def act_and_tell(
    policy: Policy, layout: UnrollLayout, observation: Array, before: Memento | None, reward: float
) -> tuple[Array, Memento, Seen]:
    """The same, and what the network saw."""
    frames, memory, last = _nothing(layout) if before is None else before
    frames, stacked = follow(frames, observation)
    seen = Seen(stacked, np.array([before is None]), last, np.array([reward], np.float32), memory)
    decision = policy.act(seen)
    memory = memory if decision.state is None else decision.state
    return decision.environment_action[0], Memento(frames, memory, decision.action), seen


def _nothing(layout: UnrollLayout) -> Memento:
    return Memento(
        np.zeros((layout.stack, *layout.observation_shape), layout.observation_dtype),
        np.zeros((1, layout.state_size), np.float32),
        np.zeros((1, *layout.action_shape), layout.action_dtype),
    )
