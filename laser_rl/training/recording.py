"""Videos while a run goes on: a process of its own makes them, and the run waits for it at its end only.

The process reads checkpoints, as any reader may, so training does not know of it: no lock, no random number and no computation is shared.
It has the lowest priority, no GPU, and dies with the run, however that ends. It looks for new checkpoints, plays an episode of one when it
is time, and writes the film. The end of its input asks for a last film. What it prints is a warning of the run, once.
"""

import contextlib
import logging
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from laser_rl import checkpoint
from laser_rl.config import RunConfig
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError, UserError, require_modules
from laser_rl.metrics import videos
from laser_rl.training.build import EnvironmentSource, derive
from laser_rl.training.evaluate import Result, chosen_member, load_trained
from laser_rl.training.process_handle import start_child
from laser_rl.training.stall import SAY_AFTER_S
from laser_rl.trust import Trust

log = logging.getLogger("laser_rl.training")
LAST_FILM_S = 60.0  # of the last parameters, when all else is done
SAY = "laser enjoy makes one by hand"
LOOK_S = 1.0


class Recording:
    """The process, seen from the run: `run` says how often its checkpoints are filmed, and how many films are kept."""

    def __init__(self, run_dir: Path, run: RunConfig) -> None:
        self._run_dir, self._ending = run_dir, False
        self._process = start_child(
            "training.recording",
            {"run_dir": str(run_dir.resolve()), "every": run.video_every_steps, "keep": run.keep_videos},
            nice=19,
            env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},  # the card belongs to training
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        threading.Thread(target=self._listen, name="what the recorder says", daemon=True).start()

    def finish(self) -> None:
        """Let it film the last checkpoint, for a minute at most. Ctrl-C ends the wait: the run is saved."""
        self._end_input()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SAY_AFTER_S)
                return
            log.warning("the run is done and saved; it waits for its last video, %.0f s at most", LAST_FILM_S)
            self._process.wait(LAST_FILM_S)
        except subprocess.TimeoutExpired:
            log.warning("the last video was not made within %.0f s; %s", LAST_FILM_S, SAY)
        except KeyboardInterrupt:
            log.warning("the last video is left out; %s", SAY)

    def close(self) -> None:
        self._process.kill()  # ffmpeg ends by itself when its input ends
        self._end_input()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even a process that cannot die holds the run up
            self._process.wait(10.0)
        with contextlib.suppress(OSError):
            videos.remove_unfinished(self._run_dir)

    def _end_input(self) -> None:
        self._ending = True
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101
        with self._process.stdout as said:
            for line in said:
                log.warning("videos: %s", line.decode(errors="replace").strip())
        status = self._process.wait()
        if status and not self._ending:
            log.warning("the process that makes videos ended with status %s; the run goes on without; %s", status, SAY)


def with_videos(
    go: Callable[[], Result], run_dir: Path | None, run: RunConfig, *, source: EnvironmentSource | None, network: object
) -> Result:
    """Call `go`, and make videos of the checkpoints meanwhile, if the settings `run` ask for them; if they cannot be made, warn once."""
    if not run.video_every_steps:
        return go()
    try:
        recording = _start(run_dir, run, source, network)
    except (UserError, OSError) as error:  # OSError: no process more, or no memory
        log.warning("there will be no videos: %s", error)
        return go()
    with contextlib.closing(recording):
        result = go()
        if result.interrupted is None:
            recording.finish()
    return result


def _start(run_dir: Path | None, run: RunConfig, source: EnvironmentSource | None, network: object) -> Recording:
    if run_dir is None:
        raise ConfigError("they are made of checkpoints, and nothing is kept; give a run directory")
    if (source is not None and not isinstance(source, str)) or network is not None:
        raise ConfigError(
            "another process makes them, which needs an environment by id or 'module:callable' and one of our own networks"
        )
    require_modules("making them", "video", "imageio_ffmpeg")
    if run.checkpoint_every_steps > run.video_every_steps:
        often = f"every {run.checkpoint_every_steps:,} steps, so there is none every {run.video_every_steps:,}"
        log.warning("videos are made of checkpoints, %s; lower run.checkpoint_every_steps for more", often)
    return Recording(run_dir, run)


class VideoRecorder:
    """In the process: films every `every` steps, `keep` of which stay."""

    def __init__(self, run_dir: Path, every: int, keep: int) -> None:
        self.run_dir, self.every, self.keep = run_dir, every, keep
        self._tried = 0  # the last step that was filmed, or could not be
        self._said: set[str] = set()
        videos.remove_unfinished(run_dir)

    def look(self, *, last: bool = False) -> None:
        """Film the newest checkpoint if it is the first after another `every` steps or the `last` one; print what went wrong, once."""
        step = checkpoint.newest_step(self.run_dir)
        if step is None:
            return
        # Later films show steps that a resumed run repeats.
        filmed = [self._tried, *(one.step or 0 for one in videos.by_training(self.run_dir))]
        before = max((one for one in filmed if one <= step), default=0)
        if step <= before or (step // self.every == before // self.every and not last):
            return
        self._tried = step
        try:
            self.film()
            videos.prune(self.run_dir, self.keep)
        except Exception as error:  # a film is never worth more than the run: whatever it is, it is said
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            said = " ".join(said.split())[:500]
            if said not in self._said:
                self._said.add(said)
                print(f"{said} (the run goes on without this one)", flush=True)

    def film(self) -> None:
        """One episode of the newest checkpoint: of a sweep the best member's, of several tasks each in turn."""
        from laser_rl.training.filming import film  # noqa: PLC0415 - the run itself draws nothing

        try:
            member = chosen_member(self.run_dir)
        except UserError:  # no episode has ended yet
            member = 0
        trained = load_trained(self.run_dir, member)
        torch.set_num_threads(1)
        step, tasks = trained.steps, list(tasks_of(trained.environment.id))
        whose = "" if member is None else f"-member-{member:02d}"
        film(
            trained,
            self.run_dir / videos.FOLDER / f"step-{step:012d}{whose}.mp4",
            task=tasks[step // self.every % len(tasks)],
            seed=derive(trained.config.run.seed, f"video/{step}") % 2**31,
            max_steps=100_000,
            short=True,
            about={"by": videos.BY_TRAINING, "member": member},
        )


def main(start: Mapping[str, Any]) -> int:
    recorder, ending = VideoRecorder(Path(start["run_dir"]), start["every"], start["keep"]), False
    with Trust(code=True).applied():  # the run that started this plays the same environment
        while not ending:
            ending = bool(select.select([sys.stdin], [], [], LOOK_S)[0])
            recorder.look(last=ending)
    return 0
