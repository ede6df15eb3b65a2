"""`Sweep`: train several agents that differ in a few settings at the same speed, by default with one shared replay."""

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from laser_rl import recipes
from laser_rl.api.agent import base_config
from laser_rl.api.arguments import callbacks_of, count_of, named_in_grid, watched, with_names
from laser_rl.config import Config, override
from laser_rl.envs.construct import stored_name
from laser_rl.errors import ConfigError, require_modules
from laser_rl.metrics.rows import Sink
from laser_rl.metrics.tracking import named, trackers
from laser_rl.networks.build import TorsoSource
from laser_rl.replay.memory_estimate import available_bytes, estimate, require_fits
from laser_rl.training.build import EnvironmentSource, slots_of
from laser_rl.training.build_group import one_layout
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Result
from laser_rl.training.launch import Elsewhere, process_count, train
from laser_rl.training.member_training import Callback
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.search import SearchConfig
from laser_rl.training.settings import ClusterSettings, Distribution, SweepConfig, cluster_of, sweep_from, with_source
from laser_rl.training.stop import EXIT_STATUS, deliver_again


@dataclass(frozen=True)
class SweepResult(Result):
    """How a sweep ended: its members, the `exploits` of population based training, and what `interrupted` it, if anything did."""

    run_dir: Path
    """Metrics and report; a temporary one lives as long as this object."""

    def to_pandas(self) -> Any:
        """A table with one row a member: its settings, steps, updates, return and evaluation."""
        require_modules("SweepResult.to_pandas", "pandas", "pandas")
        import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

        rows = []
        for one in self.members:
            counts = {"steps": one.steps, "updates": one.updates, "return_mean": one.return_mean}
            last = one.evaluation
            played = () if last is None else (last.score, last.iqm, *last.score_ci95)
            names = ("evaluation_mean", "evaluation_iqm", "evaluation_ci95_low", "evaluation_ci95_high")
            rows.append({"member": one.number, **one.settings, **counts, **dict(zip_longest(names, played))})
        return pd.DataFrame(rows)

    def report(self, path: str | Path) -> Path:
        """Write the report, one HTML file, to this path."""
        from laser_rl.view.report import report  # noqa: PLC0415 - training itself imports nothing of the page

        return report(self.run_dir, out=path)


