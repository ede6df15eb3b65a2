"""Three small tasks whose answers are known, stepped as arrays: hundreds of thousands of steps a second on one core.

An episode is a function of its seed and its actions. `Catch` and `DeepSea` follow bsuite (Osband et al., 2020), `TMaze` Bakker (2002).
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.grid import MIDDLE, SHAPE, VIEW, draw, tile_number
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.errors import ConfigError

Array = NDArray[np.generic]
Ints = NDArray[np.int64]
LEFT, RIGHT = 1, 2  # in a TMaze
Positions = Mapping[str, Ints]  # what an episode is, one entry a slot


class TaskOutcome(NamedTuple):
    """What a step of n slots led to."""

    positions: Positions
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class Task(Protocol):
    """The rules of a task, for any number of slots at once."""

    @property
    def spec(self) -> EnvironmentSpec:
        """What an agent has to know."""

    @property
    def optimal_return(self) -> float:
        """Of the best policy, on average."""

    @property
    def random_return(self) -> float:
        """Of uniformly random actions, on average."""

    def begin(self, seed: Ints) -> Positions:
        """The first positions of episodes with these seeds."""

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        """One step."""

    def observe(self, positions: Positions) -> Array:
        """What is seen there."""

    def draw(self, positions: Positions) -> NDArray[np.float32]:
        """The first slot as a board of cells, for people."""


class _Board:
    """What tasks on a board of cells have in common: the cells as features or, with `image`, as one channel of a picture."""

    image: bool

    def observe(self, positions: Positions) -> Array:
        """The board, in the form that `image` asks for."""
        board = self._cells(positions)
        return board.astype(np.uint8)[:, np.newaxis] if self.image else board.reshape(len(board), -1)

    def draw(self, positions: Positions) -> NDArray[np.float32]:
        """As it is seen."""
        return np.asarray(self._cells(positions)[0], np.float32)

    def _spec(self, name: str, rows: int, columns: int, actions: int) -> EnvironmentSpec:
        seen = ObservationSpec((1, rows, columns), "uint8") if self.image else ObservationSpec((rows * columns,))
        return EnvironmentSpec(name, seen, DiscreteActions(actions))

    def _cells(self, positions: Positions) -> NDArray[np.float32]:
        raise NotImplementedError


@dataclass(frozen=True)
class Catch(_Board):
    """A ball falls from a random column; be under it. Actions: left, stay, right; ±1 at the end.

    >>> Catch().optimal_return, round(Catch().random_return, 3)
    (1.0, -0.6)
    """

    rows: int = 10
    columns: int = 5
    image: bool = False

    @property
    def spec(self) -> EnvironmentSpec:
        """Board as one-hot pixels: the ball and the paddle."""
        return self._spec("laser/Catch", self.rows, self.columns, 3)

    @property
    def optimal_return(self) -> float:
        """Every ball can be caught if the paddle has time to reach the wall."""
        return 1.0 if self.rows - 1 >= self.columns // 2 else float("nan")

    @property
    def random_return(self) -> float:
        """The ball's column is uniform whatever the paddle does, so each is right with 1 / columns."""
        return 2.0 / self.columns - 1.0

    def begin(self, seed: Ints) -> Positions:
        """The seed decides the ball's column."""
        middle = np.full(seed.shape, self.columns // 2, np.int64)
        return {"ball": seed % self.columns, "row": np.zeros_like(seed), "paddle": middle}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        """The paddle moves, the ball falls by one row."""
        paddle = np.clip(positions["paddle"] + action - 1, 0, self.columns - 1)
        row = positions["row"] + 1
        ended = row == self.rows - 1
        reward = np.where(ended, np.where(paddle == positions["ball"], 1.0, -1.0), 0.0).astype(np.float32)
        return TaskOutcome(
            {"ball": positions["ball"], "row": row, "paddle": paddle}, reward, ended, np.zeros_like(ended)
        )

    def _cells(self, positions: Positions) -> NDArray[np.float32]:
        """Two ones on an empty board."""
        every = np.arange(len(positions["row"]))
        board = np.zeros((len(every), self.rows, self.columns), np.float32)
        board[every, positions["row"], positions["ball"]] = 1
        board[every, self.rows - 1, positions["paddle"]] = 1
        return board


@dataclass(frozen=True)
class DeepSea(_Board):
    """Fall one row a step; only N times "right" reaches the treasure, and each "right" costs 0.01/N. Exploration is all.

    With `randomize`, which of the two actions means right differs from cell to cell, by a fixed mask.

    >>> DeepSea(10).optimal_return
    0.99
    """

    size: int = 10
    randomize: bool = True
    mask_seed: int = 42
    image: bool = False
    _mask: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    optimal_return = 0.99  # right at every step

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"expected a DeepSea of size 1 or more, got {self.size}; use e.g. laser/DeepSea-10")
        mask = np.random.default_rng(self.mask_seed).integers(0, 2, (self.size, self.size))
        object.__setattr__(self, "_mask", mask if self.randomize else np.ones_like(mask))

    @property
    def spec(self) -> EnvironmentSpec:
        """Board as one-hot pixels: where the diver is; empty when the bottom is reached."""
        return self._spec(f"laser/DeepSea-{self.size}", self.size, self.size, 2)

    @property
    def random_return(self) -> float:
        """Half of the costs, and the treasure once in 2ᴺ."""
        return 2.0**-self.size - 0.005

    def right(self, row: Ints, column: Ints) -> Ints:
        """The action that means "right" in these cells."""
        return self._mask[row, column]

    def begin(self, seed: Ints) -> Positions:
        """Always the corner."""
        return {"row": np.zeros_like(seed), "column": np.zeros_like(seed)}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        """Left or right, and down."""
        row, column = positions["row"], positions["column"]
        right = action == self._mask[row, column]
        treasure = right & (column == self.size - 1)  # only the last row's corner can be reached that far right
        reward = (treasure - right * (0.01 / self.size)).astype(np.float32)
        column = np.clip(column + np.where(right, 1, -1), 0, self.size - 1)
        ended = row + 1 == self.size
        return TaskOutcome({"row": row + 1, "column": column}, reward, ended, np.zeros_like(ended))

    def _cells(self, positions: Positions) -> NDArray[np.float32]:
        """One one, none below the bottom."""
        row = positions["row"]
        board, inside = np.zeros((len(row), self.size, self.size), np.float32), np.flatnonzero(row < self.size)
        board[inside, row[inside], positions["column"][inside]] = 1
        return board


