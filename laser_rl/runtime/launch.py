"""From a configuration and a directory to a finished run."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laser_rl.agent.own_relevance import require_relevance
from laser_rl.config import Config
from laser_rl.evaluation.statistics import EvalResult
from laser_rl.metrics.sink import Sink
from laser_rl.networks.build import TorsoSource
from laser_rl.runtime.build import EnvironmentSource, Member, build_member, slots_of
from laser_rl.runtime.child import MOST_RESTARTS
from laser_rl.runtime.directory import RunDirectory
from laser_rl.runtime.local import run_local
from laser_rl.runtime.ranks import RankLost
from laser_rl.runtime.recording import recorded
from laser_rl.runtime.serial import run_serial
from laser_rl.runtime.stop import FINISHED, signals
from laser_rl.runtime.training import Callback, Training, evaluate_last, steps_told
from laser_rl.runtime.warm_start import warm_start

log = logging.getLogger("laser_rl.runtime")
RUNTIMES = {"serial": run_serial, "local": run_local}


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    member: Member
    steps: int
    updates: int
    evaluation: EvalResult | None
    interrupted: str | None  # the signal or reason, None if all steps were done
    checkpoint: Path | None


def train(
    config: Config,
    directory: RunDirectory | None = None,
    *,
    source: EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train one member until its steps are done; goes on from the newest checkpoint of `directory`, if there is one.

    The environments are closed at the end, whatever the end is. Where other devices learn with it and one of them is lost, all is built
    again, and goes on from the newest checkpoint: what a broken update left in the memory of a card is not to be trusted.
    """
    lost, lost_at = 0, -1
    while True:
        member, training = build_member(config, source, torso), None
        try:
            training = prepare(member, directory, sinks=sinks, callbacks=callbacks)
            return run(training)
        except RankLost as error:
            steps = -1 if training is None else training.steps
            lost, lost_at = (lost + 1 if steps <= lost_at else 1), max(steps, lost_at)
            if directory is None or lost > MOST_RESTARTS or slots_of(member.source) is not None:
                raise
            log.warning("%s; the run goes on from there by itself", error)
        finally:
            member.close()


def prepare(
    member: Member,
    directory: RunDirectory | None = None,
    *,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (),
) -> Training:
    """A member at its first step, or where its newest checkpoint left it."""
    save = None if directory is None else directory.save
    training = Training(member, sinks=sinks, callbacks=callbacks, save=save)
    training.run_dir = None if directory is None else directory.path
    if directory is None or not directory.restore(training):
        if member.replay is not None:
            warm_start(member.replay, member.config, members=1)
        member.actor.begin()
    return training


def run(training: Training, *, evaluate_at_end: bool = True) -> Result:
    """Act and learn up to the training's target; save, evaluate and save at the end. Videos are made beside it, if they are asked for."""
    member = training.member
    with recorded(training.run_dir, member.config.run, source=member.source, network=member.learner.network) as films:
        result = _run(training, evaluate_at_end=evaluate_at_end)
        if films is not None and result.interrupted is None:
            films.finish()
    return result


def _run(training: Training, *, evaluate_at_end: bool) -> Result:
    member, stop = training.member, training.stop
    require_relevance(member.config.loss.trust)
    # To the very end: the last evaluation and the last checkpoint may be long, and are asked to end as well.
    with signals(stop), steps_told([training]):
        RUNTIMES[member.config.run.runtime](training)
        training.check()
        stop.request(FINISHED)
        training.report()
        if evaluate_at_end:
            evaluate_last([training], stop, training.save)
        evaluation = training.last_evaluation if evaluate_at_end and stop.interrupted is None else None
        interrupted = stop.interrupted
        training.announce("finished" if interrupted is None else "stopped")
        training.save()
    return Result(member, training.steps, training.update, evaluation, interrupted, training.saved)
