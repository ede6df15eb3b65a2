"""From settings and a directory to a finished run: of one agent or of a sweep, in this process, in several, or on a cluster."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from laser_rl.agent.functions import function_named
from laser_rl.config import Config
from laser_rl.errors import ConfigError
from laser_rl.metrics.rows import Sink
from laser_rl.networks.build import TorsoSource
from laser_rl.training.build import EnvironmentSource, RankLost, slots_of
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Result
from laser_rl.training.files import require_trusted
from laser_rl.training.member_training import Callback, evaluate_last, steps_told
from laser_rl.training.process_handle import MOST_RESTARTS
from laser_rl.training.recording import with_videos
from laser_rl.training.saving import warm_start
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stop import FINISHED, signals
from laser_rl.training.trainer import Trainer, run_in_turns
from laser_rl.trust import HERE

log = logging.getLogger("laser_rl.training")
Elsewhere = Callable[..., Result]  # runs all members where this process only supervises; arguments as of `train`


class Around(TypedDict, total=False):
    """What a run gets from its caller beside settings and directory."""

    source: EnvironmentSource | None  # what to play, if it is not the configuration's id
    torso: TorsoSource | None  # a user's module, if it is not the configuration's torso
    sinks: Sequence[Sink]  # where rows of metrics go
    callbacks: Sequence[Callback]  # see `Progress`
    restore: Callable[[Trainer], bool]  # brings members to where they stood, if no directory does


def train(
    settings: Config | SweepConfig,
    directory: RunDirectory | None = None,
    *,
    elsewhere: Elsewhere | None = None,
    **around: Unpack[Around],
) -> Result:
    """Train until the steps of all members are done, from the newest checkpoint of `directory` on, if there is one."""
    sweep = SweepConfig(base=settings) if isinstance(settings, Config) else settings
    _require_code(sweep)

    way = elsewhere or (_train_in_processes if process_count(sweep) else _train_here)
    path = None if directory is None else directory.path
    source, network = around.get("source"), around.get("torso")
    return with_videos(lambda: way(sweep, directory, **around), path, sweep.base.run, source=source, network=network)


def _train_in_processes(sweep: SweepConfig, directory: RunDirectory | None, **around: Unpack[Around]) -> Result:
    from laser_rl.training.supervisor import ProcessSupervisor, require_by_name  # noqa: PLC0415 - a run in this process never needs it

    if directory is None:
        raise ConfigError("a run in processes of its own needs a run directory: they meet there; give one")
    require_by_name(sweep, "over several processes", "use processes=1 with objects of your own", **around)
    return ProcessSupervisor(sweep, directory, process_count(sweep), **around).run()


def _train_here(sweep: SweepConfig, directory: RunDirectory | None, **around: Unpack[Around]) -> Result:
    """If a device that learns too is lost, all is built again: what a broken update left in the memory of a card is not to be trusted."""
    lost, lost_at = 0, -1
    while True:
        trainer = prepare(sweep, directory, **around)
        try:
            return run(trainer)
        except RankLost as error:
            steps = trainer.steps
            lost, lost_at = (lost + 1 if steps <= lost_at else 1), max(steps, lost_at)
            if directory is None or lost > MOST_RESTARTS or slots_of(trainer.group.members[0].source) is not None:
                raise
            log.warning("%s; the run goes on from there by itself", error)
        finally:
            trainer.group.close()


def prepare(settings: Config | SweepConfig, directory: RunDirectory | None = None, **around: Unpack[Around]) -> Trainer:
    """All members in this process, at their first step, or where their newest checkpoint left them; the caller closes `group`."""
    sweep = SweepConfig(base=settings) if isinstance(settings, Config) else settings
    _require_code(sweep)
    group = build_group(sweep, around.get("source"), around.get("torso"))
    try:
        save = None if directory is None else directory.save
        trainer = Trainer(sweep, group, sinks=around.get("sinks", ()), callbacks=around.get("callbacks", ()), save=save)
        restore = around.get("restore", lambda _: False) if directory is None else directory.restore
        if not restore(trainer):
            for store in trainer.stores:
                warm_start(store, sweep.base, members=len(sweep.settings))
            group.begin()
    except BaseException:
        group.close()
        raise
    return trainer


def _require_code(sweep: SweepConfig) -> None:
    require_trusted(*sweep.configs)
    for member in sweep.configs:
        for name, setting in ((member.loss.trust, "loss.trust"), (member.optimiser.schedule, "optimiser.schedule")):
            if ":" in name:  # refused if it leads nowhere, or if only a file gives it: now, and not after the warm-up
                function_named(name, setting)
            if member.run.devices > 1 and name.startswith(HERE):
                raise ConfigError(
                    f"run.devices is {member.run.devices}: expected a {setting} that other processes can import, got a function of this "
                    "program; define it in a module, or use one device"
                )


def run(trainer: Trainer, *, evaluate_at_end: bool = True) -> Result:
    """Act and learn up to the members' target; save, evaluate and save at the end. Signals ask all of that to end."""
    with signals(trainer.stop), steps_told(trainer.trainings):
        try:
            act_and_learn(trainer)
        except Exception:
            trainer.settle()  # a checkpoint under way is what the run goes on from
            raise
        trainer.stop.request(FINISHED)
        trainer.report()
        if evaluate_at_end:
            evaluate_last(trainer.trainings, trainer.stop, trainer.save)
        # A signal from here on comes too late: it finds a run that is finished.
        interrupted = trainer.stop.interrupted
        trainer.announce("finished" if interrupted is None else "stopped")
        trainer.save()
    return trainer.result(interrupted)


def act_and_learn(trainer: Trainer) -> None:
    """Until the steps are done, the time is over or a stop is requested: in threads if the only member here does so, otherwise in turns."""
    if trainer.group.threaded:
        from laser_rl.training.threads import run_local  # noqa: PLC0415 - members that take turns never need it

        run_local(trainer)
    else:
        run_in_turns(trainer)
    for training in trainer.trainings:
        training.check()


def process_count(sweep: SweepConfig) -> int:
    """0: all members run in this process. One agent has one if more are asked for: it is started again if it dies."""
    count = min(sweep.processes or len(os.sched_getaffinity(0)), len(sweep.settings))
    return count if count > 1 or sweep.processes > 1 else 0
