"""Videos hold the frames that were played, and are there whole or not at all."""

import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from PIL import Image

from laser_rl.errors import ConfigError, MissingExtra
from laser_rl.evaluation import record


class Fading(gymnasium.Env):
    """Frame t is a grey of 20·t; five steps, each paying 1.5."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=(31, 45), render_mode="rgb_array", fail_at=None):
        self.size, self.render_mode, self.fail_at, self.t = size, render_mode, fail_at, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action == self.t  # the action for this observation
        self.t += 1
        if self.t == self.fail_at:
            raise RuntimeError("broken")
        return np.full(1, self.t, np.float32), 1.5, self.t == 5, False, {}

    def render(self):
        return np.full((*self.size, 3), 20 * self.t, np.uint8)


def act_one(observation, reward):
    return int(observation[0])


def mp4_frames(path):
    """Size, frames per second and frames of a film, as ffmpeg itself reads it."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [ffmpeg, "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    result = subprocess.run(command, check=True, capture_output=True, timeout=60)
    stream = re.search(rb"Video:.* (\d+)x(\d+).* ([\d.]+) fps", result.stderr)
    width, height, rate = (float(number) for number in stream.groups())
    frames = np.frombuffer(result.stdout, np.uint8).reshape(-1, int(height), int(width), 3)
    return (width, height), rate, frames


@pytest.mark.parametrize("size", [(31, 45), (32, 46), (64, 64)])
def test_mp4_holds_every_frame_at_an_even_size(tmp_path, size):
    path = tmp_path / "videos" / "a.mp4"
    assert record(Fading(size), act_one, path) == 7.5
    found, rate, frames = mp4_frames(path)
    assert found == (size[1] + size[1] % 2, size[0] + size[0] % 2)
    assert rate == 10
    assert [round(frame.mean() / 20) for frame in frames] == [0, 1, 2, 3, 4, 5]


def test_gif_holds_every_frame(tmp_path):
    assert record(Fading(), act_one, tmp_path / "a.gif") == 7.5
    with Image.open(tmp_path / "a.gif") as film:
        greys = []
        for number in range(film.n_frames):
            film.seek(number)
            greys.append(round(np.asarray(film.convert("L")).mean() / 20))
    assert greys == [0, 1, 2, 3, 4, 5]


def test_max_steps_ends_the_film(tmp_path):
    assert record(Fading(), act_one, tmp_path / "a.mp4", max_steps=2) == 3.0
    assert len(mp4_frames(tmp_path / "a.mp4")[2]) == 3


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_an_environment_that_fails_leaves_the_old_film(tmp_path, name):
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(RuntimeError, match="broken"):
        record(Fading(fail_at=3), act_one, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"old"


def test_what_cannot_work_is_said_before_anything_is_played(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="rgb_array"):
        record(Fading(render_mode=None), act_one, tmp_path / "a.mp4")
    with pytest.raises(ConfigError, match=r"\*\.mp4 or \*\.gif"):
        record(Fading(), act_one, tmp_path / "a.avi")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtra, match=r"laser-rl\[video\]"):
        record(Fading(), act_one, tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())
