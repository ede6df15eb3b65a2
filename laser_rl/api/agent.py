"""An agent that learns, predicts, is evaluated, saved and loaded."""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.torch
import torch

from laser_rl import recipes, trust
from laser_rl.agent.parameters import load_network
from laser_rl.agent.policy import Memento, Policy, act_once
from laser_rl.config import Config, override, validated
from laser_rl.envs.construct import stored_name
from laser_rl.envs.masks import beside
from laser_rl.envs.records import EnvironmentSpec, read_spec
from laser_rl.envs.spaces import Borders, borders_of
from laser_rl.errors import ConfigError, EnvironmentRefused, shortened
from laser_rl.evaluation.statistics import EvalResult
from laser_rl.metrics.rows import Sink
from laser_rl.metrics.tracking import named, trackers
from laser_rl.networks.build import TorsoSource
from laser_rl.training.build import (
    EnvironmentSource,
    Member,
    derive,
    device_of,
    open_environments,
    seeded_network,
    slots_of,
    threads_of,
)
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import AGENT_FORMAT, Trained, evaluate, require_finite, task_count, trained_of
from laser_rl.training.launch import prepare, run
from laser_rl.training.member_training import Callback
from laser_rl.training.recording import with_videos
from laser_rl.training.stop import deliver_again
from laser_rl.training.trainer import Trainer
from laser_rl.trust import Trust
from laser_rl.types import Array

