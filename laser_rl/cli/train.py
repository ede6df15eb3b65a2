"""`laser train`, `laser sweep`, `laser resume`: flags become settings, a run starts, and its result is printed."""

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laser_rl import checkpoint, recipes
from laser_rl.api.arguments import watched
from laser_rl.api.sweep import elsewhere_of
from laser_rl.cli.flags import Typed, begin, grid_of, random_of, typed
from laser_rl.cli.options import ResumeFlags, RunFlags, SweepFlags, TrainFlags
from laser_rl.config import Config, full_name, override
from laser_rl.errors import ConfigError
from laser_rl.metrics.display import flat_settings, label
from laser_rl.metrics.tracking import named, tracked, trackers
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import MemberResult, Result
from laser_rl.training.files import command_for, new_path, read_sweep, require_trusted
from laser_rl.training.filming import can_be_filmed
from laser_rl.training.launch import train
from laser_rl.training.settings import (
    SOURCES,
    SweepConfig,
    cluster_of,
    settings_from,
    sweep_from,
    with_source,
)
from laser_rl.training.stop import EXIT_STATUS, StoppedAtOnce, nothing_to_save
from laser_rl.view.command import dashboard_of, require_dashboard

FREE_RUNNING = {"run.runtime": "local"}  # members do not take turns: on a cluster, the default


def train_command(arguments: list[str]) -> int:
    given = typed(arguments, TrainFlags)
    base = override(begin(*given.begins())[0], given.settings)
    asked = given.take(TrainFlags)
    settings = SweepConfig(base=base, processes=asked.processes)
    return _start(asked, settings, base.environment.id, given)


def sweep_command(arguments: list[str]) -> int:
    given = typed(arguments, SweepFlags)
    base, rest = begin(*given.begins(), sweep=True)
    shown = {name: rest[name] for name in ("share", "stack", "processes") if name in rest}
    asked = given.take(SweepFlags, pbt=rest.get("pbt") is not None, **shown)
    settings = _sweep_of(asked, override(base, given.settings), rest)
    return _start(asked, settings, f"{settings.base.environment.id}-sweep", given)


def resume_command(arguments: list[str]) -> int:
    fixed = "stays as it was; laser train --replay-from RUN_DIR begins a new run with other settings and the old replay"
    given = typed(arguments, ResumeFlags, fixed=fixed)
    asked = given.take(ResumeFlags)
    if len(given.alone) != 1 or given.alone[0].startswith("-"):
        raise ConfigError(f"resume what? expected one run directory, got {' '.join(given.alone) or 'none'}")
    path = Path(given.alone[0])
    totals = {"run.steps": asked.steps, "run.budget_minutes": asked.budget_minutes, "run.devices": asked.devices}
    more = {name: value for name, value in totals.items() if value is not None}
    stored = read_sweep(path)
    settings = settings_from({**dict(stored), "base": override(stored.base, more)})
    if not asked.fresh and checkpoint.latest(path, replay="unread") is None:
        raise ConfigError(f"{path} holds no checkpoint to go on from; use --fresh to start again")
    settings = settings if asked.cluster is None else settings.with_base(FREE_RUNNING)
    return _run(path, settings, asked, named([*tracked(path), *asked.track]))


def _sweep_of(asked: SweepFlags, base: Config, rest: Mapping[str, Any]) -> SweepConfig:
    """Flags over what they begin with; refused if nothing says what members differ in."""
    rest, draws = _searched(asked, rest), asked.concurrent or asked.draws
    draws = draws or (rest.get("draws") if asked.random else None)
    given = {"grid": grid_of(asked.grid), "random": random_of(asked.random), "draws": draws}
    rest = with_source(rest, {name: value for name, value in given.items() if value})
    if not any(rest.get(name) for name in SOURCES):
        raise ConfigError(
            "a sweep needs to know what its members differ in; give --grid learning_rate=3e-4,1e-3, --random "
            "learning_rate=log_uniform:1e-4:1e-2 --draws 10, a file, or one of the recipes for sweeps: "
            f"--recipe {', '.join(recipes.SWEEPS)}"
        )
    pbt = (rest.get("pbt") or recipes.small_pbt(base.run.steps)) if asked.pbt else None
    chosen = {"share": asked.share, "stack": asked.stack, "processes": asked.processes}
    return sweep_from({**rest, **chosen, "pbt": pbt, "base": base})


