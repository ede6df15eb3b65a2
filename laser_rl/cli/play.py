"""`laser evaluate`, `laser enjoy`: what a run has learned."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro

from laser_rl.agent.policy import Policy
from laser_rl.agent.stacking import follow
from laser_rl.envs.make import make_renderable
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.errors import MissingExtra
from laser_rl.evaluation.video import record
from laser_rl.runtime.evaluate import Trained, chosen_member, evaluate, load_trained


@dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the newest checkpoint of a run, or of a sweep's member."""

    run_dir: tyro.conf.Positional[Path]
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: a member's number, or the best by its last evaluation, which is also meant if nothing is said."""
    episodes: int = 100
    deterministic: bool = False
    """The most probable action instead of a sampled one."""
    seed: int = 0
    json: bool = False
    """Print everything, each return included, as JSON."""


def evaluate_command(arguments: list[str]) -> int:
    """`laser evaluate`."""
    asked = tyro.cli(Evaluate, prog="laser evaluate", args=arguments)
    member = chosen_member(asked.run_dir, asked.member)
    trained = load_trained(asked.run_dir, member)
    result = evaluate(trained, episodes=asked.episodes, deterministic=asked.deterministic, seed=asked.seed)
    if asked.json:
        whose = {} if member is None else {"member": member}
        print(json.dumps({**whose, "step": trained.steps, **asdict(result)}))
        return 0
    low, high = result.ci95
    how = "most probable actions" if asked.deterministic else "sampled actions"
    print(f"{_prefix(member)}{trained.environment.id} after {trained.steps:,} steps, {result.episodes} episodes, {how}")
    print(
        f"mean {result.mean:.2f} (95 % interval {low:.2f} to {high:.2f}), IQM {result.iqm:.2f}, median {result.median:.2f}"
    )
    return 0


@dataclass(frozen=True)
class Enjoy:
    """Make a video of one episode."""

    run_dir: tyro.conf.Positional[Path]
    member: Annotated[str | None, tyro.conf.arg(metavar="best|N")] = None
    """Of a sweep: a member's number, or the best by its last evaluation, which is also meant if nothing is said."""
    video: Path | None = None
    """Where it goes, .mp4 or .gif; RUN_DIR/videos/step-N.mp4 if left out (of a sweep member-M-step-N.mp4)."""
    deterministic: bool = False
    """The most probable action instead of a sampled one."""
    seed: int = 0
    max_steps: int = 10_000


def enjoy_command(arguments: list[str]) -> int:
    """`laser enjoy`."""
    asked = tyro.cli(Enjoy, prog="laser enjoy", args=arguments)
    member = chosen_member(asked.run_dir, asked.member)
    trained = load_trained(asked.run_dir, member)
    name = f"step-{trained.steps:012d}.mp4"
    path = asked.video or asked.run_dir / "videos" / (name if member is None else f"member-{member:02d}-{name}")
    env = make_renderable(trained.source, options=trained.environment.options)
    watched = Watched(trained, env, deterministic=asked.deterministic, seed=asked.seed)
    try:
        total = record(env, watched, path, asked.max_steps, seed=asked.seed)
    except gymnasium.error.DependencyNotInstalled:
        raise MissingExtra(f"drawing {trained.environment.id}", "video") from None
    finally:
        env.close()
    print(f"{_prefix(member)}return {total:.1f}; video: {path}")
    return 0


def _prefix(member: int | None) -> str:
    return "" if member is None else f"member {member}: "


class Watched:
    """Acts in one environment, observation by observation."""

    def __init__(self, trained: Trained, env: Any, *, deterministic: bool, seed: int) -> None:
        self._policy = Policy(trained.network, trained.family, seed=seed, deterministic=deterministic)
        self._sees = observation_border(env.observation_space, trained.environment.id).convert
        self._acts = action_border(env.action_space, trained.environment.id).convert
        layout = trained.layout
        self._frames = np.zeros((layout.stack, *layout.observation_shape), layout.observation_dtype)

    def __call__(self, observation: Any) -> Any:
        """The action, as the environment takes it."""
        self._frames, seen = follow(self._frames, np.asarray(self._sees(observation)))
        return self._acts(self._policy.act(seen).environment_action[0])
