"""`laser enjoy`: videos hold the frames that were played, and are there whole or not at all."""

import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from PIL import Image

from laser_rl import cli
from laser_rl.training import filming
from laser_rl.training.evaluate import load_trained
from tests.training.small import finish, small


class Fading(gymnasium.Env):
    """Frame t is a grey of 20·t; five steps, each paying 1.5."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 99, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    size, fail_at, length, pictures = (31, 45), None, 5, 0

    def __init__(self, render_mode=None):
        self.render_mode, self.t = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == self.fail_at:
            raise RuntimeError("broken")
        return np.full(1, self.t, np.float32), 1.5, self.t == self.length, False, {}

    def render(self):
        Fading.pictures += 1
        return np.full((*self.size, 3), (20 if self.length == 5 else 6) * self.t, np.uint8)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "fading"
    gymnasium.register("Fading-v0", entry_point=Fading, disable_env_checker=True)
    finish(small("Fading-v0"), path)
    yield path
    gymnasium.registry.pop("Fading-v0")


@pytest.fixture
def enjoy(run_dir, tmp_path, capsys):
    """Calls `laser enjoy` with a file in an empty folder; returns the path, the exit status and what was said."""

    def call(name="videos/a.mp4", *flags):
        status = cli.main(["enjoy", str(run_dir), "--video", str(tmp_path / name), *flags])
        said = capsys.readouterr()
        return tmp_path / name, status, said.out + said.err

    return call


def mp4_frames(path):
    """Size, frames per second and frames of a film, as ffmpeg itself reads it; fails if the file is not whole."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [ffmpeg, "-xerror", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    result = subprocess.run(command, check=True, capture_output=True, timeout=60)
    stream = re.search(rb"Video:.* (\d+)x(\d+).* ([\d.]+) fps", result.stderr)
    width, height, rate = (float(number) for number in stream.groups())
    frames = np.frombuffer(result.stdout, np.uint8).reshape(-1, int(height), int(width), 3)
    return (width, height), rate, frames


@pytest.mark.parametrize("size", [(31, 45), (64, 64)])
def test_mp4_holds_every_frame_at_an_even_size_with_its_index_in_front(enjoy, monkeypatch, size):
    monkeypatch.setattr(Fading, "size", size)
    path, status, said = enjoy()
    assert (status, said) == (0, f"return 7.5; video: {path}\n")
    found, rate, frames = mp4_frames(path)
    assert found == (size[1] + size[1] % 2, size[0] + size[0] % 2)
    assert rate == 10
    assert [round(frame[: size[0], : size[1]].mean() / 20) for frame in frames] == [0, 1, 2, 3, 4, 5]
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "a browser plays it before it has all of it"
    assert b"avc1" in data


def test_gif_holds_every_frame_that_has_room_and_the_rest_is_played_unseen(enjoy, monkeypatch):
    monkeypatch.setattr(filming, "GIF_FRAMES", 4)
    path, _, said = enjoy("a.gif")
    assert said == f"return 7.5; video: {path}\n"
    with Image.open(path) as gif:
        greys = []
        for number in range(gif.n_frames):
            gif.seek(number)
            greys.append(round(np.asarray(gif.convert("L")).mean() / 20))
    assert greys == [0, 1, 2, 3]


def test_max_steps_ends_the_film(enjoy):
    path, _, said = enjoy("a.mp4", "--max-steps", "2")
    assert said.startswith("return 3.0;")
    assert len(mp4_frames(path)[2]) == 3


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_an_environment_that_fails_leaves_the_old_film(enjoy, tmp_path, monkeypatch, name):
    (tmp_path / name).write_bytes(b"old")
    monkeypatch.setattr(Fading, "fail_at", 3)
    with pytest.raises(RuntimeError, match="broken"):
        enjoy(name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"old"


def test_a_wrong_ending_and_a_missing_extra_are_said_and_nothing_is_left(enjoy, tmp_path, monkeypatch):
    _, status, said = enjoy("a.avi")
    assert status == 2
    assert "*.mp4 or *.gif" in said
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    _, status, said = enjoy("a.mp4")
    assert status == 2
    assert "laser-rl[video]" in said
    assert not list(tmp_path.iterdir())


def test_a_long_episode_is_played_to_its_end_and_shown_in_part(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(filming, "MOST_FRAMES", 12)
    monkeypatch.setattr(Fading, "length", 40)
    monkeypatch.setattr(Fading, "size", (16, 16))
    monkeypatch.setattr(Fading, "metadata", {**Fading.metadata, "render_fps": 50})
    monkeypatch.setattr(Fading, "pictures", 0)
    found = filming.film(load_trained(run_dir), tmp_path / "a.mp4", short=True)
    assert found == {"return": 60.0, "length": 40, "ended": True, "frames": 12, "frames_per_second": 25.0}
    assert Fading.pictures == 12, "what is not shown is not drawn"
    _, rate, frames = mp4_frames(tmp_path / "a.mp4")
    assert rate == 25
    assert [round(frame.mean() / 6) for frame in frames] == list(range(0, 24, 2))


@pytest.mark.parametrize("script", [None, "exit 1", "cat > /dev/null"], ids=["no program", "dies", "writes nothing"])
def test_an_encoder_that_fails_leaves_the_old_film_and_says_what_to_do(enjoy, tmp_path, monkeypatch, script):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    program, path = tmp_path / "ffmpeg", tmp_path / "videos" / "a.mp4"
    path.parent.mkdir()
    path.write_bytes(b"old")
    if script:
        (tmp_path / "script").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "script").chmod(0o755)
        # Another process writes it: a thread that starts a program of its own meanwhile would hold it open, and it could not be executed.
        subprocess.run(["cp", tmp_path / "script", program], check=True, timeout=60)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(program))
    _, status, said = enjoy()
    assert status == 2
    assert "free some space" in said
    assert [one.name for one in path.parent.iterdir()] == ["a.mp4"]
    assert path.read_bytes() == b"old"


def test_a_full_disk_is_noticed_at_the_end_of_a_film(run_dir, enjoy, tmp_path, monkeypatch):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    program, real = tmp_path / "ffmpeg", imageio_ffmpeg.get_ffmpeg_exe()
    (tmp_path / "script").write_text(f'#!/bin/sh\nulimit -f 1\nexec {real} "$@"\n')  # no file of more than 1 KB
    (tmp_path / "script").chmod(0o755)
    subprocess.run(["cp", tmp_path / "script", program], check=True, timeout=60)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(program))
    path, status, said = enjoy()
    assert status == 2
    assert "free some space" in said
    assert not list(path.parent.iterdir())
