"""The checks of `laser doctor`, one `Probe` for each part of the machine. They leave no file behind and contact no other machine."""

import contextlib
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from laser_rl import __version__, disk
from laser_rl.checkpoint.lock import RunLock, owner
from laser_rl.metrics.display import verdict_line
from laser_rl.metrics.machine import gpus

Verdict = Literal["good", "warning", "bad"]
CORE_QUOTA = Path("/sys/fs/cgroup/cpu.max")
TORCH_LIMIT_S, END_LIMIT_S = 120.0, 10.0
SLOW_SYNC_S = 0.5
# In a process of its own: a driver may hang, a broken build may crash, and a CUDA context would stay in this process.
ASK_TORCH = """
import json
import torch
from laser_rl.replay.memory_estimate import available_bytes
seen = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": [], "free_bytes": available_bytes()}
try:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            own = torch.cuda.get_device_properties(index)
            seen["devices"].append(f"{own.name}, {own.total_memory / 1e9:.0f} GB")
        ones = torch.ones(64, 64, device="cuda")
        seen["matmul"] = "works" if bool(((ones @ ones) == 64).all()) else "gives wrong numbers"
except Exception as error:
    seen["why"] = f"{type(error).__name__}: {error}"[:300]
print("\\n" + json.dumps(seen))
"""


@dataclass(frozen=True)
class Probe:
    """The result of one check."""

    part: str
    verdict: Verdict
    found: str
    todo: str = ""


@dataclass(frozen=True)
class Doctor:
    """Look whether this machine is fine: versions, cores, memory, disk, GPU. Exit status 1 if something is bad."""

    run_dir: Path = Path("runs")
    """Where runs are going to be; its file system is tried."""
    json: bool = False
    """Everything as JSON."""

    def __call__(self) -> int:
        lines: list[Probe] = []
        for line in looked_at(self.run_dir):
            lines.append(line)
            if not self.json:
                said = "; ".join(filter(None, (line.found, line.todo)))
                print(verdict_line(line.part, line.verdict, said), flush=True)
        bad, warned = (sum(line.verdict == verdict for line in lines) for verdict in ("bad", "warning"))
        if self.json:
            values = {"fine": not bad, "bad": bad, "warnings": warned, "lines": [asdict(line) for line in lines]}
            print(json.dumps(values, indent=2))
        else:
            print(f"\n{bad} bad, {warned} to look at{': mend what is bad, then ask again' if bad else ''}")
        return int(bool(bad))


def graded(part: str, value: float, least: float, little: float, found: str, todo: str) -> Probe:
    """Bad below `least`, a warning below `little`."""
    if value >= little:
        return Probe(part, "good", found)
    return Probe(part, "bad" if value < least else "warning", found, todo)


def looked_at(run_dir: Path) -> Iterator[Probe]:
    """Yield each probe as soon as it is known; another process imports torch meanwhile."""
    torch = subprocess.Popen(  # noqa: S603  (our own interpreter and our own code)
        [sys.executable, "-c", ASK_TORCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy", "gymnasium"))
        about = f"laser-rl {__version__}, Python {platform.python_version()}, {versions}, {platform.platform()}"
        yield Probe("versions", "good", about)
        yield cores(len(os.sched_getaffinity(0)))
        place = run_dir.absolute()
        while not place.is_dir():
            place = place.parent
        free = shutil.disk_usage(place).free / 1e9
        todo = "free some space (a replay of pictures needs 10 GB), or name another place with --out"
        yield graded("disk", free, 0.5, 10.0, f"{free:,.1f} GB free for {run_dir}", todo)
        yield files(place)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = sys.maxsize if most == resource.RLIM_INFINITY else most
        yield graded("open files", most, 256, 1024, f"at most {most:,}", "raise it: ulimit -n 4096")
        seen = _answer(torch)
        free = seen.get("free_bytes", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")) / 1e9
        todo = "end other programs, give the container more memory, or lower --replay.capacity-steps"
        yield graded("memory", free, 1.0, 4.0, f"{free:.1f} GB free", todo)
        yield from gpu(seen, gpus())
    finally:
        torch.kill()
        torch.communicate(timeout=END_LIMIT_S)


def _answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    try:
        text, errors = process.communicate(timeout=TORCH_LIMIT_S)
        found: dict[str, Any] = json.loads(text.decode().strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"it did not answer within {TORCH_LIMIT_S:.0f} s (a driver that hangs?)"}
    except (ValueError, IndexError):
        said = errors.decode(errors="replace").strip().splitlines()[-1:]
        return {"error": ": ".join([f"its process ended with status {process.returncode}", *said])[:300]}
    return found


def cores(usable: int) -> Probe:
    allowed = float(usable)
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        limit, period = CORE_QUOTA.read_text().split()[:2]
        allowed = int(limit) / int(period)
    if allowed < usable:
        todo = f"{usable} threads would share them: start laser with taskset -c 0-{max(0, int(allowed) - 1)}"
        return Probe("cores", "warning", f"{usable} usable, a control group allows {allowed:g}", todo)
    return graded("cores", usable, 0, 2, f"{usable} usable", "one core acts and learns; use --run.runtime serial")


def files(place: Path) -> Probe:
    """Whether files can be written, synced, renamed and locked there, in a temporary folder that is removed again."""
    try:
        with tempfile.TemporaryDirectory(prefix=".laser-doctor-", dir=place) as name:
            start = time.perf_counter()
            for data in (b"old", b"new"):
                disk.write_bytes(Path(name) / "a", data)  # as every file of a run
            sync_s = time.perf_counter() - start
            with RunLock(Path(name)):
                locked = owner(Path(name)) is not None
    except OSError as error:
        todo = f"make {place} writable, or name another place with --out"
        return Probe("files", "bad", f"{type(error).__name__}: {error}", todo)
    found = f"atomic rename and fsync work ({1e3 * sync_s:.0f} ms)"
    if not locked:
        todo = "two runs could write to one directory: put runs on a local disk, or mount with locks"
        return Probe("files", "bad", f"{found}, locks do not", todo)
    slow = "a slow disk: save less often with --run.checkpoint-every-steps" if sync_s > SLOW_SYNC_S else ""
    return Probe("files", "warning" if slow else "good", f"{found}, locks work", slow)


def gpu(seen: Mapping[str, Any], driver_gpus: Sequence[str]) -> Iterator[Probe]:
    if "error" in seen:
        todo = "install it again, in a fresh virtual environment: pip install torch"
        yield Probe("torch", "bad", seen["error"], todo)
        return
    built = f"CUDA {seen['cuda']}" if seen.get("cuda") else "CPU"
    yield Probe("torch", "good", f"{seen['version']}, built for {built}")
    if not seen.get("devices") and not driver_gpus:
        yield Probe("GPU", "good", "none; everything runs on the CPU")
    elif not seen.get("devices"):
        why = seen.get("why", "torch cannot use it") if seen.get("cuda") else "torch is built for CPU"
        todo = "install a build of torch for CUDA that fits the driver: https://pytorch.org/get-started/locally"
        yield Probe("GPU", "warning", f"{', '.join(driver_gpus)}, but {why}", todo)
    else:
        yield Probe("GPU", "good", "; ".join(seen["devices"]))
        computed = seen.get("matmul", seen.get("why", "not tried"))
        todo = "the card does not compute: look at nvidia-smi and dmesg, and start the machine anew"
        yield graded("GPU matmul", computed == "works", 1, 1, computed, todo)
