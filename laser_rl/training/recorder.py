"""The process that makes the videos of a run: it looks for new checkpoints, plays an episode of one when it is time, and writes the film.

Started by `runtime.recording`. Its first line of input says what to do, "end" asks for a last film, and the end of its input is its own.
What it prints is a warning of the run; the same thing is said once.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from laser_rl import checkpoint
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import UserError
from laser_rl.evaluation.video import Limits
from laser_rl.metrics import videos
from laser_rl.training.build import derive
from laser_rl.training.evaluate import chosen_member, config_of
from laser_rl.training.files import is_sweep
from laser_rl.training.filming import Filming, film_shown, load_shown
from laser_rl.trust import Trust

LOOK_S = 1.0
LONGEST_FILM_S = 1800  # an environment that hangs ends here
LIMITS = Limits(frames=1800, frames_per_second=30.0)  # a minute
MOST_STEPS = 100_000
_MOST_SAID = 500


class VideoRecorder:
    """What is due, and what has been said.

    Args:
        run_dir: of the run.
        every: steps between two films.
        keep: how many stay.
    """

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
            limits=LIMITS,
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


def run(lines: Iterator[str]) -> None:
    """Look until one is asked to end."""
    start: dict[str, Any] = json.loads(next(line for line in lines if line))
    recorder = VideoRecorder(Path(start["run_dir"]), start["every"], start["keep"])
    with Trust(code=True).applied():  # the run that started this plays the same environment
        for line in lines:
            signal.alarm(LONGEST_FILM_S)
            recorder.look(last=line == "end")
            signal.alarm(0)
            if line == "end":
                return


def main() -> NoReturn:
    """Entry, see `recording`."""
    signal.signal(signal.SIGALRM, _too_long)
    run(orders(sys.stdin.fileno()))
    sys.stdout.flush()
    os._exit(0)  # all is written, and what Python takes apart on its way out takes seconds


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"an episode was not over after {LONGEST_FILM_S} s")
