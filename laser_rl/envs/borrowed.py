"""Environments that the user made: they are played in, never closed, and training and evaluation take turns in them."""

import weakref
from typing import Any

import gymnasium

from laser_rl.envs.border import Env


class StreamBroken(Exception):
    """Another player has reset the environment since this one's last step: the open episode is void."""


class Turn:
    """Whose turn it is in an environment that exists once: the player's that reset it last.

    >>> env = gymnasium.make("CartPole-v1")
    >>> training, evaluation = Turn(env), Turn(env)
    >>> training.take()
    >>> evaluation.take()
    >>> training.lost, evaluation.lost
    (True, False)
    """

    def __init__(self, env: Any) -> None:
        self._env = env.unwrapped

    @property
    def lost(self) -> bool:
        """Whether another player took it since."""
        return _PLAYERS.get(id(self._env)) is not self

    def take(self) -> None:
        """It is this player's from now on."""
        _PLAYERS[id(self._env)] = self


# By the environment's id, which is its own for as long as a player holds it.
_PLAYERS: weakref.WeakValueDictionary[int, Turn] = weakref.WeakValueDictionary()


class BorrowedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of the user's: closing this leaves it open, a step after somebody else's turn is `StreamBroken`."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._turn = Turn(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Take the turn."""
        self._turn.take()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """One step, in an episode of one's own."""
        if self._turn.lost:
            raise StreamBroken
        return self.env.step(action)

    def close(self) -> None:
        """Nothing: whoever made it closes it."""