class Sweep:
    """Several agents at once. What members differ in is a `grid`, `random` draws or a list of `members`.

    Args:
        env: a Gymnasium id, one of our own (`laser/Catch`) or a callable that makes an environment.
        grid: a list of values for each name; every combination is a member.
        random: a distribution for each name; `draws` members are drawn.
        draws: how many.
        members: one dictionary of settings a member.
        share_replay: True: one replay for all; False: one each; "none": no replay.
        pbt: population based training: its settings, or True for the recipe's (`recipes.small_pbt` if it has none); False: without.
        search: trials instead of fixed settings, `SearchConfig(trials=40)`; needs `random`, and `draws` says how many at a time.
        net: a class or function that makes your own torso from the observation's shape; None: the recipe's.
        recipe: where the settings begin: one for a sweep or for an agent; None: what fits the environment.
        config: a whole configuration of what members have in common, instead of a recipe.
        run_dir: keep checkpoints and metrics there, and go on from them; None: metrics only, in a temporary directory.
        processes: over how many the members are spread; 0: one a core.
        cluster: a Ray cluster to run on: "auto", "host:port" or "ray://host:port"; None: this machine. In lock-step with runtime="serial".
        cluster_runners: environment runners of each member there.
        stack: compute members side by side: "auto", "on", "off".
        sinks: more places for rows of metrics.
        track: trackers that get them too, a run a member: wandb, trackio, mlflow; on this machine only, see docs/guides/tracking.md.
        settings: of all members, by name, `entropy_cost=1e-3` or `**{"loss.discount": 0.9}`; `budget_minutes=30` is for all together.

    >>> sweep = Sweep("laser/Catch", grid={"learning_rate": [1e-3, 2e-3]}, seed=1, slots=4, evaluate_episodes=4)
    >>> result = sweep.run(200)
    >>> [member.settings for member in result.members]
    [{'learning_rate': 0.001}, {'learning_rate': 0.002}]
    >>> result.best().evaluation.episodes
    4
    """

    def __init__(
        self,
        env: EnvironmentSource,
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
        random: Mapping[str, Distribution | Mapping[str, Any]] | None = None,
        draws: int | None = None,
        members: Sequence[Mapping[str, Any]] | None = None,
        share_replay: bool | Literal["none"] | None = None,
        pbt: PbtConfig | bool | None = None,
        search: SearchConfig | None = None,
        net: TorsoSource | None = None,
        recipe: str | None = None,
        config: Config | None = None,
        run_dir: str | Path | None = None,
        processes: int = 1,
        cluster: str | None = None,
        cluster_runners: int = 1,
        stack: Literal["auto", "on", "off"] = "auto",
        sinks: Sequence[Sink] = (),
        track: str | Sequence[str] = (),
        **settings: Any,
    ) -> None:
        if slots_of(env) is not None:
            raise ConfigError("members cannot share an environment that exists already; hand in its id or constructor")
        self._source, self._net, self._sinks, self._track = env, net, tuple(sinks), named(track)
        self._run_dir = None if run_dir is None else Path(run_dir)
        if config is None and recipe in recipes.SWEEPS:
            sweep = recipes.SWEEPS[recipe](stored_name(env)[0])
            base, values = sweep.base, sweep.model_dump(exclude={"base"})
        else:
            base, values = config or base_config(env, recipe), {}
        # What is neither a list nor, below, a Mapping is refused with the other settings.
        if isinstance(members, list | tuple):
            members = [with_names(own) if isinstance(own, Mapping) else own for own in members]
        if isinstance(grid, Mapping):
            grid = {
                name: [named_in_grid(name, one) for one in values] if isinstance(values, list | tuple) else values
                for name, values in grid.items()
            }
        given = {"grid": grid, "random": random, "members": members, "draws": draws}
        values = with_source(values, {name: value for name, value in given.items() if value is not None})
        if share_replay is not None:
            values["share"] = "shared" if share_replay is True else share_replay or "separate"
        self._pbt_wanted = pbt is True and values.get("pbt") is None
        if pbt is False or isinstance(pbt, PbtConfig):
            values["pbt"] = pbt or None
        values |= {} if search is None else {"search": search}
        self._cluster = cluster_of(cluster, cluster_runners)
        if self._cluster is not None and not {"runtime", "run.runtime"} & settings.keys():
            settings["run.runtime"] = "local"
        self.config: SweepConfig = self._complete(
            {**values, "processes": processes, "stack": stack},
            override(base, {"environment.id": stored_name(env)[0], **with_names(settings)}),
        )

    def run(
        self,
        steps: float | str | None = None,
        *,
        callback: Callback | Sequence[Callback] | None = None,
        progress_bar: bool = False,
        tensorboard_log: str | Path | None = None,
        verbose: int = 0,
    ) -> SweepResult:
        """Run all members to the end, or go on from the newest checkpoint of `run_dir`.

        Ctrl-C ends it in good order, with a checkpoint where there is a `run_dir`, and then raises KeyboardInterrupt. SIGTERM and a closed
        terminal do the same, and then end the program as they would have without us.

        Args:
            steps: of each member, a number or a text such as "200k"; None: as configured.
            callback: a function of a `Progress`, or a list of them; one that returns False ends the sweep.
            progress_bar: show the live table of the command line, also in a notebook; plain lines where neither is there.
            tensorboard_log: also write TensorBoard's event files to this folder.
            verbose: 1 prints a line every few seconds, where `progress_bar` shows no table.
        """
        called = callbacks_of("run", callback)
        if steps is not None:
            steps = count_of("run", "steps", steps, least=1)
            values = self.config.model_dump(exclude={"base", "pbt"} if self._pbt_wanted else {"base"})
            self.config = self._complete(values, override(self.config.base, {"run.steps": steps}))
        elsewhere = elsewhere_of(self.config, self._cluster, self._source)
        base = self.config.base
        shown = {"progress_bar": progress_bar, "tensorboard_log": tensorboard_log, "verbose": verbose}
        with contextlib.ExitStack() as removing, contextlib.ExitStack() as stack:
            folder = self._run_dir or Path(tempfile.mkdtemp(prefix="laser-sweep-"))
            if self._run_dir is None:
                removing.callback(shutil.rmtree, folder, ignore_errors=True)
            sinks = stack.enter_context(watched("run", self.config, base.run.steps, self._run_dir, **shown))
            directory = stack.enter_context(contextlib.closing(RunDirectory(folder, self.config)))
            name = f"{base.environment.id}-sweep" if self._run_dir is None else self._run_dir.name
            more = trackers(self._track, name, self.config.configs, self._run_dir)
            for sink in more:
                stack.callback(sink.close)
            # Processes meet in the directory.
            keeps = self._run_dir is not None or process_count(self.config) > 0 or elsewhere is not None
            end = train(
                self.config,
                directory if keeps else None,
                source=self._source,
                torso=self._net,
                sinks=[directory.log, *self._sinks, *sinks, *more],
                callbacks=called,
                elsewhere=elsewhere,
            )
            result = SweepResult(**vars(end), run_dir=folder)
            # After such a signal the process may end before the result is collected: then the folder goes now.
            if result.interrupted not in EXIT_STATUS:
                weakref.finalize(result, removing.pop_all().close)
        deliver_again(result.interrupted)
        return result

    def _complete(self, values: Mapping[str, Any], base: Config) -> SweepConfig:
        pbt = {"pbt": recipes.small_pbt(base.run.steps)} if self._pbt_wanted else {}
        return sweep_from({**values, **pbt, "base": base})


def elsewhere_of(
    sweep: SweepConfig, cluster: ClusterSettings | None, source: EnvironmentSource | None = None
) -> Elsewhere | None:
    """What runs the members on a cluster; None: this machine does. ConfigError, before anything is written, if it cannot."""
    if sweep.search is not None:
        require_modules("a search", "search", "optuna")
    if cluster is None:
        if not sweep.single:
            require_memory(sweep, source)
        return None
    from laser_rl.cluster.launch import require_possible, run_cluster  # noqa: PLC0415 - a run on this machine never needs it

    require_possible(sweep, cluster, source=source)
    require_modules("--cluster", "cluster", "ray")
    return partial(run_cluster, cluster)


def require_memory(sweep: SweepConfig, source: EnvironmentSource | None = None) -> None:
    """ConfigError if members do not fit one replay, or the replays not into memory, before anything is allocated or written."""
    base, replay = sweep.base, sweep.base.replay
    _, layout = one_layout(dict(enumerate(sweep.configs)), base.environment.id if source is None else source)
    if sweep.share == "none" or not replay.fraction:
        return
    needed = estimate(layout, replay.capacity_steps, replay.codec, replay.budget_bytes)
    free, members = available_bytes(), len(sweep.settings) if sweep.share == "separate" else 1
    try:
        require_fits(needed, available=free // members)
    except ConfigError as error:
        if members == 1:
            raise
        raise ConfigError(
            f"{members} members with a replay each have {free / 1e9:.1f} GB between them, so of each one: {error}, or share one replay"
        ) from None
