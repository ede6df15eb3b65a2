"""Videos while a run goes on, seen from the run: a process of its own makes them, and nothing here waits for it before the end.

The process reads checkpoints, as anybody may, so training does not know of it: no lock, no random number and no computation is shared. It
has the lowest priority, no GPU, and dies with the run, however that ends.
"""

import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from laser_rl.config import RunConfig
from laser_rl.metrics import videos
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.training.build import EnvironmentSource
from laser_rl.training.stall import PATIENCE_S, StallWarning

log = logging.getLogger("laser_rl.training")
LAST_FILM_S = 60.0  # of the last parameters, when all else is done
KILL_S = 10.0
SAY = "laser enjoy makes one by hand"
# It has to be nice and die with us from the first moment on, not only after the seconds that torch takes to be imported.
ENTRY = (
    "import os, sys; os.nice(19); from laser_rl.envs.worker import die_with; die_with(int(sys.argv[1])); "
    "from laser_rl.training.recorder import main; main()"
)


class Recording:
    """The process, seen from the run.

    Args:
        run_dir: whose checkpoints are filmed.
        run: how often, and how many are kept.
    """

    def __init__(self, run_dir: Path, run: RunConfig) -> None:
        self._run_dir, self._ending = run_dir, False
        start = {"run_dir": str(run_dir.resolve()), "every": run.video_every_steps, "keep": run.keep_videos}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            [sys.executable, "-c", ENTRY, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the run to handle
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
                "CUDA_VISIBLE_DEVICES": "",  # the card belongs to training
                "OMP_NUM_THREADS": "1",
            },
        )
        self._order(json.dumps(start))
        threading.Thread(target=self._listen, name="what the recorder says", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def finish(self) -> None:
        """Let it film the last checkpoint, for a minute at most. Whoever does not want to wait may interrupt: the run is saved."""
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
        self._process.kill()  # ffmpeg ends by itself when nobody writes to it any more
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even a process that cannot die holds the run up
            self._process.wait(KILL_S)
        with contextlib.suppress(OSError):  # what nobody has read is not missed
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
    run_dir: Path | None,
    run: RunConfig,
    *,
    source: EnvironmentSource | None = None,
    network: object = None,
) -> Iterator[Recording | None]:
    """Videos of a run for as long as the block lasts, if they were asked for and can be made; if they cannot, that is one warning.

    Args:
        run_dir: of the run; None if nothing is kept.
        run: its settings.
        source: what is played, if that is not the configuration's id: an object cannot be sent to another process.
        network: the agent's, or a user's part of it: likewise.
    """
    if not run.video_every_steps:
        yield None
        return
    problem = _problem(run_dir, source, network)
    if problem or run_dir is None:
        log.warning("there will be no videos: %s", problem)
        yield None
        return
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
        log.warning("there will be no videos: %s", error)
        yield None
        return
    try:
        yield recording
    finally:
        recording.close()


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
