"""`laser config`, `laser report`, `laser status`: to look at things without changing them, also while they are written."""

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml

from laser_rl import checkpoint
from laser_rl.config import Config, override
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.metrics.rows import Row
from laser_rl.metrics.standing import MemberStanding
from laser_rl.training.files import awaits_evaluation, has_ended, read_sweep
from laser_rl.training.settings import SweepConfig
from laser_rl.view.report import report
from laser_rl.view.runs import subject_of


@dataclass(frozen=True)
class Show:
    """Print a complete configuration: what `laser train` would use with the same flags, or what a run or sweep was started with."""

    run_dir: Path | None = None
    """A run's or sweep's own configuration; all other flags are ignored."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A YAML or JSON file with settings."""
    json: bool = False
    """JSON instead of YAML."""


def config_command(arguments: list[str]) -> int:
    """`laser config show`; its output is a file for `laser train --config`, or for `laser sweep` if it is a sweep's."""
    from laser_rl.cli.flags import begin, typed  # noqa: PLC0415 - recipes, which the other commands do not need

    if arguments and arguments[0] != "show":
        raise ConfigError(f"laser config {arguments[0]}: expected laser config show, with flags as of laser train")
    given = typed(arguments[1:], Show)
    config: Config | SweepConfig = override(begin(*given.begins())[0], given.settings)
    asked = given.take("config show", Show())
    if asked.run_dir:
        sweep = read_sweep(asked.run_dir)
        config = sweep.base if sweep.single else sweep
    values = config.model_dump(mode="json")
    print(json.dumps(values, indent=2) if asked.json else yaml.safe_dump(values, sort_keys=False).rstrip())
    return 0


@dataclass(frozen=True)
class Report:
    """Write a report, one HTML file: of a run, of a sweep, or of several of them side by side. Reads only, also while they go on."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    out: Path | None = None
    """The HTML file; by default report.html in the directory or, of several, where you are."""

    def __call__(self) -> int:
        if self.out is not None and (self.out.is_dir() or self.out.suffix not in {".html", ".htm"}):
            raise ConfigError(f"--out names the HTML file, expected something like report.html, got {self.out}")
        print(report(*self.run_dirs, out=self.out))
        return 0


@dataclass(frozen=True)
class Status:
    """How runs and sweeps stand: a line a member. Reads only, so it may be asked at any time."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    json: bool = False
    """Everything as JSON, a list with one object a directory."""

    def __call__(self) -> int:
        found = [status_of(run_dir) for run_dir in self.run_dirs]
        print(json.dumps(found, indent=2) if self.json else "\n\n".join(_text(one) for one in found))
        return 0


def status_of(run_dir: Path) -> dict[str, Any]:
    """What the files of a run directory say, as plain values; refused if it is none."""
    base, owner, newest = read_sweep(run_dir).base, checkpoint.owner(run_dir), checkpoint.newest_step(run_dir)
    subject = subject_of(run_dir)
    folder = run_dir / checkpoint.CHECKPOINTS / f"step-{newest or 0:012d}"
    return {
        "run_dir": str(run_dir),
        "kind": "sweep" if subject.is_sweep else "run",
        "environment": base.environment.id,
        "recipe": base.recipe,
        "state": subject.state,
        "process": None if owner is None else {"pid": owner.pid, "host": owner.host},
        "checkpoint": None if newest is None else {"step": newest, "path": str(folder)},
        "evaluation_missing": owner is None and _evaluation_is_missing(run_dir),
        "members": [_member(one, subject.newest(one.member, "train"), base) for one in subject.members],
    }


def _evaluation_is_missing(run_dir: Path) -> bool:
    """Whether all steps are done and saved, and only the last evaluation was not played, or failed."""
    state = checkpoint.newest_state(run_dir) or {}
    members = state.get("members", [state])
    trainings = [one["training"] for one in members if isinstance(one, dict) and "training" in one]
    return any(map(awaits_evaluation, trainings)) and all(map(has_ended, trainings))


def _member(one: MemberStanding, trained: Row, base: Config) -> dict[str, Any]:
    own = one.acceptance_own  # a single run has no sources to tell apart
    clocked = ("steps_per_second", "updates_per_second", "budget_left_seconds")
    return {
        **asdict(one),
        "total_steps": base.run.steps,
        "acceptance_own": display.number(trained, "acceptance") if own is None else own,
        **{name: display.number(trained, name) for name in clocked},
    }


def _text(found: dict[str, Any]) -> str:
    members, process = found["members"], found["process"]
    what = f"sweep of {len(members)} members" if found["kind"] == "sweep" else "run"
    held = f" (process {process['pid']} on {process['host']})" if process else ""
    saved = f"checkpoint at step {found['checkpoint']['step']:,}" if found["checkpoint"] else "no checkpoint yet"
    left = [one["budget_left_seconds"] for one in members if one["budget_left_seconds"] is not None]
    budget = f", {display.duration(min(left))} left of its budget" if left else ""
    resume = f"laser resume {shlex.quote(found['run_dir'])}"
    missing = f", only the last evaluation is missing: {resume}" if found["evaluation_missing"] else ""
    title = f"{found['run_dir']}: {what} on {found['environment']}, {found['state']}{held}, {saved}{budget}{missing}"
    mixed = len(tasks_of(found["environment"])) > 1
    returns = "score" if mixed else "return"
    headings = ["member", "settings", "steps", returns, "evaluation", "trusted own", "others", "steps/s", "updates/s"]
    lines = [[*headings, "last row"], *(_cells(one) for one in members)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([title, *table])


def _cells(one: dict[str, Any]) -> list[str]:
    def text(name: str, form: Callable[[float], str]) -> str:
        return display.NONE if one[name] is None else form(one[name])

    interval = one["evaluation_interval"]
    return [
        str(one["member"]),
        display.label(one["settings"]),
        display.progress(one["steps"], one["total_steps"]),
        text("return_mean", display.short),
        text("evaluation", display.short) + (" ({} to {})".format(*map(display.short, interval)) if interval else ""),
        text("acceptance_own", display.share),
        text("acceptance_others", display.share),
        text("steps_per_second", "{:,.0f}".format),
        text("updates_per_second", display.short),
        text("silent_seconds", lambda seconds: f"{display.duration(seconds)} ago"),
    ]
