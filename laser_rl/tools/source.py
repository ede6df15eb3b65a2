"""From a run directory to what is exported, and to what a file has to say about where it came from."""

import hashlib
import importlib.metadata
import json
import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laser_rl import __version__
from laser_rl.checkpoint import CHECKPOINTS, guarded, manifest
from laser_rl.config import Config
from laser_rl.envs.make import is_atari
from laser_rl.envs.records import ActionSpec, BoxActions, DiscreteActions, ObservationSpec
from laser_rl.networks.build import stacked_shape
from laser_rl.ops.distributions import Family
from laser_rl.training.build import another, open_environments
from laser_rl.training.evaluate import Trained, chosen_member, load_trained, task_count
from laser_rl.training.files import is_sweep, read_config, read_sweep


@dataclass(frozen=True)
class Source:
    """One agent of a run directory: the only one, or a member of a sweep."""

    run_dir: Path
    member: int | None
    config: Config
    trained: Trained

    @property
    def checkpoint(self) -> Path:
        """The folder that the parameters are from."""
        return self.run_dir / CHECKPOINTS / f"step-{self.trained.steps:012d}"


def load_source(run_dir: Path, member: str | int | None = None) -> Source:
    """The newest checkpoint of a run, or of a sweep's member (the best one if none is named)."""
    number = chosen_member(run_dir, member)
    return Source(run_dir, number, config_of(run_dir, number), load_trained(run_dir, number))


def config_of(run_dir: Path, member: int | None) -> Config:
    """The settings of a run, or of a sweep's member; without a number, what all members have in common."""
    if not is_sweep(run_dir):
        return read_config(run_dir)
    sweep = read_sweep(run_dir)
    return sweep.base if member is None else sweep.configs[member]


def config_sha256(config: Config) -> str:
    """Of the settings as JSON with sorted keys: equal for equal settings, whatever file they came from."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def manifest_sha256(folder: Path) -> str:
    """Of a checkpoint's manifest, which names every other file by its own: what `sha256sum manifest.json` prints."""
    data = guarded.read_bytes(folder / manifest.NAME, limit=guarded.JSON_LIMIT_BYTES)
    return hashlib.sha256(data).hexdigest()


def seen_shape(trained: Trained) -> tuple[int, ...]:
    """What the network sees of one row: pictures are stacked along their channels."""
    layout = trained.layout
    return stacked_shape(ObservationSpec(layout.observation_shape, layout.observation_dtype), layout.stack)


def starts_of(trained: Trained) -> tuple[int, ...]:
    """Where its environment begins to count each of its choices; empty if all begin at 0. It is opened once to be looked at."""
    source = another(trained.source)
    environments = open_environments(source, trained.environment, seed=0, lockstep=True, slots=task_count(source))
    environments.close()
    return starts_in(environments.spec.action)


def starts_in(action: ActionSpec) -> tuple[int, ...]:
    """The same of what is known of an environment's actions.

    >>> starts_in(DiscreteActions(3, start=-1)), starts_in(DiscreteActions(3)), starts_in(BoxActions((0.0,), (1.0,)))
    ((-1,), (), ())
    """
    if isinstance(action, BoxActions):
        return ()
    if isinstance(action, DiscreteActions):
        return (action.start,) if action.start else ()
    return action.starts


def described(trained: Trained, starts: tuple[int, ...] = ()) -> dict[str, Any]:
    """Environment and spaces of an agent, as JSON: what a user of the exported file alone needs."""
    layout, environment = trained.layout, trained.environment
    about: dict[str, Any] = {
        "environment": environment.id,
        "environment_options": environment.options,
        "step": trained.steps,
        "frame_stack": layout.stack,
        "observation": {"shape": list(seen_shape(trained)), "dtype": layout.observation_dtype},
        "action": {**action_of(trained.family), **({"start": list(starts)} if starts else {})},
    }
    if is_atari(environment.id):
        about["atari"] = environment.atari.model_dump(mode="json")
    return about


def action_of(family: Family) -> dict[str, Any]:
    """A family as JSON, which knows no infinity: a dimension without bounds has null.

    >>> from laser_rl.ops.gaussian import DiagonalGaussian
    >>> action_of(DiagonalGaussian((-1.0, -math.inf), (1.0, math.inf)))["low"]
    [-1.0, None]
    """
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(family).items()}
    for name in {"low", "high"} & set(fields):
        fields[name] = [bound if math.isfinite(bound) else None for bound in fields[name]]
    return {"family": type(family).__name__, **fields}


def versions(*libraries: str) -> dict[str, str]:
    """Of laser-rl and of the libraries that made a file."""
    return {"laser-rl": __version__, **{name: importlib.metadata.version(name) for name in libraries}}


def command() -> str:
    """What was typed, for a file that says how it was made."""
    return shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
