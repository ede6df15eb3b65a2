"""One episode as a video: mp4 with the extra `video`, GIF without; and what is drawn beside its pictures."""

import functools
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from laser_rl.errors import ConfigError, MissingExtra, UserError

Frame = NDArray[np.uint8]  # [height, width, 3]
_FFMPEG_SECONDS = 60.0
_GIF_FRAMES = 3000
_BOX_HEAD, _LONG_BOX_HEAD = 8, 16
WIDTH, LEAST_HEIGHT = 264, 288
_LONGEST_SIDE = 480
_GROUND, _INK, _SOFT, _RULE = "#11161d", "#e6ebf2", "#9ba8b8", "#2b3543"
_COLOURS = ("#7fb0ff", "#ffae57", "#4fd08b")
_NAMES = ("value", "entropy", "trusted")
_EDGE, _HEAD, _TITLE = 14, 44, 17
_FIRST_SPAN = 64  # steps that a chart has room for at first; doubled when they are full


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
        writers[path.suffix](temporary, pictures, shown / play.stride)
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


def _write_mp4(path: Path, frames: Iterator[Frame], frames_per_second: float) -> None:
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("writing an mp4", "video") from None
    first = next(frames)
    height, width, _ = first.shape
    # mp4 stores colour for blocks of 2 × 2: the last row or column is doubled where needed.
    edges = ((0, height % 2), (0, width % 2), (0, 0))
    # h264 in yuv420p with its index in front: what every browser plays, and begins to play before it has all of it.
    writer = imageio_ffmpeg.write_frames(
        str(path), (width + width % 2, height + height % 2), fps=frames_per_second, macro_block_size=1,
        ffmpeg_timeout=_FFMPEG_SECONDS, ffmpeg_log_level="quiet", codec="libx264", pix_fmt_out="yuv420p",
        output_params=["-movflags", "+faststart"],
    )  # fmt: skip
    try:
        for frame in itertools.chain([None, first], frames):  # None starts it
            try:
                writer.send(None if frame is None else np.ascontiguousarray(np.pad(frame, edges, mode="edge")))
            except OSError:  # its message is ffmpeg's whole command line
                raise _failed(path) from None
    finally:
        writer.close()
    if not whole_mp4(path):
        raise _failed(path)


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
    pictures: Sequence[Any] = [Image.fromarray(frame) for _, frame in zip(range(_GIF_FRAMES), frames, strict=False)]
    duration = max(20, round(1000 / frames_per_second))  # milliseconds; browsers slow down what is faster
    pictures[0].save(path, format="GIF", save_all=True, append_images=pictures[1:], duration=duration, loop=0)


class SidePanel:
    """Three charts that grow with the episode; `title` names the agent."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._curves: dict[str, list[float]] = {name: [] for name in _NAMES}

    def add(self, *, value: float, entropy: float, trusted: float | None) -> None:
        """Add the numbers of one more step; NaN and None leave a gap."""
        for name, number in zip(_NAMES, (value, entropy, trusted), strict=True):
            self._curves[name].append(math.nan if number is None else number)

    def mean(self, name: str) -> float | None:
        """Over all steps with a number; None if there is none."""
        known = [number for number in self._curves[name] if math.isfinite(number)]
        return sum(known) / len(known) if known else None

    def beside(self, picture: Frame, *, total: float) -> Frame:
        """The picture, large enough to be seen and small enough to be sent, and the charts to its right."""
        seen = fitted(picture)
        height, width, _ = seen.shape
        canvas = Image.new("RGB", (width + WIDTH, max(height, LEAST_HEIGHT)), _GROUND)
        canvas.paste(Image.fromarray(seen), (0, (canvas.height - height) // 2))
        draw = ImageDraw.Draw(canvas)
        left, right = width + _EDGE, canvas.width - _EDGE
        step = max(0, len(self._curves["value"]) - 1)
        draw.text((left, 8), self._title, _SOFT, _font(12))
        draw.text((left, 23), f"t {step:,}", _INK, _font(14))
        draw.text((right, 23), f"return {total:,.5g}", _INK, _font(14), anchor="ra")
        each = (canvas.height - _HEAD - 8) // len(_NAMES)
        for number, name in enumerate(_NAMES):
            top = _HEAD + number * each
            _chart(draw, name, self._curves[name], _COLOURS[number], (left, top, right, top + each - 9))
        return np.asarray(canvas)


def fitted(picture: Frame) -> Frame:
    """A small picture with each pixel repeated, a large one averaged down."""
    height, width, _ = picture.shape
    longest = _LONGEST_SIDE
    times = min(-(-LEAST_HEIGHT // height), max(1, longest // max(height, width)))
    if times > 1:
        return picture.repeat(times, axis=0).repeat(times, axis=1)
    if max(height, width) <= longest:
        return picture
    size = (max(1, width * longest // max(height, width)), max(1, height * longest // max(height, width)))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))


def _chart(
    draw: ImageDraw.ImageDraw, name: str, numbers: Sequence[float], colour: str, box: tuple[int, int, int, int]
) -> None:
    left, top, right, bottom = box
    known = np.array(numbers, float)
    finite = known[np.isfinite(known)]
    draw.text((left, top), name, colour, _font(12))
    draw.text((right, top), _said(name, known), _INK, _font(12), anchor="ra")
    top += _TITLE
    draw.rectangle((left, top, right, bottom), outline=_RULE)
    if not len(finite):
        return
    low, high = _range(name, finite)
    if name != "trusted":
        draw.text((left + 58, top - _TITLE + 1), f"{low:.3g} to {high:.3g}", _SOFT, _font(11))
    columns = _columns(known, right - left - 1)
    y = (bottom - 2 - (columns - low) / (high - low) * (bottom - top - 4)).tolist()
    for x, (before, up) in enumerate(zip([math.nan, *y], y, strict=False), start=left):
        if name == "trusted" and math.isfinite(up):
            draw.line([(x + 1, bottom - 1), (x + 1, up)], fill=colour)
        elif math.isfinite(before) and math.isfinite(up):
            draw.line([(x, before), (x + 1, up)], fill=colour, width=2)


def _columns(numbers: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The mean of the steps that fall into each column of pixels; NaN where none does, between two steps the line between them."""
    span = _FIRST_SPAN
    while span < len(numbers):
        span *= 2
    per_column = span / width
    if per_column < 1:
        at = np.arange(int((len(numbers) - 1) / per_column) + 1) * per_column
        return np.asarray(np.interp(at, np.arange(len(numbers)), numbers), np.float64)
    places = (np.arange(len(numbers)) / per_column).astype(int)
    finite = np.isfinite(numbers)
    counts = np.bincount(places, finite)
    sums = np.bincount(places, np.where(finite, numbers, 0.0))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _said(name: str, numbers: NDArray[np.float64]) -> str:
    """The number of this step; of what is trusted also the share so far."""
    now = numbers[-1] if len(numbers) else math.nan
    if name != "trusted":
        return f"{now:.3g}" if math.isfinite(now) else "–"
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return "no other policy yet"
    return f"{f'{now:.0%}' if math.isfinite(now) else '–'} · so far {finite.mean():.0%}"


def _range(name: str, finite: NDArray[np.float64]) -> tuple[float, float]:
    if name == "trusted":
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    low = min(0.0, low) if name == "entropy" else low
    room = max(high - low, 1e-3 * max(1.0, abs(high)))
    return low, low + room


@functools.cache
def _font(size: int) -> Any:
    """The letters that come with Pillow: the same everywhere."""
    return ImageFont.load_default(size)