_UNREADABLE = (safetensors.SafetensorError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def read_agent(path: Path, net: TorsoSource | None = None) -> Trained:
    """The agent in a file of `LASER.save`, to play with; nothing that the file names is imported, and no environment is opened."""
    if not path.is_file():
        raise ConfigError(f"{path} is not there; LASER.save writes such a file")
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata() or {}
        if about.get("format") != AGENT_FORMAT:
            said = f"{path} has format {about.get('format')}, expected {AGENT_FORMAT}; please upgrade laser-rl"
            raise ConfigError(said)
        values, steps, spec = json.loads(about["config"]), int(about["steps"]), read_spec(about["spec"].encode())
        tensors = safetensors.torch.load_file(path)
    except _UNREADABLE as error:
        raise ConfigError(f"{path} is no file of LASER.save: {type(error).__name__}: {error}") from None
    # It may have been trained on a device that is not here.
    config = override(validated(values), {"run.device": "auto", "run.devices": 1})
    network = seeded_network(config, spec, net).to(device_of(config.run.device))
    load_network(network, tensors)
    require_finite(path, network)
    torch.set_num_threads(threads_of(config, network))
    return Trained(network, config, spec, config.environment.id, max(0, steps))


class LASER:
    """One agent.

    Args:
        env: a Gymnasium id, one of our own (`laser/Catch`), a callable that makes an environment, an environment or a vector of them. One
            that exists already stays yours: it is never closed. A vector is evaluated in itself, after a reset, and training then goes on
            with new episodes.
        net: your own torso: a module from observations [N, ...] to features [N, F], or a function of the observation's shape
            that returns one. None: the recipe's.
        recipe: where the settings begin; None: what fits the environment.
        config: a whole configuration, instead of a recipe.
        run_dir: keep checkpoints and metrics there, and go on from them; None keeps nothing.
        sinks: more places for rows of metrics.
        track: trackers that get them too: wandb, trackio, mlflow; on this machine only, see docs/guides/tracking.md.
        settings: any setting by name, `learning_rate=1e-3` or `**{"loss.discount": 0.9}`; `budget_minutes=30` ends `learn` after so long,
            all calls together.

    >>> agent = LASER("laser/Catch", seed=1, slots=4).learn(200)
    >>> agent.steps >= 200
    True
    >>> agent.close()
    """

    def __init__(
        self,
        env: EnvironmentSource,
        *,
        net: TorsoSource | None = None,
        recipe: str | None = None,
        config: Config | None = None,
        run_dir: str | Path | None = None,
        sinks: Sequence[Sink] = (),
        track: str | Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self._source, self._net, self._sinks = env, net, tuple(sinks)
        self._track, self._open = named(track), contextlib.ExitStack()
        self._trust = Trust()  # of this agent's own files; other agents of the process do not matter
        with self._trust.applied():
            self.config = override(config or base_config(env, recipe), _with_environment(env, settings))
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._trainer: Trainer | None = None
        self._loaded: Trained | None = None
        self._refusal = ""  # why a loaded agent may not learn
        self._border: Borders | None = None
        self._drawn: Any = None  # random numbers of a loaded agent

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        known = self._trainer or self._loaded
        return 0 if known is None else known.steps

    @property
    def member(self) -> Member:
        """The agent's parts: network, replay, learner and the rest."""
        return self._prepared().group.members[0]

    def learn(self, steps: int, *, total: int | None = None, callbacks: Sequence[Callback] = ()) -> Self:
        """Act and learn for `steps` more environment steps; a callback that returns False, or the end of the budget, ends it early.

        Ctrl-C ends it in good order, with a checkpoint where there is a `run_dir`, and then raises KeyboardInterrupt. SIGTERM and a closed
        terminal do the same, and then end the program as they would have without us.

        Args:
            steps: how many more.
            total: of all calls together, which is what a learning rate's schedule goes by; None: this is the last call.
            callbacks: see `Progress`.
        """
        steps = _require_count("learn", "steps", steps)
        total = None if total is None else _require_count("learn", "total", total)
        if self._refusal:
            raise ConfigError(self._refusal)
        trainer = self._prepared()
        trainer.extend(steps, total=total)
        trainer.trainings[0].callbacks = list(callbacks)
        go, settings = functools.partial(run, trainer, evaluate_at_end=False), self.config.run
        with self._trust.applied():
            result = with_videos(go, self._run_dir, settings, source=self._source, network=self._net)
        deliver_again(result.interrupted)
        return self

    def predict(
        self,
        observation: Any,
        state: Memento | None = None,
        *,
        reward: float = 0.0,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> tuple[Any, Memento]:
        """The action for one observation as the environment gives it, and what to hand in with the next one of the episode.

        Args:
            observation: as the environment gives it.
            state: what the last call returned; None at the start of an episode.
            reward: of the last step; an agent with a memory looks at it.
            deterministic: the likeliest action instead of a random one.
            action_mask: `info["action_mask"]`, of an environment that gives it there.
        """
        trained = self._playing()
        self._border = self._border or borders_of(trained.spec)
        observation = beside(trained.spec, observation, action_mask)
        seen = _observed(self._border.sees, observation, trained.spec)
        if not isinstance(reward, Real) or not math.isfinite(reward):
            raise ConfigError(f"predict: expected reward to be a finite number, got {shortened(reward)}")
        if not isinstance(state, Memento | None):
            expected = "what the last call returned, or None at the start"
            raise ConfigError(f"predict: expected state to be {expected}, got {type(state).__name__}")
        policy = Policy(trained.network, trained.family, seed=0, deterministic=deterministic)
        if not deterministic and self._trainer is not None:
            policy.generator = self._trainer.group.members[0].actor.policy.generator
        elif not deterministic:  # of a loaded agent: one stream for all calls
            self._drawn = self._drawn or policy.generator.manual_seed(derive(self.config.run.seed, "actions"))
            policy.generator = self._drawn
        is_first, rewards = np.array([state is None]), np.array([reward], np.float32)
        [action], after = act_once(policy, trained.layout, seen[np.newaxis], rewards, is_first, state)
        return self._border.acts(action), after

    def evaluate(self, episodes: int = 20, *, deterministic: bool = False, seed: int | None = None) -> EvalResult:
        """Play whole episodes: in fresh environments, or in the one that you handed in where it cannot be made again."""
        episodes = _require_count("evaluate", "episodes", episodes, least=1)
        if seed is None:
            seed = derive(self.config.run.seed, f"evaluation/{self.steps}")
        seed = _require_count("evaluate", "seed", seed)
        with self._trust.applied():
            return evaluate(self._playing(), episodes=episodes, deterministic=deterministic, seed=seed)

    def save(self, path: str | Path) -> Path:
        """The network, its spaces and the configuration in one safetensors file. What is needed to go on learning is in a `run_dir`."""
        return self._playing().save(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: EnvironmentSource | None = None,
        *,
        net: TorsoSource | None = None,
        trust_code: bool = False,
        warm_start: bool = False,
    ) -> Self:
        """An agent from `save`. It predicts without its environment, and nothing that the file names is imported unasked.

        Args:
            path: of the file.
            env: what to play; None: what the file names.
            net: your own torso, if it was trained with one.
            trust_code: the code that the file names (`module:callable`) may be imported and called.
            warm_start: `learn` may begin with these weights, an empty replay and a new optimiser.
        """
        saved = read_agent(Path(path), net)
        other = isinstance(env, str) and env != saved.source
        config = override(saved.config, {"environment.options": {}} if other else {})  # they were the other one's
        agent = cls(saved.source if env is None else env, net=net, config=config)
        agent._loaded = replace(saved, config=agent.config, source=agent._source)
        agent._trust = Trust(code=trust_code)
        if not warm_start:
            agent._refusal = (
                f"{path} holds a network, but neither its optimiser nor its replay: learning cannot go on where it stopped. Train with "
                "run_dir=... to go on later, or begin with these weights, an empty replay and a new optimiser: "
                "LASER.load(path, warm_start=True)"
            )
        with agent._trust.applied():
            trust.note(saved.config.model_dump(mode="json"), path)
            trust.pass_in(env if isinstance(env, str) else "")
        return agent

    def close(self) -> None:
        """End the environments and other processes, let go of the run directory; the agent can still predict."""
        self._open.close()

    def _prepared(self) -> Trainer:
        if self._trainer is None:
            directory, sinks = None, [*self._sinks]
            name = self.config.environment.id if self._run_dir is None else self._run_dir.name
            with self._trust.applied():
                if self._run_dir is not None:
                    directory = RunDirectory(self._run_dir, self.config)
                    self._open.callback(directory.close)
                    sinks.append(directory.log)
                for tracker in trackers(self._track, name, [self.config], self._run_dir):
                    self._open.callback(tracker.close)
                    sinks.append(tracker)
                trainer = prepare(self.config, directory, source=self._source, torso=self._net, sinks=sinks)
            self._open.callback(trainer.group.close)
            if self._loaded is not None:
                member = trainer.group.members[0]
                load_network(member.learner.network, self._loaded.network.state_dict())
                member.acting.load_state_dict(member.learner.network.state_dict())
                trainer.begin_at(self._loaded.steps)
            self._trainer = trainer
        return self._trainer

    def _playing(self) -> Trained:
        """Network and spaces, to play with; of a loaded agent without its environment."""
        if self._loaded is not None and self._trainer is None:
            return self._loaded
        trainer = self._prepared()
        return trained_of(trainer.group.members[0], trainer.steps)


def _with_environment(env: EnvironmentSource, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the name that `env` has in files, and as many slots as an environment has that exists already."""
    name, options = stored_name(env)
    given = {"options", "environment.options"} & settings.keys()
    if isinstance(env, str):
        return {"environment.id": name, **settings}
    if given:
        expected = "options only with the name of an environment"
        raise ConfigError(f"expected {expected}, got {sorted(given)} with {name}; use functools.partial")
    count = slots_of(env)
    slots = {} if count is None or {"slots", "environment.slots"} & settings.keys() else {"environment.slots": count}
    return {"environment.id": name, "environment.options": options, **slots, **settings}


def base_config(env: EnvironmentSource, recipe: str | None) -> Config:
    """Where the settings of an agent begin: a recipe by name, or what fits the environment."""
    name, _ = stored_name(env)
    if recipe is not None:
        return recipes.by_name(recipe, name)
    slots, any_config = slots_of(env) or task_count(env), recipes.cartpole().environment
    with contextlib.closing(open_environments(env, any_config, seed=0, lockstep=True, slots=slots)) as environments:
        return recipes.for_environment(environments.spec, name)


def _require_count(method: str, name: str, value: object, *, least: int = 0) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    whole = whole or (isinstance(value, float) and value.is_integer())  # 1e5 is how people write it
    if not whole or value < least:  # type: ignore[operator]
        raise ConfigError(f"{method}: expected {name} to be a whole number of at least {least}, got {shortened(value)}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _observed(sees: Callable[[Any], Any], observation: Any, spec: EnvironmentSpec) -> Array:
    """One observation as it is stored; ConfigError if it is not one of this agent's environment."""
    shape, dtype, said, why = spec.observation.shape, np.dtype(spec.observation.dtype), shortened(observation), ""
    if isinstance(observation, np.ndarray | np.generic):
        said = f"{observation.dtype} of shape {observation.shape}"
    mistakes = (ArithmeticError, AttributeError, EnvironmentRefused, LookupError, TypeError, ValueError, AssertionError)
    try:
        # A list stands for an array; a Dict's or Tuple's parts are looked at by their space.
        seen = np.asarray(sees(np.asarray(observation) if isinstance(observation, list) else observation))
        fits = seen.shape == shape
        numbers = spec.observation.numbers(seen).values() if fits else [seen]
        if any(part.dtype.kind == "f" and not np.isfinite(part).all() for part in numbers):
            why = " with NaN or infinity in it"
        elif fits and seen.dtype.kind in ("bui" if dtype == np.uint8 else "buif"):
            return seen.astype(dtype, copy=False)
    except mistakes as error:
        why = f" ({type(error).__name__}: {error})"
    raise ConfigError(
        f"predict: expected one observation of {spec.name}, stored as {dtype} of shape {shape}, got {said}{why}"
    )
