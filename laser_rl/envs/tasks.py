"""Our own tasks: small ones whose answers are known, stepped as arrays, hundreds of thousands of steps a second on one core.

An episode is a function of its seed and its actions. `Catch` and `DeepSea` follow bsuite (Osband et al., 2020), `TMaze` Bakker (2002).
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from laser_rl.envs.grid import MIDDLE, SHAPE, VIEW, draw, tile_number
from laser_rl.envs.records import (
    Array,
    DiscreteActions,
    Environments,
    EnvironmentSpec,
    Flags,
    Ints,
    ObservationSpec,
    Rows,
    check_slots,
    empty_block,
    seed_of,
)

Floats = NDArray[np.float32]
Positions = dict[str, Ints]  # what an episode is, one entry a slot
TaskOutcome = tuple[Positions, Floats, Flags, Flags]  # what a step led to: with rewards, terminated, truncated
# Options of tasks come from files: `task_of` says which one is wrong.
CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)
Positive = Annotated[int, Field(ge=1, strict=True)]
LEFT, RIGHT = 1, 2  # in a TMaze
PIXELS_PER_CELL = 16
BRIGHT, DARK = (250, 200, 60), (24, 28, 48)


class Task(Protocol):
    """The rules of a task, for any number of slots at once."""

    spec: EnvironmentSpec
    optimal_return: float  # of the best policy, on average
    random_return: float  # of uniformly random actions, on average
    width: int  # of a row of cells, as films show features

    def begin(self, seed: Ints) -> Positions:
        """The first positions of episodes with these seeds: arrays of their own, which are written in place."""

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        """One step."""

    def observe(self, positions: Positions) -> Array:
        """Observations of these states."""


class TaskEnvironments(Environments):
    """A task in `slots` copies, all in one set of arrays, with an exact state."""

    def __init__(self, task: Task, *, slots: int, seed: int) -> None:
        self._task, self._seed = task, seed
        self.spec, self.slots = task.spec, slots
        self.optimal_return, self.random_return = task.optimal_return, task.random_return
        # The current row of each slot, without its observation, is kept, so that `load_state_dict` can give it again.
        self._now = now = empty_block(ObservationSpec(()), slots).rows
        now.seed[:], now.is_first[:] = seed_of(seed, np.arange(slots), now.episode), True
        self._positions = task.begin(now.seed)
        self._state: dict[str, NDArray[Any]] = {
            "first": now.is_first,
            **{name: getattr(now, name) for name in ("episode", "seed", "reward", "terminated", "truncated")},
            **{f"position.{name}": values for name, values in self._positions.items()},
        }

    def reset(self) -> Rows:
        return self._rows(np.arange(self.slots))

    def step(self, slots: Ints, action: Array) -> Rows:
        now = self._now
        ended = now.terminated[slots] | now.truncated[slots]
        now.is_first[slots] = ended
        going, chosen = slots, action
        if ended.any():
            going, chosen = slots[~ended], action[~ended]
            self._begin(slots[ended])
        before = {name: values[going] for name, values in self._positions.items()}
        after, *outcome = self._task.advance(before, chosen.astype(np.int64, copy=False))
        for name, values in after.items():
            self._positions[name][going] = values
        now.reward[going], now.terminated[going], now.truncated[going] = outcome
        return self._rows(slots)

    def _begin(self, slots: Ints) -> None:
        now = self._now
        now.episode[slots] += 1
        now.seed[slots] = seed_of(self._seed, slots, now.episode[slots])
        for name, values in self._task.begin(now.seed[slots]).items():
            self._positions[name][slots] = values
        now.reward[slots] = 0
        now.terminated[slots] = now.truncated[slots] = False

    def _rows(self, slots: Ints) -> Rows:
        observation = self._task.observe({name: values[slots] for name, values in self._positions.items()})
        return Rows(slots, observation, *(field[slots] for field in self._now[2:]))  # type: ignore[arg-type]

    def state_dict(self) -> Mapping[str, Array]:
        return {name: values.copy() for name, values in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        check_slots(state, self.slots)
        for name, values in self._state.items():
            values[:] = state[name]
        return self._rows(np.arange(self.slots))


class TaskEnv(gymnasium.Env[NDArray[Any], Any]):
    """A task as a Gymnasium environment with pixels to look at, for videos and for other people's tools."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012  (Gymnasium's own way)
    render_mode = "rgb_array"

    def __init__(self, task: Task) -> None:
        self._task, seen, actions = task, task.spec.observation, task.spec.action
        assert isinstance(actions, DiscreteActions)  # noqa: S101  (all our tasks are)
        self.action_space = gymnasium.spaces.Discrete(actions.count)
        self.observation_space = gymnasium.spaces.Box(0, round(1 / seen.scale), seen.shape, np.dtype(seen.dtype).type)
        self._positions = task.begin(np.zeros(1, np.int64))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        self._positions = self._task.begin(np.array([chosen]))
        return self._task.observe(self._positions)[0], {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self._positions, reward, terminated, truncated = self._task.advance(self._positions, np.array([action]))
        return self._task.observe(self._positions)[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> NDArray[np.uint8]:
        """What the agent sees: pictures in colour as they are, all else as cells, bright where a number is 1."""
        seen = self._task.observe(self._positions)[0]
        if len(seen) == len(BRIGHT) and seen.ndim == len(SHAPE):
            pixels: Array = seen.transpose(1, 2, 0)
        else:
            cells = np.pad(seen.ravel(), (0, -seen.size % self._task.width)).reshape(-1, self._task.width, 1)
            pixels = np.where(cells == 1, BRIGHT, DARK)
        return pixels.astype(np.uint8).repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)


class _Board(Task):
    """A board of cells, seen as features or, with `image`, as one channel of a picture."""

    image: bool

    def observe(self, positions: Positions) -> Array:
        board = self._cells(positions)
        return board.astype(np.uint8)[:, np.newaxis] if self.image else board.reshape(len(board), -1)

    def _spec(self, name: str, rows: int, columns: int, actions: int) -> EnvironmentSpec:
        seen = ObservationSpec((1, rows, columns), "uint8") if self.image else ObservationSpec((rows * columns,))
        self.width = columns
        return EnvironmentSpec(name, seen, DiscreteActions(actions))

    def _cells(self, positions: Positions) -> Floats:
        raise NotImplementedError


@dataclass(config=CHECKED)
class Catch(_Board):
    """A ball falls from a random column; be under it. Actions: left, stay, right; ±1 at the end."""

    rows: Positive = 10
    columns: Positive = 5
    image: bool = False

    def __post_init__(self) -> None:
        self.spec = self._spec("laser/Catch", self.rows, self.columns, 3)
        # Every ball can be caught if the paddle has time to reach the wall.
        self.optimal_return = 1.0 if self.rows - 1 >= self.columns // 2 else float("nan")
        # The ball's column is uniform whatever the paddle does, so each is right with 1 / columns.
        self.random_return = 2.0 / self.columns - 1.0

    def begin(self, seed: Ints) -> Positions:
        middle = np.full(seed.shape, self.columns // 2, np.int64)
        return {"ball": seed % self.columns, "row": np.zeros_like(seed), "paddle": middle}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        ball, row = positions["ball"], positions["row"] + 1
        paddle = np.clip(positions["paddle"] + action - 1, 0, self.columns - 1)
        ended = row == self.rows - 1
        reward = np.where(ended, np.where(paddle == ball, 1.0, -1.0), 0.0).astype(np.float32)
        return {"ball": ball, "row": row, "paddle": paddle}, reward, ended, np.zeros_like(ended)

    def _cells(self, positions: Positions) -> Floats:
        every = np.arange(len(positions["row"]))
        board = np.zeros((len(every), self.rows, self.columns), np.float32)
        board[every, positions["row"], positions["ball"]] = 1
        board[every, self.rows - 1, positions["paddle"]] = 1
        return board


@dataclass(config=CHECKED)
class DeepSea(_Board):
    """Fall one row a step; only N times "right" reaches the treasure, and each "right" costs 0.01/N. Exploration is all.

    Which of the two actions means right differs from cell to cell, by a fixed mask.
    """

    size: Positive = 10
    image: bool = False
    optimal_return = 0.99  # right at every step

    def __post_init__(self) -> None:
        # The action that means "right", by row and column; the seed is bsuite's.
        self.mask = np.random.default_rng(42).integers(0, 2, (self.size, self.size))
        self.spec = self._spec(f"laser/DeepSea-{self.size}", self.size, self.size, 2)
        self.random_return = 2.0**-self.size - 0.005  # half of the costs, and the treasure once in 2ᴺ

    def begin(self, seed: Ints) -> Positions:
        return {"row": np.zeros_like(seed), "column": np.zeros_like(seed)}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        row, column = positions["row"], positions["column"]
        right = action == self.mask[row, column]
        treasure = right & (column == self.size - 1)  # only the last row's corner can be reached that far right
        reward = (treasure - right * (0.01 / self.size)).astype(np.float32)
        column = np.clip(column + np.where(right, 1, -1), 0, self.size - 1)
        ended = row + 1 == self.size
        return {"row": row + 1, "column": column}, reward, ended, np.zeros_like(ended)

    def _cells(self, positions: Positions) -> Floats:
        """Where the diver is; nothing once the bottom is reached."""
        row = positions["row"]
        board, inside = np.zeros((len(row), self.size, self.size), np.float32), np.flatnonzero(row < self.size)
        board[inside, row[inside], positions["column"][inside]] = 1
        return board


@dataclass(config=CHECKED)
class TMaze(Task):
    """A cue on the first row says which way to turn at the end of a corridor, where nothing shows it any more. Memory is all.

    Actions: on, left, right. The turn gives +1 or −1; turns in the corridor and walking into the end do nothing, and after
    `3·length + 3` steps the episode is truncated with 0.

    With `one_cue` only the right turn is announced, and it is right in seven of ten episodes: an agent without memory takes every silent
    episode for a left one, or every left one for forgotten. With `tiles` it is seen as pictures like those of `envs.grid`, so that it mixes
    with MiniGrid's tasks.
    """

    length: Positive = 10
    one_cue: bool = False
    tiles: bool = False
    optimal_return = 1.0  # turn as the cue said
    # Left and right are equally likely, and so are their rewards. Without memory no policy gets more (0.4 with `one_cue`).
    random_return = 0.0
    width = 3

    def __post_init__(self) -> None:
        # Seen: cue left, cue right, junction; the corridor shows nothing.
        observation = ObservationSpec(SHAPE, "uint8", 1 / 255) if self.tiles else ObservationSpec((3,))
        self.spec = EnvironmentSpec(f"laser/TMaze-{self.length}", observation, DiscreteActions(3))

    def begin(self, seed: Ints) -> Positions:
        cue = np.where(seed % 10 < 7, RIGHT, LEFT) if self.one_cue else LEFT + seed % 2  # noqa: PLR2004
        return {"cue": cue, "place": np.zeros_like(seed), "step": np.zeros_like(seed)}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        cue, place, step = positions["cue"], positions["place"], positions["step"] + 1
        turned = (place == self.length) & (action > 0)
        reward = np.where(turned, np.where(action == cue, 1.0, -1.0), 0.0).astype(np.float32)
        place = np.minimum(place + (action == 0), self.length)
        late = ~turned & (step >= 3 * self.length + 3)
        return {"cue": cue, "place": place, "step": step}, reward, turned, late

    def observe(self, positions: Positions) -> Array:
        shows, cue, junction = positions["step"] == 0, positions["cue"], positions["place"] == self.length
        left, right = shows & (cue == LEFT) & (not self.one_cue), shows & (cue == RIGHT)
        if not self.tiles:
            return np.stack((left, right, junction), axis=1).astype(np.float32)
        pictures: Array = _maze_pictures()[np.where(left | right, 2 + right, junction)]
        return pictures


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
