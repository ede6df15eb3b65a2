"""An agent that learns, predicts, is evaluated, saved and loaded."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from laser_rl import recipes
from laser_rl.agent.functions import pass_again
from laser_rl.agent.loss import Relevance
from laser_rl.agent.parameters import load_network
from laser_rl.agent.policy import Memento, Policy, act_once
from laser_rl.api.agent_file import AgentFile, save_with_replay
from laser_rl.api.arguments import callbacks_of, count_of, each_of, observed, require_state, watched, with_names
from laser_rl.config import Config, override
from laser_rl.envs.construct import stored_name
from laser_rl.envs.make import make_environments
from laser_rl.envs.masks import beside
from laser_rl.envs.spaces import borders_of, unbatching
from laser_rl.errors import ConfigError, shortened
from laser_rl.evaluation.statistics import EvalResult
from laser_rl.metrics.rows import Sink
from laser_rl.metrics.tracking import named, trackers
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import TorsoSource, parameter_count
from laser_rl.training.build import EnvironmentSource, Member, derive, slots_of
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Trained, evaluate, task_count, trained_of
from laser_rl.training.launch import Around, prepare, run
from laser_rl.training.member_training import Callback
from laser_rl.training.recording import with_videos
from laser_rl.training.stop import deliver_again
from laser_rl.training.trainer import Trainer
from laser_rl.trust import Trust, note, pass_in


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
            all calls together. `trust` may be a function (`Relevance`), and `learning_rate` one from the share of the run that remains,
            1 at the start and 0 at the end, to the rate; with `schedule` it gives a factor of the rate.

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
            self.config = override(config or base_config(env, recipe), _with_environment(env, with_names(settings)))
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._trainer: Trainer | None = None
        self._loaded: Trained | None = None
        self._refusal = ""  # why a loaded agent may not learn
        self._restore: Callable[[Trainer], bool] | None = None  # from a file that it was loaded from
        self._border: tuple[Callable[[Any], Any], ...] | None = None
        self._drawn: torch.Generator | None = None  # random numbers of `predict`

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        known = self._trainer or self._loaded
        return 0 if known is None else known.steps

    @property
    def member(self) -> Member:
        """The agent's parts: network, replay, learner and the rest."""
        return self._prepared().group.members[0]

    @property
    def network(self) -> AgentNetwork:
        """The torch module that learns: torso, memory and heads. Its parameters are the agent's own, not a copy."""
        return self._playing().network

    def __repr__(self) -> str:
        built = self._trainer is not None or self._loaded is not None
        size = f", {parameter_count(self.network):,} parameters" if built else ""
        return f"LASER({self.config.environment.id}, recipe {self.config.recipe}, {self.steps:,} steps{size})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def learn(
        self,
        steps: float | str | None = None,
        *,
        total_timesteps: float | str | None = None,
        total: float | str | None = None,
        callback: Callback | Sequence[Callback] | None = None,
        progress_bar: bool = False,
        tensorboard_log: str | Path | None = None,
        log_every: int | None = None,
        verbose: int = 0,
    ) -> Self:
        """Act and learn for `steps` more environment steps; a callback that returns False, or the end of the budget, ends it early.

        Ctrl-C ends it in good order, with a checkpoint where there is a `run_dir`, and then raises KeyboardInterrupt. SIGTERM and a closed
        terminal do the same, and then end the program as they would have without us.

        Args:
            steps: how many more: a number, or a text such as "200k" or "1.5M".
            total_timesteps: another name for `steps`; give one of the two.
            total: of all calls together, which is what a learning rate's schedule goes by; None: this is the last call.
            callback: a function of a `Progress`, or a list of them; `laser_rl` has some: `StopAtReturn`, `EvaluateEvery`, `SaveEvery`,
                `StopWithoutImprovement`.
            progress_bar: show the live table of the command line, also in a notebook; plain lines where neither is there.
            tensorboard_log: also write TensorBoard's event files to this folder.
            log_every: environment steps between two rows of metrics, and so between two calls of a callback; None: as configured.
            verbose: 1 prints a line every few seconds, where `progress_bar` shows no table.

        >>> with LASER("laser/Catch", seed=1, slots=4) as agent:
        ...     agent.learn("0.2k", log_every=100, callback=lambda progress: progress.step < 100).steps < 200
        True
        """
        if (steps is None) == (total_timesteps is None):
            raise ConfigError(
                f"learn: expected a number of steps, got steps={steps} and total_timesteps={total_timesteps}; give one"
            )
        more = count_of("learn", "steps", total_timesteps if steps is None else steps)
        total = None if total is None else count_of("learn", "total", total)
        log_every = None if log_every is None else count_of("learn", "log_every", log_every, least=1)
        called = callbacks_of("learn", callback)
        if self._refusal:
            raise ConfigError(self._refusal)
        trainer = self._prepared()
        shown = {"progress_bar": progress_bar, "tensorboard_log": tensorboard_log, "verbose": verbose}
        until, where = trainer.steps + more, self._run_dir
        with self._trust.applied(), watched("learn", trainer.settings, until, where, **shown) as sinks:
            trainer.extend(more, total=total, callbacks=called, sinks=sinks, log_every=log_every)
            go, settings = functools.partial(run, trainer, evaluate_at_end=False), self.config.run
            result = with_videos(go, self._run_dir, settings, source=self._source, network=self._net)
        deliver_again(result.interrupted)
        return self

    def predict(
        self,
        observation: Any,
        state: Memento | None = None,
        *,
        reward: Any = 0.0,
        episode_start: Any = None,
        deterministic: bool = False,
        action_mask: Any = None,
    ) -> tuple[Any, Memento]:
        """The action for one observation as the environment gives it, and what to hand in with the next one of the episode.

        A batch [n, ...], as vector environments return it (arrays, or a Dict or Tuple of them), gives n actions and the state of n
        episodes. The shape of the environment's space tells one observation from a batch.

        Args:
            observation: as the environment gives it, or a batch.
            state: what the last call returned; None at the start of an episode.
            reward: of the last step, or one for each of a batch; an agent with a memory looks at it.
            episode_start: whether an episode begins here, or [n] of a batch: those forget; None: if there is no state.
            deterministic: the likeliest action; the default here and in `evaluate` is a random one, as in training.
            action_mask: `info["action_mask"]`, of an environment that gives it there; [n, ...] with a batch.

        >>> import numpy as np
        >>> with LASER("laser/Catch", seed=1) as agent:
        ...     actions, state = agent.predict(np.zeros((3, 50), np.float32))
        >>> actions.shape
        (3,)
        """
        trained = self._playing()
        if self._border is None:
            self._border = (*borders_of(trained.spec), unbatching(trained.spec))
        sees, acts, split = self._border
        observation = beside(trained.spec, observation, action_mask)
        batch = split(observation)
        items = [observation] if batch is None else batch
        if not items:
            raise ConfigError(f"predict: expected at least one observation of {trained.spec.name}, got an empty batch")
        seen = np.stack([observed(sees, item, trained.spec) for item in items])
        rewards = each_of("reward", reward, len(items), np.float32)
        begins = state is None if episode_start is None else episode_start
        is_first = each_of("episode_start", begins, len(items), np.bool_)
        require_state(state, len(items))
        policy = Policy(trained.network, trained.family, seed=0, deterministic=deterministic)
        if not deterministic:  # one stream for all calls, which is not that of training
            seed = derive(self.config.run.seed, "predict")
            self._drawn = self._drawn or policy.generator.manual_seed(seed)
            policy.generator = self._drawn
        actions, after = act_once(policy, trained.layout, seen, rewards, is_first, state)
        chosen = [acts(action) for action in actions]
        return chosen[0] if batch is None else np.stack(chosen), after

    def evaluate(self, episodes: int = 20, *, deterministic: bool = False, seed: int | None = None) -> EvalResult:
        """Play whole episodes: in fresh environments, or in the one that you handed in where it cannot be made again.

        Args:
            episodes: how many; of a mixture of tasks rounded up, so that each is played as often.
            deterministic: the likeliest actions; the default here and in `predict` is random ones, as in training: they are what learned.
            seed: of the environments and the actions; None: by the agent's seed and its steps.
        """
        episodes = count_of("evaluate", "episodes", episodes, least=1)
        own = derive(self.config.run.seed, f"evaluation/{self.steps}")
        seed = own if seed is None else count_of("evaluate", "seed", seed)
        with self._trust.applied():
            return evaluate(self._playing(), episodes=episodes, deterministic=deterministic, seed=seed)

    def save(self, path: str | Path, *, replay: bool = False) -> Path:
        """The network, its spaces and the configuration in one safetensors file; loading it imports nothing that it names.

        Args:
            path: of the file.
            replay: also store optimiser, replay, counters and random numbers, so that `LASER.load(path).learn(n)` goes on: with
                runtime "serial" on a CPU bit for bit, if its environments are made by name and so open episodes can be rebuilt; otherwise
                with new episodes. Neither the schedule's `total` nor the files of a `run_dir` are in it. The whole replay is held in memory
                meanwhile: one of many gigabytes belongs into a `run_dir`.
        """
        if not replay:
            return self._playing().save(path)
        if self._refusal:
            raise ConfigError(f"save: expected an agent with a replay, but {self._refusal}")
        return save_with_replay(self._playing(), self._prepared(), Trained.require_place(path))

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: EnvironmentSource | None = None,
        *,
        net: TorsoSource | None = None,
        device: str = "auto",
        trust_code: bool = False,
        warm_start: bool = False,
        trust: Relevance | None = None,
        schedule: Callable[[float], float] | None = None,
    ) -> Self:
        """An agent from `save`. It predicts without its environment, and nothing that the file names is imported unasked.

        Args:
            path: of the file.
            env: what to play; None: what the file names.
            net: your own torso, if it was trained with one.
            device: where: "cpu", "cuda", "cuda:1"; "auto": a GPU if there is one.
            trust_code: the code that the file names (`module:callable`) may be imported and called.
            warm_start: `learn` may begin with these weights, an empty replay and a new optimiser.
            trust: your own relevance function, if it learned with one that no import finds, such as a lambda.
            schedule: likewise your own schedule, or learning rate.
        """
        if not isinstance(path, str | Path):
            raise ConfigError(f"load: expected the path of a file, got {shortened(path)}")
        file = AgentFile(Path(path))
        saved = file.trained(net, str(device))
        if trust is not None:
            pass_again(saved.config.loss.trust, trust, "trust")
        if schedule is not None:
            pass_again(saved.config.optimiser.schedule, schedule, "schedule")
        other = isinstance(env, str) and env != saved.source
        config = override(saved.config, {"environment.options": {}} if other else {})  # they were the other one's
        agent = cls(saved.source if env is None else env, net=net, config=config)
        agent._loaded = replace(saved, config=agent.config, source=agent._source)
        agent._trust = Trust(code=trust_code)
        if file.parts and not warm_start:
            agent._restore = file.restore
        elif not warm_start:
            agent._refusal = (
                f"{path} holds a network, but neither its optimiser nor its replay: learning cannot go on where it stopped. Save with "
                "save(path, replay=True), or train with run_dir=..., to go on later; or begin with these weights, an empty replay and a "
                "new optimiser: LASER.load(path, warm_start=True)"
            )
        with agent._trust.applied():
            note(saved.config.model_dump(mode="json"), path)
            pass_in("" if env is None else stored_name(env)[0])  # its code is the user's own, whatever the file says
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
                around: Around = {"source": self._source, "torso": self._net, "sinks": sinks}
                if self._restore is not None:
                    around["restore"] = self._restore
                trainer = prepare(self.config, directory, **around)
            self._open.callback(trainer.group.close)
            if self._loaded is not None and self._restore is None:
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
    if isinstance(env, str):
        return {"environment.id": name, **settings}
    if given := {"options", "environment.options"} & settings.keys():
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
    with contextlib.closing(make_environments(env, any_config, seed=0, lockstep=True, slots=slots)) as environments:
        return recipes.for_environment(environments.spec, name)
