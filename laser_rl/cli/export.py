"""`laser export`, `laser push`: a trained agent and its replay for other programs, and for the Hugging Face Hub."""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.tools.hub import hub_api, require_login, upload, write_folder
from laser_rl.tools.minari_dataset import export_minari
from laser_rl.tools.onnx_policy import export_onnx, require_extra
from laser_rl.tools.source import config_sha256, load_source, manifest_sha256

EVERY_S = 5.0  # between two lines where there is no terminal


@dataclass(frozen=True)
class Export:
    """Write what a run has learned, or what it has seen, for other programs. Reads the newest checkpoint only."""

    run_dir: tyro.conf.Positional[Path]
    onnx: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The policy as an ONNX file: likeliest action, parameters of the policy, value, and the memory's state in and out. It is
    compared with torch on observations of the environment before it is put in place."""
    minari: Annotated[str | None, tyro.conf.arg(metavar="NAMESPACE/NAME-vN")] = None
    """The whole episodes of the replay as a Minari dataset of this name, exact."""
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: a member's number, or the best by its last evaluation. If nothing is said, the best one's policy, and everybody's
    episodes."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where Minari datasets go, instead of MINARI_DATASETS_PATH or ~/.minari/datasets."""


def export_command(arguments: list[str]) -> int:
    """`laser export`."""
    asked = tyro.cli(Export, prog="laser export", args=arguments)
    if asked.onnx is None and asked.minari is None:
        raise ConfigError("export what? say --onnx policy.onnx, --minari NAMESPACE/NAME-v0, or both")
    if asked.out is not None and asked.minari is None:
        raise ConfigError("--out is for --minari; --onnx names its file by itself")
    if asked.onnx is not None:
        _onnx(asked, asked.onnx)
    if asked.minari is not None:
        _minari(asked, asked.minari)
    return 0


def _onnx(asked: Export, path: Path) -> None:
    require_extra()
    if path.is_dir() or path.suffix != ".onnx":
        raise ConfigError(f"--onnx names a file, expected something like policy.onnx, got {path}")
    source = load_source(asked.run_dir, asked.member)
    whose = {} if source.member is None else {"member": source.member}
    about = {
        "config_sha256": config_sha256(source.config),
        "manifest_sha256": manifest_sha256(source.checkpoint),
        **whose,
    }
    made = export_onnx(source.trained, path, about=about)
    print(f"{path}: {source}")
    print(f"inputs    {', '.join(made.inputs)}")
    print(f"outputs   {', '.join(made.outputs)}")
    print(f"verified  {made.verified}")


def _minari(asked: Export, dataset_id: str) -> None:
    made = export_minari(asked.run_dir, dataset_id, member=asked.member, out=asked.out, say=ExportProgress())
    print(made.path)
    print(f"{made.episodes:,} whole episodes, {made.steps:,} steps, mean return {display.short(made.mean_return)}")
    place = "" if asked.out is None else f"MINARI_DATASETS_PATH={asked.out} "
    print(f"""load it: {place}python -c 'import minari; print(minari.load_dataset("{dataset_id}")[0])'""")


class ExportProgress:
    """One line that changes, on a terminal; elsewhere a line every few seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """So many unrolls were read."""
        line = f"read {done:,} of {total:,} unrolls"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line if done < total else ''}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last >= EVERY_S:
            print(f"laser: {line}", file=sys.stderr, flush=True)
            self._last = time.monotonic()


@dataclass(frozen=True)
class Push:
    """Upload the newest checkpoint without its replay, with settings, report and a model card. Look first with --dry-run."""

    run_dir: tyro.conf.Positional[Path]
    repo_id: tyro.conf.Positional[str]
    """OWNER/NAME; it is made if it is not there, for you alone unless you say --public."""
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: whose agent.safetensors and score; a number, or the best by its last evaluation, which is also meant if nothing is
    said. The checkpoint is everybody's."""
    public: bool = False
    """A new repository is for everybody to see."""
    dry_run: bool = False
    """Write the folder and list it; nothing is sent."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where --dry-run writes the folder; RUN_DIR/hub if left out."""


def push_command(arguments: list[str]) -> int:
    """`laser push`."""
    asked = tyro.cli(Push, prog="laser push", args=arguments)
    if asked.repo_id.count("/") != 1 or not all(asked.repo_id.split("/")):
        raise ConfigError(f"expected a repository of the Hub, OWNER/NAME, got {asked.repo_id!r}")
    if asked.dry_run:
        _prepare(asked, asked.out or asked.run_dir / "hub")
        print("nothing was sent; leave --dry-run out to upload it")
        return 0
    if asked.out is not None:
        raise ConfigError("--out is for --dry-run; an upload leaves no folder behind")
    api = hub_api()
    print("asking the Hugging Face Hub who you are …", flush=True)
    require_login(api)
    with tempfile.TemporaryDirectory(prefix="laser-push-") as folder:
        _prepare(asked, Path(folder))
        print(f"sending it to the Hugging Face Hub as {asked.repo_id}; Ctrl-C stops it", flush=True)
        message = f"laser push: {asked.run_dir.resolve().name}"
        print(upload(api, Path(folder), asked.repo_id, public=asked.public, message=message))
    return 0


def _prepare(asked: Push, folder: Path) -> None:
    source = load_source(asked.run_dir, asked.member)
    files = write_folder(source, folder, asked.repo_id)
    print(f"{source}, in {folder}:")
    sizes = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
    width = max(len(name) for name, _ in sizes)
    for name, size in sizes:
        print(f"  {name:<{width}}  {display.size(size)}")
