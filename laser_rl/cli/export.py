"""`laser export`, `laser push`: a trained agent, its replay or its run for other programs, machines, and the Hugging Face Hub."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.training.files import command_for


@dataclass(frozen=True)
class Export:
    """Write what a run has learned, or what it has seen, for other programs. Reads the newest checkpoint only."""

    run_dir: tyro.conf.Positional[Path]
    onnx: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The policy as an ONNX file: likeliest action, parameters of the policy, value, and the memory's state in and out. It is
    compared with torch on random observations before it is put in place."""
    minari: Annotated[str | None, tyro.conf.arg(metavar="NAMESPACE/NAME-vN")] = None
    """The whole episodes of the replay as a Minari dataset of this name, exact."""
    run: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """A run directory that is small enough to carry and goes on elsewhere: the newest checkpoint, the log, a part of the replay."""
    replay_steps: int = 0
    """Of --run: so many of the newest steps of each replay come along; 0: none."""
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: a member's number, or the best by its last evaluation. If left out, the best one's policy, and the
    episodes of all members."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where Minari datasets go, instead of MINARI_DATASETS_PATH or ~/.minari/datasets."""

    def __call__(self) -> int:
        from laser_rl.tools.minari_dataset import export_minari  # noqa: PLC0415 - they need torch, --help does not
        from laser_rl.tools.onnx_policy import export_onnx  # noqa: PLC0415
        from laser_rl.tools.source import copy_run, load_source  # noqa: PLC0415

        if self.onnx is None and self.minari is None and self.run is None:
            raise ConfigError("export what? say --onnx policy.onnx, --minari NAMESPACE/NAME-v0, --run DIR, or several")
        if self.replay_steps and self.run is None:
            raise ConfigError("--replay-steps is for --run")
        if self.out is not None and self.minari is None:
            raise ConfigError("--out is for --minari; --onnx names its file by itself")
        if self.onnx is not None:
            if self.onnx.is_dir() or self.onnx.suffix != ".onnx":
                raise ConfigError(f"--onnx names a file, expected something like policy.onnx, got {self.onnx}")
            source = load_source(self.run_dir, self.member)
            policy = export_onnx(source.trained, self.onnx)
            inputs, outputs = ", ".join(policy.inputs), ", ".join(policy.outputs)
            print(f"{self.onnx}: {source}\ninputs    {inputs}\noutputs   {outputs}")
            print(f"verified  same actions on {policy.rows} observations, largest difference {policy.largest:.1g}")
        if self.minari is not None:
            made = export_minari(self.run_dir, self.minari, member=self.member, out=self.out)
            print(made.path)
            print(
                f"{made.episodes:,} whole episodes, {made.steps:,} steps, mean return {display.short(made.mean_return)}"
            )
            place = "" if self.out is None else f"MINARI_DATASETS_PATH={self.out} "
            print(f"""load it: {place}python -c 'import minari; print(minari.load_dataset("{self.minari}")[0])'""")
        if self.run is not None:
            held, size = copy_run(self.run_dir, self.run, self.replay_steps)
            print(
                f"{self.run}: {display.size(size)}, {held:,} steps of replay; go on with: {command_for('resume', self.run)}"
            )
        return 0


@dataclass(frozen=True)
class Push:
    """Upload the newest checkpoint without its replay, with settings, report and a model card. Look first with --dry-run."""

    run_dir: tyro.conf.Positional[Path]
    repo_id: tyro.conf.Positional[str]
    """OWNER/NAME; it is made if it is not there, for you alone unless you say --public."""
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: whose agent.safetensors and score; a number, or the best by its last evaluation, which is also
    meant if left out. The checkpoint holds all members."""
    public: bool = False
    """Make a new repository public."""
    dry_run: bool = False
    """Write the folder and list it; nothing is sent."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where --dry-run writes the folder; RUN_DIR/hub if left out."""

    def __call__(self) -> int:
        if self.repo_id.count("/") != 1 or not all(self.repo_id.split("/")):
            raise ConfigError(f"expected a repository of the Hub, OWNER/NAME, got {self.repo_id!r}")
        if self.dry_run:
            _prepare(self, self.out or self.run_dir / "hub")
            print("nothing was sent; leave --dry-run out to upload it")
            return 0
        if self.out is not None:
            raise ConfigError("--out is for --dry-run; an upload leaves no folder behind")
        from laser_rl.tools.hub import hub_api, upload  # noqa: PLC0415

        api = hub_api()
        with tempfile.TemporaryDirectory(prefix="laser-push-") as folder:
            _prepare(self, Path(folder))
            print(f"sending it to the Hugging Face Hub as {self.repo_id}; Ctrl-C stops it", flush=True)
            message = f"laser push: {self.run_dir.resolve().name}"
            print(upload(api, Path(folder), self.repo_id, public=self.public, message=message))
        return 0


def _prepare(asked: Push, folder: Path) -> None:
    from laser_rl.tools.hub import write_folder  # noqa: PLC0415
    from laser_rl.tools.source import load_source  # noqa: PLC0415

    source = load_source(asked.run_dir, asked.member)
    files = write_folder(source, folder, asked.repo_id)
    print(f"{source}, in {folder}:")
    for path in files:
        print(f"  {display.size(path.stat().st_size):>10}  {path.relative_to(folder)}")
