"""`machine.json`: on what, with which libraries and by which command a run was started, and each time it was resumed."""

import importlib.metadata
import os
import platform
import shlex
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from laser_rl.disk import read_json, write_json

FILE = "machine.json"
_LIBRARIES = (
    "laser-rl", "torch", "numpy", "gymnasium", "ale-py", "minigrid", "MinAtar", "triton", "pydantic", "safetensors"
)  # fmt: skip
_MOST_SESSIONS = 100


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": next(iter(_fields(Path("/proc/cpuinfo"), "model name")), platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": ", ".join(gpus()) or None,
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
    }


def record(run_dir: str | Path, settings: bytes) -> None:
    """Add this process to `machine.json` of a run directory, with a checksum of its settings; the newest sessions are kept."""
    path = Path(run_dir) / FILE
    command = shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
    this = {"time": round(time.time(), 3), "command": command, "settings_crc32": zlib.crc32(settings), **machine()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"sessions": [*sessions(run_dir), this][-_MOST_SESSIONS:]})


def sessions(run_dir: str | Path) -> list[dict[str, Any]]:
    """What was recorded, oldest first; nothing of a run that was made before there was such a file."""
    found = read_json(Path(run_dir) / FILE).get("sessions")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fields(path: Path, name: str) -> list[str]:
    """The values of the lines `name: value` of a file of the kernel's."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


def gpus() -> list[str]:
    """Names of the GPUs, as NVIDIA's driver tells them.

    Not asked of torch: that would create a context on the card, which processes that are forked later could not use.
    """
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [name for file in files for name in _fields(file, "Model:")]


def memory_bytes() -> int:
    return sum(int(kibibytes.split()[0]) for kibibytes in _fields(Path("/proc/self/status"), "VmRSS:")) * 1024
