"""An agent that learns, predicts, is evaluated, saved and loaded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.torch

from laser_rl import recipes
from laser_rl.agent.parameters import load_network
from laser_rl.agent.policy import Policy
from laser_rl.agent.single import Memento, act_once
from laser_rl.checkpoint import write_bytes
from laser_rl.config import Config, full_name, override, validated
from laser_rl.envs.make import is_mixture, make_renderable
from laser_rl.envs.scores import tasks_of
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.errors import ConfigError
from laser_rl.evaluation.statistics import EvalResult
from laser_rl.metrics.sink import Sink
from laser_rl.metrics.tracking import Tracking, named, trackers
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import TorsoSource
from laser_rl.runtime.build import EnvironmentSource, Member, build_member, derive, open_environments, slots_of
from laser_rl.runtime.directory import RunDirectory
from laser_rl.runtime.evaluate import evaluate, require_finite, task_count, trained_of
from laser_rl.runtime.launch import prepare, run
from laser_rl.runtime.stop import deliver_again
from laser_rl.runtime.training import Callback, Training

FORMAT = "1"


class LASER:
    """One agent.

    Args:
        env: a Gymnasium id, one of our own (`laser/Catch`), a callable that makes an environment, an environment or a vector of them.
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
        self._track, self._trackers = named(track), list[Tracking]()
        if config is None and (count := slots_of(env)) is not None:
            settings.setdefault("slots", count)
        self.config = override(config or base_config(env, recipe, settings), settings)
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._directory: RunDirectory | None = None
        self._training: Training | None = None
        self.weights: Path | None = None  # of a loaded agent
        self._borders: Any = None

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return 0 if self._training is None else self._training.steps

    @property
    def member(self) -> Member:
        """The agent's parts: network, replay, learner and the rest."""
        return self._prepared().member

    def learn(self, steps: int, *, total: int | None = None, callbacks: Sequence[Callback] = ()) -> Self:
        """Act and learn for `steps` more environment steps; a callback that returns False, or the end of the budget, ends it early.

        Ctrl-C ends it in good order, with a checkpoint where there is a `run_dir`, and then raises KeyboardInterrupt. SIGTERM and a closed
        terminal do the same, and then end the program as they would have without us.

        Args:
            steps: how many more.
            total: of all calls together, which is what a learning rate's schedule goes by; None: this is the last call.
            callbacks: see `Progress`.
        """
        training = self._prepared()
        training.extend(steps, total=total)
        training.callbacks = list(callbacks)
        deliver_again(run(training, evaluate_at_end=False).interrupted)
        return self

    def predict(
        self, observation: Any, state: Memento | None = None, *, reward: float = 0.0, deterministic: bool = True
    ) -> tuple[Any, Memento]:
        """The action for one observation as the environment gives it, and what to hand in with the next one of the episode.

        Args:
            observation: as the environment gives it.
            state: what the last call returned; None at the start of an episode.
            reward: of the last step; an agent with a memory looks at it.
            deterministic: the likeliest action instead of a random one.
        """
        member, layout = self.member, self.member.layout
        sees, acts = self._border()
        policy = Policy(member.learner.network, member.family, seed=0, deterministic=deterministic)
        if not deterministic:
            policy.generator = member.actor.policy.generator
        action, after = act_once(policy, layout, np.asarray(sees(observation)), state, reward)
        return acts(action), after

    def evaluate(self, episodes: int = 20, *, deterministic: bool = False, seed: int | None = None) -> EvalResult:
        """Play whole episodes in fresh environments."""
        if seed is None:
            seed = derive(self.config.run.seed, f"evaluation/{self.steps}")
        return evaluate(trained_of(self.member, self.steps), episodes=episodes, deterministic=deterministic, seed=seed)

    def save(self, path: str | Path) -> Path:
        """The network and the configuration in one safetensors file. What is needed to go on learning is in a `run_dir`."""
        return save_network(path, self.member.learner.network, self.config, self.steps)

    @classmethod
    def load(cls, path: str | Path, env: EnvironmentSource | None = None, *, net: TorsoSource | None = None) -> Self:
        """An agent from `save`; hand in `env` and `net` again if they were not names."""
        config = _stored_config(Path(path))
        agent = cls(config.environment.id if env is None else env, net=net, config=config)
        agent.weights = Path(path)
        return agent

    def close(self) -> None:
        """End the environments and other processes, let go of the run directory; the agent can still predict."""
        if self._training is not None:
            self._training.member.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None
        for sink in self._trackers:
            sink.close()

    def _prepared(self) -> Training:
        if self._training is None:
            member = build_member(self.config, self._source, self._net)
            if self._run_dir is not None:
                self._directory = RunDirectory(self._run_dir, self.config)
            folder = self._run_dir
            name = self.config.environment.id if folder is None else folder.name
            self._trackers = trackers(self._track, name, [self.config.model_dump(mode="json")], folder)
            sinks = [*self._sinks, *([self._directory.log] if self._directory else []), *self._trackers]
            if self.weights is not None:
                _load_weights(self.weights, member.learner.network)
            self._training = prepare(member, self._directory, sinks=sinks)
        return self._training

    def _border(self) -> Any:
        if self._borders is None:
            name, options = self.config.environment.id, self.config.environment.options
            mixed = isinstance(self._source, str) and is_mixture(self._source)
            # All tasks of a mixture are seen alike; the action is the mixture's, of which a task may know a part.
            one, own = next(iter(tasks_of(name).items())) if mixed else (self._source, {})
            env = make_renderable(one, options={**own, **options})
            observation = observation_border(env.observation_space, name).convert
            self._borders = observation, int if mixed else action_border(env.action_space, name).convert
            env.close()
        return self._borders


