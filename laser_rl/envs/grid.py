"""MiniGrid's partial view as small pictures: seven by seven cells in front of the agent, four by four pixels each.

MiniGrid copies and turns a grid of objects for every observation and fills the view cell by cell, which takes ten times as long as its
rules do. Here the view is read off the world through a table of indices, what walls hide is found once for each view, and tiles come
from a table. A test compares every cell with MiniGrid's own answer.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.instructions import picture_space, with_instruction
from laser_rl.errors import EnvironmentRefused

Picture = NDArray[np.uint8]
VIEW, TILE = 7, 4
SHAPE = (3, VIEW * TILE, VIEW * TILE)
# The agent stands in the middle of the last row and looks up.
MIDDLE, AGENT_CELL = VIEW // 2, VIEW * VIEW - 1 - VIEW // 2
FORWARD = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up, as MiniGrid counts directions
# The numbers that MiniGrid gives to what it knows.
OBJECTS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "purple": (160, 60, 255),
    "yellow": (255, 255, 0),
    "grey": (120, 120, 120),
}
OPEN, CLOSED, LOCKED = range(3)
# Pixels: # in the object's colour, + in half of it, . the ground, o white, blank black.
GROUND, WHITE = (40, 40, 40), (255, 255, 255)
SHAPES = {
    "unseen": ("    ", "    ", "    ", "    "),
    "empty": ("....", "....", "....", "...."),
    "wall": ("####", "####", "####", "####"),
    "floor": ("++++", "++++", "++++", "++++"),
    "door": ("#..#", "#..#", "#..#", "#..#"),
    "door closed": ("####", "#..#", "#..#", "####"),
    "door locked": ("####", "#++#", "#++#", "####"),
    "key": (".##.", ".##.", ".#..", ".##."),
    "ball": ("....", ".##.", ".##.", "...."),
    "box": ("+##+", "#++#", "#++#", "+##+"),
    "goal": ("#+#+", "+#+#", "#+#+", "+#+#"),
    "lava": ("####", "++++", "####", "++++"),
    "agent": (".oo.", ".oo.", "oooo", "o..o"),
}
STATES = {OPEN: "", CLOSED: " closed", LOCKED: " locked"}
# Missions that differ between episodes only in what the grid shows anyway: there is one object of the kind to be fetched.
SHOWN = ("KeyCorridor", "UnlockPickup", "BlockedUnlockPickup", "LockedRoom", "ObstructedMaze")


def tile_number(kind: str, colour: str = "red", state: int = 0, *, carried: bool = False) -> int:
    """Where a cell's tile is in the table; `carried`: by the agent, in its own cell."""
    number = (OBJECTS.index(kind) * len(COLOURS) + list(COLOURS).index(colour)) * len(STATES) + state
    return number + carried * len(OBJECTS) * len(COLOURS) * len(STATES)


