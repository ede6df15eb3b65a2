"""Who reads a file: the functions that commands call, on run directories in which one file is exchanged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from benchmarks.atari_paper import compared
from laser_rl import LASER, checkpoint
from laser_rl.cli.flags import begin
from laser_rl.cli.status import status_of
from laser_rl.metrics.machine import sessions
from laser_rl.research.experiment import suite_of
from laser_rl.research.pages import ABOUT, experiment_of, read_about
from laser_rl.research.run_experiments import read_part
from laser_rl.training.files import read_sweep
from laser_rl.training.settings import sweep_from
from laser_rl.view.report import report
from tests.fuzz.checkpoints import checkpoint_files
from tests.fuzz.target import OFTEN_ENOUGH, Feed, Rows, Target, Tensors
from tests.golden import folders
from tests.row_hash import rows_hash


def targets(folder: Path) -> dict[str, Target]:
    """All of them, with a run directory of its own for each."""
    golden = folders()[-1]

    def copied(name: str, run: str) -> Path:
        return Path(shutil.copytree(golden / run, folder / name))

    return {
        **settings_files(folder, golden),
        **run_files(copied),
        **checkpoint_files(copied),
        **records(copied, folder),
        "agent file": agent_file(folder, golden),
    }


def settings_files(folder: Path, golden: Path) -> dict[str, Target]:
    """What a user writes: settings of a run or a sweep, as YAML or JSON."""
    config = json.loads((golden / "mlp" / "config.json").read_bytes())
    few = {name: config[name] for name in ("loss", "run")} | {"environment": {"id": "CartPole-v1"}}
    members = {"base": few, "random": {"learning_rate": {"kind": "uniform", "low": 0.1, "high": 0.2}}, "draws": 3}
    grid = {"recipe": "cartpole", "grid": {"learning_rate": [0.1, 0.2], "trust": ["implied"]}, "share": "separate"}
    pbt = {**grid, "pbt": {"burn_in_steps": 1, "every_episodes": 1, "margin": 0.5, "tuned": ["learning_rate"]}}

    def settings(path: Path) -> Feed:
        return lambda data, _: begin(written(path, data), "cartpole", None)

    def sweep(path: Path) -> Feed:
        def feed(data: bytes, _: int) -> object:
            path.write_bytes(data)
            base, rest = begin(path, None if b"recipe" in data else "cartpole", "CartPole-v1", sweep=True)
            return sweep_from({"base": base, **rest})

        return feed

    texts = [yaml.safe_dump(one).encode() for one in (config, few)]
    sweeps = [members, grid, pbt, {"members": [{"learning_rate": 0.1}, {"loss.discount": 0.9}]}]
    plain = [json.dumps(one).encode() for one in sweeps]
    return {
        "settings, YAML": Target(texts, settings(folder / "settings.yaml")),
        "settings, JSON": Target(
            [json.dumps(one).encode() for one in (config, few)], settings(folder / "settings.json"), is_json=True
        ),
        "sweep file, YAML": Target([yaml.safe_dump(one).encode() for one in sweeps], sweep(folder / "sweep.yaml")),
        "sweep file, JSON": Target(plain, sweep(folder / "sweep-file.json"), is_json=True),
    }


def run_files(copied: Callable[[str, str], Path]) -> dict[str, Target]:
    """Settings and records of a run directory."""
    config, sweep, machine, lock = (
        copied(name, run) for name, run in (("config", "mlp"), ("sweep", "sweep"), ("machine", "mlp"), ("lock", "mlp"))
    )
    session = {
        "time": 1.7e9,
        "command": "laser train",
        "python": "3.11",
        "system": "Linux",
        "processor": "x",
        "cores": 2,
    }
    session |= {"memory_bytes": 1 << 34, "gpu": None, "libraries": {"torch": "2.0"}}
    owner = {"pid": 1, "started": "x:1", "host": "there"}

    def of_config(data: bytes, number: int) -> object:
        (config / "config.json").write_bytes(data)
        shown(config, number)
        return read_sweep(config)

    def of_sweep(data: bytes, number: int) -> object:
        (sweep / "sweep.json").write_bytes(data)
        shown(sweep, number)
        return read_sweep(sweep)

    def of_machine(data: bytes, number: int) -> object:
        (machine / "machine.json").write_bytes(data)
        return report(machine) if number % 4 == 0 else sessions(machine)

    def of_lock(data: bytes, number: int) -> object:
        (lock / "run.lock").write_bytes(data)
        if number % OFTEN_ENOUGH == 0:  # forced to disk, which takes its time
            checkpoint.RunLock(lock).release()
        return checkpoint.owner(lock)

    return {
        "config.json": Target([(config / "config.json").read_bytes()], of_config, is_json=True),
        "sweep.json": Target([(sweep / "sweep.json").read_bytes()], of_sweep, is_json=True),
        "machine.json": Target([json.dumps({"sessions": [session] * 2}).encode()], of_machine, is_json=True, share=0.5),
        "run.lock": Target([json.dumps(owner).encode()], of_lock, is_json=True, share=0.5),
    }


def records(copied: Callable[[str, str], Path], folder: Path) -> dict[str, Target]:
    """What was measured: metrics, evaluations, experiments."""
    runs = {run: copied(f"metrics {run}", run) for run in ("mlp", "sweep")}
    game = copied("evaluations", "sweep")
    text = (game / "sweep.json").read_text()
    (game / "sweep.json").write_text(text.replace("CartPole-v1", "ALE/Pong-v5"))
    lines = [(run / "metrics.jsonl").read_bytes().splitlines(keepends=True) for run in runs.values()]
    few = [b"".join(rows[:6] + [row for row in rows if b'"event"' in row or b'"eval' in row]) for rows in lines]

    def metrics(data: bytes, number: int) -> None:
        run_dir = runs["sweep" if b"member" in data else "mlp"]
        (run_dir / "metrics.jsonl").write_bytes(data)
        rows_hash(run_dir)
        shown(run_dir, number)

    def evaluations(data: bytes, _: int) -> None:
        (game / "metrics.jsonl").write_bytes(data)
        compared([game])

    def experiment(data: bytes, _: int) -> None:
        found = read_about(written(folder / "experiment" / ABOUT, data).parent)
        experiment_of(found.name)
        for name in found.tasks:
            suite_of(found.suite).task(name)

    about = {
        "name": "rho",
        "suite": "cpu",
        "tasks": [],
        "seeds": [0],
        "device": "cpu",
        "smoke": True,
        "command": "laser",
    }
    line = {"step": 10, "update": 2, "episodes": 1, "mean": "0.5", "best": "0.5", "worst": "0.5", "acceptance": ""}
    part = json.dumps({"seconds": 1.5, "made_with": "laser-rl", "lines": [line, line]}).encode()
    return {
        "metrics.jsonl": Rows(few, metrics),
        "evaluations": Rows(few[1:], evaluations),
        "experiment.json": Target([json.dumps(about).encode()], experiment, is_json=True, share=0.5),
        "experiment's part": Target(
            [part], lambda data, _: read_part(written(folder / "part.json", data)), is_json=True, share=0.5
        ),
    }


def agent_file(folder: Path, golden: Path) -> Target:
    """A file of `LASER.save`."""
    path = folder / "agent.safetensors"

    def feed(data: bytes, number: int) -> None:
        path.write_bytes(data)
        agent = LASER.load(path, "CartPole-v1")
        if number % 4 == 0:
            try:
                agent.member  # noqa: B018 - only now is the network loaded
            finally:
                agent.close()

    return Tensors([(golden / "agent.safetensors").read_bytes()], feed)


def shown(run_dir: Path, number: int) -> None:
    """As `laser status` and, now and then, `laser report` show it."""
    if number % OFTEN_ENOUGH == 0:
        report(run_dir)
    status_of(run_dir)


def written(path: Path, data: bytes) -> Path:
    """The path, with those bytes in it."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path
