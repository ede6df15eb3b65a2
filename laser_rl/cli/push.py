"""`laser push`: a trained agent to the Hugging Face Hub."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.tools.hub import hub_api, require_login, upload, write_folder
from laser_rl.tools.source import load_source


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
        _list(asked, asked.out or asked.run_dir / "hub")
        print("nothing was sent; leave --dry-run out to upload it")
        return 0
    if asked.out is not None:
        raise ConfigError("--out is for --dry-run; an upload leaves no folder behind")
    api = hub_api()
    print("asking the Hugging Face Hub who you are …", flush=True)
    require_login(api)
    with tempfile.TemporaryDirectory(prefix="laser-push-") as folder:
        _list(asked, Path(folder))
        print(f"sending it to the Hugging Face Hub as {asked.repo_id}; Ctrl-C stops it", flush=True)
        message = f"laser push: {asked.run_dir.resolve().name}"
        print(upload(api, Path(folder), asked.repo_id, public=asked.public, message=message))
    return 0


def _list(asked: Push, folder: Path) -> None:
    source = load_source(asked.run_dir, asked.member)
    files = write_folder(source, folder, asked.repo_id)
    whose = "" if source.member is None else f"member {source.member} of "
    print(f"{whose}{source.trained.environment.id} after {source.trained.steps:,} steps, in {folder}:")
    sizes = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
    width = max(len(name) for name, _ in sizes)
    for name, size in sizes:
        print(f"  {name:<{width}}  {display.size(size)}")