def base_config(env: EnvironmentSource, recipe: str | None, settings: Mapping[str, Any] | None = None) -> Config:
    """Where the settings of an agent begin: a recipe by name, or what fits the environment, without what contradicts `settings`.

    >>> base_config("CartPole-v1", None).recipe
    'cartpole'
    """
    asked = {full_name(name): value for name, value in (settings or {}).items()}
    return recipes.giving_way(_recipe_of(env, recipe), asked)


def _recipe_of(env: EnvironmentSource, recipe: str | None) -> Config:
    name = name_of(env)
    if recipe is not None:
        return recipes.by_name(recipe, name)
    environments = open_environments(
        env, recipes.cartpole().environment, seed=0, lockstep=True, slots=slots_of(env) or task_count(env)
    )
    try:
        return recipes.for_environment(environments.spec, name)
    finally:
        if isinstance(env, str) or callable(env):
            environments.close()


def name_of(env: EnvironmentSource) -> str:
    """What an environment is called in a configuration.

    >>> name_of("CartPole-v1"), name_of(dict)
    ('CartPole-v1', 'dict')
    """
    return env if isinstance(env, str) else str(getattr(env, "__name__", type(env).__name__))


def save_network(path: str | Path, network: AgentNetwork, config: Config, steps: int) -> Path:
    """A network and its configuration in one safetensors file, for `LASER.load`."""
    about = {"format": FORMAT, "config": config.model_dump_json(), "steps": str(steps)}
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    write_bytes(Path(path), safetensors.torch.save(dense, metadata=about))
    return Path(path)


def _stored_config(path: Path) -> Config:
    if not path.is_file():
        raise ConfigError(f"{path} is not there; LASER.save writes such a file")
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ConfigError(f"{path} is no file of LASER.save: {error}") from None
    if about.get("format") != FORMAT:
        raise ConfigError(f"{path} has format {about.get('format')}, expected {FORMAT}; please upgrade laser-rl")
    try:
        values = json.loads(about["config"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no file of LASER.save: its configuration cannot be read: {error}") from None
    # It may have been trained on a device that is not here.
    return override(validated(values), {"run.device": "auto", "run.devices": 1})


def _load_weights(path: Path, network: AgentNetwork) -> None:
    try:
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no file of LASER.save: {error}") from None
    load_network(network, tensors)
    require_finite(path, network)
