import subprocess
import sys
import zlib

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.envs.instructions import (
    VOCABULARY,
    WORDS,
    PictureWithInstruction,
    with_instruction,
    word_number,
    word_numbers,
)
from laser_rl.envs.make import make_environments
from laser_rl.envs.records import ObservationSpec
from laser_rl.envs.spaces import observation_border
from laser_rl.envs.vector import VectorAdapter
from laser_rl.errors import EnvironmentRefused
from tests.envs.samples import words_in


def picture(channels=3, height=5, width=12, seed=0):
    return np.random.default_rng(seed).integers(256, size=(channels, height, width), dtype=np.uint8)


@given(st.text(max_size=60), st.integers(1, 6), st.integers(32, 40))
def test_the_row_holds_the_words_and_the_pixels_stay(text, channels, width):
    original = picture(channels, 5, width)
    carried = with_instruction(original, text)
    assert carried.shape == (channels, 6, width)
    assert carried.dtype == np.uint8
    np.testing.assert_array_equal(carried[:, :5], original)
    numbers, rest = words_in(carried)
    assert numbers == word_numbers(text)
    assert not any(rest)


def test_a_number_above_255_takes_both_bytes():
    assert (word_number("red"), word_number("blue")) == (346, 13)
    row = with_instruction(picture(), "red blue")[:, -1]
    assert row[0, :5].tolist() == [346 - 256, 1, 13, 0, 0]


def test_words_that_fill_the_first_channel_go_on_in_the_second():
    numbers = [word_number(word) for word in ["a", "b", "c", "d", "e", "f", "g", "h", "i"]]
    row = with_instruction(picture(width=12), "a b c d e f g h i")[:, -1]
    assert [int(row[1, 2 * index]) + 256 * int(row[1, 2 * index + 1]) for index in range(3)] == numbers[6:9]


def test_words_are_read_without_case_and_signs_and_only_the_first_ones():
    assert word_numbers("Pick the RED car.") == word_numbers("  pick the, red\tcar!? ")
    assert word_numbers("pick the red car") != word_numbers("pick the car red")
    assert word_numbers("") == word_numbers("?! …") == (0,) * WORDS
    assert word_numbers("word " * 20) == (word_number("word"),) * WORDS


@given(st.text(min_size=1, max_size=12))
def test_a_words_number_leaves_zero_for_none(word):
    assert 1 <= word_number(word) < VOCABULARY
    assert word_number(word) == zlib.crc32(word.lower().encode()) % 999 + 1


def test_numbers_do_not_depend_on_the_process():
    program = "from laser_rl.envs.instructions import word_numbers; print(*word_numbers('find the red hat'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert done.stdout.split() == [str(number) for number in word_numbers("find the red hat")]


def test_a_picture_that_is_too_narrow_for_an_instruction_is_refused():
    message = "hold 32 bytes, two for each of 16 words, got 3 channels of width 10; make it 11 wide"
    with pytest.raises(EnvironmentRefused, match=message):
        PictureWithInstruction(channels=3, height=72, width=10)


class Guide(gymnasium.Env):
    """Says what to do, in pictures higher than wide; `width` decides what looks like a channel."""

    action_space = spaces.Discrete(2)

    def __init__(self, width=12):
        self._width = width
        self.observation_space = PictureWithInstruction(channels=3, height=20, width=width)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._look(), {}

    def step(self, action):
        self._t += 1
        return self._look(), 0.0, self._t == 5, False, {}

    def _look(self):
        return with_instruction(picture(3, 20, self._width, seed=self._t), f"go to {self._t}")


@pytest.mark.parametrize("placement", ["thread", "process"])
@pytest.mark.parametrize("width", [12, 30])
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
    assert envs.spec.observation == ObservationSpec((3, 21, width), "uint8", 1 / 255, words=WORDS)
    envs.reset()
    rows = envs.step(np.arange(2), np.zeros(2, np.int64))
    np.testing.assert_array_equal(rows.observation[1], with_instruction(picture(3, 20, width, seed=1), "go to 1"))
    envs.close()


def test_a_vector_keeps_them_and_a_wrapper_that_makes_other_pictures_does_not():
    vector = gymnasium.vector.SyncVectorEnv([Guide, Guide])
    assert VectorAdapter(vector, seed=1).spec.observation.words == WORDS
    # As a wrapper that resizes or greys pictures would.
    grey = gymnasium.wrappers.TransformObservation(
        Guide(), lambda seen: seen[:1], spaces.Box(0, 255, (1, 21, 12), np.uint8)
    )
    assert observation_border(grey.observation_space, "Grey")[0].words == 0
