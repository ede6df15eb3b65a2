"""One episode as a video: mp4 with the extra `video`, GIF without."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError, MissingExtra

Frame = NDArray[np.uint8]  # [height, width, 3]
_FFMPEG_SECONDS = 60.0
_GIF_FRAMES = 3000


def record(
    env: "gymnasium.Env[Any, Any]",
    act_one: Callable[[Any, float], Any],
    path: str | Path,
    max_steps: int = 10_000,
    *,
    seed: int | None = None,
) -> float:
    """Play one episode, write what it looks like, and return its return. `act_one` maps an observation to an action.

    The file is there whole or not at all. After `max_steps` steps the film ends, whether the episode has or not.
    """
    path = Path(path)
    writers = {".mp4": _write_mp4, ".gif": _write_gif}
    if path.suffix not in writers:
        raise ConfigError(f"expected a video called *.mp4 or *.gif, got {path.name!r}; change its ending")
    if env.render_mode != "rgb_array":
        raise ConfigError(
            f"expected an environment with render_mode 'rgb_array', got {env.render_mode!r}; "
            "make it with gymnasium.make(..., render_mode='rgb_array')"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    play = _Play(env, act_one, max_steps, seed)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")  # ffmpeg goes by the ending
    try:
        writers[path.suffix](temporary, play.frames(), _frames_per_second(env))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return play.total


class _Play:
    """An episode as a stream of pictures; `total` is its return so far."""

    def __init__(
        self, env: "gymnasium.Env[Any, Any]", act_one: Callable[[Any, float], Any], max_steps: int, seed: int | None
    ):
        self._env, self._act, self._max_steps, self._seed = env, act_one, max_steps, seed
        self.total = 0.0

    def frames(self) -> Iterator[Frame]:
        observation, _ = self._env.reset(seed=self._seed)
        reward: Any = 0.0
        yield self._picture()
        for _ in range(self._max_steps):
            observation, reward, terminated, truncated, _ = self._env.step(self._act(observation, float(reward)))
            self.total += float(reward)
            yield self._picture()
            if terminated or truncated:
                return

    def _picture(self) -> Frame:
        picture = self._env.render()
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:  # noqa: PLR2004
            shape = getattr(picture, "shape", type(picture).__name__)
            raise ConfigError(f"expected render() to return [height, width, 3], got {shape}; check its render_mode")
        return _even(picture.astype(np.uint8, copy=False))


def _even(picture: Frame) -> Frame:
    """The picture with its last row or column doubled where needed: mp4 stores colour for blocks of 2 × 2.

    >>> _even(np.zeros((3, 5, 3), np.uint8)).shape
    (4, 6, 3)
    """
    height, width, _ = picture.shape
    return np.ascontiguousarray(np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _write_mp4(path: Path, frames: Iterator[Frame], frames_per_second: float) -> None:
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("writing an mp4", "video") from None
    first = next(frames)
    height, width, _ = first.shape
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=frames_per_second, macro_block_size=1, ffmpeg_timeout=_FFMPEG_SECONDS,
        ffmpeg_log_level="error",
    )  # fmt: skip
    writer.send(None)
    try:
        writer.send(first)
        for frame in frames:
            writer.send(frame)
    finally:
        writer.close()


def _write_gif(path: Path, frames: Iterator[Frame], frames_per_second: float) -> None:
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib

    pictures: Sequence[Any] = [Image.fromarray(frame) for _, frame in zip(range(_GIF_FRAMES), frames, strict=False)]
    duration = max(20, round(1000 / frames_per_second))  # milliseconds; browsers slow down what is faster
    pictures[0].save(path, format="GIF", save_all=True, append_images=pictures[1:], duration=duration, loop=0)


def _frames_per_second(env: "gymnasium.Env[Any, Any]") -> float:
    return float(env.metadata.get("render_fps") or 30)
