"""The checks of `laser doctor`, one `Probe` for each part of the machine. They leave no file behind and contact no other machine."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laser_rl import __version__, disk

Verdict = Literal["good", "warning", "bad", "optional"]
DISTRIBUTION = "laser-rl"
NOT_FOR_USERS = frozenset({"dev", "bench", "mutants", "docs"})
GB = 1e9
LEAST_FREE_GB, LITTLE_FREE_GB = 1.0, 4.0  # of memory
LEAST_DISK_GB, LITTLE_DISK_GB = 0.5, 10.0
FEW_FILES, LEAST_FILES = 1024, 256
TORCH_LIMIT_S, WORKER_LIMIT_S, END_LIMIT_S = 120.0, 30.0, 10.0
SLOW_WORKER_S, SLOW_SYNC_S = 10.0, 0.5
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
        from laser_rl import cuda
        if not cuda.available():
            seen["kernels"] = "triton is not installed"
        else:
            import triton
            from laser_rl.cuda import pointwise, shapes
            c, bias = torch.randn(8, 5, 5, 16, device="cuda"), torch.randn(16, device="cuda")
            same = torch.equal(pointwise.bias_rectify(c, bias), shapes.bias_rectify(c, bias))
            seen["kernels"] = f"works, triton {triton.__version__}" if same else "another result than plain PyTorch"
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


def _graded(part: str, value: float, least: float, little: float, found: str, todo: tuple[str, str]) -> Probe:
    """Bad below `least`, with the first advice; a warning below `little`, with the second."""
    if value >= little:
        return Probe(part, "good", found)
    return Probe(part, "bad", found, todo[0]) if value < least else Probe(part, "warning", found, todo[1])


def looked_at(run_dir: Path) -> Iterator[Probe]:
    """Yield each probe as soon as it is known; another process imports torch meanwhile."""
    from laser_rl.metrics.machine import gpus  # noqa: PLC0415 - so that the help text does not wait

    torch = subprocess.Popen(  # noqa: S603  (our own interpreter and our own code)
        [sys.executable, "-c", ASK_TORCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield Probe("laser-rl", "good", __version__)
        yield Probe("python", "good", f"{platform.python_version()}, {platform.platform()}")
        requirements = importlib.metadata.requires(DISTRIBUTION) if _installed(DISTRIBUTION) else None
        yield from libraries(requirements or [], _installed)
        yield cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, core_quota())
        yield from disk_space(run_dir)
        yield open_files()
        yield worker()
        seen, page = _answer(torch), os.sysconf("SC_PAGE_SIZE")
        free = seen.get("free_bytes", page * os.sysconf("SC_AVPHYS_PAGES"))
        yield memory(page * os.sysconf("SC_PHYS_PAGES"), free)
        yield from gpu(seen, gpus())
    finally:
        if torch.poll() is None:
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


def worker() -> Probe:
    """Whether a worker process for environments starts, and how long it takes to its first row."""
    from laser_rl.envs.make import make_environments  # noqa: PLC0415 - imports Gymnasium
    from laser_rl.errors import UserError  # noqa: PLC0415

    start = time.perf_counter()
    todo = "try `laser check-env CartPole-v1`; until it works use --environment.placement thread"
    how: dict[str, Any] = {"slots": 1, "seed": 0, "placement": "process", "workers": 1}
    how |= dict.fromkeys(("step_timeout_s", "reset_timeout_s", "constructor_timeout_s"), WORKER_LIMIT_S)
    try:
        with contextlib.closing(make_environments("CartPole-v1", **how)) as environments:
            environments.reset()
            seconds = time.perf_counter() - start
    except (UserError, OSError) as error:
        return Probe("worker", "bad", str(error).splitlines()[0], todo)
    found = f"started and answered in {seconds:.1f} s"
    if seconds > SLOW_WORKER_S:
        return Probe("worker", "warning", found, "the machine is busy, or Python's libraries lie on a slow disk")
    return Probe("worker", "good", found)


def libraries(requirements: Sequence[str], version: Callable[[str], str | None]) -> Iterator[Probe]:
    """What the base install needs, then the extras.

    Args:
        requirements: of this package's metadata, such as "ray>=2; extra == 'cluster'".
        version: of a distribution that is installed, None if it is not there.
    """
    names: dict[str, list[str]] = {"": []}
    for text in requirements:
        found = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", text)
        names.setdefault(found[1] if found else "", []).append(re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0])
    for extra in sorted(set(names) - NOT_FOR_USERS):
        part, install = (f"extra {extra}", f"{DISTRIBUTION}[{extra}]") if extra else ("libraries", DISTRIBUTION)
        if missing := [name for name in names[extra] if version(name) is None]:
            told = f"pip install '{install}'"
            yield Probe(part, "optional" if extra else "bad", f"not installed: {', '.join(missing)}", told)
        else:
            yield Probe(part, "good", ", ".join(f"{name} {version(name)}" for name in names[extra]))


def _installed(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def cores(usable: int, present: int, quota: float | None) -> Probe:
    """How many cores the machine has, this process may use, and the control group's quota allows."""
    allowed = "no limit by a control group" if quota is None else f"a control group allows {quota:g}"
    found = f"{usable} of {present} usable, {allowed}"
    if quota is not None and quota < usable:
        todo = f"{usable} threads would share {quota:g} cores: start laser with taskset -c 0-{max(0, int(quota) - 1)}"
        return Probe("cores", "warning", found, todo)
    if min(usable, quota or usable) < 2:  # noqa: PLR2004 - acting and learning
        return Probe("cores", "warning", found, "acting and learning share one core; use --run.runtime serial")
    return Probe("cores", "good", found)


