"""Videos while a run goes on: a process of its own makes them, and the run waits for it at its end only.

The process reads checkpoints, as any reader may, so training does not know of it: no lock, no random number and no computation is shared.
It has the lowest priority, no GPU, and dies with the run, however that ends. It looks for new checkpoints, plays an episode of one when it
is time, and writes the film. Its first line of input says what to do, "end" asks for a last film, and the end of its input is its own. What
it prints is a warning of the run; the same thing is said once.
"""

import contextlib
import importlib.util
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from laser_rl import checkpoint
from laser_rl.config import RunConfig
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import UserError
from laser_rl.metrics import videos
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.training.build import EnvironmentSource, derive
from laser_rl.training.evaluate import chosen_member, config_of
from laser_rl.training.files import is_sweep
from laser_rl.training.process_handle import start_child
from laser_rl.training.stall import PATIENCE_S, StallWarning
from laser_rl.trust import Trust

log = logging.getLogger("laser_rl.training")
LAST_FILM_S = 60.0  # of the last parameters, when all else is done
KILL_S = 10.0
SAY = "laser enjoy makes one by hand"
LOOK_S = 1.0
LONGEST_FILM_S = 1800  # an environment that hangs ends here
MOST_FRAMES, FRAMES_PER_SECOND = 1800, 30.0  # a minute
MOST_STEPS = 100_000
_MOST_SAID = 500


