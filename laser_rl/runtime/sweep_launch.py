"""From the settings of a sweep and a directory to a finished sweep."""

import os
from collections.abc import Sequence
from typing import Any

from laser_rl.agent.own_relevance import require_relevance
from laser_rl.metrics.sink import Sink
from laser_rl.networks.build import TorsoSource
from laser_rl.runtime.build import EnvironmentSource
from laser_rl.runtime.cluster.settings import ClusterSettings
from laser_rl.runtime.crew_build import build_crew
from laser_rl.runtime.evaluate import trained_of
from laser_rl.runtime.files import require_trusted
from laser_rl.runtime.processes import run_processes
from laser_rl.runtime.recording import recorded
from laser_rl.runtime.results import MemberResult, SweepEnd
from laser_rl.runtime.stop import FINISHED, signals
from laser_rl.runtime.sweep import SweepTraining, run_sweep
from laser_rl.runtime.sweep_directory import SweepDirectory, stores_of
from laser_rl.runtime.training import Callback, Training, evaluate_last, steps_told
from laser_rl.runtime.warm_start import warm_start
from laser_rl.sweep.settings import SweepConfig


def sweep(
    config: SweepConfig,
    directory: SweepDirectory | None = None,
    *,
    source: EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (),
    cluster: ClusterSettings | None = None,
) -> SweepEnd:
    """Run a sweep until all members have done their steps; goes on from the newest checkpoint of `directory`, if there is one.

    With `cluster` it runs there, otherwise on this machine.
    """
    require_trusted(*config.configs)
    path = None if directory is None else directory.path
    with recorded(path, config.base.run, source=source, network=torso) as films:
        more: dict[str, Any] = {"source": source, "torso": torso, "sinks": sinks, "callbacks": callbacks}
        end = _sweep(config, directory, **more) if cluster is None else _sweep_there(config, directory, cluster, **more)
        if films is not None and end.interrupted is None:
            films.finish()
    return end


def _sweep(
    config: SweepConfig,
    directory: SweepDirectory | None,
    *,
    source: EnvironmentSource | None,
    torso: TorsoSource | None,
    sinks: Sequence[Sink],
    callbacks: Sequence[Callback],
) -> SweepEnd:
    _require_relevance(config)
    count = process_count(config)
    if count > 1:
        return run_processes(config, directory, count, source=source, torso=torso, sinks=sinks, callbacks=callbacks)
    crew = build_crew(config, source, torso)
    try:
        save = None if directory is None else directory.save
        training = SweepTraining(config, crew, sinks=sinks, callbacks=callbacks, save=save)
        if directory is None or not directory.restore(training):
            for store in stores_of(training):
                warm_start(store, config.base, members=len(config.settings))
            crew.begin()
        return finish(training)
    finally:
        crew.close()


def _sweep_there(
    config: SweepConfig, directory: SweepDirectory | None, cluster: ClusterSettings, **more: Any
) -> SweepEnd:
    from laser_rl.runtime.cluster.launch import run_cluster  # noqa: PLC0415 - nobody else waits for it

    _require_relevance(config)
    return run_cluster(config, directory, cluster, **more)


def _require_relevance(config: SweepConfig) -> None:
    for member in config.configs:
        require_relevance(member.loss.trust)


def finish(training: SweepTraining) -> SweepEnd:
    """Act and learn to the end; save, evaluate everybody, and save."""
    with signals(training.stop), steps_told(training.trainings):
        run_sweep(training)
        training.stop.request(FINISHED)
        training.report()
        evaluate_last(training.trainings, training.stop, training.save)
        interrupted = training.stop.interrupted
        training.announce("finished" if interrupted is None else "stopped")
        training.save()
    settings = training.sweep.settings
    members = tuple(
        _result(number, settings[number], member)
        for number, member in zip(training.numbers, training.trainings, strict=True)
    )
    exploits = () if training.pbt is None else tuple(training.pbt.history)
    return SweepEnd(members, exploits, interrupted, training.saved)


def _result(number: int, settings: dict[str, Any], training: Training) -> MemberResult:
    member, learner = training.member, training.member.learner
    config = member.config.model_copy(update={"loss": learner.loss, "optimiser": learner.rates})
    played = training.evaluations[-1][1] if training.evaluations else None
    mean = training.window.numbers().get("return_mean")
    trained = trained_of(member, training.steps)
    return MemberResult(number, settings, config, training.steps, training.update, mean, played, trained)


def process_count(config: SweepConfig) -> int:
    """Over how many processes a sweep is spread."""
    wanted = config.processes or len(os.sched_getaffinity(0))
    return max(1, min(wanted, len(config.settings)))
