"""Films: one episode of an agent as an mp4 (with the extra `video`) or a GIF. `laser enjoy` makes them, and the recorder."""

import contextlib
import itertools
import math
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.agent.policy import Policy, act_once
from laser_rl.config import EnvironmentConfig
from laser_rl.disk import whole, write_json
from laser_rl.envs.border import Env
from laser_rl.envs.make import make_renderable
from laser_rl.envs.masks import MaskInObservation, in_space
from laser_rl.envs.records import DiscreteActions
from laser_rl.envs.scores import tasks_of
from laser_rl.envs.spaces import spec_of
from laser_rl.errors import ConfigError, MissingExtra, UserError, require_modules
from laser_rl.metrics.videos import facts_path
from laser_rl.training.evaluate import Trained

FORMAT = 1
Frame = NDArray[np.uint8]  # [height, width, 3]
MOST_FRAMES, FRAMES_PER_SECOND = 1800, 30  # of a short film: a minute
GIF_FRAMES = 3000


def film(
    trained: Trained,
    path: Path,
    *,
    task: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    max_steps: int = 10_000,
    short: bool = False,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Play one episode and write what it looks like into *.mp4 or *.gif, whole or not at all; returns how the episode went.

    A `short` film shows a minute at most, at 30 frames a second; the rest is played unseen, so that the return is known. `about` says who
    made the film, in the JSON file beside it; without it there is no such file.
    """
    if path.suffix not in {".mp4", ".gif"}:
        raise ConfigError(f"expected a video called *.mp4 or *.gif, got {path.name!r}; change its ending")
    write, most = (_write_mp4, math.inf) if path.suffix == ".mp4" else (_write_gif, GIF_FRAMES)
    task, options = chosen_task(trained.environment.id, task)
    with contextlib.closing(_opened(trained.environment, task, options)) as env:
        if (mode := getattr(env, "render_mode", None)) != "rgb_array":
            raise ConfigError(
                f"expected an environment with render_mode 'rgb_array', got {mode!r}; make it with gymnasium.make(..., "
                "render_mode='rgb_array'), and let its class keep that argument as self.render_mode"
            )
        shown = float(env.metadata.get("render_fps") or 30)
        stride = max(1, math.ceil(round(shown) / FRAMES_PER_SECOND)) if short else 1
        most = min(most, MOST_FRAMES) if short else most
        went = {"return": 0.0, "length": 0, "ended": False, "frames": 0, "frames_per_second": shown / stride}
        policy = Policy(trained.network, trained.family, seed=seed, deterministic=deterministic)
        frames = _play(env, policy, trained, went, max_steps=max_steps, seed=seed, stride=stride, most_frames=most)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with whole(path) as temporary:
                write(temporary, frames, shown / stride)
                if about is not None:  # before the film is in its place: the facts say whose it is
                    played = {"step": trained.steps, "task": task, "seed": seed, "deterministic": deterministic}
                    write_json(facts_path(path), {"format": FORMAT, "time": time.time(), **about, **played, **went})
        except gymnasium.error.DependencyNotInstalled:
            raise MissingExtra(f"drawing {task}", "video") from None
    return went


def chosen_task(environment: str, task: str | None) -> tuple[str, Mapping[str, Any]]:
    tasks = tasks_of(environment)
    chosen = next(iter(tasks)) if task is None else task
    if chosen not in tasks:
        raise ConfigError(f"expected a task of {environment}, one of {', '.join(tasks)}, got {task!r}; name one")
    return chosen, tasks[chosen]


def can_be_filmed(environment: EnvironmentConfig) -> bool:
    """Ask an environment, without drawing: a picture may need a library or a graphics card whose failure ends the process."""
    try:
        env = _opened(environment, *chosen_task(environment.id, None))
    except UserError:
        return False
    with contextlib.closing(env):
        draws = getattr(type(env.unwrapped), "render", gymnasium.Env.render) is not gymnasium.Env.render
        return draws and getattr(env, "render_mode", None) == "rgb_array"


def _opened(environment: EnvironmentConfig, task: str, options: Mapping[str, Any]) -> Env:
    return make_renderable(task, options={**options, **environment.options}, atari=environment.atari)


def _play(
    env: Env,
    policy: Policy,
    trained: Trained,
    went: dict[str, Any],
    *,
    max_steps: int,
    seed: int,
    stride: int,
    most_frames: float,
) -> Iterator[Frame]:
    if trained.spec.observation.mask and not in_space(env.observation_space):
        env = MaskInObservation(env)
    spec, (sees, acts) = spec_of(env.observation_space, env.action_space, trained.environment.id)
    observation, _ = env.reset(seed=seed)
    reward, before = 0.0, None
    while True:
        if went["frames"] < most_frames and (went["ended"] or went["length"] % stride == 0):
            went["frames"] += 1
            yield _picture(env)
        if went["ended"] or went["length"] >= max_steps:
            return
        seen, is_first = np.asarray(sees(observation))[np.newaxis], np.array([before is None])
        [action], before = act_once(policy, trained.layout, seen, np.array([reward], np.float32), is_first, before)
        if isinstance(spec.action, DiscreteActions) and int(action) >= spec.action.count:
            action = np.zeros_like(action)  # of a mixture: an action that this task does not know acts as 0
        observation, given, terminated, truncated, _ = env.step(acts(action))
        reward = float(given)
        went["return"] += reward
        went["length"] += 1
        went["ended"] = bool(terminated or truncated)


def _picture(env: Env) -> Frame:
    try:
        picture: Any = env.render()
    except (UserError, gymnasium.error.Error):
        raise
    except Exception as error:  # whatever a user's render raises
        raise ConfigError(
            f"expected render() to return a picture, got {type(error).__name__}: {error}; write render() for render_mode 'rgb_array'"
        ) from error
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:  # noqa: PLR2004
        shape = getattr(picture, "shape", type(picture).__name__)
        raise ConfigError(f"expected render() to return [height, width, 3], got {shape}; check its render_mode")
    return picture.astype(np.uint8, copy=False)


def _write_mp4(path: Path, frames: Iterator[Frame], frames_per_second: float) -> None:
    """Run ffmpeg ourselves: `imageio` does not tell its exit status, by which a file that was cut short is known."""
    require_modules("writing an mp4", "video", "imageio_ffmpeg")
    import imageio_ffmpeg  # type: ignore[import-untyped]  # noqa: PLC0415

    first = next(frames)
    # h264 in yuv420p with its index in front: what every browser plays, and begins to play before it has all of it. It stores colour for
    # blocks of 2 × 2, so an odd height or width is padded.
    given = f"-f rawvideo -pix_fmt rgb24 -s {first.shape[1]}x{first.shape[0]} -r {frames_per_second} -i -"
    wanted = "-vf pad=ceil(iw/2)*2:ceil(ih/2)*2 -c:v libx264 -pix_fmt yuv420p -movflags +faststart -f mp4"
    options = f"-y -xerror -loglevel quiet {given} {wanted}".split()
    command = [imageio_ffmpeg.get_ffmpeg_exe(), *options, str(path)]
    try:
        ffmpeg = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - the library's own program
    except OSError:
        raise _failed(path) from None
    assert ffmpeg.stdin is not None  # noqa: S101
    try:
        with contextlib.suppress(BrokenPipeError):  # its status tells
            for frame in itertools.chain([first], frames):
                ffmpeg.stdin.write(frame.tobytes())
        with contextlib.suppress(subprocess.TimeoutExpired):
            ffmpeg.communicate(timeout=60.0)
    finally:
        ffmpeg.kill()
        ffmpeg.communicate()
    if ffmpeg.returncode or not path.is_file():
        raise _failed(path)


def _failed(path: Path) -> UserError:
    free = shutil.disk_usage(path.parent).free / 1e6
    return UserError(
        f"ffmpeg could not write a film into {path.parent}, where {free:,.1f} MB are free; "
        "free some space, or try another ending: .gif"
    )


def _write_gif(path: Path, frames: Iterator[Frame], frames_per_second: float) -> None:
    from PIL import Image  # noqa: PLC0415 - a run that is not filmed never needs it

    first, *others = (Image.fromarray(frame) for frame in frames)
    duration = max(20, round(1000 / frames_per_second))  # milliseconds; browsers slow down what is faster
    first.save(path, format="GIF", save_all=True, append_images=others, duration=duration, loop=0)
