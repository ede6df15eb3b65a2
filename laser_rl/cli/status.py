"""`laser status`: how runs and sweeps stand. It imports neither NumPy nor pydantic, so that it answers at once.

A run validates its settings and records their checksum in `machine.json`. Only settings with another checksum are validated here.
"""

import contextlib
import json
import shlex
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laser_rl import checkpoint, disk
from laser_rl.checkpoint import guarded
from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.metrics.log import FILE
from laser_rl.metrics.standing import SWEEP, MemberStanding, Newest, standing_of, state_of


def status_command(arguments: list[str]) -> int:
    """`laser status RUN_DIR ...`: a line a member, or everything as JSON."""
    words = [word for word in arguments if word != "--json"]
    as_json = len(words) < len(arguments)
    if not words or any(word.startswith("-") for word in words):  # to be explained or refused
        import argparse  # noqa: PLC0415 - see the module's docstring

        about = "How runs and sweeps stand: a line a member. Reads only, so it may be asked at any time."
        parser = argparse.ArgumentParser(prog="laser status", description=about)
        parser.add_argument("run_dirs", nargs="*", metavar="RUN_DIR", help="Directories of runs or sweeps.")
        parser.add_argument(
            "--json", action="store_true", help="Everything as JSON, a list with one object a directory."
        )
        words = parser.parse_args(arguments).run_dirs
    if not words:
        raise ConfigError("status what? name one or more run directories: laser status runs/*")
    found = [status_of(Path(word)) for word in words]
    print(json.dumps(found, indent=2) if as_json else "\n\n".join(map(_text, found)))
    return 0


def status_of(run_dir: Path) -> dict[str, Any]:
    """What the files of a run directory say, as plain values; refused if it is none."""
    (environment, recipe, steps), owner = _begun_with(run_dir), checkpoint.owner(run_dir)
    newest, history = checkpoint.newest_step(run_dir), Newest.read(run_dir / FILE)
    sweep = disk.read_json(run_dir / SWEEP)
    is_sweep = bool(sweep) or history.has_members
    members = standing_of(history, sweep if is_sweep else {"settings": [{}]})
    folder = run_dir / checkpoint.CHECKPOINTS / f"step-{newest or 0:012d}"
    return {
        "run_dir": str(run_dir),
        "kind": "sweep" if is_sweep else "run",
        "environment": environment,
        "recipe": recipe,
        "state": state_of(history.last, running=owner is not None),
        "process": None if owner is None else owner._asdict(),
        "checkpoint": None if newest is None else {"step": newest, "path": str(folder)},
        "evaluation_missing": owner is None and _evaluation_is_missing(run_dir),
        "members": [_member(one, history, steps) for one in members],
    }


def _begun_with(run_dir: Path) -> tuple[str, str, int]:
    """Environment, recipe and steps; `ConfigError` if the settings cannot be used."""
    file = run_dir / (SWEEP if (run_dir / SWEEP).exists() else "config.json")
    sessions = disk.read_json(run_dir / "machine.json").get("sessions", [{}])
    # A checksum can be forged with the settings: what is not of these types is validated, and refused, below.
    unusable = OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError
    with contextlib.suppress(*unusable), disk.open_regular(file) as opened:
        data = opened.read(disk.JSON_LIMIT_BYTES)
        if zlib.crc32(data) == sessions[-1]["settings_crc32"]:
            values = json.loads(data)
            base = values.get("base", values)
            match base["environment"]["id"], base["recipe"], base["run"]["steps"]:
                case str(environment), str(recipe), int(steps):
                    return environment, recipe, steps
    from laser_rl.training.files import read_sweep  # noqa: PLC0415 - imports pydantic

    base = read_sweep(run_dir).base
    return base.environment.id, base.recipe, base.run.steps


def _evaluation_is_missing(run_dir: Path) -> bool:
    """Whether all steps are done and saved, and only the last evaluation was not played, or failed."""
    noted = False
    for path in guarded.newest_first(run_dir):
        with contextlib.suppress(guarded.Damaged):
            noted |= b'"evaluation_due"' in guarded.read_bytes(path / "state.json", limit=guarded.JSON_LIMIT_BYTES)
    if not noted:
        return False
    from laser_rl.training.files import awaits_evaluation, has_ended  # noqa: PLC0415 - imports pydantic

    state = checkpoint.newest_state(run_dir) or {}
    members = state.get("members", [state])
    trainings = [one["training"] for one in members if isinstance(one, dict) and "training" in one]
    return any(map(awaits_evaluation, trainings)) and all(map(has_ended, trainings))


def _member(one: MemberStanding, history: Newest, steps: int) -> dict[str, Any]:
    trained = history.values("train", one.member)
    clocked = ("steps_per_second", "updates_per_second", "budget_left_seconds")
    return {
        **one._asdict(),
        "total_steps": steps,
        **{name: display.number(trained, name) for name in clocked},
    }


def _text(found: dict[str, Any]) -> str:
    members, process = found["members"], found["process"]
    what = f"sweep of {len(members)} members" if found["kind"] == "sweep" else "run"
    held = f" (process {process['pid']} on {process['host']})" if process else ""
    saved = f"checkpoint at step {found['checkpoint']['step']:,}" if found["checkpoint"] else "no checkpoint yet"
    left = [one["budget_left_seconds"] for one in members if one["budget_left_seconds"] is not None]
    budget = f", {display.duration(min(left))} left of its budget" if left else ""
    missing = ""
    if found["evaluation_missing"]:
        missing = f", only the last evaluation is missing: laser resume {shlex.quote(found['run_dir'])}"
    title = f"{found['run_dir']}: {what} on {found['environment']}, {found['state']}{held}, {saved}{budget}{missing}"
    returns = "score" if "," in found["environment"] or found["environment"].startswith("suite:") else "return"
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
