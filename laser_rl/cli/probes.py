"""What `laser doctor` looks at: each probe is a function from a piece of the machine to lines; none of them needs a network or torch."""

import contextlib
import importlib.metadata
import mmap
import os
import platform
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["good", "warning", "bad", "optional"]
OLDEST_PYTHON = (3, 11)
DISTRIBUTION = "laser-rl"
NOT_FOR_USERS = frozenset({"dev", "bench", "mutants", "docs"})
GB = 1e9
LEAST_FREE_GB, LITTLE_FREE_GB = 1.0, 4.0  # of memory
FEW_FILES, LEAST_FILES = 1024, 256
CLOCK_READS = 10_000


@dataclass(frozen=True)
class Line:
    """One thing that was looked at.

    >>> Line("disk", "bad", "0.1 GB free", "free some space").todo
    'free some space'
    """

    part: str
    verdict: Verdict
    found: str
    todo: str = ""


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Line:
    """The interpreter.

    >>> python((3, 9, 1)).verdict
    'bad'
    """
    text = f"{'.'.join(map(str, version))}, {platform.python_implementation()}, {platform.platform()}"
    if version < OLDEST_PYTHON:
        return Line("python", "bad", text, "make a virtual environment with Python 3.11 or newer")
    return Line("python", "good", text)


def libraries(requirements: Sequence[str], versions: Callable[[str], str | None]) -> Iterator[Line]:
    """What the base install needs, then the extras.

    >>> for line in libraries(["numpy>=1", "ray>=2; extra == 'cluster'"], {"numpy": "2.0"}.get): print(line.verdict, line.found)
    good numpy 2.0
    optional not installed
    """
    base, extras = _by_extra(requirements)
    missing = [name for name in base if versions(name) is None]
    found = ", ".join(f"{name} {versions(name)}" for name in base if name not in missing)
    if missing:
        yield Line("libraries", "bad", f"missing: {', '.join(missing)}", f"pip install {DISTRIBUTION}")
    else:
        yield Line("libraries", "good", found)
    for extra, names in extras.items():
        lacking = [name for name in names if versions(name) is None]
        if lacking:
            how = f"pip install '{DISTRIBUTION}[{extra}]'"
            some = "not installed" if len(lacking) == len(names) else f"not installed: {', '.join(lacking)}"
            yield Line(f"extra {extra}", "optional", some, how)
        else:
            yield Line(f"extra {extra}", "good", ", ".join(f"{name} {versions(name)}" for name in names))


def _by_extra(requirements: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    base: list[str] = []
    extras: dict[str, list[str]] = {}
    for text in requirements:
        name = re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]
        found = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", text)
        if found is None:
            base.append(name)
        elif found[1] not in NOT_FOR_USERS:
            extras.setdefault(found[1], []).append(name)
    return base, dict(sorted(extras.items()))


def installed(name: str) -> str | None:
    """The version of a distribution, None if it is not there.

    >>> installed("no-such-distribution")
    """
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """What this package asks for, by its own metadata."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def cores(usable: int, present: int, quota: float | None) -> Line:
    """How many cores there are, may be used, and are paid for.

    >>> cores(8, 8, 1.5).verdict, cores(8, 8, None).verdict
    ('warning', 'good')
    """
    allowed = "no limit by a control group" if quota is None else f"a control group allows {quota:g}"
    found = f"{usable} of {present} usable, {allowed}"
    if quota is not None and quota < usable:
        todo = f"{usable} threads would share {quota:g} cores: start laser with taskset -c 0-{max(0, int(quota) - 1)}"
        return Line("cores", "warning", found, todo)
    if min(usable, quota or usable) < 2:  # noqa: PLR2004 - acting and learning
        return Line("cores", "warning", found, "acting and learning share one core; use --run.runtime serial")
    return Line("cores", "good", found)


def core_quota(root: Path = Path("/")) -> float | None:
    """Cores that the control group (version 2 or 1) allows; None without a limit."""
    group = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    with contextlib.suppress(OSError, ValueError):
        limit_us = int((group / "cpu/cpu.cfs_quota_us").read_text())
        return None if limit_us <= 0 else limit_us / int((group / "cpu/cpu.cfs_period_us").read_text())
    return None


def memory(total: int, free: int) -> Line:
    """Main memory; `free` knows of control groups.

    >>> memory(16 * 10**9, 500 * 10**6).verdict
    'bad'
    """
    found = f"{free / GB:.1f} GB free of {total / GB:.1f} GB, limits of the control group considered"
    if free < LEAST_FREE_GB * GB:
        return Line("memory", "bad", found, "end other programs, or give the container more memory")
    if free < LITTLE_FREE_GB * GB:
        todo = "enough for small tasks; for pictures lower --replay.capacity-steps, or free some memory"
        return Line("memory", "warning", found, todo)
    return Line("memory", "good", found)


def shared_memory(folder: Path = Path("/dev/shm")) -> Line:  # noqa: S108 - its size is looked at, nothing is written
    """Memory between processes: ours has no name and needs no room in /dev/shm, which is what a user would suspect."""
    try:
        room = os.statvfs(folder)
        size = f"{folder} has {room.f_bavail * room.f_frsize / GB:.1f} GB free, of which laser needs none"
    except OSError:
        size = f"there is no {folder}, and laser needs none"
    try:
        handle = os.memfd_create("laser-doctor")
        try:
            os.ftruncate(handle, mmap.PAGESIZE)
            with mmap.mmap(handle, mmap.PAGESIZE) as mapped:
                mapped[:5] = b"laser"
        finally:
            os.close(handle)
    except (OSError, AttributeError) as error:
        todo = "memfd_create is not allowed here: use --environment.placement thread and one process, or another container runtime"
        return Line("shared memory", "bad", f"{type(error).__name__}: {error}", todo)
    return Line("shared memory", "good", f"anonymous memory files work; {size}")


def open_files(soft: int | None = None) -> Line:
    """How many files a process may have open.

    >>> open_files(100).verdict, open_files(4096).verdict
    ('bad', 'good')
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    if soft == resource.RLIM_INFINITY:
        return Line("open files", "good", "no limit")
    if soft < FEW_FILES:
        todo = "raise it: ulimit -n 4096"
        return Line("open files", "bad" if soft < LEAST_FILES else "warning", f"at most {soft:,}", todo)
    return Line("open files", "good", f"at most {soft:,}")