def _searched(asked: SweepFlags, rest: Mapping[str, Any]) -> dict[str, Any]:
    """What flags say of a search over what a file says of it; refused without one."""
    given = {"trials": asked.trials, "trial_steps": asked.trial_steps, "inherit": asked.inherit or None}
    given = {name: value for name, value in given.items() if value is not None}
    known = rest.get("search") or {}
    if asked.search is None and not known:
        if given or asked.concurrent:
            raise ConfigError(f"{', '.join(given) or 'concurrent'} is of a search; add --search optuna")
        return dict(rest)
    return {**rest, "search": {**known, **given}}


def _start(asked: TrainFlags, settings: SweepConfig, name: str, given: Typed) -> int:
    if asked.cluster is not None and "run.runtime" not in given.settings:
        settings = settings.with_base(FREE_RUNNING)
    path = asked.out or new_path(Path("runs"), name)
    return _run(path, settings, asked, named(asked.track))


def _run(path: Path, settings: SweepConfig, asked: RunFlags, track: Sequence[str]) -> int:
    """Run in a run directory and say how it went and what can be done next."""
    try:
        with nothing_to_save(), contextlib.ExitStack() as shown, contextlib.ExitStack() as stack:
            require_trusted(*settings.configs)
            elsewhere = elsewhere_of(settings, cluster_of(asked.cluster, asked.cluster_runners))
            if asked.dashboard:
                require_dashboard()
            directory = RunDirectory(path, settings, fresh=asked.fresh, accept_changes=asked.accept_changes)
            stack.callback(directory.close)
            tracking = trackers(track, path.name, settings.configs, path, fresh=asked.fresh)
            for sink in tracking:
                stack.callback(sink.close)
            stay_up = shown.enter_context(dashboard_of(path)) if asked.dashboard else None
            how = {"progress_bar": not asked.plain, "tensorboard_log": path, "verbose": asked.plain}
            sinks = stack.enter_context(watched("train", settings, settings.base.run.steps, path, **how))
            result = train(settings, directory, sinks=[directory.log, *sinks, *tracking], elsewhere=elsewhere)
            stack.close()
            status = _farewell(path, settings, result)
            if stay_up is not None and status == 0:
                stay_up()
            return status
    except KeyboardInterrupt as error:  # before the first step, or again while the end is being saved
        return broken_off(path, error)


def broken_off(path: Path, error: KeyboardInterrupt) -> int:
    """Say what is left of a run that was ended at once, and how to go on."""
    name = error.name if isinstance(error, StoppedAtOnce) else "SIGINT"
    saved = any((path / checkpoint.CHECKPOINTS).glob("step-*"))
    how = f"go on with: {command_for('resume', path)}" if saved else "nothing was saved yet, so start again"
    print(f"stopped ({name}) at once; {how}")
    return EXIT_STATUS[name]


def _farewell(path: Path, settings: SweepConfig, result: Result) -> int:
    folder, each = shlex.quote(str(path)), "" if settings.single else " of each member"
    if result.interrupted is not None:
        resume = command_for("resume", path)
        print(f"stopped ({result.interrupted}) at step {result.steps:,}{each}; go on with: {resume}")
        return EXIT_STATUS.get(result.interrupted, 1)
    from laser_rl.view.report import report  # noqa: PLC0415 - training itself imports nothing of the page

    best, member = result.best(), "" if settings.single else " --member best"
    if settings.single:
        print(f"done: {result.steps:,} steps, {result.updates:,} updates, {best.evaluation}")
    else:
        made = len(result.exploits)
        copies = f", {made} exploits" if made else ""
        if settings.search is not None:
            copies = f", {len(result.members) + made} trials"
        members = f"{len(result.members)} members, {result.steps:,} steps each"
        print(f"done: {members}, {result.updates:,} updates in all{copies}")
        for one in result.members:
            print(f"member {one.number:<2} {_now(one)}  {one.evaluation}")
        print(f"best:     member {best.number}, {_now(best)}")
    print(f"report:   {report(path)}")
    print(f"evaluate: {command_for('evaluate', path)}{member} --episodes 100")
    if can_be_filmed(best.config.environment):
        print(f"watch:    {command_for('enjoy', path)}{member} --video {shlex.quote(str(path / 'video.mp4'))}")
    print(f"curves:   tensorboard --logdir {folder}")
    return 0


def _now(member: MemberResult) -> str:
    """Its settings as they are at the end: population based training may have moved them."""
    values = flat_settings(member.config.model_dump())
    return label({name: values[full_name(name)] for name in member.settings})
