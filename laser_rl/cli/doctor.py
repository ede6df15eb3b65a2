"""`laser doctor`: is this machine fine? Looks, tries small things, writes nothing that stays, asks nobody outside."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from laser_rl import __version__
from laser_rl.cli import probe_files, probes
from laser_rl.cli.probes import Line

BAD = 1  # exit status
TORCH_LIMIT_S, WORKER_LIMIT_S, FORK_LIMIT_S = 120.0, 30.0, 10.0
SLOW_WORKER_S = 10.0
MARKS = {"good": "good", "warning": "WARNING", "bad": "BAD", "optional": "–"}
COLOURS = {"good": "32", "warning": "33", "bad": "31;1", "optional": "2"}
# In a process of its own: a driver may hang, a broken build may crash, and a context on the card would stay with us.
ASK_TORCH = """
import json
try:
    import torch
    from laser_rl.replay.memory import available_bytes
    seen = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": [], "free_bytes": available_bytes()}
    try:
        if torch.cuda.is_available():
            for index in range(torch.cuda.device_count()):
                own = torch.cuda.get_device_properties(index)
                seen["devices"].append(f"{own.name}, {own.total_memory / 1e9:.0f} GB")
            ones = torch.ones(64, 64, device="cuda")
            right = bool(((ones @ ones) == 64).all())
            seen["matmul"] = "works" if right else "gives wrong numbers"
            from laser_rl import kernels
            if kernels.available():
                from laser_rl.kernels import plain, pointwise
                c, bias = torch.randn(8, 5, 5, 16, device="cuda"), torch.randn(16, device="cuda")
                same = torch.equal(pointwise.bias_rectify(c, bias), plain.bias_rectify(c, bias))
                import triton
                seen["kernels"] = f"works, triton {triton.__version__}" if same else "another result than plain PyTorch"
            else:
                seen["kernels"] = "triton is not installed"
    except Exception as error:
        seen.setdefault("matmul", f"{type(error).__name__}: {error}"[:300])
        seen.setdefault("kernels", f"{type(error).__name__}: {error}"[:300])
        seen["why"] = str(error)[:300]
except Exception as error:
    seen = {"error": f"{type(error).__name__}: {error}"[:300]}
print("\\n" + json.dumps(seen))
"""


@dataclass(frozen=True)
class Doctor:
    """Look whether this machine is fine: versions, cores, memory, disk, GPU, processes. Exit status 1 if something is bad."""

    run_dir: Path = Path("runs")
    """Where runs are going to be; its file system is tried."""
    json: bool = False
    """Everything as JSON."""


def doctor_command(arguments: list[str]) -> int:
    """`laser doctor`."""
    asked = tyro.cli(Doctor, prog="laser doctor", args=arguments)
    lines: list[Line] = []
    coloured = sys.stdout.isatty()
    for line in looked_at(asked.run_dir):
        lines.append(line)
        if not asked.json:
            print(_text(line, coloured=coloured), flush=True)
    bad, warned = (sum(line.verdict == verdict for line in lines) for verdict in ("bad", "warning"))
    if asked.json:
        values = {"fine": not bad, "bad": bad, "warnings": warned, "lines": [asdict(line) for line in lines]}
        print(json.dumps(values, indent=2))
    else:
        print(f"\n{_result(bad, warned)}")
    return BAD if bad else 0


def looked_at(run_dir: Path) -> Iterator[Line]:
    """Every line, as soon as it is known; torch is loaded elsewhere meanwhile."""
    from laser_rl.metrics.machine import gpus  # noqa: PLC0415 - so that the help text does not wait

    torch = subprocess.Popen(  # noqa: S603  (our own interpreter and our own code)
        [sys.executable, "-c", ASK_TORCH], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield Line("laser-rl", "good", __version__)
        yield probes.python()
        yield from probes.libraries(probes.requirements(), probes.installed)
        yield probes.cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, probes.core_quota())
        yield probes.shared_memory()
        yield from probe_files.disk(run_dir)
        yield probes.open_files()
        yield probes.loopback()
        yield probes.clock()
        yield fork()
        yield worker()
        seen, page = _answer(torch), os.sysconf("SC_PAGE_SIZE")
        free = seen.get("free_bytes", page * os.sysconf("SC_AVPHYS_PAGES"))
        yield probes.memory(page * os.sysconf("SC_PHYS_PAGES"), free)
        yield from probes.gpu(seen, gpus())
    finally:
        if torch.poll() is None:
            torch.kill()
        torch.communicate(timeout=FORK_LIMIT_S)


def _answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    try:
        text, _ = process.communicate(timeout=TORCH_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"it did not answer within {TORCH_LIMIT_S:.0f} s (a driver that hangs?)"}
    try:
        found: dict[str, Any] = json.loads(text.decode().strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"its process ended with status {process.returncode}"}
    return found


def fork() -> Line:
    """A process that is forked and ends at once: containers with few processes allowed fail here.

    >>> fork().verdict
    'good'
    """
    start = time.perf_counter()
    command = [
        sys.executable,
        "-S",
        "-E",
        "-c",
        "import os; pid = os.fork(); pid or os._exit(7); os._exit(os.waitpid(pid, 0)[1] >> 8)",
    ]
    todo = "raise the number of processes: ulimit -u, or pids.max of the container"
    try:
        done = subprocess.run(command, timeout=FORK_LIMIT_S, check=False, capture_output=True)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Line("fork", "bad", f"{type(error).__name__}: {error}", todo)
    if done.returncode != 7:  # noqa: PLR2004 - as the child says
        return Line("fork", "bad", f"ended with status {done.returncode}, expected 7", todo)
    return Line("fork", "good", f"works, {1e3 * (time.perf_counter() - start):.0f} ms with the start of Python")


def worker() -> Line:
    """A worker process of ours, from its start to its first row."""
    from laser_rl.envs.make import make_environments  # noqa: PLC0415 - imports Gymnasium
    from laser_rl.errors import UserError  # noqa: PLC0415

    start = time.perf_counter()
    todo = "try `laser check-env CartPole-v1`; until it works use --environment.placement thread"
    limits = {
        "step_timeout_s": WORKER_LIMIT_S,
        "reset_timeout_s": WORKER_LIMIT_S,
        "constructor_timeout_s": WORKER_LIMIT_S,
    }
    try:
        with contextlib.closing(
            make_environments("CartPole-v1", slots=1, seed=0, placement="process", workers=1, **limits)  # type: ignore[arg-type]
        ) as environments:
            first = environments.reset()
            seconds = time.perf_counter() - start
    except (UserError, OSError) as error:
        return Line("worker", "bad", str(error).splitlines()[0], todo)
    if not first.is_first.all():
        return Line("worker", "bad", "its first row is none", todo)
    found = f"started and answered in {seconds:.1f} s"
    if seconds > SLOW_WORKER_S:
        return Line("worker", "warning", found, "the machine is busy, or Python's libraries lie on a slow disk")
    return Line("worker", "good", found)


def _text(line: Line, *, coloured: bool) -> str:
    mark = f"{MARKS[line.verdict]:<8}"
    mark = f"\x1b[{COLOURS[line.verdict]}m{mark}\x1b[0m" if coloured else mark
    todo = f"; {line.todo}" if line.todo else ""
    return f"{line.part:<16}{mark}  {line.found}{todo}"


def _result(bad: int, warned: int) -> str:
    if bad:
        return f"{bad} bad, {warned} to look at: mend what is bad, then ask again"
    return f"fine, {warned} to look at" if warned else "fine"