def loopback(host: str = "127.0.0.1") -> Line:
    """Whether the dashboard could listen, and be reached from this machine."""
    try:
        with socket.socket() as server:
            server.settimeout(2.0)
            server.bind((host, 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=2.0):
                server.accept()[0].close()
            return Line("loopback", "good", f"a port of {host} can be bound and reached")
    except OSError as error:
        todo = "training works; for the dashboard allow local connections (container, firewall)"
        return Line("loopback", "warning", f"{type(error).__name__}: {error}", todo)


def clock(read: Callable[[], float] = time.monotonic) -> Line:
    """Whether time runs forward, and finely enough.

    >>> times = iter(range(10**6, 0, -1))
    >>> clock(lambda: next(times)).verdict
    'bad'
    """
    last, smallest = read(), float("inf")
    for _ in range(CLOCK_READS):
        now = read()
        if now < last:
            todo = "the machine's clock is broken (a virtual machine without a stable time source?): set another clock source"
            return Line("clock", "bad", f"the monotonic clock went back by {last - now:g} s", todo)
        smallest = min(smallest, now - last) if now > last else smallest
        last = now
    return Line("clock", "good", f"monotonic, in steps of {1e6 * smallest:.2g} µs")


def gpu(seen: Mapping[str, object], driver_gpus: Sequence[str]) -> Iterator[Line]:
    """From what a process of its own has found out with torch (`cli.doctor.ASK_TORCH`).

    >>> [(line.part, line.verdict) for line in gpu({"version": "2.6", "cuda": None, "devices": []}, [])]
    [('torch', 'good'), ('GPU', 'good')]
    """
    if "error" in seen:
        todo = "install it again, in a fresh virtual environment: pip install torch"
        yield Line("torch", "bad", str(seen["error"]), todo)
        return
    built = f"built for CUDA {seen['cuda']}" if seen.get("cuda") else "built for CPU"
    yield Line("torch", "good", f"{seen['version']}, {built}")
    devices = seen.get("devices")
    if not devices:
        if driver_gpus:
            why = "torch is built for CPU" if not seen.get("cuda") else str(seen.get("why") or "torch cannot use it")
            todo = "install a build of torch for CUDA that fits the driver: https://pytorch.org/get-started/locally"
            yield Line("GPU", "warning", f"{', '.join(driver_gpus)}, but {why}", todo)
        else:
            yield Line("GPU", "good", "none; everything runs on the CPU")
        return
    yield Line("GPU", "good", f"{'; '.join(map(str, devices))}{_driver()}")  # type: ignore[call-overload]
    for part, todo in (
        ("matmul", "the card does not compute: look at nvidia-smi and dmesg, and start the machine anew"),
        ("kernels", "pip install triton; without our kernels the network runs, more slowly"),
    ):
        text = str(seen.get(part, "not tried"))
        bad: Verdict = "bad" if part == "matmul" else "warning"
        yield Line(f"GPU {part}", "good", text) if text.startswith("works") else Line(f"GPU {part}", bad, text, todo)


def _driver(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The kernel module's version; the word x86_64 stands before it or not, as the module is a closed or an open one."""
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", path.read_text())
        return f", driver {found[1]}" if found else ""
    return ""
