"""One episode as a video: mp4 with the extra `video`, GIF without."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError, MissingExtra, UserError

Frame = NDArray[np.uint8]  # [height, width, 3]
_FFMPEG_SECONDS = 60.0
_GIF_FRAMES = 3000
_BOX_HEAD, _LONG_BOX_HEAD = 8, 16


class FilmFailed(UserError):
    """ffmpeg did not write a whole file."""


class Shot(NamedTuple):
    """A picture, how many steps were made before it, and the return until then."""

    step: int
    picture: Frame
    total: float


class Filmed(NamedTuple):
    """What was played and what of it can be seen."""

    total: float  # the return
    length: int
    frames: int
    frames_per_second: float
    ended: bool  # False: it was broken off after so many steps


class Limits(NamedTuple):
    """What keeps a film small. A longer episode is played to its end unseen, so that its return is known."""

    frames: int | None = None
    frames_per_second: float | None = None

    def stride(self, shown: float) -> int:
        """Steps from one picture to the next, where `shown` steps are a second."""
        return 1 if self.frames_per_second is None else max(1, -(-round(shown) // round(self.frames_per_second)))


def film(
    env: "gymnasium.Env[Any, Any]",
    act_one: Callable[[Any, float], Any],
    path: str | Path,
    max_steps: int = 10_000,
    *,
    seed: int | None = None,
    limits: Limits = Limits(),  # noqa: B008 - a tuple
    through: Callable[[Iterator[Shot]], Iterator[Frame]] | None = None,
    before: Callable[[Filmed], None] = lambda _: None,
) -> Filmed:
    """Play one episode and write what it looks like. The file is there whole or not at all.

    Args:
        env: made with render_mode 'rgb_array'.
        act_one: from an observation and the last reward to an action.
        path: *.mp4 or *.gif.
        max_steps: the episode is broken off after so many.
        seed: of the episode.
        limits: what keeps the film small.
        through: draws on the pictures. It gets one for each frame, and returns as many.
        before: called with what is known, when the film is written but not in its place yet.
    """
    path = Path(path)
    writers = {".mp4": _write_mp4, ".gif": _write_gif}
    if path.suffix not in writers:
        raise ConfigError(f"expected a video called *.mp4 or *.gif, got {path.name!r}; change its ending")
    if (mode := getattr(env, "render_mode", None)) != "rgb_array":
        raise ConfigError(
            f"expected an environment with render_mode 'rgb_array', got {mode!r}; make it with gymnasium.make(..., "
            "render_mode='rgb_array'), and let its class keep that argument as self.render_mode"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = float(env.metadata.get("render_fps") or 30)
    play = _Play(env, act_one, max_steps, seed, limits.frames, limits.stride(shown))
    pictures = (shot.picture for shot in play.shots()) if through is None else through(play.shots())
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")  # ffmpeg goes by the ending
    try:
        writers[path.suffix](temporary, map(_even, pictures), shown / play.stride)
        played = Filmed(play.total, play.steps, play.frames, shown / play.stride, play.ended)
        before(played)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return played


@dataclass
class _Play:
    """An episode as a stream of pictures; `total` is its return so far."""

    env: "gymnasium.Env[Any, Any]"
    act_one: Callable[[Any, float], Any]
    max_steps: int
    seed: int | None
    most_frames: int | None
    stride: int
    total: float = 0.0
    steps: int = 0
    frames: int = 0
    ended: bool = False

    def shots(self) -> Iterator[Shot]:
        observation, _ = self.env.reset(seed=self.seed)
        reward: Any = 0.0
        yield self._shot()
        while self.steps < self.max_steps and not self.ended:
            observation, reward, terminated, truncated, _ = self.env.step(self.act_one(observation, float(reward)))
            self.total += float(reward)
            self.steps += 1
            self.ended = bool(terminated or truncated)
            room = self.most_frames is None or self.frames < self.most_frames
            if room and (self.ended or self.steps % self.stride == 0):
                yield self._shot()

    def _shot(self) -> Shot:
        try:
            picture = self.env.render()
        except (UserError, gymnasium.error.Error):
            raise
        except Exception as error:  # whatever a user's render raises
            raise ConfigError(
                f"expected render() to return a picture, got {type(error).__name__}: {error}; write render() for render_mode 'rgb_array'"
            ) from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:  # noqa: PLR2004
            shape = getattr(picture, "shape", type(picture).__name__)
            raise ConfigError(f"expected render() to return [height, width, 3], got {shape}; check its render_mode")
        self.frames += 1
        return Shot(self.steps, picture.astype(np.uint8, copy=False), self.total)


def _even(picture: Frame) -> Frame:
    """The picture with its last row or column doubled where needed: mp4 stores colour for blocks of 2 × 2."""
    height, width, _ = picture.shape
    return np.ascontiguousarray(np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _write_mp4(path: Path, frames: Iterator[Frame], frames_per_second: float) -> None:
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("writing an mp4", "video") from None
    first = next(frames)
    height, width, _ = first.shape
    # h264 in yuv420p with its index in front: what every browser plays, and begins to play before it has all of it.
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=frames_per_second, macro_block_size=1, ffmpeg_timeout=_FFMPEG_SECONDS,
        ffmpeg_log_level="quiet", codec="libx264", pix_fmt_out="yuv420p", output_params=["-movflags", "+faststart"],
    )  # fmt: skip
    _send(writer, None, path)  # starts it
    try:
        _send(writer, first, path)
        for frame in frames:
            _send(writer, frame, path)
    finally:
        writer.close()
    if not whole_mp4(path):
        raise _failed(path)


def _send(writer: Any, frame: Frame | None, path: Path) -> None:
    try:
        writer.send(frame)
    except OSError:  # its message is ffmpeg's whole command line
        raise _failed(path) from None


def _failed(path: Path) -> FilmFailed:
    free = shutil.disk_usage(path.parent).free / 1e6
    return FilmFailed(
        f"ffmpeg could not write a film into {path.parent}, where {free:,.1f} MB are free; "
        "free some space, or try another ending: .gif"
    )


def whole_mp4(path: Path) -> bool:
    """Whether a file is an mp4 with all its parts and its index in front of its pictures."""
    if not path.is_file():
        return False
    size, at, kinds = path.stat().st_size, 0, list[bytes]()
    with path.open("rb") as file:
        while at + _BOX_HEAD <= size:
            file.seek(at)
            head = file.read(_LONG_BOX_HEAD)
            length = int.from_bytes(head[:4], "big")
            length = int.from_bytes(head[8:16], "big") if length == 1 else length
            if length < _BOX_HEAD:
                return False
            kinds.append(head[4:8])
            at += length
    return at == size and b"mdat" in kinds and b"moov" in kinds[: kinds.index(b"mdat")]


def _write_gif(path: Path, frames: Iterator[Frame], frames_per_second: float) -> None:
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib

    pictures: Sequence[Any] = [Image.fromarray(frame) for _, frame in zip(range(_GIF_FRAMES), frames, strict=False)]
    duration = max(20, round(1000 / frames_per_second))  # milliseconds; browsers slow down what is faster
    pictures[0].save(path, format="GIF", save_all=True, append_images=pictures[1:], duration=duration, loop=0)
