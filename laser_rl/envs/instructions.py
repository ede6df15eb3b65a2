"""Instructions in words, carried by the picture that they belong to: one more row, which holds numbers instead of pixels.

So an observation stays one array of bytes: the replay compresses it, a worker process shares it, and no row can lose its words. The row
at the bottom, taken as channels · width bytes channel by channel, begins with two bytes for each of `words` words, the lower one first.
0 is no word; any other number stands for a word, and for whichever other words have the same hash.
"""

import re
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.errors import EnvironmentRefused

WORDS = 16  # of an instruction; those behind are not read
VOCABULARY = 1000  # numbers of words, with 0 for none
NUMBER = np.dtype("<u2")
PICTURE_DIMENSIONS = 3
WORD = re.compile(r"\w+")


class PictureWithInstruction(spaces.Box):
    """The space of such pictures. A wrapper that makes other pictures of them gives them another space, and no words are read."""

    def __init__(self, *, channels: int, height: int, width: int, words: int = WORDS) -> None:
        _check_width(channels, width, words)
        super().__init__(0, 255, (channels, height + 1, width), np.uint8)
        self.words = words


def word_number(word: str) -> int:
    """1 to 999, the same in every process and on every machine, whatever the case of its letters.

    >>> word_number("Red") == word_number("red"), word_number("red"), word_number("blue")
    (True, 346, 13)
    """
    return zlib.crc32(word.lower().encode()) % (VOCABULARY - 1) + 1


@lru_cache(maxsize=1024)  # an instruction stays for many steps
def word_numbers(text: str, words: int = WORDS) -> tuple[int, ...]:
    """The numbers of a text's first `words` words, then zeros; signs and spaces between words do not count.

    >>> word_numbers("Pick the red object!", 6) == (*map(word_number, ("pick", "the", "red", "object")), 0, 0)
    True
    """
    found = [word_number(word) for word in WORD.findall(text)[:words]]
    return (*found, *[0] * (words - len(found)))


def with_instruction(picture: NDArray[Any], text: str, words: int = WORDS) -> NDArray[np.uint8]:
    """A copy of `picture`, uint8 [C, H, W], with the instruction in a row of its own: [C, H + 1, W]."""
    if picture.dtype != np.uint8 or picture.ndim != PICTURE_DIMENSIONS:
        raise EnvironmentRefused(
            f"expected a picture of uint8 [channels, height, width] for an instruction, got {picture.dtype} of shape "
            f"{picture.shape}; transpose or convert it first"
        )
    channels, height, width = picture.shape
    _check_width(channels, width, words)
    numbers = np.array(word_numbers(text, words), NUMBER).view(np.uint8)
    row = np.zeros(channels * width, np.uint8)
    row[: numbers.size] = numbers
    carried = np.empty((channels, height + 1, width), np.uint8)
    carried[:, :height] = picture
    carried[:, height] = row.reshape(channels, width)
    return carried


def instruction_of(picture: NDArray[np.uint8], words: int = WORDS) -> NDArray[np.int64]:
    """The numbers of the words that a picture carries: what a network has to read.

    >>> carried = with_instruction(np.zeros((3, 72, 96), np.uint8), "red cat", words=4)
    >>> instruction_of(carried, words=4).tolist() == [word_number("red"), word_number("cat"), 0, 0]
    True
    """
    row = np.ascontiguousarray(picture[:, -1]).reshape(-1)
    return row[: words * NUMBER.itemsize].view(NUMBER).astype(np.int64)


def _check_width(channels: int, width: int, words: int) -> None:
    if words < 1:
        raise EnvironmentRefused(f"expected an instruction of at least one word, got {words}; leave instructions out")
    needed = words * NUMBER.itemsize
    if channels * width < needed:
        raise EnvironmentRefused(
            f"expected a picture whose rows hold {needed} bytes, two for each of {words} words, got {channels} channels of "
            f"width {width}; make it {-(-needed // channels)} wide, or leave instructions out"
        )