@dataclass(frozen=True)
class TMaze:
    """A cue on the first row says which way to turn at the end of a corridor, where nothing shows it any more. Memory is all.

    Actions: on, left, right. The turn gives +1 or −1; turns in the corridor and walking into the end do nothing, and after
    `3·length + 3` steps the episode is truncated with 0.

    With `one_cue` only the right turn is announced, and it is right in seven of ten episodes: who remembers nothing takes every silent
    episode for a left one, or every left one for forgotten. With `tiles` it is seen as pictures like those of `envs.grid`, so that it mixes
    with MiniGrid's tasks.

    >>> TMaze(10).optimal_return, TMaze(10, tiles=True).spec.observation.shape
    (1.0, (3, 28, 28))
    """

    length: int = 10
    one_cue: bool = False
    tiles: bool = False
    optimal_return = 1.0  # turn as the cue said
    # Left and right are equally likely, and so are their rewards. Without memory no policy gets more (0.4 with `one_cue`).
    random_return = 0.0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(
                f"expected a TMaze with a corridor of 1 or more, got {self.length}; use e.g. laser/TMaze-10"
            )

    @property
    def spec(self) -> EnvironmentSpec:
        """Seen: cue left, cue right, junction; the corridor shows nothing."""
        observation = ObservationSpec(SHAPE, "uint8", 1 / 255) if self.tiles else ObservationSpec((3,))
        return EnvironmentSpec(f"laser/TMaze-{self.length}", observation, DiscreteActions(3))

    @property
    def most_steps(self) -> int:
        """Steps to the truncation."""
        return 3 * self.length + 3

    def begin(self, seed: Ints) -> Positions:
        """The seed decides the cue."""
        cue = np.where(seed % 10 < 7, RIGHT, LEFT) if self.one_cue else LEFT + seed % 2  # noqa: PLR2004
        return {"cue": cue, "place": np.zeros_like(seed), "step": np.zeros_like(seed)}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        """On, or a turn."""
        place, step = positions["place"], positions["step"] + 1
        at_junction = place == self.length
        turned = at_junction & (action > 0)
        reward = np.where(turned, np.where(action == positions["cue"], 1.0, -1.0), 0.0).astype(np.float32)
        place = np.minimum(place + (action == 0), self.length)
        return TaskOutcome(
            {"cue": positions["cue"], "place": place, "step": step}, reward, turned, ~turned & (step >= self.most_steps)
        )

    def observe(self, positions: Positions) -> Array:
        """The cue at the very start only."""
        if self.tiles:
            return _maze_pictures()[self._sight(positions)]
        return self._features(positions)

    def _sight(self, positions: Positions) -> Ints:
        """Which of the pictures: corridor, junction, cue left, cue right."""
        at_junction = (positions["place"] == self.length).astype(np.int64)
        return np.where(self._shows(positions), 1 + positions["cue"], at_junction)

    def _shows(self, positions: Positions) -> NDArray[np.bool_]:
        shows: NDArray[np.bool_] = positions["step"] == 0
        if self.one_cue:
            shows = shows & (positions["cue"] == RIGHT)
        return shows

    def _features(self, positions: Positions) -> NDArray[np.float32]:
        place, shows = positions["place"], self._shows(positions)
        seen = (
            shows & (positions["cue"] == LEFT),
            shows & (positions["cue"] == RIGHT),
            place == self.length,
        )
        return np.stack(seen, axis=1).astype(np.float32)

    def draw(self, positions: Positions) -> NDArray[np.float32]:
        """The corridor in the middle; the cue above or below its start while it shows."""
        board = np.zeros((3, self.length + 1), np.float32)
        board[1, positions["place"][0]] = 1
        board[0, 0], board[2, 0] = self._features(positions)[0, :2]
        return board


@functools.cache
def _maze_pictures() -> NDArray[np.uint8]:
    """Corridor, junction, corridor with the cue left and right: the agent in the middle of the last row, looking along the corridor."""
    corridor = np.full((VIEW, VIEW), tile_number("unseen"))
    corridor[:, MIDDLE - 1 : MIDDLE + 2] = tile_number("wall", "grey")
    corridor[:, MIDDLE] = tile_number("empty")
    corridor[-1, MIDDLE] = tile_number("agent")
    junction = np.full_like(corridor, tile_number("unseen"))
    junction[-2], junction[-1] = tile_number("wall", "grey"), tile_number("empty")
    junction[-1, MIDDLE] = tile_number("agent")
    left, right = corridor.copy(), corridor.copy()
    left[-2, MIDDLE - 1] = right[-2, MIDDLE + 1] = tile_number("ball", "green")
    return np.stack([draw(view.ravel()) for view in (corridor, junction, left, right)])