def tile(kind: str, colour: str = "red", state: int = 0, *, carried: bool = False) -> Picture:
    """The pixels [3, 4, 4] of a cell. What the agent carries stands on a white bar, in its place."""
    rows = SHAPES[kind + STATES[state] if kind == "door" else kind]
    full = np.array(COLOURS[colour])
    paint = {" ": np.zeros(3), ".": np.array(GROUND), "o": np.array(WHITE), "#": full, "+": full // 2}
    pixels = np.array([[paint[mark] for mark in row] for row in rows], np.uint8)
    if carried:
        pixels[-1] = WHITE
    return pixels.transpose(2, 0, 1)


@functools.cache
def tiles() -> NDArray[np.uint32]:
    """The table of all tiles, [number, 12]: four pixels of a channel are one number, so that a picture is put together in few moves."""
    cells = [(kind, colour, state) for kind in OBJECTS for colour in COLOURS for state in STATES]
    every = np.stack([tile(*cell, carried=carried) for carried in (False, True) for cell in cells])
    return np.ascontiguousarray(every).reshape(len(every), -1).view(np.uint32)


def draw(numbers: Sequence[int] | NDArray[np.int64]) -> Picture:
    cells = tiles().take(numbers, axis=0).reshape(VIEW, VIEW, 3, TILE)
    return cells.transpose(2, 0, 3, 1).copy().view(np.uint8).reshape(SHAPE)


class GridPictures(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A MiniGrid environment that is seen as pictures [3, 28, 28].

    The agent stands in the middle of the last row and looks up; what it carries shows in its cell. The compass that MiniGrid hands out
    beside the view is dropped: it is not seen. So is the mission, except where episodes differ in it and nothing else tells; there it is an
    instruction in a row of its own, [3, 29, 28].
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        bare: Any = env.unwrapped
        if bare.agent_view_size != VIEW:
            raise EnvironmentRefused(
                f"{type(bare).__name__}: expected a view of {VIEW} by {VIEW} cells, got {bare.agent_view_size}; "
                "leave the option agent_view_size out"
            )
        varies = bool(bare.observation_space["mission"].ordered_placeholders)
        told = varies and not type(bare).__name__.startswith(SHOWN)
        self.observation_space = picture_space(SHAPE, instruction=told)
        # MiniGrid's reset and step end with this call; it is most of what they cost.
        bare.gen_obs = (lambda: with_instruction(self.picture(), bare.mission)) if told else self.picture
        self._bare = bare

    def picture(self) -> Picture:
        return draw(self.numbers())

    def numbers(self) -> list[int]:
        bare = self._bare
        grid, (x, y), carrying = bare.grid, bare.agent_pos, bare.carrying
        window = _window(grid.width, grid.height, int(x), int(y), int(bare.agent_dir))
        numbers = [
            EMPTY if thing is None else NUMBERS[thing.type, thing.color] if thing.type != "door" else _door(thing)
            for thing in window([*grid.grid, OUTSIDE])
        ]
        if not bare.see_through_walls:
            for cell in _dark(bytes(numbers).translate(CLEAR)):
                numbers[cell] = UNSEEN
        numbers[AGENT_CELL] = AGENT if carrying is None else NUMBERS[carrying.type, carrying.color] + CARRIED
        return numbers


UNSEEN, EMPTY, AGENT = tile_number("unseen"), tile_number("empty"), tile_number("agent")
NUMBERS = {(kind, colour): tile_number(kind, colour) for kind in OBJECTS for colour in COLOURS}
CARRIED = tile_number("unseen", carried=True)
CLOSED_DOORS = {door for door in range(tile_number("door"), tile_number("key")) if door % len(STATES) != OPEN}
OPAQUE = CLOSED_DOORS.union(range(tile_number("wall"), tile_number("floor")))
CLEAR = bytes(number not in OPAQUE for number in range(256))
OUTSIDE = SimpleNamespace(type="wall", color="grey")  # what lies around the grid


def _door(door: Any) -> int:
    return NUMBERS["door", door.color] + (OPEN if door.is_open else LOCKED if door.is_locked else CLOSED)


@functools.cache
def _window(width: int, height: int, x: int, y: int, direction: int) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Takes the 49 cells in front of an agent out of the world's cells, which are followed by one that is outside."""
    forward_x, forward_y = FORWARD[direction]
    places = []
    for ahead in reversed(range(VIEW)):
        for right in range(-MIDDLE, MIDDLE + 1):
            column, row = x + ahead * forward_x - right * forward_y, y + ahead * forward_y + right * forward_x
            inside = 0 <= column < width and 0 <= row < height
            places.append(row * width + column if inside else width * height)
    return operator.itemgetter(*places)


@functools.lru_cache(maxsize=1 << 16)  # 3 µs for a view that was seen before, 30 for a new one
def _dark(clear: bytes) -> tuple[int, ...]:
    """The cells that light from the agent does not reach. It spreads sideways and ahead from clear cells, in a row first to the right."""
    lit = {AGENT_CELL}
    for row in range(VIEW * (VIEW - 1), -1, -VIEW):
        for side, columns in ((1, range(VIEW - 1)), (-1, range(VIEW - 1, 0, -1))):
            for cell in (row + column for column in columns):
                if cell in lit and clear[cell]:
                    lit |= {cell + side, cell - VIEW, cell + side - VIEW}
    return tuple(cell for cell in range(VIEW * VIEW) if cell not in lit)
