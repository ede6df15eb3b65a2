"""Playing whole episodes for their returns."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.records import Environments, Rows
from laser_rl.errors import ConfigError
from laser_rl.types import Episode

MAX_EPISODE_STEPS = 1_000_000  # ten hours of Atari; nothing that ends takes longer


def rollout(
    environments: Environments,
    act: Callable[[Rows], NDArray[np.generic]],
    episodes: int,
    max_steps: int = MAX_EPISODE_STEPS,
) -> list[Episode]:
    """Play exactly `episodes` episodes and return them, ordered by slot.

    Each slot plays a fixed number of them, decided before the first step: taking the first that end would favour the short ones. So
    more slots than episodes are of no use. `act` gets the newest row of some slots and returns an action for each, in the form that
    the environments take; where a row ended its episode, the action is ignored. An episode of more than `max_steps` steps (default:
    a million) is an error, not a wait without end. The environments must be fresh: they are reset here.
    """
    if episodes < 1:
        raise ConfigError(f"expected at least one episode to play, got {episodes}; raise --episodes")
    left = _quotas(environments.slots, episodes)
    total, length = np.zeros(environments.slots), np.zeros(environments.slots, np.int64)
    played: list[Episode] = []
    rows = environments.reset()
    while True:
        _count(rows, left, total, length, played)
        if not (left > 0).any():
            # Stable: within a slot the order in which they were played.
            return sorted(played, key=lambda episode: episode.slot)
        _check_length(np.where(left > 0, length, 0), max_steps, environments.spec.name)
        # Slots that are done go on too: vector environments step all their slots or none.
        rows = environments.step(rows.slots, act(rows))


def _quotas(slots: int, episodes: int) -> NDArray[np.int64]:
    """How many episodes each slot plays; they differ by one at most.

    >>> _quotas(3, 5).tolist(), _quotas(3, 2).tolist()
    ([2, 2, 1], [1, 1, 0])
    """
    return np.full(slots, episodes // slots, np.int64) + (np.arange(slots) < episodes % slots)


def _count(
    rows: Rows, left: NDArray[np.int64], total: NDArray[np.float64], length: NDArray[np.int64], played: list[Episode]
) -> None:
    """Add new rows to the open episodes; close those that ended."""
    fresh = rows.is_first  # also where a stream broke: its open episode is void, and played again
    slots = rows.slots
    total[slots] = np.where(fresh, 0.0, total[slots] + rows.reward)
    length[slots] = np.where(fresh, 0, length[slots] + 1)
    ended = (rows.terminated | rows.truncated) & ~fresh & (left[slots] > 0)
    for slot in slots[ended].tolist():
        played.append(Episode(slot, int(length[slot]), float(total[slot])))
        left[slot] -= 1


def _check_length(length: NDArray[np.int64], limit: int, name: str) -> None:
    if length.max() > limit:
        raise ConfigError(
            f"{name}: expected an episode to end within {limit:,} steps, slot {int(length.argmax())} has played "
            f"{int(length.max()):,}; wrap the environment in gymnasium.wrappers.TimeLimit"
        )