class Recording:
    """The process, seen from the run: `run` says how often its checkpoints are filmed, and how many films are kept."""

    def __init__(self, run_dir: Path, run: RunConfig) -> None:
        self._run_dir, self._ending = run_dir, False
        start = {"run_dir": str(run_dir.resolve()), "every": run.video_every_steps, "keep": run.keep_videos}
        self._process = start_child(
            "recording",
            nice=19,
            env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},  # the card belongs to training
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._order(json.dumps(start))
        threading.Thread(target=self._listen, name="what the recorder says", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def finish(self) -> None:
        """Let it film the last checkpoint, for a minute at most. Ctrl-C ends the wait: the run is saved."""
        waiting = StallWarning("the run, which is done and saved,", f"its last video, {LAST_FILM_S:.0f} s at most")
        self._ending = True
        ends = time.monotonic() + LAST_FILM_S
        self._order("end")
        try:
            while self._process.poll() is None:
                if time.monotonic() > ends:
                    log.warning("the last video was not made within %.0f s; %s", LAST_FILM_S, SAY)
                    break
                time.sleep(PATIENCE_S / 4)
                waiting.again()
        except KeyboardInterrupt:
            log.warning("the last video is left out; %s", SAY)

    def close(self) -> None:
        """End it, whatever it does, and remove what it was writing."""
        self._ending = True
        self._process.kill()  # ffmpeg ends by itself when its input ends
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even a process that cannot die holds the run up
            self._process.wait(KILL_S)
        with contextlib.suppress(OSError):  # what was not read is not missed
            assert self._process.stdin is not None  # noqa: S101
            self._process.stdin.close()
        with contextlib.suppress(OSError):
            videos.remove_unfinished(self._run_dir)

    def _order(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it is dead already, which `_listen` says
            assert self._process.stdin is not None  # noqa: S101
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Until it ends; in a thread of its own, which does nothing else."""
        assert self._process.stdout is not None  # noqa: S101
        with self._process.stdout as said:
            for line in said:
                log.warning("videos: %s", line.decode(errors="replace").strip())
        status = self._process.wait()
        if status and not self._ending:
            log.warning("the process that makes videos ended with status %s; the run goes on without; %s", status, SAY)


@contextlib.contextmanager
def recorded(
    run_dir: Path | None, run: RunConfig, *, source: EnvironmentSource | None = None, network: object = None
) -> Iterator[Recording | None]:
    """Videos of a run for as long as the block lasts; if they cannot be made, that is one warning.

    Args:
        run_dir: of the run; None if nothing is kept.
        run: its settings.
        source: what is played, if that is not the configuration's id: an object cannot be sent to another process.
        network: the agent's, or a user's part of it: likewise.
    """
    problem, recording = _problem(run_dir, source, network), None
    if problem is None and run_dir is not None:
        if run.checkpoint_every_steps > run.video_every_steps:
            log.warning(
                "videos are made of checkpoints, which are written every %s steps, so there is none every %s; "
                "lower run.checkpoint_every_steps for more",
                f"{run.checkpoint_every_steps:,}",
                f"{run.video_every_steps:,}",
            )
        try:
            recording = Recording(run_dir, run)
        except OSError as error:  # no process more, or no memory
            problem = str(error)
    if recording is None:
        log.warning("there will be no videos: %s", problem)
        yield None
        return
    with contextlib.closing(recording):
        yield recording


def _problem(run_dir: Path | None, source: EnvironmentSource | None, network: object) -> str | None:
    if run_dir is None:
        return "they are made of checkpoints, and nothing is kept; give a run directory"
    if (source is not None and not isinstance(source, str)) or not _ours(network):
        return "another process makes them, which needs an environment by id or 'module:callable' and one of our own networks"
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return "they need the extra 'video': pip install 'laser-rl[video]'"
    return None


def _ours(network: object) -> bool:
    """Whether another process can build it from the settings alone."""
    if isinstance(network, AgentNetwork):
        return _ours(network.torso) and _ours(network.value_torso)
    return network is None or type(network).__module__.startswith("laser_rl.")


class VideoRecorder:
    """In the process: films every `every` steps, `keep` of which stay."""

    def __init__(self, run_dir: Path, every: int, keep: int) -> None:
        self.run_dir, self.every, self.keep = run_dir, every, keep
        self._tried = 0  # the last step that was filmed, or could not be
        self._said: set[str] = set()
        videos.remove_unfinished(run_dir)

    def look(self, *, last: bool = False) -> Path | None:
        """Film the newest checkpoint if it is the first after another `every` steps or the `last` one; its path if that was done."""
        step = checkpoint.newest_step(self.run_dir)
        if step is None:
            return None
        before = max(videos.filmed_until(self.run_dir, step), self._tried if self._tried <= step else 0)
        if step <= before or (step // self.every == before // self.every and not last):
            return None
        self._tried = step
        try:
            path = self.film()
            videos.prune(self.run_dir, self.keep)
        except UserError as error:
            self._say(str(error))
        except Exception as error:  # a film is never worth more than the run: whatever it is, it is said
            self._say(f"{type(error).__name__}: {error}")
        else:
            return path
        return None

    def film(self) -> Path:
        """One episode of the newest checkpoint: of a sweep the best member's, of several tasks each in turn."""
        from laser_rl.evaluation.video import Limits  # noqa: PLC0415 - the run itself draws nothing
        from laser_rl.training.filming import Filming, film_shown, load_shown  # noqa: PLC0415

        member = self._member()
        config, _ = config_of(self.run_dir, member)
        shown = load_shown(self.run_dir, member, torch.device("cpu"))
        torch.set_num_threads(1)
        step = shown.trained.steps
        tasks = list(tasks_of(config.environment.id))
        how = Filming(
            task=tasks[step // self.every % len(tasks)],
            seed=derive(config.run.seed, f"video/{step}") % 2**31,
            max_steps=MOST_STEPS,
            limits=Limits(frames=MOST_FRAMES, frames_per_second=FRAMES_PER_SECOND),
            by=videos.BY_TRAINING,
        )
        path = self.run_dir / videos.FOLDER / videos.film_name(step, member)
        film_shown(shown, path, how)
        return path

    def _member(self) -> int | None:
        if not is_sweep(self.run_dir):
            return None
        try:
            return chosen_member(self.run_dir, "best")
        except UserError:  # no episode has ended yet
            return 0

    def _say(self, what: str) -> None:
        what = " ".join(what.split())[:_MOST_SAID]
        if what not in self._said:
            self._said.add(what)
            print(f"{what} (the run goes on without this one)", flush=True)


def orders(stdin: int, every_s: float = LOOK_S) -> Iterator[str]:
    """Lines as they come, "" whenever none has come for a while; ends with the input."""
    heard = b""
    while True:
        if b"\n" in heard:
            line, _, heard = heard.partition(b"\n")
            yield line.decode()
        elif select.select([stdin], [], [], every_s)[0]:
            data = os.read(stdin, 1 << 16)
            if not data:
                return
            heard += data
        else:
            yield ""


def main() -> NoReturn:
    """Entry, see `process_handle.start_child`: look until asked to end."""
    signal.signal(signal.SIGALRM, _too_long)
    lines = orders(sys.stdin.fileno())
    start: dict[str, Any] = json.loads(next(line for line in lines if line))
    recorder = VideoRecorder(Path(start["run_dir"]), start["every"], start["keep"])
    with Trust(code=True).applied():  # the run that started this plays the same environment
        for line in lines:
            signal.alarm(LONGEST_FILM_S)
            recorder.look(last=line == "end")
            signal.alarm(0)
            if line == "end":
                break
    sys.stdout.flush()
    os._exit(0)  # all is written, and what Python takes apart on its way out takes seconds


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"an episode was not over after {LONGEST_FILM_S} s")