def core_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Cores that the control group allows; None without a limit."""
    with contextlib.suppress(OSError, ValueError):
        limit, period = file.read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    return None


def memory(total: int, free: int) -> Probe:
    """Main memory; `free` is what is left within the limits of the control group."""
    found = f"{free / GB:.1f} GB free of {total / GB:.1f} GB, limits of the control group considered"
    todo = (
        "end other programs, or give the container more memory",
        "enough for small tasks; for pictures lower --replay.capacity-steps, or free some memory",
    )
    return _graded("memory", free / GB, LEAST_FREE_GB, LITTLE_FREE_GB, found, todo)


def disk_space(folder: Path) -> Iterator[Probe]:
    """The file system of the run directories: free space, and whether it does what checkpoints depend on."""
    place = folder.absolute()
    while not place.is_dir():
        place = place.parent
    free, found = shutil.disk_usage(place).free / GB, f"{shutil.disk_usage(place).free / GB:,.1f} GB free for {folder}"
    full, little = (
        "free some space, or name another place with --out",
        "enough for small tasks, not for a replay of pictures",
    )
    yield _graded("disk", free, LEAST_DISK_GB, LITTLE_DISK_GB, found, (full, little))
    yield promises(place)


def promises(place: Path) -> Probe:
    """Whether write, sync, rename over an older file and lock work, in a temporary folder that is removed again."""
    try:
        with tempfile.TemporaryDirectory(prefix=".laser-doctor-", dir=place) as name:
            folder = Path(name)
            start = time.perf_counter()
            for data in (b"old", b"new"):
                disk.write_bytes(folder / "a", data)  # as every file of a run
            sync_s, renamed = time.perf_counter() - start, (folder / "a").read_bytes() == b"new"
            locked = _locks(folder / "lock")
    except OSError as error:
        todo = f"make {place} writable, or name another place with --out"
        return Probe("files", "bad", f"{type(error).__name__}: {error}", todo)
    if not renamed:
        todo = "checkpoints would be lost there: name another place with --out"
        return Probe("files", "bad", "a renamed file has the content of the old one", todo)
    found = f"atomic rename and fsync work ({1e3 * sync_s:.0f} ms)"
    if not locked:
        todo = "two runs could write to one directory: put runs on a local disk, or mount with locks"
        return Probe("files", "bad", f"{found}, locks do not", todo)
    if sync_s > SLOW_SYNC_S:
        return Probe("files", "warning", found, "a slow disk: save less often with --run.checkpoint-every-steps")
    return Probe("files", "good", f"{found}, locks work")


def _locks(path: Path) -> bool:
    """Whether a second opening of a locked file is refused the lock."""
    with path.open("w") as first, path.open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def open_files(soft: int | None = None) -> Probe:
    """How many files a process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    if soft == resource.RLIM_INFINITY:
        return Probe("open files", "good", "no limit")
    todo = "raise it: ulimit -n 4096"
    return _graded("open files", soft, LEAST_FILES, FEW_FILES, f"at most {soft:,}", (todo, todo))


def gpu(seen: Mapping[str, Any], driver_gpus: Sequence[str]) -> Iterator[Probe]:
    """Probes of torch and of the GPU, from what the process that runs `ASK_TORCH` has `seen`."""
    if "error" in seen:
        yield Probe(
            "torch", "bad", seen["error"], "install it again, in a fresh virtual environment: pip install torch"
        )
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
        broken = "the card does not compute: look at nvidia-smi and dmesg, and start the machine anew"
        slow = "pip install triton; without our kernels the network runs, more slowly"
        parts: list[tuple[str, Verdict, str]] = [("matmul", "bad", broken), ("kernels", "warning", slow)]
        for part, verdict, todo in parts:
            text = seen.get(part, seen.get("why", "not tried"))
            good = text.startswith("works")
            yield Probe(f"GPU {part}", "good" if good else verdict, text, "" if good else todo)
