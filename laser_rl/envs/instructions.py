"""Instructions in words (DMLab's INSTR), written into their picture: one more row of pixels holds the numbers of the words.

So an observation stays one array of bytes: the replay compresses it, a worker process shares it, and no observation can lose its words. The
row at the bottom, taken as channels · width bytes channel by channel, begins with two bytes for each of `words` words, the lower one first.
0 is no word; any other number stands for a word, and for all other words that have the same hash.
"""

import re
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.errors import EnvironmentRefused

WORDS = 16  # of an instruction that are kept; the rest is dropped
VOCABULARY = 1000  # how many numbers words can have, including 0 for no word
NUMBER = np.dtype("<u2")


class PictureWithInstruction(spaces.Box):
    """The space of pictures with an instruction. A wrapper that changes the pictures replaces this space; then no words are read."""

    def __init__(self, *, channels: int, height: int, width: int) -> None:
        needed = WORDS * NUMBER.itemsize
        if channels * width < needed:
            raise EnvironmentRefused(
                f"expected a picture whose rows hold {needed} bytes, two for each of {WORDS} words, got {channels} channels of "
                f"width {width}; make it {-(-needed // channels)} wide, or leave instructions out"
            )
        super().__init__(0, 255, (channels, height + 1, width), np.uint8)
        self.channels, self.height, self.width = channels, height, width


def picture_space(shape: tuple[int, int, int], *, instruction: bool) -> spaces.Box:
    """The space of pictures [C, H, W], with an instruction or without."""
    channels, height, width = shape
    if instruction:
        return PictureWithInstruction(channels=channels, height=height, width=width)
    return spaces.Box(0, 255, shape, np.uint8)


def word_number(word: str) -> int:
    """The number of a word: 1 to 999, the same in every process and on every machine, whatever the case of its letters."""
    return zlib.crc32(word.lower().encode()) % (VOCABULARY - 1) + 1


@lru_cache(maxsize=1024)  # an instruction stays for many steps
def word_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a text's first `WORDS` words, then zeros; signs and spaces between words do not count."""
    found = [word_number(word) for word in re.findall(r"\w+", text)[:WORDS]]
    return (*found, *[0] * (WORDS - len(found)))


def with_instruction(picture: NDArray[Any], text: str) -> NDArray[np.uint8]:
    """A copy of `picture`, uint8 [C, H, W], with the instruction in a row of its own: [C, H + 1, W]."""
    row = np.zeros((len(picture), 1, picture.shape[2]), np.uint8)
    row.reshape(-1)[: WORDS * NUMBER.itemsize] = np.array(word_numbers(text), NUMBER).view(np.uint8)
    return np.concatenate([picture, row], axis=1)
