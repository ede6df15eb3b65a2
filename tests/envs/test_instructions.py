import copy
import pickle
import subprocess
import sys
import zlib

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.envs.make import make_environments
from laser_rl.envs.records import ObservationSpec
from laser_rl.envs.spaces import (
    VOCABULARY,
    WORDS,
    PictureWithInstruction,
    instruction_of,
    observation_border,
    with_instruction,
    word_number,
    word_numbers,
)
from laser_rl.envs.vector import VectorAdapter
from laser_rl.errors import EnvironmentRefused


def picture(channels=3, height=5, width=12, seed=0):
    return np.random.default_rng(seed).integers(256, size=(channels, height, width), dtype=np.uint8)


def by_hand(row, words):
    """`row`: [channels, width]. The format in words, byte by byte."""
    line = [int(byte) for channel in row for byte in channel]
    return [line[2 * index] + 256 * line[2 * index + 1] for index in range(words)], line[2 * words :]


@given(st.text(max_size=60), st.integers(1, 6), st.integers(1, 40), st.integers(1, 20))
def test_the_row_holds_the_words_and_the_pixels_stay(text, channels, width, words):
    if channels * width < 2 * words:
        with pytest.raises(EnvironmentRefused, match="rows hold"):
            with_instruction(picture(channels, 5, width), text, words)
        return
    original = picture(channels, 5, width)
    carried = with_instruction(original, text, words)
    assert carried.shape == (channels, 6, width)
    assert carried.dtype == np.uint8
    np.testing.assert_array_equal(carried[:, :5], original)
    numbers, rest = by_hand(carried[:, 5], words)
    assert numbers == list(word_numbers(text, words)) == instruction_of(carried, words).tolist()
    assert not any(rest)


def test_a_number_above_255_takes_both_bytes():
    assert (word_number("red"), word_number("blue")) == (346, 13)
    row = with_instruction(picture(), "red blue", 4)[:, -1]
    assert row[0, :5].tolist() == [346 - 256, 1, 13, 0, 0]


def test_words_that_fill_the_first_channel_go_on_in_the_second():
    numbers = [word_number(word) for word in ["a", "b", "c", "d", "e", "f", "g", "h"]]
    row = with_instruction(picture(width=6), "a b c d e f g h", 8)[:, -1]
    assert [int(row[1, 2 * index]) + 256 * int(row[1, 2 * index + 1]) for index in range(3)] == numbers[3:6]


def test_words_are_read_without_case_and_signs_and_only_the_first_ones():
    assert word_numbers("Pick the RED car.") == word_numbers("  pick the, red\tcar!? ")
    assert word_numbers("pick the red car") != word_numbers("pick the car red")
    assert word_numbers("") == word_numbers("?! …") == (0,) * WORDS
    assert word_numbers("one two three four", 2) == (word_number("one"), word_number("two"))


@given(st.text(min_size=1, max_size=12))
def test_a_words_number_leaves_zero_for_none(word):
    assert 1 <= word_number(word) < VOCABULARY
    assert word_number(word) == zlib.crc32(word.lower().encode()) % 999 + 1


def test_numbers_do_not_depend_on_the_process():
    program = "from laser_rl.envs.spaces import word_numbers; print(*word_numbers('find the red hat'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert done.stdout.split() == [str(number) for number in word_numbers("find the red hat")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((3, 4, 12), np.float32), r"uint8 \[channels, height, width\].*float32"),
        (np.zeros((4, 12), np.uint8), r"got uint8 of shape \(4, 12\)"),
        (
            np.zeros((3, 4, 10), np.uint8),
            "hold 32 bytes, two for each of 16 words, got 3 channels of width 10; make it 11 wide",
        ),
    ],
)
def test_what_cannot_carry_an_instruction_is_refused(wrong, message):
    with pytest.raises(EnvironmentRefused, match=message):
        with_instruction(wrong, "find the cat")


def test_the_space_is_checked_too():
    with pytest.raises(EnvironmentRefused, match="make it 11 wide"):
        PictureWithInstruction(channels=3, height=72, width=10)
    with pytest.raises(EnvironmentRefused, match="at least one word, got 0"):
        PictureWithInstruction(channels=3, height=72, width=96, words=0)


class Guide(gymnasium.Env):
    """Says what to do, in pictures higher than wide; `width` decides what looks like a channel."""

    action_space = spaces.Discrete(2)

    def __init__(self, width=12):
        self._width = width
        self.observation_space = PictureWithInstruction(channels=3, height=20, width=width, words=4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._look(), {}

    def step(self, action):
        self._t += 1
        return self._look(), 0.0, self._t == 5, False, {}

    def _look(self):
        return with_instruction(picture(3, 20, self._width, seed=self._t), f"go to {self._t}", 4)


@pytest.mark.parametrize("placement", ["thread", "process"])
@pytest.mark.parametrize("width", [12, 3])
def test_an_environments_words_reach_the_spec_and_its_rows(placement, width):
    options = {"width": width}
    envs = make_environments(
        "tests.envs.test_instructions:Guide",
        slots=2,
        seed=1,
        placement=placement,
        workers=1,
        options=options,
        lockstep=True,
    )
    assert envs.spec.observation == ObservationSpec((3, 21, width), "uint8", 1 / 255, words=4)
    envs.reset()
    rows = envs.step(np.arange(2), np.zeros(2, np.int64))
    np.testing.assert_array_equal(rows.observation[1], with_instruction(picture(3, 20, width, seed=1), "go to 1", 4))
    envs.close()


def test_a_vector_keeps_them_and_a_wrapper_that_makes_other_pictures_does_not():
    vector = gymnasium.vector.SyncVectorEnv([Guide, Guide])
    assert VectorAdapter(vector, seed=1).spec.observation.words == 4
    # As a wrapper that resizes or greys pictures would.
    grey = gymnasium.wrappers.TransformObservation(
        Guide(), lambda seen: seen[:1], spaces.Box(0, 255, (1, 21, 12), np.uint8)
    )
    assert observation_border(grey.observation_space, "Grey").spec.words == 0


@pytest.mark.parametrize("again", [copy.deepcopy, lambda space: pickle.loads(pickle.dumps(space))])  # noqa: S301
def test_a_copy_of_the_space_has_the_words(again):
    space = PictureWithInstruction(channels=3, height=20, width=12, words=4)
    assert again(space).words == 4
    assert again(space) == space
