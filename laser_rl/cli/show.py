"""`laser config`, `laser check-env`, `laser report`: to look at things without changing them."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
import yaml

from laser_rl import checkpoint
from laser_rl.cli.settings import Shortcuts, apply, base_config, expand_numbers, flags, peek
from laser_rl.config import Config, EnvironmentConfig
from laser_rl.errors import ConfigError
from laser_rl.metrics.report import Format, write_report
from laser_rl.networks.build import family_of
from laser_rl.recipes.single import shared
from laser_rl.runtime.build import layout_of, open_environments
from laser_rl.runtime.files import is_sweep, read_config, read_sweep
from laser_rl.sweep.settings import SweepConfig


@dataclass(frozen=True)
class Show:
    """Print a complete configuration: what `laser train` would use with the same flags, or what a run or sweep was started with."""

    what: tyro.conf.Positional[Literal["show"]]
    run_dir: Path | None = None
    """A run's or sweep's own configuration; all other flags are ignored."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """A YAML or JSON file with settings."""
    json: bool = False
    """JSON instead of YAML."""
    quick: Annotated[Shortcuts, tyro.conf.arg(name="")] = field(default_factory=Shortcuts)
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def config_command(arguments: list[str]) -> int:
    """`laser config show`; its output is a file for `laser train --config`, or for `laser sweep` if it is a sweep's."""
    arguments = expand_numbers(arguments or ["show"])
    default = Show("show", settings=base_config(*peek(arguments)))
    asked = flags(default, "laser config", arguments)
    config: Config | SweepConfig = apply(asked.settings, asked.quick)
    if asked.run_dir:
        config = read_sweep(asked.run_dir) if is_sweep(asked.run_dir) else read_config(asked.run_dir)
    values = config.model_dump(mode="json")
    print(json.dumps(values, indent=2) if asked.json else yaml.safe_dump(values, sort_keys=False).rstrip())
    return 0


@dataclass(frozen=True)
class CheckEnv:
    """Play an environment at random, with every check on, and say what an agent would see."""

    id: tyro.conf.Positional[str]
    steps: int = 2_000
    slots: int = 4
    """Of a mixture at least so many, the same for each task."""


def check_command(arguments: list[str]) -> int:
    """`laser check-env`."""
    asked = tyro.cli(CheckEnv, prog="laser check-env", args=arguments)
    slots = shared(asked.id, asked.slots)
    environments = open_environments(asked.id, EnvironmentConfig(id=asked.id), seed=0, lockstep=True, slots=slots)
    try:
        spec, family = environments.spec, family_of(environments.spec.action)
        layout = layout_of(spec, family, Config())
        random = np.random.default_rng(0)
        rows, episodes, start = environments.reset(), 0, time.perf_counter()
        for _ in range(asked.steps // slots):
            rows = environments.step(rows.slots, _random_action(spec.action, random, len(rows.slots)))
            episodes += int((rows.terminated | rows.truncated).sum())
        seconds = time.perf_counter() - start
    finally:
        environments.close()
    print(f"{spec.name}: fine")
    print(f"observation  {layout.observation_dtype} {layout.observation_shape}, scale {spec.observation.scale:.4g}")
    if spec.tasks:
        print(f"tasks        {', '.join(spec.tasks)}")
    print(f"action       {spec.action}")
    print(f"policy       {family}")
    print(f"speed        {asked.steps / seconds:,.0f} steps/s in {slots} slots, {episodes} episodes ended")
    return 0


def _random_action(action: object, random: np.random.Generator, count: int) -> np.ndarray:
    from laser_rl.envs.records import BoxActions, DiscreteActions, MultiDiscreteActions  # noqa: PLC0415

    if isinstance(action, DiscreteActions):
        return random.integers(action.count, size=count)
    if isinstance(action, MultiDiscreteActions):
        return random.integers(np.array(action.counts), size=(count, len(action.counts)))
    assert isinstance(action, BoxActions)  # noqa: S101
    low, high = np.clip(action.low, -1e3, 1e3), np.clip(action.high, -1e3, 1e3)
    return random.uniform(low, high, (count, len(low))).astype(np.float32)


@dataclass(frozen=True)
class Report:
    """Write a report, one HTML file: of a run, of a sweep, or of several of them side by side. Reads only, also while they go on."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    out: Path | None = None
    """The HTML file; by default report.html in the directory or, of several, where you are."""
    markdown: bool = False
    """Also as Markdown, beside the HTML file."""
    csv: bool = False
    """Also as CSV: every cell of every table and every point of every chart."""


def report_command(arguments: list[str]) -> int:
    """`laser report`."""
    asked = tyro.cli(Report, prog="laser report", args=arguments)
    if asked.out is not None and (asked.out.is_dir() or asked.out.suffix not in {".html", ".htm"}):
        raise ConfigError(
            f"--out names the HTML file, expected something like report.html, got {asked.out}; "
            "--markdown and --csv write theirs beside it"
        )
    running = [path for path in asked.run_dirs if checkpoint.owner(path) is not None]
    formats: list[Format] = ["html"]
    formats += ["markdown"] if asked.markdown else []
    formats += ["csv"] if asked.csv else []
    for path in write_report(asked.run_dirs, asked.out, formats=formats, running=running):
        print(path)
    return 0
