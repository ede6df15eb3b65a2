"""Make the golden files of the present format: `python -m tests.golden.make`. Refuses to change files that are there."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from laser_rl import LASER
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Trained, load_trained
from laser_rl.training.launch import train
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.settings import SweepConfig
from tests.golden import EXPECTED, RUNS, answer, folder_of_now, rows_for
from tests.training.small import small

SMALL = {
    "steps": 160, "hidden": (8,), "capacity_steps": 60, "checkpoint_every_steps": 0, "keep_checkpoints": 1, "log_every_updates": 40,
    "slots": 2, "unroll_steps": 5,
}  # fmt: skip
OF_THIS_MACHINE = ("machine.json", "run.lock", "run.turn", "report.html")


def make(folder: Path) -> None:
    """All of them."""
    lstm = {"memory": "lstm", "memory_size": 4, "capacity_steps": 120}
    for name, more in {"mlp": {}, "lstm": lstm}.items():
        directory = RunDirectory(folder / name, small(**{**SMALL, **more}))
        train(directory.settings, directory, sinks=[directory.log])
        directory.close()
    pbt = PbtConfig(burn_in_steps=50, every_episodes=2, margin=0.01)
    settings = SweepConfig(base=small(**SMALL), grid={"learning_rate": [1e-3, 1e-2, 3e-2]}, pbt=pbt)
    directory = RunDirectory(folder / "sweep", settings)
    train(settings, directory, sinks=[directory.log])
    directory.close()
    for name, members in RUNS.items():
        _describe(folder / name, [None] if members is None else range(members))
    load_trained(folder / "mlp").save(folder / "agent.safetensors")
    LASER.load(folder / "agent.safetensors").close()


def _describe(run_dir: Path, members) -> None:
    for name in OF_THIS_MACHINE:
        (run_dir / name).unlink(missing_ok=True)
    records = [_record(load_trained(run_dir, member), seed) for seed, member in enumerate(members)]
    (run_dir / EXPECTED).write_text(json.dumps({"members": records}) + "\n")


def _record(trained: Trained, seed: int) -> dict:
    rows = rows_for(trained.layout.observation_shape, trained.layout.parameter_size, seed)
    return {"step": trained.steps, "rows": rows, **{n: t.tolist() for n, t in answer(trained.network, rows).items()}}


def main() -> int:
    """Make them beside, then move them into place."""
    final = folder_of_now()
    if final.exists():
        print(f"{final.name} is there already, and files of a format are never changed: raise the format first")
        return 1
    with tempfile.TemporaryDirectory() as made:
        make(Path(made) / final.name)
        shutil.copytree(Path(made) / final.name, final)
    size = sum(path.stat().st_size for path in final.rglob("*") if path.is_file())
    print(f"{final.name}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
