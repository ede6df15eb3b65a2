"""Small configurations that run in a second, and what identifies a run."""

import hashlib
import json
from typing import Any, NamedTuple

from laser_rl import checkpoint, recipes
from laser_rl.config import override
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare, run
from laser_rl.training.settings import SweepConfig
from tests.row_hash import rows_hash


def small(environment="CartPole-v1", **settings):
    defaults = {
        "run.steps": 600,
        "hidden": (16,),
        "unroll_steps": 5,
        "slots": 3,
        "capacity_steps": 300,
        "evaluate_episodes": 2,
        "log_every_updates": 10,
        "checkpoint_every_steps": 200,
        "fraction": 0.875,
        "batch_unrolls": 8,
        "learning_rate": 2e-3,
        "schedule": "linear",
        "entropy_cost": 0.0,
    }
    return override(recipes.cartpole(environment), {**defaults, **settings})


def build_member(config, source=None, torso=None):
    """The parts of one agent, at its beginning."""
    return build_group(SweepConfig(base=config), source, torso).members[0]


class Ended(NamedTuple):
    """How the run of one agent ended."""

    member: Any
    steps: int
    updates: int
    evaluation: Any
    interrupted: str | None
    checkpoint: Any


def run_one(trainer, **more):
    """Run one agent that has been prepared to its end, and close its environments; how it ended, and its training."""
    try:
        result = run(trainer, **more)
    finally:
        trainer.group.members[0].actor.environments.close()
    [one], [training] = result.members, trainer.trainings
    evaluated = training.evaluations and training.evaluations[-1][0] == training.steps
    played = one.evaluation if evaluated and result.interrupted is None else None
    return Ended(training.member, one.steps, one.updates, played, result.interrupted, result.checkpoint), training


def finish(config, path=None, source=None, **more):
    """Build, run to the end; returns how it ended and its training."""
    directory = None if path is None else RunDirectory(path, config)
    try:
        sinks = [] if directory is None else [directory.log]
        return run_one(prepare(config, directory, source=source, sinks=sinks, **more))
    finally:
        if directory is not None:
            directory.close()


def fingerprint(path):
    """Everything that a run leaves, except what the wall clock writes, and the settings that it was given."""
    newest = checkpoint.latest(path).path
    manifest, state = (json.loads((newest / name).read_text()) for name in ("manifest.json", "state.json"))
    del state["settings"], manifest["sha256"]
    manifest["files"]["state.json"] = state
    kept = sorted(folder.name for folder in (path / checkpoint.CHECKPOINTS).iterdir())
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest(), rows_hash(path), kept
