"""Tasks with known optimal returns for experiments on sharing: Convention, KeyDoor, SparseGrid. `task_of` makes any task by name.

They follow the rules of `tasks`: arrays of slots, and an episode is a function of its seed and its actions.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from laser_rl.config import problems
from laser_rl.envs.records import Array, DiscreteActions, EnvironmentSpec, Ints, ObservationSpec, seed_of
from laser_rl.envs.tasks import CHECKED, Catch, DeepSea, Floats, Positions, Positive, Task, TaskOutcome, TMaze
from laser_rl.errors import ConfigError, EnvironmentRefused

Several = Annotated[int, Field(ge=2, strict=True)]
LayoutSeed = Annotated[int, Field(ge=0, strict=True)]
Bonuses = tuple[Annotated[float, Field(strict=True)], ...]
UP, DOWN, LEFT, RIGHT = range(4)  # in the grids


@dataclass(config=CHECKED)
class Convention(Task):
    """The first action sets a mode that is never shown again; then the right answer to a cue is (cue + mode) mod `modes`.

    Each of `steps` answers gives 1/`steps` if right. An agent that always chooses the same mode needs no memory, so each mode is a
    convention as good as the others, and what one member learns is wrong for a member with another one. `bonus[m]` is paid at once for
    choosing mode m, `late_bonus[m]` with the last reward: where both are set, the discount decides which mode is the best.
    """

    modes: Several = 3
    steps: Positive = 8
    bonus: Bonuses = ()  # one number a mode; empty: none is paid
    late_bonus: Bonuses = ()

    def __post_init__(self) -> None:
        none = (0.0,) * self.modes
        self.bonus, self.late_bonus = self.bonus or none, self.late_bonus or none
        if not len(self.bonus) == len(self.late_bonus) == self.modes:
            raise ValueError(f"bonus {self.bonus} and late_bonus {self.late_bonus} need {self.modes} numbers, one each")
        # Seen: "choose now", or the cue; nothing after the last answer.
        self.width = 1 + self.modes
        self.spec = EnvironmentSpec("laser/Convention", ObservationSpec((1 + self.modes,)), DiscreteActions(self.modes))
        # The mode that pays most, and every answer right. Undiscounted.
        self.optimal_return = 1.0 + max(now + late for now, late in zip(self.bonus, self.late_bonus, strict=True))
        # Each answer is right with 1 / modes, and each mode is as likely.
        self.random_return = (1.0 + sum(self.bonus) + sum(self.late_bonus)) / self.modes

    def begin(self, seed: Ints) -> Positions:
        return {"seed": seed.astype(np.int64), "step": np.zeros(seed.shape, np.int64), "mode": np.full(seed.shape, -1)}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        seed, step = positions["seed"], positions["step"]
        choosing, ended = step == 0, step == self.steps
        mode = np.where(choosing, action, positions["mode"])
        right = ~choosing & (action == (self._cue(seed, step) + mode) % self.modes)
        reward = right / self.steps + choosing * np.array(self.bonus)[mode] + ended * np.array(self.late_bonus)[mode]
        after = {"seed": seed, "step": step + 1, "mode": mode}
        return after, reward.astype(np.float32), ended, np.zeros_like(ended)

    def observe(self, positions: Positions) -> Array:
        step = positions["step"]
        seen = np.zeros((len(step), 1 + self.modes), np.float32)
        going = np.flatnonzero(step <= self.steps)
        cue = self._cue(positions["seed"][going], step[going])
        seen[going, np.where(step[going] == 0, 0, 1 + cue)] = 1
        return seen

    def _cue(self, seed: Ints, step: Ints) -> Ints:
        return seed_of(0, seed, step) % self.modes


class _GridWalk(Task):
    """A walk on a square grid from the upper left corner to a goal that pays 1. Actions: up, down, left, right."""

    size: int
    optimal_return = 1.0  # the shortest way never takes more than `most_steps`

    def _lay_out(self, after: Ints, goal: int, most_steps: int, features: int) -> None:
        """`after[place, action]` is where an action leads."""
        self._after, self._goal, self.most_steps, self.width = after, goal, most_steps, self.size
        name = f"laser/{type(self).__name__}-{self.size}"
        self.spec = EnvironmentSpec(name, ObservationSpec((features,)), DiscreteActions(4))

    @cached_property
    def random_return(self) -> float:  # type: ignore[override]  # a number, worked out where it is asked for
        """P_k(s) = mean over actions of P_{k-1}(after[s, a]), P(goal) = 1: a uniform walk from s meets the goal within k steps."""
        after, chance = self._after.copy(), np.zeros(len(self._after))
        after[self._goal], chance[self._goal] = self._goal, 1
        for _ in range(self.most_steps):
            chance = chance[after].mean(axis=1)
        return float(chance[0])

    def begin(self, seed: Ints) -> Positions:
        return {"place": np.zeros(seed.shape, np.int64), "step": np.zeros(seed.shape, np.int64)}

    def advance(self, positions: Positions, action: Ints) -> TaskOutcome:
        place, step = self._after[positions["place"], action], positions["step"] + 1
        there, late = place == self._goal, step >= self.most_steps
        return {"place": place, "step": step}, there.astype(np.float32), there, ~there & late


@dataclass(config=CHECKED)
class KeyDoor(_GridWalk):
    """Fetch the key, then go to the door: 1 there, with the key, and nothing anywhere else. Actions: up, down, left, right.

    Start is the upper left corner. Key and door are where `layout_seed` put them, the same in every episode, at least `size` − 1 steps
    from each other; after 6·`size` steps the episode is truncated.
    """

    size: Several = 6
    layout_seed: LayoutSeed = 0

    def __post_init__(self) -> None:
        cells = self.size**2  # a place is a cell, + size² with the key
        row, column = np.divmod(np.arange(cells), self.size)
        key = _pick(np.flatnonzero(row + column >= self.size / 2), self.layout_seed, 0)
        # One of the corners beside the start is always as far as that: their distances from any cell add up to 2·(size - 1).
        distance = np.abs(row - key // self.size) + np.abs(column - key % self.size)
        door = _pick(np.flatnonzero(distance[1:] >= self.size - 1) + 1, self.layout_seed, 1)  # never the start
        self.key, self.door = divmod(key, self.size), divmod(door, self.size)
        without = _open_moves(self.size)
        after = np.concatenate([np.where(without == key, key + cells, without), without + cells])
        self._lay_out(after, cells + door, 6 * self.size, features=cells + 1)

    def observe(self, positions: Positions) -> Array:
        has_key, cell = np.divmod(positions["place"], self.size**2)
        return np.concatenate([_one_hot(cell, self.size**2), has_key[:, np.newaxis]], 1, dtype=np.float32)


@dataclass(config=CHECKED)
class SparseGrid(_GridWalk):
    """Rows of free cells with walls between them, each with one gap; 1 at the goal in the last row, nothing on the way there.

    Start is the upper left corner. Each gap is `size` // 4 columns from the one above, the goal so far from the last gap: `layout_seed`
    decides to which side, so all layouts are about equally hard. They are the same in every episode, which is truncated after
    8·`size`² steps. Actions: up, down, left, right.
    """

    size: Several = 12
    layout_seed: LayoutSeed = 0

    def __post_init__(self) -> None:
        rows, shift, column = np.arange(self.size), max(1, self.size // 4), 0
        gaps = np.zeros_like(rows)  # the way down in each row; last, the goal's column
        for row, to_left in enumerate(seed_of(self.layout_seed, np.zeros_like(rows), rows) % 2):
            left, right = column - shift, column + shift
            # A turn that would lead outside is taken to the other side.
            column = left if right >= self.size or (to_left and left >= 0) else right
            gaps[row] = column
        after, here = _open_moves(self.size), np.arange(self.size**2)
        row_of, column_of = np.divmod(here, self.size)
        # Row -1 is the last one: harmless, since no move leads up from the first row nor down from the last.
        after[:, UP] = np.where(column_of == gaps[row_of - 1], after[:, UP], here)
        after[:, DOWN] = np.where(column_of == gaps[row_of], after[:, DOWN], here)
        self.gaps = tuple(gaps.tolist())
        self._lay_out(after, self.size * (self.size - 1) + self.gaps[-1], 8 * self.size**2, features=self.size**2)

    def observe(self, positions: Positions) -> Array:
        return _one_hot(positions["place"], self.size**2)


def _open_moves(size: int) -> Ints:
    """Where each action leads from each cell of a square without walls inside."""
    row, column = np.divmod(np.arange(size**2), size)
    up, down = np.maximum(row - 1, 0), np.minimum(row + 1, size - 1)
    left, right = np.maximum(column - 1, 0), np.minimum(column + 1, size - 1)
    return np.stack([up * size + column, down * size + column, row * size + left, row * size + right], axis=1)


def _one_hot(place: Ints, count: int) -> Floats:
    seen = np.zeros((len(place), count), np.float32)
    seen[np.arange(len(place)), place] = 1
    return seen


def _pick(cells: Ints, seed: int, draw: int) -> int:
    """One of `cells`, by a hash and not by NumPy's generator, whose stream may change: a layout must never change."""
    return int(cells[seed_of(seed, np.array(0), np.array(draw)) % len(cells)])


def task_of(name: str, options: Mapping[str, Any]) -> Task:
    kind, _, size = name.removeprefix("laser/").partition("-")
    unsized: dict[str, Callable[..., Task]] = {"Catch": Catch, "Convention": Convention}
    sized = {"DeepSea": DeepSea, "TMaze": TMaze, "KeyDoor": KeyDoor, "SparseGrid": SparseGrid}
    make = sized.get(kind) or unsized.get(kind)
    if make is None or (size and (kind in unsized or not size.isdecimal())):
        raise EnvironmentRefused(
            "expected laser/Catch, laser/Convention, laser/DeepSea-<size>, laser/KeyDoor-<size>, laser/SparseGrid-<size> or "
            f"laser/TMaze-<length>, got {name!r}; e.g. laser/DeepSea-10"
        )
    own: dict[str, Any] = {"length" if make is TMaze else "size": int(size)} if size else {}
    try:
        return make(**own, **options)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}; leave that option out") from error
    except ValidationError as error:
        raise ConfigError(f"{name}: {problems(error, lambda option: f'there is no option {option}')}") from None
