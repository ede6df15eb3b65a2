"""The flags of the commands that take settings, and their help. No torch: help must not wait for it."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from laser_rl.config import Frozen, setting_fields

# Short names of settings that their last names do not give.
SHORT = {"env": "environment.id", "video_every": "run.video_every_steps", "replay_from": "replay.start_from"}


class RunFlags(Frozen):
    """Where a run or sweep computes, and what is shown of it."""

    fresh: bool = False
    """Throw away what the run directory holds and start again."""
    accept_changes: bool = False
    """Go on although config.json or sweep.json was edited, with what it says now."""
    plain: bool = False
    """Lines instead of a live table."""
    dashboard: bool = False
    """Show it in a browser, on this machine only: a process of its own, which on a terminal stays up after the run until Ctrl-C."""
    cluster: Annotated[str | None, "auto|local|HOST:PORT|ray://HOST:PORT"] = None
    """Run on a Ray cluster, wherever the run began: learners, environment runners and the replay are spread over its nodes. auto joins the
    one of this machine, or starts one. With --runtime serial in lock-step: slow, and the same parameters as on one machine."""
    cluster_runners: int = 1
    """Environment runners of each member on a cluster; they share its slots."""
    track: Annotated[tuple[str, ...], "wandb,trackio,mlflow"] = ()
    """Rows of metrics also go to one or several trackers, a run a member, on this machine only unless their own environment variables say
    otherwise."""


class TrainFlags(RunFlags):
    """Train one agent. Begin with a recipe and an environment; every setting can be changed."""

    config: Annotated[Path | None, "FILE"] = None
    """A YAML or JSON file with settings; of a sweep: base (the settings), grid, random, draws, members, share, pbt, search, stack,
    processes."""
    out: Path | None = None
    """The run directory; runs/NAME-1, -2, ... if left out. An existing one goes on where it stopped."""
    processes: int = 1
    """Over how many processes the members are spread; 0: one a core. More than one is not deterministic, and a process that dies is
    started again, also that of a single agent."""


class SweepFlags(TrainFlags):
    """Train several agents that differ in a few settings, run at the same speed and learn from one replay.

    What members differ in comes from --grid, from --random with --draws, from a file or from a recipe for sweeps: demo, atari-shared,
    dmlab-pbt. Every recipe for one agent will do as a base. All settings are those of the base.
    """

    grid: Annotated[tuple[str, ...], "NAME=VALUE,VALUE"] = ()
    """Values of a setting, learning_rate=3e-4,1e-3; every combination with the other lists is a member."""
    random: Annotated[tuple[str, ...], "NAME=KIND:LOW:HIGH"] = ()
    """A distribution, learning_rate=log_uniform:1e-4:1e-2, discount=uniform:0.9:1 or trust=choice:implied:off."""
    draws: int | None = None
    """How many members to draw from --random."""
    share: Literal["shared", "separate", "none"] = "shared"
    """One replay for all, one each, or none."""
    pbt: bool = False
    """Population based training: as the recipe or file says; if they say nothing, after a tenth of the steps each member looks at another
    one every 50 of its episodes, copies it if its returns are better, and goes on with its learning rate and entropy cost, each × or ÷
    1.2 with a probability of 1/3."""
    search: Literal["optuna"] | None = None
    """Try settings from --random one after the other: trials come and go, and all write to and learn from one replay. Optuna proposes them
    and ends the bad ones early."""
    trials: int | None = None
    """How many settings a search tries, at most."""
    concurrent: int | None = None
    """How many trials a search has at a time: its members. Each has --steps in all."""
    trial_steps: int | None = None
    """Steps of a trial that is not pruned; twice its share of all steps if left out."""
    inherit: bool = False
    """A trial begins with the parameters of the best one so far."""
    stack: Literal["auto", "on", "off"] = "auto"
    """Compute members side by side: faster for small networks."""


class ResumeFlags(RunFlags):
    """Go on with a run or sweep that was stopped, killed or finished."""

    steps: int | None = None
    """A new total number of environment steps, in a sweep of each member."""
    budget_minutes: float | None = None
    """A new total of minutes, those of the earlier sessions included."""
    devices: int | None = None
    """On how many devices one agent learns."""


@dataclass(config=Frozen.model_config)  # a model has a method `json`
class ShowFlags:
    """Print a complete configuration: what `laser train` would use with the same flags, or what a run or sweep was started with."""

    run_dir: Path | None = None
    """A run's or sweep's own configuration; all other flags are ignored."""
    config: Annotated[Path | None, "FILE"] = None
    """A YAML or JSON file with settings."""
    json: bool = False
    """JSON instead of YAML."""


_COMMON = (
    "env recipe config steps seed learning_rate entropy_cost discount slots unroll_steps batch_unrolls capacity_steps"
)
# The class of a command's own flags, what may stand alone, and what `--help` shows; all, if that is empty.
COMMANDS: dict[str, tuple[type, str, str]] = {
    "train": (TrainFlags, "[ENV]", f"{_COMMON} memory device out dashboard"),
    "sweep": (SweepFlags, "[ENV | FILE]", f"grid random draws share pbt search {_COMMON} processes out dashboard"),
    "config": (ShowFlags, "show [ENV]", f"run_dir json {_COMMON} memory"),
    "resume": (ResumeFlags, "RUN_DIR", ""),
}
_WORDS: dict[Any, str] = {bool: "", int: "N", float: "X", str: "TEXT", Path: "PATH", dict: "JSON"}
_END = (
    "Every setting is a flag by its full name, --optimiser.learning-rate, or by its last name where only one has it; one that is true or "
    "false takes no value: --popart, --no-popart. What is left out is as the recipe has it: 'laser config show --recipe NAME'. "
)


def help_text(command: str, *, everything: bool) -> str:
    """What `laser COMMAND --help` or, with everything, `--help-all` prints."""
    owner, alone, shown = COMMANDS[command]
    # The command's own flags, then all settings if it takes them, by the shortest name that there is.
    every, everything = setting_fields(owner) | (setting_fields() if shown else {}), everything or not shown
    lasts, short = Counter(full.rpartition(".")[2] for full in every), {full: name for name, full in SHORT.items()}
    flags = {}
    for full in every:
        last = full.rpartition(".")[2]
        flags[short.get(full, last if lasts[last] == 1 else full)] = full
    more = f"--help-all shows all {len(flags)} flags, with their defaults where no recipe has changed them."
    parser = argparse.ArgumentParser(
        usage=f"laser {command} {alone} [FLAGS]",
        description=" ".join((owner.__doc__ or "").split()),
        epilog=(_END if shown else "") + ("" if everything else more),
        add_help=False,
    )
    groups = {"": parser.add_argument_group("flags")}
    for name in flags if everything else shown.split():
        field, section = every[flags[name]], flags[name].rpartition(".")[0] if everything else ""
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        metavar, default = _metavar(field), field.get_default(call_default_factory=True)
        given = everything and default is not None and default is not False and default not in ((), {})
        text = " ".join(f"{field.description or ''} {f'(default: {default})' if given else ''}".split())
        value: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        groups[section].add_argument(f"--{name.replace('_', '-')}", help=text.replace("%", "%%"), **value)
    return parser.format_help()


def _metavar(field: FieldInfo) -> str:
    """What a value looks like: the text beside its type, or a word for that; empty for what is true or false."""
    said = [note for note in field.metadata if isinstance(note, str)]
    return said[0] if said else _word(field.annotation)


def _word(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "{" + ",".join(inner) + "}"
    found = _WORDS.get(origin or kind)
    if found is None:
        found = _word(inner[0])
    return f"{found} ..." if origin is tuple else found
