"""Videos hold the frames that were played, and are there whole or not at all."""

import gc
import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from PIL import Image

from laser_rl.errors import ConfigError, MissingExtra
from laser_rl.evaluation.video import FilmFailed, Limits, film, whole_mp4


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
    assert film(Fading(size), act_one, path).total == 7.5
    found, rate, frames = mp4_frames(path)
    assert found == (size[1] + size[1] % 2, size[0] + size[0] % 2)
    assert rate == 10
    assert [round(frame.mean() / 20) for frame in frames] == [0, 1, 2, 3, 4, 5]


def test_gif_holds_every_frame(tmp_path):
    assert film(Fading(), act_one, tmp_path / "a.gif").total == 7.5
    with Image.open(tmp_path / "a.gif") as gif:
        greys = []
        for number in range(gif.n_frames):
            gif.seek(number)
            greys.append(round(np.asarray(gif.convert("L")).mean() / 20))
    assert greys == [0, 1, 2, 3, 4, 5]


def test_max_steps_ends_the_film(tmp_path):
    assert film(Fading(), act_one, tmp_path / "a.mp4", max_steps=2).total == 3.0
    assert len(mp4_frames(tmp_path / "a.mp4")[2]) == 3


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_an_environment_that_fails_leaves_the_old_film(tmp_path, name):
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(RuntimeError, match="broken"):
        film(Fading(fail_at=3), act_one, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"old"


def test_what_cannot_work_is_said_before_anything_is_played(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="rgb_array"):
        film(Fading(render_mode=None), act_one, tmp_path / "a.mp4")
    with pytest.raises(ConfigError, match=r"\*\.mp4 or \*\.gif"):
        film(Fading(), act_one, tmp_path / "a.avi")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtra, match=r"laser-rl\[video\]"):
        film(Fading(), act_one, tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


class Long(Fading):
    """Fifty steps a second, forty of them."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    pictures = 0

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t == 40, {}

    def render(self):
        self.pictures += 1
        return np.full((16, 16, 3), 6 * self.t, np.uint8)


def test_a_long_episode_is_played_to_its_end_and_shown_in_part(tmp_path):
    env, told = Long(), []
    limits = Limits(frames=12, frames_per_second=30.0)
    found = film(
        env,
        act_one,
        tmp_path / "a.mp4",
        limits=limits,
        before=lambda known: told.append((known, [*tmp_path.iterdir()])),
    )
    assert found == (40.0, 40, 12, 25.0, True)
    assert env.pictures == 12, "what is not shown is not drawn"
    _, rate, frames = mp4_frames(tmp_path / "a.mp4")
    assert rate == 25
    assert [round(frame.mean() / 6) for frame in frames] == list(range(0, 24, 2))
    [(known, files)] = told
    assert known == found
    assert [path.name.startswith(".") for path in files] == [True], "told before the film is in its place"
    assert film(Long(), act_one, tmp_path / "a.gif", 7) == (7.0, 7, 8, 50.0, False)


def test_pictures_go_through_whoever_draws_on_them(tmp_path):
    seen = []

    def through(shots):
        for shot in shots:
            seen.append((shot.step, shot.total))
            yield np.concatenate([shot.picture, 255 - shot.picture], axis=1)

    film(Fading((32, 32)), act_one, tmp_path / "a.mp4", through=through)
    assert seen == [(t, 1.5 * t) for t in range(6)]
    size, _, frames = mp4_frames(tmp_path / "a.mp4")
    assert size == (64, 32)
    assert abs(int(frames[3][:, :28].mean()) - 60) < 4
    assert abs(int(frames[3][:, 36:].mean()) - 195) < 4


def test_the_index_comes_first_and_a_part_of_a_file_is_none(tmp_path):
    path = tmp_path / "a.mp4"
    film(Fading(), act_one, path)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "a browser plays it before it has all of it"
    assert b"avc1" in data
    assert whole_mp4(path)
    for part in (data[:-1], data[: len(data) // 2], data + b"\0" * 3, b"", b"\0" * 64):
        path.write_bytes(part)
        assert not whole_mp4(path)


def an_encoder(folder, script):
    """A program that is called instead of ffmpeg.

    Another process writes it: a thread that starts a program of its own meanwhile would hold it open, and it could not be executed.
    """
    (folder / "script").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "script").chmod(0o755)
    subprocess.run(["cp", folder / "script", folder / "ffmpeg"], check=True, timeout=60)
    return folder / "ffmpeg"


def test_an_encoder_that_cannot_be_started_says_what_to_do(tmp_path, monkeypatch):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr(imageio_ffmpeg._io, "get_ffmpeg_exe", lambda: str(tmp_path))
    with pytest.raises(FilmFailed, match="free some space"):
        film(Fading((64, 64)), act_one, tmp_path / "a.mp4")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # imageio leaves the pipe to a dead ffmpeg open
@pytest.mark.parametrize("script", ["exit 1", "cat > /dev/null"], ids=["dies", "writes nothing"])
def test_an_encoder_that_fails_leaves_the_old_film_and_says_what_to_do(tmp_path, monkeypatch, script):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    program = an_encoder(tmp_path, script)
    path = tmp_path / "videos" / "a.mp4"
    path.parent.mkdir()
    path.write_bytes(b"old")
    monkeypatch.setattr(imageio_ffmpeg._io, "get_ffmpeg_exe", lambda: str(program))
    with pytest.raises(FilmFailed, match="free some space"):
        film(Fading((64, 64)), act_one, path)
    gc.collect()
    assert [one.name for one in path.parent.iterdir()] == ["a.mp4"]
    assert path.read_bytes() == b"old"
